//! `POST /v1/clear`: cancels the caller's live tasks and takes all of its tasks off its list.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::tools;
use crate::wire::{ClearRequest, ClearView};

pub(super) async fn clear(
    State(api): State<Api>,
    Body(request): Body<ClearRequest>,
) -> Result<Json<ClearView>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let cleared = api.supervisor.clear_once(&caller, request.key).await?;
    Ok(Json(ClearView { cancelled: cleared.cancelled, cleared: cleared.cleared }))
}
