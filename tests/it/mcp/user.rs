//! An MCP client with a scripted user who answers forms, built on the library's client. It speaks
//! both protocol generations.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use asyncagents::wire::TaskView;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam,
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, GetTaskParams,
    Implementation, ProtocolVersion, TaskStatus, UpdateTaskParams,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, NotificationContext, RequestContext,
    RunningService, ServiceError,
};
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::task::block_in_place;

use crate::support::process::{Shell, until};

pub const LONG: Duration = Duration::from_secs(60);

/// The protocol generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Handshake,
    Modern,
}

pub const BOTH: [Generation; 2] = [Generation::Handshake, Generation::Modern];

struct User {
    capabilities: ClientCapabilities,
    forms: mpsc::UnboundedSender<String>,
    answers: Mutex<mpsc::UnboundedReceiver<ElicitResult>>,
    withdrawn: mpsc::UnboundedSender<String>,
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let mut config =
            ClientConfig::new(self.capabilities.clone(), Implementation::new("a client", "1"));
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        config
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Err(ErrorData::invalid_params("no form", None));
        };
        let _ = self.forms.send(message);
        let answer = self.answers.lock().await.recv().await;
        answer.ok_or_else(|| ErrorData::internal_error("the user left", None))
    }

    async fn on_cancelled(
        &self,
        params: CancelledNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.withdrawn.send(params.reason.unwrap_or_default());
    }
}

/// One session with its own server process.
pub struct Session {
    service: RunningService<RoleClient, User>,
    /// The forms shown to the user.
    pub forms: mpsc::UnboundedReceiver<String>,
    pub answers: mpsc::UnboundedSender<ElicitResult>,
    pub withdrawn: mpsc::UnboundedReceiver<String>,
    _server: Child,
}

impl Session {
    pub async fn open(
        shell: &Shell,
        generation: Generation,
        capabilities: ClientCapabilities,
    ) -> Session {
        let mut command = Command::from(shell.command(["mcp"]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut server = command.spawn().unwrap();
        let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let (shown, forms) = mpsc::unbounded_channel();
        let (answers, given) = mpsc::unbounded_channel();
        let (cancelled, withdrawn) = mpsc::unbounded_channel();
        let answered = Mutex::new(given);
        let user = User { capabilities, forms: shown, answers: answered, withdrawn: cancelled };
        let lifecycle = match generation {
            Generation::Handshake => ClientLifecycleMode::Initialize,
            Generation::Modern => ClientLifecycleMode::Discover {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            },
        };
        let service = user.serve_with_lifecycle(pipes, lifecycle).await.unwrap();
        Session { service, forms, answers, withdrawn, _server: server }
    }

    pub async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResponse {
        let arguments = arguments.as_object().unwrap().clone();
        let request = CallToolRequestParams::new(tool).with_arguments(arguments);
        self.service.call_tool_once(request).await.unwrap()
    }

    /// The text of a call that returns a result, and whether it is an error.
    pub async fn answer(&self, tool: &'static str, arguments: Value) -> (String, bool) {
        match self.call(tool, arguments).await {
            CallToolResponse::Complete(result) => text(&serde_json::to_value(result).unwrap()),
            other => panic!("no answer: {other:?}"),
        }
    }

    pub async fn say(&self, tool: &'static str, arguments: Value) -> String {
        let (text, is_error) = self.answer(tool, arguments).await;
        assert!(!is_error, "{text}");
        text
    }

    /// Starts a call that becomes a task; returns its handle.
    pub async fn begin(&self, tool: &'static str, arguments: Value) -> String {
        match self.call(tool, arguments).await {
            CallToolResponse::Task(created) => {
                let goes_on = [TaskStatus::Working, TaskStatus::InputRequired];
                assert!(goes_on.contains(&created.task.status), "{created:?}");
                assert_eq!(created.task.poll_interval_ms, Some(2_000));
                created.task.task_id
            }
            other => panic!("no task: {other:?}"),
        }
    }

    /// Launches a task and waits until its agent hangs.
    pub async fn launch_hanging(&self, shell: &Shell) -> TaskView {
        let launch = json!({"description": "look around", "prompt": "@hang", "agent": "explore"});
        self.say("asyncagents_task", launch).await;
        block_in_place(|| hanging(shell))
    }

    pub async fn try_get(&self, id: &str) -> Result<Value, ServiceError> {
        let result = self.service.get_task(GetTaskParams::new(id)).await?;
        Ok(serde_json::to_value(result).unwrap())
    }

    pub async fn get(&self, id: &str) -> Value {
        self.try_get(id).await.unwrap()
    }

    /// Polls until the task has this status.
    pub async fn until(&self, id: &str, status: &str) -> Value {
        let started = tokio::time::Instant::now();
        loop {
            let task = self.get(id).await;
            if task["status"] == status {
                return task;
            }
            assert!(started.elapsed() < LONG, "never {status}: {task}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn update(&self, id: &str, responses: BTreeMap<String, Value>) {
        self.service.update_task(UpdateTaskParams::new(id, responses)).await.unwrap();
    }

    pub async fn cancel(&self, id: &str) {
        self.service.cancel_task(CancelTaskParams::new(id)).await.unwrap();
    }
}

/// The text of a result, and whether it is an error.
pub fn text(result: &Value) -> (String, bool) {
    let text = result["content"][0]["text"].as_str().unwrap().to_owned();
    (text, result["isError"] == true)
}

/// The newest task, once its agent hangs.
pub fn hanging(shell: &Shell) -> TaskView {
    until("the agent is at work", || {
        let newest = shell.tasks().into_iter().next();
        newest.is_some_and(|task| task.progress.phase.name() == "waiting")
    });
    shell.tasks().remove(0)
}

/// Ends a hanging agent, and waits until the daemon has recorded it.
pub fn finish(shell: &Shell, task: &TaskView, text: &str) {
    shell.finish(task, text);
    until("it has ended", || shell.task(&task.session_id).status.name() == "completed");
}
