//! `asyncagents logs`: a task's conversation as lines for people: who said what, tool calls in one line each, their
//! results shortened. With `-f` it stays until the task has ended, also when the daemon dies or is restarted under it.
//!
//! An agent at work adds to its last message, and a daemon that was killed may write that message again. So every
//! part is printed once, by the id of its message and its place there, and a text only when no more can follow it.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::connection::{Connection, has_status};
use super::show::{self, BAD, BOLD, DIM, GOOD, Kind, LIVE, Line, PLAIN};
use super::wait::{say_what_is_asked, tell};
use super::{connect, tasks};
use crate::client::Client;
use crate::config::Settings;
use crate::quote;
use crate::text;
use crate::transcript::{CallStatus, Info, Message, Part, Role, ToolState};
use crate::wire::{MessageFilter, TaskView};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How much is shown of a tool call's arguments, and of its result's first line.
const LONGEST_ARGUMENTS: usize = 300;
const LONGEST_RESULT: usize = 200;

/// In front of what is not the first line of a message.
const INDENT: &str = "         ";

#[derive(Args)]
#[command(after_help = "\
With -f it prints what comes until the task has ended; it goes on when the daemon crashes or is
restarted. Its exit code says nothing about the task: `asyncagents wait` does.

Example:
  asyncagents logs -f ab12c3
  asyncagents logs --json ab12c3 | jq -r .info.role")]
pub(super) struct Logs {
    /// The task: its id, its short id, or the beginning of its id
    id: String,
    /// Stay until the task has ended, and print what comes
    #[arg(long, short)]
    follow: bool,
    /// Only the last messages
    #[arg(short, value_name = "N")]
    n: Option<u32>,
    /// Also what the agent thought
    #[arg(long)]
    thinking: bool,
    /// Print each message as a line of JSON, as its host has it
    #[arg(long)]
    json: bool,
}

impl Logs {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let id = connection.resolve(&[self.id]).await?.remove(0);
        let mut log = Log {
            filter: MessageFilter {
                include_thinking: self.thinking,
                include_tool_results: true,
                message_limit: self.n,
                ..MessageFilter::default()
            },
            is_json: self.json,
            when_blocked: WhenBlocked::Stay,
            printed: HashSet::new(),
            asked: HashSet::new(),
        };
        if self.follow {
            log.follow(&connection, &id).await?;
        } else {
            let call = async |client: &Client| client.messages(&id, &log.filter).await;
            let messages = connection.call(call).await?.messages;
            log.print(messages, ConversationState::Over)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Follows a task's conversation for `run --follow`: to its end, or until it is blocked where no person sees it.
/// Returns the task as it then is.
pub(super) async fn follow(connection: &Connection<'_>, id: &str) -> anyhow::Result<TaskView> {
    let when_blocked = match std::io::stdout().is_terminal() {
        true => WhenBlocked::Stay,
        false => WhenBlocked::Leave,
    };
    let filter = MessageFilter { include_tool_results: true, ..MessageFilter::default() };
    let (printed, asked) = <(HashSet<_>, HashSet<_>)>::default();
    Log { filter, is_json: false, when_blocked, printed, asked }.follow(connection, id).await
}

struct Log {
    filter: MessageFilter,
    is_json: bool,
    when_blocked: WhenBlocked,
    printed: HashSet<Key>,
    /// The permission requests that were shown.
    asked: HashSet<String>,
}

/// What following does when the task waits for a permission.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenBlocked {
    Stay,
    Leave,
}

/// A piece of a conversation: message, part, and what of it.
type Key = (String, usize, Piece);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Piece {
    /// A text, or a call without its result.
    Said,
    Result,
    Error,
    /// The message as JSON.
    Whole,
}

/// Whether anything can still be added to a conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConversationState {
    Open,
    Over,
}

impl Log {
    async fn follow(&mut self, connection: &Connection<'_>, id: &str) -> anyhow::Result<TaskView> {
        loop {
            // The task first: messages that are read after it has ended are all there are.
            let task = connection.wait(async |client| client.task(id).await).await?;
            let is_over = tasks::is_over(&task);
            let filter = self.filter.clone();
            let call = async |client: &Client| client.messages(id, &filter).await;
            let messages = match connection.wait(call).await {
                Ok(view) => view.messages,
                // Its host does not answer for the moment, or has no session for it yet.
                Err(error) if !is_over && has_status(&error, 502) => Vec::new(),
                Err(error) => return Err(error),
            };
            self.print(
                messages,
                if is_over { ConversationState::Over } else { ConversationState::Open },
            )?;
            if is_over {
                if !self.is_json {
                    tell(&task);
                }
                return Ok(task);
            }
            if tasks::is_blocked(&task) {
                let are_open = self.show_asks(connection, &task).await?;
                if are_open && self.when_blocked == WhenBlocked::Leave {
                    return Ok(task);
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Shows the permission requests of the task that are new; returns whether any are open.
    async fn show_asks(
        &mut self,
        connection: &Connection<'_>,
        task: &TaskView,
    ) -> anyhow::Result<bool> {
        let mut asks = connection.wait(Client::permissions).await?.permissions;
        asks.retain(|ask| ask.session_id == task.session_id);
        let are_open = !asks.is_empty();
        asks.retain(|ask| self.asked.insert(ask.id.clone()));
        say_what_is_asked(&asks);
        Ok(are_open)
    }

    fn print(&mut self, messages: Vec<Value>, state: ConversationState) -> anyhow::Result<()> {
        let last = messages.len().saturating_sub(1);
        let mut is_settled = state == ConversationState::Open;
        for (n, value) in messages.into_iter().enumerate() {
            let json = self.is_json.then(|| value.to_string());
            let message = match Message::deserialize(&value) {
                Ok(message) => message,
                Err(_) => unknown(&value),
            };
            // One before the last can still get the result of a tool, but no more text.
            let is_open = state == ConversationState::Open && n == last;
            let is_whole = !is_open && message.tool_states().all(|state| !state.status.is_open());
            if let Some(json) = json {
                let key = (message.info.id.clone(), 0, Piece::Whole);
                if (is_whole || state == ConversationState::Over) && self.printed.insert(key) {
                    show::raw(&json)?;
                }
            } else {
                let width = show::Screen::stdout().width;
                for (key, lines) in pieces(&message, is_open, width) {
                    if self.printed.insert(key) {
                        lines.iter().try_for_each(show::print)?;
                    }
                }
            }
            is_settled &= is_whole;
            // What is settled is not fetched again: a conversation can have 100 MB.
            if is_settled {
                self.filter.since_message_id = Some(message.info.id);
                self.filter.message_limit = None;
            }
        }
        Ok(())
    }
}

/// In place of a message that only a later version understands: one line, under the id that it has.
fn unknown(value: &Value) -> Message {
    let id = value["info"]["id"].as_str().unwrap_or_default().to_owned();
    let text = "(a message that this version does not understand)".to_owned();
    Message {
        info: Info::blank(id, String::new(), Role::User, 0),
        parts: vec![Part::Text { id: String::new(), text, synthetic: true }],
    }
}

/// The lines of a message, piece by piece; without the text that an open message ends with, which may grow.
fn pieces(message: &Message, is_open: bool, width: Option<usize>) -> Vec<(Key, Vec<Line>)> {
    let mut pieces = Vec::new();
    let last = message.parts.len().saturating_sub(1);
    for (n, part) in message.parts.iter().enumerate() {
        let key = |piece| (message.info.id.clone(), n, piece);
        let is_written = message.info.role == Role::User || message.info.time.completed.is_some();
        let may_grow = is_open && n == last && !is_written;
        match part {
            Part::Text { text, .. } | Part::Reasoning { text, .. }
                if text.trim().is_empty() || may_grow => {}
            Part::Text { text, .. } => {
                let (who, style, kind) = match message.info.role {
                    Role::User => ("user", LIVE.bold(), Kind::Plain),
                    Role::Assistant => ("agent", GOOD.bold(), Kind::Markdown),
                };
                pieces.push((key(Piece::Said), said(who, style, text.trim_end(), kind, width)));
            }
            Part::Reasoning { text, .. } => {
                let lines = said("thinking", DIM, text.trim_end(), Kind::Plain, width);
                pieces.push((key(Piece::Said), lines));
            }
            Part::Tool { tool, state, .. } => {
                pieces.push((key(Piece::Said), vec![fitted(call(tool, state), width)]));
                pieces.extend(
                    result(state).map(|line| (key(Piece::Result), vec![fitted(line, width)])),
                );
            }
            Part::Compaction { .. } => {
                let line = Line::new(DIM, INDENT).with(DIM, "(the conversation was compacted)");
                pieces.push((key(Piece::Said), vec![line]));
            }
            Part::Other => {}
        }
    }
    if let Some(error) = &message.info.error {
        let line = Line::new(BAD, "error    ").with(PLAIN, &quote::literal(&error.message()));
        let key = (message.info.id.clone(), message.parts.len(), Piece::Error);
        pieces.push((key, vec![fitted(line, width)]));
    }
    pieces
}

fn said(
    who: &str,
    style: anstyle::Style,
    text: &str,
    kind: Kind,
    width: Option<usize>,
) -> Vec<Line> {
    let padding = " ".repeat(INDENT.len().saturating_sub(who.len()));
    let first = Line::new(style, who).with(PLAIN, &padding).with(DIM, "│ ");
    let others = Line::plain(INDENT).with(DIM, "│ ");
    show::body(text, kind, width, &first, &others)
}

fn fitted(line: Line, width: Option<usize>) -> Line {
    match width {
        Some(width) => line.cut(width),
        None => line,
    }
}

fn call(tool: &str, state: &ToolState) -> Line {
    let arguments = text::clip(&arguments(&state.input), LONGEST_ARGUMENTS);
    Line::plain(INDENT).with(DIM, "> ").with(BOLD, tool).with(PLAIN, &format!(" {arguments}"))
}

/// The arguments of a call in one line, strings in quotes.
fn arguments(input: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => quote::literal(text),
        other => other.to_string(),
    };
    match input {
        Value::Null => String::new(),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect();
            fields.join(" ")
        }
        other => shown(other),
    }
}

/// The result of a call that has one: its first line, and how much there is.
fn result(state: &ToolState) -> Option<Line> {
    let failed = state.status == CallStatus::Error;
    let text = match (&state.error, &state.output) {
        _ if state.status.is_open() => return None,
        (Some(error), _) => error,
        (None, Some(output)) => output,
        (None, None) => return None,
    };
    let line = Line::plain(INDENT).with(if failed { BAD } else { DIM }, "< ");
    let line = if failed { line.with(BAD, "failed: ") } else { line };
    let first = text.trim().lines().next().unwrap_or_default();
    let line = line.with(DIM, &text::clip(first, LONGEST_RESULT));
    let lines = text.trim().lines().count() as u64;
    Some(match lines {
        ..=1 => line,
        _ => line.with(DIM, &format!(" ({})", show::counted(lines, "line"))),
    })
}
