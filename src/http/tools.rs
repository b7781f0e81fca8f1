//! The agent tools, for those who register and forward them.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body as Content, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use super::Api;
use super::body::{Body, Params};
use super::error::ApiError;
use super::health;
use crate::feed::Changes;
use crate::supervisor::{AgentOffer, Caller};
use crate::tools::{self, Audience, Call};
use crate::wire::{
    AbortRequest, CallerView, Receipt, ToolAnswer, ToolLine, ToolRequest, ToolsView,
};

/// So often a caller that waits hears how far things are, at most and at least: clients give up on
/// calls that stay silent.
const BETWEEN_NEWS: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// How long a host may take to list its agents.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    r#for: Option<Client>,
    /// Where the client works, for the agents there are.
    directory: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Client {
    Mcp,
}

pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<ListQuery>,
) -> Json<ToolsView> {
    let audience = match query.r#for {
        Some(Client::Mcp) => Audience::Mcp,
        None => Audience::Conversation,
    };
    let agents = match query.directory {
        Some(directory) => {
            let session_id = "mcp".to_owned();
            let caller = CallerView { session_id, directory, ..CallerView::default() };
            agents(&api, caller).await
        }
        None => Vec::new(),
    };
    Json(tools::list(&api.toolbox, audience, &agents))
}

/// For a client of MCP, which says who it is and what its environment names.
pub(super) async fn list_for(
    State(api): State<Api>,
    Body(caller): Body<CallerView>,
) -> Json<ToolsView> {
    let agents = agents(&api, caller).await;
    Json(tools::list(&api.toolbox, Audience::Mcp, &agents))
}

/// Those that this caller could launch. The tools can be used without their names, so a host that is away
/// or slow is not waited for.
async fn agents(api: &Api, caller: CallerView) -> Vec<AgentOffer> {
    let Ok(caller) = tools::caller(caller) else { return Vec::new() };
    match tokio::time::timeout(LONGEST_LOOK, api.supervisor.agents(&caller)).await {
        Ok(Ok(agents)) => agents,
        Ok(Err(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::info!(error, "agents not listed; the tools are described without them");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

pub(super) async fn call(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(request): Body<ToolRequest>,
) -> Result<Response, ApiError> {
    let ToolRequest { caller, arguments, key, progress, acknowledges } = request;
    api.supervisor.note_place(
        &caller.host,
        &caller.instance,
        &caller.session_id,
        &caller.directory,
    );
    let caller = tools::caller(caller)?;
    let call = Call { name, caller: caller.clone(), arguments, key, acknowledges };
    if !progress {
        let answer = tools::call(&api.supervisor, &api.toolbox, call).await?;
        return Ok(Json(warned(&api, answer)).into_response());
    }
    let changes = api.supervisor.changes();
    let answer = {
        let api = api.clone();
        async move { tools::call(&api.supervisor, &api.toolbox, call).await }
    };
    let next = Instant::now() + BETWEEN_NEWS;
    let told = Told { api, caller, answer: Some(Box::pin(answer)), changes, last: None, next };
    let lines = stream::unfold(told, |told| async move {
        let (line, told) = told.next().await?;
        let mut line = serde_json::to_vec(&line).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, Infallible>(Bytes::from(line)), told))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Content::from_stream(lines)).into_response())
}

/// An agent does not see the health: what every verb says stands above its answers.
fn warned(api: &Api, answer: ToolAnswer) -> ToolAnswer {
    let mut lines: Vec<String> =
        health::urgent(api).into_iter().map(|warning| format!("Warning: {warning}")).collect();
    if lines.is_empty() {
        return answer;
    }
    lines.extend([String::new(), answer.text]);
    ToolAnswer { text: lines.join("\n"), ..answer }
}

/// A call under way. Who hangs up drops it, and the call with it.
struct Told {
    api: Api,
    caller: Caller,
    answer: Option<BoxFuture<'static, Result<ToolAnswer, tools::Error>>>,
    changes: Changes,
    last: Option<Instant>,
    /// When something has to be said, whatever has changed.
    next: Instant,
}

impl Told {
    async fn next(mut self) -> Option<(ToolLine, Told)> {
        let mut answer = self.answer.take()?;
        loop {
            tokio::select! {
                biased;
                answered = &mut answer => {
                    let answer = match answered {
                        Ok(answer) => answer,
                        // Cut off without an answer, like by a daemon that dies: it is asked again.
                        Err(tools::Error::Stopping) => return None,
                        Err(error) => {
                            let text = format!("Error: {error}");
                            ToolAnswer { text, is_error: true, receipt: Receipt::default() }
                        }
                    };
                    return Some((ToolLine::Answer(warned(&self.api, answer)), self));
                }
                change = self.changes.recv() => {
                    let ours = change
                        .is_ok_and(|change| change.task.origin.parent.session == self.caller.session);
                    if ours {
                        let soon = self.last.map_or(Instant::now(), |last| last + BETWEEN_NEWS);
                        self.next = self.next.min(soon);
                    }
                }
                () = sleep_until(self.next) => {
                    let now = Instant::now();
                    (self.last, self.next) = (Some(now), now + LONGEST_SILENCE);
                    let line = tools::progress(&self.api.supervisor, &self.caller);
                    self.answer = Some(answer);
                    return Some((ToolLine::Progress(line), self));
                }
            }
        }
    }
}

pub(super) async fn abort(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(request): Body<AbortRequest>,
) -> Result<Json<()>, ApiError> {
    let caller = tools::caller(request.caller)?;
    tools::abort(&api.supervisor, &api.toolbox, &name, &caller, &request.key).await?;
    Ok(Json(()))
}
