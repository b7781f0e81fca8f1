//! MCP server: lists the daemon's tools and forwards their calls, with progress and cancellation. On stdio it is
//! a thin process that is a client of the daemon; over HTTP it is inside the daemon, and a client of its socket all
//! the same (`http.rs`). It has no texts and no rules of its own, but for the moments when there is no daemon to
//! ask. Its standard output belongs to the protocol.
//!
//! The session is initialised without the daemon: clients give up on a server that is slow to answer
//! `initialize`, and a daemon that migrates its store is slow. It is looked for, and started, in the
//! background. So the instructions are those of the configuration as it is now; a daemon that has not been
//! restarted since it was changed may offer `Task` or not all the same, and its list of tools is what counts.
//!
//! A call is repeated with the same idempotency key when the daemon goes away under it. Notices that came with
//! an answer are acknowledged only when the answer is in our hands and its client still wants it.

mod elicit;
pub mod http;
mod parent;
mod tasks;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
    CompleteRequestMethod, CompleteRequestParams, CompleteResult, ContentBlock, GetTaskParams,
    GetTaskResult, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesRequestMethod, ListResourceTemplatesResult, ListResourcesRequestMethod,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::io::stdio_pipes;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::elicit::Elicitor;
use self::http::{Address, Endpoint, Limits};
use self::parent::{Connection, Root};
use crate::client::{self, Client};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::{self, hand_over, mcp_instructions, start};
use crate::metrics::Metrics;
use crate::wire::{
    AbortRequest, AnswerRequest, CallView, CallerView, Door, HandOverView, HintsView, PROTOCOL,
    ReadRequest, Receipt, ToolAnswer, ToolLine, ToolRequest, ToolView, ToolsView,
};

/// The timeouts of clients that are known, less ten seconds: our calls are answered before, and the answer
/// says how to go on. Codex gives up after 300 s (measured) and Gemini CLI after 600 s; Claude Code only
/// after half an hour without a word. The names are prefixes of what clients call themselves.
const LONGEST_CALLS: [(&str, Duration); 3] = [
    ("claude-code", Duration::from_secs(1_790)),
    ("codex", Duration::from_secs(290)),
    ("gemini", Duration::from_secs(590)),
];

/// For any other client. One that was not measured is assumed to cut calls off after a minute.
const LONGEST_CALL: Duration = Duration::from_secs(45);

/// How often a call is made. A daemon that is being stopped goes away before it answers; its successor gets
/// the call.
const TRIES: usize = 3;

/// How many times the runtime has to go through its tasks until a request has left: to connect, to learn that the
/// connection is there, and to write.
const TURNS_TO_SEND: usize = 3;

/// Answers the requests of one client.
pub struct Handler {
    settings: Arc<Settings>,
    clock: Clock,
    client: Client,
    instructions: Arc<str>,
    link: Link,
    early_list: Mutex<Option<EarlyList>>,
    /// The client at the other end, identified after the first list or with the first call and the same from then on.
    connection: Arc<OnceCell<Connection>>,
    /// The workspace of the client, if it was asked for its roots.
    root: OnceLock<Root>,
    /// Notices and answers that the client has, and that the daemon has not been told about yet.
    unacknowledged: Mutex<ReadRequest>,
    elicitor: Elicitor,
}

/// The list of tools, asked for while the client still initialises: it asks for the list next, and by then the
/// daemon has answered. Used once, so that every later list is a new one.
struct EarlyList {
    /// The directory it was asked for: where the client works, unless it names roots.
    directory: String,
    answer: oneshot::Receiver<ToolsView>,
}

/// Where this server is, seen from the daemon.
enum Link {
    /// In a process of its client, whose environment counts; the daemon is started when it is gone. The cell is
    /// set once it has answered the handshake, and shared by the early start and the first calls.
    Stdio(Arc<OnceCell<()>>),
    /// In the daemon itself, until it stops.
    Http(CancellationToken),
}

/// Serves until its client hangs up.
pub async fn serve(settings: Settings) -> anyhow::Result<()> {
    let (handshake, client) = (Arc::new(OnceCell::new()), start::client(&settings.home));
    let settings = Arc::new(settings);
    let directory = parent::directory_without_roots(&settings);
    // Starts the daemon while the client still initialises. An error is dropped: the first call tries again
    // and reports it. Aborted with this function, should the client hang up before.
    let (early, theirs, ours) = (Arc::clone(&handshake), Arc::clone(&settings), client.clone());
    let (caller, (listed, answer)) =
        (lister(directory.clone(), hand_over(&settings)), oneshot::channel());
    let mut starting = JoinSet::new();
    starting.spawn(async move {
        let mut tools = None;
        // A daemon that lists its tools and speaks our protocol needs no handshake besides. Any other is
        // started by that, or refused with the way out.
        let greet = async || match ours.tools_for_mcp(&caller).await {
            Ok(list) if list.protocol == PROTOCOL => {
                tools = Some(list);
                Ok(())
            }
            Ok(_) | Err(_) => start::ensure_through(&ours, &theirs).await.map(drop),
        };
        if early.get_or_try_init(greet).await.is_err() {
            return;
        }
        let tools = match tools {
            Some(tools) => Some(tools),
            None => ours.tools_for_mcp(&caller).await.ok(),
        };
        if let Some(tools) = tools {
            let _ = listed.send(tools);
        }
    });
    let server = Handler {
        clock: Clock::system(),
        client,
        instructions: mcp_instructions(&settings.config).into(),
        settings,
        link: Link::Stdio(handshake),
        early_list: Mutex::new(Some(EarlyList { directory, answer })),
        connection: Arc::default(),
        root: OnceLock::new(),
        unacknowledged: Mutex::default(),
        elicitor: Elicitor::default(),
    };
    // The requests of `starting` first: while the daemon answers them, the client's are parsed here.
    for _ in 0..TURNS_TO_SEND {
        tokio::task::yield_now().await;
    }
    match server.serve(stdio_pipes()).await {
        Ok(serving) => drop(serving.waiting().await?),
        // A client that closes the pipe before `initialize` did nothing wrong.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The server that the daemon has at `/mcp` of its port.
pub fn over_http(
    settings: &Settings,
    metrics: Metrics,
    stopping: CancellationToken,
) -> daemon::McpEndpoint {
    let limits = Limits {
        sessions: settings.config.mcp.max_sessions,
        idle: settings.config.mcp.session_idle,
        body: daemon::LARGEST_BODY,
    };
    let handler = http_handler(settings, stopping.clone());
    let endpoint = Endpoint::new(handler, limits, stopping, metrics);
    daemon::McpEndpoint { route: endpoint.route(), close: endpoint.close() }
}

/// Makes the handlers of that server, one for each session. By itself it is for the conformance suite, which has
/// tools of its own in front.
pub fn http_handler(
    settings: &Settings,
    stopping: CancellationToken,
) -> impl Fn() -> Handler + Send + Sync + 'static {
    let (settings, client) = (Arc::new(settings.clone()), start::client(&settings.home));
    let instructions: Arc<str> = mcp_instructions(&settings.config).into();
    move || Handler {
        settings: Arc::clone(&settings),
        clock: Clock::system(),
        client: client.clone(),
        instructions: Arc::clone(&instructions),
        link: Link::Http(stopping.clone()),
        early_list: Mutex::default(),
        connection: Arc::default(),
        root: OnceLock::new(),
        unacknowledged: Mutex::default(),
        elicitor: Elicitor::default(),
    }
}

/// Finds the daemon or starts it. Concurrent callers share one attempt; a failed one is made again by the next.
async fn ensure_daemon(
    handshake: &OnceCell<()>,
    client: &Client,
    settings: &Settings,
) -> anyhow::Result<()> {
    let ensure = async || start::ensure_through(client, settings).await.map(drop);
    handshake.get_or_try_init(ensure).await?;
    Ok(())
}

/// The caller of a list of tools. With the client's environment, because that decides which host its launches go
/// to, and so which agents the descriptions name.
fn lister(directory: String, hand_over: HandOverView) -> CallerView {
    CallerView { session_id: "mcp".to_owned(), directory, hand_over, ..CallerView::default() }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build())
            .with_server_info(Implementation::new("asyncagents", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions.to_string())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        // Over HTTP they are asked for with the first request.
        if let (Link::Stdio(_), Some(root)) = (&self.link, parent::ask_for_roots(context.peer)) {
            let _ = self.root.set(root);
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let directory = match self.link {
            Link::Stdio(_) => parent::directory_so_far(&self.settings, self.root.get(), &context),
            Link::Http(_) => self.connection(&context).await.directory().to_owned(),
        };
        // Before any list is used, also an early one: a daemon of another version is an error that says so.
        self.daemon().await.map_err(CallFailure::error)?;
        if let Link::Stdio(_) = self.link {
            self.identify_soon(context.clone());
        }
        if let Some(ToolsView { tools, .. }) = self.take_early_list(&directory).await {
            return Ok(ListToolsResult::with_all_items(tools.into_iter().map(tool).collect()));
        }
        let caller = lister(directory, self.hand_over());
        for _ in 0..TRIES {
            match self.client.tools_for_mcp(&caller).await {
                Ok(ToolsView { tools, .. }) => {
                    return Ok(ListToolsResult::with_all_items(
                        tools.into_iter().map(tool).collect(),
                    ));
                }
                Err(error) => self.restart_daemon(error).await.map_err(|why| why.error())?,
            }
        }
        Err(CallFailure::keeps_exiting().error())
    }

    // Only tools are announced as a capability. rmcp would answer the other lists with an empty one, which
    // looks as if they were supported; "method not found" is what the protocol asks for.

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    /// Boxed, because rmcp moves the future several times: unboxed it has the size of everything a call may
    /// need, and copying that takes longer than the call.
    fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<CallToolResponse, ErrorData>> + Send {
        Box::pin(self.answer(request, context))
    }

    fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<GetTaskResult, ErrorData>> + Send {
        Box::pin(self.state_of_task(request, context))
    }

    fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send {
        Box::pin(self.answer_of_task(request, context))
    }

    fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send {
        Box::pin(self.stop_task(request, context))
    }
}

/// What came of one call.
enum Reply {
    Answer(ToolAnswer),
    /// It goes on in the daemon.
    Deferred(CallView),
    /// The user did not want to answer a permission request, so the call has to be made anew without it.
    Declined,
    /// The same for this call alone, which cannot show this request.
    NotShown(String),
}

impl Handler {
    /// The early list, if there is one and it is the right one.
    async fn take_early_list(&self, directory: &str) -> Option<ToolsView> {
        let early = self.early_list.lock().take();
        early.filter(|early| early.directory == directory)?.answer.await.ok()
    }

    async fn connection(&self, context: &RequestContext<RoleServer>) -> &Connection {
        let connect = async || match self.link {
            Link::Stdio(_) => {
                let root = self.root.get().cloned();
                Connection::new(&self.settings, &self.clock, root, context).await
            }
            Link::Http(_) => Connection::over_http(&self.settings, context).await,
        };
        Box::pin(self.connection.get_or_init(connect)).await
    }

    /// Identifies the client while it reads the list of tools: its first call would have to wait for that.
    fn identify_soon(&self, context: RequestContext<RoleServer>) {
        let identity = Arc::clone(&self.connection);
        let (settings, clock) = (Arc::clone(&self.settings), self.clock.clone());
        parent::identify_soon(identity, settings, clock, self.root.get().cloned(), context);
    }

    /// What the client's environment says; over HTTP nothing is known of it.
    fn hand_over(&self) -> HandOverView {
        match self.link {
            Link::Stdio(_) => hand_over(&self.settings),
            Link::Http(_) => HandOverView::default(),
        }
    }

    /// Whether a call that ended before its answer was cancelled by the client, or only lost its connection.
    /// Without a session, closing the connection is how a client cancels.
    fn was_cancelled(&self, context: &RequestContext<RoleServer>) -> bool {
        match &self.link {
            Link::Http(stopping) if Address::in_context(context).session.is_none() => {
                // A stopping daemon ends these requests itself; that must not cancel what they launched.
                !stopping.is_cancelled()
            }
            Link::Stdio(_) | Link::Http(_) => !context.peer.is_transport_closed(),
        }
    }

    async fn answer(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.acknowledge_first().await;
        let CallToolRequestParams { name, arguments, .. } = request;
        let connection = self.connection(&context).await;
        let caller = connection.caller(&context.meta);
        let key = self.clock.nonce();
        // The key is ours and not derived from the client's request id: ids start over with every
        // connection, and a key that comes again would return the task of another call.
        let request = ToolRequest {
            caller: self.handing_over(caller.clone()),
            arguments: arguments.map(serde_json::Value::Object).unwrap_or_default(),
            key: Some(key.clone()),
            progress: context.meta.get_progress_token().is_some(),
            acknowledges: true,
            deferrable: tasks::are_taken(&context),
            asks: None,
        };
        let longest = longest_call(&self.settings, connection.client());
        let forwarded = self.forward(&name, request, longest, &context);
        let answered = context.ct.run_until_cancelled(forwarded).await;
        let Some(answer) = answered else {
            // The client has cancelled the call. rmcp also cancels when the connection closes, which is no
            // statement about the call: then nothing is aborted, and the task's end waits in the mailbox.
            if self.was_cancelled(&context) {
                let abort = AbortRequest { caller: caller.clone(), key };
                Box::pin(self.abort(&name, abort)).await;
            }
            return Err(ErrorData::internal_error("cancelled", None));
        };
        let ToolAnswer { text, is_error, receipt, structured } = match answer {
            Ok(Reply::Answer(answer)) => answer,
            Ok(Reply::Deferred(call)) => return Ok(tasks::created(&call)),
            Ok(Reply::Declined | Reply::NotShown(_)) => {
                return Err(CallFailure::keeps_exiting().error());
            }
            Err(refused @ CallFailure::Refused(_)) => return Err(refused.error()),
            Err(CallFailure::NoDaemon(text)) => {
                ToolAnswer { text, is_error: true, ..ToolAnswer::default() }
            }
        };
        // Acknowledged now that the answer is in our hands, unless the call was cancelled at the last moment:
        // nobody reads such an answer, and its notices have to come again. An acknowledgement that cannot be
        // sent is kept and goes with the next call.
        if !context.ct.is_cancelled() {
            self.keep_receipt(receipt, None);
        }
        self.acknowledge().await;
        Ok(result_of(text, is_error, structured).into())
    }

    /// With what its environment says of models and credentials.
    fn handing_over(&self, caller: CallerView) -> CallerView {
        CallerView { hand_over: self.hand_over(), ..caller }
    }

    /// Makes one call of a tool, again when the daemon goes away under it. All attempts carry the same
    /// idempotency key, so that it launches once.
    async fn forward(
        &self,
        name: &str,
        mut request: ToolRequest,
        longest: Duration,
        context: &RequestContext<RoleServer>,
    ) -> Result<Reply, CallFailure> {
        let began = Instant::now();
        let mut progress = 0;
        self.daemon().await?;
        let mut tries = 0;
        let mut not_shown = Vec::new();
        while tries < TRIES {
            request.asks = self.elicitor.asking(context, request.deferrable);
            if let Some(asks) = &mut request.asks {
                asks.declined.extend(not_shown.iter().cloned());
            }
            // What earlier attempts took counts: the client's timeout runs from its own request.
            let left = longest.saturating_sub(began.elapsed());
            request.caller.longest_wait = Some(left.as_secs_f64().round().max(1.0) as u64);
            match self.call(name, &request, context, &mut progress).await {
                // Not counted as a try: the daemon is there. It ends all the same, because every decline
                // adds a request to those that the next attempt does not ask for.
                Ok(Reply::Declined) => continue,
                Ok(Reply::NotShown(ask)) => {
                    not_shown.push(ask);
                    continue;
                }
                Ok(reply) => return Ok(reply),
                Err(error) => Box::pin(self.restart_daemon(error)).await?,
            }
            tries += 1;
        }
        Err(CallFailure::keeps_exiting())
    }

    async fn call(
        &self,
        name: &str,
        request: &ToolRequest,
        context: &RequestContext<RoleServer>,
        progress: &mut u32,
    ) -> Result<Reply, client::Error> {
        let mut call = self.client.call_tool(name, request).await?;
        // Dropped with this attempt, however it ends, which withdraws the forms that are open.
        let mut forms = self.elicitor.forms(context);
        loop {
            let mut next = std::pin::pin!(call.next());
            // A line is read to its end, whatever the user answers meanwhile.
            let line = loop {
                tokio::select! {
                    line = &mut next => break line?,
                    (ask, verdict) = forms.answer() => match verdict {
                        Some(allow) => {
                            let by = request.caller.session_id.clone();
                            let door = Door::McpElicitation;
                            // Made once: the next attempt of the call shows what is open then.
                            let answer = AnswerRequest { allow, door, by, key: None };
                            // It may have been answered elsewhere: the user reads so where progress is shown.
                            if let Err(error) = self.client.answer(&ask, &answer).await {
                                report(context, progress, format!("Not answered: {error}")).await;
                            }
                        }
                        // Not remembered: the user was not asked, and a later call that is a task asks.
                        None if !forms.are_shown() => return Ok(Reply::NotShown(ask)),
                        None => {
                            self.elicitor.decline(&ask);
                            return Ok(Reply::Declined);
                        }
                    },
                }
            };
            match line {
                ToolLine::Answer(answer) => return Ok(Reply::Answer(answer)),
                ToolLine::Deferred(call) => return Ok(Reply::Deferred(call)),
                ToolLine::Asks(asks) => forms.show(&asks).await,
                ToolLine::Progress(line) => report(context, progress, line).await,
            }
        }
    }

    /// Before a call, whose answer would carry what is not acknowledged again: with the next daemon when there is
    /// none, which the call would start anyway.
    async fn acknowledge_first(&self) {
        self.acknowledge().await;
        // Only by a process of a client: a daemon on its way down must not start the next one.
        if matches!(self.link, Link::Stdio(_))
            && *self.unacknowledged() != ReadRequest::default()
            && start::ensure_through(&self.client, &self.settings).await.is_ok()
        {
            self.acknowledge().await;
        }
    }

    /// Tells the daemon which notices the client has. Not under the lock: calls run concurrently, and only what
    /// was sent here is removed afterwards. To acknowledge twice does no harm.
    async fn acknowledge(&self) {
        let read = self.unacknowledged().clone();
        if read != ReadRequest::default() && self.client.was_read(&read).await.is_ok() {
            let mut unacknowledged = self.unacknowledged();
            unacknowledged.receipt.settle(&read.receipt);
            unacknowledged.calls.retain(|call| !read.calls.contains(call));
        }
    }

    /// The client has these notices, and the answer of a deferred call that they were in.
    fn keep_receipt(&self, receipt: Receipt, call: Option<String>) {
        let mut unacknowledged = self.unacknowledged();
        unacknowledged.receipt.add(receipt);
        unacknowledged.calls.extend(call);
    }

    fn unacknowledged(&self) -> MutexGuard<'_, ReadRequest> {
        self.unacknowledged.lock()
    }

    /// Tells the daemon that the client has cancelled a call.
    async fn abort(&self, name: &str, abort: AbortRequest) {
        for _ in 0..TRIES {
            match self.client.abort_tool(name, &abort).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(
                        tool = name,
                        %error,
                        "abort of a cancelled call failed; a blocking task of it may go on"
                    );
                    if self.restart_daemon(error).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits until the daemon is there.
    async fn daemon(&self) -> Result<(), CallFailure> {
        match &self.link {
            Link::Stdio(handshake) => {
                let ready = ensure_daemon(handshake, &self.client, &self.settings);
                Box::pin(ready).await.map_err(CallFailure::not_started)
            }
            Link::Http(_) => Ok(()),
        }
    }

    /// After a failed call: starts the daemon again if it went away, so that the call can be repeated. Any
    /// other error is final.
    async fn restart_daemon(&self, error: client::Error) -> Result<(), CallFailure> {
        match error {
            // We are inside the daemon that went away. Whether another one runs after it is the decision of
            // whoever stopped it.
            error if error.went_away() && matches!(self.link, Link::Http(_)) => {
                Err(CallFailure::stopping())
            }
            error if error.went_away() => {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "daemon went away during a call; starting it again"
                );
                let found = start::ensure_through(&self.client, &self.settings).await;
                found.map(drop).map_err(CallFailure::not_started)
            }
            client::Error::Refused(view) => Err(CallFailure::Refused(view.error)),
            error => Err(CallFailure::NoDaemon(format!("Error: {error}"))),
        }
    }
}

/// Why a call has no answer of the daemon.
#[derive(Debug)]
enum CallFailure {
    /// It is there and did not understand the call.
    Refused(String),
    /// There is none to ask. The text becomes the tool's answer, so that the model can read it.
    NoDaemon(String),
}

impl CallFailure {
    fn not_started(why: anyhow::Error) -> CallFailure {
        // These errors say what to do already: the daemon runs but is of another version, or this process is
        // a command of an agent, which may not start one.
        if why.is::<client::Error>() || why.is::<start::AgentCommandError>() {
            return CallFailure::NoDaemon(format!("Error: {why:#}"));
        }
        CallFailure::NoDaemon(format!(
            "Error: the asyncagents daemon cannot be started: {why:#}. Launched tasks are kept; call \
             again once this is fixed (`asyncagents doctor` shows more)."
        ))
    }

    fn keeps_exiting() -> CallFailure {
        CallFailure::NoDaemon(
            "Error: the asyncagents daemon keeps exiting (`asyncagents doctor` shows more). Launched \
             tasks are kept; call again."
                .to_owned(),
        )
    }

    fn stopping() -> CallFailure {
        CallFailure::NoDaemon(
            "Error: the asyncagents daemon is stopping. Launched tasks are kept; call again once it \
             runs (`asyncagents daemon start`)."
                .to_owned(),
        )
    }

    fn error(self) -> ErrorData {
        match self {
            CallFailure::Refused(why) => ErrorData::invalid_params(why, None),
            CallFailure::NoDaemon(why) => ErrorData::internal_error(why, None),
        }
    }
}

/// How long a call of this client may take: as configured, else by the table of known clients.
fn longest_call(settings: &Settings, client: &str) -> Duration {
    let configured = settings.config.mcp.longest_call;
    if !configured.is_zero() {
        return configured;
    }
    let client = client.to_ascii_lowercase().replace(' ', "-");
    let known = LONGEST_CALLS.iter().find(|(name, _)| client.starts_with(name));
    known.map_or(LONGEST_CALL, |(_, longest)| *longest)
}

/// A line of progress, for clients that want to hear of it. MCP wants the number to grow with every notification,
/// also across attempts.
async fn report(context: &RequestContext<RoleServer>, progress: &mut u32, line: String) {
    *progress += 1;
    if let Some(token) = context.meta.get_progress_token() {
        let note = ProgressNotificationParam::new(token, f64::from(*progress));
        let _ = context.peer.notify_progress(note.with_message(line)).await;
    }
}

fn result_of(
    text: String,
    is_error: bool,
    structured: Option<serde_json::Value>,
) -> CallToolResult {
    let content = vec![ContentBlock::text(text)];
    let mut result = match is_error {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = structured;
    result
}

/// A tool in the types of rmcp. Hints are left out for daemons that do not send them.
fn tool(view: ToolView) -> Tool {
    let ToolView { name, title, description, input_schema, hints, .. } = view;
    let schema = match input_schema {
        serde_json::Value::Object(schema) => schema,
        _ => serde_json::Map::new(),
    };
    let mut tool = Tool::new(Cow::Owned(name), Cow::Owned(description), Arc::new(schema));
    tool.annotations = hints.map(|hints| {
        let HintsView { read_only, destructive, idempotent, open_world } = hints;
        ToolAnnotations::with_title(&title)
            .read_only(read_only)
            .destructive(destructive)
            .idempotent(idempotent)
            .open_world(open_world)
    });
    tool.title = Some(title).filter(|title| !title.is_empty());
    tool
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};

    #[test]
    fn the_longest_call_depends_on_the_known_timeout_of_the_client() {
        let home = Flags { home: Some("/nowhere".into()), ..Flags::default() };
        let mut settings = Settings::resolve(&Environment::default(), &home).unwrap();
        let table = [
            ("claude-code", 1_790),
            ("claude-ai", 45),
            ("Claude Code", 1_790),
            ("codex-mcp-client", 290),
            ("gemini-cli-mcp-client", 590),
            ("qwen-code", 45),
            ("", 45),
        ];
        for (client, seconds) in table {
            assert_eq!(longest_call(&settings, client).as_secs(), seconds, "{client}");
        }
        settings.config.mcp.longest_call = Duration::from_secs(7);
        assert_eq!(longest_call(&settings, "claude-code").as_secs(), 7);
    }
}
