//! `asyncagents_output`: a task's result, or how far it is; with `block` it waits for the end.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::session;
use super::{
    Answer, Audience, LONGEST, Names, Refusal, SHORTEST, USUAL, parse, still_running, time_to_wait,
};
use crate::supervisor::{Caller, Supervisor};
use crate::task::time::say;
use crate::task::{ShortId, State, Task, Timestamp};
use crate::threads;
use crate::wire::MessageFilter;

const DESCRIPTION: &str = "\
Show a background task: its result when it has completed, else its status and progress. Answers \
at once unless `block` is true. {told} A long result comes in parts: pass `offset` to go on.";

pub(super) fn description(audience: Audience) -> String {
    let told = match audience {
        Audience::Conversation => {
            "You rarely need to block: a message comes by itself when a task ends, so go on \
             working instead."
        }
        Audience::Mcp => {
            "Do not call it again and again to see whether a task has ended: asyncagents_wait \
             sleeps until then, and costs one call."
        }
    };
    DESCRIPTION.replace("{told}", told)
}

pub(super) const REQUIRED: &[&str] = &["task_id"];

/// So many characters are shown at once.
pub(super) const INLINE: usize = 8_000;

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
        "offset": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": "Where to go on in what is too long to be shown at once.",
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
#[serde(deny_unknown_fields)]
struct Arguments {
    task_id: String,
    #[serde(default)]
    block: bool,
    timeout: Option<f64>,
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    full_session: bool,
    #[serde(default)]
    include_thinking: bool,
    #[serde(default)]
    include_tool_results: bool,
    since_message_id: Option<String>,
    message_limit: Option<u32>,
    thinking_max_chars: Option<u32>,
}

impl Arguments {
    fn shown(&self) -> MessageFilter {
        MessageFilter {
            include_thinking: self.include_thinking,
            include_tool_results: self.include_tool_results,
            since_message_id: self.since_message_id.clone(),
            message_limit: self.message_limit,
            thinking_max_chars: self.thinking_max_chars,
        }
    }
}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    names: Names,
    arguments: Value,
) -> Result<Answer, Refusal> {
    let arguments: Arguments = parse(arguments)?;
    let shown = arguments.shown();
    let Arguments { task_id, block, timeout, offset, full_session, .. } = arguments;
    let wait = time_to_wait(caller, timeout)?;
    let id = supervisor.resolve(&task_id)?.id;
    let output = supervisor.output(caller, &id, block.then_some(wait)).await?;
    let now = supervisor.clock().now();
    let window = Window { offset, names };
    let task = &output.task;
    let mut text = if full_session {
        let messages = supervisor.transcript(task).await?;
        // It can be long, and others are served by the same threads.
        let session = threads::apart(move || session::render(&messages, &shown)).await;
        let session = session.unwrap_or_else(|stuck| format!("[{stuck}]"));
        let session = window.cut(&session, &task.short_id, "full_session=true, ");
        format!("{}\n\n---\n\n{session}", header(task, now))
    } else {
        show(task, now, &window)
    };
    if output.timed_out {
        text.push_str("\n\n");
        text.push_str(&still_running(caller, names, wait, "asyncagents_output"));
    }
    Ok(Answer { text, told: output.told })
}

/// A part of a text that may be too long for one answer; nothing of it is out of reach.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// In characters.
    pub(super) offset: usize,
    /// In what is said about the rest.
    pub(super) names: Names,
}

impl Window {
    /// `how` are the other arguments of the call that goes on.
    pub(super) fn cut(self, text: &str, id: &ShortId, how: &str) -> String {
        if text.is_empty() {
            return "[it ended without a word]".to_owned();
        }
        let total = text.chars().count();
        if self.offset == 0 && total <= INLINE {
            return text.to_owned();
        }
        let shown: String = text.chars().skip(self.offset).take(INLINE).collect();
        let end = self.offset.saturating_add(INLINE).min(total);
        if self.offset >= total {
            return format!("[there are {total} characters in all, and nothing after that]");
        }
        let place = format!("characters {} to {end} of {total}", self.offset + 1);
        match end < total {
            true => {
                let output = self.names.say("asyncagents_output");
                format!(
                    "{shown}\n\n[{place}; {output}(task_id=\"{id}\", {how}offset={end}) goes on]"
                )
            }
            false => format!("{shown}\n\n[{place}; that is the end]"),
        }
    }
}

pub(super) fn show(task: &Task, now: Timestamp, window: &Window) -> String {
    let cut = |text: &str| window.cut(text, &task.short_id, "");
    match &task.state {
        State::Completed { result, error: None } => {
            format!("Task Result\n\n{}\n\n---\n\n{}", header(task, now), cut(result))
        }
        State::Completed { result, error: Some(error) } => format!(
            "Task Result\n\n{}\nLast resume failed: {error}\n\n---\n\n{}",
            header(task, now),
            cut(result)
        ),
        State::Running | State::Resumed { .. } => status(task, now),
        State::Failed { .. } | State::Cancelled { .. } => {
            let mut text = status(task, now);
            if let Some(result) = task.state.result().filter(|result| !result.is_empty()) {
                text.push_str(&format!("\n\nPartial result:\n\n{}", cut(result)));
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
