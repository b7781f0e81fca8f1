//! The SSE stream: a snapshot, then every task event in commit order, and a heartbeat after a silence.
//!
//! An event is encoded once, however many clients read it. The id of a frame is the store's change counter:
//! a client that reconnects with `since` is replayed what it missed, or gets a fresh snapshot when the
//! replay buffer does not reach back that far. A client that lags behind the feed is disconnected, so that a
//! slow reader costs neither memory nor the others' time; it reconnects and gets a snapshot.

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
use crate::feed::{EventKind, Events, TaskEvent};
use crate::metrics::{Metrics, StreamGuard};
use crate::task::Timestamp;
use crate::task::view::TaskView;

/// Single-entry cache of the last snapshot. After a restart all clients reconnect at the same moment: the
/// lock is held while the snapshot is read, so the first of them builds it and the others share its bytes.
pub type SnapshotCache = Arc<tokio::sync::Mutex<Option<SnapshotFrame>>>;

/// A snapshot, encoded as an SSE frame.
#[derive(Clone)]
pub struct SnapshotFrame {
    /// Cache key: the newest change and the number of tasks before it was read. The number is in it because
    /// pruning deletes tasks without being a change.
    key: (u64, u64),
    /// The newest change that is in it; events up to this one are not sent again.
    change: u64,
    frame: Bytes,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// The id of the last event that was seen. The events after it are sent instead of a snapshot,
    /// if they are still buffered.
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
    (status = 503, description = "the limit of clients is reached", body = crate::wire::ErrorView),
))]
pub(super) async fn events(
    State(api): State<Api>,
    Params(query): Params<EventsQuery>,
) -> Result<Response, ApiError> {
    if query.since.is_some_and(|since| since > LARGEST_NUMBER) {
        return Err(ApiError::bad_request("`since` goes up to 9007199254740991"));
    }
    let metrics = api.supervisor.metrics().clone();
    let guard = metrics.client(api.streams.most).ok_or_else(ApiError::too_many_streams)?;
    let missed = query.since.and_then(|since| api.supervisor.events_after(since));
    let (pending, events, sent) = match missed {
        Some((missed, events)) => {
            let sent = missed.last().map_or(query.since.unwrap_or(0), |event| event.id);
            (missed.iter().map(|event| api.frame(event)).collect(), events, sent)
        }
        None => {
            // Subscribe before reading the snapshot: a change that is committed in between is then in
            // both, and `sent` drops the duplicate. The other way round it would be in neither.
            let events = api.supervisor.events();
            let SnapshotFrame { change, frame, .. } = snapshot(&api).await?;
            (VecDeque::from([frame]), events, change)
        }
    };
    let client = SseClient {
        pending,
        events,
        sent,
        heartbeat: api.streams.heartbeat,
        last_frame: Instant::now(),
        alarm: Box::pin(sleep_until(Instant::now() + api.streams.heartbeat)),
        stopping: Box::pin(api.supervisor.stopping().cancelled_owned()),
        api,
        metrics,
        _guard: guard,
    };
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(client.frames())).into_response())
}

/// Settings of the event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// How long a stream is silent before a heartbeat is sent.
    pub heartbeat: Duration,
    /// How many ended tasks are in a snapshot, beside all live ones.
    pub snapshot_tasks: u64,
    /// How many clients may read it at the same time.
    pub most: usize,
}

/// One client of the event stream, and its position in it.
struct SseClient {
    /// Frames to send before new events: the snapshot, or what is replayed.
    pending: VecDeque<Bytes>,
    events: Events,
    /// The id of the newest event that was sent to it.
    sent: u64,
    heartbeat: Duration,
    last_frame: Instant,
    alarm: std::pin::Pin<Box<Sleep>>,
    stopping: std::pin::Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
    api: Api,
    metrics: Metrics,
    _guard: StreamGuard,
}

impl SseClient {
    fn frames(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut client| async move {
            let frame = client.next().await?;
            Some((Ok(frame), client))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let frame = match self.pending.pop_front() {
            Some(frame) => frame,
            None => self.wait().await?,
        };
        self.last_frame = Instant::now();
        Some(frame)
    }

    /// The next frame; `None` closes the connection.
    async fn wait(&mut self) -> Option<Bytes> {
        loop {
            // In a burst the next event is there already: taking it without `select!` saves polling the
            // timer and the shutdown signal for each one.
            let event = match self.events.try_recv() {
                Ok(event) => Ok(event),
                Err(TryRecvError::Lagged(n)) => Err(RecvError::Lagged(n)),
                Err(TryRecvError::Closed) => Err(RecvError::Closed),
                Err(TryRecvError::Empty) => tokio::select! {
                    biased;
                    () = &mut self.stopping => return None,
                    event = self.events.recv() => event,
                    // Set again only when it fires, not with every frame: one that fires too early is
                    // moved to the time that is due.
                    () = &mut self.alarm => {
                        let due = self.last_frame + self.heartbeat;
                        let now = Instant::now();
                        self.alarm.as_mut().reset(if due > now { due } else { now + self.heartbeat });
                        if due > now {
                            continue;
                        }
                        return Some(heartbeat(self.sent, self.api.supervisor.clock().now()));
                    }
                },
            };
            match event {
                // It is in the snapshot already.
                Ok(event) if event.id <= self.sent => {}
                Ok(event) => {
                    self.sent = event.id;
                    return Some(self.api.frame(&event));
                }
                // Events are missing now, so the stream cannot go on: the client has to start again.
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
    /// The SSE frame of an event, encoded once for all clients.
    fn frame(&self, event: &TaskEvent) -> Bytes {
        event.encoded(|event| frame(event, &self.supervisor.brief(&event.task)))
    }
}

fn frame(event: &TaskEvent, task: &TaskView) -> Bytes {
    let name = match event.kind {
        EventKind::Created => "task.created",
        EventKind::Updated => "task.updated",
        EventKind::Completed => "task.completed",
        EventKind::Error => "task.error",
        EventKind::Cancelled => "task.cancelled",
    };
    let task = task.to_json();
    format!("event: {name}\nid: {}\ndata: {{\"task\":{task}}}\n\n", event.id).into()
}

/// It repeats the id of the last event: a client that comes back with it misses nothing.
fn heartbeat(sent: u64, now: Timestamp) -> Bytes {
    format!("event: heartbeat\nid: {sent}\ndata: {{\"ts\":\"{now}\"}}\n\n").into()
}

/// The snapshot from the cache, or read again when something has changed since.
async fn snapshot(api: &Api) -> Result<SnapshotFrame, ApiError> {
    let mut cached = api.snapshots.lock().await;
    let key = api.supervisor.snapshot_key()?;
    if let Some(frame) = cached.as_ref().filter(|frame| frame.key == key) {
        return Ok(frame.clone());
    }
    // Dropped before the new one is read: a snapshot can be large, and two are never needed.
    *cached = None;
    let others = api.streams.snapshot_tasks;
    let snapshot = api.read(move |supervisor| supervisor.snapshot(others)).await?;
    let stats = stats::view(&snapshot.totals);
    let mut text: Vec<u8> =
        format!("event: snapshot\nid: {}\ndata: {{\"tasks\":", snapshot.change).into();
    serde_json::to_writer(&mut text, &snapshot.tasks).map_err(ApiError::unwritable)?;
    text.extend_from_slice(b",\"stats\":");
    serde_json::to_writer(&mut text, &stats).map_err(ApiError::unwritable)?;
    text.extend_from_slice(format!(",\"total\":{}}}\n\n", stats.total_tasks).as_bytes());
    let frame = SnapshotFrame { key, change: snapshot.change, frame: text.into() };
    *cached = Some(frame.clone());
    Ok(frame)
}
