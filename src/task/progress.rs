//! Progress of a task: recounted from the host's transcript at each check, never added up from events, so
//! that an event that is lost or seen twice cannot make the figures wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::queue::Slot;
use super::time::Timestamp;

/// What a live task is doing, beside its state (T2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Without a slot, or parked without its credentials.
    Queued,
    /// With a slot; nothing of the run was seen yet.
    Starting,
    /// At work, with nothing to show at the moment: between two steps, or before the model's first words.
    Waiting,
    Streaming,
    Tool,
    /// On the answer of a person.
    Blocked,
    /// The host or the model failed, and it is tried again.
    Retrying,
    /// Nothing has happened for `stall_seconds`.
    Stalled,
}

impl Phase {
    const ALL: [Phase; 8] = [
        Phase::Queued,
        Phase::Starting,
        Phase::Waiting,
        Phase::Streaming,
        Phase::Tool,
        Phase::Blocked,
        Phase::Retrying,
        Phase::Stalled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Queued => "queued",
            Phase::Starting => "starting",
            Phase::Waiting => "waiting",
            Phase::Streaming => "streaming",
            Phase::Tool => "tool",
            Phase::Blocked => "blocked",
            Phase::Retrying => "retrying",
            Phase::Stalled => "stalled",
        }
    }
}

/// A phase that only a later version knows is read as `waiting`: one unknown word must not make the whole
/// task unreadable, in the store after a downgrade or in a client of another version.
impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Phase, D::Error> {
        let word = String::deserialize(from)?;
        let known = Phase::ALL.into_iter().find(|phase| phase.name() == word);
        Ok(known.unwrap_or(Phase::Waiting))
    }
}

/// What is known of a task's work so far. Its form in the database is in `store/stored.rs`, that of the API in
/// `view.rs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub tool_calls: u32,
    pub tool_calls_by_name: BTreeMap<String, u32>,
    /// The names of the last three calls, oldest first.
    pub last_tools: Vec<String>,
    /// When the agent was last seen doing something.
    pub last_update: Timestamp,
    pub phase: Phase,
    pub last_message: Option<String>,
    pub last_message_at: Option<Timestamp>,
    /// All tokens of all runs, as the host counts them.
    pub tokens: Option<u64>,
    pub cost: Option<f64>,
    /// What the phase is about: the question asked, the host's retry message.
    pub detail: Option<String>,
}

impl Progress {
    /// What it is when its task got this place, or is about to begin in it.
    pub fn placed(self, slot: Slot, at: Timestamp) -> Progress {
        let phase = match slot {
            Slot::Queued | Slot::Parked => Phase::Queued,
            Slot::Active | Slot::None => Phase::Starting,
        };
        // The figures stay: they count all runs of the task, not the one that begins.
        Progress { phase, last_update: at, detail: None, ..self }
    }

    pub fn new(at: Timestamp) -> Progress {
        Progress {
            tool_calls: 0,
            tool_calls_by_name: BTreeMap::new(),
            last_tools: Vec::new(),
            last_update: at,
            phase: Phase::Starting,
            last_message: None,
            last_message_at: None,
            tokens: None,
            cost: None,
            detail: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_one_name_and_one_of_another_version_is_read_as_waiting() {
        let read = |word: &str| serde_json::from_value::<Phase>(word.into()).unwrap();
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
            assert_eq!(read(phase.name()), phase);
        }
        assert_eq!(read("pondering"), Phase::Waiting);
    }
}
