//! The changes a task goes through. Each is one all-or-nothing write, conditional on what was read.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::rows::{self, RUN, Run, TASK, TASK_COLUMNS};
use super::writer::{News, What};
use super::{Error, Inheritance, Store, Written, inheritance, search, slots};
use crate::task::lifecycle::{Change, Rest, RunEnd, State};
use crate::task::queue::{Limits, Manner};
use crate::task::view::{SCHEMA, TaskView};
use crate::task::{
    BatchId, Budget, MAILBOX, MessageId, Parent, Phase, Progress, SessionId, ShortId, Slot, Task,
    TaskId, Timestamp,
};

/// A task whose session exists and whose row does not yet.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub id: TaskId,
    /// The first one that is free is taken.
    pub short_ids: Vec<ShortId>,
    pub nonce: String,
    pub parent: Parent,
    pub host: String,
    pub host_instance: String,
    pub directory: String,
    pub description: String,
    pub prompt: String,
    pub agent: String,
    pub model: Option<String>,
    pub manner: Manner,
    pub placement: Placement,
    pub is_forked: bool,
    /// What has to be handed over before the prompt.
    pub inheritance: Option<Inheritance>,
    pub depth: u32,
    pub budget: Budget,
    pub development: bool,
    pub message_id: MessageId,
    pub at: Timestamp,
    pub ticket: u64,
}

/// Which batch a new task joins (T10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    Named(BatchId),
    /// The parent's batch that still has a live task, else this one.
    CurrentOr(BatchId),
}

#[derive(Clone, Debug)]
pub struct NewRun {
    pub message_id: MessageId,
    pub prompt: String,
    pub at: Timestamp,
    pub ticket: u64,
    /// The same key begins the same run.
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
    /// The session is still at work and has to be stopped.
    pub abort: bool,
    /// What was said in the session is to be kept, because it is nowhere else in the store.
    pub transcript: bool,
}

/// A task that holds a slot, with its current run.
#[derive(Clone, Debug, PartialEq)]
pub struct Active {
    pub task: Task,
    pub run: Run,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Resumed {
    Yes(Box<Task>),
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
    /// Go on after the host was restarted in mid-run.
    Continue,
}

impl Store {
    /// Makes the task whole and takes its intent away. Asked twice, it answers with the same task.
    pub fn insert(&self, new: NewTask, limits: Arc<Limits>) -> Written<Task> {
        self.write(move |db, news| {
            db.prepare_cached("DELETE FROM intent WHERE nonce = ?1")?.execute([&new.nonce])?;
            if let Some((_, task)) = rows::find_task(db, "t.nonce = ?1", &new.nonce)? {
                return Ok(task);
            }
            let task = insert(db, &new, &limits)?;
            news.push((What::Created, task.clone()));
            Ok(task)
        })
    }

    /// Ends the current run: state, result and owed notice, or nothing.
    ///
    /// `None` means the task moved on since it was read: the caller's news is stale.
    pub fn end(&self, before: &Task, change: Change, end: End) -> Written<Option<Task>> {
        let (id, revision) = (before.id.clone(), before.revision);
        self.write(move |db, news| {
            let Some((seq, now)) = rows::find_task(db, "t.id = ?1", id.as_str())? else {
                return Ok(None);
            };
            let Some(how) = change.run_end().filter(|_| now.revision == revision) else {
                return Ok(None);
            };
            write_end(db, seq, &now, &change, how, &end)?;
            owe(db, seq, &now, &end, NoticeKind::End)?;
            publish(db, news, What::Ended, &id)
        })
    }

    /// Begins another run of an ended task.
    pub fn resume(
        &self,
        before: &Task,
        from: Rest,
        run: NewRun,
        limits: Arc<Limits>,
    ) -> Written<Resumed> {
        let before = before.clone();
        self.write(move |db, news| {
            let id = &before.id;
            let kind = (before.model.as_deref(), Manner::Background);
            let placed = slots::place(db, &before.parent.session, kind, run.ticket, &limits)?;
            let Some(slot) = placed else { return Ok(Resumed::QueueFull) };
            let progress = starting(before.progress.clone(), slot, run.at);
            let mut update = db.prepare_cached(
                "UPDATE task SET status = 'resumed', error = NULL, completed_at = NULL,
                   result_retrieved_at = NULL, cleared_at = NULL,
                   blocking = min(blocking * 2, 2), run = run + 1, slot = ?3, ticket = ?4,
                   progress = ?5, revision = revision + 1 WHERE id = ?1 AND revision = ?2",
            )?;
            let moved = update.execute((
                id.as_str(),
                before.revision,
                rows::slot_number(slot),
                run.ticket as i64,
                text(&progress),
            ))?;
            if moved == 0 {
                return Ok(Resumed::Stale);
            }
            let seq = seq_of(db, id)?;
            db.prepare_cached("DELETE FROM view WHERE task = ?1")?.execute([seq])?;
            insert_run(db, seq, before.run + 1, Some(from), &run)?;
            let resumed = publish(db, news, What::Updated, id)?;
            Ok(resumed.map_or(Resumed::Stale, |task| Resumed::Yes(Box::new(task))))
        })
    }

    /// Nobody waits for the task any more: it goes on as one in the background.
    pub fn let_go(&self, id: &TaskId) -> Written<()> {
        let id = id.clone();
        self.write(move |db, _| {
            db.prepare_cached("UPDATE task SET blocking = 2 WHERE id = ?1 AND blocking = 1")?
                .execute([id.as_str()])?;
            Ok(())
        })
    }

    /// The same for all: whoever waited is gone.
    pub fn let_all_go(&self) -> Written<()> {
        self.write(move |db, _| {
            db.execute(
                "UPDATE task SET blocking = 2 WHERE slot IN (1, 2, 3) AND slot > 0 AND blocking = 1",
                [],
            )?;
            Ok(())
        })
    }

    /// Whether a run of the task was begun with this key, also when others followed.
    pub fn was_begun_with(&self, id: &TaskId, key: &str) -> Result<bool, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM task t JOIN run r ON r.task = t.seq
                 WHERE t.id = ?1 AND r.key = ?2)",
            )?;
            Ok(statement.query_row((id.as_str(), key), |row| row.get(0))?)
        })
    }

    /// Every task that holds a slot, with its current run.
    pub fn active(&self) -> Result<Vec<Active>, Error> {
        self.read(|db| {
            select_active(
                db,
                "FROM task t JOIN run r ON r.task = t.seq AND r.n = t.run
                 WHERE t.slot = 2 AND t.slot > 0",
            )
        })
    }

    /// Those of them with a prompt that no host has accepted yet.
    pub fn unprompted(&self) -> Result<Vec<Active>, Error> {
        self.read(|db| {
            select_active(
                db,
                "FROM task t JOIN run r ON r.task = t.seq AND r.n = t.run
                 WHERE t.slot = 2 AND t.slot > 0 AND (r.sent_at IS NULL
                   OR (r.nudge_id IS NOT NULL AND r.nudge_sent_at IS NULL)
                   OR (r.continue_id IS NOT NULL AND r.continue_sent_at IS NULL))",
            )
        })
    }

    /// Tasks whose session is still to be stopped, each with the run it was stopped in.
    pub fn owed_aborts(&self) -> Result<Vec<(Task, u32)>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(&format!(
                "SELECT {TASK}, r.n FROM run r INDEXED BY run_abort_owed
                 JOIN task t ON t.seq = r.task WHERE r.abort_owed = 1"
            ))?;
            let mut found = statement.query([])?;
            let mut owed = Vec::new();
            while let Some(row) = found.next()? {
                owed.push((rows::task(row)?.1, row.get(TASK_COLUMNS)?));
            }
            Ok(owed)
        })
    }

    /// The host has stopped it, or there is nothing left to stop.
    pub fn abort_sent(&self, id: &TaskId, run: u32) -> Written<()> {
        let id = id.clone();
        self.write_along(move |db, _| {
            db.prepare_cached(
                "UPDATE run SET abort_owed = 0
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
            )?
            .execute((id.as_str(), run))?;
            Ok(())
        })
    }

    /// Forgets that this prompt of the run was sent: the host does not have it.
    pub fn prompt_lost(&self, task: &Task, prompt: &MessageId) -> Written<()> {
        let (id, run, prompt) = (task.id.clone(), task.run, prompt.clone());
        self.write(move |db, _| {
            db.prepare_cached(
                "UPDATE run SET sent_at = iif(message_id = ?3, NULL, sent_at),
                   nudge_sent_at = iif(nudge_id = ?3, NULL, nudge_sent_at),
                   continue_sent_at = iif(continue_id = ?3, NULL, continue_sent_at)
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
            )?
            .execute((id.as_str(), run, prompt.as_str()))?;
            Ok(())
        })
    }

    /// Notes that the host has accepted the run's prompt.
    pub fn prompt_sent(&self, task: &Task, at: Timestamp) -> Written<()> {
        self.set_run_time("sent_at", task, at)
    }

    /// Writes down that a follow-up is owed, before it is sent. `false`: it already was.
    pub fn owe_follow_up(
        &self,
        task: &Task,
        follow_up: FollowUp,
        message_id: MessageId,
    ) -> Written<bool> {
        let column = match follow_up {
            FollowUp::Todos => "nudge_id",
            FollowUp::Continue => "continue_id",
        };
        let (id, run) = (task.id.clone(), task.run);
        self.write(move |db, _| {
            let mut update = db.prepare_cached(&format!(
                "UPDATE run SET {column} = ?3 WHERE {column} IS NULL AND ended_at IS NULL
                   AND n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)"
            ))?;
            Ok(update.execute((id.as_str(), run, message_id.as_str()))? > 0)
        })
    }

    pub fn follow_up_sent(&self, task: &Task, follow_up: FollowUp, at: Timestamp) -> Written<()> {
        let column = match follow_up {
            FollowUp::Todos => "nudge_sent_at",
            FollowUp::Continue => "continue_sent_at",
        };
        self.set_run_time(column, task, at)
    }

    fn set_run_time(&self, column: &'static str, task: &Task, at: Timestamp) -> Written<()> {
        let (id, run) = (task.id.clone(), task.run);
        self.write_along(move |db, _| {
            let mut update = db.prepare_cached(&format!(
                "UPDATE run SET {column} = ?3
                 WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)"
            ))?;
            update.execute((id.as_str(), run, at.as_millis()))?;
            Ok(())
        })
    }

    /// Writes new figures of a task that is still in the run they belong to.
    pub fn set_progress(&self, task: &Task, progress: Progress) -> Written<()> {
        let (id, run) = (task.id.clone(), task.run);
        self.write_along(move |db, news| {
            let mut update = db.prepare_cached(
                "UPDATE task SET progress = ?3, tool_calls = ?4
                 WHERE id = ?1 AND run = ?2 AND slot = 2",
            )?;
            let values = (id.as_str(), run, text(&progress), progress.tool_calls);
            if update.execute(values)? > 0 {
                publish(db, news, What::Updated, &id)?;
            }
            Ok(())
        })
    }

    /// Marks a stall and owes its notice, once per stall.
    pub fn stall(
        &self,
        task: &Task,
        progress: Progress,
        quiet: std::time::Duration,
        end: End,
    ) -> Written<bool> {
        let task = task.clone();
        self.write(move |db, news| {
            if !set_stalled(db, &task, true)? {
                return Ok(false);
            }
            db.prepare_cached("UPDATE task SET progress = ?2 WHERE id = ?1")?
                .execute((task.id.as_str(), text(&progress)))?;
            let seq = seq_of(db, &task.id)?;
            owe(db, seq, &task, &end, NoticeKind::Stall { seconds: quiet.as_secs() })?;
            publish(db, news, What::Updated, &task.id)?;
            Ok(true)
        })
    }

    /// The task moves again; the next stall is news again.
    pub fn unstall(&self, task: &Task) -> Written<bool> {
        let task = task.clone();
        self.write(move |db, _| set_stalled(db, &task, false))
    }

    /// The first retrieval of a result leaves its time.
    pub fn retrieved(&self, tasks: Vec<TaskId>, at: Timestamp) -> Written<()> {
        self.write(move |db, news| {
            let mut update = db.prepare_cached(
                "UPDATE task SET result_retrieved_at = ?2 WHERE id = ?1 AND slot = 0
                   AND (result_retrieved_at IS NULL OR result_retrieved_at < completed_at)",
            )?;
            for id in tasks {
                if update.execute((id.as_str(), at.as_millis()))? > 0 {
                    publish(db, news, What::Updated, &id)?;
                }
            }
            Ok(())
        })
    }

    /// Takes the parent's ended tasks off its list; they stay in the history. A live one that was
    /// launched meanwhile stays on it.
    pub fn clear(&self, parent: &SessionId, at: Timestamp) -> Written<usize> {
        let parent = parent.clone();
        self.write(move |db, news| {
            let ids: Vec<String> = db
                .prepare_cached(
                    "UPDATE task SET cleared_at = ?2
                     WHERE parent_session = ?1 AND cleared_at IS NULL AND slot = 0 RETURNING id",
                )?
                .query_map((parent.as_str(), at.as_millis()), |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            for id in &ids {
                publish(db, news, What::Updated, &TaskId::new(id.as_str()))?;
            }
            Ok(ids.len())
        })
    }
}

fn select_active(db: &Connection, from: &str) -> Result<Vec<Active>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {TASK}, {RUN} {from} ORDER BY t.ticket"))?;
    let mut found = statement.query([])?;
    let mut active = Vec::new();
    while let Some(row) = found.next()? {
        if let (task, Some(run)) = rows::task_and_run(row)? {
            active.push(Active { task, run });
        }
    }
    Ok(active)
}

fn insert(db: &Connection, new: &NewTask, limits: &Limits) -> Result<Task, Error> {
    let kind = (new.model.as_deref(), new.manner);
    // Whether there is room to wait was asked before its session was opened.
    let placed = slots::place(db, &new.parent.session, kind, new.ticket, limits)?;
    let slot = placed.unwrap_or(Slot::Queued);
    let batch = match &new.placement {
        Placement::Named(batch) => batch.clone(),
        Placement::CurrentOr(fresh) => {
            current_batch(db, &new.parent.session)?.unwrap_or_else(|| fresh.clone())
        }
    };
    let progress = starting(Progress::new(new.at), slot, new.at);
    let short_id = free_short_id(db, &new.short_ids)?;
    let mut insert = db.prepare_cached(
        "INSERT INTO task (id, short_id, nonce, parent_session, parent_message, parent_agent,
           parent_host, host, host_instance, directory, description, agent, model, batch,
           is_forked, depth, budget, development, status, started_at, run, slot, ticket, progress,
           tool_calls, revision, blocking)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
           'running', ?19, 0, ?20, ?21, ?22, 0, 0, ?23)",
    )?;
    let seq = insert.insert(rusqlite::params![
        new.id.as_str(),
        short_id.as_str(),
        new.nonce,
        new.parent.session.as_str(),
        new.parent.message,
        new.parent.agent,
        new.parent.host,
        new.host,
        new.host_instance,
        new.directory,
        new.description,
        new.agent,
        new.model.as_deref().unwrap_or_default(),
        batch.as_str(),
        new.is_forked,
        new.depth,
        text(&new.budget),
        new.development,
        new.at.as_millis(),
        rows::slot_number(slot),
        new.ticket as i64,
        text(&progress),
        new.manner == Manner::Blocking,
    ])?;
    let run = NewRun {
        message_id: new.message_id.clone(),
        prompt: new.prompt.clone(),
        at: new.at,
        ticket: new.ticket,
        key: None,
    };
    insert_run(db, seq, 0, None, &run)?;
    if let Some(inherited) = &new.inheritance {
        inheritance::insert(db, seq, inherited)?;
    }
    search::append(db, seq, &new.description)?;
    Ok(Task {
        id: new.id.clone(),
        short_id,
        parent: new.parent.clone(),
        host: new.host.clone(),
        host_instance: new.host_instance.clone(),
        directory: new.directory.clone(),
        description: new.description.clone(),
        prompt: new.prompt.clone(),
        agent: new.agent.clone(),
        model: new.model.clone(),
        batch,
        is_forked: new.is_forked,
        depth: new.depth,
        budget: new.budget.clone(),
        state: State::Running,
        started_at: new.at,
        completed_at: None,
        result_retrieved_at: None,
        cleared_at: None,
        run: 0,
        slot,
        progress,
        revision: 0,
    })
}

fn insert_run(
    db: &Connection,
    task: i64,
    n: u32,
    from: Option<Rest>,
    run: &NewRun,
) -> Result<(), Error> {
    let mut insert = db.prepare_cached(
        "INSERT INTO run (task, n, message_id, prompt, came_from, started_at, key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let from = from.map(|from| from.status().name());
    let at = run.at.as_millis();
    insert.execute((task, n, run.message_id.as_str(), &run.prompt, from, at, &run.key))?;
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
    // An unchanged text is the result of an earlier run; it stays where it is.
    let result = change.to.result();
    let own_result = how == RunEnd::Completed || result != now.state.result();
    let progress = end.progress.as_ref().unwrap_or(&now.progress);
    db.prepare_cached(
        "UPDATE task SET status = ?2, error = ?3, completed_at = ?4, slot = 0, progress = ?5,
           tool_calls = ?6, result_run = CASE WHEN ?7 THEN run ELSE result_run END,
           revision = revision + 1 WHERE seq = ?1",
    )?
    .execute((
        seq,
        change.to.status().name(),
        change.to.error(),
        end.at.as_millis(),
        text(progress),
        progress.tool_calls,
        own_result,
    ))?;
    let todos = (!end.open_todos.is_empty()).then(|| text(&end.open_todos));
    db.prepare_cached(
        "UPDATE run SET ended_at = ?3, ended_as = ?4, result = ?5, error = ?6, open_todos = ?7,
           abort_owed = ?8, transcript_owed = ?9 WHERE task = ?1 AND n = ?2",
    )?
    .execute((
        seq,
        now.run,
        end.at.as_millis(),
        how.name(),
        result.filter(|_| own_result),
        change.to.error(),
        todos,
        end.abort,
        end.transcript,
    ))?;
    Ok(())
}

pub(super) enum NoticeKind {
    End,
    Stall { seconds: u64 },
}

/// Writes the notice. A parent that is no conversation has it with that: it is in its mailbox.
pub(super) fn owe(
    db: &Connection,
    seq: i64,
    task: &Task,
    end: &End,
    kind: NoticeKind,
) -> Result<(), Error> {
    let (nth, quiet) = match kind {
        NoticeKind::End => (0, None),
        NoticeKind::Stall { seconds } => {
            (stalls_told(db, seq, task.run)? + 1, Some(seconds as i64))
        }
    };
    let (total, live): (i64, i64) = db
        .prepare_cached("SELECT total, live FROM batch WHERE id = ?1")?
        .query_row([task.batch.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        // A batch whose name was damaged is nobody's.
        .unwrap_or((1, 0));
    let at = end.at.as_millis();
    let delivered = (task.parent.host == MAILBOX).then_some(at);
    // Whose own doing it was need not read about it.
    let read = delivered.filter(|_| !end.wake);
    db.prepare_cached(
        "INSERT INTO notice (task, run, nth, parent_host, parent_session, message_id, wake,
           batch_ended, batch_total, quiet_seconds, created_at, due_at, delivered_at, read_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13)",
    )?
    .execute(rusqlite::params![
        seq,
        task.run,
        nth,
        task.parent.host,
        task.parent.session.as_str(),
        end.message_id.as_str(),
        end.wake,
        total - live,
        total,
        quiet,
        at,
        delivered,
        read,
    ])?;
    Ok(())
}

fn stalls_told(db: &Connection, task: i64, run: u32) -> Result<i64, Error> {
    let mut count =
        db.prepare_cached("SELECT count(*) FROM notice WHERE task = ?1 AND run = ?2 AND nth > 0")?;
    Ok(count.query_row((task, run), |row| row.get(0))?)
}

fn set_stalled(db: &Connection, task: &Task, stalled: bool) -> Result<bool, Error> {
    let mut update = db.prepare_cached(
        "UPDATE run SET stalled = ?3 WHERE stalled <> ?3 AND ended_at IS NULL AND n = ?2
           AND task = (SELECT seq FROM task WHERE id = ?1)",
    )?;
    Ok(update.execute((task.id.as_str(), task.run, stalled))? > 0)
}

fn current_batch(db: &Connection, parent: &SessionId) -> Result<Option<BatchId>, Error> {
    let mut newest = db.prepare_cached(
        "SELECT batch FROM task WHERE slot = ?1 AND slot > 0 AND parent_session = ?2
           AND blocking = 0 ORDER BY ticket DESC LIMIT 1",
    )?;
    for slot in [1, 2, 3] {
        let found = newest.query_row((slot, parent.as_str()), |row| row.get::<_, String>(0));
        if let Some(batch) = found.optional()? {
            return Ok(Some(BatchId::new(batch)));
        }
    }
    Ok(None)
}

fn free_short_id(db: &Connection, candidates: &[ShortId]) -> Result<ShortId, Error> {
    let mut taken = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM task WHERE short_id = ?1)")?;
    for candidate in candidates {
        if !taken.query_row([candidate.as_str()], |row| row.get::<_, bool>(0))? {
            return Ok(candidate.clone());
        }
    }
    Err(Error::NoShortId)
}

pub(super) fn starting(progress: Progress, slot: Slot, at: Timestamp) -> Progress {
    let phase = match slot {
        Slot::Queued | Slot::Parked => Phase::Queued,
        Slot::Active | Slot::None => Phase::Starting,
    };
    Progress { phase, last_update: at, detail: None, ..progress }
}

fn seq_of(db: &Connection, id: &TaskId) -> Result<i64, Error> {
    let mut statement = db.prepare_cached("SELECT seq FROM task WHERE id = ?1")?;
    Ok(statement.query_row([id.as_str()], |row| row.get(0))?)
}

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
        db.prepare_cached("INSERT OR REPLACE INTO view (task, json, schema) VALUES (?1, ?2, ?3)")?
            .execute((seq, TaskView::brief(&task).to_json(), SCHEMA))?;
    }
    news.push((what, task.clone()));
    Ok(Some(task))
}

pub(super) fn text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types are JSON")
}
