//! The Rust client of the HTTP API, over the daemon's Unix socket. One method per route.
//!
//! It neither starts the daemon nor repeats a call: after an error the daemon may or may not have done what
//! was asked, and only the caller knows whether a repeat is safe. [`Error::went_away`] says when one may
//! help; the retry loop of commands is in `cli/connection.rs`, that of MCP in `mcp/mod.rs`.

mod connection;
mod version;

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};

pub use version::{Handshake, VersionMismatch};

use connection::{ConnectionPool, Failure, Response};

use crate::wire::{
    AbortRequest, AnswerRequest, CallView, CallerRequest, CallerView, CancelRequest, CancelView,
    CheckView, ClearRequest, ClearView, DashCodeView, DeclineRequest, ErrorView, ForkRequest,
    ForkView, GroupView, HealthView, HostsView, LaunchRequest, MailboxView, MessageFilter,
    MessagesView, OutputRequest, OutputView, PageView, PermissionsView, ProvidersRequest,
    ProvidersView, PruneRequest, PruneView, QueueStateView, ReadRequest, ResolveRequest,
    ResumeRequest, RetryRequest, SendRequest, SentView, ServerRequest, StatsView, TaskView,
    TasksView, ToolLine, ToolRequest, ToolsView, WaitRequest, WaitView,
};

/// `fresh` makes the daemon compare its configuration file now: the user may have just edited it.
const HEALTH: &str = "/v1/health?fresh=true";

/// For every call but those that may take long.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// For the handshake, which a daemon answers from memory.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A history of millions takes minutes to delete, or to read from end to end.
const WORK_TIMEOUT: Duration = Duration::from_secs(3600);

/// For a call that waits for as long as it takes.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long to wait for the end of a body whose last line is there, so that its connection can be reused.
const END_TIMEOUT: Duration = Duration::from_millis(100);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Client {
    connections: ConnectionPool,
}

/// What commands that wait do when the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// They end, and say so.
    ForGood,
    /// They go on with the next daemon.
    ToRestart,
    /// As for good, once no task runs any more; it may take this long. Nothing starts meanwhile, unless this
    /// client goes away.
    Drained(Option<Duration>),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was sent.
    #[error("the daemon is not running; `asyncagents daemon start` starts it")]
    NotRunning(#[source] io::Error),
    /// It may or may not have done what was asked.
    #[error(
        "the connection to the daemon broke; `asyncagents daemon status` shows whether it is running"
    )]
    Broken(#[source] hyper::Error),
    /// The head of the response came, and not all of its body.
    #[error(
        "the daemon closed the connection in the middle of its answer; `asyncagents daemon status` \
         shows whether it is running"
    )]
    CutOff,
    #[error(
        "the daemon did not answer in time; `asyncagents daemon status` shows whether it is running"
    )]
    TimedOut,
    #[error(transparent)]
    Incompatible(#[from] VersionMismatch),
    /// The whole answer came, and it is not what this version expects.
    #[error(
        "the daemon's answer is not understood ({versions}); `asyncagents daemon restart` replaces the \
         daemon, and live runs go on"
    )]
    Unreadable { versions: String, source: serde_json::Error },
    #[error("{}", .0.error)]
    Refused(ErrorView),
}

impl Client {
    pub fn new(socket: &Path) -> Client {
        Client { connections: ConnectionPool::to(socket) }
    }

    /// The version handshake, with a daemon of any version.
    pub async fn hello(&self) -> Result<Handshake, Error> {
        let mut reply = self.send(Method::GET, HEALTH, Bytes::new(), HANDSHAKE_TIMEOUT).await?;
        // A health that cannot be parsed is that of an unknown version, which is incompatible. It must not
        // look like a daemon that is away: a second one would be started.
        Ok(serde_json::from_slice(&reply.rest().await?).unwrap_or_default())
    }

    pub async fn health(&self) -> Result<HealthView, Error> {
        self.get(HEALTH).await
    }

    /// Returns the handshake of the daemon that stops, with its pid to wait for.
    pub async fn stop(&self, purpose: Stop) -> Result<Handshake, Error> {
        let (path, limit) = match purpose {
            Stop::ForGood => ("/v1/daemon/stop".to_owned(), CALL_TIMEOUT),
            Stop::ToRestart => ("/v1/daemon/stop?restart=true".to_owned(), CALL_TIMEOUT),
            Stop::Drained(None) => ("/v1/daemon/drain".to_owned(), FOREVER),
            Stop::Drained(Some(longest)) => {
                let seconds = longest.as_secs_f64();
                let path = format!("/v1/daemon/drain?timeout={seconds}");
                (path, waiting_timeout(seconds))
            }
        };
        let mut reply = self.send(Method::POST, &path, json(&()), limit).await?;
        Ok(serde_json::from_slice(&reply.rest().await?).unwrap_or_default())
    }

    pub async fn launch(&self, request: &LaunchRequest) -> Result<TaskView, Error> {
        self.post("/v1/tasks", request, CALL_TIMEOUT).await
    }

    /// `query` as the API takes it: names and values.
    pub async fn tasks(&self, query: &[(&str, String)]) -> Result<PageView, Error> {
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        self.get(&format!("/v1/tasks?{}", query.join("&"))).await
    }

    pub async fn task(&self, id: &str) -> Result<TaskView, Error> {
        self.get(&format!("/v1/tasks/{}", encoded(id))).await
    }

    /// The messages of a task's session that a filter leaves.
    pub async fn messages(&self, id: &str, filter: &MessageFilter) -> Result<MessagesView, Error> {
        let mut query = vec![
            format!("full_session={}", filter.full_session),
            format!("include_thinking={}", filter.include_thinking),
            format!("include_tool_results={}", filter.include_tool_results),
        ];
        let since = filter.since_message_id.as_deref();
        query.extend(since.map(|id| format!("since_message_id={}", encoded(id))));
        query.extend(filter.message_limit.map(|limit| format!("message_limit={limit}")));
        let thinking = filter.thinking_max_chars;
        query.extend(thinking.map(|characters| format!("thinking_max_chars={characters}")));
        self.get(&format!("/v1/tasks/{}/messages?{}", encoded(id), query.join("&"))).await
    }

    /// A batch with its tasks.
    pub async fn group(&self, id: &str) -> Result<GroupView, Error> {
        self.get(&format!("/v1/task-groups/{}", encoded(id))).await
    }

    pub async fn stats(&self) -> Result<StatsView, Error> {
        self.get("/v1/stats").await
    }

    pub async fn resolve(&self, ids: &[String]) -> Result<TasksView, Error> {
        self.post("/v1/resolve", &ResolveRequest { ids: ids.to_vec() }, CALL_TIMEOUT).await
    }

    pub async fn output(&self, id: &str, request: &OutputRequest) -> Result<OutputView, Error> {
        let limit = waiting_timeout(request.timeout.unwrap_or(0.0));
        self.post(&format!("/v1/tasks/{}/output", encoded(id)), request, limit).await
    }

    pub async fn resume(&self, id: &str, request: &ResumeRequest) -> Result<TaskView, Error> {
        self.post(&format!("/v1/tasks/{}/resume", encoded(id)), request, CALL_TIMEOUT).await
    }

    /// Launches a failed or cancelled task again, as a new one.
    pub async fn retry(&self, id: &str, request: &RetryRequest) -> Result<TaskView, Error> {
        self.post(&format!("/v1/tasks/{}/retry", encoded(id)), request, CALL_TIMEOUT).await
    }

    pub async fn send_message(&self, id: &str, request: &SendRequest) -> Result<SentView, Error> {
        self.post(&format!("/v1/tasks/{}/send", encoded(id)), request, CALL_TIMEOUT).await
    }

    /// What a child that is forked from a session would inherit.
    pub async fn fork_preview(&self, session: &str) -> Result<ForkView, Error> {
        self.post("/v1/fork", &ForkRequest { session: session.to_owned() }, CALL_TIMEOUT).await
    }

    pub async fn cancel(&self, request: &CancelRequest) -> Result<CancelView, Error> {
        self.post("/v1/cancel", request, CALL_TIMEOUT).await
    }

    pub async fn clear(&self, request: &ClearRequest) -> Result<ClearView, Error> {
        self.post("/v1/clear", request, CALL_TIMEOUT).await
    }

    pub async fn prune(&self, request: &PruneRequest) -> Result<PruneView, Error> {
        self.post("/v1/prune", request, WORK_TIMEOUT).await
    }

    /// No queued task starts until the queue is continued.
    pub async fn pause_queue(&self) -> Result<QueueStateView, Error> {
        self.post("/v1/queue/pause", &(), CALL_TIMEOUT).await
    }

    pub async fn continue_queue(&self) -> Result<QueueStateView, Error> {
        self.post("/v1/queue/continue", &(), CALL_TIMEOUT).await
    }

    pub async fn wait(&self, request: &WaitRequest) -> Result<WaitView, Error> {
        self.post("/v1/wait", request, waiting_timeout(request.timeout)).await
    }

    /// Takes the oldest unread notices out of the caller's mailbox.
    pub async fn read_mailbox(&self, request: &CallerRequest) -> Result<MailboxView, Error> {
        self.post("/v1/mailbox", request, CALL_TIMEOUT).await
    }

    pub async fn permissions(&self) -> Result<PermissionsView, Error> {
        self.get("/v1/permissions").await
    }

    pub async fn answer(&self, id: &str, answer: &AnswerRequest) -> Result<PermissionsView, Error> {
        self.post(&format!("/v1/permissions/{}", encoded(id)), answer, CALL_TIMEOUT).await
    }

    /// A one-time code for the dashboard.
    pub async fn dash_code(&self) -> Result<DashCodeView, Error> {
        self.post("/v1/dash/code", &(), CALL_TIMEOUT).await
    }

    pub async fn hosts(&self) -> Result<HostsView, Error> {
        self.get("/v1/hosts").await
    }

    pub async fn providers(&self, request: &ProvidersRequest) -> Result<ProvidersView, Error> {
        self.post("/v1/providers", request, CALL_TIMEOUT).await
    }

    pub async fn add_server(&self, name: &str, url: &str) -> Result<HostsView, Error> {
        let request = ServerRequest { url: url.to_owned() };
        let path = format!("/v1/hosts/opencode/{}", encoded(name));
        self.call(Method::PUT, &path, json(&request), CALL_TIMEOUT).await
    }

    pub async fn remove_server(&self, name: &str) -> Result<HostsView, Error> {
        let path = format!("/v1/hosts/opencode/{}", encoded(name));
        self.call(Method::DELETE, &path, Bytes::new(), CALL_TIMEOUT).await
    }

    /// Has the whole store read; a long history takes a while.
    pub async fn check(&self) -> Result<CheckView, Error> {
        self.post("/v1/check", &(), WORK_TIMEOUT).await
    }

    /// The tools as a client of MCP registers them, with the agents that this caller could launch in
    /// their descriptions.
    pub async fn tools_for_mcp(&self, caller: &CallerView) -> Result<ToolsView, Error> {
        self.post("/v1/tools", caller, CALL_TIMEOUT).await
    }

    /// Calls a tool. Some wait, ten minutes at most, or longer while the user of the client is asked something;
    /// with `progress` in the request the answer comes with lines of progress in front of it.
    pub async fn call_tool(&self, name: &str, request: &ToolRequest) -> Result<ToolCall, Error> {
        let longest = request.caller.longest_wait.unwrap_or_default().max(600);
        let limit = CALL_TIMEOUT + Duration::from_secs(longest);
        let path = format!("/v1/tools/{}", encoded(name));
        let reply = self.send(Method::POST, &path, json(request), limit).await?;
        let client = self.clone();
        Ok(ToolCall { client, reply, in_lines: request.is_in_lines(), rest: Vec::new() })
    }

    /// Aborts the call that was made with this idempotency key: its caller no longer waits.
    pub async fn abort_tool(&self, name: &str, request: &AbortRequest) -> Result<(), Error> {
        self.post(&format!("/v1/tools/{}/abort", encoded(name)), request, CALL_TIMEOUT).await
    }

    /// How far a deferred call is, and its answer.
    pub async fn deferred_call(
        &self,
        id: &str,
        request: &CallerRequest,
    ) -> Result<CallView, Error> {
        self.post(&format!("/v1/calls/{}", encoded(id)), request, CALL_TIMEOUT).await
    }

    pub async fn cancel_deferred(&self, id: &str, request: &CallerRequest) -> Result<(), Error> {
        self.post(&format!("/v1/calls/{}/cancel", encoded(id)), request, CALL_TIMEOUT).await
    }

    /// The user did not want to answer some permission requests.
    pub async fn decline_asks(&self, id: &str, request: &DeclineRequest) -> Result<(), Error> {
        self.post(&format!("/v1/calls/{}/decline", encoded(id)), request, CALL_TIMEOUT).await
    }

    /// Acknowledges the notices that came with a tool's answer, and answers of deferred calls.
    pub async fn was_read(&self, read: &ReadRequest) -> Result<(), Error> {
        self.post("/v1/mailbox/read", read, CALL_TIMEOUT).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, Bytes::new(), CALL_TIMEOUT).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, Error> {
        self.call(Method::POST, path, json(body), limit).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<T, Error> {
        let answer = self.send(method, path, body, limit).await?.rest().await?;
        self.parse(&answer).await
    }

    /// Parses an answer. One that arrived whole and does not parse was made by another version: a broken
    /// connection is noticed before this. Taken for a broken connection, it would be retried for ever.
    async fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T, Error> {
        match serde_json::from_slice(answer) {
            Ok(value) => Ok(value),
            Err(source) => {
                let hello = self.hello().await.unwrap_or_default();
                Err(Error::Unreadable { versions: hello.versions(), source })
            }
        }
    }

    /// Sends a request and reads the head of the response; a status that is no success becomes an error with
    /// the daemon's text.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Reply, Error> {
        let deadline = Instant::now() + limit;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| too_long(path))?;
        let headers = request.headers_mut();
        // HTTP/1.1 requires a host; on the socket it is ignored.
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = timeout_at(deadline, self.connections.send(request)).await;
        let response = sent.map_err(|_| Error::TimedOut)?.map_err(|failure| match failure {
            Failure::NotOpened(error) => Error::NotRunning(error),
            Failure::Broken(error) => Error::Broken(error),
        })?;
        let mut reply = Reply { response, deadline };
        let status = reply.response.status;
        if status.is_success() {
            return Ok(reply);
        }
        // An error that is not in our JSON is shown as it is.
        let text = String::from_utf8_lossy(&reply.rest().await?).into_owned();
        let status = status.as_u16();
        let view = serde_json::from_str(&text).unwrap_or(ErrorView { error: text, status });
        Err(Error::Refused(view))
    }
}

/// A response with the deadline of its call, which holds for the body as well.
struct Reply {
    response: Response,
    deadline: Instant,
}

impl Reply {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = timeout_at(self.deadline, self.response.chunk()).await;
        chunk.map_err(|_| Error::TimedOut)?.transpose().map_err(|_| Error::CutOff)
    }

    async fn rest(&mut self) -> Result<Vec<u8>, Error> {
        let mut rest = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            rest.extend_from_slice(&chunk);
        }
        Ok(rest)
    }
}

/// The timeout of a call that waits for this long on the daemon's side. A number that is no time (NaN,
/// negative) adds nothing: the daemon refuses it at once, in its own words.
fn waiting_timeout(seconds: f64) -> Duration {
    CALL_TIMEOUT + Duration::try_from_secs_f64(seconds).unwrap_or_default().min(WORK_TIMEOUT)
}

/// A tool call under way: lines of progress, then the answer.
pub struct ToolCall {
    client: Client,
    reply: Reply,
    in_lines: bool,
    /// What was received after the last whole line.
    rest: Vec<u8>,
}

impl ToolCall {
    /// The next line; the answer is the last one.
    pub async fn next(&mut self) -> Result<ToolLine, Error> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let line = self.client.parse(&line).await?;
                if let ToolLine::Answer(_) | ToolLine::Deferred(_) = line {
                    // Only the end of the body is left. Once it is read, the connection goes back to the
                    // pool; a daemon that is slow to send it costs a connection, not the answer.
                    let _ = timeout(END_TIMEOUT, self.reply.rest()).await;
                }
                return Ok(line);
            }
            match self.reply.chunk().await? {
                Some(chunk) => self.rest.extend_from_slice(&chunk),
                // A stream that ends without an answer: the daemon stopped under the call.
                None if self.in_lines => return Err(Error::CutOff),
                None => return Ok(ToolLine::Answer(self.client.parse(&self.rest).await?)),
            }
        }
    }
}

impl Error {
    /// Whether the daemon went away, so that a call that may be repeated can reach the next one. Not after a
    /// timeout: that daemon is still there.
    pub fn went_away(&self) -> bool {
        match self {
            Error::NotRunning(_) | Error::Broken(_) | Error::CutOff => true,
            // It is stopping.
            Error::Refused(view) => view.status == 503,
            Error::TimedOut | Error::Incompatible(_) | Error::Unreadable { .. } => false,
        }
    }

    /// The daemon is of a version that this program cannot work with.
    pub fn is_of_another_version(&self) -> bool {
        match self {
            Error::Incompatible(_) | Error::Unreadable { .. } => true,
            Error::NotRunning(_)
            | Error::Broken(_)
            | Error::CutOff
            | Error::TimedOut
            | Error::Refused(_) => false,
        }
    }
}

/// Percent-encodes a path segment or a query value.
fn encoded(part: &str) -> String {
    const NOT_PLAIN: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(part, NOT_PLAIN).to_string()
}

/// The only thing that can be wrong with a path whose parts are encoded.
fn too_long(path: &str) -> Error {
    let error = format!("the id, name or filter is too long: {} characters in the URL", path.len());
    Error::Refused(ErrorView { error, status: StatusCode::URI_TOO_LONG.as_u16() })
}

/// Serialises a request body; none of our types can fail to.
fn json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::wire::ToolAnswer;

    /// Answers every request in two lines, and closes the connection after this many.
    struct Server {
        _place: tempfile::TempDir,
        socket: PathBuf,
        connections: Arc<AtomicUsize>,
        closed: Arc<AtomicUsize>,
    }

    impl Server {
        fn start(answers_each: usize) -> Server {
            let place = tempfile::tempdir().unwrap();
            let socket = place.path().join("s");
            let listener = UnixListener::bind(&socket).unwrap();
            let (connections, closed) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
            let counted = (connections.clone(), closed.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    counted.0.fetch_add(1, Ordering::SeqCst);
                    let closed = counted.1.clone();
                    std::thread::spawn(move || {
                        answer(stream.unwrap(), answers_each);
                        closed.fetch_add(1, Ordering::SeqCst);
                    });
                }
            });
            Server { _place: place, socket, connections, closed }
        }
    }

    fn answer(mut stream: UnixStream, times: usize) {
        let progress = ToolLine::Progress("half way".into());
        let end = ToolLine::Answer(said());
        let lines = [progress, end].map(|line| serde_json::to_string(&line).unwrap() + "\n");
        for _ in 0..times {
            // A request of ours fits.
            if stream.read(&mut [0; 4096]).unwrap_or(0) == 0 {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for line in &lines {
                let _ = write!(stream, "{:x}\r\n{line}\r\n", line.len());
            }
            let _ = stream.write_all(b"0\r\n\r\n");
        }
    }

    fn said() -> ToolAnswer {
        ToolAnswer { text: "done".into(), ..ToolAnswer::default() }
    }

    async fn call(client: &Client) {
        let request = ToolRequest { progress: true, ..ToolRequest::default() };
        let mut call = client.call_tool("asyncagents_wait", &request).await.unwrap();
        let said = [call.next().await.unwrap(), call.next().await.unwrap()];
        assert_eq!(said, [ToolLine::Progress("half way".into()), ToolLine::Answer(self::said())]);
    }

    #[tokio::test]
    async fn a_connection_is_reused_also_after_a_streamed_response() {
        let server = Server::start(usize::MAX);
        let client = Client::new(&server.socket);
        for _ in 0..3 {
            call(&client).await;
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_pooled_connection_that_was_closed_is_replaced_before_a_request_is_sent() {
        let server = Server::start(1);
        let client = Client::new(&server.socket);
        for n in 1..=3 {
            call(&client).await;
            while server.closed.load(Ordering::SeqCst) < n {
                tokio::task::yield_now().await;
            }
            // What waits for connections sees it, then the connection itself.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn a_timeout_that_is_not_finite_or_too_long_is_clamped() {
        let times = [0.0, 600.0, f64::NAN, f64::INFINITY, -1.0, 1e19].map(waiting_timeout);
        let (least, most) = (CALL_TIMEOUT, CALL_TIMEOUT + WORK_TIMEOUT);
        let between = CALL_TIMEOUT + Duration::from_secs(600);
        assert_eq!(times, [least, between, least, least, least, most]);
    }
}
