//! A write-ahead record of the processes that agents' commands run in (T20): written before a command starts,
//! removed when nothing it started is left. After a crash the next daemon kills what is still there. A process
//! is identified by pid, start time and boot id, because pids are reused.

use super::sql::{self, Row};
use super::subjects::Processes;
use super::{Error, PendingWrite};
use crate::task::{SessionId, Timestamp};

/// A command, by the guard process it was started through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedProcess {
    /// The key of the record.
    pub marker: String,
    pub session: SessionId,
    pub call: String,
    pub guard_pid: i32,
    pub guard_start: u64,
    pub boot_id: String,
    pub created_at: Timestamp,
}

impl Processes<'_> {
    /// To be awaited before the command starts, or a crash in between would leave an orphan that is not on record.
    pub fn record(&self, process: RecordedProcess) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute(
                "INSERT OR REPLACE INTO process VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                (
                    &process.marker,
                    process.session.as_str(),
                    &process.call,
                    process.guard_pid,
                    process.guard_start.cast_signed(),
                    &process.boot_id,
                    process.created_at.as_millis(),
                ),
            )?;
            Ok(())
        })
    }

    /// A record that comes back after a crash costs one look at the process table, so this goes along
    /// with the next commit.
    pub fn forget(&self, marker: String) -> PendingWrite<()> {
        self.store.write_deferrable(move |db, _| {
            db.execute("DELETE FROM process WHERE marker = ?1", [&marker])?;
            Ok(())
        })
    }

    pub fn all(&self) -> Result<Vec<RecordedProcess>, Error> {
        self.store.read(|db| {
            Ok(db.query_readable("SELECT * FROM process ORDER BY created_at", (), process)?)
        })
    }

    pub fn of(&self, session: &SessionId) -> Result<Vec<RecordedProcess>, Error> {
        self.store.read(|db| {
            Ok(db.query_readable(
                "SELECT * FROM process WHERE session = ?1",
                [session.as_str()],
                process,
            )?)
        })
    }
}

/// With the marker alone everything that the command started is found and killed, so nothing else has to be readable.
fn process(row: Row<'_>) -> Result<RecordedProcess, sql::Error> {
    Ok(RecordedProcess {
        marker: row.get(0)?,
        session: row.get(1)?,
        call: row.get(2).unwrap_or_default(),
        guard_pid: row.get(3).unwrap_or_default(),
        guard_start: row.get::<i64>(4).unwrap_or_default().cast_unsigned(),
        boot_id: row.get(5).unwrap_or_default(),
        created_at: row.get(6).unwrap_or(Timestamp::EPOCH),
    })
}
