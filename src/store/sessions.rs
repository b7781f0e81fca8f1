//! The sessions of the embedded host: what its agents said and did, saved message by message.

use rusqlite::{Connection, OptionalExtension};

use super::{Error, Store, Written, rows};
use crate::task::{SessionId, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub parent: Option<SessionId>,
    pub nonce: String,
    pub title: String,
    pub directory: String,
    pub agent: String,
    /// Tools that are never used here.
    pub deny: Vec<String>,
    /// Of the last prompt; empty when it named none.
    pub model: String,
    /// Something is to be gone on with after a restart.
    pub running: bool,
    pub created_at: Timestamp,
}

const SESSION: &str =
    "id, parent, nonce, title, directory, agent, deny, model, running, created_at";

impl Store {
    /// One session per nonce: asked again, it answers with the one there is.
    pub fn open_session(&self, session: Session) -> Written<SessionId> {
        self.write(move |db, _| {
            if let Some(known) = find(db, "nonce = ?1", &session.nonce)? {
                return Ok(known.id);
            }
            insert(db, &session)?;
            Ok(session.id)
        })
    }

    /// The same, with everything that was said in another session. The copies still name the
    /// session they were said in.
    pub fn copy_session(&self, session: Session, of: &SessionId) -> Written<SessionId> {
        let of = of.clone();
        self.write(move |db, _| {
            if let Some(known) = find(db, "nonce = ?1", &session.nonce)? {
                return Ok(known.id);
            }
            insert(db, &session)?;
            let mut copy = db.prepare_cached(
                "INSERT INTO message (session, id, body)
                 SELECT ?1, id, body FROM message WHERE session = ?2 ORDER BY seq",
            )?;
            copy.execute((session.id.as_str(), of.as_str()))?;
            Ok(session.id)
        })
    }

    pub fn session(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        self.read(|db| find(db, "id = ?1", id.as_str()))
    }

    pub fn session_by_nonce(&self, nonce: &str) -> Result<Option<Session>, Error> {
        self.read(|db| find(db, "nonce = ?1", nonce))
    }

    /// Sessions that were at work when the last daemon stopped, however it stopped.
    pub fn running_sessions(&self) -> Result<Vec<SessionId>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT id FROM session WHERE running = 1")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            Ok(rows.map(|id| id.map(SessionId::new)).collect::<Result<_, _>>()?)
        })
    }

    /// Saves what somebody says to the session and that it is to work on it. `false`: it was said
    /// before, and nothing changes.
    pub fn say(
        &self,
        session: &SessionId,
        message_id: String,
        body: String,
        model: String,
        work: bool,
    ) -> Written<bool> {
        let session = session.clone();
        self.write(move |db, _| {
            let mut insert = db.prepare_cached(
                "INSERT OR IGNORE INTO message (session, id, body) VALUES (?1, ?2, ?3)",
            )?;
            if insert.execute((session.as_str(), &message_id, &body))? == 0 {
                return Ok(false);
            }
            if work {
                db.prepare_cached("UPDATE session SET running = 1, model = ?2 WHERE id = ?1")?
                    .execute((session.as_str(), &model))?;
            }
            Ok(true)
        })
    }

    /// Saves a message, over an earlier state of it.
    pub fn save_message(&self, session: &SessionId, id: String, body: String) -> Written<()> {
        let session = session.clone();
        self.write(move |db, _| {
            let mut save = db.prepare_cached(
                "INSERT INTO message (session, id, body) VALUES (?1, ?2, ?3)
                 ON CONFLICT (session, id) DO UPDATE SET body = excluded.body",
            )?;
            save.execute((session.as_str(), &id, &body))?;
            Ok(())
        })
    }

    /// The bodies of all messages, oldest first.
    pub fn messages(&self, session: &SessionId) -> Result<Vec<String>, Error> {
        self.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT body FROM message WHERE session = ?1 ORDER BY seq")?;
            let rows = statement.query_map([session.as_str()], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The same as one JSON array.
    pub fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        self.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT body FROM message WHERE session = ?1 ORDER BY seq")?;
            let mut rows = statement.query([session.as_str()])?;
            let mut array = String::from("[");
            while let Some(row) = rows.next()? {
                if array.len() > 1 {
                    array.push(',');
                }
                array.push_str(row.get_ref(0)?.as_str().unwrap_or("null"));
            }
            array.push(']');
            Ok(array)
        })
    }

    pub fn has_message(&self, session: &SessionId, id: &str) -> Result<bool, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM message WHERE session = ?1 AND id = ?2)",
            )?;
            Ok(statement.query_row((session.as_str(), id), |row| row.get(0))?)
        })
    }

    /// There is nothing left to go on with.
    pub fn session_rests(&self, session: &SessionId) -> Written<()> {
        let session = session.clone();
        self.write(move |db, _| {
            db.prepare_cached("UPDATE session SET running = 0 WHERE id = ?1")?
                .execute([session.as_str()])?;
            Ok(())
        })
    }

    pub fn save_todos(&self, session: &SessionId, todos: String) -> Written<()> {
        let session = session.clone();
        self.write(move |db, _| {
            db.prepare_cached("UPDATE session SET todos = ?2 WHERE id = ?1")?
                .execute((session.as_str(), &todos))?;
            Ok(())
        })
    }

    /// The session's todos, as the JSON they were saved as.
    pub fn todos(&self, session: &SessionId) -> Result<String, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT todos FROM session WHERE id = ?1")?;
            let todos = statement.query_row([session.as_str()], |row| row.get(0)).optional()?;
            Ok(todos.unwrap_or_else(|| "[]".to_owned()))
        })
    }

    pub fn delete_session(&self, session: &SessionId) -> Written<()> {
        let session = session.clone();
        self.write(move |db, _| {
            db.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute([session.as_str()])?;
            Ok(())
        })
    }
}

fn insert(db: &Connection, session: &Session) -> Result<(), Error> {
    let mut insert = db.prepare_cached(&format!(
        "INSERT INTO session ({SESSION}, todos)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, '[]')"
    ))?;
    insert.execute((
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
    ))?;
    Ok(())
}

fn find(db: &Connection, condition: &str, value: &str) -> Result<Option<Session>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {SESSION} FROM session WHERE {condition}"))?;
    let mut found = statement.query([value])?;
    let Some(row) = found.next()? else { return Ok(None) };
    Ok(Some(Session {
        id: SessionId::new(row.get::<_, String>(0)?),
        parent: row.get::<_, Option<String>>(1)?.map(SessionId::new),
        nonce: row.get(2)?,
        title: row.get(3)?,
        directory: row.get(4)?,
        agent: row.get(5)?,
        deny: rows::json("deny", row.get_ref(6)?.as_str().unwrap_or_default())?,
        model: row.get(7)?,
        running: row.get(8)?,
        created_at: Timestamp::from_millis(row.get(9)?),
    }))
}
