//! Reverse tunnel to an OpenCode process that listens on no port: our plugin inside holds a stream open to
//! the daemon, takes requests from it, makes them in its process and posts the responses. Requests and
//! responses are matched by a correlation id. When the stream closes, every pending request fails at once
//! instead of running into its timeout.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::call::{Bytes, Call, Error, Reply};
use crate::task::SessionId;

/// A message to the plugin, one line of JSON each.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first one: the id under which the plugin posts its responses.
    Bridge(u64),
    /// The instance name of its process; sent back on reconnecting, so that it keeps its tasks.
    Name(String),
    Call(Request),
    /// Cancels a request: its response is not wanted any more.
    Drop(u64),
    /// The daemon stops on purpose; the plugin must not start it again.
    Bye,
}

/// A request for the plugin to make in its process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request {
    /// Correlation id, unique on this bridge.
    pub id: u64,
    pub method: String,
    /// With its query.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The response is an endless stream, forwarded in pieces as it comes.
    pub stream: bool,
}

/// Reverse connections: processes that listen on no port and are reached through our plugin in them.
pub trait Bridges: Send + Sync {
    /// A plugin has connected; the receiver yields what to send to it. `before` is the instance name it had
    /// with the previous daemon, `live` are the instances that have live tasks.
    fn bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
        live: Vec<String>,
    ) -> (Arc<Bridge>, mpsc::UnboundedReceiver<Line>);
    fn bridge_by_id(&self, id: u64) -> Option<Arc<Bridge>>;
    /// Records which process a caller's conversation belongs to. `true` when that was not known.
    fn note_parent(&self, session: &SessionId, instance: &str, directory: &str) -> bool;
    /// Tells the plugins that the daemon stops on purpose, so that they do not start it again.
    fn say_goodbye(&self);
}

/// The daemon's end of one such tunnel.
pub struct Bridge {
    pub id: u64,
    /// Of the OpenCode process.
    pub pid: u32,
    lines: mpsc::UnboundedSender<Line>,
    waiting: Mutex<HashMap<u64, ResponseSink>>,
    calls: AtomicU64,
    closed: CancellationToken,
}

/// Where the response to a request goes: to a caller at once, or as a stream of its pieces.
enum ResponseSink {
    Answer(oneshot::Sender<Reply>),
    Pieces(mpsc::UnboundedSender<Vec<u8>>),
}

impl Bridge {
    pub(super) fn new(id: u64, pid: u32) -> (Bridge, mpsc::UnboundedReceiver<Line>) {
        let (lines, receiver) = mpsc::unbounded_channel();
        let bridge = Bridge {
            id,
            pid,
            lines,
            waiting: Mutex::default(),
            calls: AtomicU64::new(1),
            closed: CancellationToken::new(),
        };
        bridge.say(Line::Bridge(id));
        (bridge, receiver)
    }

    pub(super) fn say(&self, line: Line) {
        // Fails only when the plugin is gone; then the bridge is about to be closed.
        let _ = self.lines.send(line);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Cancels this work when the bridge closes.
    pub(super) async fn until_closed(&self, work: impl Future<Output = ()>) {
        self.closed.run_until_cancelled(work).await;
    }

    /// The plugin, or its process, is gone. Every pending request fails.
    pub fn close(&self) {
        // In this order: `ask` inserts first and checks the flag then, so no request is left behind.
        self.closed.cancel();
        self.waiting().clear();
    }

    /// An answer of the plugin. `false` when nobody waits for it.
    pub fn answer(&self, call: u64, status: u16, is_json: bool, body: Vec<u8>) -> bool {
        match self.waiting().remove(&call) {
            Some(ResponseSink::Answer(answer)) => {
                answer.send(Reply { status, is_json, body }).is_ok()
            }
            // A whole response to a stream request: the process refused the stream.
            Some(ResponseSink::Pieces(_)) | None => false,
        }
    }

    /// A piece of a stream; an empty one is its end. `false` when nobody listens.
    pub fn piece(&self, call: u64, piece: Vec<u8>) -> bool {
        let mut waiting = self.waiting();
        match waiting.get(&call) {
            Some(ResponseSink::Pieces(pieces))
                if !piece.is_empty() && pieces.send(piece).is_ok() =>
            {
                true
            }
            Some(_) | None => {
                waiting.remove(&call);
                false
            }
        }
    }

    pub(super) async fn send(&self, call: Call, patience: Duration) -> Result<Reply, Error> {
        let (answering, answer) = oneshot::channel();
        let id = self.ask(call, ResponseSink::Answer(answering))?;
        let answered = tokio::select! {
            answered = tokio::time::timeout(patience, answer) => answered,
            () = self.closed.cancelled() => return Err(gone()),
        };
        match answered {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                // The plugin need not finish what nobody waits for.
                self.waiting().remove(&id);
                self.say(Line::Drop(id));
                Err(Error::Broken("OpenCode's plugin did not answer in time".into()))
            }
        }
    }

    pub(super) fn stream(&self, path: &str) -> Result<Bytes, Error> {
        let (sender, pieces) = mpsc::unbounded_channel();
        let call = Call { method: reqwest::Method::GET, path: path.to_owned(), body: None };
        self.ask(call, ResponseSink::Pieces(sender))?;
        let pieces = stream::unfold(pieces, |mut pieces| async move {
            let piece = pieces.recv().await?;
            Some((Ok(piece), pieces))
        });
        Ok(pieces.boxed())
    }

    fn ask(&self, call: Call, waiting: ResponseSink) -> Result<u64, Error> {
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        let stream = matches!(waiting, ResponseSink::Pieces(_));
        self.waiting().insert(id, waiting);
        if self.is_closed() {
            self.waiting().remove(&id);
            return Err(gone());
        }
        let body = call.body.map(|body| String::from_utf8_lossy(&body).into_owned());
        let method = call.method.to_string();
        self.say(Line::Call(Request { id, method, path: call.path, body, stream }));
        Ok(id)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, ResponseSink>> {
        self.waiting.lock()
    }
}

fn gone() -> Error {
    Error::Refused("its OpenCode process has ended, or its plugin is not loaded".into())
}
