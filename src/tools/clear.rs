//! `asyncagents_clear`: stops the caller's tasks and empties its list; the history keeps them.

use super::Refusal;
use crate::supervisor::{Caller, Supervisor};

pub(super) const DESCRIPTION: &str = "\
Stop all of your running background tasks and take every task off your list. The history keeps \
them.";

pub(super) async fn call(supervisor: &Supervisor, caller: &Caller) -> Result<String, Refusal> {
    let cleared = supervisor.clear(caller).await?;
    Ok(match (cleared.cleared, cleared.cancelled) {
        (0, _) => "No background tasks to clear.".to_owned(),
        (cleared, 0) => format!("Cleared {cleared} tasks."),
        (cleared, cancelled) => format!("Cleared {cleared} tasks, {cancelled} of them cancelled."),
    })
}
