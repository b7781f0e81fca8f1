//! Is it there, and please stop.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Deserialize;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use crate::supervisor::Quarantined;
use crate::wire::{CheckView, HealthView, PROTOCOL};

/// What warnings about stores that were set aside are about.
pub const SET_ASIDE: &str = "set aside";

/// So many damaged tasks are named.
const MOST_NAMED: usize = 5;

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
    let mut warnings = warnings(&api);
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
        urgent: urgent(&api),
    })
}

fn warnings(api: &Api) -> Vec<String> {
    let damage = api.supervisor.store_damage();
    let found = api.supervisor.newly_quarantined();
    let quarantined = (!found.is_empty()).then(|| in_quarantine(&found));
    damage.into_iter().chain(api.warnings.all()).chain(quarantined).collect()
}

/// What every answer says, whatever was asked.
pub(super) fn urgent(api: &Api) -> Vec<String> {
    let damage = api.supervisor.store_damage();
    damage.into_iter().chain(api.warnings.about(SET_ASIDE)).collect()
}

fn in_quarantine(found: &[Quarantined]) -> String {
    let named = |task: &Quarantined| format!("`{}` (`{}`)", task.name, task.field);
    let names: Vec<String> = found.iter().take(MOST_NAMED).map(named).collect();
    let (names, more) = (names.join(", "), found.len().saturating_sub(MOST_NAMED));
    let way_out = "`asyncagents output ID` shows what is left";
    match (found.len(), more) {
        (1, _) => format!("the record of task {names} was damaged; {way_out}"),
        (_, 0) => format!("the records of tasks {names} were damaged; {way_out}"),
        (_, more) => {
            format!("the records of tasks {names} and {more} more were damaged; {way_out}")
        }
    }
}

/// Reads the whole store. It takes its time with a long history.
pub(super) async fn check(State(api): State<Api>) -> Result<Json<CheckView>, ApiError> {
    let supervisor = api.supervisor.clone();
    let checked = tokio::task::spawn_blocking(move || supervisor.check_store());
    let (problems, found) = match checked.await {
        Ok(checked) => checked?,
        Err(_) => (vec!["the check broke off".to_owned()], Vec::new()),
    };
    let warnings = (!found.is_empty()).then(|| in_quarantine(&found));
    Ok(Json(CheckView { problems, warnings: warnings.into_iter().collect() }))
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
