//! `POST /v1/wait`: long poll until tasks have ended, the time is up, or only a person could end the wait.
//! Waiting callers sleep on the feed; nothing polls the store.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use super::permissions;
use super::tasks::seconds;
use crate::supervisor::{Need, WaitEnd};
use crate::task::TaskId;
use crate::tools;
use crate::wire::{WaitRequest, WaitView};

pub(super) async fn wait(
    State(api): State<Api>,
    Body(request): Body<WaitRequest>,
) -> Result<Json<WaitView>, ApiError> {
    // First, so that tasks that are parked without their credentials can go on while they are waited for.
    if let Some(caller) = request.caller {
        api.supervisor.bring(&tools::caller(caller)?).await?;
    }
    let ids: Vec<TaskId> = request.ids.into_iter().map(TaskId::new).collect();
    let need = request.need.map_or(Need::All, Need::AtLeast);
    let timeout = seconds(request.timeout)?;
    let waited = match request.until_blocked {
        true => api.supervisor.wait_or_blocked(&ids, need, timeout).await?,
        false => api.supervisor.wait(&ids, need, timeout).await?,
    };
    let asks = match waited.end {
        WaitEnd::Blocked => permissions::view(&api, api.supervisor.asks_of(&waited.tasks))?,
        WaitEnd::Enough | WaitEnd::TimedOut => Vec::new(),
    };
    let tasks = waited.tasks.iter().map(|task| api.supervisor.brief(task)).collect();
    let timed_out = waited.end == WaitEnd::TimedOut;
    Ok(Json(WaitView { tasks, timed_out, blocked: waited.end == WaitEnd::Blocked, asks }))
}
