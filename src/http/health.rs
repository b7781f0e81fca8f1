//! Is it there, and please stop.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::ApiError;
use crate::wire::{CheckView, HealthView};

/// Is the server there, for how long, with how many tasks
#[utoipa::path(get, path = "/v1/health", tag = "status", responses(
    (status = 200, description = "it is", body = HealthView),
))]
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

/// Reads the whole store. It takes its time with a long history.
pub(super) async fn check(State(api): State<Api>) -> Result<Json<CheckView>, ApiError> {
    let store = api.supervisor.store().clone();
    let checked = tokio::task::spawn_blocking(move || store.check()).await;
    let problems = match checked {
        Ok(Ok(problems)) => problems,
        Ok(Err(error)) => return Err(crate::supervisor::Error::from(error).into()),
        Err(_) => vec!["the check broke off".to_owned()],
    };
    Ok(Json(CheckView { problems }))
}

/// Answers, then stops: whoever asked waits for the socket to go away.
pub(super) async fn stop(State(api): State<Api>) -> Result<Json<HealthView>, ApiError> {
    let health = health(State(api.clone())).await;
    api.supervisor.say_goodbye();
    api.stop.cancel();
    health
}
