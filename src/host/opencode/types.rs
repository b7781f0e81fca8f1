//! Serde types of OpenCode's API (v1), as far as we read or write it. Messages and parts are
//! `crate::transcript`'s, whose shape is OpenCode's own. Fields that an older or newer server may leave out
//! have defaults, and unknown enum values map to `Other`, so that a new version degrades instead of failing.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::transcript::{Failure, Info, Part};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Health {
    #[serde(default)]
    pub(super) version: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Paths {
    pub(super) state: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) directory: String,
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
}

/// Free-form metadata, which OpenCode stores and returns everywhere: the launch's nonce. Other plugins may
/// put theirs beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Metadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) asyncagents: Option<String>,
}

/// Body of `POST /session`. The parent is not validated by the server (G20).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Create {
    #[serde(rename = "parentID", skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<String>,
    pub(super) title: String,
    pub(super) agent: String,
    pub(super) metadata: Metadata,
    pub(super) permission: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Rule {
    pub(super) permission: String,
    pub(super) pattern: &'static str,
    pub(super) action: &'static str,
}

/// Body of `prompt_async`. Sending the same message id again does not run it again; parts have ids of their
/// own, because one without would be appended once more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PromptBody {
    #[serde(rename = "messageID")]
    pub(super) message: String,
    pub(super) agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<ModelRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) variant: Option<String>,
    #[serde(rename = "noReply", skip_serializing_if = "std::ops::Not::not")]
    pub(super) no_reply: bool,
    pub(super) parts: Vec<TextPart>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ModelRef {
    #[serde(rename = "providerID")]
    pub(super) provider: String,
    #[serde(rename = "modelID")]
    pub(super) model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TextPart {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) id: String,
    pub(super) text: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) synthetic: bool,
}

/// The response of `/session/status`: idle sessions are absent from it (G3).
pub(super) type Statuses = HashMap<String, Status>;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Status {
    Idle,
    Busy,
    Retry {
        #[serde(default)]
        message: String,
    },
    /// Of a newer server.
    #[serde(other)]
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Todo {
    pub(super) content: String,
    pub(super) status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Agent {
    pub(super) name: String,
    #[serde(default)]
    pub(super) hidden: bool,
    /// Its own, when its file names one.
    #[serde(default)]
    pub(super) model: Option<ModelRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Permission {
    pub(super) id: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    pub(super) permission: String,
    #[serde(default)]
    pub(super) patterns: Vec<String>,
    /// For `bash`, the whole command; the patterns are what rules see of it.
    #[serde(default)]
    pub(super) metadata: Value,
    #[serde(default)]
    pub(super) tool: Option<CallReference>,
}

/// The call that asks.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct CallReference {
    #[serde(rename = "callID")]
    pub(super) call: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Question {
    pub(super) id: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    #[serde(default)]
    pub(super) questions: Vec<QuestionItem>,
    #[serde(default)]
    pub(super) tool: Option<CallReference>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct QuestionItem {
    pub(super) question: String,
    #[serde(default)]
    pub(super) options: Vec<Choice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Choice {
    pub(super) label: String,
}

/// A recent message, read only for its agent and model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct RecentMessage {
    pub(super) info: RecentInfo,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct RecentInfo {
    #[serde(default)]
    pub(super) agent: Option<String>,
    /// Of a user's message.
    #[serde(default)]
    pub(super) model: Option<RecentModel>,
    /// Of an assistant's message.
    #[serde(rename = "providerID", default)]
    pub(super) provider: Option<String>,
    #[serde(rename = "modelID", default)]
    pub(super) model_id: Option<String>,
    #[serde(default)]
    pub(super) summary: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct RecentModel {
    #[serde(rename = "providerID")]
    pub(super) provider: String,
    #[serde(rename = "modelID")]
    pub(super) model: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

/// The body of an error response.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) data: BTreeMap<String, Value>,
}

/// One event of `/global/event`. Its properties stay unparsed until the kind is known.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(default)]
    pub(super) directory: Option<String>,
    #[serde(borrow)]
    pub(super) payload: Payload<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Payload<'a> {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(borrow, default)]
    pub(super) properties: Option<&'a serde_json::value::RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SessionReference {
    #[serde(rename = "sessionID", default)]
    pub(super) session: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StatusChanged {
    pub(super) status: Status,
}

#[derive(Debug, Deserialize)]
pub(super) struct MessageUpdated {
    pub(super) info: Info,
}

#[derive(Debug, Deserialize)]
pub(super) struct PartUpdated {
    pub(super) part: MessagePart,
}

/// A part, with the message it belongs to.
#[derive(Debug, Deserialize)]
pub(super) struct MessagePart {
    pub(super) id: String,
    #[serde(rename = "messageID")]
    pub(super) message: String,
    #[serde(flatten)]
    pub(super) part: Part,
}

#[derive(Debug, Deserialize)]
pub(super) struct PartDelta {
    #[serde(rename = "messageID")]
    pub(super) message: String,
    #[serde(rename = "partID")]
    pub(super) part: String,
    pub(super) field: String,
    pub(super) delta: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SessionError {
    #[serde(default)]
    pub(super) error: Option<Failure>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ShowToast {
    pub(super) title: String,
    pub(super) message: String,
    pub(super) variant: &'static str,
    pub(super) duration: u64,
}
