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

use super::events::publish;
use super::rows::TASK;
use super::sql::Connection;
use super::stored::progress_text;
use super::subjects::Slots;
use super::writer::{ChangeKind, PendingEvents};
use super::{Error, PendingWrite, quarantine, rows};
use crate::task::queue::{
    Admission, LaunchMode, Limits, Queue, QueueState, QueuedTask, SlotUsage, grant,
};
use crate::task::{Phase, Progress, SessionId, Slot, Task, TaskId, Timestamp};

/// What a queued task says of itself while the queue is paused.
const PAUSED: &str = "the queue is paused; `asyncagents continue` starts it again";

/// Batch size: how many queued tasks say in one transaction whether the queue is paused.
const MOST_EXPLAINED: usize = 200;

/// How many tasks wait for a slot, and how many hold one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCounts {
    pub queued: u64,
    pub active: u64,
}

impl Slots<'_> {
    /// Gives the free slots to queued tasks and returns those that may start.
    pub fn admit(&self, limits: Arc<Limits>, at: Timestamp) -> PendingWrite<Vec<Task>> {
        self.store.write(move |db, events| {
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
                        quarantine::isolate(db, events, seq, field)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let progress = task.progress.clone().placed(Slot::Active, at);
                db.execute(
                    "UPDATE task SET slot = 2, progress = ?2 WHERE id = ?1",
                    (id.as_str(), progress_text(&progress)),
                )?;
                note_waiting(db, &task, at)?;
                serve(db, &task.origin.parent.session, next_ticket(db)?)?;
                started.extend(publish(db, events, ChangeKind::Updated, &id)?);
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
    pub fn park(&self, task: &Task, progress: Progress, at: Timestamp) -> PendingWrite<()> {
        let (id, run) = (task.id.clone(), task.run);
        let progress = Progress { phase: Phase::Queued, last_update: at, ..progress };
        self.store.write(move |db, events| {
            if db.execute(
                "UPDATE task SET slot = 3, progress = ?3, tool_calls = ?4
                 WHERE id = ?1 AND run = ?2 AND slot = 2",
                (id.as_str(), run, progress_text(&progress), progress.tool_calls),
            )? > 0
            {
                publish(db, events, ChangeKind::Updated, &id)?;
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
    pub fn unpark(&self, task: &Task, at: Timestamp) -> PendingWrite<()> {
        let task = task.clone();
        let id = task.id.clone();
        self.store.write(move |db, events| {
            let progress = placed(db, task.progress.clone(), Slot::Queued, at)?;
            if !any_queued(db)? {
                begin_turns(db)?;
            }
            if db.execute(
                "UPDATE task SET slot = 1, progress = ?2 WHERE id = ?1 AND slot = 3",
                (id.as_str(), progress_text(&progress)),
            )? > 0
            {
                note_waiting(db, &task, at)?;
                publish(db, events, ChangeKind::Updated, &id)?;
            }
            Ok(())
        })
    }

    /// Pauses the queue: nothing gets a slot until [`Slots::unpause`], also after a restart. `false`: it was paused.
    pub fn pause(&self, at: Timestamp) -> PendingWrite<bool> {
        self.store.write(move |db, _| {
            let pause = "INSERT INTO pause SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM pause)";
            Ok(db.execute(pause, [at.as_millis()])? > 0)
        })
    }

    /// `false`: it was not paused.
    pub fn unpause(&self) -> PendingWrite<bool> {
        self.store.write(move |db, _| Ok(db.execute("DELETE FROM pause", ())? > 0))
    }

    /// The next queued tasks after this number, in the order of their launch, say from now on whether the queue is
    /// paused. Returns where to go on, until all do. In batches, because other writes wait for this one.
    pub fn explain_queued(&self, after: i64) -> PendingWrite<Option<i64>> {
        self.store.write(move |db, events| {
            let queued = format!(
                "SELECT seq, id FROM task WHERE slot = 1 AND slot > 0 AND seq > ?1
                 ORDER BY seq LIMIT {MOST_EXPLAINED}"
            );
            let queued: Vec<(i64, TaskId)> =
                db.query_all(&queued, [after], |row| Ok((row.get(0)?, row.get(1)?)))?;
            for (_, id) in &queued {
                explain(db, events, id)?;
            }
            Ok(queued.last().map(|(seq, _)| *seq).filter(|_| queued.len() == MOST_EXPLAINED))
        })
    }

    pub fn is_paused(&self) -> Result<bool, Error> {
        self.store.read(is_paused)
    }

    /// How many tasks wait for a slot, and how many hold one.
    pub fn counts(&self) -> Result<SlotCounts, Error> {
        self.store.read(|db| {
            let count = |slot: Slot| -> Result<u64, Error> {
                let count = "SELECT count(*) FROM task WHERE slot = ?1 AND slot > 0";
                let n = db.query_one(count, [rows::slot_number(slot)], |row| row.get::<i64>(0))?;
                Ok(n.unsigned_abs())
            };
            Ok(SlotCounts { queued: count(Slot::Queued)?, active: count(Slot::Active)? })
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

fn is_paused(db: &Connection) -> Result<bool, Error> {
    Ok(db.query_one("SELECT EXISTS (SELECT 1 FROM pause)", (), |row| row.get(0))?)
}

/// The progress of a task that gets this slot; one that has to wait says why, if it is not for others.
pub(super) fn placed(
    db: &Connection,
    progress: Progress,
    slot: Slot,
    at: Timestamp,
) -> Result<Progress, Error> {
    let progress = progress.placed(slot, at);
    let detail = (slot == Slot::Queued && is_paused(db)?).then(|| PAUSED.to_owned());
    Ok(Progress { detail, ..progress })
}

/// A queued task says that the queue is paused, or does not any more.
fn explain(db: &Connection, events: &mut PendingEvents, id: &TaskId) -> Result<(), Error> {
    // One that cannot be read is set aside when its turn comes.
    let Ok(Some((_, task))) = rows::find_task(db, "t.id = ?1", id.as_str()) else { return Ok(()) };
    // Of the same time as before: how long it has waited is counted from there.
    let progress = placed(db, task.progress.clone(), Slot::Queued, task.progress.last_update)?;
    if progress != task.progress {
        let values = (id.as_str(), progress_text(&progress));
        db.execute("UPDATE task SET progress = ?2 WHERE id = ?1", values)?;
        publish(db, events, ChangeKind::Updated, id)?;
    }
    Ok(())
}

/// Admits a task or queues it; a slot costs its parent its turn while others wait.
///
/// `None`: it would have to wait, and the parent has as many queued as it may have.
pub(super) fn place(
    db: &Connection,
    parent: &SessionId,
    kind: (Option<&str>, LaunchMode),
    ticket: i64,
    limits: &Limits,
) -> Result<Option<Slot>, Error> {
    let (queue, admission) = decide(db, parent, kind, limits)?;
    // Turns are only recorded while a parent waits: an uncontended launch, the usual case, saves a write.
    match admission {
        Admission::Start => {
            if queue.is_contended {
                serve(db, parent, ticket)?;
            }
            Ok(Some(Slot::Active))
        }
        Admission::Wait => {
            if !queue.is_contended {
                begin_turns(db)?;
            }
            Ok(Some(Slot::Queued))
        }
        Admission::Refuse => Ok(None),
    }
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
    kind: (Option<&str>, LaunchMode),
    limits: &Limits,
) -> Result<bool, Error> {
    Ok(decide(db, parent, kind, limits)?.1 != Admission::Refuse)
}

/// Reads what the decision needs, and no more: slots are only counted for a task that may start.
fn decide(
    db: &Connection,
    parent: &SessionId,
    (model, mode): (Option<&str>, LaunchMode),
    limits: &Limits,
) -> Result<(QueueState, Admission), Error> {
    let model = model.unwrap_or_default();
    let queue = queue_state(db, parent, model, mode, limits)?;
    let may_start = !queue.would_be_overtaken(limits);
    let has_room = may_start
        && relevant_usage(db, parent, mode, limits)?.has_room(parent, model, mode, limits);
    Ok((queue, queue.admit(has_room, limits)))
}

/// The slots in use, as far as the limits count them for a task of this parent.
fn relevant_usage(
    db: &Connection,
    parent: &SessionId,
    mode: LaunchMode,
    limits: &Limits,
) -> Result<SlotUsage, Error> {
    let count = |of: &str| -> Result<usize, Error> {
        let active =
            "SELECT count(*) FROM task WHERE slot = 2 AND slot > 0 AND parent_session = ?1";
        let count = format!("{active} {of}");
        Ok(db.query_one(&count, [parent.as_str()], |row| row.get::<i64>(0))? as usize)
    };
    // Without limits on models or on all tasks, counting this parent's is enough: two counts in the index
    // instead of a walk over every active task.
    let only_parents = limits.active_per_model.is_empty() && limits.active.is_none();
    let mut in_use = match only_parents {
        true => SlotUsage { is_paused: is_paused(db)?, ..SlotUsage::default() },
        false => in_use(db)?,
    };
    in_use.by_parent.insert(parent.clone(), count("")?);
    if mode == LaunchMode::Blocking {
        in_use.blocking_by_parent.insert(parent.clone(), count("AND blocking = 1")?);
    }
    Ok(in_use)
}

/// The queue as a task of this parent, model and mode finds it.
fn queue_state(
    db: &Connection,
    parent: &SessionId,
    model: &str,
    mode: LaunchMode,
    limits: &Limits,
) -> Result<QueueState, Error> {
    // The usual case: one look into the partial index, which is empty.
    if !any_queued(db)? {
        return Ok(QueueState::default());
    }
    let (of_parent, own_queue): (i64, bool) = db.query_one(
        "SELECT count(*), ifnull(max((blocking = 1) = ?2), 0) FROM task
         WHERE slot = 1 AND slot > 0 AND parent_session = ?1",
        (parent.as_str(), mode == LaunchMode::Blocking),
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    // `substr` and not `LIKE`: `_` and `%` are letters in the name of a model.
    let mut others = db.prepare(
        "SELECT EXISTS (SELECT 1 FROM task WHERE slot = 1 AND slot > 0
           AND (model = ?1 OR substr(model, 1, length(?1) + 1) = ?1 || '/'))",
    )?;
    let mut same_model_limit = false;
    for (name, _) in limits.covering(model) {
        same_model_limit |= others.query_one([name], |row| row.get::<bool>(0))?;
    }
    let of_parent = of_parent as usize;
    Ok(QueueState { is_contended: true, of_parent, own_queue, same_model_limit })
}

fn any_queued(db: &Connection) -> Result<bool, Error> {
    Ok(db.query_one(
        "SELECT EXISTS (SELECT 1 FROM task WHERE slot = 1 AND slot > 0)",
        (),
        |row| row.get(0),
    )?)
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
    let mut in_use = SlotUsage { is_paused: is_paused(db)?, ..SlotUsage::default() };
    while let Some(row) = rows.next()? {
        let parent = row.get(0)?;
        let model = row.get::<&str>(1).unwrap_or_default();
        in_use.add(&parent, model, mode(row.get(2)?));
    }
    Ok(in_use)
}

fn mode(blocking: bool) -> LaunchMode {
    if blocking { LaunchMode::Blocking } else { LaunchMode::Background }
}

/// Queued tasks by parent and mode, no more of each than could be started; the oldest head first.
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
        let mode = mode(blocking);
        let waiting = heads.query_all((&parent, blocking, most as i64), |row| {
            let id = row.get(0)?;
            Ok(QueuedTask { id, model: row.get(1)?, mode })
        })?;
        queues.push(Queue { parent: SessionId::new(parent), served: served as u64, waiting });
    }
    Ok(queues)
}
