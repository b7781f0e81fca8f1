//! What a reader's own view of the file says about how far things had come: whatever was remembered
//! under the same numbers is in this view, too, even while others write.

use rusqlite::Connection;

use super::Error;

/// Both only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    /// The newest change of a task.
    pub(super) change: i64,
    /// How many tasks were pruned, ever.
    pub(super) forgotten: i64,
}

impl State {
    pub(super) fn read(db: &Connection) -> Result<State, Error> {
        let mut counters = db.prepare_cached(
            "SELECT coalesce((SELECT n FROM counter WHERE name = 'change'), 0),
               coalesce((SELECT n FROM counter WHERE name = 'forgotten'), 0)",
        )?;
        Ok(counters
            .query_row([], |row| Ok(State { change: row.get(0)?, forgotten: row.get(1)? }))?)
    }
}
