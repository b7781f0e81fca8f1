//! The domain types of a task: one agent working in a session of its own for a parent. Pure data; the
//! state machine is in `lifecycle.rs`, the rules of the queue in `queue.rs`, the JSON in `view.rs`.

pub mod alert;
pub mod answer;
pub mod id;
pub mod launch;
pub mod lifecycle;
pub mod progress;
pub mod queue;
pub mod run_event;
pub mod schema;
pub mod stats;
pub mod time;
pub mod trends;
pub mod view;

pub use answer::{Answered, Answerer, Door};
pub use id::{BatchId, MessageId, NoticeId, Receipt, SessionId, ShortId, TaskId, tick_of};
pub use lifecycle::{State, Status};
pub use progress::{Phase, Progress};
pub use queue::{LaunchMode, Slot};
pub use run_event::{RunEvent, RunEventKind};
pub use schema::Schema;
pub use time::Timestamp;

/// The host of parents that are no conversation: nothing can be posted to them, so their notices wait in
/// the store's mailbox until they ask.
pub const MAILBOX: &str = "mailbox";

/// The parent of what is launched in a shell. Its user looks at `list` and `output`; nothing reads its
/// mailbox.
pub const SHELL: &str = "cli";

/// Everything we know of one task. Its text results travel inside [`State`].
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The child's session id.
    pub id: TaskId,
    /// What people and models see and type.
    pub short_id: ShortId,
    pub origin: Origin,
    pub order: Order,
    pub batch: BatchId,
    pub state: State,
    pub started_at: Timestamp,
    pub completed_at: Option<Timestamp>,
    pub result_retrieved_at: Option<Timestamp>,
    pub cleared_at: Option<Timestamp>,
    /// The newest task that repeats this one.
    pub retried_by: Option<TaskId>,
    /// The number of the current run: 0 is the launch, every resume is the next.
    pub run: u32,
    pub slot: Slot,
    pub progress: Progress,
    /// For optimistic locking: grows by one with every committed change of state, and a change is written
    /// only if it is still what its author has read.
    pub revision: i64,
}

/// What a launch asks for. It stays the same for as long as there is a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    pub description: String,
    pub prompt: String,
    pub agent: String,
    pub model: Option<String>,
    pub budget: Budget,
    pub mode: LaunchMode,
    /// What its results have to fit, of every run (O7).
    pub schema: Option<Schema>,
}

/// Where a task came from, and where it works.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    pub parent: Parent,
    pub host: String,
    pub host_instance: String,
    pub directory: String,
    /// 1 for the child of a conversation, 2 for a child of such a child.
    pub depth: u32,
    pub is_forked: bool,
    /// The failed or cancelled task that this one repeats.
    pub retry_of: Option<TaskId>,
}

/// Who launched a task and is notified of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    pub session: SessionId,
    /// Empty when the parent is not a conversation.
    pub message: String,
    pub agent: String,
    /// Where the parent lives; [`MAILBOX`] when it is not a conversation.
    pub host: String,
}

/// What a task may use up, each part optional (T13).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    pub wall_seconds: Option<u64>,
    pub tokens: Option<u64>,
    pub cost: Option<f64>,
    pub tool_calls: Option<u64>,
}

impl Budget {
    /// The first limit that is reached, as the error of the run. Figures that a host does not report count
    /// as zero: its tasks cannot be held to such a limit.
    pub fn reached(&self, progress: &Progress, wall: std::time::Duration) -> Option<String> {
        let Budget { wall_seconds, tokens, cost, tool_calls } = self;
        if let Some(limit) = wall_seconds.filter(|limit| wall.as_secs() >= *limit) {
            return Some(format!("budget reached: {limit} s of wall time"));
        }
        if let Some(limit) = tokens.filter(|limit| progress.tokens.unwrap_or(0) >= *limit) {
            return Some(format!("budget reached: {limit} tokens"));
        }
        if let Some(limit) = cost.filter(|limit| progress.cost.unwrap_or(0.0) >= *limit) {
            return Some(format!("budget reached: cost of {limit}"));
        }
        if let Some(limit) = tool_calls.filter(|limit| u64::from(progress.tool_calls) >= *limit) {
            return Some(format!("budget reached: {limit} tool calls"));
        }
        None
    }

    pub fn is_empty(&self) -> bool {
        *self == Budget::default()
    }
}

impl Task {
    pub fn status(&self) -> Status {
        self.state.status()
    }

    pub fn is_live(&self) -> bool {
        self.status().is_live()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reaching_a_budget_names_the_limit() {
        let spent = |tokens, cost, tool_calls| Progress {
            tokens: Some(tokens),
            cost: Some(cost),
            tool_calls,
            ..Progress::new(Timestamp::from_millis(0))
        };
        let check = |budget: Budget, progress, wall, expected: Option<&str>| {
            let reached = budget.reached(&progress, Duration::from_secs(wall));
            assert_eq!(reached.as_deref(), expected, "{budget:?}");
        };
        let none = Budget::default();
        check(none.clone(), spent(u64::MAX, 1e9, 1_000), 1_000_000, None);
        let wall = Budget { wall_seconds: Some(60), ..none.clone() };
        check(wall.clone(), spent(0, 0.0, 0), 59, None);
        check(wall, spent(0, 0.0, 0), 60, Some("budget reached: 60 s of wall time"));
        let tokens = Budget { tokens: Some(100), ..none.clone() };
        check(tokens.clone(), spent(99, 0.0, 0), 0, None);
        check(tokens, spent(100, 0.0, 0), 0, Some("budget reached: 100 tokens"));
        let cost = Budget { cost: Some(0.5), ..none.clone() };
        check(cost.clone(), spent(0, 0.49, 0), 0, None);
        check(cost, spent(0, 0.5, 0), 0, Some("budget reached: cost of 0.5"));
        let calls = Budget { tool_calls: Some(3), ..none };
        check(calls.clone(), spent(0, 0.0, 2), 0, None);
        check(calls, spent(0, 0.0, 3), 0, Some("budget reached: 3 tool calls"));
    }
}
