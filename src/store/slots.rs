//! Admission control (T11): concurrency slots, and the queue of tasks that wait for one. A slot in use is a task
//! row with `slot = 2`, the queue is the rows with `slot = 1`; there is no counter beside them. Both are read
//! inside the write transaction that decides, so that no slot is given out twice, and none leaks when a task
//! ends in an unforeseen way. Who is next is decided by the pure `task::queue`.
//!
//! On the SQL: `task_live` is a partial index (slot, parent_session, ticket) `WHERE slot > 0`. SQLite uses a
//! partial index only when the query repeats its condition; it does not conclude `slot > 0` from `slot = 1`.
//! Hence `slot = 1 AND slot > 0`: the first term is for the seek, the second makes the index eligible. Without
//! it these queries, which run with every launch and every end, would walk the whole history.

use std::sync::Arc;

use super::news::publish;
use super::rows::{TASK, text};
use super::sql::Connection;
use super::subjects::Slots;
use super::writer::What;
use super::{Error, Written, quarantine, rows};
use crate::task::queue::{Limits, Manner, Queue, QueuedTask, SlotUsage, grant};
use crate::task::{Phase, Progress, SessionId, Slot, Task, Timestamp};

impl Slots<'_> {
    /// Gives the free slots to queued tasks and returns those that may start.
    pub fn admit(&self, limits: Arc<Limits>, at: Timestamp) -> Written<Vec<Task>> {
        self.store.write(move |db, news| {
            let queues = queues(db, limits.active_per_parent)?;
            if queues.is_empty() {
                return Ok(Vec::new());
            }
            let granted = grant(in_use(db)?, queues, &limits);
            let mut started = Vec::with_capacity(granted.len());
            for id in granted {
                let task = match rows::find_task(db, "t.id = ?1", id.as_str()) {
                    Ok(Some((_, task))) => task,
                    Ok(None) => continue,
                    // One that cannot be read must not hold up the others.
                    Err(Error::UnreadableTask { seq, field }) => {
                        quarantine::isolate(db, news, seq, field)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let progress = task.progress.clone().placed(Slot::Active, at);
                db.execute(
                    "UPDATE task SET slot = 2, progress = ?2 WHERE id = ?1",
                    (id.as_str(), text(&progress)),
                )?;
                note_waiting(db, &task, at)?;
                serve(db, &task.origin.parent.session, next_ticket(db)?)?;
                started.extend(publish(db, news, What::Updated, &id)?);
            }
            // Forget the turns that decide nothing any more, or `served` would grow with every parent there
            // ever was: of a parent without queued or active tasks that was served before everybody who
            // waits. If it comes back without a turn (0), it is first among them, as it would be with it.
            db.execute(
                "DELETE FROM served WHERE ticket < ifnull(
                   (SELECT min(ifnull(s.ticket, 0)) FROM task t
                    LEFT JOIN served s ON s.parent = t.parent_session
                    WHERE t.slot = 1 AND t.slot > 0), ?1)
                 AND NOT EXISTS (SELECT 1 FROM task
                   WHERE slot IN (1, 2) AND slot > 0 AND parent_session = served.parent)",
                [i64::MAX],
            )?;
            Ok(started)
        })
    }

    /// Takes its slot away and keeps it out of the queue, because it cannot go on before a client brings the
    /// credentials it lacks. `progress` says which. Parked in its slot, it would block the tasks behind it.
    pub fn park(&self, task: &Task, progress: Progress, at: Timestamp) -> Written<()> {
        let (id, run) = (task.id.clone(), task.run);
        let progress = Progress { phase: Phase::Queued, last_update: at, ..progress };
        self.store.write(move |db, news| {
            if db.execute(
                "UPDATE task SET slot = 3, progress = ?3, tool_calls = ?4
                 WHERE id = ?1 AND run = ?2 AND slot = 2",
                (id.as_str(), run, text(&progress), progress.tool_calls),
            )? > 0
            {
                publish(db, news, What::Updated, &id)?;
            }
            Ok(())
        })
    }

    /// The parked tasks, oldest first.
    pub fn parked(&self) -> Result<Vec<Task>, Error> {
        self.store.read(|db| {
            let mut parked = db.prepare(&format!(
                "SELECT {TASK} FROM task t WHERE t.slot = 3 AND t.slot > 0 ORDER BY t.seq"
            ))?;
            let mut rows = parked.query(())?;
            let mut tasks = Vec::new();
            while let Some(row) = rows.next()? {
                tasks.push(rows::task(row)?.1);
            }
            Ok(tasks)
        })
    }

    /// Puts it back into the queue. Its ticket is the old one, so it is ahead of what was queued later.
    pub fn unpark(&self, task: &Task, at: Timestamp) -> Written<()> {
        let task = task.clone();
        let (id, progress) = (task.id.clone(), task.progress.clone().placed(Slot::Queued, at));
        self.store.write(move |db, news| {
            if !any_queued(db)? {
                begin_turns(db)?;
            }
            if db.execute(
                "UPDATE task SET slot = 1, progress = ?2 WHERE id = ?1 AND slot = 3",
                (id.as_str(), text(&progress)),
            )? > 0
            {
                note_waiting(db, &task, at)?;
                publish(db, news, What::Updated, &id)?;
            }
            Ok(())
        })
    }

    /// Whether there is anything for [`Slots::admit`] to do.
    pub fn any_queued(&self) -> Result<bool, Error> {
        self.store.read(any_queued)
    }
}

/// Adds the time since its slot last changed to what the run has waited. Only for a run whose prompt was sent:
/// before that the wait is no part of the run, after it the time must not count as work.
fn note_waiting(db: &Connection, task: &Task, at: Timestamp) -> Result<(), Error> {
    let waited = at.since(task.progress.last_update).as_millis();
    let waited = i64::try_from(waited).unwrap_or_default();
    db.execute(
        "UPDATE run SET waited = waited + ?3
         WHERE task = (SELECT seq FROM task WHERE id = ?1) AND n = ?2 AND sent_at IS NOT NULL",
        (task.id.as_str(), task.run, waited),
    )?;
    Ok(())
}

/// Admits a task or queues it; a slot costs its parent its turn while others wait.
///
/// `None`: it would have to wait, and the parent has as many queued as it may have.
pub(super) fn place(
    db: &Connection,
    parent: &SessionId,
    (model, manner): (Option<&str>, Manner),
    ticket: i64,
    limits: &Limits,
) -> Result<Option<Slot>, Error> {
    // Turns are only recorded while somebody waits: an uncontended launch, the usual case, saves a write.
    let is_contended = any_queued(db)?;
    if has_room(db, parent, model.unwrap_or_default(), manner, limits)? {
        if is_contended {
            serve(db, parent, ticket)?;
        }
        return Ok(Some(Slot::Active));
    }
    if !limits.let_wait(queued(db, parent)?) {
        return Ok(None);
    }
    if !is_contended {
        begin_turns(db)?;
    }
    Ok(Some(Slot::Queued))
}

/// The next place in the queue. A counter in the store and no timestamp: a clock can be set back.
pub(super) fn next_ticket(db: &Connection) -> Result<i64, Error> {
    let count = "UPDATE counter SET n = n + 1 WHERE name = 'ticket' RETURNING n";
    Ok(db.query_one(count, (), |row| row.get(0))?)
}

/// Starts the round robin when the queue becomes non-empty. No turns were kept until now, so they are derived:
/// a parent with active tasks was served with the newest of them.
fn begin_turns(db: &Connection) -> Result<(), Error> {
    db.execute("DELETE FROM served", ())?;
    db.execute(
        "INSERT INTO served SELECT parent_session, max(ticket) FROM task
         WHERE slot = 2 AND slot > 0 GROUP BY parent_session",
        (),
    )?;
    Ok(())
}

/// Whether a launch would be admitted or queued now; the check before anything of it exists elsewhere.
pub(super) fn has_place(
    db: &Connection,
    parent: &SessionId,
    (model, manner): (Option<&str>, Manner),
    limits: &Limits,
) -> Result<bool, Error> {
    Ok(limits.let_wait(queued(db, parent)?)
        || has_room(db, parent, model.unwrap_or_default(), manner, limits)?)
}

/// Whether there is a free slot under every limit that counts this task.
fn has_room(
    db: &Connection,
    parent: &SessionId,
    model: &str,
    manner: Manner,
    limits: &Limits,
) -> Result<bool, Error> {
    let blocking = manner == Manner::Blocking;
    if overtakes(db, parent, model, blocking, limits)? {
        return Ok(false);
    }
    let count = |of: &str| -> Result<usize, Error> {
        let active =
            "SELECT count(*) FROM task WHERE slot = 2 AND slot > 0 AND parent_session = ?1";
        let count = format!("{active} {of}");
        Ok(db.query_one(&count, [parent.as_str()], |row| row.get::<i64>(0))? as usize)
    };
    // Without limits on models or on all tasks, counting this parent's is enough: two counts in the index
    // instead of a walk over every active task.
    let only_parents = limits.active_per_model.is_empty() && limits.active.is_none();
    let mut in_use = if only_parents { SlotUsage::default() } else { in_use(db)? };
    in_use.by_parent.insert(parent.clone(), count("")?);
    if blocking {
        in_use.blocking_by_parent.insert(parent.clone(), count("AND blocking = 1")?);
    }
    Ok(in_use.has_room(parent, model, manner, limits))
}

/// Whether a task that started now would jump the queue: one waits for the same slot, of its own parent, or of
/// any parent under the same limit. Then it waits, too, and the next round of [`Slots::admit`] decides. Without
/// this, a parent that launches often enough could starve the others.
fn overtakes(
    db: &Connection,
    parent: &SessionId,
    model: &str,
    blocking: bool,
    limits: &Limits,
) -> Result<bool, Error> {
    if db.query_one(
        "SELECT EXISTS (SELECT 1 FROM task
         WHERE slot = 1 AND slot > 0 AND parent_session = ?1 AND (blocking = 1) = ?2)",
        (parent.as_str(), blocking),
        |row| row.get(0),
    )? {
        return Ok(true);
    }
    if limits.active.is_some() && any_queued(db)? {
        return Ok(true);
    }
    // `substr` and not `LIKE`: `_` and `%` are letters in the name of a model.
    let mut others = db.prepare(
        "SELECT EXISTS (SELECT 1 FROM task WHERE slot = 1 AND slot > 0
           AND (model = ?1 OR substr(model, 1, length(?1) + 1) = ?1 || '/'))",
    )?;
    for (name, _) in limits.covering(model) {
        if others.query_one([name], |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn any_queued(db: &Connection) -> Result<bool, Error> {
    Ok(db.query_one(
        "SELECT EXISTS (SELECT 1 FROM task WHERE slot = 1 AND slot > 0)",
        (),
        |row| row.get(0),
    )?)
}

fn queued(db: &Connection, parent: &SessionId) -> Result<usize, Error> {
    Ok(db.query_one(
        "SELECT count(*) FROM task WHERE slot = 1 AND slot > 0 AND parent_session = ?1",
        [parent.as_str()],
        |row| row.get::<i64>(0),
    )? as usize)
}

/// Notes that a parent was given a slot, which puts it at the end of the round robin.
fn serve(db: &Connection, parent: &SessionId, ticket: i64) -> Result<(), Error> {
    db.execute("INSERT OR REPLACE INTO served VALUES (?1, ?2)", (parent.as_str(), ticket))?;
    Ok(())
}

/// Counts the slots in use, from the rows.
fn in_use(db: &Connection) -> Result<SlotUsage, Error> {
    let mut statement = db.prepare(
        "SELECT parent_session, model, blocking = 1 FROM task WHERE slot = 2 AND slot > 0",
    )?;
    let mut rows = statement.query(())?;
    let mut in_use = SlotUsage::default();
    while let Some(row) = rows.next()? {
        let parent = row.get(0)?;
        let model = row.get::<&str>(1).unwrap_or_default();
        in_use.add(&parent, model, manner(row.get(2)?));
    }
    Ok(in_use)
}

fn manner(blocking: bool) -> Manner {
    if blocking { Manner::Blocking } else { Manner::Background }
}

/// Queued tasks by parent and manner, no more of each than could be started; the oldest head first.
fn queues(db: &Connection, most: usize) -> Result<Vec<Queue>, Error> {
    let parents: Vec<(String, bool, i64)> = db.query_all(
        "SELECT t.parent_session, t.blocking = 1, ifnull(max(s.ticket), 0)
             FROM task t LEFT JOIN served s ON s.parent = t.parent_session
             WHERE t.slot = 1 AND t.slot > 0
             GROUP BY t.parent_session, t.blocking = 1 ORDER BY min(t.ticket)",
        (),
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let mut heads = db.prepare(
        "SELECT id, model FROM task WHERE slot = 1 AND slot > 0 AND parent_session = ?1
           AND (blocking = 1) = ?2 ORDER BY ticket LIMIT ?3",
    )?;
    let mut queues = Vec::with_capacity(parents.len());
    for (parent, blocking, served) in parents {
        let manner = manner(blocking);
        let waiting = heads.query_all((&parent, blocking, most as i64), |row| {
            let id = row.get(0)?;
            Ok(QueuedTask { id, model: row.get(1)?, manner })
        })?;
        queues.push(Queue { parent: SessionId::new(parent), served: served as u64, waiting });
    }
    Ok(queues)
}
