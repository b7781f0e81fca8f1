//! `asyncagents_wait`: sleeps until tasks have ended, and shows their results. One call replaces polling with
//! `asyncagents_output`, each of which would cost the caller a model turn.
//!
//! A client may cut calls off before the tasks have ended, so a wait is done in slices: each says how to go on,
//! and a result that was shown in one slice is only named in the next.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::asks::{waiting_for_a_person, why_it_returned};
use super::list::line;
use super::output::{Window, show};
use super::wait_limit::{LONGEST, SHORTEST, USUAL, WaitLimit};
use super::waiter::Waiter;
use super::{Answer, Audience, INLINE, NameSet, Refusal, audience, counted, parse, structured};
use crate::supervisor::{Caller, Need, Supervisor, WaitEnd};
use crate::task::{BatchId, Task, TaskId, Timestamp};

pub(super) const DESCRIPTION: &str = "\
Sleep until background tasks have ended, and get their results. By default it waits for all of your \
running tasks; name some with `task_ids`, or a `batch`. Use it when you have nothing left to do but \
to wait, instead of asking for the status again and again. If the time is up first, nothing is \
lost: the tasks go on, and you can call it again. It returns early when all of them wait for the \
user's permission, and says what is asked.";

/// More ids than a parent can have running and queued tasks are a mistake.
const MOST_NAMES: usize = 2_000;

/// How many characters of results, and how many lines of each list, fit into one answer.
const MOST_SHOWN: usize = 3 * INLINE;
const MOST_LISTED: usize = 50;

/// How many ended tasks are named when nothing is running.
const LATEST: usize = 10;

/// The default timeout. An MCP client has nothing else to do and pays for every call, so it waits as long as it
/// may; in a conversation a message comes by itself.
fn usual(audience: Audience) -> f64 {
    match audience {
        Audience::Conversation => USUAL,
        Audience::Mcp => LONGEST,
    }
}

pub(super) fn properties(audience: Audience) -> Value {
    json!({
        "task_ids": {
            "type": "array", "items": { "type": "string" }, "maxItems": MOST_NAMES,
            "description": "The ids of the tasks to wait for. Left out: all that are running.",
        },
        "batch": { "type": "string", "description": "Wait for the tasks of this batch." },
        "mode": {
            "type": "string", "enum": ["all", "any"], "default": "all",
            "description": "Whether to wait until all of them have ended, or any.",
        },
        "count": {
            "type": "integer", "minimum": 1,
            "description": "Wait until this many of them have ended, whatever `mode` says.",
        },
        "timeout": {
            "type": "number", "minimum": SHORTEST, "maximum": LONGEST, "default": usual(audience),
            "description": "How long to wait at most, in seconds.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    task_ids: Option<Vec<String>>,
    batch: Option<String>,
    mode: Option<Mode>,
    count: Option<usize>,
    timeout: Option<f64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    All,
    Any,
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    names: NameSet,
    arguments: Value,
    waiter: &Waiter<'_>,
) -> Result<Answer, Refusal> {
    let Arguments { task_ids, batch, mode, count, timeout } = parse(arguments)?;
    let limit = match waiter.is_deferred() {
        true => WaitLimit::of_deferred(timeout)?,
        false => WaitLimit::of(caller, timeout, usual(audience(caller)))?,
    };
    let need = match (count, mode.unwrap_or_default()) {
        (Some(0), _) => return Err(Refusal::Arguments("`count` must be at least 1".to_owned())),
        (Some(count), _) => Need::AtLeast(count),
        (None, Mode::All) => Need::All,
        (None, Mode::Any) => Need::Any,
    };
    // After a restart, what the arguments stood for when the call was made.
    let ids = match waiter.tasks() {
        Some(tasks) => tasks.to_vec(),
        None => named(supervisor, caller, task_ids.unwrap_or_default(), batch)?,
    };
    if ids.is_empty() {
        return Ok(nothing_runs(supervisor, caller, names)?.into());
    }
    let awaited = waiter.await_ends(supervisor, caller, &ids, need, limit.most).await?;
    let AnswerText { mut text, tasks } = render(supervisor, caller, names, &awaited.tasks)?;
    let asks = supervisor.asks_of(&awaited.tasks);
    let asked = waiting_for_a_person(&awaited.tasks, &asks);
    let went = match awaited.end {
        WaitEnd::Enough => None,
        WaitEnd::TimedOut => Some(limit.is_over(caller, names, "asyncagents_wait")),
        WaitEnd::Blocked => Some(why_it_returned(&names.say("asyncagents_wait"))),
    };
    for part in asked.into_iter().chain(went) {
        text.push_str("\n\n");
        text.push_str(&part);
    }
    // Only the tasks whose results are in the text: those that did not fit stay unread, and their notices are
    // still delivered.
    supervisor.retrieved(&tasks).await?;
    // Also when its text was shown before: that came as a notice, without the JSON.
    let structured = match awaited.tasks.as_slice() {
        [task] => structured(task),
        _ => None,
    };
    Ok(Answer { text, receipt: awaited.give(&tasks).await?, structured })
}

/// The answer when there is nothing to wait for. It names the tasks that ended last: their ends may have come
/// in front of another answer, and a model that missed them there waits for them here.
fn nothing_runs(
    supervisor: &Supervisor,
    caller: &Caller,
    names: NameSet,
) -> Result<String, Refusal> {
    let nothing = "No running background tasks to wait for.";
    let ended = match audience(caller) {
        Audience::Mcp => supervisor.list(&caller.session, None)?.tasks,
        Audience::Conversation => Vec::new(),
    };
    let ended: Vec<&Task> = ended.iter().filter(|task| !task.is_live()).take(LATEST).collect();
    let again = names.say("Ended before, asyncagents_output(task_id=…) shows their results:");
    let listed = listed(&again, &ended, supervisor.clock().now());
    Ok(std::iter::once(nothing.to_owned()).chain(listed).collect::<Vec<_>>().join("\n\n"))
}

/// The ids of the tasks to wait for, each once, in the order they were named.
fn named(
    supervisor: &Supervisor,
    caller: &Caller,
    names: Vec<String>,
    batch: Option<String>,
) -> Result<Vec<TaskId>, Refusal> {
    let ids = |tasks: Vec<Task>| tasks.into_iter().map(|task| task.id).collect::<Vec<TaskId>>();
    let mut all = match (names.as_slice(), batch) {
        ([], None) => {
            // Over MCP also what has ended and was not read yet: otherwise a task that ends right before the
            // call would not be among its results.
            let mut all = match audience(caller) {
                Audience::Mcp => supervisor.ended_unread(&caller.session)?,
                Audience::Conversation => Vec::new(),
            };
            all.extend(ids(supervisor.in_background(&caller.session)?));
            all
        }
        ([], Some(batch)) => ids(supervisor.batch(caller, &BatchId::new(batch))?),
        (names, None) if names.len() <= MOST_NAMES => {
            let found = names.iter().map(|name| supervisor.resolve(name));
            ids(found.collect::<Result<Vec<Task>, _>>()?)
        }
        (_, None) => {
            return Err(Refusal::Arguments(format!("at most {MOST_NAMES} tasks at once")));
        }
        (_, Some(_)) => {
            let text = "pass `task_ids` or `batch`, not both";
            return Err(Refusal::Arguments(text.to_owned()));
        }
    };
    let mut seen = HashSet::new();
    all.retain(|id| seen.insert(id.clone()));
    Ok(all)
}

/// The text of an answer, and the tasks whose results are in it.
struct AnswerText<'a> {
    text: String,
    tasks: Vec<&'a Task>,
}

/// Renders the tasks that were waited for. Results that an MCP client was given before are named, not shown
/// again, so that a wait in slices costs each result once. Results that do not fit are named and stay unread.
fn render<'a>(
    supervisor: &Supervisor,
    caller: &Caller,
    names: NameSet,
    tasks: &'a [Task],
) -> Result<AnswerText<'a>, Refusal> {
    let now = supervisor.clock().now();
    let (ended, live): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| !task.is_live());
    let have = if ended.len() == 1 || tasks.len() == 1 { "has" } else { "have" };
    let mut parts =
        vec![format!("{} of {} {have} ended.", ended.len(), counted(tasks.len() as u64))];
    let (mut shown, mut known, mut left) = (Vec::new(), Vec::new(), Vec::new());
    let mut room = MOST_SHOWN;
    for task in ended {
        let own = task.origin.parent.session == caller.session && audience(caller) == Audience::Mcp;
        // Both conditions: a result may have been fetched by somebody else (the shell), and a notice may have
        // come without its result.
        let fetched = task.result_retrieved_at.is_some_and(|at| Some(at) >= task.completed_at);
        if own && fetched && supervisor.is_told(task)? {
            known.push(task);
            continue;
        }
        let text = show(task, now, &Window { offset: 0, names });
        // A result that does not fit is left out whole; shorter ones after it may still fit.
        match room.checked_sub(text.chars().count()) {
            Some(rest) => {
                room = rest;
                parts.push(text);
                shown.push(task);
            }
            None => left.push(task),
        }
    }
    let too_long = names.say("Too long for this answer, asyncagents_output shows them:");
    parts.extend(listed(&too_long, &left, now));
    let before = names.say("Shown before, asyncagents_output shows them again:");
    parts.extend(listed(&before, &known, now));
    parts.extend(listed("Still running:", &live, now));
    Ok(AnswerText { text: parts.join("\n\n"), tasks: shown })
}

/// A list of tasks under a title; `None` when there are none.
fn listed(title: &str, tasks: &[&Task], now: Timestamp) -> Option<String> {
    let mut lines: Vec<String> =
        tasks.iter().take(MOST_LISTED).map(|task| line(task, now)).collect();
    if tasks.len() > MOST_LISTED {
        lines.push(format!("… and {} more", tasks.len() - MOST_LISTED));
    }
    (!lines.is_empty()).then(|| format!("{title}\n{}", lines.join("\n")))
}
