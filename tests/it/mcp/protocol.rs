//! `asyncagents mcp` at the level of JSON-RPC lines: versions, errors, cancellation, progress.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::OpenCode;
use crate::support::front::CannedDaemon;
use crate::support::process::Shell;

/// A client that sends one request at a time.
struct Client {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    last: u64,
    /// The server's answer to `initialize`.
    server: Value,
    asked_for_roots: Option<Value>,
    /// Metadata sent with every request.
    meta: Option<Value>,
}

impl Client {
    fn connect(shell: &Shell, name: &str) -> Client {
        Client::connect_with(shell, name, json!({}))
    }

    /// Of the generation without a handshake: every request says who the client is and what it can do.
    fn stateless(shell: &Shell, name: &str, capabilities: Value) -> Client {
        let mut client = Client::start(shell);
        client.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": name, "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }));
        client
    }

    fn start(shell: &Shell) -> Client {
        let mut command = shell.command(["mcp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (server, asked_for_roots, meta) = (Value::Null, None, None);
        Client { child, input, output, last: 0, server, asked_for_roots, meta }
    }

    fn connect_with(shell: &Shell, name: &str, capabilities: Value) -> Client {
        let mut client = Client::start(shell);
        let initialize = json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": { "name": name, "version": "1" },
        });
        client.server = client.ask("initialize", initialize)["result"].clone();
        client.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    /// Sends a request; returns the whole response.
    fn ask(&mut self, method: &str, mut params: Value) -> Value {
        self.last += 1;
        if let Some(meta) = &self.meta {
            params["_meta"] = meta.clone();
        }
        let request =
            json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params });
        self.say(&request);
        loop {
            let answer = self.hear();
            if answer["method"].is_null() && answer["id"] == self.last {
                return answer;
            }
        }
    }

    fn hear(&mut self) -> Value {
        let line = self.output.next().expect("it says something").unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        if message["method"] == "roots/list" {
            self.asked_for_roots = Some(message["id"].clone());
        }
        message
    }

    /// Waits for the server's request for roots and answers it.
    fn tell_root(&mut self, root: &Path) {
        while self.asked_for_roots.is_none() {
            self.hear();
        }
        let id = self.asked_for_roots.take();
        let roots = json!([{ "uri": format!("file://{}", root.display()) }]);
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "result": { "roots": roots } }));
    }

    fn tools(&mut self) -> Vec<Value> {
        let answer = self.ask("tools/list", json!({}));
        answer["result"]["tools"].as_array().unwrap().clone()
    }

    /// The text of a tool's answer.
    fn call(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments }));
        answer["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    fn tool(&mut self, name: &str) -> Value {
        self.tools().into_iter().find(|tool| tool["name"] == name).unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn embedded() -> Shell {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_HOST", "embedded");
    shell
}

#[test]
fn a_session_opens_without_a_daemon_and_reports_the_cause_until_it_is_fixed() {
    let shell = embedded();
    shell.say(["daemon", "start"]);
    shell.say(["daemon", "stop"]);
    let version = |version: i64| {
        let db = rusqlite::Connection::open(shell.database()).unwrap();
        let known = db.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        db.pragma_update(None, "user_version", version).unwrap();
        known
    };
    let known = version(9_999);
    let why = format!(
        "Error: the asyncagents daemon cannot be started: the daemon did not start: the task store \
         was written by a newer asyncagents (schema 9999, this one knows {known}); upgrade asyncagents, \
         or set ASYNCAGENTS_HOME to another directory. Launched tasks are kept; call again once this is \
         fixed (`asyncagents doctor` shows more)."
    );

    let mut client = Client::connect(&shell, "a client");
    assert!(client.server["instructions"].as_str().unwrap().contains("asyncagents_wait"));
    assert_eq!(client.ask("tools/list", json!({}))["error"]["message"], json!(why));
    let list = json!({ "name": "asyncagents_list", "arguments": {} });
    let refused = json!({ "content": [{ "type": "text", "text": why }], "isError": true });
    assert_eq!(client.ask("tools/call", list.clone())["result"], refused);

    version(known);
    let text = "No background tasks found";
    let answered = json!({ "content": [{ "type": "text", "text": text }], "isError": false });
    assert_eq!(client.ask("tools/call", list)["result"], answered);
}

#[test]
fn only_announced_capabilities_exist() {
    let shell = Shell::new();
    let mut client = Client::connect(&shell, "a client");
    let extensions = json!({ "io.modelcontextprotocol/tasks": {} });
    let announced = json!({ "tools": {}, "extensions": extensions });
    assert_eq!(client.server["capabilities"], announced);
    // Only a client that declares the extension may use it.
    let answer = client.ask("tasks/get", json!({ "taskId": "x" }));
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
    for method in
        ["resources/list", "resources/templates/list", "prompts/list", "completion/complete"]
    {
        let params = json!({
            "ref": { "type": "ref/prompt", "name": "x" }, "argument": { "name": "a", "value": "b" },
        });
        let params = if method == "completion/complete" { params } else { json!({}) };
        let answer = client.ask(method, params);
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
    }
}

#[test]
fn roots_announced_after_the_tools_were_listed_count_for_the_first_call() {
    let shell = Shell::new();
    let root = shell.path("workspace");
    fs::create_dir(&root).unwrap();
    let root = root.canonicalize().unwrap();
    let mut client = Client::connect_with(&shell, "an editor", json!({ "roots": {} }));
    client.tools();
    client.tell_root(&root);
    let arguments = json!({ "description": "x", "prompt": "@say done", "agent": "explore" });
    client.ask("tools/call", json!({ "name": "asyncagents_task", "arguments": arguments }));
    let directories: Vec<String> = shell.tasks().into_iter().map(|task| task.directory).collect();
    assert_eq!(directories, [root.display().to_string()]);
}

/// In 2026-07-28 servers send no requests.
#[test]
fn a_client_of_the_protocol_without_a_handshake_is_not_asked_for_its_roots() {
    let shell = embedded();
    let mut client = Client::stateless(&shell, "future", json!({ "roots": {} }));
    assert!(client.tools().len() > 5);
    assert_eq!(client.call("asyncagents_list", json!({})), "No background tasks found");
    assert_eq!(client.call("asyncagents_list", json!({})), "No background tasks found");
    assert_eq!(client.asked_for_roots, None);
}

#[test]
fn a_client_that_does_not_answer_the_question_for_its_roots_is_served_all_the_same() {
    let shell = embedded();
    let mut client = Client::connect_with(&shell, "mute", json!({ "roots": {} }));
    let launch = json!({ "description": "d", "prompt": "Where?", "agent": "explore" });
    let launched = client.call("asyncagents_task", launch);
    assert!(launched.starts_with("Background task launched"), "{launched}");
    assert!(client.asked_for_roots.is_some());
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn a_daemon_of_another_version_is_named_with_the_way_out_by_lists_and_calls() {
    let shell = Shell::new();
    let health = json!({
        "status": "ok", "uptime": 5, "version": "9.9.0", "protocol": 2, "taskCount": 0, "pid": 1,
    });
    let tools = r#"{"tools": []}"#.to_owned();
    let answers = vec![("GET /v1/health", 200, health.to_string()), ("POST /v1/tools", 200, tools)];
    let _daemon = CannedDaemon::listen(&shell.socket(), answers);
    let mut client = Client::connect(&shell, "test");
    let why = "the daemon is newer than this program, and they do not understand each other \
               (daemon: version 9.9.0, protocol 2; program: version 0.1.0, protocol 1); update this \
               program (`asyncagents daemon restart` would replace the daemon by this older one)";
    let list = client.ask("tools/list", json!({}));
    assert!(list["error"]["message"].as_str().unwrap().contains(why), "{list}");
    let call = client.call("asyncagents_list", json!({}));
    assert!(call.contains(why), "{call}");
}

#[test]
fn a_result_with_a_schema_is_also_given_as_structured_content() {
    let shell = Shell::new();
    let mut client = Client::connect(&shell, "a client");
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    let arguments =
        json!({ "description": "count", "prompt": "@say {\"n\": 3}", "schema": schema });
    let call = json!({ "name": "Task", "arguments": arguments });
    let result = client.ask("tools/call", call)["result"].clone();
    assert_eq!(result["structuredContent"], json!({ "n": 3 }), "{result}");
    assert!(result["content"][0]["text"].as_str().unwrap().contains("{\"n\": 3}"), "{result}");
    let listed = client.ask("tools/call", json!({ "name": "asyncagents_list", "arguments": {} }));
    assert_eq!(listed["result"]["structuredContent"], Value::Null, "{listed}");
}

#[test]
fn tools_have_titles_and_correct_annotations() {
    let shell = embedded();
    let mut client = Client::connect(&shell, "a client");
    let hints: Vec<Value> = client
        .tools()
        .into_iter()
        .map(|tool| {
            assert_eq!(tool["title"], tool["annotations"]["title"]);
            assert!(tool["title"].as_str().is_some_and(|title| !title.is_empty()), "{tool}");
            let hint = |name: &str| tool["annotations"][name].clone();
            json!([
                tool["name"],
                hint("readOnlyHint"),
                hint("destructiveHint"),
                hint("openWorldHint")
            ])
        })
        .collect();
    let expected = [
        json!(["asyncagents_task", false, true, true]),
        json!(["asyncagents_output", true, false, false]),
        json!(["asyncagents_wait", true, false, false]),
        json!(["asyncagents_cancel", false, true, false]),
        json!(["asyncagents_send", false, true, true]),
        json!(["asyncagents_list", true, false, false]),
        json!(["asyncagents_clear", false, true, false]),
        // Run by `general`, which may write.
        json!(["Task", false, true, true]),
    ];
    assert_eq!(hints, expected);
}

#[test]
fn several_calls_of_task_may_run_in_parallel_when_its_agent_only_reads() {
    let mut shell = embedded();
    let file = shell.path("config.toml");
    fs::write(&file, "[task_tool]\nagent = \"explore\"\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", file);
    let mut client = Client::connect(&shell, "claude-code");
    let task = client.tool("Task");
    assert_eq!(task["annotations"]["readOnlyHint"], true);
    let description = task["description"].as_str().unwrap();
    let told = "the agent explore, which only reads, so several calls can run at the same time.";
    assert!(description.ends_with(told), "{description}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_tool_lists_the_agents_of_the_host_that_the_client_names() {
    let server = OpenCode::start().await;
    block_in_place(|| {
        let mut shell = embedded();
        let file = shell.path("config.toml");
        fs::write(&file, "[task_tool]\nagent = \"explore\"\n").unwrap();
        shell.set("ASYNCAGENTS_CONFIG", file);
        assert_eq!(shell.run(["daemon", "start"]).code, 0);
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
        // The permissions of an agent of that name on OpenCode are unknown, so it is not announced
        // as read-only.
        let mut client = Client::connect(&shell, "claude-code");
        assert_eq!(client.tool("Task")["annotations"]["readOnlyHint"], false);
    });
}

#[test]
fn the_description_of_asyncagents_task_names_the_agents_there_are() {
    let shell = embedded();
    let agents = "Agents: build, explore (only reads), general, librarian (only reads), oracle (only \
                  reads).";
    let mut client = Client::connect(&shell, "a client");
    let described =
        |client: &mut Client| client.tool("asyncagents_task")["description"].to_string();
    assert!(described(&mut client).contains(agents), "{}", described(&mut client));
    // The agents of the workspace are listed as well, once it is trusted.
    let folder = shell.path(".claude/agents");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("reviewer.md"), "---\ndescription: reviews\n---\nReview.\n").unwrap();
    assert!(!described(&mut client).contains("reviewer"));
    shell.say(["trust"]);
    assert!(described(&mut client).contains(", reviewer."), "{}", described(&mut client));
}
