//! High-water marks of the history: the newest ids and times that were written. Ids contain a time and have to grow:
//! after a restart with a clock that was set back they go on behind the newest one, and these times say how far a
//! clock can be believed that was set forward. Each is one look at the end of an index.

use super::Error;
use super::subjects::History;
use crate::task::Timestamp;

impl History<'_> {
    /// The ids that were minted last, each of its kind. Sessions are not among them: hosts have ids of their
    /// own, which may count backwards.
    pub fn newest_ids(&self) -> Result<Vec<String>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT * FROM (SELECT message_id FROM run ORDER BY seq DESC LIMIT 1)
                 UNION ALL SELECT * FROM (SELECT message_id FROM notice ORDER BY seq DESC LIMIT 1)
                 UNION ALL SELECT * FROM (SELECT id FROM message ORDER BY seq DESC LIMIT 1)
                 UNION ALL SELECT * FROM (SELECT message_id FROM further_prompt
                   WHERE message_id IS NOT NULL ORDER BY seq DESC LIMIT 1)
                 UNION ALL SELECT coalesce(r.continue_id, r.nudge_id) FROM task t
                   JOIN run r ON r.task = t.seq AND r.n = t.run
                   WHERE t.slot > 0 AND coalesce(r.continue_id, r.nudge_id) IS NOT NULL",
                (),
                |row| row.get(0),
            )?)
        })
    }

    /// When something was last begun or ended.
    pub fn last_activity(&self) -> Result<Timestamp, Error> {
        self.store.read(|db| {
            Ok(db.query_one(
                "SELECT max(coalesce((SELECT max(completed_at) FROM task), 0),
                   coalesce((SELECT started_at FROM run ORDER BY seq DESC LIMIT 1), 0))",
                (),
                |row| row.get(0),
            )?)
        })
    }
}
