//! Totals over the whole history, trends of the last hours, Prometheus metrics, and the OpenAPI document. Totals are
//! kept by triggers in the store, so they cost the same however long the history is.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use crate::supervisor::{QueueLength, Supervisor, Totals};
use crate::task::queue::Limits;
use crate::task::trends::{Bucket, Percentiles, Share, Span, Trends};
use crate::task::{Status, Timestamp};
use crate::wire::{
    BucketView, DurationView, ErrorView, HistoryView, PercentilesView, QueueView, ShareView,
    StatsView,
};

/// How far back trends reach, in hours: 90 days.
const LONGEST_HISTORY: u64 = 2160;
/// As many as there are bars in a chart; an hour, a day and a week are each divided evenly.
const BUCKETS: usize = 60;

/// Counts by state and agent, and durations
#[utoipa::path(get, path = "/v1/stats", tag = "status", responses(
    (status = 200, description = "the totals", body = StatsView),
))]
pub(super) async fn stats(State(api): State<Api>) -> Result<Json<StatsView>, ApiError> {
    Ok(Json(view(&api.supervisor.totals()?)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// How far back.
    #[param(minimum = 1, maximum = 2160, default = 24)]
    hours: Option<u64>,
}

/// Launches, ends, durations, tokens and cost of the last hours
#[utoipa::path(get, path = "/v1/stats/history", tag = "status", params(HistoryQuery), responses(
    (status = 200, description = "60 buckets of equal length", body = HistoryView),
    (status = 400, description = "the query cannot be understood", body = ErrorView),
))]
pub(super) async fn history(
    State(api): State<Api>,
    Params(query): Params<HistoryQuery>,
) -> Result<Json<HistoryView>, ApiError> {
    let hours = query.hours.unwrap_or(24);
    if !(1..=LONGEST_HISTORY).contains(&hours) {
        return Err(ApiError::bad_request("`hours` goes from 1 to 2160"));
    }
    let bucket_millis = (hours * 3_600_000 / BUCKETS as u64) as i64;
    // Whole buckets on the clock: from one minute to the next the earlier bars stay what they are. The last one
    // is the one that is still being filled.
    let now = api.supervisor.clock().now().as_millis();
    let end = (now.div_euclid(bucket_millis) + 1) * bucket_millis;
    let from = Timestamp::from_millis(end - bucket_millis * BUCKETS as i64);
    let span = Span { from, bucket_millis, buckets: BUCKETS };
    let read = move |supervisor: &Supervisor| {
        Ok((supervisor.trends(span)?, supervisor.queue_length()?, supervisor.limits()))
    };
    let (trends, queue, limits) = api.read(read).await?;
    Ok(Json(history_view(trends, queue, &limits)))
}

fn history_view(mut trends: Trends, queue: QueueLength, limits: &Limits) -> HistoryView {
    let percentiles = |Percentiles { p50, p90, p99, max }| PercentilesView { p50, p90, p99, max };
    let shares = |shares: &mut BTreeMap<String, Share>| {
        let view = |(name, share): (&String, &mut Share)| {
            let duration = percentiles(share.durations());
            let Share { tasks, errors, tokens, cost, .. } = *share;
            (name.clone(), ShareView { tasks, errors, tokens, cost, duration })
        };
        shares.iter_mut().map(view).collect()
    };
    let bucket = |bucket: &Bucket| {
        let Bucket { launched, completed, error, cancelled, tokens, cost } = *bucket;
        BucketView { launched, completed, error, cancelled, tokens, cost }
    };
    HistoryView {
        from: trends.span.from,
        to: trends.span.until(),
        seconds: trends.span.bucket_millis as u64 / 1_000,
        buckets: trends.buckets.iter().map(bucket).collect(),
        duration: percentiles(trends.durations()),
        by_agent: shares(&mut trends.by_agent),
        by_model: shares(&mut trends.by_model),
        partial: trends.is_partial,
        queue: QueueView {
            active: queue.active,
            queued: queue.queued,
            most_active: limits.active,
            most_active_per_parent: limits.active_per_parent,
            most_queued_per_parent: limits.queued_per_parent,
            most_active_per_model: limits.active_per_model.clone(),
        },
    }
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
