//! MCP over HTTP, for clients that start no process: the same server inside the daemon, at `/mcp` of its port.
//! Who may come here is decided before (`http/guard.rs`, `http/agents.rs`); this is about sessions.
//!
//! Clients of the older generations have a session, which is their identity (T18) and lasts until they end it
//! or leave it alone for long: no request under way, no stream open. From protocol 2026-07-28 on there are none,
//! and every request stands for itself. Sessions are bounded in number and gone with the daemon; a client that
//! comes back then is answered 404, as the protocol asks for, and begins another one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use axum::{Json, http};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{
    SessionManager, StreamableHttpServerConfig, StreamableHttpService,
};
use rmcp::{RoleServer, ServerHandler};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, Outcome, SessionGuard};
use crate::task::SHELL;
use crate::wire::ErrorView;

/// The header that names a session.
const SESSION: &str = "mcp-session-id";

/// Limit of error texts that the library makes.
const LARGEST_ERROR: usize = 64 << 10;

/// How many characters a parent's name may have.
const LONGEST_PARENT: usize = 100;

/// What others may take up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub sessions: usize,
    /// How long a session lasts without a request or a stream.
    pub idle: Duration,
    /// Of a request, in bytes.
    pub body: usize,
}

/// An MCP server over HTTP; every session and every request without one gets a handler of its own.
pub struct Endpoint<S> {
    service: StreamableHttpService<S, LocalSessionManager>,
    sessions: Arc<Sessions>,
    limits: Limits,
    stopping: CancellationToken,
    metrics: Metrics,
}

/// What the address says about the caller.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Address {
    pub(super) parent: Option<String>,
    pub(super) directory: Option<String>,
    /// From the header, not from the query.
    #[serde(skip)]
    pub(super) session: Option<String>,
}

impl<S: ServerHandler + Send + 'static> Endpoint<S> {
    pub fn new(
        handler: impl Fn() -> S + Send + Sync + 'static,
        limits: Limits,
        stopping: CancellationToken,
        metrics: Metrics,
    ) -> Arc<Endpoint<S>> {
        let mut manager = LocalSessionManager::default();
        // Its idle timer does not see calls that wait and streams that are open, so ours decides.
        manager.session_config.keep_alive = None;
        // No priming events, which have an id and no data: the SDK in Gemini CLI parses that as JSON and hangs
        // up. They are for resuming a stream that was cut, and on this machine that happens with the daemon's
        // end only, which ends the sessions, too.
        manager.session_config.sse_retry = None;
        let manager = Arc::new(manager);
        let config = StreamableHttpServerConfig::default()
            .with_max_request_body_bytes(limits.body)
            .with_sse_retry(None)
            // The guard of the port has looked at `Host` and `Origin` already, and more closely.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let service =
            StreamableHttpService::new(move || Ok(handler()), Arc::clone(&manager), config);
        let sessions = Arc::new(Sessions { manager, entries: Mutex::default() });
        Arc::new(Endpoint { service, sessions, limits, stopping, metrics })
    }

    pub fn route(self: &Arc<Endpoint<S>>) -> MethodRouter {
        any(answer::<S>).with_state(Arc::clone(self))
    }

    /// Ends all sessions, and with them what their handlers wait for.
    pub fn close(&self) -> BoxFuture<'static, ()> {
        let sessions = Arc::clone(&self.sessions);
        Box::pin(async move {
            // Taken out first: to close a session awaits, and the mutex must not be held meanwhile. A
            // stream that ends in that time needs it (`SessionUse::drop`), and finds its session gone.
            let all = std::mem::take(&mut *sessions.entries());
            for id in all.into_keys() {
                let _ = sessions.manager.close_session(&id).await;
            }
        })
    }

    async fn respond(&self, mut request: Request) -> Response {
        let mut address = match Address::of(&request) {
            Ok(address) => address,
            Err(why) => return refusal(StatusCode::BAD_REQUEST, why),
        };
        for id in self.sessions.expire(self.limits.idle).await {
            tracing::info!(session = &*id, "MCP session expired; idle too long");
        }
        if self.stopping.is_cancelled() {
            return unavailable("the daemon is stopping; try again once it runs");
        }
        // Only when there is no room is the body read here: whether a request opens a session is in its
        // body, and a client without sessions must not be refused because others have used them up.
        let is_new = request.method() == Method::POST && address.session.is_none();
        if is_new && self.sessions.count().await >= self.limits.sessions {
            let (parts, body) = request.into_parts();
            let Ok(bytes) = to_bytes(body, self.limits.body).await else {
                return refusal(StatusCode::PAYLOAD_TOO_LARGE, too_large(self.limits.body));
            };
            if opens_session(&bytes) {
                return self.too_many_sessions();
            }
            request = Request::from_parts(parts, Body::from(bytes));
        }
        let (method, session) = (request.method().clone(), address.session.clone());
        // Entered before the request is handled, so that a concurrent request does not expire the session
        // while a call waits in it for longer than the idle time.
        let used = session.as_deref().and_then(|id| self.sessions.enter(id));
        // A name that is no session of ours is no identity: requests of 2026-07-28 are served without one,
        // and would be taken for any parent they like to name here.
        if used.is_none() {
            address.session = None;
        }
        request.extensions_mut().insert(address);
        let response = self.service.handle(request).await.map(Body::new);
        if let Some(id) = id_in(response.headers()) {
            tracing::info!(session = id, "MCP session opened over HTTP");
            self.sessions.add(id, self.metrics.mcp_session());
        }
        // Forgotten only when it is closed: after a refused DELETE the session has still to expire.
        let ended = method == Method::DELETE && response.status().is_success();
        if let Some(id) = session.filter(|_| ended) {
            tracing::info!(session = id, "MCP session ended by its client");
            self.sessions.entries().remove(id.as_str());
        }
        if !is_stream(&response) {
            return worded(response, self.limits.body).await;
        }
        // In use for as long as somebody reads. The stream for messages of the server would never end, so a
        // stopping daemon ends it; those of calls end with the answer.
        let ends = match method {
            Method::GET => self.stopping.clone(),
            _ => CancellationToken::new(),
        };
        response.map(|body| {
            let pieces = body.into_data_stream().map(move |piece| {
                let _in_use = &used;
                piece
            });
            Body::from_stream(pieces.take_until(ends.cancelled_owned()))
        })
    }

    fn too_many_sessions(&self) -> Response {
        let Limits { sessions, idle, .. } = self.limits;
        tracing::warn!(sessions, "MCP session refused; `mcp.max_sessions` reached");
        unavailable(&format!(
            "the limit of {sessions} MCP session{} is reached; close one, wait until one has been idle \
             for {} s, or raise `mcp.max_sessions`",
            if sessions == 1 { "" } else { "s" },
            idle.as_secs()
        ))
    }
}

async fn answer<S: ServerHandler + Send + 'static>(
    State(endpoint): State<Arc<Endpoint<S>>>,
    request: Request,
) -> Response {
    let response = endpoint.respond(request).await;
    let outcome = match response.status().is_success() {
        true => Outcome::Ok,
        false => Outcome::Failed,
    };
    endpoint.metrics.mcp_request(outcome);
    response
}

impl Address {
    fn of(request: &Request) -> Result<Address, String> {
        let Query(mut address) =
            Query::<Address>::try_from_uri(request.uri()).map_err(|error| {
                format!("{}; known are `parent` and `directory`", error.body_text())
            })?;
        address.session = id_in(request.headers()).map(str::to_owned);
        let is_plain = |name: &str| {
            let length = name.chars().count();
            (1..=LONGEST_PARENT).contains(&length)
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match &address.parent {
            Some(name) if name == SHELL => {
                return Err(format!("`parent` must not be `{SHELL}`, which is the shell"));
            }
            Some(name) if !is_plain(name) => {
                return Err(format!(
                    "`parent` must be a name of at most {LONGEST_PARENT} letters, digits and signs"
                ));
            }
            Some(_) | None => {}
        }
        match &address.directory {
            Some(directory) if !directory.starts_with('/') => {
                Err("`directory` must be an absolute path".to_owned())
            }
            Some(_) | None => Ok(address),
        }
    }

    /// Of the request that a handler works on; without one, nothing is known of the caller.
    pub(super) fn in_context(context: &RequestContext<RoleServer>) -> Address {
        let parts = context.extensions.get::<http::request::Parts>();
        parts.and_then(|parts| parts.extensions.get::<Address>()).cloned().unwrap_or_default()
    }
}

/// The sessions, and who uses them at the moment.
struct Sessions {
    manager: Arc<LocalSessionManager>,
    entries: Mutex<HashMap<Arc<str>, SessionEntry>>,
}

/// A session: its requests and streams, and since when it is idle.
struct SessionEntry {
    /// Requests under way and streams that are read.
    open: usize,
    /// When the last of them ended.
    last: Instant,
    /// `None` for one whose client hung up before it was told the id.
    _counted: Option<SessionGuard>,
}

/// One request or stream of a session, until this is dropped.
struct SessionUse {
    sessions: Arc<Sessions>,
    id: Arc<str>,
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        // Not there when the session was ended by DELETE, or by `close`, under this request.
        if let Some(entry) = self.sessions.entries().get_mut(&self.id) {
            entry.open -= 1;
            entry.last = Instant::now();
        }
    }
}

impl Sessions {
    fn entries(&self) -> MutexGuard<'_, HashMap<Arc<str>, SessionEntry>> {
        self.entries.lock()
    }

    async fn count(&self) -> usize {
        self.manager.sessions.read().await.len()
    }

    fn add(&self, id: &str, counted: SessionGuard) {
        let entry = SessionEntry { open: 0, last: Instant::now(), _counted: Some(counted) };
        self.entries().insert(id.into(), entry);
    }

    fn enter(self: &Arc<Sessions>, id: &str) -> Option<SessionUse> {
        let id: Arc<str> = id.into();
        self.entries().get_mut(&id)?.open += 1;
        Some(SessionUse { sessions: Arc::clone(self), id })
    }

    /// Ends the sessions that have been idle for so long, and forgets those that have ended. Done with every
    /// request, so that it needs no timer: between two of them no session is needed.
    async fn expire(&self, idle: Duration) -> Vec<Arc<str>> {
        let there: Vec<Arc<str>> = self.manager.sessions.read().await.keys().cloned().collect();
        let expired: Vec<Arc<str>> = {
            let mut entries = self.entries();
            // A session also ends without us, when its worker fails: its entry, and its place in the
            // metrics, go here. Not that of one which was added since the list was read.
            entries.retain(|id, entry| {
                there.contains(id) || entry.last.elapsed() < idle.min(Duration::from_secs(60))
            });
            // A client that hangs up during `initialize` leaves a session that was never added.
            for id in there {
                let uncounted = || SessionEntry { open: 0, last: Instant::now(), _counted: None };
                entries.entry(id).or_insert_with(uncounted);
            }
            // Taken out under the same lock: a request that comes now finds no session, and not one that
            // is closed under it.
            let is_idle = |entry: &mut SessionEntry| entry.open == 0 && entry.last.elapsed() > idle;
            entries.extract_if(|_, entry| is_idle(entry)).map(|(id, _)| id).collect()
        };
        for id in &expired {
            let _ = self.manager.close_session(id).await;
        }
        expired
    }
}

fn id_in(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION)?.to_str().ok()
}

fn opens_session(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message {
        method: String,
    }
    serde_json::from_slice::<Message>(body).is_ok_and(|message| message.method == "initialize")
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// The library's refusals are plain text; ours are JSON, and say what to do.
async fn worded(response: Response, largest: usize) -> Response {
    let status = response.status();
    let is_refusal = status.is_client_error() || status.is_server_error();
    if !is_refusal || response.headers().contains_key(CONTENT_TYPE) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, LARGEST_ERROR).await.unwrap_or_default();
    let why = match status {
        StatusCode::NOT_FOUND => {
            "this MCP session is over: it was idle for too long, or the daemon \
                                  was restarted; begin a new one with `initialize`"
                .to_owned()
        }
        StatusCode::PAYLOAD_TOO_LARGE => too_large(largest),
        _ => String::from_utf8_lossy(&text).into_owned(),
    };
    let mut worded = refusal(status, why);
    for (name, value) in parts.headers {
        if let Some(name) = name {
            // Kept, such as `Allow` with a refused method; the headers of the JSON go before.
            worded.headers_mut().entry(name).or_insert(value);
        }
    }
    worded
}

fn too_large(most: usize) -> String {
    format!("the request is larger than {most} bytes")
}

fn refusal(status: StatusCode, error: String) -> Response {
    (status, Json(ErrorView { error, status: status.as_u16() })).into_response()
}

fn unavailable(why: &str) -> Response {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_owned());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(uri: &str) -> Result<Address, String> {
        Address::of(&Request::builder().uri(uri).body(Body::empty()).unwrap())
    }

    #[test]
    fn an_address_takes_a_parent_and_a_directory_and_no_other_parameter() {
        let known = address("/mcp?parent=mine&directory=/a%20b").unwrap();
        assert_eq!(known.parent.as_deref(), Some("mine"));
        assert_eq!(known.directory.as_deref(), Some("/a b"));
        assert!(address("/mcp").unwrap().parent.is_none());
        let long = format!("/mcp?parent={}", "x".repeat(LONGEST_PARENT + 1));
        let wrong = ["/mcp?directory=here", "/mcp?parent=", "/mcp?parent=a%0ab", "/mcp?parent=cli"];
        for wrong in wrong.into_iter().chain([long.as_str(), "/mcp?dir=/a", "/mcp?session=x"]) {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_initialize_opens_a_session() {
        assert!(opens_session(br#"{"jsonrpc": "2.0", "id": 1, "method": "initialize"}"#));
        assert!(!opens_session(br#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}"#));
        assert!(!opens_session(b"[]"));
    }
}
