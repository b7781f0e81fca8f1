//! First-seen times of permission requests and questions of children. They are persisted so that the time for which
//! a request is parked goes on across restarts. Rows go with their task.

use super::Error;
use super::subjects::Asks;
use crate::task::{TaskId, Timestamp};

impl Asks<'_> {
    /// When this was first seen; now, and from now on, if it is new.
    pub fn since(&self, task: &TaskId, ask: &str, now: Timestamp) -> Result<Timestamp, Error> {
        let known = self.store.read(|db| {
            Ok(db.query_opt("SELECT since FROM ask WHERE id = ?1", [ask], |row| row.get(0))?)
        })?;
        if let Some(since) = known {
            return Ok(Timestamp::from_millis(since));
        }
        let (task, ask) = (task.clone(), ask.to_owned());
        // Lost in a crash, it costs the request a longer wait and nothing else: no fsync of its own.
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

    /// Removes requests that were answered or withdrawn. Should an id come again, it is a new request.
    pub fn forget(&self, asks: Vec<String>) {
        // Lost in a crash, the row goes with its task.
        drop(self.store.write_along(move |db, _| {
            let mut forget = db.prepare("DELETE FROM ask WHERE id = ?1")?;
            for ask in &asks {
                forget.execute([ask])?;
            }
            Ok(())
        }));
    }
}
