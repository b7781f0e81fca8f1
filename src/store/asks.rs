//! First-seen times of permission requests and questions of children, and how they were answered. The times are
//! persisted so that the time for which a request is parked goes on across restarts. Rows go with their task.

use super::sql::{self, Connection, Row};
use super::subjects::Asks;
use super::{Error, PendingWrite, alerts, keyed, rows};
use crate::task::alert::AlertKind;
use crate::task::{Answered, Door, TaskId, Timestamp};

impl Asks<'_> {
    /// When this was first seen; `None` if it is new.
    pub fn since(&self, ask: &str) -> Result<Option<Timestamp>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt("SELECT since FROM ask WHERE id = ?1", [ask], |row| row.get(0))?)
        })
    }

    /// Records when a request was first seen.
    pub fn first_seen(&self, task: &TaskId, ask: &str, at: Timestamp) {
        let (task, ask) = (task.clone(), ask.to_owned());
        // Lost in a crash, it costs the request a longer wait and nothing else: no fsync of its own.
        drop(self.store.write_deferrable(move |db, _| insert(db, &task, &ask, at).map(drop)));
    }

    /// The same, and people are owed a notification of what it is for.
    pub fn first_seen_by_people(
        &self,
        task: &TaskId,
        ask: &str,
        what: &str,
        at: Timestamp,
    ) -> PendingWrite<()> {
        let (task, ask, what) = (task.clone(), ask.to_owned(), what.to_owned());
        self.store.write(move |db, events| {
            if insert(db, &task, &ask, at)? == 0 {
                return Ok(());
            }
            if let Some((_, task)) = rows::find_task(db, "t.id = ?1", task.as_str())? {
                let kind = AlertKind::Permission { id: &ask, what: &what };
                alerts::owe(db, events, &ask, kind, &task, at)?;
            }
            Ok(())
        })
    }

    /// Records an answer that the host has taken, under the idempotency key of the call that gave it.
    pub fn answered(
        &self,
        task: &TaskId,
        answered: Answered,
        key: Option<String>,
    ) -> PendingWrite<()> {
        let task = task.clone();
        self.store.write(move |db, _| {
            // Selected from the task, so that an answer to a task that was pruned meanwhile writes nothing
            // instead of failing: the host has taken it already.
            let Answered { id, what, allowed, door, by, at } = &answered;
            db.execute(
                "INSERT INTO permission_answer
                   (task, ask, what, allowed, door, answered_by, answered_at)
                 SELECT seq, ?2, ?3, ?4, ?5, ?6, ?7 FROM task WHERE id = ?1",
                (task.as_str(), id, what, *allowed, door.name(), by, at.as_millis()),
            )?;
            keyed::note(db, key.as_deref(), id, 1, *at)?;
            Ok(())
        })
    }

    /// The answers that a task was given, oldest first.
    pub fn answers(&self, task: &TaskId) -> Result<Vec<Answered>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT a.ask, a.what, a.allowed, a.door, a.answered_by, a.answered_at
                 FROM permission_answer a JOIN task t ON t.seq = a.task
                 WHERE t.id = ?1 ORDER BY a.seq",
                [task.as_str()],
                answered,
            )?)
        })
    }

    /// How this request was answered, if it was.
    pub fn answer_to(&self, ask: &str) -> Result<Option<Answered>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt(
                "SELECT ask, what, allowed, door, answered_by, answered_at
                 FROM permission_answer WHERE ask = ?1 ORDER BY seq DESC LIMIT 1",
                [ask],
                answered,
            )?)
        })
    }

    /// What was answered under this idempotency key, and of which task.
    pub fn answered_under(&self, key: &str) -> Result<Vec<(TaskId, Answered)>, Error> {
        self.store.read(|db| {
            // The newest, should a request of the same id have been answered before.
            Ok(db.query_all(
                "SELECT a.ask, a.what, a.allowed, a.door, a.answered_by, a.answered_at, t.id
                 FROM keyed_change k
                 JOIN permission_answer a
                   ON a.seq = (SELECT max(seq) FROM permission_answer WHERE ask = k.part)
                 JOIN task t ON t.seq = a.task
                 WHERE k.key = ?1 ORDER BY a.seq",
                [key],
                |row| Ok((TaskId::new(row.get::<String>(6)?), answered(row)?)),
            )?)
        })
    }

    /// Removes requests that were answered or withdrawn. Should an id come again, it is a new request.
    pub fn forget(&self, asks: Vec<String>) {
        // Lost in a crash, the row goes with its task.
        drop(self.store.write_deferrable(move |db, _| {
            let mut forget = db.prepare("DELETE FROM ask WHERE id = ?1")?;
            for ask in &asks {
                forget.execute([ask])?;
            }
            Ok(())
        }));
    }
}

fn insert(db: &Connection, task: &TaskId, ask: &str, at: Timestamp) -> Result<usize, Error> {
    Ok(db.execute(
        "INSERT OR IGNORE INTO ask (id, task, since) SELECT ?1, seq, ?3 FROM task WHERE id = ?2",
        (ask, task.as_str(), at.as_millis()),
    )?)
}

fn answered(row: Row<'_>) -> Result<Answered, sql::Error> {
    let door: String = row.get(3)?;
    Ok(Answered {
        id: row.get(0)?,
        what: row.get(1)?,
        allowed: row.get(2)?,
        door: Door::named(&door),
        by: row.get(4)?,
        at: row.get(5)?,
    })
}
