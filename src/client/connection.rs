//! Connection pool for the daemon's Unix socket: one HTTP/1.1 connection per call under way. Idle ones are
//! reused, because opening one costs as much as a call.
//!
//! A request is sent a second time only if it is certain that nothing of it was sent the first time: the
//! daemon may have closed an idle connection in the meantime (it was restarted), and hyper hands such a
//! request back unsent. Anything else that goes wrong is for the caller to decide.

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

/// How many idle connections are kept; more calls than this at a time are rare.
const MOST_IDLE: usize = 4;

#[derive(Clone)]
pub(super) struct ConnectionPool {
    socket: Arc<Path>,
    idle: IdleConnections,
}

type IdleConnections = Arc<Mutex<Vec<SendRequest<Body>>>>;

#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing listens on the socket.
    NotOpened(io::Error),
    /// It broke under the call, which may or may not have been carried out.
    Broken(hyper::Error),
}

/// A response whose body is still being read.
pub(super) struct Response {
    pub(super) status: StatusCode,
    body: axum::body::BodyDataStream,
    /// Goes back to the pool once the whole body has been read. Dropped before that, it is closed: that is
    /// how the daemon notices that a caller no longer waits.
    connection: Option<SendRequest<Body>>,
    idle: IdleConnections,
}

impl ConnectionPool {
    pub(super) fn to(socket: &Path) -> ConnectionPool {
        ConnectionPool { socket: socket.into(), idle: IdleConnections::default() }
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response, Failure> {
        // Each turn takes one connection out of the pool, so this ends with a fresh one at the latest.
        loop {
            let pooled = locked(&self.idle).pop();
            let is_reused = pooled.is_some();
            let mut connection = match pooled {
                Some(connection) => connection,
                None => self.open().await?,
            };
            let sent = match connection.ready().await {
                Ok(()) => connection.try_send_request(request).await,
                // The daemon closed it while it was idle; nothing was sent.
                Err(_) if is_reused => continue,
                Err(error) => return Err(Failure::Broken(error)),
            };
            match sent {
                Ok(response) => {
                    let status = response.status();
                    let body = Body::new(response.into_body()).into_data_stream();
                    let idle = Arc::clone(&self.idle);
                    return Ok(Response { status, body, connection: Some(connection), idle });
                }
                // Hyper returns the message only if not a byte of it was written, so this is no repeat.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if is_reused => request = unsent,
                    Some(_) | None => return Err(Failure::Broken(failed.into_error())),
                },
            }
        }
    }

    async fn open(&self) -> Result<SendRequest<Body>, Failure> {
        let stream = UnixStream::connect(&*self.socket).await.map_err(Failure::NotOpened)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
        // Drives the connection. Its error is dropped here: the call that uses it gets the same one. Detached:
        // it ends when the sender and the response are dropped, and a client has nothing to wait for then.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Response {
    /// The next chunk of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Option<Result<Bytes, axum::Error>> {
        let chunk = self.body.next().await;
        if chunk.is_none()
            && let Some(connection) = self.connection.take()
        {
            let mut idle = locked(&self.idle);
            if idle.len() < MOST_IDLE {
                idle.push(connection);
            }
        }
        chunk
    }
}

fn locked(idle: &IdleConnections) -> MutexGuard<'_, Vec<SendRequest<Body>>> {
    idle.lock()
}
