//! Messages, parts and tool calls, the same for every host (the shape is OpenCode's), and what a
//! run's part of a transcript says about its end. Pure: it reads messages, it fetches none.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub info: Info,
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    pub id: String,
    #[serde(rename = "sessionID", default)]
    pub session: String,
    pub role: Role,
    pub time: Time,
    #[serde(rename = "parentID", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// `true` marks a compaction summary; on user messages hosts put other things here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Value>,
}

/// Milliseconds since 1970, as hosts write them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    #[serde(default)]
    pub created: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub reasoning: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub name: String,
    #[serde(default)]
    pub data: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Part {
    Text {
        #[serde(default)]
        id: String,
        text: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        synthetic: bool,
    },
    Reasoning {
        text: String,
    },
    Tool {
        #[serde(rename = "callID")]
        call: String,
        tool: String,
        state: ToolState,
    },
    Compaction {
        #[serde(default)]
        auto: bool,
    },
    /// Anything we have no use for: files, steps, snapshots.
    #[serde(other)]
    Other,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolState {
    pub status: String,
    #[serde(default)]
    pub input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a transcript says about one run. Only meaningful while the session is idle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The run's prompt is not in the conversation.
    PromptMissing,
    /// The prompt is there and no answer has begun.
    Unanswered,
    /// The last answer was begun and neither finished nor failed.
    Unfinished {
        partial: Option<String>,
    },
    Answered {
        text: String,
    },
    Failed {
        error: String,
        partial: Option<String>,
    },
    /// Ended after tool calls that were to be followed by more: something was refused.
    Refused {
        what: String,
        partial: Option<String>,
    },
    Aborted,
}

/// What can be counted in a transcript.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub tool_calls: u32,
    pub tool_calls_by_name: BTreeMap<String, u32>,
    pub last_tools: Vec<String>,
    pub last_message: Option<String>,
    pub last_message_at: Option<i64>,
    pub tokens: Option<u64>,
    pub cost: Option<f64>,
    /// How often the newest tool call stands at the end in a row, arguments and all (T14).
    pub repeated: u32,
}

impl Message {
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } if !text.is_empty() => Some(text.as_str()),
            Part::Text { .. }
            | Part::Reasoning { .. }
            | Part::Tool { .. }
            | Part::Compaction { .. }
            | Part::Other => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    fn is_answer(&self) -> bool {
        self.info.role == Role::Assistant && self.info.summary != Some(Value::Bool(true))
    }
}

impl Failure {
    pub fn message(&self) -> String {
        match self.data.get("message").and_then(Value::as_str) {
            Some(message) if !message.is_empty() => message.to_owned(),
            Some(_) | None => self.name.clone(),
        }
    }
}

/// The answer of a run is the last assistant message after its prompt and before the next run's
/// prompt that is not a compaction summary (T6): merged prompts and auto-compaction answer a
/// later message than ours, so `parentID` does not decide.
pub fn outcome(messages: &[Message], prompt: &str, next_prompt: Option<&str>) -> Outcome {
    let Some(start) = messages.iter().position(|message| message.info.id == prompt) else {
        return Outcome::PromptMissing;
    };
    let run = messages[start + 1..]
        .iter()
        .take_while(|message| next_prompt.is_none_or(|next| message.info.id != next));
    match run.filter(|message| message.is_answer()).last() {
        None => Outcome::Unanswered,
        Some(answer) => judge(answer),
    }
}

fn judge(answer: &Message) -> Outcome {
    let Info { finish, error, time, .. } = &answer.info;
    let partial = Some(answer.text()).filter(|text| !text.is_empty());
    match (error, finish.as_deref(), time.completed) {
        (Some(error), _, _) if error.name == "MessageAbortedError" => Outcome::Aborted,
        (Some(error), _, _) => Outcome::Failed { error: error.message(), partial },
        (None, Some("tool-calls"), _) if is_waiting(answer) => Outcome::Unfinished { partial },
        (None, Some("tool-calls"), _) => Outcome::Refused { what: refused(answer), partial },
        (None, Some(_), Some(_)) => Outcome::Answered { text: answer.text() },
        // Completed without a finish: aborted while the host was waiting to retry.
        (None, None, Some(_)) => Outcome::Aborted,
        (None, _, None) => Outcome::Unfinished { partial },
    }
}

/// A call in it has not been answered: somebody was cut off in the middle.
fn is_waiting(answer: &Message) -> bool {
    answer.parts.iter().any(|part| match part {
        Part::Tool { state, .. } => matches!(state.status.as_str(), "pending" | "running"),
        Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => false,
    })
}

/// The last call that did not succeed, as `tool: why`.
fn refused(answer: &Message) -> String {
    let failed = answer.parts.iter().rev().find_map(|part| match part {
        Part::Tool { tool, state, .. } if state.status != "completed" => Some((tool, state)),
        Part::Tool { .. }
        | Part::Text { .. }
        | Part::Reasoning { .. }
        | Part::Compaction { .. }
        | Part::Other => None,
    });
    match failed {
        Some((tool, ToolState { error: Some(error), .. })) => format!("{tool}: {error}"),
        Some((tool, _)) => tool.clone(),
        None => "a permission or question".to_owned(),
    }
}

/// Counts distinct calls, not events: hosts update a tool part several times.
pub fn figures(messages: &[Message]) -> Figures {
    let mut figures = Figures::default();
    let mut seen = HashSet::new();
    let mut newest: Option<(&str, &Value)> = None;
    for message in messages.iter().filter(|message| message.info.role == Role::Assistant) {
        let Info { tokens, cost, time, .. } = &message.info;
        if let Some(Tokens { input, output, reasoning }) = tokens {
            *figures.tokens.get_or_insert(0) += input + output + reasoning;
        }
        if let Some(cost) = cost {
            *figures.cost.get_or_insert(0.0) += cost;
        }
        for part in &message.parts {
            match part {
                Part::Tool { call, tool, state } if seen.insert(call.as_str()) => {
                    figures.tool_calls += 1;
                    *figures.tool_calls_by_name.entry(tool.clone()).or_default() += 1;
                    figures.last_tools.push(tool.clone());
                    let same = newest == Some((tool.as_str(), &state.input));
                    figures.repeated = if same { figures.repeated + 1 } else { 1 };
                    newest = Some((tool, &state.input));
                }
                Part::Text { text, .. } if !text.is_empty() => {
                    figures.last_message = Some(text.clone());
                    figures.last_message_at = Some(time.completed.unwrap_or(time.created));
                }
                Part::Tool { .. }
                | Part::Text { .. }
                | Part::Reasoning { .. }
                | Part::Compaction { .. }
                | Part::Other => {}
            }
        }
    }
    let surplus = figures.last_tools.len().saturating_sub(3);
    figures.last_tools.drain(..surplus);
    figures
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(value: Value) -> Message {
        serde_json::from_value(value).unwrap()
    }

    fn user(id: &str) -> Message {
        message(json!({"info": {"id": id, "role": "user", "time": {"created": 1}}, "parts": []}))
    }

    /// An assistant message with this text and whatever else its `info` has.
    fn assistant(text: &str, extra: Value) -> Message {
        let mut info = json!({"id": "a", "role": "assistant", "time": {"created": 2}});
        for (name, value) in extra.as_object().unwrap() {
            info[name] = value.clone();
        }
        message(json!({"info": info, "parts": [{"type": "text", "text": text}]}))
    }

    fn done(text: &str) -> Message {
        assistant(text, json!({"finish": "stop", "time": {"created": 2, "completed": 3}}))
    }

    fn check(messages: &[Message], expected: Outcome) {
        assert_eq!(outcome(messages, "p1", Some("p2")), expected);
    }

    fn answered(text: &str) -> Outcome {
        Outcome::Answered { text: text.into() }
    }

    #[test]
    fn the_answer_of_a_run_is_the_last_assistant_message_between_two_prompts() {
        check(&[], Outcome::PromptMissing);
        check(&[user("p0"), done("old")], Outcome::PromptMissing);
        check(&[user("p0"), done("old"), user("p1")], Outcome::Unanswered);
        check(&[user("p1"), done("one"), done("two")], answered("two"));
        check(&[user("p1"), done("one"), user("p2"), done("later")], answered("one"));
        // Merged prompts: the answer belongs to a later message than ours.
        check(&[user("p1"), user("somebody"), done("both")], answered("both"));
    }

    #[test]
    fn a_compaction_summary_is_no_answer() {
        let summary = assistant(
            "summary",
            json!({"summary": true, "finish": "stop", "time": {"created": 2, "completed": 3}}),
        );
        check(&[user("p1"), summary.clone()], Outcome::Unanswered);
        check(&[user("p1"), summary.clone(), user("go on"), done("real")], answered("real"));
        check(&[user("p1"), done("real"), summary], answered("real"));
    }

    #[test]
    fn how_the_last_message_says_what_became_of_the_run() {
        let last = |extra| [user("p1"), assistant("half", extra)];
        let partial = Some("half".to_owned());
        let error = |name: &str, data: Value| json!({"error": {"name": name, "data": data}});
        check(&last(error("MessageAbortedError", json!({}))), Outcome::Aborted);
        let failed =
            |error: &str| Outcome::Failed { error: error.into(), partial: partial.clone() };
        check(&last(error("APIError", json!({"message": "no credit"}))), failed("no credit"));
        check(&last(error("UnknownError", json!({}))), failed("UnknownError"));
        let completed = json!({"time": {"created": 2, "completed": 3}});
        check(&last(completed), Outcome::Aborted);
        check(&last(json!({})), Outcome::Unfinished { partial: partial.clone() });
        let length = json!({"finish": "length", "time": {"created": 2, "completed": 3}});
        check(&last(length), answered("half"));
        let nothing_refused = Outcome::Refused { what: "a permission or question".into(), partial };
        check(&last(json!({"finish": "tool-calls"})), nothing_refused);
    }

    #[test]
    fn a_refused_call_is_named() {
        let mut answer = assistant("", json!({"finish": "tool-calls"}));
        answer.parts.push(tool("c1", "read", "completed", json!({})));
        answer.parts.push(tool("c2", "bash", "error", json!({})));
        let what = "bash: because".to_owned();
        check(&[user("p1"), answer], Outcome::Refused { what, partial: None });
    }

    fn tool(call: &str, tool: &str, status: &str, input: Value) -> Part {
        let error = (status == "error").then(|| "because".to_owned());
        let state = ToolState { status: status.into(), input, output: None, error };
        Part::Tool { call: call.into(), tool: tool.into(), state }
    }

    #[test]
    fn tool_calls_are_counted_by_distinct_call_and_not_by_update() {
        let mut one = assistant("", json!({"cost": 0.25, "tokens": {"input": 10, "output": 5}}));
        one.parts = vec![
            tool("c1", "read", "running", json!({"path": "a"})),
            tool("c1", "read", "completed", json!({"path": "a"})),
            tool("c2", "read", "completed", json!({"path": "a"})),
            tool("c3", "bash", "completed", json!({})),
        ];
        let mut two = assistant("said", json!({"cost": 0.5, "tokens": {"reasoning": 1}}));
        two.parts.push(tool("c4", "grep", "completed", json!(1)));
        two.parts.push(tool("c5", "grep", "completed", json!(1)));
        let expected = Figures {
            tool_calls: 5,
            tool_calls_by_name: [("bash", 1), ("grep", 2), ("read", 2)]
                .map(|(name, n)| (name.to_owned(), n))
                .into(),
            last_tools: vec!["bash".into(), "grep".into(), "grep".into()],
            last_message: Some("said".into()),
            last_message_at: Some(2),
            tokens: Some(16),
            cost: Some(0.75),
            repeated: 2,
        };
        assert_eq!(figures(&[user("p1"), one, two]), expected);
    }

    #[test]
    fn parts_we_have_no_use_for_are_kept_out_of_the_way() {
        let mixed = message(json!({
            "info": {"id": "a", "role": "user", "time": {"created": 1}, "summary": {"diffs": []},
                     "model": {"providerID": "x"}},
            "parts": [{"type": "step-start"}, {"type": "file", "url": "x"},
                      {"type": "text", "text": "hello"}, {"type": "patch", "hash": "y"}],
        }));
        assert_eq!(mixed.text(), "hello");
    }
}
