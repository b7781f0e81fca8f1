//! Quarantine for poison rows: a task that cannot be decoded must not keep others from being read (D4). Its
//! original values are kept in the table `quarantine` as SQL literals, what cannot be read of them is replaced,
//! and a live one is ended in error, which its parent is told.
//!
//! A read that meets such a row fails with `UnreadableTask`, has the writer isolate the row, and is retried
//! (`Store::read`). When the daemon starts, all live tasks are inspected, so that the supervisor need not expect
//! one. Nothing here decodes a row before it was repaired; what resists even that is deleted, its original kept.

use std::time::Duration;

use super::events::publish;
use super::outbox::{self, NewNotice, NoticeKind, owe};
use super::rows::{self, RUN, TASK};
use super::sql::{Connection, Params, Value};
use super::sqlite::bad_rows::{self, UnreadableRow};
use super::sqlite::{Column, columns};
use super::stored::{budget_text, progress_text};
use super::subjects::Integrity;
use super::writer::{ChangeKind, PendingEvents};
use super::{Error, alerts};
use crate::task::alert::AlertKind;
use crate::task::lifecycle::RunEnd;
use crate::task::{Budget, MessageId, Progress, Status, Task, Timestamp};

/// How many tasks on either side of a bad one are inspected, too: rows are damaged by the page.
const AROUND: i64 = 100;

/// How long a read waits for the writer to put a task into quarantine. It blocks a thread of the runtime.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A task that was put into quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedTask {
    /// The short id, as far as it could be read.
    pub name: String,
    /// What could not be decoded.
    pub field: String,
}

/// What an inspection has found and put into quarantine.
#[derive(Default)]
struct Inspection {
    tasks: Vec<QuarantinedTask>,
    rows: Vec<UnreadableRow>,
}

/// Which tasks to inspect.
enum InspectionScope {
    Live,
    /// The neighbours of this one, by their place in the history.
    Around(i64),
    /// Wherever the status is no known word: a query that groups by status cannot name the task.
    UnknownStatus,
}

impl Integrity<'_> {
    /// Looks at every live task, so that those who work with them need not expect a bad one.
    pub fn quarantine_live(&self) -> Result<usize, Error> {
        self.inspect(InspectionScope::Live)
    }

    /// Those that this process put there.
    pub fn newly_quarantined(&self) -> Vec<QuarantinedTask> {
        self.store.0.quarantined.lock().clone()
    }

    /// Those that are there.
    pub fn quarantined(&self) -> Result<Vec<QuarantinedTask>, Error> {
        self.store.read(|db| {
            Ok(db.query_all("SELECT name, field FROM quarantine ORDER BY task", (), |row| {
                Ok(QuarantinedTask { name: row.get(0)?, field: row.get(1)? })
            })?)
        })
    }

    /// Runs and notices that were mended.
    pub fn mended(&self) -> Result<Vec<UnreadableRow>, Error> {
        self.store.read(|db| {
            let all = "SELECT source, field FROM mended_row ORDER BY seq";
            Ok(db.query_all(all, (), |row| {
                Ok(UnreadableRow { table: row.get(0)?, field: row.get(1)? })
            })?)
        })
    }

    /// Those that this process mended.
    pub fn newly_mended(&self) -> Vec<UnreadableRow> {
        self.store.0.mended.lock().clone()
    }

    /// Decodes every task there is and what is owed of it; what cannot be decoded is in quarantine or mended
    /// afterwards.
    pub fn inspect_all(&self) -> Result<(), Error> {
        let mut after = 0;
        loop {
            // In slices: a long read transaction would keep the write-ahead log from being checkpointed, and
            // the log would grow as long as it takes.
            let last = self.store.read(|db| {
                let slice = "SELECT max(seq) FROM
                             (SELECT seq FROM task WHERE seq > ?1 ORDER BY seq LIMIT 500)";
                let last: Option<i64> = db.query_one(slice, [after], |row| row.get(0))?;
                let Some(last) = last else { return Ok(None) };
                let in_slice = "SELECT seq FROM task WHERE seq > ?1 AND seq <= ?2";
                for seq in numbers(db, in_slice, (after, last))? {
                    read(db, seq)?;
                    outbox::decode_owed(db, seq)?;
                }
                // Stored JSON that is none would spoil every page it is on; without it, it is built again.
                let broken = "SELECT task FROM view
                              WHERE task > ?1 AND task <= ?2 AND NOT json_valid(json)";
                Ok(Some((last, numbers(db, broken, (after, last))?)))
            })?;
            let last = match last {
                Some((last, broken)) if broken.is_empty() => Some(last),
                Some((last, broken)) => {
                    self.forget_views(broken)?;
                    Some(last)
                }
                None => None,
            };
            match last {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    fn forget_views(&self, tasks: Vec<i64>) -> Result<(), Error> {
        let forgotten = self.store.write(move |db, _| {
            let mut forget = db.prepare("DELETE FROM view WHERE task = ?1")?;
            tasks.iter().try_for_each(|task| forget.execute([*task]).map(drop))?;
            Ok(())
        });
        forgotten.wait(LONGEST_WAIT)
    }

    /// Inspects around this task, or wherever a status is unknown. `false`: nothing was isolated, so a retry of
    /// the read would fail in the same way.
    pub(super) fn quarantine(&self, seq: Option<i64>) -> bool {
        match self.inspect(seq.map_or(InspectionScope::UnknownStatus, InspectionScope::Around)) {
            Ok(found) => found > 0,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "task quarantine failed; the read that found the unreadable row fails"
                );
                false
            }
        }
    }

    fn inspect(&self, scope: InspectionScope) -> Result<usize, Error> {
        let inspected = self.store.write(move |db, events| inspect(db, events, &scope));
        let Inspection { tasks, rows } = inspected.wait(LONGEST_WAIT)?;
        let number = tasks.len() + rows.len();
        self.store.0.quarantined.lock().extend(tasks);
        for UnreadableRow { table, field } in &rows {
            tracing::error!(
                table,
                field,
                "row was unreadable; it was mended, and the original kept"
            );
        }
        self.store.0.mended.lock().extend(rows);
        Ok(number)
    }
}

fn inspect(
    db: &Connection,
    events: &mut PendingEvents,
    scope: &InspectionScope,
) -> Result<Inspection, Error> {
    let seqs = match scope {
        InspectionScope::Live => numbers(db, "SELECT seq FROM task WHERE slot > 0", ())?,
        InspectionScope::Around(seq) => {
            let around = (seq - AROUND, seq + AROUND);
            numbers(db, "SELECT seq FROM task WHERE seq BETWEEN ?1 AND ?2", around)?
        }
        InspectionScope::UnknownStatus => {
            let known = serde_json::to_string(&Status::ALL.map(Status::name)).unwrap_or_default();
            let unknown =
                "SELECT seq FROM task WHERE status NOT IN (SELECT value FROM json_each(?1))";
            numbers(db, unknown, [known])?
        }
    };
    let mut found = Inspection::default();
    for seq in seqs {
        if let Err(Error::UnreadableTask { field, .. }) = read(db, seq) {
            found.tasks.push(isolate_or_delete(db, events, seq, field)?);
        }
        found.rows.extend(mend_owed(db, seq)?);
    }
    Ok(found)
}

/// Mends notices that are owed of a task and cannot be decoded, with the runs they are about: one would hold up those
/// of every other parent.
fn mend_owed(db: &Connection, seq: i64) -> Result<Vec<UnreadableRow>, Error> {
    let mut mended = Vec::new();
    for notice in outbox::undecodable(db, seq)? {
        let about = "SELECT r.seq FROM run r JOIN notice n ON r.task = n.task AND r.n = n.run
                     WHERE n.seq = ?1";
        for run in numbers(db, about, [notice])? {
            mended.extend(mend(db, "run", run)?);
        }
        // A run is read with what was said to it besides its prompt.
        for further in numbers(db, "SELECT seq FROM further_prompt WHERE task = ?1", [seq])? {
            mended.extend(mend(db, "further_prompt", further)?);
        }
        mended.extend(mend(db, "notice", notice)?);
    }
    Ok(mended)
}

/// Replaces what cannot be read of a row, and keeps the original for a person to look at. `None`: all can be read.
fn mend(db: &Connection, table: &str, seq: i64) -> Result<Option<UnreadableRow>, Error> {
    let substitutes = substitutes(db, table, seq)?;
    let Some((field, _)) = substitutes.first().cloned() else { return Ok(None) };
    let at = now(db)?;
    db.execute(
        &format!(
            "INSERT INTO mended_row (source, field, at, original)
             SELECT ?1, ?2, ?3, {} FROM {table} WHERE seq = ?4",
            bad_rows::literals(db, table)?
        ),
        (table, &field, at, seq),
    )?;
    substitute(db, table, seq, &substitutes)?;
    // Whether a message of the old id has been delivered cannot be found out any more. One of no id's form would be
    // refused by its host for ever.
    if table == "notice" && substitutes.iter().any(|(field, _)| field == "message_id") {
        let id = message_id(db, at)?;
        db.execute("UPDATE notice SET message_id = ?2 WHERE seq = ?1", (seq, id.as_str()))?;
    }
    Ok(Some(UnreadableRow { table: table.to_owned(), field }))
}

/// One that resists repair is deleted, its original kept in the quarantine: it must not hold up the others for
/// ever. A corrupt file is another matter, and nothing is deleted because of it.
fn isolate_or_delete(
    db: &Connection,
    events: &mut PendingEvents,
    seq: i64,
    field: String,
) -> Result<QuarantinedTask, Error> {
    let savepoint = db.savepoint()?;
    match isolate(db, events, seq, field.clone()) {
        Ok(isolated) => {
            savepoint.commit()?;
            Ok(isolated)
        }
        Err(error) if error.damage().is_none() => {
            drop(savepoint);
            let error = &error as &dyn std::error::Error;
            tracing::error!(seq, field, error, "task repair failed; task deleted, original kept");
            keep_original(db, seq, &field, now(db)?)?;
            db.execute("DELETE FROM task WHERE seq = ?1", [seq])?;
            Ok(QuarantinedTask { name: format!("number {seq}"), field })
        }
        Err(error) => Err(error),
    }
}

/// Decodes the task and its current run, as the supervisor would. A live one without its run is unreadable, too.
fn read(db: &Connection, seq: i64) -> Result<Option<Task>, Error> {
    let found = db.query_opt(
        &format!(
            "SELECT {TASK}, {RUN} FROM task t LEFT JOIN run r ON r.task = t.seq AND r.n = t.run
         WHERE t.seq = ?1"
        ),
        [seq],
        |row| Ok(rows::task_and_run(row)),
    )?;
    match found.transpose()? {
        Some((task, None)) if task.is_live() => {
            Err(Error::UnreadableTask { seq, field: "run".to_owned() })
        }
        found => Ok(found.map(|(task, _)| task)),
    }
}

/// Keeps the original, replaces what cannot be decoded, ends the task and tells its parent. It runs inside the
/// caller's change: if it fails, all of that is rolled back.
pub(super) fn isolate(
    db: &Connection,
    events: &mut PendingEvents,
    seq: i64,
    field: String,
) -> Result<QuarantinedTask, Error> {
    let at = now(db)?;
    keep_original(db, seq, &field, at)?;
    // Asked before `end`, which sets the slot to 0.
    let was_live: bool =
        db.query_one("SELECT slot IN (1, 2, 3) FROM task WHERE seq = ?1", [seq], |row| row.get(0))?;
    substitute(db, "task", seq, &substitutes(db, "task", seq)?)?;
    for table in ["run", "further_prompt"] {
        for row in numbers(db, &format!("SELECT seq FROM {table} WHERE task = ?1"), [seq])? {
            mend(db, table, row)?;
        }
    }
    end(db, seq, &field, at)?;
    let Some(task) = read(db, seq)? else { return Err(Error::RolledBack) };
    if was_live {
        tell(db, seq, &task, at)?;
    }
    let name = task.short_id.to_string();
    db.execute("UPDATE quarantine SET name = ?2 WHERE task = ?1", (seq, &name))?;
    publish(db, events, if was_live { ChangeKind::Ended } else { ChangeKind::Updated }, &task.id)?;
    if was_live {
        let (id, at) = (format!("{}-{}", task.id, task.run), Timestamp::from_millis(at));
        alerts::owe(db, events, &id, AlertKind::End, &task, at)?;
    }
    tracing::error!(task = %task.id, field, "task is unreadable; it was quarantined");
    Ok(QuarantinedTask { name, field })
}

/// Keeps the row as SQL literals for a person to look at.
fn keep_original(db: &Connection, seq: i64, field: &str, at: i64) -> Result<(), Error> {
    db.execute(
        &format!(
            "INSERT OR REPLACE INTO quarantine (task, name, field, at, original)
             SELECT seq, '', ?2, ?3, {} FROM task WHERE seq = ?1",
            bad_rows::literals(db, "task")?
        ),
        (seq, field, at),
    )?;
    Ok(())
}

/// Ends the task in error. One that had ended keeps its status and its time, as far as those are known.
fn end(db: &Connection, seq: i64, field: &str, at: i64) -> Result<(), Error> {
    let why =
        format!("the record of this task was damaged (`{field}`); what is left of it is shown");
    let progress = Progress::new(Timestamp::from_millis(at));
    let failed = RunEnd::Failed.name();
    db.execute(
        "UPDATE run SET ended_at = ?2, ended_as = ?3, error = ?4, abort_owed = 1
         WHERE task = ?1 AND n = (SELECT run FROM task WHERE seq = ?1)
           AND (SELECT slot IN (1, 2, 3) FROM task WHERE seq = ?1)",
        (seq, at, failed, &why),
    )?;
    db.execute(
        "INSERT OR IGNORE INTO run (task, n, message_id, prompt, started_at, ended_at, ended_as, error)
         SELECT seq, run, '', '', started_at, ?2, ?3, ?4 FROM task WHERE seq = ?1",
        (seq, at, failed, &why),
    )?;
    db.execute(
        "UPDATE task SET error = ?2, completed_at = coalesce(completed_at, ?3), slot = 0,
           status = CASE WHEN slot = 0 AND status IN ('completed', 'cancelled') THEN status
             ELSE 'error' END,
           progress = ?4, budget = ?5, revision = revision + 1 WHERE seq = ?1",
        (seq, &why, at, progress_text(&progress), budget_text(&Budget::default())),
    )?;
    // The triggers of `tally` count by whatever the status says, so an unknown word got a row of its own, which
    // is at zero by now.
    db.execute("DELETE FROM tally WHERE n <= 0", ())?;
    Ok(())
}

/// Owes the notice of the end, unless there is one: the unique index `notice_once` would refuse a second one, and
/// with it the repair.
fn tell(db: &Connection, seq: i64, task: &Task, at: i64) -> Result<(), Error> {
    let has_notice =
        "SELECT EXISTS (SELECT 1 FROM notice WHERE task = ?1 AND run = ?2 AND nth = 0)";
    if db.query_one(has_notice, (seq, task.run), |row| row.get(0))? {
        return Ok(());
    }
    let message_id = message_id(db, at)?;
    let (kind, at) = (NoticeKind::End, Timestamp::from_millis(at));
    owe(db, seq, task, &NewNotice { kind, message_id: &message_id, wake: true, at })
}

fn message_id(db: &Connection, at: i64) -> Result<MessageId, Error> {
    let dice: Vec<u8> = db.query_one("SELECT randomblob(16)", (), |row| row.get(0))?;
    let dice: [u8; 16] = dice.try_into().unwrap_or_default();
    Ok(MessageId::mint((at.max(0) as u64) << 12, &dice))
}

fn now(db: &Connection) -> Result<i64, Error> {
    let now = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    Ok(db.query_one(now, (), |row| row.get(0))?)
}

/// The largest number in a column that is read as `u32`, and those columns.
const SMALL: i64 = u32::MAX as i64;
const COUNTS: [&str; 4] = ["depth", "run", "n", "attempts"];

/// The replacement for a value that cannot be decoded.
#[derive(Clone)]
enum Substitute {
    Null,
    Zero,
    /// What is readable of a text stays.
    Text(String),
}

/// Replacements for values of a type that their column cannot have, and for text that is not UTF-8, column by column
/// and without decoding the row.
fn substitutes(db: &Connection, table: &str, seq: i64) -> Result<Vec<(String, Substitute)>, Error> {
    let mut substitutes = Vec::new();
    for column in columns(db, table)? {
        let is_text = column.is_text();
        let Column { name, required, .. } = column;
        let select = format!("SELECT {name} FROM {table} WHERE seq = ?1");
        let substitute = db.query_one(&select, [seq], |row| {
            Ok(match row.value(0)? {
                Value::Text(bytes) if is_text && std::str::from_utf8(bytes).is_ok() => None,
                Value::Text(bytes) | Value::Blob(bytes) if is_text => {
                    Some(Substitute::Text(String::from_utf8_lossy(bytes).into_owned()))
                }
                Value::Integer(0..=SMALL) if !is_text => None,
                Value::Integer(0..) if !is_text && !COUNTS.contains(&name.as_str()) => None,
                Value::Null if !required => None,
                _ if !required => Some(Substitute::Null),
                _ if is_text => Some(Substitute::Text(String::new())),
                _ => Some(Substitute::Zero),
            })
        })?;
        substitutes.extend(substitute.map(|substitute| (name, substitute)));
    }
    Ok(substitutes)
}

fn substitute(
    db: &Connection,
    table: &str,
    seq: i64,
    substitutes: &[(String, Substitute)],
) -> Result<(), Error> {
    for (name, substitute) in substitutes {
        let value = match substitute {
            Substitute::Null => Value::Null,
            Substitute::Zero => Value::Integer(0),
            Substitute::Text(text) => Value::Text(text.as_bytes()),
        };
        db.execute(&format!("UPDATE {table} SET {name} = ?2 WHERE seq = ?1"), (seq, value))?;
    }
    Ok(())
}

fn numbers(db: &Connection, sql: &str, of: impl Params) -> Result<Vec<i64>, Error> {
    Ok(db.query_all(sql, of, |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::Connection;

    use super::outbox::OwedNotice;
    use super::*;
    use crate::store::prune::tests::History;
    use crate::task::{MAILBOX, TaskId};

    #[tokio::test]
    async fn a_notice_that_cannot_be_read_is_mended_and_holds_up_no_other() {
        let history = History::new();
        let mut tasks = Vec::new();
        for name in ["good", "odd", "older", "flag", "id", "last"] {
            let task = history.launch(name, "general", "batch", "scripted").await;
            tasks.push(history.finish(&task, 1).await);
        }
        // The bad notice of this one is of an earlier run.
        history.resume(&tasks[2]).await;
        let store = &history.store;
        let now = Timestamp::from_millis(i64::MAX / 2);
        let due = || {
            let due = store.outbox().due(now, Duration::MAX, &Default::default()).unwrap();
            let told = |notice: &OwedNotice| (notice.task.to_string(), notice.message_id.clone());
            due.iter().map(told).collect::<Vec<_>>()
        };
        let before = due();
        let db = Connection::open(history.file()).unwrap();
        db.execute_batch(
            "UPDATE notice SET attempts = 'often' WHERE task IN (2, 3);
             UPDATE run SET message_id = x'ff00' WHERE task = 3 AND n = 0;
             UPDATE task SET development = 'x' WHERE seq = 4;
             UPDATE notice SET message_id = CAST(x'ff' AS TEXT) WHERE task = 5;",
        )
        .unwrap();
        let mut after = due();
        // Only the id that is lost is another.
        let id = std::mem::replace(&mut after[4].1, before[4].1.clone());
        assert_eq!(after, before);
        assert_ne!(id, before[4].1);
        assert!(id.as_str().starts_with("msg_"), "{id:?}");
        let mended = [
            ("notice", "attempts"),
            ("run", "message_id"),
            ("notice", "attempts"),
            ("notice", "message_id"),
        ];
        let mended = mended.map(|(table, field)| {
            let (table, field) = (table.to_owned(), field.to_owned());
            UnreadableRow { table, field }
        });
        assert_eq!(store.integrity().newly_mended(), mended);
        assert_eq!(store.integrity().mended().unwrap(), mended);
        assert_eq!(store.integrity().newly_quarantined(), []);
    }

    #[tokio::test]
    async fn what_was_said_to_a_task_and_cannot_be_read_does_not_take_the_task_along() {
        let history = History::new();
        let task = history.launch("told", "general", "batch", "scripted").await;
        history.finish(&task, 1).await;
        let db = Connection::open(history.file()).unwrap();
        db.execute_batch(
            "INSERT INTO further_prompt (task, run, text, created_at, message_id, sent_at)
               VALUES (1, 0, CAST(x'4100ff42' AS TEXT), 1, x'ff00', 1)",
        )
        .unwrap();
        history.store.integrity().inspect_all().unwrap();
        assert_eq!(history.store.tasks().get(&task.id).unwrap().unwrap().id, task.id);
        let kept = "SELECT original FROM mended_row";
        let kept: String = db.query_row(kept, [], |row| row.get(0)).unwrap();
        assert_eq!(kept, "1, 1, 0, CAST(x'4100FF42' AS TEXT), NULL, 1, X'FF00', 1, 0");
    }

    #[tokio::test]
    async fn whatever_is_wrong_with_a_row_the_others_are_read_and_it_is_named() {
        let cases = [
            ("status", "UPDATE task SET status = 'odd'"),
            ("progress", "UPDATE task SET progress = '{'"),
            ("budget", "UPDATE task SET budget = '7'"),
            ("directory", "UPDATE task SET directory = x'ff00'"),
            ("agent", "UPDATE task SET agent = CAST(x'ff' AS TEXT)"),
            ("started_at", "UPDATE task SET started_at = 'abc'"),
            ("depth", "UPDATE task SET depth = 1099511627776"),
            ("batch", "UPDATE task SET batch = CAST(x'ff' AS TEXT)"),
            ("run", "DELETE FROM run"),
        ];
        let history = History::new();
        history.launch("good", "general", "batch", MAILBOX).await;
        let db = Connection::open(history.file()).unwrap();
        for (field, change) in cases {
            history.launch(field, "general", "batch", MAILBOX).await;
            let of = if change.starts_with("DELETE") { "task" } else { "seq" };
            let sql = format!("{change} WHERE {of} = (SELECT seq FROM task WHERE id = ?1)");
            assert_eq!(db.execute(&sql, [field]).unwrap(), 1, "{change}");
        }
        let store = &history.store;
        let live = store.tasks().live(None).unwrap();
        assert_eq!(live.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), ["good"]);
        let named = |(field, _): (&str, &str)| QuarantinedTask {
            name: field.to_owned(),
            field: field.to_owned(),
        };
        assert_eq!(store.integrity().quarantined().unwrap(), cases.map(named));
        assert_eq!(store.integrity().newly_quarantined(), cases.map(named));
        for (field, _) in cases {
            let task = store.tasks().get(&TaskId::new(field)).unwrap().unwrap();
            let why = "; what is left of it is shown";
            let why = format!("the record of this task was damaged (`{field}`){why}");
            assert_eq!((task.status(), task.state.error()), (Status::Error, Some(why.as_str())));
            assert!(store.outbox().unread_end(&task.id).unwrap().is_some(), "{field}");
        }
        assert_eq!(store.integrity().check().unwrap(), [""; 0]);
        assert!(store.overview().tallies().is_ok());
    }
}
