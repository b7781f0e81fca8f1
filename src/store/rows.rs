//! Rows to tasks and back. The column list and the function that reads it stand side by side.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row};

use super::Error;
use crate::task::lifecycle::{Rest, RunEnd};
use crate::task::{
    BatchId, MessageId, Parent, SessionId, ShortId, Slot, State, Status, Task, TaskId, Timestamp,
};

/// One prompt to the agent and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub n: u32,
    pub message_id: MessageId,
    pub prompt: String,
    pub started_at: Timestamp,
    pub sent_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub ended_as: Option<RunEnd>,
    pub result: Option<String>,
    pub error: Option<String>,
    pub open_todos: Vec<String>,
    pub nudge_id: Option<MessageId>,
    pub nudge_sent_at: Option<Timestamp>,
    pub continue_id: Option<MessageId>,
    pub continue_sent_at: Option<Timestamp>,
    pub stalled: bool,
}

pub(super) const TASK: &str = "t.seq, t.id, t.short_id, t.parent_session, t.parent_message, \
    t.parent_agent, t.parent_host, t.host, t.host_instance, t.directory, t.description, t.agent, \
    t.model, t.batch, t.is_forked, t.depth, t.budget, t.status, t.error, t.started_at, \
    t.completed_at, t.result_retrieved_at, t.cleared_at, t.run, t.slot, t.progress, t.revision, \
    (SELECT prompt FROM run WHERE task = t.seq AND n = 0), \
    (SELECT result FROM run WHERE task = t.seq AND n = t.result_run), \
    iif(t.status = 'resumed', (SELECT came_from FROM run WHERE task = t.seq AND n = t.run), NULL)";

pub(super) const TASK_COLUMNS: usize = 30;

/// Reads what [`TASK`] selects; the row's `seq` comes along.
pub(super) fn task(row: &Row<'_>) -> Result<(i64, Task), Error> {
    let seq = row.get(0)?;
    let task = decode(row).map_err(|error| unreadable(row, seq, error))?;
    Ok((seq, task))
}

/// Whose row it is, when what went wrong is the row's doing.
pub(super) fn unreadable(row: &Row<'_>, seq: i64, error: Error) -> Error {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
    };
    let column = match &error {
        Error::Unreadable { column } => {
            return Error::UnreadableTask { seq, field: (*column).to_owned() };
        }
        Error::Sql(source) => match source.as_ref() {
            FromSqlConversionFailure(column, ..)
            | IntegralValueOutOfRange(column, _)
            | InvalidColumnType(column, ..)
            | Utf8Error(column, _) => *column,
            _ => return error,
        },
        _ => return error,
    };
    let field = row.as_ref().column_name(column).unwrap_or("?");
    Error::UnreadableTask { seq, field: field.to_owned() }
}

fn decode(row: &Row<'_>) -> Result<Task, Error> {
    let status = parse_status(row.get_ref(17)?.as_str().unwrap_or_default())?;
    let error: Option<String> = row.get(18)?;
    let result = row.get_ref(28)?.as_str_or_null().unwrap_or_default().map(Arc::from);
    let came_from: Option<String> = row.get(29)?;
    Ok(Task {
        id: TaskId::new(row.get::<_, String>(1)?),
        short_id: ShortId::new(row.get::<_, String>(2)?),
        parent: Parent {
            session: SessionId::new(row.get::<_, String>(3)?),
            message: row.get(4)?,
            agent: row.get(5)?,
            host: row.get(6)?,
        },
        host: row.get(7)?,
        host_instance: row.get(8)?,
        directory: row.get(9)?,
        description: row.get(10)?,
        agent: row.get(11)?,
        model: Some(row.get::<_, String>(12)?).filter(|model| !model.is_empty()),
        batch: BatchId::new(row.get::<_, String>(13)?),
        is_forked: row.get(14)?,
        depth: row.get(15)?,
        budget: json("budget", row.get_ref(16)?.as_str().unwrap_or_default())?,
        state: state(status, error, result, came_from),
        started_at: Timestamp::from_millis(row.get(19)?),
        completed_at: moment(row, 20)?,
        result_retrieved_at: moment(row, 21)?,
        cleared_at: moment(row, 22)?,
        run: row.get(23)?,
        slot: slot(row.get(24)?),
        progress: json("progress", row.get_ref(25)?.as_str().unwrap_or_default())?,
        revision: row.get(26)?,
        prompt: row.get::<_, Option<String>>(27)?.unwrap_or_default(),
    })
}

/// Reads what [`TASK`] and [`RUN`] select, the run as far as there is one.
pub(super) fn task_and_run(row: &Row<'_>) -> Result<(Task, Option<Run>), Error> {
    let (seq, task) = task(row)?;
    if row.get_ref(TASK_COLUMNS)? == rusqlite::types::ValueRef::Null {
        return Ok((task, None));
    }
    let run = run(row, TASK_COLUMNS).map_err(|error| unreadable(row, seq, error))?;
    Ok((task, Some(run)))
}

pub(super) const RUN: &str = "r.n, r.message_id, r.prompt, r.started_at, r.sent_at, r.ended_at, \
    r.ended_as, r.result, r.error, r.open_todos, r.nudge_id, r.nudge_sent_at, r.continue_id, \
    r.continue_sent_at, r.stalled";

/// Reads what [`RUN`] selects, from column `at` on.
pub(super) fn run(row: &Row<'_>, at: usize) -> Result<Run, Error> {
    let ended_as: Option<String> = row.get(at + 6)?;
    let open_todos: Option<String> = row.get(at + 9)?;
    let id = |n: usize| Ok::<_, Error>(row.get::<_, Option<String>>(n)?.map(MessageId::new));
    Ok(Run {
        n: row.get(at)?,
        message_id: MessageId::new(row.get::<_, String>(at + 1)?),
        prompt: row.get(at + 2)?,
        started_at: Timestamp::from_millis(row.get(at + 3)?),
        sent_at: moment(row, at + 4)?,
        ended_at: moment(row, at + 5)?,
        ended_as: ended_as.as_deref().and_then(RunEnd::parse),
        result: row.get(at + 7)?,
        error: row.get(at + 8)?,
        // Only counted and shown: none is better than no run.
        open_todos: open_todos.and_then(|todos| json("", &todos).ok()).unwrap_or_default(),
        nudge_id: id(at + 10)?,
        nudge_sent_at: moment(row, at + 11)?,
        continue_id: id(at + 12)?,
        continue_sent_at: moment(row, at + 13)?,
        stalled: row.get(at + 14)?,
    })
}

/// One task by a condition on `t` that at most one row meets.
pub(super) fn find_task(
    db: &Connection,
    condition: &str,
    value: &str,
) -> Result<Option<(i64, Task)>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {TASK} FROM task t WHERE {condition}"))?;
    statement.query_row([value], |row| Ok(task(row))).optional()?.transpose()
}

pub(super) fn slot_number(slot: Slot) -> i64 {
    match slot {
        Slot::None => 0,
        Slot::Queued => 1,
        Slot::Active => 2,
        Slot::Parked => 3,
    }
}

fn slot(number: i64) -> Slot {
    match number {
        1 => Slot::Queued,
        2 => Slot::Active,
        3 => Slot::Parked,
        _ => Slot::None,
    }
}

pub(super) fn parse_status(word: &str) -> Result<Status, Error> {
    Status::parse(word).ok_or(Error::Unreadable { column: "status" })
}

fn state(
    status: Status,
    error: Option<String>,
    result: Option<Arc<str>>,
    came_from: Option<String>,
) -> State {
    match status {
        Status::Running => State::Running,
        Status::Completed => {
            State::Completed { result: result.unwrap_or_else(|| "".into()), error }
        }
        Status::Error => State::Failed { error: error.unwrap_or_default(), result },
        Status::Cancelled => State::Cancelled { error, result },
        Status::Resumed => {
            // What it falls back to when it cannot be resumed after all.
            let from = came_from.as_deref().and_then(Status::parse).and_then(Rest::of);
            State::Resumed { from: from.unwrap_or(Rest::Completed), result }
        }
    }
}

pub(super) fn json<T: serde::de::DeserializeOwned>(
    column: &'static str,
    text: &str,
) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|_| Error::Unreadable { column })
}

pub(super) fn moment(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>, Error> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
}
