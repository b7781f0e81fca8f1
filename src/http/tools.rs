//! The agent tools over HTTP, for the OpenCode plugin and the MCP server: listing them, calling them, and
//! aborting a call.
//!
//! With `progress` in the request, the answer is a stream of JSON lines: progress while the call runs, then
//! the answer. A client that hangs up drops the stream and with it the call, which stops waiting; the tasks
//! go on. Only an explicit `abort` stops a blocking `Task`.

use std::collections::{HashMap, HashSet};
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
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Api;
use super::body::{Body, Params};
use super::error::ApiError;
use super::health;
use crate::feed::Events;
use crate::supervisor::{AgentOffer, Caller, PermissionDialog, PermissionRequest};
use crate::tools::{self, Audience, Call, CallStart};
use crate::wire::{
    AbortRequest, CallerView, PermissionView, ToolAnswer, ToolLine, ToolRequest, ToolsView,
};

/// The shortest and the longest time between two lines of progress. The second is a keep-alive: clients
/// give up on calls that stay silent.
const BETWEEN_LINES: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// How long a host may take to list its agents.
const LONGEST_LISTING: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    r#for: Option<AudienceName>,
    /// Where the client works: agents of that workspace are listed.
    directory: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum AudienceName {
    Mcp,
}

pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<ListQuery>,
) -> Json<ToolsView> {
    let audience = match query.r#for {
        Some(AudienceName::Mcp) => Audience::Mcp,
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

/// The tools for an MCP client, which says who it is and what its environment names.
pub(super) async fn list_for(
    State(api): State<Api>,
    Body(caller): Body<CallerView>,
) -> Json<ToolsView> {
    let agents = agents(&api, caller).await;
    Json(tools::list(&api.toolbox, Audience::Mcp, &agents))
}

/// The agents that this caller could launch. Their names only improve the descriptions of the tools, so a
/// host that is unreachable or slow costs two seconds and the names, not the list of tools.
async fn agents(api: &Api, caller: CallerView) -> Vec<AgentOffer> {
    let Ok(caller) = tools::caller(caller) else { return Vec::new() };
    match tokio::time::timeout(LONGEST_LISTING, api.supervisor.agents(&caller)).await {
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
    let in_lines = request.is_in_lines();
    let ToolRequest { caller, arguments, key, acknowledges, deferrable, asks, .. } = request;
    // Every call says in which process and directory its conversation is: notices are posted there.
    api.supervisor.note_place(
        &caller.host,
        &caller.instance,
        &caller.session_id,
        &caller.directory,
    );
    let caller = tools::caller(caller)?;
    let call = Call { name, caller: caller.clone(), arguments, key, acknowledges };
    let declined: Option<HashSet<String>> = asks.map(|asks| asks.declined.into_iter().collect());
    // A deferred call is not part of this request: its client may hang up, and only `abort` or a cancelled
    // handle ends it early.
    if deferrable && api.calls.may_defer(&call) {
        let line = match api.calls.begin(call, declined).await? {
            CallStart::Answered(answer) => ToolLine::Answer(warned(&api, answer)),
            CallStart::Deferred(call) => ToolLine::Deferred(call),
        };
        return Ok((LINES, encoded(&line)).into_response());
    }
    // Refused before the first line is sent: after that, an error can only be the text of an answer.
    tools::check(&api.toolbox, &call)?;
    if !in_lines {
        let answer = tools::call(&api.supervisor, &api.toolbox, call).await?;
        return Ok(Json(warned(&api, answer)).into_response());
    }
    let events = api.supervisor.events();
    let asks = declined.is_some().then(|| OpenAsks::of(&api));
    let asking = declined.map_or_else(PermissionDialog::default, PermissionDialog::without);
    let answer = {
        let api = api.clone();
        async move { tools::call_asking(&api.supervisor, &api.toolbox, call, asking).await }
    };
    let next = Instant::now() + BETWEEN_LINES;
    let answer = Some(Box::pin(answer) as BoxFuture<'static, _>);
    let progress = ProgressStream { api, caller, answer, events, asks, last: None, next };
    let lines = stream::unfold(progress, |progress| async move {
        let (line, progress) = progress.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(encoded(&line))), progress))
    });
    Ok((LINES, Content::from_stream(lines)).into_response())
}

const LINES: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/x-ndjson")];

fn encoded(line: &ToolLine) -> Vec<u8> {
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Agents do not see the health of the daemon, so the warnings that every command shows are put in front of
/// the answers of their tools.
pub(super) fn warned(api: &Api, answer: ToolAnswer) -> ToolAnswer {
    let mut lines: Vec<String> =
        health::urgent(api).into_iter().map(|warning| format!("Warning: {warning}")).collect();
    if lines.is_empty() {
        return answer;
    }
    lines.extend([String::new(), answer.text]);
    ToolAnswer { text: lines.join("\n"), ..answer }
}

/// A tool call under way, as a stream of progress lines with the answer at its end.
struct ProgressStream {
    api: Api,
    caller: Caller,
    /// Taken with the last line: a stream ends after its answer.
    answer: Option<BoxFuture<'static, Result<ToolAnswer, tools::Error>>>,
    events: Events,
    /// For clients that show permission requests to their user.
    asks: Option<OpenAsks>,
    /// When the last line was sent.
    last: Option<Instant>,
    /// When the next line is due.
    next: Instant,
}

/// The open permission requests of a caller's tasks, for lines of their own.
struct OpenAsks {
    changes: watch::Receiver<HashMap<String, PermissionRequest>>,
    /// What the last line had.
    shown: Vec<String>,
    /// Whether to look before anything changes: at the beginning, and with every line of progress, because a
    /// client that makes several calls shows a request in one of them only, which may end before it is answered.
    is_due: bool,
}

impl OpenAsks {
    fn of(api: &Api) -> OpenAsks {
        OpenAsks { changes: api.supervisor.watch_asks(), shown: Vec::new(), is_due: true }
    }

    /// Never returns for a client that shows none.
    async fn next_of(
        asks: &mut Option<OpenAsks>,
        api: &Api,
        caller: &Caller,
    ) -> Vec<PermissionView> {
        match asks {
            Some(asks) => asks.next(api, caller).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for a line that is worth sending.
    async fn next(&mut self, api: &Api, caller: &Caller) -> Vec<PermissionView> {
        loop {
            // Dropped by `select!` whenever another branch is faster. Nothing is lost: the only await is
            // `changed`, which keeps its mark until it returns, and after it this runs to the end.
            let is_repeat = std::mem::take(&mut self.is_due);
            if !is_repeat && self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let mut open = api.supervisor.asks();
            open.retain(|asked| {
                let task = api.supervisor.task(&asked.task);
                task.is_ok_and(|task| task.origin.parent.session == caller.session)
            });
            let ids: Vec<String> = open.iter().map(|asked| asked.ask.id.clone()).collect();
            if (ids.is_empty() || !is_repeat) && ids == self.shown {
                continue;
            }
            self.shown = ids;
            return tools::permissions(&api.supervisor, open).unwrap_or_default();
        }
    }
}

impl ProgressStream {
    async fn next(mut self) -> Option<(ToolLine, ProgressStream)> {
        let mut answer = self.answer.take()?;
        loop {
            tokio::select! {
                // The answer first: no progress is sent after it.
                biased;
                answered = &mut answer => {
                    let answer = match answered {
                        Ok(answer) => answer,
                        // The stream ends without an answer, as if the daemon had died: the client repeats
                        // the call with the next daemon, under the same idempotency key.
                        Err(tools::Error::Stopping) => return None,
                        Err(error) => {
                            let text = format!("Error: {error}");
                            ToolAnswer { text, is_error: true, ..ToolAnswer::default() }
                        }
                    };
                    return Some((ToolLine::Answer(warned(&self.api, answer)), self));
                }
                open = OpenAsks::next_of(&mut self.asks, &self.api, &self.caller) => {
                    self.answer = Some(answer);
                    return Some((ToolLine::Asks(open), self));
                }
                event = self.events.recv() => {
                    // An error means that we lag behind: what was missed shows in the next line.
                    let ours = event
                        .is_ok_and(|event| event.task.origin.parent.session == self.caller.session);
                    if ours {
                        let soon = self.last.map_or(Instant::now(), |last| last + BETWEEN_LINES);
                        self.next = self.next.min(soon);
                    }
                }
                () = sleep_until(self.next) => {
                    let now = Instant::now();
                    (self.last, self.next) = (Some(now), now + LONGEST_SILENCE);
                    if let Some(asks) = &mut self.asks {
                        asks.is_due = true;
                    }
                    // Its parent's other tasks are none of its business.
                    let line = match self.caller.anonymous {
                        true => "waiting".to_owned(),
                        false => tools::progress(&self.api.supervisor, &self.caller),
                    };
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
    // Both, because the client cannot know whether its call was deferred before it was cancelled. To stop
    // the task a second time does nothing.
    api.calls.cancel_by_key(&caller, &request.key).await?;
    tools::abort(&api.supervisor, &api.toolbox, &name, &caller, &request.key).await?;
    Ok(Json(()))
}
