//! Waiting until tasks have ended.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use super::tasks::seconds;
use crate::supervisor::Need;
use crate::task::TaskId;
use crate::wire::{TaskView, WaitRequest, WaitView};

pub(super) async fn wait(
    State(api): State<Api>,
    Body(request): Body<WaitRequest>,
) -> Result<Json<WaitView>, ApiError> {
    let ids: Vec<TaskId> = request.ids.into_iter().map(TaskId::new).collect();
    let need = request.need.map_or(Need::All, Need::AtLeast);
    let waited = api.supervisor.wait(&ids, need, seconds(request.timeout)?).await?;
    let tasks = waited.tasks.iter().map(TaskView::brief).collect();
    Ok(Json(WaitView { tasks, timed_out: waited.timed_out }))
}
