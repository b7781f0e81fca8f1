//! MCP over stdio: lists the daemon's tools and forwards their calls, with progress and
//! cancellation. It has no texts and no rules of its own, but for the moments when there is no
//! daemon to ask. Its standard output belongs to the protocol.
//!
//! A session is opened without the daemon: clients give up on a server that is slow to say hello, and a
//! daemon that migrates its store is. It is looked for, and started, meanwhile. So the instructions are
//! those of the configuration as it is now; a daemon that has not been restarted since it was changed may
//! offer `Task` or not all the same, and its list of tools is what counts.

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

/// How long clients wait for a call, less a little; ours are answered before, with something to go on
/// with. Codex gives up after 300 s (measured) and Gemini CLI after 600 s; Claude Code only after half
/// an hour in which it hears nothing. Names as the clients give them begin like this.
const LONGEST_CALLS: [(&str, Duration); 3] = [
    ("claude-code", Duration::from_secs(1_790)),
    ("codex", Duration::from_secs(290)),
    ("gemini", Duration::from_secs(590)),
];

/// Clients that nobody has measured cut calls off after a minute, if they are made like most.
const LONGEST_CALL: Duration = Duration::from_secs(45);

/// A daemon that is being stopped goes away before it answers; its successor gets the call.
const TRIES: usize = 3;

struct Server {
    settings: Settings,
    clock: Clock,
    client: Client,
    instructions: String,
    /// The daemon was there, and speaks our protocol.
    met: Arc<OnceCell<()>>,
    /// Who is at the other end: found out with the first call, the same from then on.
    connection: OnceCell<Connection>,
    /// Where the client works, if it was asked and has told.
    root: OnceLock<Root>,
    /// Notices that the client has and the daemon does not know it.
    unconfirmed: Mutex<Receipt>,
}

/// Serves until its client hangs up.
pub async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let met = Arc::new(OnceCell::new());
    let (early, theirs) = (Arc::clone(&met), settings.clone());
    // What is wrong is said when something is asked for, by whoever asks.
    tokio::spawn(async move { drop(meet(&early, &theirs).await) });
    let server = Server {
        settings: settings.clone(),
        clock: Clock::system(),
        client: start::client(&settings.home),
        instructions: mcp_instructions(&settings.config),
        met,
        connection: OnceCell::new(),
        root: OnceLock::new(),
        unconfirmed: Mutex::default(),
    };
    match server.serve(stdio_pipes()).await {
        Ok(serving) => drop(serving.waiting().await?),
        // A client that leaves before it has said anything did nothing wrong.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Finds the daemon or starts it, once for all who need it.
async fn meet(met: &OnceCell<()>, settings: &Settings) -> anyhow::Result<()> {
    met.get_or_try_init(async || start::ensure(settings).await.map(drop)).await?;
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
        // Its agents are those of the host that its launches get.
        let caller = CallerView {
            session_id: "mcp".to_owned(),
            directory: parent::directory_so_far(&self.settings, self.root.get(), &context),
            hand_over: hand_over(&self.settings),
            ..CallerView::default()
        };
        self.daemon().await.map_err(Unanswered::error)?;
        for _ in 0..TRIES {
            match self.client.tools_for_mcp(&caller).await {
                Ok(ToolsView { tools, .. }) => {
                    return Ok(ListToolsResult::with_all_items(
                        tools.into_iter().map(tool).collect(),
                    ));
                }
                Err(error) => self.revive(error).await.map_err(|why| why.error())?,
            }
        }
        Err(Unanswered::again_and_again().error())
    }

    // Only tools are announced, and only they are there: an empty list would be an answer.

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

    /// In a box, because rmcp moves what it gets from hand to hand: with all that can happen in a
    /// call in it, that would take longer than the call.
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
        self.confirm().await;
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
            // Nobody hears an answer any more. A client that hung up has not said that it does not
            // want one.
            if !context.peer.is_transport_closed() {
                let abort = AbortRequest { caller: caller.clone(), key };
                Box::pin(self.take_back(&name, abort)).await;
            }
            return Err(ErrorData::internal_error("cancelled", None));
        };
        let ToolAnswer { text, is_error, receipt } = match answer {
            Ok(answer) => answer,
            Err(refused @ Unanswered::Refused(_)) => return Err(refused.error()),
            Err(Unanswered::NoDaemon(text)) => {
                ToolAnswer { text, is_error: true, receipt: Receipt::default() }
            }
        };
        // It is in our hands, unless nobody wants it any more. Should the note be lost, it goes with
        // the next call.
        if !context.ct.is_cancelled() {
            self.unconfirmed().add(receipt);
        }
        self.confirm().await;
        let content = vec![ContentBlock::text(text)];
        let result = match is_error {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        Ok(result.into())
    }

    /// One call of a tool. The same key every time: whatever dies in between, it launches once.
    async fn forward(
        &self,
        name: &str,
        mut request: ToolRequest,
        longest: Duration,
        context: &RequestContext<RoleServer>,
    ) -> Result<ToolAnswer, Unanswered> {
        let began = Instant::now();
        let mut told = 0;
        self.daemon().await?;
        for _ in 0..TRIES {
            let left = longest.saturating_sub(began.elapsed());
            request.caller.longest_wait = Some(left.as_secs_f64().round().max(1.0) as u64);
            match self.call(name, &request, context, &mut told).await {
                Ok(answer) => return Ok(answer),
                Err(error) => Box::pin(self.revive(error)).await?,
            }
        }
        Err(Unanswered::again_and_again())
    }

    async fn call(
        &self,
        name: &str,
        request: &ToolRequest,
        context: &RequestContext<RoleServer>,
        told: &mut u32,
    ) -> Result<ToolAnswer, client::Error> {
        let mut call = self.client.call_tool(name, request).await?;
        loop {
            let line = match call.next().await? {
                ToolLine::Answer(answer) => return Ok(answer),
                ToolLine::Progress(line) => line,
            };
            *told += 1;
            if let Some(token) = context.meta.get_progress_token() {
                let progress = ProgressNotificationParam::new(token, f64::from(*told));
                let _ = context.peer.notify_progress(progress.with_message(line)).await;
            }
        }
    }

    /// Tells the daemon which notices the client has.
    async fn confirm(&self) {
        let read = self.unconfirmed().clone();
        if !read.is_empty() && self.client.mail_was_read(read.clone()).await.is_ok() {
            self.unconfirmed().settle(&read);
        }
    }

    fn unconfirmed(&self) -> MutexGuard<'_, Receipt> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the daemon that nobody waits for a call.
    async fn take_back(&self, name: &str, abort: AbortRequest) {
        for _ in 0..TRIES {
            match self.client.abort_tool(name, &abort).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a call back");
                    if self.revive(error).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits until the daemon is there.
    async fn daemon(&self) -> Result<(), Unanswered> {
        Box::pin(meet(&self.met, &self.settings)).await.map_err(Unanswered::not_started)
    }

    /// Starts the daemon again when that is what is wrong.
    async fn revive(&self, error: client::Error) -> Result<(), Unanswered> {
        match error {
            error if error.went_away() => {
                tracing::info!(error = &error as &dyn std::error::Error, "starting the daemon");
                start::ensure(&self.settings).await.map(drop).map_err(Unanswered::not_started)
            }
            client::Error::Refused(view) => Err(Unanswered::Refused(view.error)),
            error => Err(Unanswered::NoDaemon(format!("Error: {error}"))),
        }
    }
}

/// Why there is no answer of the daemon.
#[derive(Debug)]
enum Unanswered {
    /// It is there and did not understand the call.
    Refused(String),
    NoDaemon(String),
}

impl Unanswered {
    fn not_started(why: anyhow::Error) -> Unanswered {
        // It runs, but not for us; or it is not ours to start.
        if why.is::<client::Error>() || why.is::<start::OfCommand>() {
            return Unanswered::NoDaemon(format!("Error: {why:#}"));
        }
        Unanswered::NoDaemon(format!(
            "Error: the daemon of asyncagents cannot be started: {why:#}. What was launched is kept; \
             call again once that is mended (`asyncagents doctor` says more)."
        ))
    }

    fn again_and_again() -> Unanswered {
        Unanswered::NoDaemon(
            "Error: the daemon of asyncagents goes away again and again; `asyncagents doctor` says \
             more. What was launched is kept; call again."
                .to_owned(),
        )
    }

    fn error(self) -> ErrorData {
        match self {
            Unanswered::Refused(why) => ErrorData::invalid_params(why, None),
            Unanswered::NoDaemon(why) => ErrorData::internal_error(why, None),
        }
    }
}

fn longest_call(settings: &Settings, client: &str) -> Duration {
    let configured = settings.config.mcp.longest_call;
    if !configured.is_zero() {
        return configured;
    }
    let client = client.to_ascii_lowercase().replace(' ', "-");
    let known = LONGEST_CALLS.iter().find(|(name, _)| client.starts_with(name));
    known.map_or(LONGEST_CALL, |(_, longest)| *longest)
}

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
