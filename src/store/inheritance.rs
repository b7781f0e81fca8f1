//! What forked children inherit: written with their task, read when it is handed over.

use rusqlite::{Connection, OptionalExtension};

use super::{Error, Store};
use crate::task::{MessageId, TaskId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// Of the message that hands it over.
    pub message_id: MessageId,
    pub preamble: String,
    pub context: String,
}

impl Store {
    /// `None` for a task that is not forked, or whose session is a copy.
    pub fn inheritance(&self, task: &TaskId) -> Result<Option<Inheritance>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT message_id, preamble, context FROM inheritance
                 WHERE task = (SELECT seq FROM task WHERE id = ?1)",
            )?;
            let found = statement.query_row([task.as_str()], |row| {
                Ok(Inheritance {
                    message_id: MessageId::new(row.get::<_, String>(0)?),
                    preamble: row.get(1)?,
                    context: row.get(2)?,
                })
            });
            Ok(found.optional()?)
        })
    }
}

pub(super) fn insert(db: &Connection, task: i64, new: &Inheritance) -> Result<(), Error> {
    db.prepare_cached("INSERT INTO inheritance VALUES (?1, ?2, ?3, ?4)")?.execute((
        task,
        new.message_id.as_str(),
        &new.preamble,
        &new.context,
    ))?;
    Ok(())
}
