//! The outbox of notices, and the mailboxes of parents that are no conversation.
//!
//! A notice is inserted in the transaction that ends the task, so that neither exists without the other, and
//! the deliverer sends it afterwards, retrying with back-off (`due_at`, `attempts`). That is at-least-once;
//! the id of the message, minted with the notice, lets the deliverer find out at the host whether an attempt
//! that was cut off got through. The unique index `notice_once` allows one end notice per run, whatever the
//! code believes. Notices of one parent are delivered in order: while its oldest one is postponed, it gets none.

use std::collections::HashSet;
use std::time::Duration;

use super::rows::{self, RUN, Run};
use super::sql::{Connection, Row};
use super::subjects::Outbox;
use super::{Error, PendingWrite};
use crate::task::{
    MAILBOX, MessageId, NoticeId, Receipt, SessionId, ShortId, Task, TaskId, Timestamp,
};

/// An undelivered or unread notice, and everything its text is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct OwedNotice {
    pub id: NoticeId,
    pub task: TaskId,
    pub short_id: ShortId,
    pub description: String,
    pub development: bool,
    pub parent_host: String,
    pub parent_session: SessionId,
    pub parent_agent: String,
    pub message_id: MessageId,
    /// Whether the parent is to answer it.
    pub wake: bool,
    pub batch_ended: u64,
    pub batch_total: u64,
    /// How long the task had been quiet, when the notice is about a stall.
    pub quiet: Option<Duration>,
    pub attempts: u32,
    pub run: Run,
}

/// Batch size: how many are read at a time. A long outage must not make the daemon hold all that was owed meanwhile.
pub const MOST_DUE: usize = 512;

const OWED: &str = "n.seq, t.id, t.short_id, t.description, t.development = 1, n.parent_host, \
    n.parent_session, t.parent_agent, n.message_id, n.wake, n.batch_ended, n.batch_total, \
    n.quiet_seconds, n.attempts, t.seq";
const OWED_COLUMNS: usize = 15;
const JOINED: &str = "JOIN task t ON t.seq = n.task \
    JOIN run r ON r.task = n.task AND r.n = n.run";

/// What is owed or unread of one task.
fn of_task() -> String {
    format!(
        "SELECT {OWED}, {RUN} FROM notice n {JOINED}
         WHERE n.task = ?1
           AND (n.delivered_at IS NULL OR n.parent_host = '{MAILBOX}' AND n.read_at IS NULL)
         ORDER BY n.seq"
    )
}

fn owed(row: Row<'_>) -> Result<OwedNotice, Error> {
    let task = row.get(14)?;
    decode(row).map_err(|error| rows::unreadable(row, task, error))
}

/// Decodes what is owed or unread of a task, as those do who tell it.
pub(super) fn decode_owed(db: &Connection, task: i64) -> Result<(), Error> {
    let mut of_task = db.prepare(&of_task())?;
    let mut found = of_task.query([task])?;
    while let Some(row) = found.next()? {
        owed(row)?;
    }
    Ok(())
}

/// The numbers of those notices that cannot be decoded.
pub(super) fn undecodable(db: &Connection, task: i64) -> Result<Vec<i64>, Error> {
    let mut of_task = db.prepare(&of_task())?;
    let mut found = of_task.query([task])?;
    let mut undecodable = Vec::new();
    while let Some(row) = found.next()? {
        if owed(row).is_err() {
            undecodable.push(row.get(0)?);
        }
    }
    Ok(undecodable)
}

fn decode(row: Row<'_>) -> Result<OwedNotice, Error> {
    Ok(OwedNotice {
        id: row.get(0)?,
        task: row.get(1)?,
        short_id: row.get(2)?,
        description: row.get(3)?,
        development: row.get(4)?,
        parent_host: row.get(5)?,
        parent_session: row.get(6)?,
        parent_agent: row.get(7)?,
        message_id: row.get(8)?,
        wake: row.get(9)?,
        batch_ended: row.get::<i64>(10)? as u64,
        batch_total: row.get::<i64>(11)? as u64,
        quiet: row.get::<Option<i64>>(12)?.map(|seconds| Duration::from_secs(seconds as u64)),
        attempts: row.get(13)?,
        run: rows::run(row, OWED_COLUMNS)?,
    })
}

/// The query for due notices, from the partial index `notice_owed`, which has no delivered ones.
///
/// Only the oldest notice of a parent is ever postponed, so one pass finds the parents to be left alone. A
/// correlated subquery (is an older one postponed?) would be quadratic; a test counts the steps.
fn due() -> String {
    format!(
        "SELECT {OWED}, {RUN} FROM notice n INDEXED BY notice_owed {JOINED}
         WHERE n.delivered_at IS NULL AND (n.due_at <= ?1 OR n.due_at > ?2)
           AND n.parent_session NOT IN (SELECT o.parent_session FROM notice o INDEXED BY notice_owed
             WHERE o.delivered_at IS NULL AND o.due_at > ?1 AND o.due_at <= ?2)
           AND n.parent_session NOT IN (SELECT value FROM json_each(?3))
         ORDER BY n.seq LIMIT {MOST_DUE}"
    )
}

impl Outbox<'_> {
    /// Undelivered notices that may be tried now, oldest first; none of a parent whose oldest one is
    /// postponed, and none of the parents `aside`. A due time further away than
    /// `furthest` was set before the clock jumped back and does not count.
    pub fn due(
        &self,
        now: Timestamp,
        furthest: Duration,
        aside: &HashSet<SessionId>,
    ) -> Result<Vec<OwedNotice>, Error> {
        let aside: Vec<&str> = aside.iter().map(SessionId::as_str).collect();
        // A list as one bound value (`json_each`): the text of the statement stays the same, so it stays cached.
        let aside = serde_json::to_string(&aside).unwrap_or_default();
        self.store.read(|db| {
            let mut statement = db.prepare(&due())?;
            let furthest = now.plus(furthest).as_millis();
            let mut found = statement.query((now.as_millis(), furthest, &aside))?;
            let mut due = Vec::new();
            while let Some(row) = found.next()? {
                due.push(owed(row)?);
            }
            Ok(due)
        })
    }

    /// When the next undelivered notice may be tried that may not be now.
    pub fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        self.store.read(|db| {
            // An aggregate always has a row; without a notice that waits it is null.
            let millis: Option<i64> = db.query_one(
                "SELECT min(due_at) FROM notice WHERE delivered_at IS NULL AND due_at > ?1",
                [now.as_millis()],
                |row| row.get(0),
            )?;
            Ok(millis.map(Timestamp::from_millis))
        })
    }

    /// The newest notice there is: later ones were certainly never sent by an earlier daemon.
    pub fn newest(&self) -> Result<NoticeId, Error> {
        self.store.read(|db| {
            let newest: Option<i64> =
                db.query_one("SELECT max(seq) FROM notice", (), |row| row.get(0))?;
            Ok(newest.map_or(NoticeId::NONE, NoticeId::new))
        })
    }

    /// May be lost in a crash (`write_deferrable`): then the deliverer looks the message up at the host again.
    pub fn delivered(&self, notice: NoticeId, at: Timestamp) -> PendingWrite<()> {
        self.store.write_deferrable(move |db, _| {
            db.execute(
                "UPDATE notice SET delivered_at = ?2 WHERE seq = ?1",
                (notice.number(), at.as_millis()),
            )?;
            Ok(())
        })
    }

    /// Gives the notice up: its parent does not exist any more. It counts as delivered, with the reason.
    pub fn undeliverable(&self, notice: NoticeId, why: String, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE notice SET delivered_at = ?2, undeliverable = ?3 WHERE seq = ?1",
                (notice.number(), at.as_millis(), why),
            )?;
            Ok(())
        })
    }

    /// Records a failed attempt and when the next one is due.
    pub fn postpone(&self, notice: NoticeId, until: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE notice SET attempts = attempts + 1, due_at = ?2 WHERE seq = ?1",
                (notice.number(), until.as_millis()),
            )?;
            Ok(())
        })
    }

    /// The caller has these ends in hand: their notices are recorded without a reply (N3).
    pub fn hush(&self, tasks: Vec<TaskId>) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            // `nth = 0` is the notice of the end; stalls have 1, 2, … A delivered one cannot be changed any more.
            let mut hush = db.prepare(
                "UPDATE notice SET wake = 0 WHERE delivered_at IS NULL AND nth = 0
                   AND task = (SELECT seq FROM task WHERE id = ?1)",
            )?;
            for task in tasks {
                hush.execute([task.as_str()])?;
            }
            Ok(())
        })
    }

    /// The unread notice of a task's end in a mailbox, if there is one.
    pub fn unread_end(&self, task: &TaskId) -> Result<Option<NoticeId>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt(
                "SELECT n.seq FROM notice n JOIN task t ON t.seq = n.task
                 WHERE t.id = ?1 AND n.run = t.run AND n.nth = 0 AND n.parent_host = 'mailbox'
                   AND n.read_at IS NULL",
                [task.as_str()],
                |row| row.get(0),
            )?)
        })
    }

    /// The tasks with such a notice, of one parent.
    pub fn ended_unread(&self, parent: &SessionId) -> Result<Vec<TaskId>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT t.id FROM notice n INDEXED BY notice_unread JOIN task t ON t.seq = n.task
                 WHERE n.parent_host = 'mailbox' AND n.read_at IS NULL AND n.parent_session = ?1
                   AND n.run = t.run AND n.nth = 0 ORDER BY n.seq",
                [parent.as_str()],
                |row| row.get(0),
            )?)
        })
    }

    /// The notices in a mailbox that nobody has read, oldest first, and the tasks they are about.
    pub fn unread(&self, parent: &SessionId) -> Result<Vec<(NoticeId, TaskId)>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT n.seq, t.id FROM notice n INDEXED BY notice_unread
                 JOIN task t ON t.seq = n.task
                 WHERE n.parent_host = 'mailbox' AND n.read_at IS NULL AND n.parent_session = ?1
                 ORDER BY n.seq",
                [parent.as_str()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?)
        })
    }

    /// Parents whose names begin like this and that have unread notices.
    pub fn unread_parents(&self, stem: &str) -> Result<Vec<SessionId>, Error> {
        self.store.read(|db| {
            // A range and not `LIKE`, so that the index is used. Names are ASCII and `~` is the last printable
            // character, so everything that begins with the stem sorts before it.
            Ok(db.query_all(
                "SELECT DISTINCT parent_session FROM notice INDEXED BY notice_unread
                 WHERE parent_host = 'mailbox' AND read_at IS NULL
                   AND parent_session >= ?1 AND parent_session < ?1 || '~'",
                [stem],
                |row| row.get(0),
            )?)
        })
    }

    /// These notices, in this order.
    pub fn notices(&self, ids: &Receipt) -> Result<Vec<OwedNotice>, Error> {
        self.store.read(|db| {
            let mut statement = db.prepare(&format!(
                "SELECT {OWED}, {RUN} FROM notice n {JOINED} WHERE n.seq = ?1"
            ))?;
            let mut notices = Vec::with_capacity(ids.notices().len());
            for id in ids.notices() {
                let mut found = statement.query([id.number()])?;
                if let Some(row) = found.next()? {
                    notices.push(owed(row)?);
                }
            }
            Ok(notices)
        })
    }

    /// Acknowledges what a client has received. Idempotent: the first time stays.
    pub fn mark_read(&self, receipt: Receipt, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| mark_read(db, &receipt, at))
    }

    /// Whether any of these has been read. One that was pruned with its task has not.
    pub fn any_read(&self, receipt: &Receipt) -> Result<bool, Error> {
        self.store.read(|db| {
            let mut is_read = db.prepare(
                "SELECT EXISTS (SELECT 1 FROM notice WHERE seq = ?1 AND read_at IS NOT NULL)",
            )?;
            for notice in receipt.notices() {
                if is_read.query_one([notice.number()], |row| row.get(0))? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

pub(super) fn mark_read(db: &Connection, receipt: &Receipt, at: Timestamp) -> Result<(), Error> {
    let mut mark = db.prepare(
        "UPDATE notice SET read_at = ?2
         WHERE seq = ?1 AND parent_host = 'mailbox' AND read_at IS NULL",
    )?;
    for notice in receipt.notices() {
        mark.execute((notice.number(), at.as_millis()))?;
    }
    Ok(())
}

/// A notice to be written.
pub(super) struct NewNotice<'a> {
    pub(super) kind: NoticeKind,
    pub(super) message_id: &'a MessageId,
    pub(super) wake: bool,
    pub(super) at: Timestamp,
}

pub(super) enum NoticeKind {
    End,
    Stall { seconds: u64 },
}

/// Inserts the notice, in the transaction of what it is about. To a parent with a mailbox it is delivered with
/// that: it waits there to be read.
pub(super) fn owe(
    db: &Connection,
    seq: i64,
    task: &Task,
    notice: &NewNotice<'_>,
) -> Result<(), Error> {
    let (nth, quiet) = match notice.kind {
        NoticeKind::End => (0, None),
        NoticeKind::Stall { seconds } => {
            (stalls_told(db, seq, task.run)? + 1, Some(seconds as i64))
        }
    };
    let (total, live): (i64, i64) = db
        .query_opt("SELECT total, live FROM batch WHERE id = ?1", [task.batch.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        // A task whose batch was unreadable (quarantine) has no row here: it counts as a batch of one.
        .unwrap_or((1, 0));
    let at = notice.at.as_millis();
    let delivered = (task.origin.parent.host == MAILBOX).then_some(at);
    // Without a wake the caller caused this itself (it cancelled): its mailbox copy starts as read.
    let read = delivered.filter(|_| !notice.wake);
    db.execute(
        "INSERT INTO notice (task, run, nth, parent_host, parent_session, message_id, wake,
           batch_ended, batch_total, quiet_seconds, created_at, due_at, delivered_at, read_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13)",
        (
            seq,
            task.run,
            nth,
            &task.origin.parent.host,
            task.origin.parent.session.as_str(),
            notice.message_id.as_str(),
            notice.wake,
            total - live,
            total,
            quiet,
            at,
            delivered,
            read,
        ),
    )?;
    Ok(())
}

fn stalls_told(db: &Connection, task: i64, run: u32) -> Result<i64, Error> {
    Ok(db.query_one(
        "SELECT count(*) FROM notice WHERE task = ?1 AND run = ?2 AND nth > 0",
        (task, run),
        |row| row.get(0),
    )?)
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, StatementStatus};

    use super::*;
    use crate::store::Store;

    /// What SQLite does to find the due ones among many of one parent.
    fn steps(notices: i64) -> i32 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.db");
        let (store, _) = Store::open(&file, |_| {}).unwrap();
        store.close();
        let db = Connection::open(&file).unwrap();
        db.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let owe =
            "INSERT INTO notice (task, run, nth, parent_host, parent_session, message_id, wake,
                     batch_ended, batch_total, created_at, due_at)
                   VALUES (1, 0, ?1, 'scripted', 'ses_parent', 'msg', 1, 0, 0, 0, 0)";
        for nth in 0..notices {
            db.execute(owe, [nth]).unwrap();
        }
        let mut statement = db.prepare(&due()).unwrap();
        let mut found = statement.query((10, 20, "[]")).unwrap();
        while found.next().unwrap().is_some() {}
        drop(found);
        statement.get_status(StatementStatus::VmStep)
    }

    #[test]
    fn finding_due_notices_takes_time_linear_in_their_number() {
        let (few, many) = (steps(200), steps(2_000));
        assert!(many < few * 15, "{few} steps for 200, {many} for 2,000");
    }
}
