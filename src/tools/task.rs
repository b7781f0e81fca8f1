//! `asyncagents_task`: launches an agent in the background, or resumes a completed task with a follow-up. It
//! returns at once; how the caller hears of the end depends on whether it is a conversation, and so do the texts.

use serde_json::{Value, json};

use super::{Audience, NameSet, Refusal, audience, parse};
use crate::quote::label;
use crate::supervisor::{Caller, Error, Fork, Launch, Supervisor};
use crate::task::launch::{self, Arguments, Plan};
use crate::task::{Slot, Task};

const DESCRIPTION: &str = "\
Launch an agent in the background. It works in a session of its own while you go on; {hint}. \
Returns a task id at once.

Launch independent pieces of work in parallel, one call each, and continue with your own work. Do \
not wait for agents that only look things up (explore, librarian): treat them like a search. \
Before you give your final answer, cancel what you no longer need with asyncagents_cancel.

Pass `resume` with a task id and `prompt` to ask a completed task a follow-up in its own session.";

pub(super) fn description(audience: Audience) -> String {
    let hint = match audience {
        Audience::Conversation => "you get a message when it ends, with its result",
        Audience::Mcp => "asyncagents_wait sleeps until it has ended, and gives you its result",
    };
    DESCRIPTION.replace("{hint}", hint)
}

/// Description and agent are required to launch but not to resume. A flat schema cannot say that, so the launch
/// checks them.
pub(super) const REQUIRED: &[&str] = &["prompt"];

pub(super) fn properties(audience: Audience) -> Value {
    let mut properties = all_properties();
    // An MCP client does not let us read its conversation, so there is nothing to fork.
    if let (Audience::Mcp, Some(properties)) = (audience, properties.as_object_mut()) {
        properties.shift_remove("fork");
        properties["prompt"]["description"] = json!("The whole task. The agent sees nothing else.");
    }
    properties
}

fn all_properties() -> Value {
    json!({
        "description": {
            "type": "string", "maxLength": launch::MAX_DESCRIPTION,
            "description": "What the task is about, in 3 to 5 words. Required to launch.",
        },
        "prompt": {
            "type": "string", "minLength": 1, "maxLength": launch::MAX_PROMPT,
            "description": "The whole task. The agent sees nothing else, unless `fork` is true.",
        },
        "agent": {
            "type": "string", "maxLength": launch::MAX_NAME,
            "description": "The agent to run, for example explore. Required to launch.",
        },
        "fork": {
            "type": "boolean", "default": false,
            "description": "Give the agent this conversation as its context. Not with `resume`.",
        },
        "resume": {
            "type": "string",
            "description": "The id of a completed task to go on with; then only `prompt` counts.",
        },
        "batch": {
            "type": "string", "maxLength": launch::MAX_NAME,
            "description": "A name for tasks that belong together. Usually left out.",
        },
        "model": {
            "type": "string", "maxLength": launch::MAX_NAME,
            "description": "provider/model, when it is not to be the agent's own.",
        },
        "budget": {
            "type": "object", "additionalProperties": false,
            "properties": {
                "wall_seconds": { "type": "integer", "minimum": 1 },
                "tokens": { "type": "integer", "minimum": 1 },
                "cost": { "type": "number", "minimum": 0 },
                "tool_calls": { "type": "integer", "minimum": 1 },
            },
            "description": "Limits; reaching one stops the task and keeps what it has.",
        },
        "host": {
            "type": "string", "maxLength": launch::MAX_NAME,
            "description": "Where the agent runs, when it is not to be the default.",
        },
        "schema": schema_property(),
    })
}

/// As both launching tools offer it.
pub(super) fn schema_property() -> Value {
    json!({
        "type": "object",
        "description": "A JSON Schema. The result is then JSON that fits it; the agent is asked again when its answer does not.",
    })
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    names: NameSet,
    arguments: Value,
    key: Option<String>,
) -> Result<String, Refusal> {
    refuse_unknown(&arguments, &all_properties())?;
    let arguments: Arguments = parse(arguments)?;
    let launch = match launch::plan(arguments).map_err(Error::from)? {
        Plan::Fresh(wanted) => Launch { wanted, fork: Fork::No, key },
        Plan::Forked(wanted) => Launch { wanted, fork: Fork::Caller, key },
        Plan::Resume { task, prompt, ignored } => {
            let task = supervisor.resolve(&task)?;
            // Short ids can be guessed, and a resume costs its owner tokens.
            supervisor.check_owner(&task, caller)?;
            // The next run uses the caller's present credentials: those of the launch may be lost in a restart.
            supervisor.renew_handed(&task, &caller.handed).await?;
            let task = supervisor.resume_once(&task.id, prompt, key).await?;
            return Ok(resumed(&task, &ignored, audience(caller), names));
        }
    };
    let task = supervisor.launch(caller.clone(), launch).await?;
    Ok(launched(&task, audience(caller), names))
}

/// Refuses arguments that are not in the schema. The type itself ignores unknown fields, because a request over
/// HTTP may carry those of a later version; a model that makes up an argument has to be told.
fn refuse_unknown(arguments: &Value, properties: &Value) -> Result<(), Refusal> {
    let (Some(given), Some(known)) = (arguments.as_object(), properties.as_object()) else {
        return Ok(());
    };
    for (name, value) in given {
        let Some(property) = known.get(name) else {
            let known: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
            return Err(Refusal::Arguments(format!(
                "invalid arguments: unknown field `{name}`, expected one of {}",
                known.join(", ")
            )));
        };
        refuse_unknown(value, &property["properties"])?;
    }
    Ok(())
}

fn launched(task: &Task, audience: Audience, names: NameSet) -> String {
    let queued = match (task.slot, &task.progress.detail) {
        (Slot::Queued, Some(why)) => format!(" (queued: {why})"),
        (Slot::Queued, None) => {
            " (queued: it starts when one of your running tasks ends)".to_owned()
        }
        (Slot::Active | Slot::Parked | Slot::None, _) => String::new(),
    };
    let forked = if task.origin.is_forked { " (forked)" } else { "" };
    let id = &task.short_id;
    // A conversation is woken by a notice. An MCP client cannot be, so it is told how to wait: without that,
    // models poll.
    let hint = match audience {
        Audience::Conversation => format!(
            "You will get a message when it ends. Go on with your work; \
             asyncagents_output(task_id=\"{id}\") shows how far it is."
        ),
        Audience::Mcp => format!(
            "Go on with your work. When there is none left, asyncagents_wait(task_ids=[\"{id}\"]) \
             sleeps until it has ended and gives you its result."
        ),
    };
    format!(
        "Background task launched.\n\n\
         Task ID: {id}{forked}\nDescription: {description}\nAgent: {agent}\nStatus: {status}{queued}\n\n{hint}",
        // As labels: the description comes from a model and may contain lines that look like ours.
        description = label(&task.order.description),
        agent = label(&task.order.agent),
        status = task.status().name(),
        hint = names.say(&hint),
    )
}

pub(super) fn resumed(task: &Task, ignored: &[&str], audience: Audience, names: NameSet) -> String {
    let hint = match audience {
        Audience::Conversation => "You will get a message with the answer.",
        Audience::Mcp => "asyncagents_wait sleeps until the answer is there.",
    };
    let mut text = format!(
        "Resume #{n} of task {id} started.\n\n\
         Task ID: {id}\nDescription: {description}\nStatus: {status}\n\n{hint}",
        n = task.run,
        id = task.short_id,
        description = label(&task.order.description),
        status = task.status().name(),
        hint = names.say(hint),
    );
    // Said and not refused: models pass the arguments of the launch again, and mean the prompt.
    if !ignored.is_empty() {
        text.push_str(&format!(
            "\nNote: a resume goes on with the task as it is; ignored: {}.",
            ignored.join(", ")
        ));
    }
    text
}
