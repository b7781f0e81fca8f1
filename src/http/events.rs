//! The event stream: a snapshot, then every change in order. An event is written once, whoever
//! reads it. Somebody who cannot keep up is let go and slows nobody down.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, Sleep, sleep_until};
use utoipa::IntoParams;

use super::Api;
use super::body::Params;
use super::error::ApiError;
use super::stats;
use super::tasks::LARGEST_NUMBER;
use crate::feed::{Change, Changes, Kind};
use crate::metrics::{Client, Metrics};
use crate::task::Timestamp;
use crate::task::view::TaskView;

/// The last snapshot. Clients that come at the same moment, after a restart for example, share it, so
/// that it is made and held once.
pub type Snapshots = Arc<tokio::sync::Mutex<Option<Written>>>;

/// A snapshot as it is sent.
#[derive(Clone)]
pub struct Written {
    /// What `snapshot_key` said before it was read.
    key: (u64, u64),
    /// The newest change that is in it.
    change: u64,
    frame: Bytes,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// The id of the last event that was seen. What came after it is sent instead of a snapshot,
    /// as far as it is kept.
    #[param(minimum = 0, maximum = 9007199254740991_i64)]
    since: Option<u64>,
}

/// Task changes as they happen
///
/// Begins with `snapshot`: `{"tasks", "stats", "total"}`, all live tasks and the newest others. Then
/// `task.created`, `task.updated`, `task.completed`, `task.error`, `task.cancelled`: `{"task"}`; and
/// `heartbeat`: `{"ts"}` after a silence.
#[utoipa::path(get, path = "/v1/events", tag = "status", params(EventsQuery), responses(
    (status = 200, description = "a stream of events", body = String, content_type = "text/event-stream"),
    (status = 400, description = "the query cannot be understood", body = crate::wire::ErrorView),
    (status = 503, description = "as many clients as allowed read it already", body = crate::wire::ErrorView),
))]
pub(super) async fn events(
    State(api): State<Api>,
    Params(query): Params<EventsQuery>,
) -> Result<Response, ApiError> {
    if query.since.is_some_and(|since| since > LARGEST_NUMBER) {
        return Err(ApiError::bad_request("`since` goes up to 9007199254740991"));
    }
    let metrics = api.supervisor.metrics().clone();
    let client = metrics.client(api.streams.most).ok_or_else(ApiError::too_many_streams)?;
    let missed = query.since.and_then(|since| api.supervisor.changes_after(since));
    let (ready, changes, seen) = match missed {
        Some((missed, changes)) => {
            let seen = missed.last().map_or(query.since.unwrap_or(0), |change| change.id);
            (missed.iter().map(|change| api.frame(change)).collect(), changes, seen)
        }
        None => {
            // Subscribed first: what happens meanwhile is either in the snapshot or comes after it.
            let changes = api.supervisor.changes();
            let Written { change, frame, .. } = snapshot(&api).await?;
            (VecDeque::from([frame]), changes, change)
        }
    };
    let reading = Reading {
        ready,
        changes,
        seen,
        silence: api.streams.heartbeat,
        last: Instant::now(),
        alarm: Box::pin(sleep_until(Instant::now() + api.streams.heartbeat)),
        stopping: Box::pin(api.supervisor.stopping().cancelled_owned()),
        api,
        metrics,
        _client: client,
    };
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(reading.frames())).into_response())
}

/// How streams behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// So long nothing is said before a heartbeat is.
    pub heartbeat: Duration,
    /// So many ended tasks are in a snapshot, beside all live ones.
    pub snapshot_tasks: u64,
    /// So many clients at once.
    pub most: usize,
}

/// One client and where it is in the stream.
struct Reading {
    ready: VecDeque<Bytes>,
    changes: Changes,
    /// The newest change it was sent.
    seen: u64,
    silence: Duration,
    /// When it was last sent something.
    last: Instant,
    alarm: std::pin::Pin<Box<Sleep>>,
    stopping: std::pin::Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
    api: Api,
    metrics: Metrics,
    _client: Client,
}

impl Reading {
    fn frames(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut reading| async move {
            let frame = reading.next().await?;
            Some((Ok(frame), reading))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let frame = match self.ready.pop_front() {
            Some(frame) => frame,
            None => self.wait().await?,
        };
        self.last = Instant::now();
        Some(frame)
    }

    async fn wait(&mut self) -> Option<Bytes> {
        loop {
            // Most of the time there is either one or nothing, and no need to look at the clock.
            let change = match self.changes.try_recv() {
                Ok(change) => Ok(change),
                Err(TryRecvError::Lagged(n)) => Err(RecvError::Lagged(n)),
                Err(TryRecvError::Closed) => Err(RecvError::Closed),
                Err(TryRecvError::Empty) => tokio::select! {
                    biased;
                    () = &mut self.stopping => return None,
                    change = self.changes.recv() => change,
                    () = &mut self.alarm => {
                        let due = self.last + self.silence;
                        let now = Instant::now();
                        self.alarm.as_mut().reset(if due > now { due } else { now + self.silence });
                        if due > now {
                            continue;
                        }
                        return Some(heartbeat(self.seen, self.api.supervisor.clock().now()));
                    }
                },
            };
            match change {
                Ok(change) if change.id <= self.seen => {}
                Ok(change) => {
                    self.seen = change.id;
                    return Some(self.api.frame(&change));
                }
                Err(RecvError::Lagged(_)) => {
                    self.metrics.client_dropped();
                    return None;
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Api {
    /// Written once, whoever reads it.
    fn frame(&self, change: &Change) -> Bytes {
        change.written(|change| frame(change, &self.supervisor.brief(&change.task)))
    }
}

fn frame(change: &Change, task: &TaskView) -> Bytes {
    let name = match change.kind {
        Kind::Created => "task.created",
        Kind::Updated => "task.updated",
        Kind::Completed => "task.completed",
        Kind::Error => "task.error",
        Kind::Cancelled => "task.cancelled",
    };
    let task = task.to_json();
    format!("event: {name}\nid: {}\ndata: {{\"task\":{task}}}\n\n", change.id).into()
}

fn heartbeat(seen: u64, now: Timestamp) -> Bytes {
    format!("event: heartbeat\nid: {seen}\ndata: {{\"ts\":\"{now}\"}}\n\n").into()
}

async fn snapshot(api: &Api) -> Result<Written, ApiError> {
    let mut last = api.snapshots.lock().await;
    let key = api.supervisor.snapshot_key()?;
    if let Some(written) = last.as_ref().filter(|written| written.key == key) {
        return Ok(written.clone());
    }
    // The old one goes first: no need for both at the same time.
    *last = None;
    let others = api.streams.snapshot_tasks;
    let snapshot = api.read(move |supervisor| supervisor.snapshot(others)).await?;
    let stats = stats::view(&snapshot.totals);
    let mut text: Vec<u8> =
        format!("event: snapshot\nid: {}\ndata: {{\"tasks\":", snapshot.change).into();
    serde_json::to_writer(&mut text, &snapshot.tasks).map_err(ApiError::unwritable)?;
    text.extend_from_slice(b",\"stats\":");
    serde_json::to_writer(&mut text, &stats).map_err(ApiError::unwritable)?;
    text.extend_from_slice(format!(",\"total\":{}}}\n\n", stats.total_tasks).as_bytes());
    let written = Written { key, change: snapshot.change, frame: text.into() };
    *last = Some(written.clone());
    Ok(written)
}
