//! Forking: a look at what a child would inherit. A conversation is not for everybody who may look
//! at tasks, so it is asked for like a change.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::wire::{ForkRequest, ForkView};

pub(super) async fn preview(
    State(api): State<Api>,
    Body(request): Body<ForkRequest>,
) -> Result<Json<ForkView>, ApiError> {
    Ok(Json(ForkView::from(api.supervisor.fork_preview(&request.session).await?)))
}
