//! The JSON we promise to the outside. Changing a field here is changing the API.

use serde::{Deserialize, Serialize};

use crate::fork::Inheritance;
use crate::task::launch::Arguments;
use crate::task::{Budget, Progress, Task, Timestamp};

/// A task (H2). Additions may follow; none of these fields may change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    #[serde(rename = "sessionID")]
    pub session_id: String,
    #[serde(rename = "shortID")]
    pub short_id: String,
    #[serde(rename = "parentSessionID")]
    pub parent_session_id: String,
    #[serde(rename = "parentMessageID")]
    pub parent_message_id: String,
    pub parent_agent: String,
    pub parent_host: String,
    pub host: String,
    pub host_instance: String,
    pub directory: String,
    pub description: String,
    pub prompt: String,
    pub agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub status: String,
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_retrieved_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleared_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub batch_id: String,
    pub resume_count: u32,
    pub is_forked: bool,
    #[serde(default, skip_serializing_if = "Budget::is_empty")]
    pub budget: Budget,
    pub progress: Progress,
}

/// Every error, on every route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorView {
    pub error: String,
    pub status: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageView {
    pub tasks: Vec<TaskView>,
    pub total: u64,
    pub limit: u64,
    pub offset: u64,
}

/// Who calls. What is left out is not a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CallerView {
    #[serde(rename = "sessionID")]
    pub session_id: String,
    #[serde(rename = "messageID")]
    pub message_id: String,
    pub agent: String,
    pub directory: String,
    /// The host of the conversation; empty when there is none.
    pub host: String,
    /// The process of that host, by the name a bridge was given.
    pub instance: String,
    /// The caller runs with `NODE_ENV=development`.
    pub development: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaunchRequest {
    pub caller: CallerView,
    pub arguments: Arguments,
    /// Whose conversation a fork inherits, when it is not the caller's: a task's id in any form, or
    /// a session of any host.
    #[serde(rename = "forkSession", skip_serializing_if = "Option::is_none")]
    pub fork_session: Option<String>,
    /// The same key launches the same task: for callers that lost their connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResumeRequest {
    pub prompt: String,
}

/// Exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CancelRequest {
    pub caller: CallerView,
    pub ids: Vec<String>,
    pub all: bool,
    pub batch: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputRequest {
    pub caller: CallerView,
    /// Seconds to wait for the end; left out, the answer comes at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputView {
    pub task: TaskView,
    pub timed_out: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CancelView {
    pub cancelled: Vec<TaskView>,
    /// Those that had ended before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<TaskView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallerRequest {
    pub caller: CallerView,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearView {
    pub cancelled: usize,
    pub cleared: usize,
}

/// At least one of these; a task goes when either leaves it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PruneRequest {
    /// How many ended tasks stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u64>,
    /// Counted from a task's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_days: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneView {
    pub removed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WaitRequest {
    pub ids: Vec<String>,
    /// How many must have ended; all of them when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<usize>,
    /// Seconds; at most an hour a call.
    pub timeout: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitView {
    pub tasks: Vec<TaskView>,
    pub timed_out: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResolveRequest {
    pub ids: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TasksView {
    pub tasks: Vec<TaskView>,
}

/// What a child that is forked from a session inherits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkView {
    pub preamble: String,
    pub context: String,
    /// With something to show, in the whole conversation.
    pub messages: usize,
    /// Those the latest compaction stands for; left out when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted: Option<usize>,
    /// Dropped to fit the budget.
    pub removed: usize,
    pub kept: usize,
    /// Tool results of the kept messages.
    pub results: ResultsView,
    /// Of the context.
    pub characters: usize,
}

/// By how much of them is kept at most: all, 3,000 characters, 500 characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultsView {
    pub whole: usize,
    pub long: usize,
    pub short: usize,
}

/// Tokens and money, in the hosts' own figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpentView {
    pub tokens: u64,
    pub cost: f64,
}

/// A notice as a parent without a conversation reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeView {
    pub visible: String,
    pub hidden: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxView {
    pub notices: Vec<NoticeView>,
}

/// What a child waits for an answer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionView {
    pub id: String,
    #[serde(rename = "sessionID")]
    pub session_id: String,
    #[serde(rename = "shortID")]
    pub short_id: String,
    pub description: String,
    pub what: String,
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionsView {
    pub permissions: Vec<PermissionView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    pub allow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    pub status: String,
    /// Seconds.
    pub uptime: u64,
    pub version: String,
    pub task_count: u64,
    pub pid: u32,
    /// What the user should know: a damaged store that was set aside, a failed check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Of a whole store that was read from end to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostsView {
    pub hosts: Vec<HostView>,
}

/// Where agents run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostView {
    pub name: String,
    pub is_default: bool,
    pub active_tasks: usize,
    pub servers: Vec<ServerView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerView {
    pub name: String,
    /// Without its password.
    pub url: String,
    /// When it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub active_tasks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRequest {
    pub url: String,
}

/// A plugin says where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeRequest {
    /// Of its OpenCode process.
    pub pid: u32,
    /// Where that was started.
    pub directory: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeAnswer {
    pub status: u16,
    /// Whether the body is JSON.
    #[serde(default)]
    pub json: bool,
}

/// A tool as its callers register it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolView {
    pub name: String,
    pub description: String,
    pub input_schema: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolsView {
    pub tools: Vec<ToolView>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolRequest {
    pub caller: CallerView,
    pub arguments: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Plain text, also when it is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    pub text: String,
    pub is_error: bool,
}

impl From<Inheritance> for ForkView {
    fn from(inheritance: Inheritance) -> ForkView {
        let Inheritance { preamble, context, counts } = inheritance;
        let results = counts.results;
        ForkView {
            preamble,
            context,
            messages: counts.messages,
            compacted: counts.compacted,
            removed: counts.removed,
            kept: counts.kept,
            results: ResultsView { whole: results.whole, long: results.long, short: results.short },
            characters: counts.characters,
        }
    }
}

impl From<&Task> for TaskView {
    fn from(task: &Task) -> TaskView {
        let task = task.clone();
        TaskView {
            session_id: task.id.to_string(),
            short_id: task.short_id.to_string(),
            parent_session_id: task.parent.session.to_string(),
            parent_message_id: task.parent.message,
            parent_agent: task.parent.agent,
            parent_host: task.parent.host,
            host: task.host,
            host_instance: task.host_instance,
            directory: task.directory,
            description: task.description,
            prompt: task.prompt,
            agent: task.agent,
            model: task.model,
            status: task.state.status().name().to_owned(),
            started_at: task.started_at,
            completed_at: task.completed_at,
            result_retrieved_at: task.result_retrieved_at,
            cleared_at: task.cleared_at,
            result: task.state.result().map(str::to_owned),
            error: task.state.error().map(str::to_owned),
            batch_id: task.batch.to_string(),
            resume_count: task.run,
            is_forked: task.is_forked,
            budget: task.budget,
            progress: task.progress,
        }
    }
}
