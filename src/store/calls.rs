//! Deferred tool calls: a row for each call that waits in the daemon while its caller does something else. The row
//! is inserted when the call begins to wait, under the idempotency key of the call, so that a client that repeats
//! the call after a crash gets the same one.
//!
//! A row is open until nothing is left to be done for it: it has an outcome, or was cancelled and what it launched is
//! stopped. That the client has the answer is marked in the transaction that marks its notices as read, so that an
//! answer whose notices were read without it is known to have been told by other means.

use std::collections::BTreeSet;

use super::sql::{self, Connection, Row};
use super::subjects::Calls;
use super::{Error, PendingWrite, outbox};
use crate::task::{Receipt, SessionId, Timestamp};

/// A call that begins to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCall {
    pub id: String,
    pub parent: SessionId,
    pub tool: String,
    pub key: String,
    /// What is needed to carry it on, as JSON.
    pub request: String,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    pub id: String,
    pub parent: SessionId,
    pub tool: String,
    pub key: String,
    pub request: String,
    pub created_at: Timestamp,
    /// The permission requests that the client's user did not want to answer.
    pub declined: Vec<String>,
    pub cancelled: bool,
    /// As JSON.
    pub outcome: Option<String>,
    pub settled_at: Option<Timestamp>,
    pub received_at: Option<Timestamp>,
}

const COLUMNS: &str = "id, parent, tool, key, request, created_at, declined, cancelled, outcome, \
    settled_at, received_at";

impl Calls<'_> {
    /// Inserts the call, unless there is one with its key, which is returned then.
    pub fn begin(&self, new: NewCall) -> PendingWrite<StoredCall> {
        self.store.write(move |db, _| {
            db.execute(
                "INSERT OR IGNORE INTO tool_call (id, parent, tool, key, request, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (
                    &new.id,
                    new.parent.as_str(),
                    &new.tool,
                    &new.key,
                    &new.request,
                    new.created_at.as_millis(),
                ),
            )?;
            // Whichever was first: the insert is ignored when the key is taken.
            let by_key = format!("SELECT {COLUMNS} FROM tool_call WHERE key = ?1");
            Ok(db.query_one(&by_key, [&new.key], call)?)
        })
    }

    pub fn get(&self, id: &str) -> Result<Option<StoredCall>, Error> {
        let by_id = format!("SELECT {COLUMNS} FROM tool_call WHERE id = ?1");
        self.store.read(|db| Ok(db.query_opt(&by_id, [id], call)?))
    }

    pub fn by_key(&self, key: &str) -> Result<Option<StoredCall>, Error> {
        let by_key = format!("SELECT {COLUMNS} FROM tool_call WHERE key = ?1");
        self.store.read(|db| Ok(db.query_opt(&by_key, [key], call)?))
    }

    /// Those that something is left to be done for, oldest first.
    pub fn open(&self) -> Result<Vec<StoredCall>, Error> {
        // `INDEXED BY` the partial index of open calls: with another plan the statement fails, instead of
        // reading a week of answers when the daemon starts.
        let open = format!(
            "SELECT {COLUMNS} FROM tool_call INDEXED BY tool_call_open
             WHERE settled_at IS NULL ORDER BY created_at, id"
        );
        self.store.read(|db| Ok(db.query_readable(&open, (), call)?))
    }

    /// Writes the outcome; one that the client has received is not changed any more.
    pub fn settle(&self, id: String, outcome: String, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            // Cancelled in the meantime wins: the client was told so. And a composition that comes late
            // must not replace the answer that the client has acknowledged.
            db.execute(
                "UPDATE tool_call SET outcome = ?2, settled_at = ?3
                 WHERE id = ?1 AND cancelled = 0 AND received_at IS NULL",
                (&id, &outcome, at.as_millis()),
            )?;
            Ok(())
        })
    }

    /// `false` when it has its outcome or was cancelled before.
    pub fn cancel(&self, id: String) -> PendingWrite<bool> {
        self.store.write(move |db, _| {
            let cancel = "UPDATE tool_call SET cancelled = 1
                          WHERE id = ?1 AND settled_at IS NULL AND cancelled = 0";
            Ok(db.execute(cancel, [&id])? > 0)
        })
    }

    /// What a cancelled call launched has been stopped.
    pub fn cancelled(&self, id: String, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE tool_call SET settled_at = ?2 WHERE id = ?1 AND cancelled = 1",
                (&id, at.as_millis()),
            )?;
            Ok(())
        })
    }

    /// Adds to what the client's user did not want to answer.
    pub fn decline(&self, id: String, asks: Vec<String>) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            // Read in the same transaction: two forms may be closed at the same moment.
            let by_id = format!("SELECT {COLUMNS} FROM tool_call WHERE id = ?1");
            let Some(known) = db.query_opt(&by_id, [&id], call)? else { return Ok(()) };
            let all: BTreeSet<String> = known.declined.into_iter().chain(asks).collect();
            let asks = serde_json::to_string(&all).unwrap_or_default();
            db.execute("UPDATE tool_call SET declined = ?2 WHERE id = ?1", (&id, &asks))?;
            Ok(())
        })
    }

    /// The client has these answers, and with them the notices of the receipt.
    pub fn received(&self, ids: Vec<String>, receipt: Receipt, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            // One transaction: notices that are read while their answer is not received mean that they were
            // told by other means. With a crash between two transactions, the answer would be composed anew
            // without them.
            outbox::mark_read(db, &receipt, at)?;
            let mut mark = db.prepare(
                "UPDATE tool_call SET received_at = ?2
                 WHERE id = ?1 AND received_at IS NULL AND outcome IS NOT NULL",
            )?;
            for id in &ids {
                mark.execute((id, at.as_millis()))?;
            }
            Ok(())
        })
    }

    /// Deletes what was settled before this, and of each parent all but the newest so many.
    pub fn prune(&self, before: Timestamp, most_per_parent: i64) -> PendingWrite<usize> {
        self.store.write(move |db, _| prune(db, before, most_per_parent))
    }
}

fn prune(db: &Connection, before: Timestamp, most_per_parent: i64) -> Result<usize, Error> {
    Ok(db.execute(
        // Open calls have no `settled_at` and are kept. The condition is that of the partial index
        // `tool_call_settled`, without which SQLite does not use it.
        "DELETE FROM tool_call WHERE id IN (
           SELECT id FROM (
             SELECT id, settled_at,
               row_number() OVER (PARTITION BY parent ORDER BY settled_at DESC, id) AS nth
             FROM tool_call WHERE settled_at IS NOT NULL)
           WHERE settled_at < ?1 OR nth > ?2)",
        (before.as_millis(), most_per_parent),
    )?)
}

fn call(row: Row<'_>) -> Result<StoredCall, sql::Error> {
    let declined: String = row.get(6)?;
    Ok(StoredCall {
        id: row.get(0)?,
        parent: row.get(1)?,
        tool: row.get(2)?,
        key: row.get(3)?,
        request: row.get(4)?,
        created_at: row.get(5)?,
        // A list that cannot be read costs a question that is asked again.
        declined: serde_json::from_str(&declined).unwrap_or_default(),
        cancelled: row.get(7)?,
        outcome: row.get(8)?,
        settled_at: row.get(9)?,
        received_at: row.get(10)?,
    })
}
