//! Retention: ended tasks that are too old or too many are deleted, with their runs, notices and sessions (by
//! foreign keys with `ON DELETE CASCADE`, or here), and the file shrinks. History is deleted nowhere else.
//!
//! A task stays while something is owed: a notice to be delivered or read, an abort, a transcript. Deletion goes in
//! chunks, each a transaction of its own, so that launches do not wait behind it; dropped or killed half-way, it has
//! deleted some, and the next pruning goes on.

use std::time::Duration;

use tokio::sync::watch;

use super::subjects::History;
use super::{Error, keyed, search};
use crate::task::{MAILBOX, SHELL, Timestamp};

/// Batch size: tasks deleted in one change. That takes some 20 ms, and changes of others come in between.
const CHUNK: usize = 200;

/// How much of the history stays. A task goes when either limit leaves it out; without limits
/// none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How many ended tasks stay: those that were launched last.
    pub tasks: Option<u64>,
    /// Counted from the end of a task.
    pub age: Option<Duration>,
}

impl Retention {
    pub fn is_everything(&self) -> bool {
        *self == Retention::default()
    }
}

/// What both passes of a pruning share.
#[derive(Clone)]
struct Pass {
    /// Unread mail that is older does not keep its task.
    unread_since: i64,
    key: Option<String>,
    now: Timestamp,
}

impl History<'_> {
    /// Deletes, oldest first, the ended tasks that `keep` leaves out, and says how many. Dropped
    /// half-way, it has deleted some of them. What is in a mailbox and younger than `unread` keeps its
    /// task; without that, whatever is unread does. What is deleted is counted under `key`.
    pub async fn prune(
        self,
        keep: &Retention,
        unread: Option<Duration>,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let unread_since = unread.map_or(i64::MIN, |age| before(now, age));
        let pass = Pass { unread_since, key: key.map(str::to_owned), now };
        let mut pruned = 0;
        // Two passes, one per limit, each along the index of its column; together in one condition, neither index
        // would serve.
        if let Some(tasks) = keep.tasks {
            let first_kept = self.first_of_the_newest(tasks)?;
            pruned += self.prune_before("seq", first_kept, &pass).await?;
        }
        if let Some(age) = keep.age {
            pruned += self.prune_before("completed_at", before(now, age), &pass).await?;
        }
        if pruned > 0 {
            self.store.0.pruned.send_modify(|times| *times += 1);
        }
        // Also when nothing was pruned now: an earlier pruning may have been cut off before its vacuum.
        if let Err(error) = self.store.give_space_back().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "task store was not shrunk; the next pruning tries again");
        }
        Ok(pruned)
    }

    /// Signals that tasks were pruned, to owners of files that belong to tasks.
    pub fn pruned(&self) -> watch::Receiver<u64> {
        self.store.0.pruned.subscribe()
    }

    /// The number of the oldest task that stays. `OFFSET` counts from the old end, where few are too many, and not
    /// from the new end over all that stay: counter rows know how many there are.
    fn first_of_the_newest(&self, ended: u64) -> Result<i64, Error> {
        self.store.read(|db| {
            let ended = i64::try_from(ended).unwrap_or(i64::MAX);
            Ok(db.query_one(
                "SELECT coalesce(
                   (SELECT seq FROM task WHERE slot = 0 ORDER BY seq LIMIT 1 OFFSET max(0, -?1 +
                     (SELECT coalesce(sum(n), 0) FROM tally
                      WHERE status IN ('completed', 'error', 'cancelled')))),
                   (SELECT max(seq) + 1 FROM task), 0)",
                [ended],
                |row| row.get(0),
            )?)
        })
    }

    async fn prune_before(
        &self,
        column: &'static str,
        bound: i64,
        pass: &Pass,
    ) -> Result<u64, Error> {
        let mut pruned = 0;
        loop {
            let Pass { unread_since, key, now } = pass.clone();
            let chunk = self.store.write(move |db, _| {
                // Checked in the transaction that deletes: a notice that is owed meanwhile keeps its task. One in
                // a mailbox counts as delivered from the start, so for it `read_at` counts. Nothing reads the
                // mailbox of the shell, which would keep its tasks for ever.
                let gone: Vec<(i64, String)> = db.query_all(
                    &format!(
                        "DELETE FROM task WHERE seq IN (SELECT seq FROM task
                       WHERE slot = 0 AND {column} < ?1
                         AND NOT EXISTS (SELECT 1 FROM notice n
                           WHERE n.task = task.seq AND (n.delivered_at IS NULL
                             OR (n.parent_host = '{MAILBOX}' AND n.read_at IS NULL
                               AND n.parent_session <> '{SHELL}' AND n.created_at > ?2)))
                         AND NOT EXISTS (SELECT 1 FROM run r
                           WHERE r.task = task.seq AND (r.abort_owed = 1 OR r.transcript_owed = 1))
                       ORDER BY {column} LIMIT {CHUNK}) RETURNING seq, id"
                    ),
                    [bound, unread_since],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )?;
                // What no foreign key reaches: on the embedded host the task's id is that of its session.
                let mut session = db.prepare("DELETE FROM session WHERE id = ?1")?;
                let mut original = db.prepare("DELETE FROM quarantine WHERE task = ?1")?;
                for (seq, id) in &gone {
                    session.execute([id])?;
                    original.execute([seq])?;
                    search::forget(db, *seq)?;
                }
                keyed::note(db, key.as_deref(), keyed::PRUNED, gone.len(), now)?;
                Ok(gone.len())
            });
            let chunk = chunk.await?;
            pruned += chunk as u64;
            // A full chunk means that there may be more. Tasks that have to stay are not selected, so each
            // round makes progress and the loop ends.
            if chunk < CHUNK {
                return Ok(pruned);
            }
        }
    }
}

fn before(now: Timestamp, age: Duration) -> i64 {
    now.as_millis().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
pub(super) mod tests;
