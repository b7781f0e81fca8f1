//! Notifications for people (N5), as data: what they are told about, and by which ways.

use serde::Serialize;

use super::view::TaskView;
use super::{Status, Timestamp};
use crate::text;

/// How many characters of what an agent asks for are in a notification; `asyncagents approve` shows all of it.
const MOST_OF_REQUEST: usize = 2_000;
/// How many of a task's prompt are.
const MOST_OF_PROMPT: usize = 2_000;

/// A way to tell a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// A notification of the operating system.
    Desktop,
    /// A signed request to an address.
    Webhook,
    /// A command that gets the JSON.
    Command,
}

impl Channel {
    pub const ALL: [Channel; 3] = [Channel::Desktop, Channel::Webhook, Channel::Command];

    pub fn name(self) -> &'static str {
        match self {
            Channel::Desktop => "desktop",
            Channel::Webhook => "webhook",
            Channel::Command => "command",
        }
    }
}

/// What a notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertKind<'a> {
    End,
    /// An agent waits for an answer of a person.
    Permission {
        id: &'a str,
        what: &'a str,
    },
}

/// The JSON of a notification, the same for every channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alert {
    /// The same in every attempt: receivers recognise a repeat by it.
    pub id: String,
    /// As in the event stream: `task.completed`, `task.error`, `task.cancelled`; or `permission.requested`.
    pub event: String,
    pub at: Timestamp,
    /// With the beginning of a long result.
    pub task: TaskView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission: Option<AlertPermission>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlertPermission {
    /// For `asyncagents approve` and `deny`.
    pub id: String,
    pub what: String,
}

impl Alert {
    pub fn new(id: &str, kind: AlertKind<'_>, task: TaskView, at: Timestamp) -> Alert {
        let (event, permission) = match kind {
            // A resume that failed goes back to `completed`, and has an error.
            AlertKind::End if task.error.is_some() && task.status == Status::Completed => {
                ("task.error".to_owned(), None)
            }
            AlertKind::End => (format!("task.{}", task.status.name()), None),
            AlertKind::Permission { id, what } => {
                let what = text::head(what, MOST_OF_REQUEST).to_owned();
                let permission = AlertPermission { id: id.to_owned(), what };
                ("permission.requested".to_owned(), Some(permission))
            }
        };
        // A row for each channel has it: a long prompt would be stored as often, and nobody reads it there.
        let task = TaskView { prompt: text::clip(&task.prompt, MOST_OF_PROMPT), ..task };
        Alert { id: id.to_owned(), event, at, task, permission }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("our own types are JSON")
    }
}
