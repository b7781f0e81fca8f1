//! The daemon's end of a bridge to an OpenCode process: lines to its plugin, answers from it.

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

/// Closes the bridge when the plugin's connection goes, however it goes.
struct Open(Arc<Bridge>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
        tracing::info!(pid = self.0.pid, "an OpenCode plugin left");
    }
}

pub(super) async fn open(
    State(api): State<Api>,
    Body(request): Body<BridgeRequest>,
) -> Result<Response, ApiError> {
    let BridgeRequest { pid, directory, name } = request;
    let (bridge, lines) = api.supervisor.bridge(pid, &directory, &name)?;
    tracing::info!(pid, "an OpenCode plugin came");
    let open = Open(bridge);
    let stopping = api.stop.clone();
    let lines = stream::unfold((lines, open, stopping), |(mut lines, open, stop)| async move {
        let line = tokio::select! {
            // What was said before the end is still told.
            biased;
            line = lines.recv() => line?,
            () = stop.cancelled() => return None,
        };
        let mut text = serde_json::to_string(&line).expect("a line is JSON");
        text.push('\n');
        Some((Ok::<_, Infallible>(text), (lines, open, stop)))
    });
    let headers = [("content-type", "application/x-ndjson")];
    Ok((headers, HttpBody::from_stream(lines)).into_response())
}

/// The answer to a call, as the process gave it.
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

/// A piece of a stream; 410 tells the plugin that nobody listens any more.
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
    found.ok_or_else(|| ApiError::with_status(StatusCode::NOT_FOUND, "no such bridge; come anew"))
}
