//! `POST /v1/cancel`: cancels tasks by id, by batch, or all. Returns once the ends are on disk; the hosts are
//! told afterwards.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{Error, Target};
use crate::task::lifecycle::Refused;
use crate::task::{BatchId, TaskId};
use crate::tools;
use crate::wire::{CancelRequest, CancelView};

pub(super) async fn cancel(
    State(api): State<Api>,
    Body(request): Body<CancelRequest>,
) -> Result<Json<CancelView>, ApiError> {
    let CancelRequest { caller, ids, all, batch, key } = request;
    let caller = tools::caller(caller)?;
    // `asyncagents list` shows the tasks of all parents, so `asyncagents cancel --all` stops all of them.
    // For any other caller `all` means its own.
    let everything = if caller.is_shell() { Target::Everything } else { Target::All };
    let targets = match (ids.as_slice(), all, batch) {
        ([_, ..], false, None) => ids.into_iter().map(|id| Target::Task(TaskId::new(id))).collect(),
        ([], true, None) => vec![everything],
        ([], false, Some(batch)) => vec![Target::Batch(BatchId::new(batch))],
        _ => return Err(ApiError::bad_request("pass exactly one of `ids`, `all` and `batch`")),
    };
    let several = targets.len() > 1;
    let (mut cancelled, mut over) = (Vec::new(), Vec::new());
    for target in targets {
        let done = api.supervisor.cancel_once(&caller, target.clone(), key.clone()).await;
        match (done, target) {
            (Ok(stopped), _) => {
                cancelled.extend(stopped.tasks.iter().map(|task| api.supervisor.brief(task)))
            }
            // With several ids, one task that has ended is reported and the others are cancelled all the
            // same; a single id that has ended is an error.
            (Err(Error::Refused(Refused::AlreadyOver)), Target::Task(id)) if several => {
                over.push(api.supervisor.brief(&api.supervisor.task(&id)?));
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    Ok(Json(CancelView { cancelled, over }))
}
