//! The JSON of a task (H2). Here and not in `wire.rs`, because the store caches it: a page of ended tasks is
//! sent from stored JSON, which is several times faster than building it from rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lifecycle::Status;
use super::{Budget, Phase, Progress, Task, TaskId, Timestamp};
use crate::text;

/// A task (H2). Additions may follow; none of these fields may change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
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
    #[schema(value_type = String)]
    pub status: Status,
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_retrieved_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleared_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// There is more of the result than is shown here; the task by itself has it whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub batch_id: String,
    pub resume_count: u32,
    pub is_forked: bool,
    /// `sessionID` of the failed or cancelled task that this one repeats; it may have been pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// `sessionID` of the newest task that repeats this one; it may have been pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried_by: Option<String>,
    #[serde(default, skip_serializing_if = "Budget::is_empty", with = "BudgetView")]
    #[schema(value_type = BudgetView)]
    pub budget: Budget,
    #[serde(with = "ProgressView")]
    #[schema(value_type = ProgressView)]
    pub progress: Progress,
}

/// What a task may use up, each part optional (T13).
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Budget", default)]
#[schema(as = Budget)]
struct BudgetView {
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<u64>,
}

/// The same where there may be none.
pub(super) mod optional_budget {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Budget, BudgetView};

    #[derive(Serialize, Deserialize)]
    struct Present(#[serde(with = "BudgetView")] Budget);

    pub(in crate::task) fn serialize<S: Serializer>(
        budget: &Option<Budget>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        budget.clone().map(Present).serialize(to)
    }

    pub(in crate::task) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Budget>, D::Error> {
        Ok(Option::deserialize(from)?.map(|Present(budget)| budget))
    }
}

/// The `progress` of a task on the wire (H2).
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(remote = "Progress", rename_all = "camelCase")]
#[schema(as = Progress)]
struct ProgressView {
    tool_calls: u32,
    tool_calls_by_name: BTreeMap<String, u32>,
    /// The names of the last three calls, oldest first.
    last_tools: Vec<String>,
    /// When the agent was last seen doing something.
    last_update: Timestamp,
    phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message_at: Option<Timestamp>,
    /// All tokens of all runs, as the host counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    /// What the phase is about: the question asked, the host's retry message.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    detail: Option<String>,
}

/// Cache version of this JSON in the store, below 1,000. JSON stored under another version is built again
/// from its rows: raise it with every change of what [`Brief::view`] writes, or a new field is missing in
/// the whole history.
///
/// Still 1 with `retryOf` and `retriedBy`: tasks of before have neither, and a retry writes the JSON again.
const SCHEMA: i64 = 1;

const DEFAULT_CHARACTERS: usize = 8_000;

/// A task as lists and events show it: with the beginning of a long result (T19), because a page of
/// them must not weigh gigabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    pub result_characters: usize,
}

impl Brief {
    pub fn view(self, task: &Task) -> TaskView {
        let mut view = TaskView::with_result(task, None);
        if let Some(result) = task.state.result() {
            let head = text::head(result, self.result_characters);
            view.result = Some(head.to_owned());
            view.result_truncated = head.len() < result.len();
        }
        view
    }

    /// The cache key that a stored view is marked with: the version of the JSON and the length of its
    /// result in one number, so that a view of another length is built again as well. With the default
    /// length it is the bare version, as it was before the length could be set: views stored until then
    /// stay valid.
    pub fn schema(self) -> i64 {
        // A version below 1,000 leaves each length a range of numbers of its own.
        let beyond_default = self.result_characters as i64 - DEFAULT_CHARACTERS as i64;
        beyond_default * 1_000 + SCHEMA
    }
}

impl Default for Brief {
    fn default() -> Brief {
        Brief { result_characters: DEFAULT_CHARACTERS }
    }
}

impl TaskView {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("our own types are JSON")
    }

    fn with_result(task: &Task, result: Option<String>) -> TaskView {
        TaskView {
            session_id: task.id.to_string(),
            short_id: task.short_id.to_string(),
            parent_session_id: task.origin.parent.session.to_string(),
            parent_message_id: task.origin.parent.message.clone(),
            parent_agent: task.origin.parent.agent.clone(),
            parent_host: task.origin.parent.host.clone(),
            host: task.origin.host.clone(),
            host_instance: task.origin.host_instance.clone(),
            directory: task.origin.directory.clone(),
            description: task.order.description.clone(),
            prompt: task.order.prompt.clone(),
            agent: task.order.agent.clone(),
            model: task.order.model.clone(),
            status: task.state.status(),
            started_at: task.started_at,
            completed_at: task.completed_at,
            result_retrieved_at: task.result_retrieved_at,
            cleared_at: task.cleared_at,
            result,
            result_truncated: false,
            error: task.state.error().map(str::to_owned),
            batch_id: task.batch.to_string(),
            resume_count: task.run,
            is_forked: task.origin.is_forked,
            retry_of: task.origin.retry_of.as_ref().map(TaskId::to_string),
            retried_by: task.retried_by.as_ref().map(TaskId::to_string),
            budget: task.order.budget.clone(),
            progress: task.progress.clone(),
        }
    }
}

impl From<&Task> for TaskView {
    fn from(task: &Task) -> TaskView {
        TaskView::with_result(task, task.state.result().map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_schema_number_is_raised_with_every_change_of_the_fields() {
        let document = serde_json::to_value(TaskView::schema()).unwrap();
        let mut fields: Vec<&str> =
            document["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let known = "agent batchId budget clearedAt completedAt description directory error host \
                     hostInstance isForked model parentAgent parentHost parentMessageID \
                     parentSessionID progress prompt result resultRetrievedAt resultTruncated \
                     resumeCount retriedBy retryOf sessionID shortID startedAt status";
        assert_eq!(
            (fields.join(" ").as_str(), SCHEMA),
            (known, 1),
            "a change of either needs both"
        );
    }

    #[test]
    fn another_result_length_gives_a_stored_view_another_schema_number() {
        let schema = |result_characters| Brief { result_characters }.schema();
        assert_eq!(schema(8_000), SCHEMA);
        assert_eq!(Brief::default().schema(), SCHEMA);
        let others: std::collections::BTreeSet<i64> = (1..=16_000).map(schema).collect();
        assert_eq!(others.len(), 16_000);
    }
}
