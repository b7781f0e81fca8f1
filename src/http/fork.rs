//! `POST /v1/fork`: previews the context that a forked child would inherit. A POST although it changes
//! nothing: reads are open to pages and other programs, and a whole conversation of the user is not for them.

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
