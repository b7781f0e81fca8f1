//! `GET /v1/task-groups`: batches of tasks with their aggregates. A batch is called a group in the API.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::body::{Id, Params};
use super::error::ApiError;
use super::tasks::window;
use crate::supervisor::{Group, Window};
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
#[utoipa::path(get, path = "/v1/task-groups", operation_id = "groups", tag = "status", params(GroupsQuery), responses(
    (status = 200, description = "a page of groups", body = GroupsView),
    (status = 400, description = "the query cannot be understood", body = ErrorView),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<GroupsQuery>,
) -> Result<Json<GroupsView>, ApiError> {
    let Window { limit, offset } = window(query.limit, query.offset)?;
    let (groups, total) = api.read(move |supervisor| supervisor.groups(limit, offset)).await?;
    let now = api.supervisor.clock().now();
    let summary = |group: &Group| GroupSummaryView {
        group_id: group.id.to_string(),
        stats: stats(group, now),
    };
    Ok(Json(GroupsView { groups: groups.iter().map(summary).collect(), total, limit, offset }))
}

/// The tasks of one group with aggregate statistics
#[utoipa::path(get, path = "/v1/task-groups/{id}", operation_id = "group", tag = "status",
    params(("id" = String, Path, description = "the `batchId` of its tasks")),
    responses(
        (status = 200, description = "the group", body = GroupView),
        (status = 400, description = "the id cannot be understood", body = ErrorView),
        (status = 404, description = "no such group", body = ErrorView),
))]
pub(super) async fn detail(
    State(api): State<Api>,
    Id(id): Id,
) -> Result<Json<GroupView>, ApiError> {
    let id = BatchId::new(id);
    let (group, tasks) = api.read(move |supervisor| supervisor.group(&id)).await?;
    let stats = stats(&group, api.supervisor.clock().now());
    Ok(Json(GroupView { group_id: group.id.to_string(), tasks, stats }))
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
        tool_calls_by_name: stats.tool_calls_by_name.clone(),
        tool_calls_by_agent: stats.tool_calls_by_agent.clone(),
        duration: stats.duration(now).as_millis() as u64,
    }
}
