//! `/v1/queue`: pausing and continuing the queue of tasks that wait for a slot. Both are idempotent.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::ApiError;
use crate::supervisor::SlotCounts;
use crate::wire::QueueStateView;

pub(super) async fn pause(State(api): State<Api>) -> Result<Json<QueueStateView>, ApiError> {
    api.supervisor.pause_queue().await?;
    view(&api)
}

pub(super) async fn go_on(State(api): State<Api>) -> Result<Json<QueueStateView>, ApiError> {
    api.supervisor.continue_queue().await?;
    view(&api)
}

fn view(api: &Api) -> Result<Json<QueueStateView>, ApiError> {
    let SlotCounts { queued, active } = api.supervisor.slot_counts()?;
    Ok(Json(QueueStateView { paused: api.supervisor.is_queue_paused()?, queued, active }))
}
