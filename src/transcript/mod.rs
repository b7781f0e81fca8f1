//! Transcripts: messages, parts and tool calls in one shape for every host (OpenCode's), the outcome of
//! a run as its part of the transcript tells it, and the figures of a task (tool calls, tokens, cost).
//! Pure: it fetches nothing. Whether a session is still working is not in a transcript; the outcome is
//! only meaningful while the session is idle.

#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::text::tail;

pub use words::{CallStatus, FailureName, Finish};

/// How many characters of the last message are copied into the figures (T19). It is copied every time a
/// run is observed and may grow to megabytes, so only its end is. The configuration limits what
/// `lastMessage` shows further; it allows no more than this.
const MOST_OF_LAST_MESSAGE: usize = 10_000;

/// The last line of a result whose answer was cut off (T6).
pub const CUT_OFF: &str = "[cut off: the model reached its output limit]";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub info: Info,
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// Everything about a message but its contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    pub id: String,
    #[serde(rename = "sessionID", default)]
    pub session: String,
    pub role: Role,
    pub time: Time,
    #[serde(rename = "parentID", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// `true` marks a compaction summary; on user messages hosts put other things here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Value>,
}

/// Milliseconds since 1970, as hosts write them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    #[serde(default)]
    pub created: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<i64>,
}

/// The tokens of one answer. The counts do not overlap, so their sum is what was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Without those read from, or written to, the provider's prompt cache.
    pub input: u64,
    pub output: u64,
    pub reasoning: u64,
    #[serde(skip_serializing_if = "Cache::is_unused")]
    pub cache: Cache,
}

/// Tokens of the prompt that the provider read from its prompt cache or wrote to it; they have prices of
/// their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    pub read: u64,
    pub write: u64,
}

/// The error that ended a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub name: FailureName,
    #[serde(default)]
    pub data: Value,
}

/// A piece of a message's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Part {
    Text {
        #[serde(default)]
        id: String,
        text: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        synthetic: bool,
    },
    Reasoning {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seal: Option<Seal>,
    },
    Tool {
        #[serde(rename = "callID")]
        call: String,
        tool: String,
        state: ToolState,
    },
    Compaction {
        #[serde(default)]
        auto: bool,
    },
    /// Anything we have no use for: files, steps, snapshots. Its contents are not kept.
    #[serde(other)]
    Other,
}

/// Opaque data that a provider must get back unchanged with a thought or the call that follows it: a
/// signature, or the thought itself, encrypted. Without it some providers refuse the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The `provider/model` that made it; any other refuses it.
    pub by: String,
    pub kind: SealKind,
    pub data: String,
}

/// What the data of a seal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SealKind {
    Signature,
    /// A thought that is not shown to us.
    Encrypted,
}

/// A tool call's arguments, and its result once it has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolState {
    pub status: CallStatus,
    #[serde(default)]
    pub input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a run ended, as the transcript tells it. Only meaningful while the session is idle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The run's prompt is not in the conversation.
    PromptMissing,
    /// The prompt is there and no answer was started.
    Unanswered,
    /// The last answer was started and neither finished nor failed.
    Unfinished {
        partial: Option<Arc<str>>,
    },
    Answered {
        text: Arc<str>,
    },
    Failed {
        error: String,
        partial: Option<Arc<str>>,
    },
    /// It ended after tool calls, where the model would have gone on: a permission or question was
    /// refused.
    Refused {
        what: String,
        partial: Option<Arc<str>>,
    },
    Aborted,
}

/// The figures of a run: what can be counted in a transcript.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub tool_calls: u32,
    pub tool_calls_by_name: BTreeMap<String, u32>,
    pub last_tools: Vec<String>,
    pub last_message: Option<String>,
    pub last_message_at: Option<i64>,
    pub tokens: Option<u64>,
    pub cost: Option<f64>,
    /// How many times in a row the newest tool call was made with the same arguments (T14): an agent
    /// that goes in circles.
    pub repeated: u32,
}

impl Info {
    /// The minimal metadata of a new message.
    pub fn blank(id: String, session: String, role: Role, created: i64) -> Info {
        Info {
            id,
            session,
            role,
            time: Time { created, completed: None },
            parent: None,
            agent: None,
            cost: None,
            tokens: None,
            finish: None,
            error: None,
            summary: None,
        }
    }
}

impl Cache {
    fn is_unused(&self) -> bool {
        *self == Cache::default()
    }
}

impl Tokens {
    /// The tokens of the whole prompt, cached or not.
    pub fn prompt(&self) -> u64 {
        let Cache { read, write } = self.cache;
        self.input.saturating_add(read).saturating_add(write)
    }

    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output).saturating_add(self.reasoning)
    }
}

impl ToolState {
    pub fn pending(input: Value) -> ToolState {
        ToolState { status: CallStatus::Pending, input, output: None, error: None }
    }

    /// Gives the call an error as its result.
    pub fn fail(&mut self, error: impl Into<String>) {
        self.status = CallStatus::Error;
        self.output = None;
        self.error = Some(error.into());
    }
}

impl Message {
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } if !text.is_empty() => Some(text.as_str()),
            Part::Text { .. }
            | Part::Reasoning { .. }
            | Part::Tool { .. }
            | Part::Compaction { .. }
            | Part::Other => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Whether this is the summary of a compaction, which stands for everything before it.
    pub fn is_summary(&self) -> bool {
        self.info.role == Role::Assistant && self.info.summary == Some(Value::Bool(true))
    }

    /// The state of the call that is this part; `None` if the part is no call.
    pub fn tool_state(&self, part: usize) -> Option<&ToolState> {
        self.parts.get(part).and_then(Part::tool_state)
    }

    pub fn tool_states(&self) -> impl Iterator<Item = &ToolState> {
        self.parts.iter().filter_map(Part::tool_state)
    }

    fn is_answer(&self) -> bool {
        self.info.role == Role::Assistant && !self.is_summary()
    }
}

impl Part {
    fn tool_state(&self) -> Option<&ToolState> {
        match self {
            Part::Tool { state, .. } => Some(state),
            Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => {
                None
            }
        }
    }
}

impl Failure {
    pub fn new(name: FailureName, message: &str) -> Failure {
        Failure { name, data: json!({ "message": message }) }
    }

    pub fn message(&self) -> String {
        match self.data.get("message").and_then(Value::as_str) {
            Some(message) if !message.is_empty() => message.to_owned(),
            Some(_) | None => self.name.name().to_owned(),
        }
    }
}

/// The outcome of a run: that of the last assistant message between its prompt and the next run's prompt
/// that is not a compaction summary (T6). `parentID` does not decide: with merged prompts and after an
/// automatic compaction, an answer names a later message than our prompt as its parent.
pub fn outcome(messages: &[Message], prompt: &str, next_prompt: Option<&str>) -> Outcome {
    let Some(start) = messages.iter().position(|message| message.info.id == prompt) else {
        return Outcome::PromptMissing;
    };
    // Said to a session at work: hosts sort by id, and an answer that was begun before the message arrived
    // may come after it all the same. It has not seen the message.
    let arrived = messages[start].info.time.created;
    let is_earlier = |message: &&Message| {
        message.info.time.created < arrived && message.info.parent.as_deref() != Some(prompt)
    };
    // Up to the next run's prompt: its answer says nothing about this run.
    let run = messages[start + 1..]
        .iter()
        .take_while(|message| next_prompt.is_none_or(|next| message.info.id != next))
        .skip_while(is_earlier);
    match run.filter(|message| message.is_answer()).last() {
        None => Outcome::Unanswered,
        Some(answer) => judge(answer),
    }
}

/// The text of a run's last answer that has any, whatever became of the run.
pub fn last_text(messages: &str, prompt: &str) -> Option<String> {
    let messages: Vec<Message> = serde_json::from_str(messages).ok()?;
    let start = messages.iter().position(|message| message.info.id == prompt)?;
    let answers = messages[start + 1..].iter().rev().filter(|message| message.is_answer());
    answers.map(Message::text).find(|text| !text.is_empty())
}

/// The outcome that an answer stands for. The error decides first, then the finish reason together with
/// whether the host has marked the message as completed.
fn judge(answer: &Message) -> Outcome {
    let Info { finish, error, time, .. } = &answer.info;
    let partial = Some(answer.text()).filter(|text| !text.is_empty()).map(Arc::from);
    // An error ends the run whatever else the message has; its text so far is kept as the partial result.
    if let Some(error) = error {
        return match error.name {
            FailureName::Aborted => Outcome::Aborted,
            FailureName::Refused => Outcome::Refused { what: error.message(), partial },
            FailureName::Api
            | FailureName::TurnLimit
            | FailureName::CutOff
            | FailureName::Interrupted
            | FailureName::Other(_) => Outcome::Failed { error: error.message(), partial },
        };
    }
    let is_waiting = answer.tool_states().any(|state| state.status.is_open());
    match (finish, time.completed) {
        (Some(Finish::ToolCalls), _) if is_waiting => Outcome::Unfinished { partial },
        // All calls have results, and yet the model was not asked again: the host stopped there because
        // a permission or question was refused.
        (Some(Finish::ToolCalls), _) => Outcome::Refused { what: refused(answer), partial },
        (Some(Finish::Length), Some(_)) if is_waiting => Outcome::Failed {
            error: "the answer was cut off (`length`) inside a tool call".into(),
            partial,
        },
        (Some(Finish::Length), Some(_)) => match partial {
            Some(text) => Outcome::Answered { text: format!("{text}\n\n{CUT_OFF}").into() },
            None => Outcome::Failed {
                error: "the answer was cut off (`length`) before its first word".into(),
                partial: None,
            },
        },
        (Some(Finish::ContentFilter), Some(_)) => Outcome::Failed {
            error: "the answer was stopped by the provider's content filter".into(),
            partial,
        },
        (Some(Finish::Stop | Finish::Other(_)), Some(_)) => {
            Outcome::Answered { text: partial.unwrap_or_else(|| "".into()) }
        }
        // OpenCode completes a message without a finish reason when it is aborted while waiting to retry.
        (None, Some(_)) => Outcome::Aborted,
        // Any other reason, or none yet: without a completion time the host stopped before the end.
        (_, None) => Outcome::Unfinished { partial },
    }
}

/// What was refused: the last call that did not succeed, as `tool: error`.
fn refused(answer: &Message) -> String {
    let failed = answer.parts.iter().rev().find_map(|part| match part {
        Part::Tool { tool, state, .. } if state.status != CallStatus::Completed => {
            Some((tool, state))
        }
        Part::Tool { .. }
        | Part::Text { .. }
        | Part::Reasoning { .. }
        | Part::Compaction { .. }
        | Part::Other => None,
    });
    match failed {
        Some((tool, ToolState { error: Some(error), .. })) => format!("{tool}: {error}"),
        Some((tool, _)) => tool.clone(),
        None => "a permission or question".to_owned(),
    }
}

/// Counts the figures of these messages. Calls are counted once, however often a host has written their
/// part. A call is identified by its message and its id, because some providers start their ids over in
/// every answer (`name:0`).
pub fn figures(messages: &[Message]) -> Figures {
    let mut figures = Figures::default();
    let mut seen = HashSet::new();
    let mut newest: Option<(&str, &Value)> = None;
    let mut last_message: Option<&str> = None;
    for message in messages.iter().filter(|message| message.info.role == Role::Assistant) {
        let Info { tokens, cost, time, .. } = &message.info;
        if let Some(used) = tokens {
            let tokens = figures.tokens.get_or_insert(0);
            *tokens = tokens.saturating_add(used.total());
        }
        if let Some(cost) = cost {
            *figures.cost.get_or_insert(0.0) += cost;
        }
        for part in &message.parts {
            match part {
                Part::Tool { call, tool, state }
                    if seen.insert((message.info.id.as_str(), call.as_str())) =>
                {
                    figures.tool_calls += 1;
                    *figures.tool_calls_by_name.entry(tool.clone()).or_default() += 1;
                    figures.last_tools.push(tool.clone());
                    // Only the same tool with the same arguments right after another counts as repeated.
                    let same = newest == Some((tool.as_str(), &state.input));
                    figures.repeated = if same { figures.repeated + 1 } else { 1 };
                    newest = Some((tool, &state.input));
                }
                Part::Text { text, .. } if !text.is_empty() => {
                    last_message = Some(text);
                    figures.last_message_at = Some(time.completed.unwrap_or(time.created));
                }
                Part::Tool { .. }
                | Part::Text { .. }
                | Part::Reasoning { .. }
                | Part::Compaction { .. }
                | Part::Other => {}
            }
        }
    }
    // Only the last three are shown (T19).
    let surplus = figures.last_tools.len().saturating_sub(3);
    figures.last_tools.drain(..surplus);
    figures.last_message = last_message.map(|text| newest_part(text, MOST_OF_LAST_MESSAGE));
    figures
}

/// The end of a text that may be long and still growing: at most this many characters, `…` included.
pub fn newest_part(text: &str, characters: usize) -> String {
    // `tail` counts from the end: counting megabytes at every observation would cost what the cut is meant
    // to save.
    match tail(text, characters).len() == text.len() {
        true => text.to_owned(),
        false => format!("…{}", tail(text, characters.saturating_sub(1))),
    }
}
