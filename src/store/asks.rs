//! When children asked for something that a person or a policy has to answer.

use rusqlite::OptionalExtension;

use super::{Error, Store};
use crate::task::{TaskId, Timestamp};

impl Store {
    /// When this was first asked; now, if nobody has seen it before.
    pub fn asked(&self, task: &TaskId, ask: &str, now: Timestamp) -> Result<Timestamp, Error> {
        let known = self.read(|db| {
            let mut find = db.prepare_cached("SELECT since FROM ask WHERE id = ?1")?;
            Ok(find.query_row([ask], |row| row.get(0)).optional()?)
        })?;
        if let Some(since) = known {
            return Ok(Timestamp::from_millis(since));
        }
        let (task, ask) = (task.clone(), ask.to_owned());
        // When it is lost, the request only waits longer.
        drop(self.write_along(move |db, _| {
            let mut note = db.prepare_cached(
                "INSERT OR IGNORE INTO ask (id, task, since)
                 SELECT ?1, seq, ?3 FROM task WHERE id = ?2",
            )?;
            note.execute((&ask, task.as_str(), now.as_millis()))?;
            Ok(())
        }));
        Ok(now)
    }

    /// It was answered, or is asked no longer. Should its id ever come again, it is another request.
    pub fn no_longer_asked(&self, asks: Vec<String>) {
        // When it is lost, it goes with its task.
        drop(self.write_along(move |db, _| {
            let mut forget = db.prepare_cached("DELETE FROM ask WHERE id = ?1")?;
            for ask in &asks {
                forget.execute([ask])?;
            }
            Ok(())
        }));
    }
}
