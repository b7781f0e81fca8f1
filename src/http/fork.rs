//! Forking: a look at what a child would inherit.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use crate::wire::ForkView;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewQuery {
    /// A task's id in any form, or a session of any host.
    session: String,
}

pub(super) async fn preview(
    State(api): State<Api>,
    Params(query): Params<PreviewQuery>,
) -> Result<Json<ForkView>, ApiError> {
    Ok(Json(ForkView::from(api.supervisor.fork_preview(&query.session).await?)))
}
