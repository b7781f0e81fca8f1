//! `/v1/permissions`: the permission requests that agents wait for, and the answers of a person.

use axum::Json;
use axum::extract::{Path, State};

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{Answer, Asked};
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
    let answered = api.supervisor.answer(&id, answer).await?;
    Ok(Json(PermissionsView { permissions: view(&api, answered)? }))
}

pub(super) fn view(api: &Api, asked: Vec<Asked>) -> Result<Vec<PermissionView>, ApiError> {
    let mut permissions = Vec::with_capacity(asked.len());
    for Asked { ask, task, since } in asked {
        let task = api.supervisor.task(&task)?;
        permissions.push(PermissionView {
            id: ask.id,
            session_id: task.id.to_string(),
            short_id: task.short_id.to_string(),
            description: task.order.description,
            what: ask.what,
            since,
        });
    }
    Ok(permissions)
}
