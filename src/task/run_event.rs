//! What happened to a task over its runs, for people who look at it. Read from the rows that record it anyway; there is
//! no log beside them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Timestamp;
use super::lifecycle::RunEnd;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunEvent {
    pub at: Timestamp,
    /// 0 is the launch, every resume the next.
    pub run: u32,
    pub kind: RunEventKind,
    /// The beginning of a message, or the error of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// In the order in which they happen when they do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunEventKind {
    /// By a launch or a resume: it may have to wait for a slot.
    Queued,
    /// Its host has the prompt.
    Started,
    /// Its parent or a person said something to it.
    Message,
    /// It was asked for an answer that fits the schema.
    Correction,
    /// Nothing was seen of it for a while.
    Stalled,
    Completed,
    Failed,
    Cancelled,
    /// Its parent has the notice of the end.
    Told,
}

impl From<RunEnd> for RunEventKind {
    fn from(end: RunEnd) -> RunEventKind {
        match end {
            RunEnd::Completed => RunEventKind::Completed,
            RunEnd::Failed => RunEventKind::Failed,
            RunEnd::Cancelled => RunEventKind::Cancelled,
        }
    }
}
