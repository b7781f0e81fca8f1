//! The agent tools: one file each with its schema, its description and its text. HTTP serves them;
//! plugin and MCP only forward. Plain text in and out, errors as text that says the way out.

mod arguments;
mod asks;
mod blocking;
mod cancel;
mod clear;
mod list;
mod mail;
mod offer;
mod output;
mod patience;
mod refusal;
mod session;
mod table;
mod task;
mod wait;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use blocking::{Blocking, OnTimeout};
pub use offer::{instructions, list};

use arguments::Fitted;
use refusal::{Refusal, bounded};
use table::{Tool, Turn};

use crate::quote;
use crate::supervisor::{self, Caller, Handed, HandedParts, Supervisor, Target};
use crate::task::{MAILBOX, Receipt, SHELL, SessionId};
use crate::wire::{CallerView, HandOverView, MessageFilter, ToolAnswer};

/// The other names the tools can be registered under (`tools.aliases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alias {
    Superagents,
    /// Three tools, with milliseconds and `taskId`.
    Background,
}

/// What is offered, and how it behaves.
#[derive(Clone, Debug, Default)]
pub struct Toolbox {
    pub aliases: Vec<Alias>,
    pub blocking: Blocking,
}

/// Who registers the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A conversation, which gets a message when a task ends.
    Conversation,
    /// A client of MCP, which hears of an end with its next call.
    Mcp,
}

/// Where the blocking `Task` is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offered {
    #[default]
    Mcp,
    Everywhere,
    Nowhere,
}

/// One call of a tool, as it came.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub caller: Caller,
    pub arguments: Value,
    /// The same key launches the same task.
    pub key: Option<String>,
    /// The caller says when it has got the notices that came along.
    pub acknowledges: bool,
}

/// The names by which the caller knows the tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Names(Option<Alias>);

/// A tool as it is offered: under its own name or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    tool: Tool,
    alias: Option<Alias>,
}

/// What a tool says, and the notices that its caller has in hand with that.
struct Answer {
    text: String,
    receipt: Receipt,
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, receipt: Receipt::default() }
    }
}

/// What cannot be answered by a tool's text: the call itself is wrong, or has to be made again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no tool `{name}`; there are: {}", .known.join(", "))]
    NoSuchTool { name: String, known: Vec<String> },
    #[error("`caller.sessionID` is required")]
    NoCaller,
    #[error("the daemon is stopping; try again, it is started anew on demand")]
    Stopping,
}

const ALL: [Tool; 6] =
    [Tool::Task, Tool::Output, Tool::Wait, Tool::Cancel, Tool::List, Tool::Clear];
const PREFIX: &str = "asyncagents_";

/// The messages of a session, cut the way `asyncagents_output` cuts them.
pub fn messages(messages: Vec<Value>, shown: &MessageFilter) -> Vec<Value> {
    session::cut(messages, shown)
}

/// Carries out a call. A refusal is an answer like any other, marked as an error.
pub async fn call(
    supervisor: &Supervisor,
    toolbox: &Toolbox,
    call: Call,
) -> Result<ToolAnswer, Error> {
    let Call { name, caller, arguments, key, acknowledges } = call;
    let audience = audience(&caller);
    let Some(Named { tool, alias }) = toolbox.find(audience, &name) else {
        let known = toolbox.tools(audience).map(Named::name).collect();
        return Err(Error::NoSuchTool { name, known });
    };
    if let Err(error) = supervisor.bring(&caller).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "cannot give its tasks back what they lost");
    }
    let (names, named) = (Names(alias), Named { tool, alias });
    let (answer, notes) = match taken(named, audience, arguments) {
        Ok(Fitted { arguments, notes }) => {
            let arguments = Value::Object(arguments);
            let turn = Turn { supervisor, toolbox, caller: &caller, names, arguments, key };
            ((tool.row().call)(turn).await, notes)
        }
        Err(refusal) => (Err(refusal), Vec::new()),
    };
    let (Answer { mut text, receipt: told }, is_error) = match answer {
        Ok(answer) => (answer, false),
        // The next daemon can go on with it.
        Err(Refusal::Supervisor(supervisor::Error::Stopping)) => return Err(Error::Stopping),
        Err(error) => {
            let Answer { text, receipt } = error.answer();
            (Answer { text: bounded(&names.say(&text)), receipt }, true)
        }
    };
    for note in notes {
        text.push_str(&format!("\n\nNote: {}", bounded(&quote::line(&note))));
    }
    let mail::Opening { text: opening, mut receipt } = match audience {
        Audience::Mcp => mail::opening(supervisor, &caller, &text).await,
        Audience::Conversation => mail::Opening::default(),
    };
    receipt.add(told);
    if !acknowledges
        && let Err(error) = supervisor.mail_was_read(std::mem::take(&mut receipt)).await
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "cannot note what was read");
    }
    let parts: Vec<String> = opening.into_iter().chain([text]).collect();
    Ok(ToolAnswer { text: parts.join("\n\n---\n\n"), is_error, receipt })
}

/// The caller takes a call back that it is no longer waiting for. What it launched with it and only
/// wanted for its answer is stopped; everything else goes on.
pub async fn abort(
    supervisor: &Supervisor,
    toolbox: &Toolbox,
    name: &str,
    caller: &Caller,
    key: &str,
) -> Result<(), supervisor::Error> {
    let called = toolbox.find(audience(caller), name);
    if called.is_none_or(|named| named.tool != Tool::Blocking) {
        return Ok(());
    }
    match supervisor.launched_with(key).await? {
        Some(task) if task.is_live() => {
            supervisor.cancel(caller, Target::Task(task.id)).await.map(|_| ())
        }
        Some(_) | None => Ok(()),
    }
}

/// How far what the caller waits for is, in a line.
pub fn progress(supervisor: &Supervisor, caller: &Caller) -> String {
    supervisor.progress_line(&caller.session).unwrap_or_else(|| "nothing is running".to_owned())
}

fn audience(caller: &Caller) -> Audience {
    if caller.host == MAILBOX { Audience::Mcp } else { Audience::Conversation }
}

/// What a client said about its environment; from here on it is shown and stored nowhere.
pub fn handed(view: HandOverView) -> Handed {
    let HandOverView { model, host, opencode_url, providers } = view;
    let providers = providers.into_iter().map(|(name, access)| (name, access.key, access.base_url));
    let providers = providers.collect();
    Handed::from(HandedParts { model, host, opencode: opencode_url, providers })
}

/// Turns what came over the wire into a caller; one without a host has no conversation.
pub fn caller(view: CallerView) -> Result<Caller, Error> {
    if view.session_id.is_empty() {
        return Err(Error::NoCaller);
    }
    let lone_batches = view.session_id == SHELL;
    Ok(Caller {
        session: SessionId::new(view.session_id),
        message: view.message_id,
        agent: view.agent,
        directory: view.directory,
        host: if view.host.is_empty() { MAILBOX.to_owned() } else { view.host },
        development: view.development,
        lone_batches,
        heir_of: view.heir_of,
        longest_wait: view.longest_wait.map(Duration::from_secs),
        handed: handed(view.hand_over),
    })
}

impl Toolbox {
    fn tools(&self, audience: Audience) -> impl Iterator<Item = Named> {
        let blocking = self.offers_blocking(audience).then_some(Tool::Blocking);
        let own = ALL.into_iter().chain(blocking).map(|tool| Named { tool, alias: None });
        own.chain(self.aliases.iter().flat_map(|alias| {
            tools_of(*alias).iter().map(|tool| Named { tool: *tool, alias: Some(*alias) })
        }))
    }

    fn find(&self, audience: Audience, name: &str) -> Option<Named> {
        self.tools(audience)
            .find(|named| name.strip_prefix(named.prefix()) == Some(named.tool.row().word))
    }

    fn offers_blocking(&self, audience: Audience) -> bool {
        match (self.blocking.offered, audience) {
            (Offered::Everywhere, _) | (Offered::Mcp, Audience::Mcp) => true,
            (Offered::Nowhere, _) | (Offered::Mcp, Audience::Conversation) => false,
        }
    }
}

impl Named {
    fn prefix(self) -> &'static str {
        match (self.alias, self.tool) {
            (Some(alias), _) => prefix(alias),
            (None, Tool::Blocking) => "",
            (None, _) => PREFIX,
        }
    }

    fn name(self) -> String {
        format!("{}{}", self.prefix(), self.tool.row().word)
    }
}

fn tools_of(alias: Alias) -> &'static [Tool] {
    match alias {
        Alias::Superagents => &ALL,
        Alias::Background => &[Tool::Task, Tool::Output, Tool::Cancel],
    }
}

fn prefix(alias: Alias) -> &'static str {
    match alias {
        Alias::Superagents => "superagents_",
        Alias::Background => "background_",
    }
}

/// The arguments of a tool as it is offered.
fn properties(Named { tool, alias }: Named, audience: Audience) -> Value {
    let properties = (tool.row().properties)(audience);
    match alias {
        Some(Alias::Background) => theirs(properties),
        Some(Alias::Superagents) | None => properties,
    }
}

/// The arguments by their names. A list of them could be meant in any order.
fn taken(named: Named, audience: Audience, arguments: Value) -> Result<Fitted, Refusal> {
    let mut arguments = match arguments {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let text = "the arguments do not fit: an object with their names is expected";
            return Err(Refusal::Arguments(text.to_owned()));
        }
    };
    // Models name everything and leave out with `null`.
    arguments.retain(|_, value| !value.is_null());
    let Fitted { arguments, notes } = match (audience, properties(named, audience)) {
        (Audience::Mcp, Value::Object(properties)) => {
            arguments::fit(named.tool, &properties, arguments)?
        }
        (_, _) => Fitted { arguments, notes: Vec::new() },
    };
    let arguments = match named.alias {
        Some(Alias::Background) => ours(arguments),
        Some(Alias::Superagents) | None => arguments,
    };
    Ok(Fitted { arguments, notes })
}

/// `background_*` counts in milliseconds and says `taskId` (O5).
fn ours(mut arguments: Map<String, Value>) -> Map<String, Value> {
    if let Some(id) = arguments.remove("taskId") {
        arguments.entry("task_id").or_insert(id);
    }
    if let Some(timeout) = arguments.get("timeout").and_then(Value::as_f64) {
        arguments.insert("timeout".to_owned(), json!(timeout / 1000.0));
    }
    arguments
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

fn counted(tasks: u64) -> String {
    if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") }
}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, Refusal> {
    serde_json::from_value(arguments)
        .map_err(|error| Refusal::Arguments(format!("the arguments do not fit: {error}")))
}

impl Names {
    /// Words of our own with the tools named as the caller knows them, where it has them by such
    /// names. What an agent said is nothing to change.
    fn say(self, words: &str) -> String {
        let Names(Some(alias)) = self else { return words.to_owned() };
        let name = |words: String, tool: &Tool| {
            let word = tool.row().word;
            words.replace(&format!("{PREFIX}{word}"), &format!("{}{word}", prefix(alias)))
        };
        tools_of(alias).iter().fold(words.to_owned(), name)
    }
}
