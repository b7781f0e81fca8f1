//! The JSON of the HTTP API: requests and responses as types, shared by the daemon and its clients. Changing a
//! field here changes the API.
//!
//! Daemon and clients may be of different versions. Fields that are unknown are ignored in bodies, and a field
//! that was added later has a `default`, so that its absence parses; only a change that one side would
//! misunderstand raises [`PROTOCOL`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fork::Inheritance;
use crate::task::Timestamp;
use crate::task::launch::Arguments;
pub use crate::task::view::TaskView;
pub use crate::task::{Answered, Door, Receipt, RunEvent};

/// The protocol version of daemons and their clients. It is raised when one of them would misunderstand the
/// other: when a field is removed or changes its meaning, or when a request relies on a field that earlier
/// daemons do not know. Mere additions do not raise it.
pub const PROTOCOL: u32 = 1;

/// The body of every error, on every route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    pub error: String,
    pub status: u16,
}

/// A page of tasks; `total` counts all that match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PageView {
    pub tasks: Vec<TaskView>,
    pub total: u64,
    pub limit: u64,
    pub offset: u64,
}

/// Counts and durations over the whole history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatsView {
    /// All five states, also those that no task is in.
    pub by_status: BTreeMap<String, u64>,
    pub by_agent: BTreeMap<String, u64>,
    /// From launch to end, of the tasks that have ended.
    pub duration: DurationView,
    pub total_tasks: u64,
    /// Running and resumed ones, also when queued.
    pub active_tasks: u64,
    pub tool_calls_by_name: BTreeMap<String, u64>,
    pub tool_calls_by_agent: BTreeMap<String, u64>,
}

/// In milliseconds; all 0 when no task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DurationView {
    pub avg: u64,
    pub max: u64,
    pub min: u64,
}

/// What tasks did over the last hours, in buckets of equal length, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryView {
    pub from: Timestamp,
    pub to: Timestamp,
    /// Of a bucket.
    pub seconds: u64,
    pub buckets: Vec<BucketView>,
    /// From launch to end, of the tasks that ended in this time.
    pub duration: PercentilesView,
    pub by_agent: BTreeMap<String, ShareView>,
    /// The empty name stands for models that hosts chose.
    pub by_model: BTreeMap<String, ShareView>,
    /// There were more tasks than are read; the oldest are not counted.
    pub partial: bool,
    pub queue: QueueView,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BucketView {
    pub launched: u64,
    pub completed: u64,
    pub error: u64,
    pub cancelled: u64,
    /// Of the tasks that ended here.
    pub tokens: u64,
    pub cost: f64,
}

/// In milliseconds; all 0 when no task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PercentilesView {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// The tasks of one agent or model that ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    pub tasks: u64,
    pub errors: u64,
    pub tokens: u64,
    pub cost: f64,
    pub duration: PercentilesView,
}

/// Slots in use now, and their limits; a limit that is left out is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    pub active: u64,
    pub queued: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_active: Option<usize>,
    pub most_active_per_parent: usize,
    pub most_queued_per_parent: usize,
    /// By `provider` or `provider/model`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub most_active_per_model: BTreeMap<String, usize>,
}

/// The tasks of one batch, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupView {
    pub group_id: String,
    pub tasks: Vec<TaskView>,
    pub stats: GroupStatsView,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatsView {
    pub completed: u64,
    /// Running and resumed ones.
    pub running: u64,
    pub error: u64,
    pub cancelled: u64,
    pub total: u64,
    /// From 0 to 1.
    pub completion_rate: f64,
    pub total_tool_calls: u64,
    #[serde(default)]
    #[schema(required = true)]
    pub tool_calls_by_name: BTreeMap<String, u64>,
    #[serde(default)]
    #[schema(required = true)]
    pub tool_calls_by_agent: BTreeMap<String, u64>,
    /// Milliseconds from the first start to the last end; to now while a task is live.
    pub duration: u64,
}

/// A batch in the list of batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSummaryView {
    pub group_id: String,
    pub stats: GroupStatsView,
}

/// Those with the newest members first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupsView {
    pub groups: Vec<GroupSummaryView>,
    pub total: u64,
    pub limit: u64,
    pub offset: u64,
}

/// The messages of a task's session, cut to what was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessagesView {
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<serde_json::Value>,
    pub task_id: String,
    pub filter: MessageFilter,
}

/// What of a session is shown; the names are those of `asyncagents_output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MessageFilter {
    /// All messages; when false, only the last answer.
    #[param(default = true)]
    #[schema(default = true)]
    pub full_session: bool,
    /// Show what the agent thought.
    pub include_thinking: bool,
    /// Show what its tools returned.
    pub include_tool_results: bool,
    /// Only what came after this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_message_id: Option<String>,
    /// Only this many messages, the last ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(maximum = 4294967295_i64)]
    #[schema(maximum = 4294967295_i64)]
    pub message_limit: Option<u32>,
    /// How much of each thought to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(maximum = 4294967295_i64)]
    #[schema(maximum = 4294967295_i64)]
    pub thinking_max_chars: Option<u32>,
}

impl Default for MessageFilter {
    /// The whole session, without thoughts and results of tools.
    fn default() -> MessageFilter {
        MessageFilter {
            full_session: true,
            include_thinking: false,
            include_tool_results: false,
            since_message_id: None,
            message_limit: None,
            thinking_max_chars: None,
        }
    }
}

/// Where the status API listens: the contents of `server.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerView {
    pub port: u16,
    pub pid: u32,
    pub started_at: Timestamp,
    pub url: String,
    /// Empty in files of daemons from before protocol 1.
    #[serde(default)]
    pub version: String,
}

/// The caller of a request, and the parent of what it launches. Without a `host` it is no conversation, and
/// its notices go to its mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
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
    /// Prefix of the names of earlier callers: their unread notices go to this one once they are gone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub heir_of: String,
    /// The caller does not say who it is, and shares its parent with others who do not: it is shown and may
    /// change only what it names by an id.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// After how many seconds the caller's side cuts a call off; waits end before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait: Option<u64>,
    /// Sent by callers that launch, and by those whose tasks may have lost theirs in a restart.
    #[serde(skip_serializing_if = "HandOverView::is_empty")]
    pub hand_over: HandOverView,
}

/// Models and credentials of a client's environment, handed over with its launches: the daemon was started
/// from another environment. Sent over the socket only, and kept in memory only. An empty field was not set.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandOverView {
    /// The model of agents that name none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The default host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub opencode_url: String,
    /// By the names of the providers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, AccessView>,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessView {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_url: String,
}

impl HandOverView {
    fn is_empty(&self) -> bool {
        *self == HandOverView::default()
    }
}

/// By hand, with the names of the providers only: a request that is logged must not show keys.
impl std::fmt::Debug for HandOverView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let providers = self.providers.keys();
        f.debug_struct("HandOverView").field("providers", &providers).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvidersRequest {
    #[serde(skip_serializing_if = "HandOverView::is_empty")]
    pub hand_over: HandOverView,
    /// Whether keys are read, and commands run for them.
    pub check: bool,
    /// Whether the providers are asked for their models, too.
    pub online: bool,
}

/// The providers of models, as the daemon sees them for this caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidersView {
    /// The model of agents that name none.
    pub model: String,
    /// Why that cannot be used, if it was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Those that are configured or have a key, and the provider of the model.
    pub providers: Vec<ProviderView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderView {
    pub name: String,
    /// Where its key comes from; left out when there is none. Never the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Without a login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How many models it offers, when it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<usize>,
    /// It has more than that: its list was too long to be read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more_models: bool,
    /// Whether the default model is among them; only of its own provider. Left out when it may be among
    /// those that were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_model: Option<bool>,
}

/// Launches a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchRequest {
    pub caller: CallerView,
    pub arguments: Arguments,
    /// Whose conversation a fork inherits, when it is not the caller's: a task's id in any form, or
    /// a session of any host.
    #[serde(rename = "forkSession", skip_serializing_if = "Option::is_none")]
    pub fork_session: Option<String>,
    /// Idempotency key: a repeat with the same key returns the task of the first call. For callers that lost
    /// their connection and cannot know whether the task was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResumeRequest {
    pub prompt: String,
    #[serde(rename = "handOver", skip_serializing_if = "HandOverView::is_empty")]
    pub hand_over: HandOverView,
    /// Idempotency key, as in [`LaunchRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Launches a failed or cancelled task again. The caller's directory does not count, its credentials do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryRequest {
    pub caller: CallerView,
    /// Idempotency key, as in [`LaunchRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A message to a task (T21).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendRequest {
    pub message: String,
    /// For a completed task, which is resumed.
    #[serde(rename = "handOver", skip_serializing_if = "HandOverView::is_empty")]
    pub hand_over: HandOverView,
    /// Idempotency key, as in [`LaunchRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The task that a message was sent to, and how the agent gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentView {
    #[serde(flatten)]
    pub task: TaskView,
    pub delivery: DeliveryView,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryView {
    /// Before its next step.
    Steered,
    /// With its first step, once the task has a slot.
    Queued,
    /// As the prompt of another run: the task had completed.
    Resumed,
}

/// Cancels tasks: exactly one of `ids`, `all` and `batch` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CancelRequest {
    pub caller: CallerView,
    pub ids: Vec<String>,
    pub all: bool,
    pub batch: Option<String>,
    /// Idempotency key, as in [`LaunchRequest`]: a repeat also names what the first call has cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// The caller wanted to wait, and did not see the end.
    pub timed_out: bool,
    /// The permission requests it is blocked on, when that is why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<PermissionView>,
    /// How its earlier requests were answered, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answered>,
}

/// A task by itself, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DetailView {
    #[serde(flatten)]
    pub task: TaskView,
    /// What happened to it, oldest first: of the newest 200 runs, messages and notices.
    pub events: Vec<RunEvent>,
    /// How its permission requests were answered, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answered>,
    /// What a fork began with; left out when it was none, or when its host copied the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<InheritedView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InheritedView {
    /// What the agent was told about it: what was kept, cut and left out.
    pub preamble: String,
    /// Of the context that came after it.
    pub characters: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CancelView {
    pub cancelled: Vec<TaskView>,
    /// Those that had ended before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<TaskView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerRequest {
    pub caller: CallerView,
}

/// Takes the caller's tasks off its list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClearRequest {
    pub caller: CallerView,
    /// Idempotency key, as in [`LaunchRequest`]: a repeat also counts what the first call has done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearView {
    pub cancelled: usize,
    pub cleared: usize,
}

/// Limits of the history, at least one of them. A task is deleted when either limit excludes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PruneRequest {
    /// How many ended tasks are kept, the newest ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u64>,
    /// Counted from a task's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_days: Option<u64>,
    /// Idempotency key, as in [`LaunchRequest`]: a repeat also counts what the first call has removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneView {
    pub removed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitRequest {
    pub ids: Vec<String>,
    /// How many must have ended; all of them when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<usize>,
    /// Seconds; at most an hour a call.
    pub timeout: f64,
    /// Return early when all tasks that are left wait for the answer of a person.
    #[serde(skip_serializing_if = "is_false")]
    pub until_blocked: bool,
    /// With the credentials that its tasks may have lost in a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerView>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitView {
    pub tasks: Vec<TaskView>,
    pub timed_out: bool,
    /// All tasks that are left wait for the answer of a person.
    #[serde(default, skip_serializing_if = "is_false")]
    pub blocked: bool,
    /// Their permission requests, when that is so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<PermissionView>,
}

/// Looks up tasks by ids, short ids or prefixes of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

/// Tokens and cost, as the hosts report them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageView {
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
    /// The oldest unread ones.
    pub notices: Vec<NoticeView>,
    /// How many are left.
    #[serde(default)]
    pub left: usize,
}

/// A permission request of an agent, which waits for the answer of a person.
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
    /// The same as one sentence for a person, with what the agent wrote quoted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub question: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionsView {
    pub permissions: Vec<PermissionView>,
}

/// A person's answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerRequest {
    pub allow: bool,
    #[serde(default)]
    pub door: Door,
    /// Who answers: a parent, or the user of the shell; empty when the client does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Idempotency key, as in [`LaunchRequest`]: to a repeat the request counts as answered by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A one-time code for the dashboard.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DashCodeView {
    pub code: String,
    /// Seconds.
    pub expires_in: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DashTokenRequest {
    pub code: String,
}

/// The token of a page, for its verbs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DashTokenView {
    pub token: String,
    /// Seconds.
    pub expires_in: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    pub status: String,
    /// Seconds.
    pub uptime: u64,
    pub version: String,
    /// The version of the protocol; clients of another one cannot use this daemon.
    #[serde(default)]
    #[schema(required = true)]
    pub protocol: u32,
    /// 0 with a warning when they cannot be counted.
    pub task_count: u64,
    pub pid: u32,
    /// The queue is paused: launches are accepted, and wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// For the user: a store that is damaged or was set aside, a disk that fills up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why a restart would change something: the configuration file was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_needed: Option<String>,
    /// The warnings that every command shows: the store is damaged or was set aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urgent: Vec<String>,
}

/// The queue of tasks that wait for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStateView {
    /// No task gets a slot until the queue is continued.
    pub paused: bool,
    /// How many wait.
    pub queued: u64,
    /// How many hold a slot.
    pub active: u64,
}

/// The result of reading the whole store from end to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    pub problems: Vec<String>,
    /// Tasks whose records were damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
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
    /// Servers can be added to it.
    #[serde(default)]
    pub has_servers: bool,
    pub servers: Vec<OpenCodeView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenCodeView {
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
pub struct ServerRequest {
    pub url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkRequest {
    /// A task's id in any form, or a session of any host.
    pub session: String,
}

/// A plugin opens a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeRequest {
    /// Of its OpenCode process.
    pub pid: u32,
    /// Where that was started.
    pub directory: String,
    /// The name it had on its last bridge, so that it takes over its tasks; empty on its first.
    #[serde(default)]
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    pub description: String,
    pub input_schema: serde_json::Value,
    /// A call may take minutes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub waits: bool,
    /// Left out by daemons that do not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintsView>,
}

/// What calls of a tool can do, in the words of MCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HintsView {
    /// Nothing is changed.
    pub read_only: bool,
    /// Something may be lost.
    pub destructive: bool,
    /// The same call again changes nothing more.
    pub idempotent: bool,
    /// It may reach beyond this machine.
    pub open_world: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolsView {
    /// [`PROTOCOL`] of the daemon, so that who lists the tools needs no handshake; 0 from before it was there.
    #[serde(default)]
    pub protocol: u32,
    pub tools: Vec<ToolView>,
    /// How they are meant to be used together; empty where their descriptions say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instructions: String,
}

fn is_false(value: &bool) -> bool {
    !*value
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolRequest {
    pub caller: CallerView,
    pub arguments: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The answer comes as lines of JSON: progress, again and again, then the answer.
    pub progress: bool,
    /// The caller acknowledges the notices in the answer with `/v1/mailbox/read`. Otherwise they count as
    /// read when the answer is sent.
    pub acknowledges: bool,
    /// The caller would come back for the answer of a call that waits ([`ToolLine::Deferred`]).
    #[serde(skip_serializing_if = "is_false")]
    pub deferrable: bool,
    /// The caller shows permission requests to its user, so that a wait goes on while one is open
    /// ([`ToolLine::Asks`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<AskingView>,
}

impl ToolRequest {
    /// Whether the answer comes as lines of JSON.
    pub fn is_in_lines(&self) -> bool {
        self.progress || self.deferrable || self.asks.is_some()
    }
}

/// A client that shows permission requests to its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskingView {
    /// The requests that the user did not want to answer there.
    pub declined: Vec<String>,
}

/// The answer of a tool: plain text, also when it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    pub text: String,
    pub is_error: bool,
    /// The notices in the text that have still to be acknowledged.
    #[serde(rename = "mail", default, skip_serializing_if = "Receipt::is_empty")]
    pub receipt: Receipt,
    /// The result as JSON, when the answer is of one task with a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<serde_json::Value>,
}

/// A line of an answer with progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolLine {
    Progress(String),
    /// The open permission requests of the caller's tasks, again whenever they change.
    Asks(Vec<PermissionView>),
    Answer(ToolAnswer),
    /// Instead of an answer: the call goes on in the daemon, and `/v1/calls/{id}` has its answer.
    Deferred(CallView),
}

/// A deferred call: it waits in the daemon, also across restarts, until its caller comes for the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallView {
    /// Cannot be guessed: whoever has the id can read the answer.
    pub id: String,
    pub status: CallStatus,
    /// What the agents that are waited for are doing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When it may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it has completed. Acknowledged with `/v1/mailbox/read`, by the id of the call and the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<ToolAnswer>,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What the client's user is to be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<PermissionView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

/// The user of the client did not want to answer these permission requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclineRequest {
    pub caller: CallerView,
    pub asks: Vec<String>,
}

/// Aborts a call: the caller no longer waits for the one it made with this key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortRequest {
    pub caller: CallerView,
    pub key: String,
}

/// Acknowledges notices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    #[serde(rename = "notices")]
    pub receipt: Receipt,
    /// The deferred calls whose answers have arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<String>,
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
