//! The agent tools: one file each with its schema, its description and its text. HTTP serves them;
//! plugin and MCP only forward. Plain text in and out, errors as text that says the way out.

mod cancel;
mod clear;
mod list;
mod output;
mod session;
mod task;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::supervisor::{self, Caller, Supervisor};
use crate::task::{MAILBOX, SessionId};
use crate::wire::{CallerView, MessageFilter, ToolAnswer, ToolView};

/// The other names the tools can be registered under (`tools.aliases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alias {
    Superagents,
    /// Three tools, with milliseconds and `taskId`.
    Background,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Task,
    Output,
    Cancel,
    List,
    Clear,
}

/// What cannot be answered by a tool's text: the call itself is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no tool `{name}`; there are: {}", .known.join(", "))]
    NoSuchTool { name: String, known: Vec<String> },
    #[error("`caller.sessionID` is required")]
    NoCaller,
}

const ALL: [Tool; 5] = [Tool::Task, Tool::Output, Tool::Cancel, Tool::List, Tool::Clear];
const PREFIX: &str = "asyncagents_";

/// The tools as they are to be registered.
pub fn list(aliases: &[Alias]) -> Vec<ToolView> {
    names(aliases).into_iter().map(|(name, tool, alias)| view(name, tool, alias)).collect()
}

/// The messages of a session, cut the way `asyncagents_output` cuts them.
pub fn messages(messages: Vec<Value>, shown: &MessageFilter) -> Vec<Value> {
    session::cut(messages, shown)
}

/// Carries out a call. A refusal is an answer like any other, marked as an error.
pub async fn call(
    supervisor: &Supervisor,
    aliases: &[Alias],
    name: &str,
    caller: Caller,
    arguments: Value,
    key: Option<String>,
) -> Result<ToolAnswer, Error> {
    let names = names(aliases);
    let Some((_, tool, alias)) = names.iter().find(|(known, _, _)| known == name) else {
        let known = names.into_iter().map(|(name, _, _)| name).collect();
        return Err(Error::NoSuchTool { name: name.to_owned(), known });
    };
    let arguments = match alias {
        Some(Alias::Background) => ours(arguments),
        Some(Alias::Superagents) | None => arguments,
    };
    let answer = match tool {
        Tool::Task => task::call(supervisor, &caller, arguments, key).await,
        Tool::Output => output::call(supervisor, &caller, arguments).await,
        Tool::Cancel => cancel::call(supervisor, &caller, arguments).await,
        Tool::List => list::call(supervisor, &caller, arguments),
        Tool::Clear => clear::call(supervisor, &caller).await,
    };
    let (text, is_error) = match answer {
        Ok(text) => (text, false),
        Err(error) => (error.text(), true),
    };
    let text = if let Some(alias) = alias { text.replace(PREFIX, prefix(*alias)) } else { text };
    Ok(ToolAnswer { text: with_mail(supervisor, &caller, text).await, is_error })
}

/// Turns what came over the wire into a caller; one without a host has no conversation.
pub fn caller(view: CallerView) -> Result<Caller, Error> {
    if view.session_id.is_empty() {
        return Err(Error::NoCaller);
    }
    let lone_batches = view.session_id == "cli";
    Ok(Caller {
        session: SessionId::new(view.session_id),
        message: view.message_id,
        agent: view.agent,
        directory: view.directory,
        host: if view.host.is_empty() { MAILBOX.to_owned() } else { view.host },
        development: view.development,
        lone_batches,
    })
}

fn names(aliases: &[Alias]) -> Vec<(String, Tool, Option<Alias>)> {
    let mut names: Vec<_> =
        ALL.into_iter().map(|tool| (format!("{PREFIX}{}", tool.word()), tool, None)).collect();
    for alias in aliases {
        let tools: &[Tool] = match alias {
            Alias::Superagents => &ALL,
            Alias::Background => &[Tool::Task, Tool::Output, Tool::Cancel],
        };
        names.extend(
            tools
                .iter()
                .map(|tool| (format!("{}{}", prefix(*alias), tool.word()), *tool, Some(*alias))),
        );
    }
    names
}

fn view(name: String, tool: Tool, alias: Option<Alias>) -> ToolView {
    let (description, properties, required) = match tool {
        Tool::Task => (task::DESCRIPTION, task::properties(), task::REQUIRED),
        Tool::Output => (output::DESCRIPTION, output::properties(), output::REQUIRED),
        Tool::Cancel => (cancel::DESCRIPTION, cancel::properties(), &[][..]),
        Tool::List => (list::DESCRIPTION, list::properties(), &[][..]),
        Tool::Clear => (clear::DESCRIPTION, json!({}), &[][..]),
    };
    let properties = match alias {
        Some(Alias::Background) => theirs(properties),
        Some(Alias::Superagents) | None => properties,
    };
    let description = match alias {
        Some(alias) => description.replace(PREFIX, prefix(alias)),
        None => description.to_owned(),
    };
    let input_schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    ToolView { name, description, input_schema }
}

fn prefix(alias: Alias) -> &'static str {
    match alias {
        Alias::Superagents => "superagents_",
        Alias::Background => "background_",
    }
}

/// `background_*` counts in milliseconds and says `taskId` (O5).
fn ours(arguments: Value) -> Value {
    let Value::Object(mut arguments) = arguments else { return arguments };
    if let Some(id) = arguments.remove("taskId") {
        arguments.entry("task_id").or_insert(id);
    }
    if let Some(timeout) = arguments.get("timeout").and_then(Value::as_f64) {
        arguments.insert("timeout".to_owned(), json!(timeout / 1000.0));
    }
    Value::Object(arguments)
}

fn theirs(properties: Value) -> Value {
    let Value::Object(mut properties) = properties else { return properties };
    if properties.contains_key("timeout") {
        let timeout = json!({
            "type": "number", "minimum": 1_000, "maximum": 600_000, "default": 60_000,
            "description": "How long to wait at most, in milliseconds.",
        });
        properties.insert("timeout".into(), timeout);
    } else if let Some(id) = properties.get("task_id").cloned() {
        properties.insert("taskId".into(), id);
    }
    Value::Object(properties)
}

/// A parent that is no conversation hears of ends at the start of its next answer.
async fn with_mail(supervisor: &Supervisor, caller: &Caller, text: String) -> String {
    if caller.host != MAILBOX {
        return text;
    }
    match supervisor.read_mailbox(&caller.session).await {
        Ok(mail) if mail.is_empty() => text,
        Ok(mail) => {
            let lines: Vec<String> = mail.into_iter().map(|notice| notice.visible).collect();
            format!("{}\n\n---\n\n{text}", lines.join("\n\n"))
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot read a mailbox");
            text
        }
    }
}

/// Why a tool could not do what it was asked.
#[derive(Debug)]
enum Refusal {
    Arguments(String),
    Supervisor(supervisor::Error),
}

impl Refusal {
    fn text(self) -> String {
        match self {
            Refusal::Arguments(text) => format!("Error: {text}"),
            Refusal::Supervisor(error @ supervisor::Error::UnknownAgent { .. }) => {
                error.to_string()
            }
            Refusal::Supervisor(error @ supervisor::Error::Store(_)) => {
                let source = &error as &dyn std::error::Error;
                tracing::error!(error = source, "a tool call failed");
                format!("Error: {error}")
            }
            Refusal::Supervisor(error) => format!("Error: {error}"),
        }
    }
}

impl From<supervisor::Error> for Refusal {
    fn from(error: supervisor::Error) -> Refusal {
        Refusal::Supervisor(error)
    }
}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, Refusal> {
    let arguments = match arguments {
        Value::Null => Value::Object(Map::new()),
        other => other,
    };
    serde_json::from_value(arguments)
        .map_err(|error| Refusal::Arguments(format!("the arguments do not fit: {error}")))
}

impl Tool {
    fn word(self) -> &'static str {
        match self {
            Tool::Task => "task",
            Tool::Output => "output",
            Tool::Cancel => "cancel",
            Tool::List => "list",
            Tool::Clear => "clear",
        }
    }
}
