//! Facts of a task that are JSON in a column. Their form in the database has types of its own, so that neither a field
//! of the domain nor one of the API can be renamed without a look at the files of users. Triggers count
//! `$.toolCallsByName` of the column `progress` (`migrations/`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::de::StrRead;
use serde_json::{Deserializer, Serializer};

use super::Error;
use crate::task::{Budget, Phase, Progress, Timestamp};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Progress", rename_all = "camelCase")]
struct StoredProgress {
    tool_calls: u32,
    tool_calls_by_name: BTreeMap<String, u32>,
    last_tools: Vec<String>,
    last_update: Timestamp,
    phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Also in the intent of a launch.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Budget")]
pub struct StoredBudget {
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<u64>,
}

pub(super) fn progress(text: &str) -> Result<Progress, Error> {
    read("progress", text, |json| StoredProgress::deserialize(json))
}

pub(super) fn progress_text(progress: &Progress) -> String {
    written(|json| StoredProgress::serialize(progress, json))
}

pub(super) fn budget(text: &str) -> Result<Budget, Error> {
    read("budget", text, |json| StoredBudget::deserialize(json))
}

pub(super) fn budget_text(budget: &Budget) -> String {
    written(|json| StoredBudget::serialize(budget, json))
}

fn read<T>(
    column: &'static str,
    text: &str,
    parse: impl FnOnce(&mut Deserializer<StrRead<'_>>) -> serde_json::Result<T>,
) -> Result<T, Error> {
    let mut json = Deserializer::from_str(text);
    let read = parse(&mut json).and_then(|value| json.end().map(|()| value));
    read.map_err(|_| Error::Unreadable { column })
}

fn written(write: impl FnOnce(&mut Serializer<&mut Vec<u8>>) -> serde_json::Result<()>) -> String {
    let mut text = Vec::new();
    write(&mut Serializer::new(&mut text)).expect("our own types are JSON");
    String::from_utf8(text).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_budget_have_in_the_database_the_form_that_files_of_users_have() {
        let stored = r#"{"toolCalls":3,"toolCallsByName":{"read":3},"lastTools":["read"],"lastUpdate":"1970-01-01T00:00:00.005Z","phase":"tool","lastMessage":"so","lastMessageAt":"1970-01-01T00:00:00.004Z","tokens":7,"cost":0.5,"detail":"why"}"#;
        let expected = Progress {
            tool_calls: 3,
            tool_calls_by_name: BTreeMap::from([("read".to_owned(), 3)]),
            last_tools: vec!["read".to_owned()],
            last_update: Timestamp::from_millis(5),
            phase: Phase::Tool,
            last_message: Some("so".to_owned()),
            last_message_at: Some(Timestamp::from_millis(4)),
            tokens: Some(7),
            cost: Some(0.5),
            detail: Some("why".to_owned()),
        };
        assert_eq!(progress_text(&expected), stored);
        assert_eq!(progress(stored).unwrap(), expected);
        assert!(progress(&format!("{stored}!")).is_err());
        let fresh = Progress::new(Timestamp::EPOCH);
        assert_eq!(progress(&progress_text(&fresh)).unwrap(), fresh);

        let stored = r#"{"wall_seconds":1,"tokens":2,"cost":0.5,"tool_calls":3}"#;
        let expected =
            Budget { wall_seconds: Some(1), tokens: Some(2), cost: Some(0.5), tool_calls: Some(3) };
        assert_eq!(budget_text(&expected), stored);
        assert_eq!(budget(stored).unwrap(), expected);
        assert_eq!(budget_text(&Budget::default()), "{}");
        assert_eq!(budget("{}").unwrap(), Budget::default());
    }
}
