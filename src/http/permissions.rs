//! `/v1/permissions`: the permission requests that agents wait for, and the answers of a person.

use axum::Json;
use axum::extract::{Path, State};

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{Answer, PermissionRequest};
use crate::task::Answerer;
use crate::tools;
use crate::wire::{AnswerRequest, PermissionView, PermissionsView};

pub(super) async fn list(State(api): State<Api>) -> Result<Json<PermissionsView>, ApiError> {
    Ok(Json(PermissionsView { permissions: view(&api, api.supervisor.asks())? }))
}

pub(super) async fn answer(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<AnswerRequest>,
) -> Result<Json<PermissionsView>, ApiError> {
    let answer = match request.allow {
        true => Answer::Allow,
        false => Answer::Deny,
    };
    let by = Answerer { door: request.door, by: request.by };
    let answered = api.supervisor.answer_once(&id, answer, by, request.key.as_deref()).await?;
    Ok(Json(PermissionsView { permissions: view(&api, answered)? }))
}

pub(super) fn view(
    api: &Api,
    requests: Vec<PermissionRequest>,
) -> Result<Vec<PermissionView>, ApiError> {
    Ok(tools::permissions(&api.supervisor, requests)?)
}
