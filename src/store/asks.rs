//! When children asked for something that a person or a policy has to answer.

use super::Error;
use super::subjects::Asks;
use crate::task::{TaskId, Timestamp};

impl Asks<'_> {
    /// When this was first asked; now, if nobody has seen it before.
    pub fn since(&self, task: &TaskId, ask: &str, now: Timestamp) -> Result<Timestamp, Error> {
        let known = self.store.read(|db| {
            Ok(db.query_opt("SELECT since FROM ask WHERE id = ?1", [ask], |row| row.get(0))?)
        })?;
        if let Some(since) = known {
            return Ok(Timestamp::from_millis(since));
        }
        let (task, ask) = (task.clone(), ask.to_owned());
        // When it is lost, the request only waits longer.
        drop(self.store.write_along(move |db, _| {
            db.execute(
                "INSERT OR IGNORE INTO ask (id, task, since)
                 SELECT ?1, seq, ?3 FROM task WHERE id = ?2",
                (&ask, task.as_str(), now.as_millis()),
            )?;
            Ok(())
        }));
        Ok(now)
    }

    /// It was answered, or is asked no longer. Should its id ever come again, it is another request.
    pub fn forget(&self, asks: Vec<String>) {
        // When it is lost, it goes with its task.
        drop(self.store.write_along(move |db, _| {
            let mut forget = db.prepare("DELETE FROM ask WHERE id = ?1")?;
            for ask in &asks {
                forget.execute([ask])?;
            }
            Ok(())
        }));
    }
}
