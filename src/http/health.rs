//! Is it there, and please stop.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::ApiError;
use crate::wire::HealthView;

pub(super) async fn health(State(api): State<Api>) -> Result<Json<HealthView>, ApiError> {
    Ok(Json(HealthView {
        status: "ok".to_owned(),
        uptime: api.supervisor.clock().uptime().as_secs(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        task_count: api.supervisor.task_count()?,
        pid: std::process::id(),
        warnings: api.warnings.all(),
    }))
}

/// Answers, then stops: whoever asked waits for the socket to go away.
pub(super) async fn stop(State(api): State<Api>) -> Result<Json<HealthView>, ApiError> {
    let health = health(State(api.clone())).await;
    api.stop.cancel();
    health
}
