//! The intent of a launch: what a daemon needs to finish or undo a launch that an earlier one began, as JSON in a row.
//! The JSON has types of its own, because files of users hold what older versions wrote.

use serde::{Deserialize, Serialize};

use super::Caller;
use super::fork::Inherits;
use crate::host::{NewSession, Place};
use crate::store::StoredBudget;
use crate::task::launch::TaskSpec;
use crate::task::{Budget, LaunchMode, Order, Schema, TaskId, Timestamp};

/// Tools a child never has: ours, by any name, and the host's own ways to spawn and to ask (T12).
const DENIED: [&str; 6] =
    ["asyncagents_*", "superagents_*", "background_*", "Task", "task", "question"];

/// A launch as it is serialised in its intent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LaunchIntent {
    pub(super) caller: Caller,
    /// As older versions wrote it.
    #[serde(rename = "order", with = "StoredSpec")]
    pub(super) wanted: TaskSpec,
    pub(super) host: String,
    pub(super) depth: u32,
    pub(super) at: Timestamp,
    #[serde(default)]
    pub(super) inherits: Option<Inherits>,
    /// The task that it repeats.
    #[serde(default)]
    pub(super) retry_of: Option<TaskId>,
    /// The caller was told that it failed: its session, if there is one, is deleted and not adopted.
    #[serde(default)]
    pub(super) abandoned: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TaskSpec")]
struct StoredSpec {
    #[serde(flatten, with = "StoredOrder")]
    order: Order,
    batch: Option<String>,
    host: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Order")]
struct StoredOrder {
    description: String,
    prompt: String,
    agent: String,
    model: Option<String>,
    #[serde(with = "StoredBudget")]
    budget: Budget,
    /// Under the name that older versions gave it.
    #[serde(rename = "manner", default)]
    mode: LaunchMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Schema>,
}

impl LaunchIntent {
    /// `parent` is where the caller's conversation is.
    pub(super) fn session(&self, nonce: &str, parent: Place) -> NewSession {
        let LaunchIntent { caller, wanted, host, inherits, .. } = self;
        let order = &wanted.order;
        NewSession {
            parent: (caller.host == *host).then_some(parent),
            title: title(order, inherits.is_some()),
            nonce: nonce.to_owned(),
            directory: caller.directory.clone(),
            agent: order.agent.clone(),
            deny: DENIED.map(str::to_owned).to_vec(),
            handed: caller.handed.clone(),
        }
    }

    /// A native fork gets its nonce after it was made. One that was cut off in between carries none and looks
    /// like a fork the user made, so it is left alone and reported.
    pub(super) fn warn_of_a_copy(&self) {
        if let Some(Inherits::CopyOf(of)) = &self.inherits {
            tracing::warn!(
                session = %of,
                "launch interrupted while forking; an unused fork of this session may be left"
            );
        }
    }
}

fn title(order: &Order, forked: bool) -> String {
    let Order { description, mode, .. } = order;
    match (mode, forked) {
        (LaunchMode::Background, false) => format!("Background: {description}"),
        (LaunchMode::Background, true) => format!("Background (forked): {description}"),
        (LaunchMode::Blocking, _) => format!("Task: {description}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::host::ClientCredentials;
    use crate::task::SessionId;

    #[test]
    fn an_intent_has_the_form_that_older_versions_wrote_and_read() {
        let budget = Budget { tokens: Some(9), ..Budget::default() };
        let order = Order {
            description: "look".to_owned(),
            prompt: "look around".to_owned(),
            agent: "explore".to_owned(),
            model: None,
            budget,
            mode: LaunchMode::Blocking,
            schema: None,
        };
        let caller = Caller {
            session: SessionId::new("ses_2"),
            message: String::new(),
            agent: "build".to_owned(),
            directory: "/project".to_owned(),
            host: "scripted".to_owned(),
            instance: None,
            development: false,
            lone_batches: false,
            heir_of: String::new(),
            anonymous: false,
            longest_wait: None,
            handed: ClientCredentials::default(),
        };
        let launch = LaunchIntent {
            caller,
            wanted: TaskSpec { order, batch: Some("b".to_owned()), host: None },
            host: "scripted".to_owned(),
            depth: 1,
            at: Timestamp::from_millis(5),
            inherits: Some(Inherits::CopyOf(SessionId::new("ses_1"))),
            retry_of: Some(SessionId::new("ses_0")),
            abandoned: false,
        };
        let mut written = serde_json::to_value(&launch).unwrap();
        let order = json!({
            "description": "look", "prompt": "look around", "agent": "explore", "model": null,
            "budget": {"tokens": 9}, "manner": "Blocking", "batch": "b", "host": null,
        });
        assert_eq!(written["order"], order);
        let read: LaunchIntent = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        // Fields that came later are missing in what the oldest versions wrote.
        for late in ["inherits", "retry_of", "abandoned"] {
            written.as_object_mut().unwrap().remove(late);
        }
        written["order"].as_object_mut().unwrap().remove("manner");
        let read: LaunchIntent = serde_json::from_value(written).unwrap();
        assert_eq!((read.wanted.order.mode, read.abandoned), (LaunchMode::Background, false));
        assert_eq!(serde_json::to_value(read.retry_of).unwrap(), Value::Null);
    }
}
