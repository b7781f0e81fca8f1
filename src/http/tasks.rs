//! `/v1/tasks`: launching, listing, reading, resuming and retrying tasks.
//!
//! Routes take full session ids; only `/v1/resolve` knows short ids and prefixes of ids. Pages are assembled
//! from stored JSON without parsing it.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::Api;
use super::body::{Body, Id, JSON, Params};
use super::error::ApiError;
use super::permissions;
use crate::supervisor::{
    Direction, Field, Filter, Fork, Launch, Sort, Supervisor, WaitEnd, Window,
};
use crate::task::launch::{Plan, plan};
use crate::task::{BatchId, SessionId, Status, TaskId};
use crate::threads;
use crate::tools;
use crate::wire::{
    DetailView, ErrorView, InheritedView, LaunchRequest, MessageFilter, MessagesView,
    OutputRequest, OutputView, PageView, ResolveRequest, ResumeRequest, RetryRequest, TaskView,
    TasksView, UsageView,
};

const USUAL_PAGE: u64 = 50;
const LARGEST_PAGE: u64 = 200;
/// The initial capacity of a page's buffer. Most pages fit, and are not copied while they grow.
const USUAL_ANSWER: usize = 96 << 10;
/// The largest integer that every JSON parser represents exactly (2^53 - 1).
pub(super) const LARGEST_NUMBER: u64 = (1 << 53) - 1;
const LONGEST_WAIT: f64 = 3600.0;

pub(super) async fn launch(
    State(api): State<Api>,
    Body(request): Body<LaunchRequest>,
) -> Result<Response, ApiError> {
    let caller = tools::caller(request.caller)?;
    let (wanted, fork) = match plan(request.arguments)? {
        Plan::Fresh(wanted) => (wanted, Fork::No),
        Plan::Forked(wanted) => (wanted, request.fork_session.map_or(Fork::Caller, Fork::Session)),
        Plan::Resume { .. } => {
            return Err(ApiError::bad_request("to resume, POST to /v1/tasks/{id}/resume"));
        }
    };
    let task = api.supervisor.launch(caller, Launch { wanted, fork, key: request.key }).await?;
    Ok((StatusCode::CREATED, Json(TaskView::from(&task))).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Only tasks in this state.
    #[param(schema_with = statuses)]
    status: Option<String>,
    /// Only tasks of this agent.
    agent: Option<String>,
    /// Only tasks whose description contains this, ignoring case.
    search: Option<String>,
    /// Only tasks of this parent session.
    parent: Option<String>,
    /// Only tasks of this batch.
    batch: Option<String>,
    /// Only tasks whose agents run on this host.
    host: Option<String>,
    /// Leave out what was cleared from its parent's list.
    listed: Option<bool>,
    /// A field and a direction; newest first if left out.
    #[param(schema_with = sorts)]
    sort: Option<String>,
    /// At most 200 are given at once.
    #[param(minimum = 0, maximum = 9007199254740991_i64, default = 50)]
    limit: Option<u64>,
    #[param(minimum = 0, maximum = 9007199254740991_i64, default = 0)]
    offset: Option<u64>,
}

/// The page that is asked for, within the limits.
pub(super) fn window(limit: Option<u64>, offset: Option<u64>) -> Result<Window, ApiError> {
    let (limit, offset) = (limit.unwrap_or(USUAL_PAGE), offset.unwrap_or(0));
    if limit.max(offset) > LARGEST_NUMBER {
        return Err(ApiError::bad_request("`limit` and `offset` go up to 9007199254740991"));
    }
    Ok(Window { limit: limit.min(LARGEST_PAGE), offset })
}

const FIELDS: [(&str, Field); 4] = [
    ("startedAt", Field::StartedAt),
    ("completedAt", Field::CompletedAt),
    ("status", Field::Status),
    ("agent", Field::Agent),
];
const DIRECTIONS: [(&str, Direction); 2] =
    [("asc", Direction::Ascending), ("desc", Direction::Descending)];

/// A page of all tasks, newest first, filtered and searched
#[utoipa::path(get, path = "/v1/tasks", tag = "status", params(PageQuery), responses(
    (status = 200, description = "the page, and how many tasks match in all", body = PageView),
    (status = 400, description = "the query cannot be understood", body = ErrorView),
))]
pub(super) async fn page(
    State(api): State<Api>,
    Params(query): Params<PageQuery>,
) -> Result<Response, ApiError> {
    let window = window(query.limit, query.offset)?;
    let sort = query.sort.as_deref().map_or(Ok(Sort::default()), parse_sort)?;
    let filter = Filter {
        status: query.status.as_deref().map(parse_status).transpose()?,
        agent: query.agent,
        parent: query.parent.map(SessionId::new),
        batch: query.batch.map(BatchId::new),
        host: query.host,
        listed_only: query.listed.unwrap_or(false),
        search: query.search,
    };
    let mut answer = Vec::with_capacity(USUAL_ANSWER);
    answer.extend_from_slice(b"{\"tasks\":[");
    // Most pages are read in less time than it takes to hand them to another thread, so those are read
    // here; `None` means that this one may have to count or scan.
    let at_once = api.supervisor.page_json_at_once(&filter, sort, window, &mut answer)?;
    let (mut answer, total) = match at_once {
        Some(total) => (answer, total),
        None => {
            let page = move |supervisor: &Supervisor| {
                let total = supervisor.page_json(&filter, sort, window, &mut answer)?;
                Ok((answer, total))
            };
            api.read(page).await?
        }
    };
    let Window { limit, offset } = window;
    let rest = format!("],\"total\":{total},\"limit\":{limit},\"offset\":{offset}}}");
    answer.extend_from_slice(rest.as_bytes());
    Ok((JSON, answer).into_response())
}

fn parse_status(word: &str) -> Result<Status, ApiError> {
    Status::parse(word).ok_or_else(|| {
        let known = Status::ALL.map(Status::name).join(", ");
        ApiError::bad_request(format!("no status `{word}`; there are: {known}"))
    })
}

fn parse_sort(text: &str) -> Result<Sort, ApiError> {
    let (field, direction) = text.split_once(':').unwrap_or((text, "desc"));
    let field = FIELDS.iter().find(|(name, _)| *name == field);
    let direction = DIRECTIONS.iter().find(|(name, _)| *name == direction);
    match (field, direction) {
        (Some((_, field)), Some((_, direction))) => {
            Ok(Sort { field: *field, direction: *direction })
        }
        (_, _) => Err(ApiError::bad_request(format!(
            "cannot sort by `{text}`; give one of {}, with `:asc` or `:desc`",
            FIELDS.map(|(name, _)| name).join(", ")
        ))),
    }
}

fn statuses() -> Schema {
    words(Status::ALL.map(|status| status.name().to_owned()))
}

fn sorts() -> Schema {
    words(FIELDS.iter().flat_map(|(field, _)| {
        DIRECTIONS.iter().map(move |(direction, _)| format!("{field}:{direction}"))
    }))
}

fn words(words: impl IntoIterator<Item = String>) -> Schema {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
}

/// One task
#[utoipa::path(get, path = "/v1/tasks/{id}", tag = "status",
    params(("id" = String, Path, description = "the `sessionID` of the task")),
    responses(
        (status = 200, description = "the whole task", body = DetailView),
        (status = 400, description = "the id cannot be understood", body = ErrorView),
        (status = 404, description = "no such task", body = ErrorView),
))]
pub(super) async fn detail(
    State(api): State<Api>,
    Id(id): Id,
) -> Result<Json<DetailView>, ApiError> {
    let task = api.supervisor.task(&TaskId::new(id))?;
    // A damaged row of an earlier run must not hide the task.
    let events = api.supervisor.run_events(&task.id).unwrap_or_else(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::error!(task = %task.id, error, "events of a task unreadable; it is shown without them");
        Vec::new()
    });
    let answers = api.supervisor.answers(&task.id)?;
    let inherited = match task.origin.is_forked {
        true => api.supervisor.inherited(&task.id)?,
        false => None,
    };
    let inherited = inherited
        .map(|(preamble, context)| InheritedView { preamble, characters: context.chars().count() });
    Ok(Json(DetailView { task: TaskView::from(&task), events, answers, inherited }))
}

/// The host's own messages, unmasked
#[utoipa::path(get, path = "/v1/tasks/{id}/logs", tag = "status",
    params(("id" = String, Path, description = "the `sessionID` of the task")),
    responses(
        (status = 200, description = "all messages of its session", body = Vec<Object>),
        (status = 400, description = "the id cannot be understood", body = ErrorView),
        (status = 404, description = "no such task", body = ErrorView),
        (status = 502, description = "the host does not answer and no transcript is archived yet",
            body = ErrorView),
))]
pub(super) async fn logs(State(api): State<Api>, Id(id): Id) -> Result<Response, ApiError> {
    let task = api.supervisor.task(&TaskId::new(id))?;
    let messages = api.supervisor.shown_transcript(&task).await.map_err(ApiError::of_reading)?;
    Ok((JSON, messages).into_response())
}

/// The messages, cut to what is asked for
#[utoipa::path(get, path = "/v1/tasks/{id}/messages", tag = "status",
    params(("id" = String, Path, description = "the `sessionID` of the task"), MessageFilter),
    responses(
        (status = 200, description = "the messages and the filter they were cut by", body = MessagesView),
        (status = 400, description = "the query cannot be understood", body = ErrorView),
        (status = 404, description = "no such task", body = ErrorView),
        (status = 502, description = "the host does not answer and no transcript is archived yet",
            body = ErrorView),
))]
pub(super) async fn messages(
    State(api): State<Api>,
    Id(id): Id,
    Params(filter): Params<MessageFilter>,
) -> Result<Response, ApiError> {
    let task = api.supervisor.task(&TaskId::new(id))?;
    let messages = api.supervisor.shown_transcript(&task).await.map_err(ApiError::of_reading)?;
    // A transcript can have 100 MB: it is parsed on another thread, because the two of the runtime serve all
    // clients.
    let read = move || {
        let messages: Vec<serde_json::Value> =
            serde_json::from_str(&messages).map_err(|_| ApiError::unreadable_messages())?;
        let messages = tools::messages(messages, &filter);
        let view = MessagesView { messages, task_id: task.id.to_string(), filter };
        Ok(serde_json::to_vec(&view).expect("our own types are JSON"))
    };
    let answer: Result<Vec<u8>, ApiError> =
        threads::run_blocking(read).await.map_err(ApiError::thread_failed)?;
    Ok((JSON, answer?).into_response())
}

pub(super) async fn output(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<OutputRequest>,
) -> Result<Json<OutputView>, ApiError> {
    let caller = tools::caller(request.caller)?;
    // First, so that a task that is parked without its credentials can go on while it is waited for.
    api.supervisor.bring(&caller).await?;
    let wait = request.timeout.map(seconds).transpose()?;
    let output = api.supervisor.output(&caller, &TaskId::new(id), wait).await?;
    // Callers of this route send no acknowledgement: what is in the answer counts as read.
    api.supervisor.mail_was_read(output.receipt).await?;
    let asks = match output.end {
        WaitEnd::Blocked => permissions::view(&api, output.asks)?,
        WaitEnd::Enough | WaitEnd::TimedOut => Vec::new(),
    };
    let answers = api.supervisor.answers(&output.task.id)?;
    let task = TaskView::from(&output.task);
    let timed_out = output.end != WaitEnd::Enough;
    Ok(Json(OutputView { task, timed_out, asks, answers }))
}

pub(super) async fn resume(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<ResumeRequest>,
) -> Result<Json<TaskView>, ApiError> {
    let ResumeRequest { prompt, hand_over, key } = request;
    let id = TaskId::new(id);
    // The next run uses the caller's present credentials: those of the launch may be lost in a restart.
    api.supervisor.renew_handed(&api.supervisor.task(&id)?, &tools::handed(hand_over)).await?;
    let task = api.supervisor.resume_once(&id, prompt, key).await?;
    Ok(Json(TaskView::from(&task)))
}

pub(super) async fn retry(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<RetryRequest>,
) -> Result<Response, ApiError> {
    let RetryRequest { caller, key } = request;
    let caller = tools::caller(caller)?;
    let task = api.supervisor.retry(&caller, &TaskId::new(id), key).await?;
    Ok((StatusCode::CREATED, Json(TaskView::from(&task))).into_response())
}

/// Tokens and cost of a session and all its descendants.
pub(super) async fn spent(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<UsageView>, ApiError> {
    let usage = api.supervisor.spent(&SessionId::new(id))?;
    Ok(Json(UsageView { tokens: usage.tokens, cost: usage.cost }))
}

/// Looks up tasks by what people type: ids, short ids, or prefixes of ids.
pub(super) async fn resolve(
    State(api): State<Api>,
    Body(request): Body<ResolveRequest>,
) -> Result<Json<TasksView>, ApiError> {
    let mut tasks = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        tasks.push(api.supervisor.brief(&api.supervisor.resolve(id)?));
    }
    Ok(Json(TasksView { tasks }))
}

pub(super) fn seconds(seconds: f64) -> Result<Duration, ApiError> {
    match (0.0..=LONGEST_WAIT).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(ApiError::bad_request("`timeout` must be between 0 and 3600 seconds")),
    }
}
