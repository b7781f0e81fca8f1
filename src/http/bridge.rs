//! The daemon's end of a bridge to an OpenCode process: a reverse connection through our plugin, for
//! processes that listen on no port.
//!
//! The plugin opens `POST /v1/bridge` and keeps it open; calls go to it as lines of JSON, and it posts each
//! answer, or the pieces of a stream, as a request of its own. The bridge lives as long as that connection:
//! when it breaks, the calls under way fail, and the plugin opens a new bridge under its old name.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::Api;
use super::body::{Body, Params};
use super::error::ApiError;
use crate::supervisor::Bridge;
use crate::wire::{BridgeAnswer, BridgeRequest};

/// RAII guard that closes the bridge when the plugin's connection ends, however it ends: axum drops the
/// response body then, and the guard is part of it.
struct BridgeGuard(Arc<Bridge>);

impl Drop for BridgeGuard {
    fn drop(&mut self) {
        self.0.close();
        tracing::info!(pid = self.0.pid, "OpenCode plugin disconnected; its calls under way fail");
    }
}

pub(super) async fn open(
    State(api): State<Api>,
    Body(request): Body<BridgeRequest>,
) -> Result<Response, ApiError> {
    let BridgeRequest { pid, directory, name } = request;
    let (bridge, lines) = api.supervisor.bridge(pid, &directory, &name)?;
    tracing::info!(pid, directory, "OpenCode plugin connected");
    let guard = BridgeGuard(bridge);
    let stopping = api.stop.clone();
    let lines = stream::unfold((lines, guard, stopping), |(mut lines, guard, stop)| async move {
        let line = tokio::select! {
            // Lines first: the `bye` that keeps the plugin from starting the daemon again is queued right
            // before the stop, and must not be lost to it.
            biased;
            line = lines.recv() => line?,
            () = stop.cancelled() => return None,
        };
        let mut text = serde_json::to_string(&line).expect("a line is JSON");
        text.push('\n');
        Some((Ok::<_, Infallible>(text), (lines, guard, stop)))
    });
    let headers = [("content-type", "application/x-ndjson")];
    Ok((headers, HttpBody::from_stream(lines)).into_response())
}

/// The plugin's answer to a call, as OpenCode gave it.
pub(super) async fn answer(
    State(api): State<Api>,
    Path((bridge, call)): Path<(u64, u64)>,
    Params(params): Params<BridgeAnswer>,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let bridge = find(&api, bridge)?;
    bridge.answer(call, params.status, params.json, body.to_vec());
    Ok(StatusCode::NO_CONTENT)
}

/// A piece of a streamed answer. 410 tells the plugin that nobody reads the stream any more, so that it stops
/// reading it from OpenCode.
pub(super) async fn piece(
    State(api): State<Api>,
    Path((bridge, call)): Path<(u64, u64)>,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    match find(&api, bridge)?.piece(call, body.to_vec()) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Ok(StatusCode::GONE),
    }
}

fn find(api: &Api, id: u64) -> Result<Arc<Bridge>, ApiError> {
    let found = api.supervisor.bridge_by_id(id)?;
    found.ok_or_else(|| {
        ApiError::with_status(StatusCode::NOT_FOUND, "no such bridge; open a new one")
    })
}
