//! Cancelling tasks, by id, by batch, or all.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::Target;
use crate::task::{BatchId, TaskId};
use crate::tools;
use crate::wire::{CancelRequest, CancelView, TaskView};

pub(super) async fn cancel(
    State(api): State<Api>,
    Body(request): Body<CancelRequest>,
) -> Result<Json<CancelView>, ApiError> {
    let CancelRequest { caller, ids, all, batch } = request;
    let caller = tools::caller(caller)?;
    // The shell sees everybody's tasks, so its `all` means all.
    let everything = if caller.lone_batches { Target::Everything } else { Target::All };
    let targets = match (ids.as_slice(), all, batch) {
        ([_, ..], false, None) => ids.into_iter().map(|id| Target::Task(TaskId::new(id))).collect(),
        ([], true, None) => vec![everything],
        ([], false, Some(batch)) => vec![Target::Batch(BatchId::new(batch))],
        _ => return Err(ApiError::bad_request("pass exactly one of `ids`, `all` and `batch`")),
    };
    let mut cancelled = Vec::new();
    for target in targets {
        let tasks = api.supervisor.cancel(&caller, target).await?.tasks;
        cancelled.extend(tasks.iter().map(TaskView::from));
    }
    Ok(Json(CancelView { cancelled }))
}
