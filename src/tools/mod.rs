//! The tools that agents call: one file each with its schema, its description and its text. HTTP serves them;
//! the OpenCode plugin and the MCP server only forward, so that every client gets the same words.
//!
//! Answers are plain text. A refusal is an answer too, marked as an error, that says what to do; only a wrong
//! call, or one that the next daemon has to repeat, is an [`Error`]. For callers over MCP, arguments are
//! normalised first (`arguments.rs`) and unread notices come in front of the answer (`mail.rs`).

mod arguments;
mod asks;
mod blocking;
mod calls;
mod cancel;
mod clear;
mod identity;
mod list;
mod mail;
mod offer;
mod output;
mod refusal;
mod send;
mod session;
mod table;
mod task;
mod wait;
mod wait_limit;
mod waiter;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use asks::views as permissions;
pub use blocking::{Blocking, OnTimeout};
pub use calls::{CallStart, Calls};
pub use offer::{instructions, list};

use arguments::NormalizedArguments;
use refusal::{Refusal, bounded};
use table::{Invocation, Tool};
use waiter::Waiter;

use crate::quote;
use crate::supervisor::{
    self, Caller, ClientCredentialParts, ClientCredentials, PermissionDialog, Supervisor, Target,
};
use crate::task::lifecycle::Refused;
use crate::task::{MAILBOX, Receipt, SHELL, SessionId, State, Task};
use crate::wire::{CallerView, HandOverView, MessageFilter, ToolAnswer};

/// How many characters of a text are shown at once.
const INLINE: usize = 8_000;

/// The other names the tools can be registered under (`tools.aliases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alias {
    Superagents,
    /// Three tools, with milliseconds and `taskId`.
    Background,
}

/// Which tools are offered, as configured.
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
pub enum OfferScope {
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
    /// Idempotency key: a repeat of the call launches or resumes nothing again.
    pub key: Option<String>,
    /// The caller acknowledges notices itself once they have arrived.
    pub acknowledges: bool,
}

/// The set of names by which the caller knows the tools; texts that mention a tool use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NameSet(Option<Alias>);

/// A tool under one of the names that it is offered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfferedTool {
    tool: Tool,
    alias: Option<Alias>,
}

/// The text of a tool, and the notices that are in it.
struct Answer {
    text: String,
    receipt: Receipt,
    /// The result as JSON, when the answer is of one task with a schema.
    structured: Option<Value>,
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, receipt: Receipt::default(), structured: None }
    }
}

/// The result of a completed task with a schema, as JSON (N6). MCP wants an object, so anything else becomes the
/// `result` of one. Long ones are left out: their text comes in parts.
fn structured(task: &Task) -> Option<Value> {
    const MOST: usize = 65_536;
    let (State::Completed { result, .. }, Some(_)) = (&task.state, &task.order.schema) else {
        return None;
    };
    let result: Value =
        serde_json::from_str(Some(result).filter(|text| text.len() <= MOST)?).ok()?;
    Some(if result.is_object() { result } else { json!({ "result": result }) })
}

/// What cannot be answered by a tool's text: the call itself is wrong, or has to be made again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no tool `{name}`; there are: {}", .known.join(", "))]
    NoSuchTool { name: String, known: Vec<String> },
    #[error("`caller.sessionID` is required")]
    NoCaller,
    #[error("the daemon is stopping; try again, a new one is started on demand")]
    Stopping,
}

const ALL: [Tool; 7] =
    [Tool::Task, Tool::Output, Tool::Wait, Tool::Cancel, Tool::Send, Tool::List, Tool::Clear];
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
    call_with(supervisor, toolbox, call, &Waiter::default()).await
}

/// The same for a client that shows permission requests to its user while it waits.
pub async fn call_asking(
    supervisor: &Supervisor,
    toolbox: &Toolbox,
    call: Call,
    asking: PermissionDialog,
) -> Result<ToolAnswer, Error> {
    call_with(supervisor, toolbox, call, &Waiter { asking, deferral: None }).await
}

/// Whether there is such a tool for its caller.
pub fn check(toolbox: &Toolbox, call: &Call) -> Result<(), Error> {
    offered(toolbox, call).map(drop)
}

fn offered(toolbox: &Toolbox, call: &Call) -> Result<OfferedTool, Error> {
    let audience = audience(&call.caller);
    toolbox.find(audience, &call.name).ok_or_else(|| Error::NoSuchTool {
        name: call.name.clone(),
        known: toolbox.tools(audience).map(OfferedTool::name).collect(),
    })
}

async fn call_with(
    supervisor: &Supervisor,
    toolbox: &Toolbox,
    call: Call,
    waiter: &Waiter<'_>,
) -> Result<ToolAnswer, Error> {
    let OfferedTool { tool, alias } = offered(toolbox, &call)?;
    let Call { caller, arguments, key, acknowledges, .. } = call;
    let audience = audience(&caller);
    // Before anything else: tasks that lost their credentials in a restart can go on while this call waits
    // for them.
    if let Err(error) = supervisor.bring(&caller).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            parent = %caller.session,
            "credentials not renewed; tasks that lost theirs stay parked"
        );
    }
    let (names, offered) = (NameSet(alias), OfferedTool { tool, alias });
    let (answer, notes) = match normalized(offered, audience, arguments) {
        Ok(NormalizedArguments { arguments, notes }) => {
            let answer = match identity::refusal(tool, &caller, &arguments) {
                Some(refusal) => Err(refusal),
                None => {
                    let arguments = Value::Object(arguments);
                    let caller = &caller;
                    let call =
                        Invocation { supervisor, toolbox, caller, names, arguments, key, waiter };
                    (tool.row().call)(call).await
                }
            };
            (answer, notes)
        }
        Err(refusal) => (Err(refusal), Vec::new()),
    };
    let (Answer { mut text, receipt: shown, structured }, is_error) = match answer {
        Ok(answer) => (answer, false),
        // Not a refusal: the client repeats the call with the next daemon, where a wait goes on.
        Err(Refusal::Supervisor(supervisor::Error::Stopping)) => return Err(Error::Stopping),
        Err(error) => {
            let answer = error.answer();
            (Answer { text: bounded(&names.say(&answer.text)), ..answer }, true)
        }
    };
    for note in notes {
        text.push_str(&format!("\n\nNote: {}", bounded(&quote::line(&note))));
    }
    // After the call: an end that the answer itself shows has been handed out with it, and is not repeated
    // as a notice above it.
    let mail::MailPreamble { text: preamble, mut receipt } = match audience {
        Audience::Mcp if !caller.anonymous => mail::preamble(supervisor, &caller, &text).await,
        Audience::Mcp | Audience::Conversation => mail::MailPreamble::default(),
    };
    receipt.add(shown);
    if !acknowledges
        && let Err(error) = supervisor.mail_was_read(std::mem::take(&mut receipt)).await
    {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            parent = %caller.session,
            error,
            "notices not marked as read; they may be delivered again"
        );
    }
    let parts: Vec<String> = preamble.into_iter().chain([text]).collect();
    Ok(ToolAnswer { text: parts.join("\n\n---\n\n"), is_error, receipt, structured })
}

/// Aborts a call that its caller has cancelled. The task of a blocking `Task`, which was only wanted for its
/// answer, is stopped; whatever other tools launched goes on.
pub async fn abort(
    supervisor: &Supervisor,
    toolbox: &Toolbox,
    name: &str,
    caller: &Caller,
    key: &str,
) -> Result<(), supervisor::Error> {
    let called = toolbox.find(audience(caller), name);
    if called.is_none_or(|offered| offered.tool != Tool::Blocking) {
        return Ok(());
    }
    // By the idempotency key: the caller has no answer, so it does not know the id of the task.
    match supervisor.launched_with(key).await? {
        Some(task) if task.is_live() => {
            match supervisor.cancel(caller, Target::Task(task.id)).await {
                // It ended just now, so there is nothing left to stop.
                Ok(_) | Err(supervisor::Error::Refused(Refused::AlreadyOver)) => Ok(()),
                Err(error) => Err(error),
            }
        }
        Some(_) | None => Ok(()),
    }
}

/// The progress of what the caller waits for, in one line.
pub fn progress(supervisor: &Supervisor, caller: &Caller) -> String {
    supervisor.progress_line(&caller.session).unwrap_or_else(|| "nothing is running".to_owned())
}

fn audience(caller: &Caller) -> Audience {
    if caller.host == MAILBOX { Audience::Mcp } else { Audience::Conversation }
}

/// The credentials of a client's environment in a type that can be neither serialised nor printed: from here on
/// they are in memory only.
pub fn handed(view: HandOverView) -> ClientCredentials {
    let HandOverView { model, host, opencode_url, providers } = view;
    let providers = providers.into_iter().map(|(name, access)| (name, access.key, access.base_url));
    let providers = providers.collect();
    ClientCredentials::from(ClientCredentialParts {
        model,
        host,
        opencode: opencode_url,
        providers,
    })
}

/// The caller of a request. One without a host is no conversation, and its host becomes the mailbox.
pub fn caller(view: CallerView) -> Result<Caller, Error> {
    if view.session_id.is_empty() {
        return Err(Error::NoCaller);
    }
    // Those who do not say who they are must not share a batch, either.
    let lone_batches = view.session_id == SHELL || view.anonymous;
    Ok(Caller {
        session: SessionId::new(view.session_id),
        message: view.message_id,
        agent: view.agent,
        directory: view.directory,
        host: if view.host.is_empty() { MAILBOX.to_owned() } else { view.host },
        instance: None,
        development: view.development,
        lone_batches,
        heir_of: view.heir_of,
        anonymous: view.anonymous,
        longest_wait: view.longest_wait.map(Duration::from_secs),
        handed: handed(view.hand_over),
    })
}

impl Toolbox {
    /// All tools under all the names that they are offered by.
    fn tools(&self, audience: Audience) -> impl Iterator<Item = OfferedTool> {
        let blocking = self.offers_blocking(audience).then_some(Tool::Blocking);
        let own = ALL.into_iter().chain(blocking).map(|tool| OfferedTool { tool, alias: None });
        own.chain(self.aliases.iter().flat_map(|alias| {
            tools_of(*alias).iter().map(|tool| OfferedTool { tool: *tool, alias: Some(*alias) })
        }))
    }

    fn find(&self, audience: Audience, name: &str) -> Option<OfferedTool> {
        self.tools(audience)
            .find(|offered| name.strip_prefix(offered.prefix()) == Some(offered.tool.row().word))
    }

    fn offers_blocking(&self, audience: Audience) -> bool {
        match (self.blocking.offered, audience) {
            (OfferScope::Everywhere, _) | (OfferScope::Mcp, Audience::Mcp) => true,
            (OfferScope::Nowhere, _) | (OfferScope::Mcp, Audience::Conversation) => false,
        }
    }
}

impl OfferedTool {
    fn prefix(self) -> &'static str {
        match (self.alias, self.tool) {
            (Some(alias), _) => prefix(alias),
            // The name of the specification (O6).
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

/// The schema's properties of a tool as it is offered.
fn properties(OfferedTool { tool, alias }: OfferedTool, audience: Audience) -> Value {
    let properties = (tool.row().properties)(audience);
    match alias {
        Some(Alias::Background) => background_properties(properties),
        Some(Alias::Superagents) | None => properties,
    }
}

/// The arguments of a call as its tool takes them: normalised over MCP, translated from those of an alias. An
/// array is refused, since its values could be meant in any order.
fn normalized(
    offered: OfferedTool,
    audience: Audience,
    arguments: Value,
) -> Result<NormalizedArguments, Refusal> {
    let mut arguments = match arguments {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let text = "invalid arguments: expected an object with their names";
            return Err(Refusal::Arguments(text.to_owned()));
        }
    };
    // Models tend to list every argument of the schema, with `null` for those they leave out.
    arguments.retain(|_, value| !value.is_null());
    let NormalizedArguments { arguments, notes } = match (audience, properties(offered, audience)) {
        (Audience::Mcp, Value::Object(properties)) => {
            arguments::normalize(offered.tool, &properties, arguments)?
        }
        (_, _) => NormalizedArguments { arguments, notes: Vec::new() },
    };
    // After the normalisation, which clamps in the units of the schema that the caller has seen.
    let arguments = match offered.alias {
        Some(Alias::Background) => from_background(arguments),
        Some(Alias::Superagents) | None => arguments,
    };
    Ok(NormalizedArguments { arguments, notes })
}

/// Translates the arguments of `background_*`, which counts in milliseconds and says `taskId` (O5).
fn from_background(mut arguments: Map<String, Value>) -> Map<String, Value> {
    if let Some(id) = arguments.remove("taskId") {
        arguments.entry("task_id").or_insert(id);
    }
    if let Some(timeout) = arguments.get("timeout").and_then(Value::as_f64) {
        arguments.insert("timeout".to_owned(), json!(timeout / 1000.0));
    }
    arguments
}

/// The properties of our tools in the units and names of `background_*`.
fn background_properties(properties: Value) -> Value {
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
        .map_err(|error| Refusal::Arguments(format!("invalid arguments: {error}")))
}

impl NameSet {
    /// A text of ours with the tools called by the names that the caller knows. Only for our own texts: what
    /// an agent wrote must not be changed.
    fn say(self, words: &str) -> String {
        let NameSet(Some(alias)) = self else { return words.to_owned() };
        let name = |words: String, tool: &Tool| {
            let word = tool.row().word;
            words.replace(&format!("{PREFIX}{word}"), &format!("{}{word}", prefix(alias)))
        };
        tools_of(alias).iter().fold(words.to_owned(), name)
    }
}
