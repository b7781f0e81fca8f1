//! Health of the daemon, the check of its store, and stopping it.
//!
//! Every command asks for the health first: it carries the protocol number, and the warnings that the user
//! has to see. It answers 200 even when the store cannot be read.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use serde::Deserialize;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use super::tasks::seconds;
use crate::supervisor::{DrainGuard, DrainOutcome, QuarantinedTask, StoreCheck, UnreadableRow};
use crate::wire::{CheckView, HealthView, PROTOCOL};

/// The key of warnings about damaged stores that were set aside.
pub const SET_ASIDE: &str = "set aside";

/// How many damaged tasks a warning names.
const MOST_NAMED: usize = 5;

/// Health of the daemon: uptime, version, number of tasks
#[utoipa::path(get, path = "/v1/health", tag = "status", responses(
    (status = 200, description = "the daemon is running", body = HealthView),
))]
pub(super) async fn health(State(api): State<Api>, uri: Uri) -> Json<HealthView> {
    // A command wants to know whether the configuration has changed just now, which takes a look at the
    // file; monitors poll the health, and get the answer of the last look.
    let restart_needed = match uri.query() {
        Some("fresh=true") => api.restart_needed.look().await,
        Some(_) | None => api.restart_needed.known(),
    };
    let mut warnings = warnings(&api);
    // Clients ask for the health to find out whether a daemon runs. An error status would make them start
    // a second daemon on the same damaged store.
    let (task_count, paused) = api.supervisor.health_figures().unwrap_or_else(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::error!(
            error,
            "tasks were not counted; the health reports 0 tasks, no pause, and a warning"
        );
        let why = "the tasks cannot be counted, so the task store may be damaged; `asyncagents doctor` \
                   says more";
        warnings.push(why.to_owned());
        (0, false)
    });
    Json(HealthView {
        status: "ok".to_owned(),
        uptime: api.supervisor.clock().uptime().as_secs(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        task_count,
        pid: std::process::id(),
        paused,
        warnings,
        restart_needed,
        urgent: urgent(&api),
    })
}

fn warnings(api: &Api) -> Vec<String> {
    let damage = api.supervisor.store_damage();
    let found = api.supervisor.newly_quarantined();
    let quarantined = (!found.is_empty()).then(|| in_quarantine(&found));
    let rows = mended_rows(&api.supervisor.newly_mended());
    let quarantined = quarantined.into_iter().chain(rows);
    damage.into_iter().chain(api.warnings.all()).chain(quarantined).collect()
}

/// The warnings that every command and tool answer shows, whatever was asked for.
pub(super) fn urgent(api: &Api) -> Vec<String> {
    let damage = api.supervisor.store_damage();
    damage.into_iter().chain(api.warnings.about(SET_ASIDE)).collect()
}

fn in_quarantine(found: &[QuarantinedTask]) -> String {
    let named = |task: &QuarantinedTask| format!("`{}` (`{}`)", task.name, task.field);
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

fn mended_rows(mended: &[UnreadableRow]) -> Option<String> {
    (!mended.is_empty()).then(|| {
        let mut by_table: BTreeMap<String, u64> = BTreeMap::new();
        for row in mended {
            *by_table.entry(row.table.clone()).or_default() += 1;
        }
        format!(
            "records of the task store were damaged, in its tables {}; what could not be read of them \
             was replaced",
            tables(&by_table)
        )
    })
}

fn unreadable_rows(unreadable: &BTreeMap<String, u64>) -> Option<String> {
    (!unreadable.is_empty()).then(|| {
        format!(
            "rows of the task store cannot be read and are left out, in its tables {}; the others are \
             not affected",
            tables(unreadable)
        )
    })
}

/// The number of rows in each table: users know no names of such rows.
fn tables(rows: &BTreeMap<String, u64>) -> String {
    let named: Vec<String> =
        rows.iter().map(|(table, rows)| format!("`{table}` ({rows})")).collect();
    named.join(", ")
}

/// Reads the whole store from end to end, for `asyncagents doctor`. With a long history that takes minutes, so
/// it runs on a thread that may block.
pub(super) async fn check(State(api): State<Api>) -> Result<Json<CheckView>, ApiError> {
    let supervisor = api.supervisor.clone();
    let checked = tokio::task::spawn_blocking(move || supervisor.check_store());
    let StoreCheck { problems, tasks, mended, unreadable } = match checked.await {
        Ok(checked) => checked?,
        Err(_) => StoreCheck {
            problems: vec!["the check crashed; the daemon's log says why".to_owned()],
            ..StoreCheck::default()
        },
    };
    let warnings = (!tasks.is_empty()).then(|| in_quarantine(&tasks));
    let warnings = warnings
        .into_iter()
        .chain(mended_rows(&mended))
        .chain(unreadable_rows(&unreadable))
        .collect();
    Ok(Json(CheckView { problems, warnings }))
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StopQuery {
    /// The next daemon is about to be started.
    restart: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct DrainQuery {
    /// How many seconds the tasks that run may take.
    timeout: Option<f64>,
}

/// Answers, then stops: the caller waits until the socket is gone. Plugins are told first (`bye`), since they
/// would start the daemon again otherwise.
pub(super) async fn stop(
    State(api): State<Api>,
    uri: Uri,
    Params(query): Params<StopQuery>,
) -> Json<HealthView> {
    if query.restart {
        api.restarts.store(true, Ordering::SeqCst);
    }
    say_goodbye(&api, uri).await
}

/// The same once no task runs any more; none starts meanwhile. A route of its own and no argument of `stop`: a daemon
/// of an earlier version would ignore the argument and stop at once.
pub(super) async fn drain(
    State(api): State<Api>,
    uri: Uri,
    Params(query): Params<DrainQuery>,
) -> Result<Json<HealthView>, ApiError> {
    let draining = until_drained(&api, query.timeout).await?;
    let health = say_goodbye(&api, uri).await;
    // Until this process ends: nothing may start in the time that stopping takes.
    std::mem::forget(draining);
    Ok(health)
}

async fn say_goodbye(api: &Api, uri: Uri) -> Json<HealthView> {
    let health = health(State(api.clone()), uri).await;
    api.supervisor.say_goodbye();
    api.stop.cancel();
    health
}

/// A caller that goes away drops this future, and tasks start again.
async fn until_drained(api: &Api, timeout: Option<f64>) -> Result<DrainGuard, ApiError> {
    let longest = timeout.map(seconds).transpose()?;
    match api.supervisor.drain(longest).await? {
        DrainOutcome::Drained(draining) => Ok(draining),
        DrainOutcome::TimedOut(left) => Err(ApiError::with_status(
            StatusCode::CONFLICT,
            format!(
                "the time is up and {left} still at work; the daemon was not stopped, and queued tasks start \
                 again",
                left = if left == 1 { "1 task is".to_owned() } else { format!("{left} tasks are") }
            ),
        )),
    }
}
