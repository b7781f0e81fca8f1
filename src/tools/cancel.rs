//! `asyncagents_cancel`: stops one task, a batch, or all of the caller's. Only the parent of a task may stop it.
//! It answers when the ends are on disk; the hosts are told afterwards. The caller knows, so it gets no notice.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Refusal, parse};
use crate::quote::label;
use crate::supervisor::{Caller, Supervisor, Target};
use crate::task::{BatchId, Task};

pub(super) const DESCRIPTION: &str = "\
Stop background tasks: one by `task_id`, a whole `batch`, or with `all: true` every task you \
launched that is still running. Call it with all before your final answer, so that nothing you \
forgot goes on working.";

pub(super) fn properties() -> Value {
    json!({
        "task_id": { "type": "string", "description": "The id of the task to stop." },
        "all": {
            "type": "boolean", "default": false,
            "description": "Stop all of your running tasks.",
        },
        "batch": { "type": "string", "description": "Stop the running tasks of this batch." },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    task_id: Option<String>,
    #[serde(default)]
    all: bool,
    batch: Option<String>,
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    arguments: Value,
    key: Option<String>,
) -> Result<String, Refusal> {
    let target = match parse(arguments)? {
        Arguments { task_id: Some(id), all: false, batch: None } => {
            Target::Task(supervisor.resolve(&id)?.id)
        }
        Arguments { task_id: None, all: true, batch: None } => Target::All,
        Arguments { task_id: None, all: false, batch: Some(batch) } => {
            Target::Batch(BatchId::new(batch))
        }
        // Neither "the first one counts" nor "all of them": a call that names a task and `all` is a mistake,
        // and cancelling too much cannot be undone.
        Arguments { .. } => {
            let text = "pass exactly one of `task_id`, `all: true` and `batch`";
            return Err(Refusal::Arguments(text.to_owned()));
        }
    };
    let cancelled = supervisor.cancel_once(caller, target, key).await?.tasks;
    Ok(match cancelled.as_slice() {
        // No error: a task may have ended while the model decided to cancel it.
        [] => "No running background tasks to cancel.".to_owned(),
        [task] => format!("Cancelled task {}.", named(task)),
        tasks => {
            let lines: Vec<String> =
                tasks.iter().map(|task| format!("- {}", named(task))).collect();
            format!("Cancelled {} tasks:\n{}", tasks.len(), lines.join("\n"))
        }
    })
}

fn named(task: &Task) -> String {
    format!("{} \"{}\"", task.short_id, label(&task.order.description))
}
