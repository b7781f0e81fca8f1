//! The connections to the daemon's socket: one for every call under way. Those that are free are
//! used again, because opening one costs as much as a call.

use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use futures_util::StreamExt;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::UnixStream;

/// More calls than this at a time are rare.
const MOST_FREE: usize = 4;

#[derive(Clone)]
pub(super) struct Connections {
    socket: Arc<Path>,
    free: Free,
}

type Free = Arc<Mutex<Vec<SendRequest<Body>>>>;

#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody listens.
    NotOpened(io::Error),
    Broken(hyper::Error),
}

/// An answer that has begun.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    body: axum::body::BodyDataStream,
    /// Free again once the whole answer has been read; dropped before that, it is closed, and
    /// whoever answers notices.
    connection: Option<SendRequest<Body>>,
    free: Free,
}

impl Connections {
    pub(super) fn to(socket: &Path) -> Connections {
        Connections { socket: socket.into(), free: Free::default() }
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Answer, Failure> {
        loop {
            let kept = locked(&self.free).pop();
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.open().await?,
            };
            let sent = match connection.ready().await {
                Ok(()) => connection.try_send_request(request).await,
                // One that was kept may have been closed meanwhile.
                Err(_) if is_kept => continue,
                Err(error) => return Err(Failure::Broken(error)),
            };
            match sent {
                Ok(response) => {
                    let status = response.status();
                    let body = Body::new(response.into_body()).into_data_stream();
                    let free = Arc::clone(&self.free);
                    return Ok(Answer { status, body, connection: Some(connection), free });
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if is_kept => request = unsent,
                    Some(_) | None => return Err(Failure::Broken(failed.into_error())),
                },
            }
        }
    }

    async fn open(&self) -> Result<SendRequest<Body>, Failure> {
        let stream = UnixStream::connect(&*self.socket).await.map_err(Failure::NotOpened)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
        // What goes wrong with it, the call says.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Answer {
    /// The next piece of it; `None` when that was all.
    pub(super) async fn piece(&mut self) -> Option<Result<Bytes, axum::Error>> {
        let piece = self.body.next().await;
        if piece.is_none()
            && let Some(connection) = self.connection.take()
        {
            let mut free = locked(&self.free);
            if free.len() < MOST_FREE {
                free.push(connection);
            }
        }
        piece
    }
}

fn locked(free: &Free) -> MutexGuard<'_, Vec<SendRequest<Body>>> {
    free.lock()
}
