//! Batches of tasks and what they have come to.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::body::{Id, JSON, Params};
use super::error::ApiError;
use super::tasks::{Window, window};
use crate::supervisor::Group;
use crate::task::{BatchId, Status, Timestamp};
use crate::wire::{ErrorView, GroupStatsView, GroupSummaryView, GroupView, GroupsView};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GroupsQuery {
    /// At most 200 are given at once.
    #[param(minimum = 0, maximum = 9007199254740991_i64, default = 50)]
    limit: Option<u64>,
    #[param(minimum = 0, maximum = 9007199254740991_i64, default = 0)]
    offset: Option<u64>,
}

/// All groups, those with the newest tasks first
#[utoipa::path(get, path = "/v1/task-groups", tag = "status", params(GroupsQuery), responses(
    (status = 200, description = "a page of groups", body = GroupsView),
    (status = 400, description = "the query cannot be understood", body = ErrorView),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<GroupsQuery>,
) -> Result<Json<GroupsView>, ApiError> {
    let Window { limit, offset } = window(query.limit, query.offset)?;
    let (groups, total) = api.supervisor.groups(limit, offset)?;
    let now = api.supervisor.clock().now();
    let summary = |group: &Group| GroupSummaryView {
        group_id: group.id.to_string(),
        stats: stats(group, now),
    };
    Ok(Json(GroupsView { groups: groups.iter().map(summary).collect(), total, limit, offset }))
}

/// The tasks of one group with aggregate statistics
#[utoipa::path(get, path = "/v1/task-groups/{id}", tag = "status",
    params(("id" = String, Path, description = "the `batchId` of its tasks")),
    responses(
        (status = 200, description = "the group", body = GroupView),
        (status = 400, description = "the id cannot be understood", body = ErrorView),
        (status = 404, description = "no such group", body = ErrorView),
))]
pub(super) async fn detail(State(api): State<Api>, Id(id): Id) -> Result<Response, ApiError> {
    let (group, tasks) = api.supervisor.group(&BatchId::new(id))?;
    let stats = stats(&group, api.supervisor.clock().now());
    let stats = serde_json::to_vec(&stats).map_err(ApiError::unwritable)?;
    let id = serde_json::to_string(group.id.as_str()).map_err(ApiError::unwritable)?;
    let mut answer = Vec::with_capacity(tasks.len() + stats.len() + 128);
    answer.extend_from_slice(format!("{{\"groupId\":{id},\"tasks\":[").as_bytes());
    answer.extend_from_slice(&tasks);
    answer.extend_from_slice(b"],\"stats\":");
    answer.extend_from_slice(&stats);
    answer.push(b'}');
    Ok((JSON, answer).into_response())
}

fn stats(group: &Group, now: Timestamp) -> GroupStatsView {
    let Group { stats, .. } = group;
    GroupStatsView {
        completed: stats.counts.of(Status::Completed),
        running: stats.counts.live(),
        error: stats.counts.of(Status::Error),
        cancelled: stats.counts.of(Status::Cancelled),
        total: stats.counts.total(),
        completion_rate: stats.completion_rate(),
        total_tool_calls: stats.tool_calls,
        duration: stats.duration(now).as_millis() as u64,
    }
}
