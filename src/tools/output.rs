//! `asyncagents_output`: a task's result, or how far it is; with `block` it waits for the end.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::session;
use super::{Refusal, parse};
use crate::supervisor::{Caller, Supervisor};
use crate::task::time::say;
use crate::task::{State, Task, Timestamp};
use crate::wire::MessageFilter;

pub(super) const DESCRIPTION: &str = "\
Show a background task: its result when it has completed, else its status and progress. Answers \
at once unless `block` is true. You rarely need to block: a message comes by itself when a task \
ends, so go on working instead.";

pub(super) const REQUIRED: &[&str] = &["task_id"];

const SHORTEST: f64 = 1.0;
const LONGEST: f64 = 600.0;
const USUAL: f64 = 60.0;

pub(super) fn properties() -> Value {
    json!({
        "task_id": { "type": "string", "description": "The id of the task." },
        "block": {
            "type": "boolean", "default": false,
            "description": "Wait until the task has ended or the time is up.",
        },
        "timeout": {
            "type": "number", "minimum": SHORTEST, "maximum": LONGEST, "default": USUAL,
            "description": "How long to wait at most, in seconds.",
        },
        "full_session": {
            "type": "boolean", "default": false,
            "description": "Show the messages of the task's session instead of its result.",
        },
        "include_thinking": {
            "type": "boolean", "default": false,
            "description": "With full_session: show what the agent thought.",
        },
        "include_tool_results": {
            "type": "boolean", "default": false,
            "description": "With full_session: show what its tools returned.",
        },
        "since_message_id": {
            "type": "string",
            "description": "With full_session: only what came after this message.",
        },
        "message_limit": {
            "type": "integer", "minimum": 1,
            "description": "With full_session: only the last so many messages.",
        },
        "thinking_max_chars": {
            "type": "integer", "minimum": 1,
            "description": "With include_thinking: how much of each thought to show.",
        },
    })
}

#[derive(Deserialize)]
struct Arguments {
    task_id: String,
    #[serde(default)]
    block: bool,
    timeout: Option<f64>,
    #[serde(default)]
    full_session: bool,
    #[serde(flatten)]
    shown: MessageFilter,
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    arguments: Value,
) -> Result<String, Refusal> {
    let Arguments { task_id, block, timeout, full_session, shown } = parse(arguments)?;
    let timeout = timeout.unwrap_or(USUAL);
    if !(SHORTEST..=LONGEST).contains(&timeout) {
        let text = "`timeout` must be between 1 second and 10 minutes";
        return Err(Refusal::Arguments(text.to_owned()));
    }
    let id = supervisor.resolve(&task_id)?.id;
    let wait = block.then(|| Duration::from_secs_f64(timeout));
    let output = supervisor.output(caller, &id, wait).await?;
    let now = supervisor.clock().now();
    let mut text = if full_session {
        let messages = supervisor.transcript(&output.task).await?;
        let header = header(&output.task, now);
        format!("{header}\n\n---\n\n{}", session::render(&messages, &shown))
    } else {
        show(&output.task, now)
    };
    if output.timed_out {
        text.push_str(&format!(
            "\n\nTimed out after {} of waiting. The task goes on; you will get a message when it \
             ends.",
            say(Duration::from_secs_f64(timeout))
        ));
    }
    Ok(text)
}

fn show(task: &Task, now: Timestamp) -> String {
    match &task.state {
        State::Completed { result, error: None } => {
            format!("Task Result\n\n{}\n\n---\n\n{result}", header(task, now))
        }
        State::Completed { result, error: Some(error) } => format!(
            "Task Result\n\n{}\nLast resume failed: {error}\n\n---\n\n{result}",
            header(task, now)
        ),
        State::Running | State::Resumed { .. } => status(task, now),
        State::Failed { .. } | State::Cancelled { .. } => {
            let mut text = status(task, now);
            if let Some(result) = task.state.result().filter(|result| !result.is_empty()) {
                text.push_str(&format!("\n\nPartial result:\n\n{result}"));
            }
            text
        }
    }
}

fn header(task: &Task, now: Timestamp) -> String {
    format!(
        "Task ID: {}\nDescription: {}\nDuration: {}",
        task.short_id,
        task.description,
        say(duration(task, now))
    )
}

fn duration(task: &Task, now: Timestamp) -> Duration {
    task.completed_at.unwrap_or(now).since(task.started_at)
}

fn status(task: &Task, now: Timestamp) -> String {
    let progress = &task.progress;
    let mut rows = vec![
        ("Task ID", task.short_id.to_string()),
        ("Description", task.description.clone()),
        ("Agent", task.agent.clone()),
        ("Status", task.status().name().to_owned()),
    ];
    if task.is_live() {
        let phase = progress.phase.name().to_owned();
        let detail = progress.detail.as_ref().map(|detail| format!("{phase}: {detail}"));
        rows.push(("Phase", detail.unwrap_or(phase)));
    }
    if let Some(error) = task.state.error() {
        rows.push(("Error", error.to_owned()));
    }
    rows.push(("Duration", say(duration(task, now))));
    rows.push(("Tool calls", progress.tool_calls.to_string()));
    if !progress.last_tools.is_empty() {
        rows.push(("Last tools", progress.last_tools.join(", ")));
    }
    if let Some(tokens) = progress.tokens {
        rows.push(("Tokens", tokens.to_string()));
    }
    if task.is_live() {
        rows.push(("Last activity", format!("{} ago", say(now.since(progress.last_update)))));
    }
    if let Some(message) = &progress.last_message {
        rows.push(("Last message", short(message)));
    }
    let rows: Vec<String> =
        rows.into_iter().map(|(name, value)| format!("| {name} | {} |", cell(&value))).collect();
    format!("Task Status\n\n| Field | Value |\n| --- | --- |\n{}", rows.join("\n"))
}

/// A table cell is one line without bars.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn short(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
