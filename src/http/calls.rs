//! `/v1/calls`: tool calls that wait in the daemon while their callers do something else. They are made like any other
//! call (`tools.rs`); here a client asks how far one is, fetches its answer, cancels it, or says that its user left a
//! permission request to others. Reading is a POST: it carries the caller's credentials, and composes the answer.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use super::tools::warned;
use crate::tools;
use crate::wire::{CallView, CallerRequest, DeclineRequest};

pub(super) async fn get(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<CallerRequest>,
) -> Result<Json<CallView>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let mut call = api.calls.get(&caller, &id).await?.ok_or_else(|| unknown(&id))?;
    call.answer = call.answer.map(|answer| warned(&api, answer));
    Ok(Json(call))
}

pub(super) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<CallerRequest>,
) -> Result<Json<()>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let is_known = api.calls.cancel(&caller, &id).await?;
    is_known.then_some(Json(())).ok_or_else(|| unknown(&id))
}

pub(super) async fn decline(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<DeclineRequest>,
) -> Result<Json<()>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let is_known = api.calls.decline(&caller, &id, request.asks).await?;
    is_known.then_some(Json(())).ok_or_else(|| unknown(&id))
}

/// Also for a call of another conversation: whether there is one is nobody else's business.
fn unknown(id: &str) -> ApiError {
    let text = format!("no call `{id}`; its answer may have been deleted meanwhile");
    ApiError::with_status(StatusCode::NOT_FOUND, text)
}
