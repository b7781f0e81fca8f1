//! Intents: a launch is written down before anything of it exists elsewhere (T5).

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row};

use super::{Error, Store, Written, slots};
use crate::task::queue::{Limits, Manner};
use crate::task::{SessionId, Timestamp};

/// A launch that has begun. `launch` is what its owner needs to finish or undo it, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub nonce: String,
    pub host: String,
    pub parent_session: SessionId,
    pub created_at: Timestamp,
    pub launch: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intended {
    Yes,
    /// The parent has as many queued tasks as it may have; nothing was written.
    QueueFull,
}

impl Store {
    /// The cap counts tasks that wait, not launches under way: some more of those that are begun at
    /// the same time may come to wait.
    pub fn intend(
        &self,
        intent: Intent,
        model: Option<String>,
        manner: Manner,
        limits: Arc<Limits>,
    ) -> Written<Intended> {
        self.write(move |db, _| {
            let kind = (model.as_deref(), manner);
            if !slots::has_place(db, &intent.parent_session, kind, &limits)? {
                return Ok(Intended::QueueFull);
            }
            let mut insert =
                db.prepare_cached("INSERT OR REPLACE INTO intent VALUES (?1, ?2, ?3, ?4, ?5)")?;
            insert.execute((
                &intent.nonce,
                &intent.host,
                intent.parent_session.as_str(),
                intent.created_at.as_millis(),
                &intent.launch,
            ))?;
            Ok(Intended::Yes)
        })
    }

    /// The caller was told that it failed: what there may be of it is to be deleted, not adopted.
    pub fn abandon(&self, nonce: String) -> Written<()> {
        self.write(move |db, _| {
            let abandon = "UPDATE intent SET launch = json_set(launch, '$.abandoned', json('true'))
                           WHERE nonce = ?1";
            db.prepare_cached(abandon)?.execute([&nonce])?;
            Ok(())
        })
    }

    pub fn drop_intent(&self, nonce: String) -> Written<()> {
        self.write(move |db, _| {
            db.prepare_cached("DELETE FROM intent WHERE nonce = ?1")?.execute([&nonce])?;
            Ok(())
        })
    }

    /// Launches that were cut off, or are under way.
    pub fn intents(&self) -> Result<Vec<Intent>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT * FROM intent ORDER BY created_at")?;
            let rows = statement.query_map([], intent)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn intent(&self, nonce: &str) -> Result<Option<Intent>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT * FROM intent WHERE nonce = ?1")?;
            Ok(statement.query_row([nonce], intent).optional()?)
        })
    }
}

fn intent(row: &Row<'_>) -> rusqlite::Result<Intent> {
    Ok(Intent {
        nonce: row.get(0)?,
        host: row.get(1)?,
        parent_session: SessionId::new(row.get::<_, String>(2)?),
        created_at: Timestamp::from_millis(row.get(3)?),
        launch: row.get(4)?,
    })
}
