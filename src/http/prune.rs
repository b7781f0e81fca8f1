//! `POST /v1/prune`: deletes old tasks from the history, by number or by age. A request without any limit is
//! refused.

use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::Retention;
use crate::wire::{PruneRequest, PruneView};

const DAY: u64 = 86_400;

pub(super) async fn prune(
    State(api): State<Api>,
    Body(request): Body<PruneRequest>,
) -> Result<Json<PruneView>, ApiError> {
    let PruneRequest { keep, older_than_days, key } = request;
    let age = older_than_days.map(|days| Duration::from_secs(days.saturating_mul(DAY)));
    let keep = Retention { tasks: keep, age };
    if keep.is_everything() {
        return Err(ApiError::bad_request("pass `keep`, `olderThanDays`, or both"));
    }
    Ok(Json(PruneView { removed: api.supervisor.prune_once(&keep, key).await? }))
}
