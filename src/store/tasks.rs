//! Writes of the task lifecycle: launch, end, resume, stall, progress and what is owed to the host. Each is one
//! atomic change.
//!
//! Optimistic concurrency: a caller decides on a task as it read it, and the write is conditional on the task's
//! `revision` (or its run) being the same; otherwise it writes nothing and says so. Whatever has to happen
//! elsewhere because of a change (a prompt to send, a session to abort, a notice to deliver) is written down as
//! owed in the same transaction: after a crash it is read from there and tried again (transactional outbox).
//!
//! `blocking` has three values: 0 for background tasks, 1 while a caller waits for the task (the tool `Task`),
//! 2 when it went on without. `slot` is 0 ended, 1 queued, 2 active, 3 parked.

use std::sync::Arc;

use super::events::publish;
use super::outbox::{NewNotice, NoticeKind, owe};
use super::rows::{self, RUN, Run, TASK, TASK_COLUMNS, text};
use super::slots;
use super::sql::{Connection, ToValue};
use super::stored::{budget_text, progress_text};
use super::subjects::Tasks;
use super::writer::{ChangeKind, PendingEvents};
use super::{Error, Inheritance, PendingWrite, alerts, inheritance, keyed, search};
use crate::task::alert::AlertKind;
use crate::task::lifecycle::{Change, Effect, RunEnd, State};
use crate::task::queue::{LaunchMode, Limits};
use crate::task::{
    BatchId, MessageId, Order, Origin, Progress, Schema, SessionId, ShortId, Slot, Status, Task,
    TaskId, Timestamp,
};

/// A task whose session exists and whose row does not yet.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub id: TaskId,
    /// Candidates; the first one that is free is taken.
    pub short_ids: Vec<ShortId>,
    /// The idempotency key of the launch.
    pub nonce: String,
    pub origin: Origin,
    pub order: Order,
    pub placement: Placement,
    /// What has to be handed over before the prompt.
    pub inheritance: Option<Inheritance>,
    pub development: bool,
    pub message_id: MessageId,
    pub at: Timestamp,
}

/// Which batch a new task joins (T10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    Named(BatchId),
    /// The parent's batch that still has a live task, else this one.
    CurrentOr(BatchId),
}

/// Another run of an ended task, which is to be prompted.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Of the prompt, minted once: every retry sends the same.
    pub message_id: MessageId,
    pub prompt: String,
    pub at: Timestamp,
    /// The caller's idempotency key: the same key begins the same run.
    pub key: Option<String>,
}

/// What is written with an end, beside the change itself.
#[derive(Clone, Debug)]
pub struct End {
    pub at: Timestamp,
    /// Of the notice.
    pub message_id: MessageId,
    pub wake: bool,
    pub open_todos: Vec<String>,
    /// The last figures, when they are newer than what the store has.
    pub progress: Option<Progress>,
    /// What was said in the session is to be kept, because it is nowhere else in the store.
    pub transcript: bool,
    /// The idempotency key of the call that ends it.
    pub key: Option<String>,
}

impl End {
    fn notice(&self, kind: NoticeKind) -> NewNotice<'_> {
        NewNotice { kind, message_id: &self.message_id, wake: self.wake, at: self.at }
    }
}

/// A task that holds a slot, with its current run.
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveTask {
    pub task: Task,
    pub run: Run,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResumeOutcome {
    Resumed(Box<Task>),
    /// The task moved on since it was read; nothing was written.
    Stale,
    /// It would have to wait, and the parent has as many waiting as it may have; nothing was written.
    QueueFull,
}

/// Another prompt in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUp {
    /// Go on with the todos that are still open.
    Todos,
    /// Go on after the host was restarted during a run.
    Continue,
}

impl Tasks<'_> {
    /// Inserts the task and removes its intent, in one transaction: after a crash there is one or the other.
    /// Idempotent by the nonce: asked twice, it answers with the same task.
    pub fn insert(&self, new: NewTask, limits: Arc<Limits>) -> PendingWrite<Task> {
        self.store.write(move |db, events| {
            // Before the look-up: a retry whose first attempt was committed finds the task, and has to leave no
            // intent behind either.
            db.execute("DELETE FROM intent WHERE nonce = ?1", [&new.nonce])?;
            if let Some((_, task)) = rows::find_task(db, "t.nonce = ?1", &new.nonce)? {
                return Ok(task);
            }
            let task = insert(db, &new, &limits)?;
            events.changes.push((ChangeKind::Created, task.clone()));
            if let Some(first) = &task.origin.retry_of {
                note_retry(db, events, first, &task.id)?;
            }
            Ok(task)
        })
    }

    /// Ends the current run: state, result, owed abort and owed notice, or nothing.
    ///
    /// `None` means the task moved on since it was read: the caller's news is stale.
    pub fn end(&self, before: &Task, change: Change, end: End) -> PendingWrite<Option<Task>> {
        let (id, revision) = (before.id.clone(), before.revision);
        self.store.write(move |db, events| {
            let Some((seq, now)) = rows::find_task(db, "t.id = ?1", id.as_str())? else {
                return Ok(None);
            };
            // Several may see the same end: the poller, an event of the host, a cancellation. The first one
            // moves the revision, the others are stale and must not owe a second notice.
            let Some(how) = change.run_end().filter(|_| now.revision == revision) else {
                return Ok(None);
            };
            write_end(db, seq, &now, &change, how, &end)?;
            keyed::note(db, end.key.as_deref(), id.as_str(), 1, end.at)?;
            owe(db, seq, &now, &end.notice(NoticeKind::End))?;
            let ended = publish(db, events, ChangeKind::Ended, &id)?;
            if let Some(ended) = &ended {
                alerts::owe(db, events, end.message_id.as_str(), AlertKind::End, ended, end.at)?;
            }
            Ok(ended)
        })
    }

    /// Begins another run of an ended task: state, slot and the prompt to be sent, or nothing.
    pub fn resume(
        &self,
        before: &Task,
        change: Change,
        run: NewRun,
        limits: Arc<Limits>,
    ) -> PendingWrite<ResumeOutcome> {
        let before = before.clone();
        self.store.write(move |db, events| {
            let id = &before.id;
            if !change.has(Effect::SendPrompt) {
                return Ok(ResumeOutcome::Stale);
            }
            // A resumed task counts as a background one: no `Task` call waits for it. A fresh ticket
            // puts it behind what is queued already.
            let kind = (before.order.model.as_deref(), LaunchMode::Background);
            let ticket = slots::next_ticket(db)?;
            let placed = slots::place(db, &before.origin.parent.session, kind, ticket, &limits)?;
            let Some(slot) = placed else { return Ok(ResumeOutcome::QueueFull) };
            let progress = slots::placed(db, before.progress.clone(), slot, run.at)?;
            // `min(blocking * 2, 2)`: 0 stays 0, 1 and 2 become 2. Callers wait for the first run only.
            let moved = db.execute(
                "UPDATE task SET status = ?6, error = NULL, completed_at = NULL,
                   result_retrieved_at = NULL, cleared_at = NULL,
                   blocking = min(blocking * 2, 2), run = run + 1, slot = ?3, ticket = ?4,
                   progress = ?5, revision = revision + 1 WHERE id = ?1 AND revision = ?2",
                (
                    id.as_str(),
                    before.revision,
                    rows::slot_number(slot),
                    ticket,
                    progress_text(&progress),
                    change.to.status().name(),
                ),
            )?;
            // Stale: nothing else of this change is observable. The ticket that was drawn is lost, and tickets
            // need not be without gaps.
            if moved == 0 {
                return Ok(ResumeOutcome::Stale);
            }
            let seq = seq_of(db, id)?;
            // The cached JSON is of the ended task; a live one has none.
            db.execute("DELETE FROM view WHERE task = ?1", [seq])?;
            insert_run(db, seq, before.run + 1, Some(before.status()), &run)?;
            let resumed = publish(db, events, ChangeKind::Updated, id)?;
            Ok(resumed.map_or(ResumeOutcome::Stale, |task| ResumeOutcome::Resumed(Box::new(task))))
        })
    }

    /// Its caller does not wait for the task any more: it goes on as one in the background.
    pub fn move_to_background(&self, id: &TaskId) -> PendingWrite<()> {
        let id = id.clone();
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE task SET blocking = 2 WHERE id = ?1 AND blocking = 1",
                [id.as_str()],
            )?;
            Ok(())
        })
    }

    /// The same for all live tasks, when the daemon starts: callers that waited have lost their connections.
    pub fn move_all_to_background(&self) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            // `slot IN (…)` lets SQLite seek in the partial index `task_live`, `slot > 0` makes it eligible.
            db.execute(
                "UPDATE task SET blocking = 2 WHERE slot IN (1, 2, 3) AND slot > 0 AND blocking = 1",
                (),
            )?;
            Ok(())
        })
    }

    /// Whether a run of the task was begun with this key, also when others followed.
    pub fn was_begun_with(&self, id: &TaskId, key: &str) -> Result<bool, Error> {
        self.store.read(|db| {
            Ok(db.query_one(
                "SELECT EXISTS (SELECT 1 FROM task t JOIN run r ON r.task = t.seq
                 WHERE t.id = ?1 AND r.key = ?2)",
                (id.as_str(), key),
                |row| row.get(0),
            )?)
        })
    }

    /// Every task that holds a slot, with its current run.
    pub fn active(&self) -> Result<Vec<ActiveTask>, Error> {
        self.store.read(|db| {
            // `slot > 0` repeats the condition of the partial index `task_live`, without which SQLite does
            // not use it (see `slots`): this runs with every poll and must not walk the history.
            select_active(
                db,
                "FROM task t JOIN run r ON r.task = t.seq AND r.n = t.run
                 WHERE t.slot = 2 AND t.slot > 0",
            )
        })
    }

    /// Those of them with a prompt that no host has accepted yet.
    pub fn unprompted(&self) -> Result<Vec<ActiveTask>, Error> {
        self.store.read(|db| {
            select_active(
                db,
                "FROM task t JOIN run r ON r.task = t.seq AND r.n = t.run
                 WHERE t.slot = 2 AND t.slot > 0 AND (r.sent_at IS NULL
                   OR (r.nudge_id IS NOT NULL AND r.nudge_sent_at IS NULL)
                   OR (r.continue_id IS NOT NULL AND r.continue_sent_at IS NULL)
                   OR EXISTS (SELECT 1 FROM further_prompt f
                     WHERE f.task = r.task AND f.run = r.n AND f.sent_at IS NULL))",
            )
        })
    }

    /// Tasks whose session is still to be stopped, each with the run it was stopped in.
    pub fn owed_aborts(&self) -> Result<Vec<(Task, u32)>, Error> {
        self.store.read(|db| {
            // `INDEXED BY` a partial index that holds only what is owed, usually nothing: with another plan
            // the statement fails instead of reading all runs there ever were.
            let mut statement = db.prepare(&format!(
                "SELECT {TASK}, r.n FROM run r INDEXED BY run_abort_owed
                 JOIN task t ON t.seq = r.task WHERE r.abort_owed = 1"
            ))?;
            let mut found = statement.query(())?;
            let mut owed = Vec::new();
            while let Some(row) = found.next()? {
                owed.push((rows::task(row)?.1, row.get(TASK_COLUMNS)?));
            }
            Ok(owed)
        })
    }

    /// The host has stopped it, or there is nothing left to stop. If this is lost in a crash, the abort is
    /// sent again, which is harmless.
    pub fn abort_sent(&self, id: &TaskId, run: u32) -> PendingWrite<()> {
        let id = id.clone();
        self.store.write_deferrable(move |db, _| {
            db.execute(
                "UPDATE run SET abort_owed = 0
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
                (id.as_str(), run),
            )?;
            Ok(())
        })
    }

    /// Forgets that this prompt of the run was sent: the host does not have it.
    pub fn prompt_lost(&self, task: &Task, prompt: &MessageId) -> PendingWrite<()> {
        let (id, run, prompt) = (task.id.clone(), task.run, prompt.clone());
        self.store.write(move |db, _| {
            // Only the prompt of this id: the others of the run may have been accepted since.
            db.execute(
                "UPDATE run SET sent_at = iif(message_id = ?3, NULL, sent_at),
                   nudge_sent_at = iif(nudge_id = ?3, NULL, nudge_sent_at),
                   continue_sent_at = iif(continue_id = ?3, NULL, continue_sent_at),
                   waited = iif(message_id = ?3, 0, waited)
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
                (id.as_str(), run, prompt.as_str()),
            )?;
            db.execute(
                "UPDATE further_prompt SET sent_at = NULL WHERE message_id = ?3
                 AND run = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
                (id.as_str(), run, prompt.as_str()),
            )?;
            Ok(())
        })
    }

    /// Notes that the host has accepted the run's prompt.
    pub fn prompt_sent(&self, task: &Task, at: Timestamp) -> PendingWrite<()> {
        self.set_run_time("sent_at", task, at)
    }

    /// Writes down that a follow-up is owed, with its id, before it is sent: a crash in between leads to the
    /// same message and not to another one. `false`: it already was.
    pub fn owe_follow_up(
        &self,
        task: &Task,
        follow_up: FollowUp,
        message_id: MessageId,
    ) -> PendingWrite<bool> {
        let column = match follow_up {
            FollowUp::Todos => "nudge_id",
            FollowUp::Continue => "continue_id",
        };
        let (id, run) = (task.id.clone(), task.run);
        self.store.write(move |db, _| {
            // `IS NULL` makes it a compare-and-set: of two that find the same run idle, one sends the follow-up.
            Ok(db.execute(
                &format!(
                    "UPDATE run SET {column} = ?3 WHERE {column} IS NULL AND ended_at IS NULL
                   AND n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)"
                ),
                (id.as_str(), run, message_id.as_str()),
            )? > 0)
        })
    }

    pub fn follow_up_sent(
        &self,
        task: &Task,
        follow_up: FollowUp,
        at: Timestamp,
    ) -> PendingWrite<()> {
        let column = match follow_up {
            FollowUp::Todos => "nudge_sent_at",
            FollowUp::Continue => "continue_sent_at",
        };
        self.set_run_time(column, task, at)
    }

    fn set_run_time(&self, column: &'static str, task: &Task, at: Timestamp) -> PendingWrite<()> {
        let (id, run) = (task.id.clone(), task.run);
        self.store.write_deferrable(move |db, _| {
            db.execute(
                &format!(
                    "UPDATE run SET {column} = ?3
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)"
                ),
                (id.as_str(), run, at.as_millis()),
            )?;
            Ok(())
        })
    }

    /// Writes new figures of a task that is still active in the run they belong to; late ones are dropped.
    pub fn set_progress(&self, task: &Task, progress: Progress) -> PendingWrite<()> {
        let (id, run) = (task.id.clone(), task.run);
        self.store.write_deferrable(move |db, events| {
            let values = (id.as_str(), run, progress_text(&progress), progress.tool_calls);
            if db.execute(
                "UPDATE task SET progress = ?3, tool_calls = ?4
                 WHERE id = ?1 AND run = ?2 AND slot = 2",
                values,
            )? > 0
            {
                publish(db, events, ChangeKind::Updated, &id)?;
            }
            Ok(())
        })
    }

    /// Marks a stall and owes its notice, once per stall. `false`: it was marked already, or the run is over.
    pub fn stall(
        &self,
        task: &Task,
        progress: Progress,
        quiet: std::time::Duration,
        end: End,
    ) -> PendingWrite<bool> {
        let task = task.clone();
        self.store.write(move |db, events| {
            if !set_stalled(db, &task, true)? {
                return Ok(false);
            }
            db.execute(
                "UPDATE task SET progress = ?2 WHERE id = ?1",
                (task.id.as_str(), progress_text(&progress)),
            )?;
            let seq = seq_of(db, &task.id)?;
            let kind = NoticeKind::Stall { seconds: quiet.as_secs() };
            owe(db, seq, &task, &end.notice(kind))?;
            publish(db, events, ChangeKind::Updated, &task.id)?;
            Ok(true)
        })
    }

    /// The task moves again; the next stall is news again.
    pub fn unstall(&self, task: &Task) -> PendingWrite<bool> {
        let task = task.clone();
        self.store.write(move |db, _| set_stalled(db, &task, false))
    }

    /// The first retrieval of a result leaves its time.
    pub fn retrieved(&self, tasks: Vec<TaskId>, at: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, events| {
            // A time from before the current end is of an earlier run's result and does not count.
            let mut update = db.prepare(
                "UPDATE task SET result_retrieved_at = ?2 WHERE id = ?1 AND slot = 0
                   AND (result_retrieved_at IS NULL OR result_retrieved_at < completed_at)",
            )?;
            for id in tasks {
                if update.execute((id.as_str(), at.as_millis()))? > 0 {
                    publish(db, events, ChangeKind::Updated, &id)?;
                }
            }
            Ok(())
        })
    }

    /// Takes the parent's ended tasks off its list; they stay in the history. A live one that was
    /// launched meanwhile stays on it.
    pub fn clear(
        &self,
        parent: &SessionId,
        key: Option<String>,
        at: Timestamp,
    ) -> PendingWrite<usize> {
        let parent = parent.clone();
        self.store.write(move |db, events| {
            let ids: Vec<String> = db.query_all(
                "UPDATE task SET cleared_at = ?2
                     WHERE parent_session = ?1 AND cleared_at IS NULL AND slot = 0 RETURNING id",
                (parent.as_str(), at.as_millis()),
                |row| row.get(0),
            )?;
            for id in &ids {
                publish(db, events, ChangeKind::Updated, &TaskId::new(id.as_str()))?;
            }
            keyed::note(db, key.as_deref(), keyed::CLEARED, ids.len(), at)?;
            Ok(ids.len())
        })
    }
}

fn select_active(db: &Connection, from: &str) -> Result<Vec<ActiveTask>, Error> {
    let mut statement = db.prepare(&format!("SELECT {TASK}, {RUN} {from} ORDER BY t.ticket"))?;
    let mut found = statement.query(())?;
    let mut active = Vec::new();
    while let Some(row) = found.next()? {
        if let (task, Some(run)) = rows::task_and_run(row)? {
            active.push(ActiveTask { task, run });
        }
    }
    Ok(active)
}

fn insert(db: &Connection, new: &NewTask, limits: &Limits) -> Result<Task, Error> {
    let NewTask { origin, order, .. } = new;
    let parent = &origin.parent;
    let kind = (order.model.as_deref(), order.mode);
    // The cap of the queue was checked with the intent, before its session was opened. A launch that got
    // so far is queued even if others have filled the queue since: its session exists.
    let ticket = slots::next_ticket(db)?;
    let placed = slots::place(db, &parent.session, kind, ticket, limits)?;
    let slot = placed.unwrap_or(Slot::Queued);
    let batch = match &new.placement {
        Placement::Named(batch) => batch.clone(),
        Placement::CurrentOr(fresh) => {
            current_batch(db, &parent.session)?.unwrap_or_else(|| fresh.clone())
        }
    };
    let progress = slots::placed(db, Progress::new(new.at), slot, new.at)?;
    let short_id = free_short_id(db, &new.short_ids)?;
    let seq = insert_row(
        db,
        "task",
        &[
            ("id", &new.id.as_str()),
            ("short_id", &short_id.as_str()),
            ("nonce", &new.nonce),
            ("parent_session", &parent.session.as_str()),
            ("parent_message", &parent.message),
            ("parent_agent", &parent.agent),
            ("parent_host", &parent.host),
            ("host", &origin.host),
            ("host_instance", &origin.host_instance),
            ("directory", &origin.directory),
            ("is_forked", &origin.is_forked),
            ("depth", &origin.depth),
            ("retry_of", &origin.retry_of.as_ref().map(TaskId::as_str)),
            ("description", &order.description),
            ("agent", &order.agent),
            ("model", &order.model.as_deref().unwrap_or_default()),
            ("budget", &budget_text(&order.budget)),
            ("schema", &order.schema.as_ref().map(Schema::as_str)),
            ("blocking", &(order.mode == LaunchMode::Blocking)),
            ("batch", &batch.as_str()),
            ("development", &new.development),
            ("status", &State::Running.status().name()),
            ("started_at", &new.at.as_millis()),
            ("run", &0),
            ("slot", &rows::slot_number(slot)),
            ("ticket", &ticket),
            ("progress", &progress_text(&progress)),
            ("tool_calls", &0),
            ("revision", &0),
        ],
    )?;
    let run = NewRun {
        message_id: new.message_id.clone(),
        prompt: order.prompt.clone(),
        at: new.at,
        key: None,
    };
    insert_run(db, seq, 0, None, &run)?;
    if let Some(inherited) = &new.inheritance {
        inheritance::insert(db, seq, inherited)?;
    }
    search::append(db, seq, &order.description)?;
    let written = rows::find_task(db, "t.id = ?1", new.id.as_str())?;
    written.map(|(_, task)| task).ok_or(Error::Unreadable { column: "id" })
}

/// The first task says which one repeats it. It may have been pruned since the retry began.
fn note_retry(
    db: &Connection,
    events: &mut PendingEvents,
    first: &TaskId,
    retry: &TaskId,
) -> Result<(), Error> {
    let note = "UPDATE task SET retried_by = ?2 WHERE id = ?1";
    if db.execute(note, (first.as_str(), retry.as_str()))? > 0 {
        publish(db, events, ChangeKind::Updated, first)?;
    }
    Ok(())
}

/// An `INSERT` with each value beside the name of its column: with 29 of them, positions would be mixed up.
fn insert_row(db: &Connection, table: &str, values: &[(&str, &dyn ToValue)]) -> Result<i64, Error> {
    let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    let places = vec!["?"; values.len()].join(", ");
    let sql = format!("INSERT INTO {table} ({}) VALUES ({places}) RETURNING seq", names.join(", "));
    let values: Vec<&dyn ToValue> = values.iter().map(|(_, value)| *value).collect();
    Ok(db.query_one(&sql, values.as_slice(), |row| row.get(0))?)
}

fn insert_run(
    db: &Connection,
    task: i64,
    n: u32,
    from: Option<Status>,
    run: &NewRun,
) -> Result<(), Error> {
    let from = from.map(Status::name);
    let at = run.at.as_millis();
    db.execute(
        "INSERT INTO run (task, n, message_id, prompt, came_from, started_at, key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        (task, n, run.message_id.as_str(), &run.prompt, from, at, &run.key),
    )?;
    Ok(())
}

fn write_end(
    db: &Connection,
    seq: i64,
    now: &Task,
    change: &Change,
    how: RunEnd,
    end: &End,
) -> Result<(), Error> {
    // A resumed run that brings no result leaves `result_run` at the earlier run, whose result the task keeps.
    let own_result = change.brings_result(&now.state);
    let progress = end.progress.as_ref().unwrap_or(&now.progress);
    db.execute(
        "UPDATE task SET status = ?2, error = ?3, completed_at = ?4, slot = 0, progress = ?5,
           tool_calls = ?6, result_run = CASE WHEN ?7 THEN run ELSE result_run END,
           revision = revision + 1 WHERE seq = ?1",
        (
            seq,
            change.to.status().name(),
            change.to.error(),
            end.at.as_millis(),
            progress_text(progress),
            progress.tool_calls,
            own_result,
        ),
    )?;
    let todos = (!end.open_todos.is_empty()).then(|| text(&end.open_todos));
    db.execute(
        "UPDATE run SET ended_at = ?3, ended_as = ?4, result = ?5, error = ?6, open_todos = ?7,
           abort_owed = ?8, transcript_owed = ?9 WHERE task = ?1 AND n = ?2",
        (
            seq,
            now.run,
            end.at.as_millis(),
            how.name(),
            change.to.result().filter(|_| own_result),
            change.to.error(),
            todos,
            change.has(Effect::AbortSession),
            end.transcript,
        ),
    )?;
    Ok(())
}

fn set_stalled(db: &Connection, task: &Task, stalled: bool) -> Result<bool, Error> {
    Ok(db.execute(
        "UPDATE run SET stalled = ?3 WHERE stalled <> ?3 AND ended_at IS NULL AND n = ?2
           AND task = (SELECT seq FROM task WHERE id = ?1)",
        (task.id.as_str(), task.run, stalled),
    )? > 0)
}

/// The batch that a launch without a named one joins: that of the parent's newest queued background task, else of
/// its newest active, else of its newest parked one.
fn current_batch(db: &Connection, parent: &SessionId) -> Result<Option<BatchId>, Error> {
    // One seek per slot: within (slot, parent_session) the partial index `task_live` is sorted by ticket, so
    // `ORDER BY ticket DESC LIMIT 1` reads one row. With `slot IN (…)` all of them would have to be sorted.
    let mut newest = db.prepare(
        "SELECT batch FROM task WHERE slot = ?1 AND slot > 0 AND parent_session = ?2
           AND blocking = 0 ORDER BY ticket DESC LIMIT 1",
    )?;
    for slot in [1, 2, 3] {
        let found = newest.query_opt((slot, parent.as_str()), |row| row.get(0))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn free_short_id(db: &Connection, candidates: &[ShortId]) -> Result<ShortId, Error> {
    let mut taken = db.prepare("SELECT EXISTS (SELECT 1 FROM task WHERE short_id = ?1)")?;
    for candidate in candidates {
        if !taken.query_one([candidate.as_str()], |row| row.get::<bool>(0))? {
            return Ok(candidate.clone());
        }
    }
    Err(Error::NoShortId)
}

pub(super) fn seq_of(db: &Connection, id: &TaskId) -> Result<i64, Error> {
    Ok(db.query_one("SELECT seq FROM task WHERE id = ?1", [id.as_str()], |row| row.get(0))?)
}
