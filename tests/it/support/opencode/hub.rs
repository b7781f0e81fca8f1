//! The event streams: their subscribers, and injected faults (lost, duplicated and delayed events).

use std::io;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::ids::Random;

enum HubMessage {
    Line(String),
    Broken,
}

/// Probabilities per event.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) lose: f64,
    pub(super) duplicate: f64,
    /// The event is sent after the next one.
    pub(super) reorder: f64,
}

pub(super) struct Hub {
    /// Each with the time from which it receives events.
    listeners: Vec<(UnboundedSender<HubMessage>, Instant)>,
    faults: Faults,
    random: Random,
    held: Option<String>,
    muted: bool,
    lose_next: Option<String>,
    /// All events, whether delivered or not.
    pub(super) happened: Vec<Value>,
}

impl Hub {
    pub(super) fn new() -> Hub {
        Hub {
            listeners: Vec::new(),
            faults: Faults::default(),
            random: Random::new(0),
            held: None,
            muted: false,
            lose_next: None,
            happened: Vec::new(),
        }
    }

    pub(super) fn set_faults(&mut self, faults: Faults, seed: u64) {
        (self.faults, self.random) = (faults, Random::new(seed));
    }

    /// Drops the next event of this type.
    pub(super) fn lose_next(&mut self, kind: &str) {
        self.lose_next = Some(kind.to_owned());
    }

    /// Streams stay open and silent, without heartbeats.
    pub(super) fn mute(&mut self, muted: bool) {
        self.muted = muted;
    }

    pub(super) fn is_muted(&self) -> bool {
        self.muted
    }

    pub(super) fn listeners(&mut self) -> usize {
        self.listeners.retain(|(listener, _)| !listener.is_closed());
        self.listeners.len()
    }

    /// Closes the streams cleanly.
    pub(super) fn close(&mut self) {
        self.listeners.clear();
    }

    /// Breaks the streams off, as when the process is killed.
    pub(super) fn break_off(&mut self) {
        for (listener, _) in self.listeners.drain(..) {
            // The subscriber may have disconnected.
            let _ = listener.send(HubMessage::Broken);
        }
    }

    pub(super) fn push(&mut self, event: Value) {
        let kind = event["payload"]["type"].as_str().unwrap_or_default();
        let lost = self.lose_next.take_if(|lost| lost == kind).is_some();
        let line = format!("data: {event}\n\n");
        self.happened.push(event);
        if self.muted || lost || self.random.chance(self.faults.lose) {
            return;
        }
        if self.held.is_none() && self.random.chance(self.faults.reorder) {
            self.held = Some(line);
            return;
        }
        self.send(|| HubMessage::Line(line.clone()));
        if self.random.chance(self.faults.duplicate) {
            self.send(|| HubMessage::Line(line.clone()));
        }
        self.release();
    }

    /// Sends the events that were held back for reordering.
    pub(super) fn release(&mut self) {
        if let Some(line) = self.held.take() {
            self.send(|| HubMessage::Line(line.clone()));
        }
    }

    fn send(&mut self, sent: impl Fn() -> HubMessage) {
        let now = Instant::now();
        self.listeners.retain(|(listener, from)| *from > now || listener.send(sent()).is_ok());
    }

    /// The response to `GET /global/event`: `connected` first, then events once the subscriber can
    /// receive them.
    pub(super) fn listen(
        &mut self,
        connected: &Value,
        heartbeat: impl Fn() -> Option<Value> + Send + Sync + 'static,
        every: Duration,
        deaf: Duration,
    ) -> Response<Body> {
        let (listener, sents) = mpsc::unbounded_channel();
        let first = HubMessage::Line(format!("data: {connected}\n\n"));
        listener.send(first).expect("the other end is here");
        self.listeners.push((listener, Instant::now() + deaf));
        let body =
            stream::unfold((sents, heartbeat, every), async |(mut sents, heartbeat, every)| {
                let bytes = next(&mut sents, &heartbeat, every).await?;
                Some((bytes, (sents, heartbeat, every)))
            });
        let response = Response::builder()
            .header("content-type", "text/event-stream")
            .header("cache-control", "no-cache, no-transform");
        response.body(Body::from_stream(body)).unwrap()
    }
}

async fn next(
    sents: &mut UnboundedReceiver<HubMessage>,
    heartbeat: &impl Fn() -> Option<Value>,
    every: Duration,
) -> Option<io::Result<Bytes>> {
    loop {
        match tokio::time::timeout(every, sents.recv()).await {
            Ok(Some(HubMessage::Line(line))) => return Some(Ok(Bytes::from(line))),
            Ok(Some(HubMessage::Broken)) => {
                return Some(Err(io::Error::other("the server is gone")));
            }
            Ok(None) => return None,
            Err(_) => {
                if let Some(event) = heartbeat() {
                    return Some(Ok(Bytes::from(format!("data: {event}\n\n"))));
                }
            }
        }
    }
}

/// An event without a directory.
pub(super) fn server_event(id: &str, kind: &str) -> Value {
    json!({"payload": {"id": id, "type": kind, "properties": {}}})
}
