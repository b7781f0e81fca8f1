//! Answers to permission requests, as they are recorded: what was asked, how it was answered, and by whom.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Timestamp;

/// The way by which an answer came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// `asyncagents approve` or `deny`.
    Cli,
    /// A button of the dashboard.
    Dashboard,
    /// The HTTP API, by a client that does not say what it is.
    #[default]
    Http,
    /// A form that an MCP client showed to its user.
    McpElicitation,
    /// The configuration, or the time that requests are parked.
    Policy,
}

/// Who answers, and by which door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answerer {
    pub door: Door,
    /// A parent, or the user of the shell; empty when the client did not say.
    pub by: String,
}

/// An answer that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answered {
    /// The id of the request.
    pub id: String,
    pub what: String,
    pub allowed: bool,
    pub door: Door,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    pub at: Timestamp,
}

impl Door {
    const ALL: [Door; 5] =
        [Door::Cli, Door::Dashboard, Door::Http, Door::McpElicitation, Door::Policy];

    pub fn name(self) -> &'static str {
        match self {
            Door::Cli => "cli",
            Door::Dashboard => "dashboard",
            Door::Http => "http",
            Door::McpElicitation => "mcp-elicitation",
            Door::Policy => "policy",
        }
    }

    /// A name that this version does not know was written by a later one.
    pub fn named(name: &str) -> Door {
        Door::ALL.into_iter().find(|door| door.name() == name).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_has_one_name_on_the_wire_and_in_the_store() {
        for door in Door::ALL {
            assert_eq!(serde_json::to_value(door).unwrap(), door.name());
            assert_eq!(Door::named(door.name()), door);
        }
        assert_eq!(Door::named("a door of tomorrow"), Door::Http);
    }
}
