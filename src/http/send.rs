//! `POST /v1/tasks/{id}/send`: a message to a task. Returns once it is on disk; the agent gets it afterwards.

use axum::Json;
use axum::extract::{Path, State};

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{Delivery, SendOutcome};
use crate::task::TaskId;
use crate::tools;
use crate::wire::{DeliveryView, SendRequest, SentView, TaskView};

pub(super) async fn send(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<SendRequest>,
) -> Result<Json<SentView>, ApiError> {
    let SendRequest { message, hand_over, key } = request;
    let id = TaskId::new(id);
    let task = api.supervisor.task(&id)?;
    if !task.is_live() {
        // As for any resume: the next run uses the caller's present credentials.
        api.supervisor.renew_handed(&task, &tools::handed(hand_over)).await?;
    }
    let SendOutcome { task, delivery } = api.supervisor.send(&id, message, key).await?;
    let delivery = match delivery {
        Delivery::Steered => DeliveryView::Steered,
        Delivery::Queued => DeliveryView::Queued,
        Delivery::Resumed => DeliveryView::Resumed,
    };
    Ok(Json(SentView { task: TaskView::from(&task), delivery }))
}
