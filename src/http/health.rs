//! Is it there, and please stop.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Deserialize;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use crate::supervisor;
use crate::wire::{CheckView, HealthView, PROTOCOL};

/// Is the server there, for how long, with how many tasks
#[utoipa::path(get, path = "/v1/health", tag = "status", responses(
    (status = 200, description = "it is", body = HealthView),
))]
pub(super) async fn health(State(api): State<Api>, uri: Uri) -> Json<HealthView> {
    // Commands want to know it now; monitors ask often.
    let restart_needed = match uri.query() {
        Some("fresh=true") => api.restart_needed.look().await,
        Some(_) | None => api.restart_needed.known(),
    };
    let mut warnings = api.warnings.all();
    // Whoever asks wants to know whether a daemon is there. An error would have clients start a
    // second one, which cannot help.
    let task_count = api.supervisor.task_count().unwrap_or_else(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "tasks cannot be counted");
        let why = "the tasks cannot be counted, so the task store may be damaged; `asyncagents doctor` \
                   says more";
        warnings.push(why.to_owned());
        0
    });
    Json(HealthView {
        status: "ok".to_owned(),
        uptime: api.supervisor.clock().uptime().as_secs(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        task_count,
        pid: std::process::id(),
        warnings,
        restart_needed,
    })
}

/// Reads the whole store. It takes its time with a long history.
pub(super) async fn check(State(api): State<Api>) -> Result<Json<CheckView>, ApiError> {
    let store = api.supervisor.store().clone();
    let checked = tokio::task::spawn_blocking(move || store.check()).await;
    let problems = match checked {
        Ok(Ok(problems)) => problems,
        Ok(Err(error)) => return Err(supervisor::Error::from(error).into()),
        Err(_) => vec!["the check broke off".to_owned()],
    };
    Ok(Json(CheckView { problems }))
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StopQuery {
    /// The next daemon is about to be started.
    restart: bool,
}

/// Answers, then stops: whoever asked waits for the socket to go away.
pub(super) async fn stop(
    State(api): State<Api>,
    uri: Uri,
    Params(query): Params<StopQuery>,
) -> Json<HealthView> {
    let health = health(State(api.clone()), uri).await;
    if query.restart {
        api.restarts.store(true, Ordering::SeqCst);
    }
    api.supervisor.say_goodbye();
    api.stop.cancel();
    health
}
