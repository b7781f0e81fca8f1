//! Tasks: launch, look, fetch, resume.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::Api;
use super::body::{Body, Params};
use super::error::ApiError;
use crate::supervisor::{Filter, Fork, Launch, Order};
use crate::task::launch::{Plan, plan};
use crate::task::{BatchId, SessionId, Status, TaskId};
use crate::tools;
use crate::wire::{
    LaunchRequest, OutputRequest, OutputView, PageView, ResolveRequest, ResumeRequest, SpentView,
    TaskView, TasksView,
};

const USUAL_PAGE: u64 = 50;
const LARGEST_PAGE: u64 = 200;
const LONGEST_WAIT: f64 = 3600.0;

pub(super) async fn launch(
    State(api): State<Api>,
    Body(request): Body<LaunchRequest>,
) -> Result<Response, ApiError> {
    let caller = tools::caller(request.caller)?;
    let (order, fork) = match plan(request.arguments)? {
        Plan::Fresh(order) => (order, Fork::No),
        Plan::Forked(order) => (order, request.fork_session.map_or(Fork::Caller, Fork::Session)),
        Plan::Resume { .. } => {
            return Err(ApiError::bad_request("to resume, POST to /v1/tasks/{id}/resume"));
        }
    };
    let task = api.supervisor.launch(caller, Launch { order, fork, key: request.key }).await?;
    Ok((StatusCode::CREATED, Json(TaskView::from(&task))).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    status: Option<String>,
    agent: Option<String>,
    parent: Option<String>,
    batch: Option<String>,
    /// Leave out what was cleared from its parent's list.
    listed: Option<bool>,
    limit: Option<u64>,
    offset: Option<u64>,
}

pub(super) async fn page(
    State(api): State<Api>,
    Params(query): Params<PageQuery>,
) -> Result<Json<PageView>, ApiError> {
    let status = query.status.map(|word| {
        Status::parse(&word).ok_or_else(|| {
            let known = Status::ALL.map(Status::name).join(", ");
            ApiError::bad_request(format!("no status `{word}`; there are: {known}"))
        })
    });
    let filter = Filter {
        status: status.transpose()?,
        agent: query.agent,
        parent: query.parent.map(SessionId::new),
        batch: query.batch.map(BatchId::new),
        listed_only: query.listed.unwrap_or(false),
    };
    let limit = query.limit.unwrap_or(USUAL_PAGE).min(LARGEST_PAGE);
    let offset = query.offset.unwrap_or(0).min(i64::MAX as u64);
    let page = api.supervisor.page(&filter, Order::NewestFirst, limit, offset)?;
    let tasks = page.tasks.iter().map(TaskView::from).collect();
    Ok(Json(PageView { tasks, total: page.total, limit, offset }))
}

pub(super) async fn detail(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<TaskView>, ApiError> {
    let task = api.supervisor.task(&TaskId::new(id))?;
    Ok(Json(TaskView::from(&task)))
}

/// The host's own messages, unmasked.
pub(super) async fn logs(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let task = api.supervisor.task(&TaskId::new(id))?;
    let messages = api.supervisor.transcript(&task).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], messages).into_response())
}

pub(super) async fn output(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<OutputRequest>,
) -> Result<Json<OutputView>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let wait = request.timeout.map(seconds).transpose()?;
    let output = api.supervisor.output(&caller, &TaskId::new(id), wait).await?;
    Ok(Json(OutputView { task: TaskView::from(&output.task), timed_out: output.timed_out }))
}

pub(super) async fn resume(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<ResumeRequest>,
) -> Result<Json<TaskView>, ApiError> {
    let task = api.supervisor.resume(&TaskId::new(id), request.prompt).await?;
    Ok(Json(TaskView::from(&task)))
}

/// Of the session and all its descendants.
pub(super) async fn spent(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<SpentView>, ApiError> {
    let spent = api.supervisor.spent(&SessionId::new(id))?;
    Ok(Json(SpentView { tokens: spent.tokens, cost: spent.cost }))
}

/// What people type, as tasks: short ids and prefixes count here and nowhere else over HTTP.
pub(super) async fn resolve(
    State(api): State<Api>,
    Body(request): Body<ResolveRequest>,
) -> Result<Json<TasksView>, ApiError> {
    let mut tasks = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        tasks.push(TaskView::from(&api.supervisor.resolve(id)?));
    }
    Ok(Json(TasksView { tasks }))
}

pub(super) fn seconds(seconds: f64) -> Result<Duration, ApiError> {
    match (0.0..=LONGEST_WAIT).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(ApiError::bad_request("`timeout` must be between 0 and 3600 seconds")),
    }
}
