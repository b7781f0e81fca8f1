//! `asyncagents_clear`: stops the caller's running tasks and takes all of its tasks off its list. Nothing is
//! deleted: the history and the API keep them.

use serde::Deserialize;
use serde_json::Value;

use super::{Refusal, counted, parse};
use crate::supervisor::{Caller, Supervisor};

pub(super) const DESCRIPTION: &str = "\
Stop all of your running background tasks and take every task off your list. The history keeps \
them.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {}

pub(super) async fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    arguments: Value,
    key: Option<String>,
) -> Result<String, Refusal> {
    let Arguments {} = parse(arguments)?;
    let cleared = supervisor.clear_once(caller, key).await?;
    Ok(match (cleared.cleared, cleared.cancelled) {
        (0, _) => "No background tasks to clear.".to_owned(),
        (cleared, 0) => format!("Cleared {}.", counted(cleared as u64)),
        (1, _) => "Cleared 1 task, which was cancelled.".to_owned(),
        (cleared, cancelled) => format!("Cleared {cleared} tasks, {cancelled} of them cancelled."),
    })
}
