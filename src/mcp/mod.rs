//! MCP server on stdio: lists the daemon's tools and forwards their calls, with progress and cancellation. A
//! thin process that is a client of the daemon; it has no texts and no rules of its own, but for the moments
//! when there is no daemon to ask. Its standard output belongs to the protocol.
//!
//! The session is initialised without the daemon: clients give up on a server that is slow to answer
//! `initialize`, and a daemon that migrates its store is slow. It is looked for, and started, in the
//! background. So the instructions are those of the configuration as it is now; a daemon that has not been
//! restarted since it was changed may offer `Task` or not all the same, and its list of tools is what counts.
//!
//! A call is repeated with the same idempotency key when the daemon goes away under it. Notices that came with
//! an answer are acknowledged only when the answer is in our hands and its client still wants it.

mod parent;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::io::stdio_pipes;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use tokio::sync::OnceCell;

use self::parent::{Connection, Root};
use crate::client::{self, Client};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::{hand_over, mcp_instructions, start};
use crate::wire::{
    AbortRequest, CallerView, HintsView, Receipt, ToolAnswer, ToolLine, ToolRequest, ToolView,
    ToolsView,
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

struct Server {
    settings: Settings,
    clock: Clock,
    client: Client,
    instructions: String,
    /// Set once the daemon has answered the handshake; shared by the early start and the first calls.
    handshake: Arc<OnceCell<()>>,
    /// The client at the other end, identified with the first call and the same from then on.
    connection: OnceCell<Connection>,
    /// The workspace of the client, if it was asked for its roots.
    root: OnceLock<Root>,
    /// Notices that the client has, and that the daemon has not been told about yet.
    unacknowledged: Mutex<Receipt>,
}

/// Serves until its client hangs up.
pub async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let handshake = Arc::new(OnceCell::new());
    let (early, theirs) = (Arc::clone(&handshake), settings.clone());
    // Starts the daemon while the client still initialises. An error is dropped: the first call tries again
    // and reports it.
    tokio::spawn(async move { drop(ensure_daemon(&early, &theirs).await) });
    let server = Server {
        settings: settings.clone(),
        clock: Clock::system(),
        client: start::client(&settings.home),
        instructions: mcp_instructions(&settings.config),
        handshake,
        connection: OnceCell::new(),
        root: OnceLock::new(),
        unacknowledged: Mutex::default(),
    };
    match server.serve(stdio_pipes()).await {
        Ok(serving) => drop(serving.waiting().await?),
        // A client that closes the pipe before `initialize` did nothing wrong.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Finds the daemon or starts it. Concurrent callers share one attempt; a failed one is made again by the next.
async fn ensure_daemon(handshake: &OnceCell<()>, settings: &Settings) -> anyhow::Result<()> {
    handshake.get_or_try_init(async || start::ensure(settings).await.map(drop)).await?;
    Ok(())
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("asyncagents", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions.clone())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Some(root) = parent::ask_for_roots(context.peer) {
            let _ = self.root.set(root);
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // With the client's environment, because that decides which host its launches go to, and so which
        // agents the descriptions name.
        let caller = CallerView {
            session_id: "mcp".to_owned(),
            directory: parent::directory_so_far(&self.settings, self.root.get(), &context),
            hand_over: hand_over(&self.settings),
            ..CallerView::default()
        };
        self.daemon().await.map_err(CallFailure::error)?;
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
}

impl Server {
    async fn connection(&self, context: &RequestContext<RoleServer>) -> &Connection {
        let connect = || {
            let root = self.root.get().cloned();
            Box::pin(Connection::new(&self.settings, &self.clock, root, context))
        };
        self.connection.get_or_init(connect).await
    }

    async fn answer(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.acknowledge().await;
        let CallToolRequestParams { name, arguments, .. } = request;
        let connection = self.connection(&context).await;
        let caller = connection.caller(&context.meta);
        let key = self.clock.nonce();
        let request = ToolRequest {
            caller: CallerView { hand_over: hand_over(&self.settings), ..caller.clone() },
            arguments: arguments.map(serde_json::Value::Object).unwrap_or_default(),
            key: Some(key.clone()),
            progress: context.meta.get_progress_token().is_some(),
            acknowledges: true,
        };
        let longest = longest_call(&self.settings, connection.client());
        let forwarded = self.forward(&name, request, longest, &context);
        let answered = context.ct.run_until_cancelled(forwarded).await;
        let Some(answer) = answered else {
            // The client has cancelled the call. rmcp also cancels when the connection closes, which is no
            // statement about the call: then nothing is aborted, and the task's end waits in the mailbox.
            if !context.peer.is_transport_closed() {
                let abort = AbortRequest { caller: caller.clone(), key };
                Box::pin(self.abort(&name, abort)).await;
            }
            return Err(ErrorData::internal_error("cancelled", None));
        };
        let ToolAnswer { text, is_error, receipt } = match answer {
            Ok(answer) => answer,
            Err(refused @ CallFailure::Refused(_)) => return Err(refused.error()),
            Err(CallFailure::NoDaemon(text)) => {
                ToolAnswer { text, is_error: true, receipt: Receipt::default() }
            }
        };
        // Acknowledged now that the answer is in our hands, unless the call was cancelled at the last moment:
        // nobody reads such an answer, and its notices have to come again. An acknowledgement that cannot be
        // sent is kept and goes with the next call.
        if !context.ct.is_cancelled() {
            self.unacknowledged().add(receipt);
        }
        self.acknowledge().await;
        let content = vec![ContentBlock::text(text)];
        let result = match is_error {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        Ok(result.into())
    }

    /// Makes one call of a tool, again when the daemon goes away under it. All attempts carry the same
    /// idempotency key, so that it launches once.
    async fn forward(
        &self,
        name: &str,
        mut request: ToolRequest,
        longest: Duration,
        context: &RequestContext<RoleServer>,
    ) -> Result<ToolAnswer, CallFailure> {
        let began = Instant::now();
        let mut progress = 0;
        self.daemon().await?;
        for _ in 0..TRIES {
            // What earlier attempts took counts: the client's timeout runs from its own request.
            let left = longest.saturating_sub(began.elapsed());
            request.caller.longest_wait = Some(left.as_secs_f64().round().max(1.0) as u64);
            match self.call(name, &request, context, &mut progress).await {
                Ok(answer) => return Ok(answer),
                Err(error) => Box::pin(self.restart_daemon(error)).await?,
            }
        }
        Err(CallFailure::keeps_exiting())
    }

    async fn call(
        &self,
        name: &str,
        request: &ToolRequest,
        context: &RequestContext<RoleServer>,
        progress: &mut u32,
    ) -> Result<ToolAnswer, client::Error> {
        let mut call = self.client.call_tool(name, request).await?;
        loop {
            let line = match call.next().await? {
                ToolLine::Answer(answer) => return Ok(answer),
                ToolLine::Progress(line) => line,
            };
            // MCP wants the number to grow with every notification, also across attempts.
            *progress += 1;
            if let Some(token) = context.meta.get_progress_token() {
                let note = ProgressNotificationParam::new(token, f64::from(*progress));
                let _ = context.peer.notify_progress(note.with_message(line)).await;
            }
        }
    }

    /// Tells the daemon which notices the client has. Not under the lock: calls run concurrently, and only what
    /// was sent here is removed afterwards. To acknowledge twice does no harm.
    async fn acknowledge(&self) {
        let read = self.unacknowledged().clone();
        if !read.is_empty() && self.client.mail_was_read(read.clone()).await.is_ok() {
            self.unacknowledged().settle(&read);
        }
    }

    fn unacknowledged(&self) -> MutexGuard<'_, Receipt> {
        self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner)
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
        let ready = Box::pin(ensure_daemon(&self.handshake, &self.settings)).await;
        ready.map_err(CallFailure::not_started)
    }

    /// After a failed call: starts the daemon again if it went away, so that the call can be repeated. Any
    /// other error is final.
    async fn restart_daemon(&self, error: client::Error) -> Result<(), CallFailure> {
        match error {
            error if error.went_away() => {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "daemon went away during a call; starting it again"
                );
                start::ensure(&self.settings).await.map(drop).map_err(CallFailure::not_started)
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
        if why.is::<client::Error>() || why.is::<start::OfCommand>() {
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
    fn calls_take_as_long_as_the_client_is_known_to_allow() {
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
