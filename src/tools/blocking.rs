//! `Task`, the blocking tool: launches an agent and waits for its result (O6). It is a task like any other with
//! a mark that its caller waits; when the time is up the mark is removed, and it goes on in the background.
//!
//! The mark costs a slot of the smaller limit for blocking tasks, so it has to go however the call ends: by a
//! result, a timeout, an error, or a caller that hangs up ([`BlockingGuard`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::asks::waiting_for_a_person;
use super::output::{MOST_OF_ERROR, TextKind, Window};
use super::task::schema_property;
use super::waiter::{FOREVER, Waiter};
use super::{Answer, Audience, OfferScope, Refusal, audience, parse, structured};
use crate::quote::short_literal;
use crate::supervisor::{Caller, Error, Fork, Launch, Need, Supervisor, Target, WaitEnd};
use crate::task::launch;
use crate::task::lifecycle::Refused;
use crate::task::{Budget, LaunchMode, Order, Receipt, State, Task, TaskId};

pub(super) const DESCRIPTION: &str = "\
Have an agent do something in a session of its own and wait for its answer, which is all you see of \
it. It knows nothing of this conversation. Good for a question whose answer you need before you can \
go on and whose search you need not see. What takes too long goes on in the background: then you \
get its id, for asyncagents_wait. Launch what need not be waited for with asyncagents_task. The prompt \
may have 10,000 characters, the description 200.";

pub(super) const REQUIRED: &[&str] = &["description", "prompt"];

/// Settings of `Task` (`[task_tool]` in the configuration).
#[derive(Clone, Debug, PartialEq)]
pub struct Blocking {
    pub offered: OfferScope,
    /// How long a call waits.
    pub timeout: Duration,
    pub on_timeout: OnTimeout,
    /// The agent when the caller is not an agent; agents get one of their own kind.
    pub agent: String,
    /// Time to live of results: an identical call of the same parent within it returns the earlier result.
    pub cache: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// The task goes on, and its parent is notified like any other.
    Background,
    Cancel,
}

impl Default for Blocking {
    fn default() -> Blocking {
        Blocking {
            offered: OfferScope::Mcp,
            timeout: Duration::from_secs(30),
            on_timeout: OnTimeout::Background,
            agent: "general".to_owned(),
            cache: None,
        }
    }
}

pub(super) fn properties() -> Value {
    json!({
        "description": {
            "type": "string", "minLength": 1, "maxLength": launch::MAX_BLOCKING_DESCRIPTION,
            "description": "A short (3-5 word) description of the task",
        },
        "prompt": {
            "type": "string", "minLength": 1, "maxLength": launch::MAX_BLOCKING_PROMPT,
            "description": "The task for the agent to perform",
        },
        "schema": schema_property(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    description: String,
    prompt: String,
    schema: Option<Value>,
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    settings: &Blocking,
    arguments: Value,
    key: Option<String>,
    waiter: &Waiter<'_>,
) -> Result<Answer, Refusal> {
    let Arguments { description, prompt, schema } = parse(arguments)?;
    let planned = launch::plan_blocking(&description, &prompt);
    let (description, prompt) = planned.map_err(Error::from)?;
    let schema = launch::schema_of(schema).map_err(Error::from)?;
    // An agent gets one of its own kind; an MCP client names none of ours.
    let own = Some(&caller.agent).filter(|agent| !agent.is_empty());
    let order = Order {
        description,
        prompt,
        agent: own.unwrap_or(&settings.agent).clone(),
        model: None,
        budget: Budget::default(),
        mode: LaunchMode::Blocking,
        schema,
    };
    // A hit launches nothing, and has no notices to acknowledge: those went with the first call.
    // Not for an anonymous caller, whose parent is shared: the earlier answer may be another's.
    if let Some(ttl) = settings.cache.filter(|_| !caller.anonymous)
        && let Some(earlier) = supervisor.earlier(caller, &order, ttl).await?
    {
        return answer(&earlier, Receipt::default());
    }
    let began = supervisor.clock().uptime();
    let description = order.description.clone();
    tracing::info!(description, "blocking `Task` started");
    let launch = Launch { wanted: order.into(), fork: Fork::No, key };
    let answered = carry_out(supervisor, caller, settings, launch, waiter).await;
    let duration = supervisor.clock().uptime().saturating_sub(began);
    tracing::info!(description, ?duration, success = answered.is_ok(), "blocking `Task` answered");
    answered
}

async fn carry_out(
    supervisor: &Supervisor,
    caller: &Caller,
    settings: &Blocking,
    launch: Launch,
    waiter: &Waiter<'_>,
) -> Result<Answer, Refusal> {
    let began = supervisor.clock().uptime();
    let task = supervisor.launch(caller.clone(), launch).await?;
    let guard = BlockingGuard { supervisor: supervisor.clone(), task: task.id.clone() };
    // The timeout includes the launch and the time in the queue: the caller's clock runs from its call.
    let timeout = match (waiter.is_deferred(), settings.on_timeout) {
        // No caller is held up, and to go on in the background is what it does already.
        (true, OnTimeout::Background) => FOREVER,
        (true, OnTimeout::Cancel) | (false, _) => settings.timeout,
    };
    let most = caller.longest_wait.map_or(timeout, |most| timeout.min(most));
    let left = most.saturating_sub(supervisor.clock().uptime().saturating_sub(began));
    let ids = std::slice::from_ref(&task.id);
    let mut awaited = waiter.await_ends(supervisor, caller, ids, Need::All, left).await?;
    match (awaited.end, settings.on_timeout) {
        (WaitEnd::Enough, _) => {}
        // Not a timeout, so `on_timeout` does not apply: cancelling would throw away work that only waits
        // for a permission.
        (WaitEnd::Blocked, _) => {
            supervisor.move_to_background(&task.id).await?;
            let asked = waiting_for_a_person(&awaited.tasks, &supervisor.asks_of(&awaited.tasks));
            let text = needs_an_answer(&task, asked.as_deref(), audience(caller));
            return Err(Refusal::Outcome(text, Receipt::default()));
        }
        (WaitEnd::TimedOut, OnTimeout::Background) => {
            supervisor.move_to_background(&task.id).await?;
            return Err(Refusal::Outcome(goes_on(&task, audience(caller)), Receipt::default()));
        }
        (WaitEnd::TimedOut, OnTimeout::Cancel) => {
            match supervisor.cancel(caller, Target::Task(task.id)).await {
                Ok(_) => {
                    return Err(Refusal::Outcome("task timeout".to_owned(), Receipt::default()));
                }
                // It ended between the timeout and the cancellation, so there is a result after all.
                Err(Error::Refused(Refused::AlreadyOver)) => {
                    awaited.tasks = vec![supervisor.task(&guard.task)?];
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let ended: Vec<&Task> = awaited.tasks.iter().collect();
    // Its notice came with another answer before the client came for this one.
    if waiter.is_deferred() && supervisor.is_told(ended[0])? {
        return reported_before(ended[0]);
    }
    supervisor.retrieved(&ended).await?;
    // The result is in this answer, so its notice is held back and acknowledged with it.
    let receipt = awaited.give(&ended).await?;
    answer(ended[0], receipt)
}

/// RAII guard that removes the mark of a blocking task when its call ends. A caller that hangs up drops the
/// future of the call, so only a destructor sees every way out.
struct BlockingGuard {
    supervisor: Supervisor,
    task: TaskId,
}

impl Drop for BlockingGuard {
    fn drop(&mut self) {
        self.supervisor.move_to_background_after_hangup(&self.task);
    }
}

/// The answer when the time was up and the task goes on.
fn goes_on(task: &Task, audience: Audience) -> String {
    let (id, hint) = (&task.short_id, how_it_is_told(task, audience));
    format!("task execution timeout: task {id} goes on in the background; {hint}")
}

/// The answer when the task waits for a permission. `asked` is `None` when a person has answered meanwhile.
fn needs_an_answer(task: &Task, asked: Option<&str>, audience: Audience) -> String {
    let (id, hint) = (&task.short_id, how_it_is_told(task, audience));
    format!(
        "task needs permission: task {id} stays in the background until the user has answered. Show \
         what is asked and the command, and do not answer yourself; after that, {hint}.\n\n{}",
        asked.unwrap_or("It was answered just now.")
    )
}

/// The answer to a deferred call whose task's end has reached the client by other means.
fn reported_before(task: &Task) -> Result<Answer, Refusal> {
    let id = &task.short_id;
    let text = |how: &str| {
        format!(
            "task {id} {how}, which you were told of before; asyncagents_output(task_id=\"{id}\") shows \
             it again"
        )
    };
    match &task.state {
        // The text was told before, the JSON was not: notices are text only.
        State::Completed { .. } => {
            Ok(Answer { structured: structured(task), ..text("has completed").into() })
        }
        State::Failed { .. } => Err(Refusal::Outcome(text("has failed"), Receipt::default())),
        State::Cancelled { .. } | State::Running | State::Resumed { .. } => {
            answer(task, Receipt::default())
        }
    }
}

fn how_it_is_told(task: &Task, audience: Audience) -> String {
    match audience {
        Audience::Conversation => "you will get a message when it ends".to_owned(),
        Audience::Mcp => format!("asyncagents_wait(task_ids=[\"{}\"]) waits for it", task.short_id),
    }
}

/// The answer to a call whose task has ended. The error texts begin with the words of the specification (O6).
fn answer(task: &Task, receipt: Receipt) -> Result<Answer, Refusal> {
    match &task.state {
        State::Completed { result, .. } => {
            let text = Window::default().cut(TextKind::Result, result, &task.short_id);
            Ok(Answer { text, receipt, structured: structured(task) })
        }
        State::Failed { error, .. } => {
            let error = short_literal(error, MOST_OF_ERROR);
            Err(Refusal::Outcome(format!("task failed: {error}"), receipt))
        }
        State::Cancelled { .. } => Err(Refusal::Outcome("task cancelled".to_owned(), receipt)),
        State::Running | State::Resumed { .. } => {
            Err(Refusal::Outcome("task timeout".to_owned(), receipt))
        }
    }
}
