//! Intents: the write-ahead record of a launch, made before its session is opened on a host (T5). It is removed in
//! the transaction that inserts the task. After a crash, an intent that is left says that there may be a session
//! without a task: it is looked up by the nonce, and adopted or deleted.

use std::sync::Arc;

use super::sql::{self, Row};
use super::subjects::Intents;
use super::{Error, PendingWrite, slots};
use crate::task::queue::{LaunchMode, Limits};
use crate::task::{SessionId, Timestamp};

/// A launch that has begun. `launch` is what the supervisor needs to finish or undo it, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The idempotency key of the launch; the session on the host carries it, too.
    pub nonce: String,
    pub host: String,
    pub parent_session: SessionId,
    pub created_at: Timestamp,
    pub launch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentOutcome {
    Yes,
    /// The parent has as many queued tasks as it may have; nothing was written.
    QueueFull,
}

impl Intents<'_> {
    /// Writes the intent, unless the parent's queue is full. The cap is soft: it counts queued tasks and not
    /// launches under way, so concurrent launches may exceed it by their number.
    pub fn intend(
        &self,
        intent: Intent,
        model: Option<String>,
        mode: LaunchMode,
        limits: Arc<Limits>,
    ) -> PendingWrite<IntentOutcome> {
        self.store.write(move |db, _| {
            let kind = (model.as_deref(), mode);
            if !slots::has_place(db, &intent.parent_session, kind, &limits)? {
                return Ok(IntentOutcome::QueueFull);
            }
            db.execute(
                "INSERT OR REPLACE INTO intent VALUES (?1, ?2, ?3, ?4, ?5)",
                (
                    &intent.nonce,
                    &intent.host,
                    intent.parent_session.as_str(),
                    intent.created_at.as_millis(),
                    &intent.launch,
                ),
            )?;
            Ok(IntentOutcome::Yes)
        })
    }

    /// The caller was told that the launch failed and may have launched it again: a session that exists all the
    /// same is to be deleted, not adopted.
    pub fn abandon(&self, nonce: String) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            let abandon = "UPDATE intent SET launch = json_set(launch, '$.abandoned', json('true'))
                           WHERE nonce = ?1";
            db.execute(abandon, [&nonce])?;
            Ok(())
        })
    }

    pub fn remove(&self, nonce: String) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute("DELETE FROM intent WHERE nonce = ?1", [&nonce])?;
            Ok(())
        })
    }

    /// Launches that were cut off, or are under way.
    pub fn all(&self) -> Result<Vec<Intent>, Error> {
        self.store.read(|db| {
            Ok(db.query_readable("SELECT * FROM intent ORDER BY created_at", (), intent)?)
        })
    }

    pub fn get(&self, nonce: &str) -> Result<Option<Intent>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt("SELECT * FROM intent WHERE nonce = ?1", [nonce], intent)?)
        })
    }
}

fn intent(row: Row<'_>) -> Result<Intent, sql::Error> {
    Ok(Intent {
        nonce: row.get(0)?,
        host: row.get(1)?,
        parent_session: row.get(2)?,
        created_at: row.get(3)?,
        launch: row.get(4)?,
    })
}
