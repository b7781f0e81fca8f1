//! `asyncagents_output`: a task's result, or its status and progress; with `block` it waits for the end.
//!
//! What an agent wrote is quoted in a fence that its text cannot close. A long text comes in windows of
//! `INLINE` characters, each with the call that shows the next one, so that nothing is out of reach.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::asks::{waiting_for_a_person, why_it_returned};
use super::session;
use super::wait_limit::{LONGEST, SHORTEST, USUAL, WaitLimit};
use super::{Answer, Audience, INLINE, NameSet, Refusal, parse, structured};
use crate::quote::{QUOTED, fenced, label, line, literal, short_literal};
use crate::supervisor::{Caller, Supervisor, WaitEnd};
use crate::task::time::say;
use crate::task::{ShortId, State, Task, Timestamp};
use crate::threads;
use crate::wire::MessageFilter;

const DESCRIPTION: &str = "\
Show a background task: its result when it has completed, else its status and progress. Answers \
at once unless `block` is true. {hint} A long result comes in parts: pass `offset` to go on.";

pub(super) fn description(audience: Audience) -> String {
    let hint = match audience {
        Audience::Conversation => {
            "You rarely need to block: a message comes by itself when a task ends, so go on \
             working instead."
        }
        Audience::Mcp => {
            "Do not call it again and again to see whether a task has ended: asyncagents_wait \
             sleeps until then, and costs one call."
        }
    };
    DESCRIPTION.replace("{hint}", hint)
}

pub(super) const REQUIRED: &[&str] = &["task_id"];

/// How many characters of texts that are shown in one line.
pub(super) const MOST_OF_ERROR: usize = 2_000;
const MOST_OF_MESSAGE: usize = 200;

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
            "description": "Character offset at which to continue a long result.",
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
            "description": "With full_session: only this many messages, the last ones.",
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
            full_session: self.full_session,
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
    names: NameSet,
    arguments: Value,
) -> Result<Answer, Refusal> {
    let arguments: Arguments = parse(arguments)?;
    let shown = arguments.shown();
    let Arguments { task_id, block, timeout, offset, full_session, .. } = arguments;
    let limit = WaitLimit::of(caller, timeout, USUAL)?;
    // Resolved before the wait, so that a wrong id is an error at once.
    let id = supervisor.resolve(&task_id)?.id;
    let output = supervisor.output(caller, &id, block.then_some(limit.most)).await?;
    let now = supervisor.clock().now();
    let window = Window { offset, names };
    let task = &output.task;
    let mut text = if full_session {
        let messages = supervisor.shown_transcript(task).await?;
        // A transcript can have 100 MB: it is rendered on another thread, because those of the runtime serve
        // all clients.
        let session = threads::run_blocking(move || session::render(&messages, &shown)).await;
        let session = session.unwrap_or_else(|stuck| format!("[{stuck}]"));
        let session = window.cut(TextKind::Messages, &session, &task.short_id);
        format!("{}\n\n---\n\n{session}", header(task, now))
    } else {
        show(task, now, &window)
    };
    let asked = waiting_for_a_person(std::slice::from_ref(task), &output.asks);
    let went = match output.end {
        WaitEnd::Enough => None,
        WaitEnd::TimedOut => Some(limit.is_over(caller, names, "asyncagents_output")),
        WaitEnd::Blocked => Some(why_it_returned(&names.say("asyncagents_output"))),
    };
    // Last, below the agent's text: a model reads on from there, and what it should do next has to be ours.
    for part in asked.into_iter().chain(went) {
        text.push_str("\n\n");
        text.push_str(&part);
    }
    let structured = if full_session { None } else { structured(task) };
    Ok(Answer { text, receipt: output.receipt, structured })
}

/// The part of a text that one answer shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// In characters.
    pub(super) offset: usize,
    /// For the text about the rest, which names a tool.
    pub(super) names: NameSet,
}

/// What kind of text of the agent is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Result,
    PartialResult,
    /// Headers at the start of lines, with everything the agent wrote indented.
    Messages,
}

impl Window {
    /// The part of the text, quoted, and below it the call that shows the next part. Counted in characters, so that
    /// a window never begins inside of one.
    pub(super) fn cut(self, what: TextKind, text: &str, id: &ShortId) -> String {
        let total = text.chars().count();
        if total == 0 {
            return "(no output)".to_owned();
        }
        // Said, not empty: a model that counted wrongly would take an empty window for the end of the result.
        if self.offset >= total {
            return format!("[`offset` is past the end: there are {total} characters in all]");
        }
        let shown: String = text.chars().skip(self.offset).take(INLINE).collect();
        let end = self.offset.saturating_add(INLINE).min(total);
        let (title, how, start) = match what {
            TextKind::Result => ("Result", "", ""),
            TextKind::PartialResult => ("Partial result", "", ""),
            // A window may begin in the middle of a line, and text of an agent must not stand at the start of
            // one, where headers of ours are: the ellipsis keeps it from there.
            TextKind::Messages if self.offset > 0 => ("Messages", "full_session=true, ", "… "),
            TextKind::Messages => ("Messages", "full_session=true, ", ""),
        };
        let quoted = format!("{title}, {QUOTED}:\n{}", fenced(&format!("{start}{shown}")));
        if self.offset == 0 && end == total {
            return quoted;
        }
        let place = format!("characters {} to {end} of {total}", self.offset + 1);
        let output = self.names.say("asyncagents_output");
        let rest = match end < total {
            true => format!("{output}(task_id=\"{id}\", {how}offset={end}) goes on"),
            false => "that is the end".to_owned(),
        };
        format!("{quoted}\n\n[{place}; {rest}]")
    }
}

/// A task as text: its result when it has completed, else a table of its status.
pub(super) fn show(task: &Task, now: Timestamp, window: &Window) -> String {
    let cut = |what: TextKind, text: &str| window.cut(what, text, &task.short_id);
    match &task.state {
        // A completed task has an error after a resume that failed; its result is that of the run before.
        State::Completed { result, error } => {
            let failed = error.as_ref().map(|error| {
                format!("\nLast resume failed: {}", short_literal(error, MOST_OF_ERROR))
            });
            format!(
                "Task Result\n\n{}{}\n\n---\n\n{}",
                header(task, now),
                failed.unwrap_or_default(),
                cut(TextKind::Result, result)
            )
        }
        // Also a resumed task, which has the result of the run before: shown now, it would pass for the new one.
        State::Running | State::Resumed { .. } => status(task, now),
        State::Failed { .. } | State::Cancelled { .. } => {
            let mut text = status(task, now);
            if let Some(result) = task.state.result().filter(|result| !result.is_empty()) {
                text.push_str(&format!("\n\n{}", cut(TextKind::PartialResult, result)));
            }
            // Not of a cancelled one: whoever stopped it does not want it again.
            if let State::Failed { .. } = task.state {
                text.push_str(&window.names.say(&format!(
                    "\n\nTo try again, launch it anew with asyncagents_task; a person can retry it in a \
                     shell: `asyncagents retry {}`.",
                    task.short_id
                )));
            }
            text
        }
    }
}

fn header(task: &Task, now: Timestamp) -> String {
    format!(
        "Task ID: {}\nDescription: {}\nDuration: {}",
        task.short_id,
        label(&task.order.description),
        say(duration(task, now))
    )
}

fn duration(task: &Task, now: Timestamp) -> Duration {
    task.completed_at.unwrap_or(now).since(task.started_at)
}

/// The status as a table. Phase and last activity only of a live task: they mean nothing afterwards.
fn status(task: &Task, now: Timestamp) -> String {
    let progress = &task.progress;
    let mut rows = vec![
        ("Task ID", task.short_id.to_string()),
        ("Description", label(&task.order.description)),
        ("Agent", label(&task.order.agent)),
        ("Status", task.status().name().to_owned()),
    ];
    if task.is_live() {
        let phase = progress.phase.name().to_owned();
        let detail = progress.detail.as_ref().map(|detail| format!("{phase}: {}", literal(detail)));
        rows.push(("Phase", detail.unwrap_or(phase)));
    }
    if let Some(error) = task.state.error() {
        rows.push(("Error", short_literal(error, MOST_OF_ERROR)));
    }
    rows.push(("Duration", say(duration(task, now))));
    rows.push(("Tool calls", progress.tool_calls.to_string()));
    if !progress.last_tools.is_empty() {
        let tools: Vec<String> = progress.last_tools.iter().map(|tool| line(tool)).collect();
        rows.push(("Last tools", tools.join(", ")));
    }
    if let Some(tokens) = progress.tokens {
        rows.push(("Tokens", tokens.to_string()));
    }
    if task.is_live() {
        rows.push(("Last activity", format!("{} ago", say(now.since(progress.last_update)))));
    }
    if let Some(message) = &progress.last_message {
        rows.push(("Last message", short_literal(message, MOST_OF_MESSAGE)));
    }
    let rows: Vec<String> =
        rows.into_iter().map(|(name, value)| format!("| {name} | {} |", cell(&value))).collect();
    format!("Task Status\n\n| Field | Value |\n| --- | --- |\n{}", rows.join("\n"))
}

/// Escapes the bars in a table cell. Texts of others are quoted already, with their backslashes doubled, so
/// that a `\|` of theirs cannot undo this one.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
