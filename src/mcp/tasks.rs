//! MCP tasks (the extension `io.modelcontextprotocol/tasks`): a call that waits is answered with a handle, and the
//! client polls `tasks/get` for its answer. The call itself waits in the daemon and is stored there, so a handle
//! outlives this process, its client and the daemon. What is polled here is acknowledged like any other answer.

use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolResponse, CancelTaskParams, CreateTaskResult, DetailedTask, ElicitResult,
    GetTaskParams, GetTaskResult, InputRequest, JsonObject, Task, TaskPayload, TaskStatus,
    UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;

use super::elicit::{form, verdict};
use super::{CallFailure, Handler, TRIES, result_of};
use crate::client;
use crate::wire::{
    AnswerRequest, CallStatus, CallView, CallerRequest, DeclineRequest, Door, ErrorView,
};

/// How often clients are asked to look. A look is a request over a local socket.
const POLL_INTERVAL_MS: u64 = 2_000;

/// Whether the client of this request takes a handle instead of an answer.
pub(super) fn are_taken(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|client| client.supports_tasks())
}

/// The answer to a call that goes on in the daemon.
pub(super) fn created(call: &CallView) -> CallToolResponse {
    CreateTaskResult::new(task(call)).into()
}

impl Handler {
    pub(super) async fn state_of_task(
        &self,
        params: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let caller = self.caller(&context).await;
        let call = self.look(&params.task_id, &caller).await?;
        // As for every answer: acknowledged when it is in our hands and its client still wants it.
        if let Some(answer) = call.answer.as_ref().filter(|_| !context.ct.is_cancelled()) {
            self.keep_receipt(answer.receipt.clone(), Some(call.id.clone()));
        }
        self.acknowledge().await;
        Ok(GetTaskResult::new(DetailedTask::new(task(&call), payload(call)?)))
    }

    /// Answers permission requests. As the extension wants it, answers to what is not asked any more are ignored.
    pub(super) async fn answer_of_task(
        &self,
        params: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context).await;
        let id = params.task_id;
        let call = self.look(&id, &caller).await?;
        let mut declined = Vec::new();
        for (ask, response) in params.input_responses {
            // Only what this call asks may be answered through it: the ids come from the client, and the
            // daemon takes an answer to any open request, also one of another conversation.
            if !call.asks.iter().any(|open| open.id == ask) {
                tracing::info!(ask, "answer ignored; the request is not open any more");
                continue;
            }
            let result: Option<ElicitResult> = serde_json::from_value(response).ok();
            match result.as_ref().and_then(verdict) {
                Some(allow) => {
                    let by = caller.caller.session_id.clone();
                    let (door, key) = (Door::McpElicitation, Some(self.clock.nonce()));
                    let answer = AnswerRequest { allow, door, by, key };
                    let answered = self.ask_daemon(|| {
                        Box::pin(async {
                            let answered = self.client.answer(&ask, &answer).await;
                            answered.map(drop).or_else(ignore_answered)
                        })
                    });
                    answered.await?;
                }
                // Anything but a clear answer leaves the request to others: a form that was closed by
                // mistake must neither allow a command nor end the task.
                None => declined.push(ask),
            }
        }
        if declined.is_empty() {
            return Ok(());
        }
        let request = DeclineRequest { caller: caller.caller, asks: declined };
        self.ask_daemon(|| Box::pin(self.client.decline_asks(&id, &request))).await
    }

    pub(super) async fn stop_task(
        &self,
        params: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context).await;
        let id = params.task_id;
        self.ask_daemon(|| Box::pin(self.client.cancel_deferred(&id, &caller))).await
    }

    async fn look(&self, id: &str, caller: &CallerRequest) -> Result<CallView, ErrorData> {
        self.acknowledge_first().await;
        self.ask_daemon(|| Box::pin(self.client.deferred_call(id, caller))).await
    }

    async fn caller(&self, context: &RequestContext<RoleServer>) -> CallerRequest {
        let caller = self.connection(context).await.caller(&context.meta);
        CallerRequest { caller: self.handing_over(caller) }
    }

    /// Makes a request that may be repeated, with the next daemon when this one goes away.
    async fn ask_daemon<'a, T>(
        &self,
        request: impl Fn() -> BoxFuture<'a, Result<T, client::Error>>,
    ) -> Result<T, ErrorData> {
        self.daemon().await.map_err(CallFailure::error)?;
        for _ in 0..TRIES {
            match request().await {
                Ok(answer) => return Ok(answer),
                // The client's error and not the daemon's: a call that is unknown or was deleted stays so,
                // and to ask the next daemon would not help.
                Err(client::Error::Refused(ErrorView { error, status: 404 })) => {
                    return Err(ErrorData::invalid_params(error, None));
                }
                Err(error) => {
                    Box::pin(self.restart_daemon(error)).await.map_err(CallFailure::error)?
                }
            }
        }
        Err(CallFailure::keeps_exiting().error())
    }
}

/// The request is not open any more: it was answered elsewhere, and the task goes on either way. Any other error is the
/// client's to hear, whose user has answered in vain.
fn ignore_answered(error: client::Error) -> Result<(), client::Error> {
    match error {
        client::Error::Refused(ErrorView { error, status: 404 }) => {
            tracing::info!(error, "answer ignored; the request was already answered");
            Ok(())
        }
        error => Err(error),
    }
}

fn task(call: &CallView) -> Task {
    let status = match call.status {
        CallStatus::Working => TaskStatus::Working,
        CallStatus::InputRequired => TaskStatus::InputRequired,
        CallStatus::Completed => TaskStatus::Completed,
        CallStatus::Failed => TaskStatus::Failed,
        CallStatus::Cancelled => TaskStatus::Cancelled,
    };
    let (created, updated) = (call.created_at.to_string(), call.updated_at.to_string());
    let mut task = Task::new(call.id.clone(), status, created, updated);
    task.poll_interval_ms = Some(POLL_INTERVAL_MS);
    // Unlimited while the call waits.
    let kept_for = call.expires_at.map(|at| at.since(call.created_at));
    task.ttl_ms = kept_for.and_then(|kept| u64::try_from(kept.as_millis()).ok());
    task.status_message = Some(call.message.clone()).filter(|message| !message.is_empty());
    task
}

fn payload(call: CallView) -> Result<TaskPayload, ErrorData> {
    Ok(match (call.status, call.answer) {
        (CallStatus::Completed, Some(answer)) => {
            let result = result_of(answer.text, answer.is_error, answer.structured);
            TaskPayload::Completed { result: object(&result)? }
        }
        (CallStatus::InputRequired, _) => {
            let asks = call.asks.iter();
            let requests = asks.map(|ask| (ask.id.clone(), InputRequest::Elicitation(form(ask))));
            TaskPayload::InputRequired { input_requests: requests.collect() }
        }
        (CallStatus::Cancelled, _) => TaskPayload::Cancelled,
        (CallStatus::Working, _) => TaskPayload::Working,
        (CallStatus::Failed | CallStatus::Completed, _) => {
            let why = call.failure.unwrap_or_default();
            TaskPayload::Failed { error: object(&ErrorData::internal_error(why, None))? }
        }
    })
}

fn object(value: &impl serde::Serialize) -> Result<JsonObject, ErrorData> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) | Err(_) => Err(ErrorData::internal_error("the answer is no JSON object", None)),
    }
}
