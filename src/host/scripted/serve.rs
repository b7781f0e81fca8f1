//! Server for the scripted host as a process of its own: the same calls, as JSON over HTTP on a Unix socket,
//! and a stream of events without content, which only wake the listener.

use std::path::Path;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use tokio::net::UnixListener;

use super::{Call, Reply, World};
use crate::host::Error;

/// Serves until `shutdown` resolves.
pub async fn serve(
    world: World,
    socket: &Path,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let router = Router::new()
        .route("/call", post(call))
        .route("/events", get(events))
        .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
        .with_state(world);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served,
        () = shutdown => Ok(()),
    }
}

async fn call(State(world): State<World>, Json(call): Json<Call>) -> Json<Result<Reply, Error>> {
    Json(world.call(call))
}

/// A line per event; the first one is sent at once, so that a listener looks after connecting.
async fn events(State(world): State<World>) -> Response {
    let mut events = world.events();
    events.mark_changed();
    let lines = stream::unfold(events, |mut events| async move {
        events.changed().await.ok()?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"\n")), events))
    });
    Response::new(Body::from_stream(lines))
}
