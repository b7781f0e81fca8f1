//! Sessions of the embedded host: a log of messages per session, from which a run goes on after a restart.
//!
//! Opening is idempotent by a nonce, saying by the id of the message, so both can be retried after a crash.
//! States of tool calls change often and messages may be megabytes: the newest state is kept in a table of its
//! own (`call`), over the one in the message's body, and merged when the message is read. `running` and the
//! counter `said` close the race between a run that ends and a message that arrives: see `rest`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::sql::Connection;
use super::subjects::Sessions;
use super::{Error, PendingWrite, rows};
use crate::task::{SessionId, Timestamp};

/// A conversation with an agent of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub parent: Option<SessionId>,
    /// The idempotency key of its creation.
    pub nonce: String,
    pub title: String,
    pub directory: String,
    pub agent: String,
    /// Tools that are never used here.
    pub deny: Vec<String>,
    /// Of the last prompt; empty when it named none.
    pub model: String,
    /// A run is under way, and is to be continued after a restart.
    pub running: bool,
    /// A version: how many messages there were that are to be answered.
    pub said: i64,
    pub created_at: Timestamp,
    /// The providers whose credentials came with a call, and when. The credentials are not stored.
    pub handed: BTreeMap<String, Timestamp>,
}

const SESSION: &str = "id, parent, nonce, title, directory, agent, deny, model, running, created_at, said, \
     handed";

/// What was said in a session after some point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// As JSON, oldest first.
    pub bodies: Vec<String>,
    /// The cursor to read on from; 0 before the first message.
    pub last: i64,
}

impl Sessions<'_> {
    /// Idempotent, one session per nonce: asked again, it answers with the one there is.
    pub fn open(&self, session: Session) -> PendingWrite<SessionId> {
        self.store.write(move |db, _| {
            if let Some(known) = find(db, "nonce = ?1", &session.nonce)? {
                return Ok(known.id);
            }
            insert(db, &session)?;
            Ok(session.id)
        })
    }

    /// The same with a copy of another session's messages, for a fork. The bodies still name the session they
    /// were said in.
    pub fn copy(&self, session: Session, of: &SessionId) -> PendingWrite<SessionId> {
        let of = of.clone();
        self.store.write(move |db, _| {
            if let Some(known) = find(db, "nonce = ?1", &session.nonce)? {
                return Ok(known.id);
            }
            insert(db, &session)?;
            let mut copy =
                db.prepare("INSERT INTO message (session, id, body) VALUES (?1, ?2, ?3)")?;
            for_each_message(db, &of, 0, |_, id, body| {
                copy.execute((session.id.as_str(), id, body))?;
                Ok(())
            })?;
            Ok(session.id)
        })
    }

    pub fn get(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        self.store.read(|db| find(db, "id = ?1", id.as_str()))
    }

    pub fn by_nonce(&self, nonce: &str) -> Result<Option<Session>, Error> {
        self.store.read(|db| find(db, "nonce = ?1", nonce))
    }

    /// Sessions that were at work when the last daemon stopped, however it stopped.
    pub fn running(&self) -> Result<Vec<SessionId>, Error> {
        self.store.read(|db| {
            Ok(db
                .query_readable("SELECT id FROM session WHERE running = 1", (), |row| row.get(0))?)
        })
    }

    /// Saves a message to the session, and, with `work`, that a run is to answer it, in one transaction: after a
    /// crash the run is continued. Idempotent by the id of the message. `false`: it was there before, and nothing
    /// changes.
    pub fn say(
        &self,
        session: &SessionId,
        message_id: String,
        body: String,
        model: String,
        work: bool,
    ) -> PendingWrite<bool> {
        let session = session.clone();
        self.store.write(move |db, _| {
            // The unique key (session, id) is what makes a retry harmless.
            if db.execute(
                "INSERT OR IGNORE INTO message (session, id, body) VALUES (?1, ?2, ?3)",
                (session.as_str(), &message_id, &body),
            )? == 0
            {
                return Ok(false);
            }
            if work {
                db.execute(
                    "UPDATE session SET running = 1, model = ?2, said = said + 1 WHERE id = ?1",
                    (session.as_str(), &model),
                )?;
            }
            Ok(true)
        })
    }

    /// Saves a message, over an earlier state of it (upsert).
    pub fn save_message(&self, session: &SessionId, id: String, body: String) -> PendingWrite<()> {
        let session = session.clone();
        self.store.write(move |db, _| {
            let seq: i64 = db.query_one(
                "INSERT INTO message (session, id, body) VALUES (?1, ?2, ?3)
                 ON CONFLICT (session, id) DO UPDATE SET body = excluded.body RETURNING seq",
                (session.as_str(), &id, &body),
                |row| row.get(0),
            )?;
            // The new body has the newest state of its calls; older ones must not be merged over it.
            db.execute("DELETE FROM call WHERE message = ?1", [seq])?;
            Ok(())
        })
    }

    /// Saves the state of one call of a message that is there.
    pub fn save_call(
        &self,
        session: &SessionId,
        message: String,
        part: usize,
        state: String,
    ) -> PendingWrite<()> {
        let session = session.clone();
        self.store.write(move |db, _| {
            db.execute(
                "INSERT OR REPLACE INTO call (message, part, state)
                 SELECT seq, ?3, ?4 FROM message WHERE session = ?1 AND id = ?2",
                (session.as_str(), &message, part as i64, &state),
            )?;
            Ok(())
        })
    }

    /// The messages after this cursor; after 0 all of them.
    pub fn messages(&self, session: &SessionId, after: i64) -> Result<Messages, Error> {
        self.store.read(|db| {
            let mut messages = Messages { bodies: Vec::new(), last: after };
            for_each_message(db, session, after, |seq, _, body| {
                messages.last = seq;
                messages.bodies.push(body);
                Ok(())
            })?;
            Ok(messages)
        })
    }

    /// Everything as one JSON array.
    pub fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        self.store.read(|db| {
            let mut array = String::from("[");
            for_each_message(db, session, 0, |_, _, body| {
                if array.len() > 1 {
                    array.push(',');
                }
                array.push_str(&body);
                Ok(())
            })?;
            array.push(']');
            Ok(array)
        })
    }

    pub fn has_message(&self, session: &SessionId, id: &str) -> Result<bool, Error> {
        self.store.read(|db| {
            Ok(db.query_one(
                "SELECT EXISTS (SELECT 1 FROM message WHERE session = ?1 AND id = ?2)",
                (session.as_str(), id),
                |row| row.get(0),
            )?)
        })
    }

    /// Marks the session as idle, if nothing was said since its run last looked (compare-and-set on `said`).
    /// `false`: there is a new message, and the run goes on. Without the condition, a message that arrives while
    /// the run ends would be saved and never answered.
    pub fn rest(&self, session: &SessionId, said: i64) -> PendingWrite<bool> {
        let session = session.clone();
        self.store.write(move |db, _| {
            Ok(db.execute(
                "UPDATE session SET running = 0 WHERE id = ?1 AND said = ?2",
                (session.as_str(), said),
            )? > 0)
        })
    }

    /// Records which providers' credentials came with a call for this session.
    pub fn note_handed(
        &self,
        session: &SessionId,
        handed: &BTreeMap<String, Timestamp>,
    ) -> PendingWrite<()> {
        let (session, handed) = (session.clone(), handed_text(handed));
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE session SET handed = ?2 WHERE id = ?1",
                (session.as_str(), &handed),
            )?;
            Ok(())
        })
    }

    pub fn save_todos(&self, session: &SessionId, todos: String) -> PendingWrite<()> {
        let session = session.clone();
        self.store.write(move |db, _| {
            db.execute("UPDATE session SET todos = ?2 WHERE id = ?1", (session.as_str(), &todos))?;
            Ok(())
        })
    }

    /// The session's todos, as the JSON they were saved as.
    pub fn todos(&self, session: &SessionId) -> Result<String, Error> {
        self.store.read(|db| {
            let todos = db.query_opt(
                "SELECT todos FROM session WHERE id = ?1",
                [session.as_str()],
                |row| row.get(0),
            )?;
            Ok(todos.unwrap_or_else(|| "[]".to_owned()))
        })
    }

    pub fn delete(&self, session: &SessionId) -> PendingWrite<()> {
        let session = session.clone();
        self.store.write(move |db, _| {
            db.execute("DELETE FROM session WHERE id = ?1", [session.as_str()])?;
            Ok(())
        })
    }
}

fn handed_text(handed: &BTreeMap<String, Timestamp>) -> String {
    serde_json::to_string(handed).unwrap_or_else(|_| "{}".into())
}

fn insert(db: &Connection, session: &Session) -> Result<(), Error> {
    db.execute(
        &format!(
            "INSERT INTO session ({SESSION}, todos)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, '[]')"
        ),
        (
            session.id.as_str(),
            session.parent.as_ref().map(SessionId::as_str),
            &session.nonce,
            &session.title,
            &session.directory,
            &session.agent,
            serde_json::to_string(&session.deny).unwrap_or_else(|_| "[]".into()),
            &session.model,
            session.running,
            session.created_at.as_millis(),
            session.said,
            handed_text(&session.handed),
        ),
    )?;
    Ok(())
}

/// A message as it is stored. Its parts are not parsed (`RawValue`): only those with a newer state are touched.
#[derive(Serialize, Deserialize)]
struct Body {
    info: Box<RawValue>,
    parts: Vec<Box<RawValue>>,
}

/// Visits number, id and body of each message after the cursor, with the newest state of its calls merged in. One at
/// a time, because bodies may be megabytes each.
fn for_each_message(
    db: &Connection,
    session: &SessionId,
    after: i64,
    mut each: impl FnMut(i64, &str, String) -> Result<(), Error>,
) -> Result<(), Error> {
    // Along the index `message_session`, which is in this order already: SQLite's sorter would copy the bodies.
    let mut messages = db.prepare(
        "SELECT seq, id, body FROM message WHERE session = ?1 AND seq > ?2 ORDER BY seq",
    )?;
    let mut calls = db.prepare("SELECT part, state FROM call WHERE message = ?1 ORDER BY part")?;
    let mut found = messages.query((session.as_str(), after))?;
    while let Some(row) = found.next()? {
        let seq: i64 = row.get(0)?;
        let states: Vec<(usize, String)> =
            calls.query_all([seq], |row| Ok((row.get::<i64>(0)? as usize, row.get(1)?)))?;
        let body: String = row.get(2)?;
        let body = if states.is_empty() { body } else { with_states(&body, states)? };
        each(seq, row.get::<&str>(1).unwrap_or_default(), body)?;
    }
    Ok(())
}

/// Replaces the state of these parts. A state of a part that does not exist is ignored.
fn with_states(body: &str, states: Vec<(usize, String)>) -> Result<String, Error> {
    let unreadable = |_| Error::Unreadable { column: "body" };
    let mut body: Body = serde_json::from_str(body).map_err(unreadable)?;
    for (at, state) in states {
        let Some(part) = body.parts.get_mut(at) else { continue };
        let mut fields: serde_json::Map<String, serde_json::Value> =
            rows::json("body", part.get())?;
        fields.insert("state".to_owned(), rows::json("state", &state)?);
        *part = serde_json::value::to_raw_value(&fields).map_err(unreadable)?;
    }
    serde_json::to_string(&body).map_err(unreadable)
}

fn find(db: &Connection, condition: &str, value: &str) -> Result<Option<Session>, Error> {
    let mut statement = db.prepare(&format!("SELECT {SESSION} FROM session WHERE {condition}"))?;
    let mut found = statement.query([value])?;
    let Some(row) = found.next()? else { return Ok(None) };
    Ok(Some(Session {
        id: row.get(0)?,
        parent: row.get(1)?,
        nonce: row.get(2)?,
        title: row.get(3)?,
        directory: row.get(4)?,
        agent: row.get(5)?,
        deny: rows::json("deny", row.get::<&str>(6).unwrap_or_default())?,
        model: row.get(7)?,
        running: row.get(8)?,
        created_at: row.get(9)?,
        said: row.get(10)?,
        handed: rows::json("handed", row.get::<&str>(11).unwrap_or_default())?,
    }))
}
