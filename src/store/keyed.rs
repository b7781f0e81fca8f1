//! Idempotency keys of changes that take several transactions, or a host, and whose answer says what was changed:
//! cancels, clears, prunings, answers to permission requests. Each transaction notes what it changed under the key of
//! its call, so that a repeat after a crash finds what the first call has done, does the rest, and answers with both.
//!
//! Launches, resumes, messages and tool calls have columns of their own for their keys.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sql::Connection;
use super::subjects::KeyedChanges;
use super::{Error, sql};
use crate::task::Timestamp;

/// How long a key is known. Clients repeat a call within seconds.
const KNOWN_FOR: Duration = Duration::from_secs(86_400);

/// Parts that are counted; any other part is the id of a task or of a permission request.
pub(super) const CLEARED: &str = "cleared";
pub(super) const PRUNED: &str = "pruned";

/// What a call has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesSoFar(BTreeMap<String, u64>);

impl ChangesSoFar {
    /// Whether a task or a request is among it.
    pub fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// The tasks and requests.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|part| ![CLEARED, PRUNED].contains(part))
    }

    /// How many tasks were taken off a list.
    pub fn cleared(&self) -> u64 {
        self.count(CLEARED)
    }

    /// How many tasks were deleted from the history.
    pub fn pruned(&self) -> u64 {
        self.count(PRUNED)
    }

    fn count(&self, part: &str) -> u64 {
        self.0.get(part).copied().unwrap_or_default()
    }
}

impl KeyedChanges<'_> {
    /// What was changed under this key; nothing without one.
    pub fn so_far(&self, key: Option<&str>) -> Result<ChangesSoFar, Error> {
        let Some(key) = key else { return Ok(ChangesSoFar::default()) };
        self.store.read(|db| {
            let parts: Vec<(String, i64)> =
                db.query_all("SELECT part, n FROM keyed_change WHERE key = ?1", [key], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            Ok(ChangesSoFar(parts.into_iter().map(|(part, n)| (part, n as u64)).collect()))
        })
    }
}

/// Notes a change in the transaction that makes it, and forgets old keys. Without a key there is nothing to repeat.
pub(super) fn note(
    db: &Connection,
    key: Option<&str>,
    part: &str,
    n: usize,
    at: Timestamp,
) -> Result<(), sql::Error> {
    let Some(key) = key else { return Ok(()) };
    let oldest = at.as_millis().saturating_sub(KNOWN_FOR.as_millis() as i64);
    db.execute("DELETE FROM keyed_change WHERE at < ?1", [oldest])?;
    db.execute(
        "INSERT INTO keyed_change (key, part, n, at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (key, part) DO UPDATE SET n = n + excluded.n, at = excluded.at",
        (key, part, n as i64, at.as_millis()),
    )?;
    Ok(())
}
