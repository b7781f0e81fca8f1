//! `asyncagents_wait`: sleeps until tasks have ended, and shows what is new about them. One call
//! replaces any number of looks.

use serde::Deserialize;
use serde_json::{Value, json};

use super::list::line;
use super::output::{Window, show};
use super::{LONGEST, Names, Refusal, SHORTEST, USUAL, parse, still_running, time_to_wait};
use crate::supervisor::{Caller, Need, Supervisor};
use crate::task::{BatchId, Task, TaskId, Timestamp};

pub(super) const DESCRIPTION: &str = "\
Sleep until background tasks have ended, and get their results. By default it waits for all of your \
running tasks; name some with `task_ids`, or a `batch`. Use it when you have nothing left to do but \
to wait, instead of asking for the status again and again. If the time is up first, nothing is \
lost: the tasks go on, and you can call it again.";

/// More names than a parent may have tasks at work and in its queue are a mistake.
const MOST_NAMES: usize = 2_000;

pub(super) fn properties() -> Value {
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
            "description": "Wait until so many of them have ended, whatever `mode` says.",
        },
        "timeout": {
            "type": "number", "minimum": SHORTEST, "maximum": LONGEST, "default": USUAL,
            "description": "How long to wait at most, in seconds.",
        },
    })
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    task_ids: Vec<String>,
    batch: Option<String>,
    #[serde(default)]
    mode: Mode,
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
    names: Names,
    arguments: Value,
) -> Result<String, Refusal> {
    let Arguments { task_ids, batch, mode, count, timeout } = parse(arguments)?;
    let wait = time_to_wait(caller, timeout)?;
    let need = match (count, mode) {
        (Some(0), _) => return Err(Refusal::Arguments("`count` must be at least 1".to_owned())),
        (Some(count), _) => Need::AtLeast(count),
        (None, Mode::All) => Need::All,
        (None, Mode::Any) => Need::Any,
    };
    let ids = match (task_ids.as_slice(), batch) {
        ([], None) => supervisor.live(&caller.session)?,
        ([], Some(batch)) => supervisor.batch(&BatchId::new(batch))?,
        (names, None) if names.len() <= MOST_NAMES => {
            let found = names.iter().map(|name| supervisor.resolve(name));
            found.collect::<Result<Vec<Task>, _>>()?
        }
        (_, None) => {
            return Err(Refusal::Arguments(format!("at most {MOST_NAMES} tasks at once")));
        }
        (_, Some(_)) => {
            let text = "pass `task_ids` or `batch`, not both";
            return Err(Refusal::Arguments(text.to_owned()));
        }
    };
    let mut ids: Vec<TaskId> = ids.into_iter().map(|task| task.id).collect();
    ids.sort();
    ids.dedup();
    if ids.is_empty() {
        return Ok("No running background tasks to wait for.".to_owned());
    }
    let waited = supervisor.wait_as_parent(caller, &ids, need, wait).await?;
    let mut text = render(supervisor, caller, names, &waited.tasks).await?;
    if waited.timed_out {
        text.push_str("\n\n");
        text.push_str(&still_running(caller, names, wait, "asyncagents_wait"));
    }
    Ok(text)
}

/// Results that were fetched before are not shown again: who waits in slices pays for each once.
async fn render(
    supervisor: &Supervisor,
    caller: &Caller,
    names: Names,
    tasks: &[Task],
) -> Result<String, Refusal> {
    let now = supervisor.clock().now();
    let (ended, live): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| !task.is_live());
    let (known, news): (Vec<&Task>, Vec<&Task>) =
        ended.iter().partition(|task| task.result_retrieved_at.is_some());
    let mut parts = vec![format!("{} of {} tasks have ended.", ended.len(), tasks.len())];
    for task in news {
        supervisor.output(caller, &task.id, None).await?;
        parts.push(show(task, now, &Window { offset: 0, names }));
    }
    let before = names.say("Shown before, asyncagents_output shows them again:");
    parts.extend(listed(&before, &known, now));
    parts.extend(listed("Still running:", &live, now));
    Ok(parts.join("\n\n"))
}

fn listed(title: &str, tasks: &[&Task], now: Timestamp) -> Option<String> {
    let lines: Vec<String> = tasks.iter().map(|task| line(task, now)).collect();
    (!lines.is_empty()).then(|| format!("{title}\n{}", lines.join("\n")))
}
