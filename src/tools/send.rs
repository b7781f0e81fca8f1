//! `asyncagents_send`: says something to a task of the caller (T21). It answers when the message is on disk; the
//! agent sees it before its next step. To a completed task it is a resume, with the same answer as that.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{NameSet, Refusal, audience, parse, task};
use crate::supervisor::{Caller, Delivery, SendOutcome, Supervisor};
use crate::task::launch::MAX_PROMPT;

pub(super) const DESCRIPTION: &str = "\
Say something to a background task that is still working: a correction, something you found out, a \
change of plan. The agent sees it before its next step and goes on; nothing it has done is lost. A \
queued task gets it with its first step. To a completed task it is a follow-up, as with `resume` of \
asyncagents_task.";

pub(super) const REQUIRED: &[&str] = &["task_id", "message"];

pub(super) fn properties() -> Value {
    json!({
        "task_id": { "type": "string", "description": "The id of the task." },
        "message": {
            "type": "string", "minLength": 1, "maxLength": MAX_PROMPT,
            "description": "What to say to the agent.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    task_id: String,
    message: String,
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    names: NameSet,
    arguments: Value,
    key: Option<String>,
) -> Result<String, Refusal> {
    let Arguments { task_id, message } = parse(arguments)?;
    let found = supervisor.resolve(&task_id)?;
    supervisor.check_owner(&found, caller)?;
    if !found.is_live() {
        // As for any resume: the next run uses the caller's present credentials.
        supervisor.renew_handed(&found, &caller.handed).await?;
    }
    let SendOutcome { task, delivery } = supervisor.send(&found.id, message, key).await?;
    let id = &task.short_id;
    Ok(match delivery {
        Delivery::Steered => {
            format!("Message sent to task {id}. The agent sees it before its next step.")
        }
        Delivery::Queued => format!(
            "Message kept for task {id}, which is queued. The agent sees it with its first step."
        ),
        Delivery::Resumed => task::resumed(&task, &[], audience(caller), names),
    })
}
