//! What follows every change of a task: its JSON for lists is cached (the table `view`), and an event is queued that
//! the writer publishes after the commit. In the transaction of the change, so that the cache is never stale.

use super::sql::Connection;
use super::writer::{ChangeKind, PendingEvents};
use super::{Error, rows};
use crate::task::{Task, TaskId};

/// Reads the task as it is in the transaction, and publishes it after the commit.
pub(super) fn publish(
    db: &Connection,
    events: &mut PendingEvents,
    what: ChangeKind,
    id: &TaskId,
) -> Result<Option<Task>, Error> {
    let found = rows::find_task(db, "t.id = ?1", id.as_str())?;
    let Some((seq, task)) = found else { return Ok(None) };
    // Only ended tasks are cached. Live ones change every few seconds, and are few enough to be built.
    if !task.is_live() {
        db.execute(
            "INSERT OR REPLACE INTO view (task, json, schema) VALUES (?1, ?2, ?3)",
            (seq, events.brief.view(&task).to_json(), events.brief.schema()),
        )?;
    }
    events.changes.push((what, task.clone()));
    Ok(Some(task))
}
