//! Row mapping: from rows to tasks and runs, and from our types to columns. The list of columns and the enum of their
//! positions come from one macro, so that neither can be changed without the other.
//!
//! A damaged row may hold anything. Decoding never panics; what does not fit becomes `UnreadableTask` with the row's
//! number and the column's name, and the row goes into quarantine.

use std::sync::Arc;
use std::time::Duration;

use super::sql::{self, Connection, FromValue, Row, Value};
use super::{Error, stored};
use crate::task::lifecycle::{EndedState, RunEnd};
use crate::task::{
    BatchId, LaunchMode, MessageId, NoticeId, Order, Origin, Parent, Schema, SessionId, ShortId,
    Slot, State, Status, Task, Timestamp,
};

/// One prompt to the agent and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// 0 for the launch, one more for every resume.
    pub n: u32,
    /// Of the prompt: the idempotency key for sending it.
    pub message_id: MessageId,
    pub prompt: String,
    pub started_at: Timestamp,
    /// When the host accepted the prompt; without, it is still owed.
    pub sent_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub ended_as: Option<RunEnd>,
    pub result: Option<String>,
    pub error: Option<String>,
    pub open_todos: Vec<String>,
    /// The follow-up about open todos; owed while it has an id and was not sent.
    pub nudge_id: Option<MessageId>,
    pub nudge_sent_at: Option<Timestamp>,
    /// The same for going on after the host was restarted.
    pub continue_id: Option<MessageId>,
    pub continue_sent_at: Option<Timestamp>,
    /// The newest of its further prompts that the host has, and since when.
    pub further: Option<(MessageId, Timestamp)>,
    /// Others are still owed.
    pub owes_further: bool,
    /// How many of its answers did not fit the schema and were asked for again.
    pub corrections: u32,
    /// The parent was told that nothing moves; reset when something does.
    pub stalled: bool,
    /// How long it was without a slot after its prompt had been sent.
    pub waited: Duration,
}

/// A list of columns to select, and their places in the row, by one list of names.
macro_rules! columns {
    ($(#[$about:meta])* $list:ident, $column:ident: $($name:ident = $sql:literal,)+) => {
        $(#[$about])*
        pub(super) const $list: &str = columns!(@join $($sql),+);

        #[derive(Clone, Copy)]
        enum $column {
            $($name),+
        }

        impl $column {
            /// Where it is in a row that begins at `start`.
            fn at(self, start: usize) -> usize {
                start + self as usize
            }
        }
    };
    (@join $first:literal $(, $rest:literal)*) => { concat!($first $(, ", ", $rest)*) };
}

columns! {
    /// All of a task.
    TASK, Column:
    Seq = "t.seq",
    Id = "t.id",
    ShortId = "t.short_id",
    ParentSession = "t.parent_session",
    ParentMessage = "t.parent_message",
    ParentAgent = "t.parent_agent",
    ParentHost = "t.parent_host",
    Host = "t.host",
    HostInstance = "t.host_instance",
    Directory = "t.directory",
    IsForked = "t.is_forked",
    Depth = "t.depth",
    RetryOf = "t.retry_of",
    RetriedBy = "t.retried_by",
    Description = "t.description",
    Prompt = "(SELECT prompt FROM run WHERE task = t.seq AND n = 0)",
    Agent = "t.agent",
    Model = "t.model",
    Budget = "t.budget",
    Schema = "t.schema",
    Blocking = "t.blocking",
    Batch = "t.batch",
    Status = "t.status",
    Error = "t.error",
    Result = "(SELECT result FROM run WHERE task = t.seq AND n = t.result_run)",
    CameFrom = "iif(t.status = 'resumed', \
        (SELECT came_from FROM run WHERE task = t.seq AND n = t.run), NULL)",
    StartedAt = "t.started_at",
    CompletedAt = "t.completed_at",
    ResultRetrievedAt = "t.result_retrieved_at",
    ClearedAt = "t.cleared_at",
    Run = "t.run",
    Slot = "t.slot",
    Progress = "t.progress",
    Revision = "t.revision",
}

/// What follows [`TASK`] in a row begins here.
pub(super) const TASK_COLUMNS: usize = Column::Revision as usize + 1;

/// Reads what [`TASK`] selects; the row's `seq` comes along.
pub(super) fn task(row: Row<'_>) -> Result<(i64, Task), Error> {
    let seq = row.get(Column::Seq.at(0))?;
    let task = decode(row).map_err(|error| unreadable(row, seq, error))?;
    Ok((seq, task))
}

/// Turns a decoding error into one that names the task, so that it can be quarantined. Errors that are not the row's
/// fault (the disk, the file) stay as they are.
pub(super) fn unreadable(row: Row<'_>, seq: i64, error: Error) -> Error {
    let column = match &error {
        Error::Unreadable { column } => {
            return Error::UnreadableTask { seq, field: (*column).to_owned() };
        }
        Error::Failed(sql::Error::Value { column, .. }) => *column,
        _ => return error,
    };
    let field = row.column_name(column).unwrap_or("?");
    Error::UnreadableTask { seq, field: field.to_owned() }
}

fn decode(row: Row<'_>) -> Result<Task, Error> {
    use Column as Is;
    Ok(Task {
        id: row.get(Is::Id.at(0))?,
        short_id: row.get(Is::ShortId.at(0))?,
        origin: Origin {
            parent: Parent {
                session: row.get(Is::ParentSession.at(0))?,
                message: row.get(Is::ParentMessage.at(0))?,
                agent: row.get(Is::ParentAgent.at(0))?,
                host: row.get(Is::ParentHost.at(0))?,
            },
            host: row.get(Is::Host.at(0))?,
            host_instance: row.get(Is::HostInstance.at(0))?,
            directory: row.get(Is::Directory.at(0))?,
            depth: row.get(Is::Depth.at(0))?,
            is_forked: row.get(Is::IsForked.at(0))?,
            retry_of: row.get(Is::RetryOf.at(0))?,
        },
        order: Order {
            description: row.get(Is::Description.at(0))?,
            prompt: row.get::<Option<String>>(Is::Prompt.at(0))?.unwrap_or_default(),
            agent: row.get(Is::Agent.at(0))?,
            model: Some(row.get(Is::Model.at(0))?).filter(|model: &String| !model.is_empty()),
            budget: stored::budget(row.get::<&str>(Is::Budget.at(0)).unwrap_or_default())?,
            schema: row.get::<Option<&str>>(Is::Schema.at(0))?.map(Schema::from_text),
            // 2 is one whose caller went on without it; see `tasks`.
            mode: match row.get::<i64>(Is::Blocking.at(0))? {
                0 => LaunchMode::Background,
                _ => LaunchMode::Blocking,
            },
        },
        batch: row.get(Is::Batch.at(0))?,
        state: state(row)?,
        started_at: row.get(Is::StartedAt.at(0))?,
        completed_at: row.get(Is::CompletedAt.at(0))?,
        result_retrieved_at: row.get(Is::ResultRetrievedAt.at(0))?,
        cleared_at: row.get(Is::ClearedAt.at(0))?,
        retried_by: row.get(Is::RetriedBy.at(0))?,
        run: row.get(Is::Run.at(0))?,
        slot: slot(row.get(Is::Slot.at(0))?),
        progress: stored::progress(row.get::<&str>(Is::Progress.at(0)).unwrap_or_default())?,
        revision: row.get(Is::Revision.at(0))?,
    })
}

/// Reads what [`TASK`] and [`RUN`] select; without a run when an outer join found none.
pub(super) fn task_and_run(row: Row<'_>) -> Result<(Task, Option<Run>), Error> {
    let (seq, task) = task(row)?;
    if row.value(TASK_COLUMNS)? == Value::Null {
        return Ok((task, None));
    }
    let run = run(row, TASK_COLUMNS).map_err(|error| unreadable(row, seq, error))?;
    Ok((task, Some(run)))
}

columns! {
    /// All of a run.
    RUN, RunColumn:
    N = "r.n",
    MessageId = "r.message_id",
    Prompt = "r.prompt",
    StartedAt = "r.started_at",
    SentAt = "r.sent_at",
    EndedAt = "r.ended_at",
    EndedAs = "r.ended_as",
    Result = "r.result",
    Error = "r.error",
    OpenTodos = "r.open_todos",
    NudgeId = "r.nudge_id",
    NudgeSentAt = "r.nudge_sent_at",
    ContinueId = "r.continue_id",
    ContinueSentAt = "r.continue_sent_at",
    FurtherId = "(SELECT message_id FROM further_prompt \
        WHERE task = r.task AND run = r.n AND sent_at IS NOT NULL ORDER BY seq DESC LIMIT 1)",
    FurtherSentAt = "(SELECT sent_at FROM further_prompt \
        WHERE task = r.task AND run = r.n AND sent_at IS NOT NULL ORDER BY seq DESC LIMIT 1)",
    OwesFurther = "EXISTS (SELECT 1 FROM further_prompt \
        WHERE task = r.task AND run = r.n AND sent_at IS NULL)",
    Corrections = "(SELECT count(*) FROM further_prompt \
        WHERE task = r.task AND run = r.n AND correction = 1)",
    Stalled = "r.stalled",
    Waited = "r.waited",
}

/// Reads what [`RUN`] selects, from column `start` on.
pub(super) fn run(row: Row<'_>, start: usize) -> Result<Run, Error> {
    use RunColumn as Is;
    let ended_as: Option<String> = row.get(Is::EndedAs.at(start))?;
    let open_todos: Option<String> = row.get(Is::OpenTodos.at(start))?;
    let further: Option<MessageId> = row.get(Is::FurtherId.at(start))?;
    Ok(Run {
        n: row.get(Is::N.at(start))?,
        message_id: row.get(Is::MessageId.at(start))?,
        prompt: row.get(Is::Prompt.at(start))?,
        started_at: row.get(Is::StartedAt.at(start))?,
        sent_at: row.get(Is::SentAt.at(start))?,
        ended_at: row.get(Is::EndedAt.at(start))?,
        ended_as: ended_as.as_deref().and_then(RunEnd::parse),
        result: row.get(Is::Result.at(start))?,
        error: row.get(Is::Error.at(start))?,
        // Only counted and shown: a list that cannot be read is empty, and no reason to quarantine the task.
        open_todos: open_todos.and_then(|todos| json("", &todos).ok()).unwrap_or_default(),
        nudge_id: row.get(Is::NudgeId.at(start))?,
        nudge_sent_at: row.get(Is::NudgeSentAt.at(start))?,
        continue_id: row.get(Is::ContinueId.at(start))?,
        continue_sent_at: row.get(Is::ContinueSentAt.at(start))?,
        further: further.zip(row.get(Is::FurtherSentAt.at(start))?),
        owes_further: row.get(Is::OwesFurther.at(start))?,
        corrections: row.get(Is::Corrections.at(start))?,
        stalled: row.get(Is::Stalled.at(start))?,
        waited: Duration::from_millis(row.get::<i64>(Is::Waited.at(start))?.unsigned_abs()),
    })
}

/// One task by a condition on `t` that at most one row meets.
pub(super) fn find_task(
    db: &Connection,
    condition: &str,
    value: &str,
) -> Result<Option<(i64, Task)>, Error> {
    db.query_opt(&format!("SELECT {TASK} FROM task t WHERE {condition}"), [value], |row| {
        Ok(task(row))
    })?
    .transpose()
}

impl FromValue<'_> for SessionId {
    fn from_value(value: Value<'_>) -> Option<SessionId> {
        String::from_value(value).map(SessionId::new)
    }
}

impl FromValue<'_> for MessageId {
    fn from_value(value: Value<'_>) -> Option<MessageId> {
        String::from_value(value).map(MessageId::new)
    }
}

impl FromValue<'_> for ShortId {
    fn from_value(value: Value<'_>) -> Option<ShortId> {
        String::from_value(value).map(ShortId::new)
    }
}

impl FromValue<'_> for BatchId {
    fn from_value(value: Value<'_>) -> Option<BatchId> {
        String::from_value(value).map(BatchId::new)
    }
}

impl FromValue<'_> for NoticeId {
    fn from_value(value: Value<'_>) -> Option<NoticeId> {
        i64::from_value(value).map(NoticeId::new)
    }
}

impl FromValue<'_> for Timestamp {
    fn from_value(value: Value<'_>) -> Option<Timestamp> {
        i64::from_value(value).map(Timestamp::from_millis)
    }
}

/// As it stands in the column. Live ones are greater than 0, which is the condition of the index `task_live`.
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

fn state(row: Row<'_>) -> Result<State, Error> {
    // A status that is no text becomes an empty word, which is refused as an unknown status.
    let status = parse_status(row.get::<&str>(Column::Status.at(0)).unwrap_or_default())?;
    let error: Option<String> = row.get(Column::Error.at(0))?;
    let result = row.get::<Option<&str>>(Column::Result.at(0)).unwrap_or_default();
    // Shared and not copied: results may be long, and a task is cloned for every listener.
    let result: Option<Arc<str>> = result.map(Arc::from);
    Ok(match status {
        Status::Running => State::Running,
        Status::Completed => {
            State::Completed { result: result.unwrap_or_else(|| "".into()), error }
        }
        Status::Error => State::Failed { error: error.unwrap_or_default(), result },
        Status::Cancelled => State::Cancelled { error, result },
        Status::Resumed => {
            // The state it goes back to when the resume fails.
            let from: Option<String> = row.get(Column::CameFrom.at(0))?;
            let from = from.as_deref().and_then(Status::parse).and_then(EndedState::of);
            State::Resumed { from: from.unwrap_or(EndedState::Completed), result }
        }
    })
}

pub(super) fn json<T: serde::de::DeserializeOwned>(
    column: &'static str,
    text: &str,
) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|_| Error::Unreadable { column })
}

/// A value as JSON, for a text column.
pub(super) fn text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types are JSON")
}
