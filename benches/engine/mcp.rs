//! A tool call through `asyncagents mcp`, from the request line to the response line, compared with
//! a no-op server: through the official client, and by hand over the pipes, where only the servers
//! take time. Also how many model turns it takes to wait for a long task.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use asyncagents::clock::Clock;
use asyncagents::supervisor::Caller;
use asyncagents::task::{MAILBOX, SessionId, Timestamp};
use asyncagents::tools::{self, Audience, Call, CallStart, Calls, Toolbox};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};

use crate::history::Histories;
use crate::processes::{Daemon, Host, PROGRAM};
use crate::sessions::{self, StdioServer};
use crate::table::{Row, Table, median, quantile};
use crate::world::{World, caller, settings};
use crate::{Scale, progress};

/// The argument that makes this program the no-op server.
pub(crate) const ARGUMENT: &str = "--idle-mcp-server";

pub(crate) const MOST_TIMES_NOTHING: f64 = 1.5;
/// The text that both servers return.
pub(crate) const SAID: &str = "No background tasks found";
pub(crate) const LIST: &str = "asyncagents_list";
pub(crate) const NOTHING: &str = "nothing";
const GENERATION: &str = "2025-06-18";

const LONG_TASK: Duration = Duration::from_secs(30 * 60);
/// Clients time out after 60 seconds, so our calls return before that.
const SLICE: Duration = Duration::from_secs(45);

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    progress("tool calls through MCP");
    let host = Host::start(&histories.place()?).await?;
    let home = histories.place()?;
    let daemon = Daemon::start(&home, &host, "").await?;
    let mut ours = StdioServer::start(ours_at(&home), GENERATION)?;
    let mut nothing = StdioServer::start(nothing()?, GENERATION)?;
    let (mut figures, mut limits) = (Vec::new(), Vec::new());
    // Interleaved, so that both see the same background load.
    for n in 0..scale.tool_calls {
        let (figure, limit) = (ours.call(LIST)?, nothing.call(NOTHING)?);
        if n >= scale.tool_calls / 10 {
            figures.push(figure);
            limits.push(limit);
        }
    }
    drop((ours, nothing));
    sessions::measure(&home, scale, table)?;
    let mut row = |what: &str, [figure, limit]: [f64; 2], promised: bool| {
        table.add(Row {
            what: what.to_owned(),
            figure: format!("{figure:.0} µs"),
            limit: format!("{limit:.0} µs"),
            ratio: Some(figure / limit),
            target: if promised { format!("≤ {MOST_TIMES_NOTHING}×") } else { String::new() },
            met: promised.then_some(figure / limit <= MOST_TIMES_NOTHING),
        });
    };
    let seen = as_the_official_client_sees_it(&home, scale)?;
    let installed = seen.is_some();
    if let Some([medians, slowest]) = seen {
        row("tool call → answer through MCP, p50", medians, true);
        row("tool call → answer through MCP, p99", slowest, false);
    }
    for (share, name) in [(0.5, "p50"), (0.99, "p99")] {
        let both = [quantile(&figures, share), quantile(&limits, share)];
        row(&format!("the same by hand, over the pipes, {name}"), both, false);
    }
    if !installed {
        table.note("the official client is missing: tests/tools/install-mcp.sh installs it".into());
    }
    table.note(format!(
        "MCP: the limit is a server of the same library that answers at once; by hand {:.0} µs lie \
         between them: the way to the daemon and back",
        median(&figures) - median(&limits)
    ));
    daemon.stop().await?;

    progress("turns to wait for a long task");
    let (waited, woken) = (turns_of_a_client().await?, turns_of_a_conversation().await?);
    let deferred = turns_of_a_client_with_tasks().await?;
    // The last slice sees the end.
    let slices = LONG_TASK.as_secs() / SLICE.as_secs() + 1;
    let mut row = |what: &str, figure: u64, limit: u64| {
        table.add(Row {
            what: format!("turns to wait for a task of 30 minutes, {what}"),
            figure: figure.to_string(),
            limit: limit.to_string(),
            ratio: None,
            target: "≤ the limit".to_owned(),
            met: Some(figure <= limit),
        });
    };
    row("a client of MCP: one a slice of 45 s", waited, slices);
    row("a client with the tasks extension", deferred, 0);
    row("a conversation that is woken", woken, 0);
    Ok(())
}

/// Our MCP server, connected to the daemon of this storage directory.
pub(crate) fn ours_at(home: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("mcp").env_clear().env("ASYNCAGENTS_HOME", home).env("HOME", home);
    command.env("ASYNCAGENTS_CONFIG", home.with_extension("toml"));
    command
}

/// The no-op server.
pub(crate) fn nothing() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT);
    Ok(command)
}

/// p50 and p99 of both servers in microseconds, measured by the client's own process.
#[expect(clippy::disallowed_methods, reason = "where it is installed is known outside only")]
fn as_the_official_client_sees_it(
    home: &Path,
    scale: &Scale,
) -> anyhow::Result<Option<[[f64; 2]; 2]>> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let python = cache.map(|cache| cache.join("asyncagents-test/mcp-2.3.0/bin/python"));
    let Some(python) = python.filter(|python| python.exists()) else { return Ok(None) };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/engine/mcp_client.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).arg(scale.tool_calls.to_string());
    command.arg(PROGRAM).arg(std::env::current_exe()?).arg(ARGUMENT);
    command.env("ASYNCAGENTS_HOME", home);
    command.env("ASYNCAGENTS_CONFIG", home.with_extension("toml"));
    let output = command.output().context("running the official client")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(Some(serde_json::from_slice(&output.stdout)?))
}

struct NoOpServer;

impl ServerHandler for NoOpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    /// As many tools as ours, with the same schemas, so that a client spends the same time on
    /// either list.
    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let ours = tools::list(&Toolbox::default(), Audience::Mcp, &[]).tools.into_iter();
        let schema = |schema: Value| schema.as_object().cloned().unwrap_or_default();
        let ours = ours.map(|tool| {
            Tool::new(tool.name, tool.description, Arc::new(schema(tool.input_schema)))
        });
        let nothing =
            Tool::new(NOTHING, "Does nothing", Arc::new(schema(json!({"type": "object"}))));
        Ok(ListToolsResult::with_all_items(ours.chain([nothing]).collect()))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text(SAID)]).into())
    }
}

/// Serves until its client disconnects.
pub(crate) fn serve_nothing() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        NoOpServer.serve(rmcp::transport::io::stdio_pipes()).await?.waiting().await?;
        Ok(())
    })
}

/// A client that cannot be woken: its model calls the waiting tool until the task has ended.
async fn turns_of_a_client() -> anyhow::Result<u64> {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let client = Caller {
        host: MAILBOX.to_owned(),
        longest_wait: Some(SLICE),
        ..caller(&SessionId::new("mcp-bench"))
    };
    let launch = json!({"description": "long", "prompt": "@hang", "agent": "explore"});
    world.tool(&client, "asyncagents_task", launch).await;
    let task = world.supervisor.list(&client.session, None)?.tasks.remove(0);
    world.until("it works", || world.host.is_busy(&task.id)).await;
    let began = clock.uptime();
    let mut turns = 0;
    loop {
        turns += 1;
        let turn = world.tool(&client, "asyncagents_wait", json!({"timeout": 600}));
        tokio::pin!(turn);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut turn => break answer,
                () = tokio::task::yield_now() => {}
            }
            if clock.uptime().saturating_sub(began) >= LONG_TASK && world.host.is_busy(&task.id) {
                world.finish(&task, "the end").await;
            }
            clock.advance(Duration::from_millis(10));
        };
        if answer.text.ends_with("the end\n~~~") {
            return Ok(turns);
        }
        ensure!(answer.text.contains("call asyncagents_wait again"), "{}", answer.text);
    }
}

/// A client with the tasks extension polls by itself: its model gets another turn only if the call
/// returns before the end.
async fn turns_of_a_client_with_tasks() -> anyhow::Result<u64> {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let client = Caller { host: MAILBOX.to_owned(), ..caller(&SessionId::new("mcp-bench")) };
    let launch = json!({"description": "long", "prompt": "@hang", "agent": "explore"});
    world.tool(&client, "asyncagents_task", launch).await;
    let task = world.supervisor.list(&client.session, None)?.tasks.remove(0);
    world.until("it works", || world.host.is_busy(&task.id)).await;
    let calls = Calls::new(world.supervisor.clone(), Arc::new(Toolbox::default()));
    let began = clock.uptime();
    let mut turns = 0;
    loop {
        let call = Call {
            name: "asyncagents_wait".to_owned(),
            caller: client.clone(),
            arguments: json!({}),
            key: Some(clock.nonce()),
            acknowledges: true,
        };
        let CallStart::Deferred(call) = calls.begin(call, None).await? else {
            anyhow::bail!("the call was not deferred");
        };
        let answer = loop {
            clock.advance(Duration::from_secs(2));
            if clock.uptime().saturating_sub(began) >= LONG_TASK && world.host.is_busy(&task.id) {
                world.finish(&task, "the end").await;
            }
            let polled = calls.get(&client, &call.id).await?.context("the call is known")?;
            if let Some(answer) = polled.answer {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        if answer.text.ends_with("the end\n~~~") {
            return Ok(turns);
        }
        turns += 1;
    }
}

/// A conversation is woken by the notice; until then its model gets no turn.
async fn turns_of_a_conversation() -> anyhow::Result<u64> {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    world.until("it works", || world.host.is_busy(&task.id)).await;
    clock.advance(LONG_TASK);
    let turns = world.host.prompts(&parent).len() as u64;
    world.finish(&task, "the end").await;
    let told = world.posts(&parent, 1).await;
    ensure!(told.len() == 1 && told[0].wake, "{told:?}");
    Ok(turns)
}
