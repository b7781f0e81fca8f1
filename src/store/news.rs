//! What follows every change of a task: its JSON for lists is stored, and it is told after the commit.

use super::sql::Connection;
use super::writer::{News, What};
use super::{Error, rows};
use crate::task::{Task, TaskId};

/// Reads the task as it is now and tells it after the commit.
pub(super) fn publish(
    db: &Connection,
    news: &mut News,
    what: What,
    id: &TaskId,
) -> Result<Option<Task>, Error> {
    let found = rows::find_task(db, "t.id = ?1", id.as_str())?;
    let Some((seq, task)) = found else { return Ok(None) };
    // Live tasks change too often to be worth it.
    if !task.is_live() {
        db.execute(
            "INSERT OR REPLACE INTO view (task, json, schema) VALUES (?1, ?2, ?3)",
            (seq, news.brief.view(&task).to_json(), news.brief.schema()),
        )?;
    }
    news.changes.push((what, task.clone()));
    Ok(Some(task))
}
