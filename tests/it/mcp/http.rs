//! MCP over HTTP: the daemon's own server at `/mcp`, driven by the library's client and by raw
//! requests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use asyncagents::net;
use asyncagents::task::Status;
use rmcp::model::{CallToolRequestParams, ClientConfig, Implementation, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientServiceExt, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::ModelServer;
use crate::support::process::{Shell, until};
use crate::support::shown;
use crate::support::web::{Answer, Site};

const LONG: Duration = Duration::from_secs(60);

/// A session of the library's client.
struct Session(RunningService<RoleClient, ClientConfig>);

fn token(shell: &Shell) -> String {
    fs::read_to_string(shell.home().join("token")).unwrap().trim().to_owned()
}

/// The daemon's address with this query string.
fn address(shell: &Shell, query: &str) -> String {
    let site = Site::of(shell);
    format!("{}/mcp{query}", site.server.url)
}

fn in_project(shell: &Shell) -> String {
    format!("?directory={}", shell.path("").display())
}

fn client_info() -> ClientConfig {
    let mut info = ClientConfig::default();
    info.client_info = Implementation::new("tester", "1");
    info
}

impl Session {
    /// With the protocol generation that has sessions.
    async fn open(shell: &Shell, query: &str) -> Session {
        let lifecycle = ClientLifecycleMode::Initialize;
        Session::with(shell, query, &token(shell), lifecycle).await.unwrap()
    }

    /// With the stateless protocol generation.
    async fn stateless(shell: &Shell, query: &str) -> Session {
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        let lifecycle = ClientLifecycleMode::Discover { preferred_versions };
        Session::with(shell, query, &token(shell), lifecycle).await.unwrap()
    }

    async fn with(
        shell: &Shell,
        query: &str,
        token: &str,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Session, String> {
        let config = StreamableHttpClientTransportConfig::with_uri(address(shell, query))
            .auth_header(token)
            .reinit_on_expired_session(false);
        let client = net::plain().build().unwrap();
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let opening = client_info().serve_with_lifecycle(transport, lifecycle);
        let opened = tokio::time::timeout(LONG, opening).await.expect("it opens or fails");
        opened.map(Session).map_err(|error| format!("{error:?}"))
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> (String, bool) {
        let arguments = arguments.as_object().unwrap().clone();
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self.0.call_tool(request).await.unwrap();
        let text = result.content[0].as_text().unwrap().text.clone();
        (text, result.is_error.unwrap_or(false))
    }

    async fn say(&self, tool: &'static str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments).await;
        assert!(!is_error, "{text}");
        text
    }

    async fn refused(&self, tool: &'static str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments).await;
        assert!(is_error, "{text}");
        text
    }

    async fn launch(&self, description: &str, prompt: &str) -> String {
        let launch = json!({"description": description, "prompt": prompt, "agent": "explore"});
        let text = self.say("asyncagents_task", launch).await;
        let line = text.lines().find_map(|line| line.strip_prefix("Task ID: ")).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    }

    async fn wait_for(&self, task: &str) -> String {
        self.say("asyncagents_wait", json!({"task_ids": [task], "timeout": 30})).await
    }
}

/// A raw request of the protocol generation with sessions.
fn post(shell: &Shell, path: &str, headers: &[&str], message: &Value) -> Answer {
    let usual = ["Content-Type: application/json", "Accept: application/json, text/event-stream"];
    Site::of(shell).ask("POST", path, &[&usual, headers].concat(), &message.to_string())
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "by hand", "version": "1"},
    }})
}

fn launch_message() -> Value {
    let arguments = json!({"description": "x", "prompt": "@hang", "agent": "explore"});
    let params = json!({"name": "asyncagents_task", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_http_lists_the_tools_launches_waits_and_gets_the_result() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let session = Session::open(&shell, &in_project(&shell)).await;
    let info = session.0.peer_info().unwrap();
    assert_eq!(info.server_info.as_ref().unwrap().name, "asyncagents");
    assert!(info.instructions.as_deref().unwrap_or_default().contains("asyncagents_"));
    let tools = session.0.list_all_tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert!(names.contains(&"asyncagents_task") && names.contains(&"Task"), "{names:?}");

    let task = session.launch("look around", "@think 50\n@say found").await;
    let waited = session.wait_for(&task).await;
    assert!(waited.ends_with(&shown("found")), "{waited}");
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.starts_with("1 task: 0 running, 1 completed"), "{listed}");
    let launched = shell.tasks().remove(0);
    assert!(launched.parent_session_id.starts_with("mcp-tester-"), "{launched:?}");
    let metrics = Site::of(&shell).get("/metrics").body;
    assert!(metrics.contains("asyncagents_mcp_sessions 1"), "{metrics}");
    assert!(metrics.contains("asyncagents_mcp_requests_total{outcome=\"answered\"}"), "{metrics}");
    session.0.cancel().await.unwrap();
    let is_over = || Site::of(&shell).get("/metrics").body.contains("asyncagents_mcp_sessions 0");
    block_in_place(|| until("the session is ended", is_over));
    assert!(shell.log().contains("MCP session opened over HTTP"), "{}", shell.log());
    assert!(!shell.log().contains(&token(&shell)), "the token is in no log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sessions_are_two_parents_and_the_next_one_gets_the_unread_notices_of_a_closed_one() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let one = Session::open(&shell, &in_project(&shell)).await;
    let other = Session::open(&shell, &in_project(&shell)).await;
    let mine = one.launch("mine", "@hang").await;
    assert_eq!(other.say("asyncagents_list", json!({})).await, "No background tasks found");
    let none = "No running background tasks to cancel.";
    assert_eq!(other.say("asyncagents_cancel", json!({"all": true})).await, none);
    let refused = other.refused("asyncagents_cancel", json!({"task_id": mine})).await;
    assert!(refused.contains(&mine), "{refused}");
    assert_eq!(shell.tasks()[0].status.name(), "running");

    block_in_place(|| shell.finish(&shell.tasks()[0], "found"));
    block_in_place(|| until("it has ended", || shell.tasks()[0].status.name() == "completed"));
    let listed = other.say("asyncagents_list", json!({})).await;
    assert_eq!(listed, "No background tasks found", "its parent is still there");
    one.0.cancel().await.unwrap();
    let told = Session::open(&shell, &in_project(&shell)).await;
    let is_over = || Site::of(&shell).get("/metrics").body.contains("asyncagents_mcp_sessions 2");
    block_in_place(|| until("the first session is ended", is_over));
    let listed = told.say("asyncagents_list", json!({})).await;
    assert!(listed.contains("\"mine\" finished"), "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_the_token_or_from_another_origin_or_host_are_refused_and_change_nothing()
{
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let right = format!("Authorization: Bearer {}", token(&shell));
    let session = post(&shell, "/mcp", &[&right], &initialize());
    assert_eq!(session.status, 200, "{session:?}");
    let session = format!("Mcp-Session-Id: {}", session.headers["mcp-session-id"]);
    let path = format!("/mcp{}", in_project(&shell));
    let table: [(&[&str], u16, &str); 6] = [
        (&[], 401, "`token` of the storage directory"),
        (&["Authorization: Bearer wrong-wrong-wrong-wrong"], 401, "`token` of the storage"),
        (&[&right, "Origin: http://evil.example"], 403, "pages of this origin may not use MCP"),
        (&[&right, "Origin: null"], 403, "`api.origins`"),
        (&[&right, "Host: evil.example"], 403, "this server answers on this machine only"),
        (&["Origin: http://evil.example"], 403, "pages of this origin"),
    ];
    for (headers, status, why) in table {
        let with_session = [headers, &[session.as_str()]].concat();
        for message in [launch_message(), initialize()] {
            let answer = post(&shell, &path, &with_session, &message);
            assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
            assert!(answer.error().contains(why), "{answer:?}");
            assert_eq!(answer.headers.contains_key("www-authenticate"), status == 401);
            let with_token = headers.contains(&right.as_str());
            let cors = answer.headers.contains_key("access-control-allow-origin");
            assert_eq!(cors, !with_token, "{answer:?}");
        }
        for method in ["GET", "DELETE"] {
            let accept = [&with_session[..], &["Accept: text/event-stream"]].concat();
            let answer = Site::of(&shell).ask(method, &path, &accept, "");
            assert_eq!(answer.status, status, "{method} {headers:?}: {answer:?}");
        }
    }
    assert_eq!(shell.tasks(), []);
    // A page served from this machine may connect with the token; its responses have no CORS
    // headers.
    let page = [right.as_str(), &session, "Origin: http://localhost:6274"];
    let answer = post(&shell, &path, &page, &launch_message());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
    assert_eq!(shell.tasks().len(), 1, "the session is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_are_refused_with_the_way_out() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let right = format!("Authorization: Bearer {}", token(&shell));
    let check = |path: &str, message: &Value, status: u16, why: &str| {
        let answer = post(&shell, path, &[&right], message);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.error().contains(why), "{answer:?}");
    };
    check("/mcp?directory=here", &initialize(), 400, "`directory` must be an absolute path");
    check("/mcp?parent=cli", &initialize(), 400, "which is the shell");
    check("/mcp?dir=/a", &initialize(), 400, "known are `parent` and `directory`");
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "x".repeat(9 << 20)});
    check("/mcp", &large, 413, "larger than 8388608 bytes");
    let unknown = [right.as_str(), "Mcp-Session-Id: 00000000-0000-4000-8000-000000000000"];
    let answer = post(&shell, "/mcp", &unknown, &launch_message());
    assert_eq!(answer.status, 404, "{answer:?}");
    assert!(answer.error().contains("begin a new one with `initialize`"), "{answer:?}");
    let answer = Site::of(&shell).ask("PUT", "/mcp", &[&right], "");
    assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET, POST, DELETE"));
    assert_eq!(shell.tasks(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_an_agent_is_refused_whatever_token_it_has() {
    let server = ModelServer::start().await;
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
    shell.set("OPENAI_BASE_URL", server.base_url());
    shell.set("OPENAI_API_KEY", "sk-only-for-tests");
    fs::write(shell.path("config.toml"), "sandbox = 'off'\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    fs::create_dir(shell.path("project")).unwrap();
    shell.say(["daemon", "start"]);
    let message = initialize().to_string();
    fs::write(shell.path("project/message"), message).unwrap();
    let command = format!(
        "curl -s -m 20 -o answer -w '%{{http_code}}' -H 'authorization: Bearer {}' -H \
         'content-type: application/json' -H 'accept: application/json, text/event-stream' -d \
         @message {} > code",
        token(&shell),
        address(&shell, "")
    );
    let call = json!({"command": command});
    let prompt = format!("@call bash {call}\n@say over");
    let run = shell.run_in(&shell.path("project"), ["run", "--agent", "general", &prompt]);
    assert_eq!(run.code, 0, "{run:?}");
    let waited = shell.run(["wait", run.stdout.trim()]);
    assert_eq!(waited.code, 0, "{waited:?} {}", shell.log());
    assert_eq!(fs::read_to_string(shell.path("project/code")).unwrap(), "403");
    let answer = fs::read_to_string(shell.path("project/answer")).unwrap();
    assert!(answer.contains("may only read the agent's own task"), "{answer}");
    assert!(Site::of(&shell).get("/metrics").body.contains("asyncagents_mcp_sessions 0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_a_killed_daemon_and_its_client_can_begin_another() {
    let mut shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    // Keep the port across the restart: the client knows no other.
    shell.set("ASYNCAGENTS_API_PORT", Site::of(&shell).server.port.to_string());
    let session = Session::open(&shell, &in_project(&shell)).await;
    let task = session.launch("survivor", "@hang").await;
    block_in_place(|| shell.kill_daemon());
    shell.say(["daemon", "start"]);
    let error = session.0.list_all_tools().await.unwrap_err();
    assert!(format!("{error:?}").contains("SessionExpired"), "{error:?}");
    let next = Session::open(&shell, &in_project(&shell)).await;
    block_in_place(|| shell.finish(&shell.tasks()[0], "survived"));
    let waited = next.wait_for(&task).await;
    assert!(waited.contains("survived"), "{waited}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sessions_the_address_names_the_parent() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let query = format!("{}&parent=mine", in_project(&shell));
    let one = Session::stateless(&shell, &query).await;
    let task = one.launch("look around", "@think 50\n@say found").await;
    assert_eq!(shell.tasks()[0].parent_session_id, "mine");
    let waited = one.say("asyncagents_wait", json!({"timeout": 30})).await;
    assert!(waited.ends_with(&shown("found")), "{waited}");
    let again = Session::stateless(&shell, &query).await;
    let listed = again.say("asyncagents_list", json!({})).await;
    assert!(listed.contains(&task), "the same parent: {listed}");
    let other = Session::stateless(&shell, &format!("{}&parent=other", in_project(&shell))).await;
    assert_eq!(other.say("asyncagents_list", json!({})).await, "No background tasks found");
    let none = Site::of(&shell).get("/metrics").body;
    assert!(none.contains("asyncagents_mcp_sessions 0"), "{none}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_an_identity_must_name_tasks_by_their_ids() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let client = Session::stateless(&shell, &in_project(&shell)).await;
    let done = client.launch("one", "@say found").await;
    assert!(client.wait_for(&done).await.ends_with(&shown("found")));
    let hangs = client.launch("two", "@hang").await;
    let all: [(&'static str, Value); 7] = [
        ("asyncagents_list", json!({})),
        ("asyncagents_wait", json!({})),
        ("asyncagents_wait", json!({"task_ids": []})),
        ("asyncagents_wait", json!({"batch": "tests"})),
        ("asyncagents_cancel", json!({"all": true})),
        ("asyncagents_cancel", json!({"batch": "tests"})),
        ("asyncagents_clear", json!({})),
    ];
    for (tool, arguments) in all {
        let refused = client.refused(tool, arguments).await;
        assert!(refused.contains("`?parent=NAME`"), "{tool}: {refused}");
    }
    assert_eq!(shell.tasks()[0].status.name(), "running");
    let batches: Vec<String> = shell.tasks().into_iter().map(|task| task.batch_id).collect();
    assert_ne!(batches[0], batches[1], "strangers share no batch");
    // No notice of an end with the next answer: it may belong to another client.
    block_in_place(|| shell.finish(&shell.tasks()[0], "done"));
    block_in_place(|| until("it has ended", || shell.tasks()[0].status.name() == "completed"));
    let other = client.launch("three", "@hang").await;
    let output = client.say("asyncagents_output", json!({"task_id": other})).await;
    assert!(!output.contains("\"two\""), "{output}");
    let cancelled = client.say("asyncagents_cancel", json!({"task_id": other})).await;
    assert_eq!(cancelled, format!("Cancelled task {other} \"three\"."));
    assert!(client.wait_for(&hangs).await.contains("done"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_without_a_directory_is_refused_with_a_clear_error() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let launch = json!({"description": "x", "prompt": "@say x", "agent": "explore"});
    for session in [Session::open(&shell, "").await, Session::stateless(&shell, "").await] {
        for tool in ["asyncagents_task", "Task"] {
            let refused = session.refused(tool, launch.clone()).await;
            assert!(refused.contains("`?directory=/absolute/path`"), "{tool}: {refused}");
        }
    }
    assert_eq!(shell.tasks(), []);
}

/// A client that declares its root directory.
struct ClientWithRoot(String);

impl ClientHandler for ClientWithRoot {
    fn get_info(&self) -> ClientConfig {
        let mut info = client_info();
        info.capabilities = serde_json::from_value(json!({"roots": {}})).unwrap();
        info
    }

    #[expect(deprecated, reason = "clients of today name their roots this way")]
    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, rmcp::ErrorData> {
        let roots = json!({"roots": [{"uri": format!("file://{}", self.0)}]});
        Ok(serde_json::from_value(roots).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_work_in_the_root_that_a_client_announces() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let root = shell.path("a project");
    fs::create_dir(&root).unwrap();
    let uri = root.to_str().unwrap().replace(' ', "%20");
    let config = StreamableHttpClientTransportConfig::with_uri(address(&shell, ""))
        .auth_header(token(&shell));
    let client = net::plain().build().unwrap();
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let session = ClientWithRoot(uri).serve(transport).await.unwrap();
    let launch = json!({"description": "x", "prompt": "@say x", "agent": "explore"});
    let arguments = launch.as_object().unwrap().clone();
    let request = CallToolRequestParams::new("asyncagents_task").with_arguments(arguments);
    let answer = session.call_tool(request).await.unwrap();
    assert_ne!(answer.is_error, Some(true), "{answer:?}");
    assert_eq!(shell.tasks()[0].directory, root.to_str().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_bounded_and_expire_when_nobody_uses_them() {
    let mut shell = Shell::with_host_process();
    let settings = "[mcp]\nmax_sessions = 2\nsession_idle_seconds = 1\n";
    fs::write(shell.path("config.toml"), settings).unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    shell.say(["daemon", "start"]);
    let right = format!("Authorization: Bearer {}", token(&shell));
    // A session with an open stream does not expire.
    let kept = Session::open(&shell, &in_project(&shell)).await;
    let left = post(&shell, "/mcp", &[&right], &initialize());
    assert_eq!(left.status, 200, "{left:?}");
    let refused = post(&shell, "/mcp", &[&right], &initialize());
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.error().contains("raise `mcp.max_sessions`"), "{refused:?}");
    // A stateless client takes no session slot.
    let stateless = Session::stateless(&shell, &in_project(&shell)).await;
    stateless.launch("a task", "@say x").await;
    block_in_place(|| {
        until("the idle session has expired", || {
            post(&shell, "/mcp", &[&right], &initialize()).status == 200
        });
    });
    let session = format!("Mcp-Session-Id: {}", left.headers["mcp-session-id"]);
    assert_eq!(post(&shell, "/mcp", &[&right, &session], &launch_message()).status, 404);
    kept.launch("another", "@say x").await;
    assert!(shell.log().contains("MCP session expired"), "{}", shell.log());
}

/// The server-to-client stream has no end of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_daemon_ends_streams_and_answers_calls_that_wait() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let right = format!("Authorization: Bearer {}", token(&shell));
    let opened = post(&shell, "/mcp", &[&right], &initialize());
    let id = opened.headers["mcp-session-id"].clone();
    let mut stream = Site::of(&shell).connect();
    let request = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\n{right}\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {id}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    let session = Session::open(&shell, &in_project(&shell)).await;
    let task = session.launch("hangs", "@hang").await;
    let wait = json!({"task_ids": [task], "timeout": 60});
    let answered = || {
        let metrics = Site::of(&shell).get("/metrics").body;
        let line = metrics.lines().find(|line| line.contains("{outcome=\"answered\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    let before = answered();
    let waiting = tokio::spawn(async move { session.call("asyncagents_wait", wait).await });
    block_in_place(|| {
        until("the call is under way", || answered() > before);
        let began = std::time::Instant::now();
        shell.say(["daemon", "stop"]);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("0\r\n\r\n"), "ended in order: {rest}");
    });
    let (text, is_error) = waiting.await.unwrap();
    assert!(is_error && text.contains("the asyncagents daemon is stopping"), "{text}");
}

/// Since 2026-07-28, a client cancels a call by closing its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_session_a_closed_connection_cancels_the_call() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let client = Session::stateless(&shell, &in_project(&shell)).await;
    let task = client.launch("stays", "@hang").await;
    let launched = |description: &str| {
        let tasks = shell.tasks();
        tasks.into_iter().find(|task| task.description == description).map(|task| task.status)
    };
    let calls: [(&'static str, Value); 2] = [
        ("asyncagents_wait", json!({"task_ids": [task], "timeout": 60})),
        ("Task", json!({"description": "errand", "prompt": "@hang"})),
    ];
    for (tool, arguments) in calls {
        let config = asyncagents_call(&shell, tool, &arguments);
        let mut stream = Site::of(&shell).connect();
        stream.write_all(config.as_bytes()).unwrap();
        if tool == "Task" {
            block_in_place(|| until("it works", || launched("errand").is_some()));
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        drop(stream);
    }
    block_in_place(|| {
        until("the errand is stopped", || launched("errand") == Some(Status::Cancelled));
    });
    assert_eq!(launched("stays"), Some(Status::Running));
}

/// A tool call in the newest protocol generation.
fn asyncagents_call(shell: &Shell, tool: &str, arguments: &Value) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params});
    let body = body.to_string();
    format!(
        "POST /mcp{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: \
         application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: \
         2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {}\r\n\r\n{body}",
        in_project(shell),
        token(shell),
        body.len()
    )
}

#[test]
fn there_is_no_mcp_on_the_socket_and_none_without_a_port() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_API_ENABLED", "false");
    shell.say(["daemon", "start"]);
    assert!(!Path::new(&shell.home().join("server.json")).exists());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = net::plain().unix_socket(shell.socket()).build().unwrap();
    let answer = runtime.block_on(asked.get("http://localhost/mcp").send()).unwrap();
    assert_eq!(answer.status(), 404);
    let refused = shell.run(["mcp", "install", "--http", "claude"]);
    assert!(refused.stderr.contains("`api.enabled = false`"), "{refused:?}");
}
