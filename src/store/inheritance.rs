//! The context that forked children inherit: a snapshot of the parent's conversation, inserted in the transaction
//! of the task, so that a retry after a crash hands over the same context under the same message id.

use super::Error;
use super::sql::Connection;
use super::subjects::Tasks;
use crate::task::{MessageId, TaskId};

/// A fork's context, rendered to text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// Of the message that hands it over.
    pub message_id: MessageId,
    pub preamble: String,
    pub context: String,
}

impl Tasks<'_> {
    /// `None` for a task that is not forked, or whose session is a copy.
    pub fn inheritance(&self, task: &TaskId) -> Result<Option<Inheritance>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt(
                "SELECT message_id, preamble, context FROM inheritance
                 WHERE task = (SELECT seq FROM task WHERE id = ?1)",
                [task.as_str()],
                |row| {
                    Ok(Inheritance {
                        message_id: row.get(0)?,
                        preamble: row.get(1)?,
                        context: row.get(2)?,
                    })
                },
            )?)
        })
    }
}

pub(super) fn insert(db: &Connection, task: i64, new: &Inheritance) -> Result<(), Error> {
    db.execute(
        "INSERT INTO inheritance VALUES (?1, ?2, ?3, ?4)",
        (task, new.message_id.as_str(), &new.preamble, &new.context),
    )?;
    Ok(())
}
