//! Totals over the whole history, Prometheus metrics, and the OpenAPI document. Totals are kept by triggers
//! in the store, so they cost the same however long the history is.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::error::ApiError;
use crate::supervisor::Totals;
use crate::task::Status;
use crate::wire::{DurationView, StatsView};

/// Counts by state and agent, and durations
#[utoipa::path(get, path = "/v1/stats", tag = "status", responses(
    (status = 200, description = "the totals", body = StatsView),
))]
pub(super) async fn stats(State(api): State<Api>) -> Result<Json<StatsView>, ApiError> {
    Ok(Json(view(&api.supervisor.totals()?)))
}

/// What is counted, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "status", responses(
    (status = 200, description = "the metrics as text", body = String,
     content_type = "application/openmetrics-text"),
))]
pub(super) async fn metrics(State(api): State<Api>) -> Result<Response, ApiError> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], api.supervisor.measured()?).into_response())
}

/// The document that describes these routes
#[utoipa::path(get, path = "/v1/openapi.json", tag = "status", responses(
    (status = 200, description = "an OpenAPI document", body = Object),
))]
pub(super) async fn openapi(State(api): State<Api>) -> Json<utoipa::openapi::OpenApi> {
    Json((*api.document).clone())
}

pub(super) fn view(totals: &Totals) -> StatsView {
    // All five states are in the answer, also those without a task.
    let mut by_status = Status::ALL.map(|status| (status.name().to_owned(), 0)).into();
    let mut view = StatsView {
        by_status: std::mem::take(&mut by_status),
        by_agent: Default::default(),
        duration: DurationView {
            avg: totals.millis.checked_div(totals.ended).unwrap_or(0),
            max: totals.longest,
            min: totals.shortest,
        },
        total_tasks: 0,
        active_tasks: 0,
        tool_calls_by_name: totals.tool_calls_by_name.clone(),
        tool_calls_by_agent: Default::default(),
    };
    for tally in &totals.tallies {
        *view.by_status.entry(tally.status.name().to_owned()).or_default() += tally.tasks;
        *view.by_agent.entry(tally.agent.clone()).or_default() += tally.tasks;
        *view.tool_calls_by_agent.entry(tally.agent.clone()).or_default() += tally.tool_calls;
        view.total_tasks += tally.tasks;
        if tally.status.is_live() {
            view.active_tasks += tally.tasks;
        }
    }
    view
}
