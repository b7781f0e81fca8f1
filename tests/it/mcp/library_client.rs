//! `asyncagents mcp` driven by the client of the library that our server is built on. The official
//! Python client covers the same in `tests/tools/mcp_client.py`; this one needs no installation.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, ProgressNotificationParam};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::support::process::{Shell, until};
use crate::support::{quoted, shown};

const LONG: Duration = Duration::from_secs(60);

/// Forwards the progress notifications that arrive while a call blocks.
struct Listener(mpsc::UnboundedSender<String>);

impl ClientHandler for Listener {
    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(progress.message.unwrap_or_default());
    }
}

/// One session with its own server process.
struct Session {
    service: Arc<RunningService<RoleClient, Listener>>,
    progress: mpsc::UnboundedReceiver<String>,
    _server: Child,
}

impl Session {
    async fn open(shell: &Shell) -> Session {
        let mut command = Command::from(shell.command(["mcp"]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut server = command.spawn().unwrap();
        let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let (sender, progress) = mpsc::unbounded_channel();
        let service = Arc::new(Listener(sender).serve(pipes).await.unwrap());
        Session { service, progress, _server: server }
    }

    /// The text of a result, and whether it is an error.
    async fn call(&self, tool: &'static str, arguments: Value) -> (String, bool) {
        call(&self.service, tool, arguments).await
    }

    async fn say(&self, tool: &'static str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments).await;
        assert!(!is_error, "{text}");
        text
    }

    /// Launches a task with this prompt; returns its id.
    async fn launch(&self, prompt: &str) -> String {
        let launch = json!({"description": "look around", "prompt": prompt, "agent": "explore"});
        let text = self.say("asyncagents_task", launch).await;
        let line = text.lines().find_map(|line| line.strip_prefix("Task ID: ")).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    }

    /// Starts a blocking call; returns once the daemon has received it.
    async fn begin(
        &mut self,
        tool: &'static str,
        arguments: Value,
    ) -> tokio::task::JoinHandle<(String, bool)> {
        let service = Arc::clone(&self.service);
        let blocking = tokio::spawn(async move { call(&service, tool, arguments).await });
        tokio::time::timeout(LONG, self.progress.recv()).await.expect("it reports progress");
        blocking
    }
}

async fn call(
    service: &RunningService<RoleClient, Listener>,
    tool: &'static str,
    arguments: Value,
) -> (String, bool) {
    let arguments = arguments.as_object().unwrap().clone();
    let request = CallToolRequestParams::new(tool).with_arguments(arguments);
    let result = service.call_tool(request).await.unwrap();
    let text = result.content[0].as_text().unwrap().text.clone();
    (text, result.is_error.unwrap_or(false))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_lists_the_tools_launches_waits_and_gets_the_result_once() {
    let shell = Shell::with_host_process();
    let session = Session::open(&shell).await;
    let tools = session.service.list_all_tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    let words = ["task", "output", "wait", "cancel", "send", "list", "clear"];
    let expected = words.map(|word| format!("asyncagents_{word}"));
    assert_eq!(names, [expected.as_slice(), &["Task".to_owned()]].concat());

    let task = session.launch("@think 50\n@say found").await;
    let wait = json!({"task_ids": [&task], "timeout": 30});
    let waited = session.say("asyncagents_wait", wait).await;
    assert!(waited.ends_with(&shown("found")), "{waited}");
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.starts_with("1 task: 0 running, 1 completed"), "no notice again: {listed}");
    let errand = json!({"description": "errand", "prompt": "@say the answer"});
    assert_eq!(session.call("Task", errand).await, (quoted("Result", "the answer"), false));
    let refused = session.call("asyncagents_output", json!({"task_id": "nobody"})).await;
    let expected = "Error: no task `nobody`; list the tasks to see their ids";
    assert_eq!(refused, (expected.to_owned(), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_during_a_wait_is_restarted_and_the_wait_gets_its_result() {
    let shell = Shell::with_host_process();
    let mut session = Session::open(&shell).await;
    let task = session.launch("@think 3000\n@say survived").await;
    let wait = json!({"task_ids": [task], "timeout": 60});
    let waiting = session.begin("asyncagents_wait", wait).await;
    block_in_place(|| shell.kill_daemon());
    let (waited, is_error) = waiting.await.unwrap();
    assert!(!is_error && waited.ends_with(&shown("survived")), "{waited}");
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.starts_with("1 task: 0 running, 1 completed"), "told once: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_call_stops_its_agent_and_a_cancelled_wait_leaves_it_alone() {
    let shell = Shell::with_host_process();
    let mut session = Session::open(&shell).await;
    let task = session.launch("@hang").await;
    let wait = json!({"task_ids": [&task], "timeout": 60});
    // Dropping the future of a call makes the library send `notifications/cancelled`.
    session.begin("asyncagents_wait", wait).await.abort();
    let errand = json!({"description": "errand", "prompt": "@hang"});
    session.begin("Task", errand).await.abort();
    block_in_place(|| {
        until("the errand is stopped", || {
            shell.tasks().iter().any(|task| task.status.name() == "cancelled")
        });
    });
    let statuses: Vec<(String, String)> = shell
        .tasks()
        .into_iter()
        .map(|task| (task.description, task.status.name().to_owned()))
        .collect();
    let expected = [("errand", "cancelled"), ("look around", "running")];
    assert_eq!(statuses, expected.map(|(task, status)| (task.to_owned(), status.to_owned())));
}
