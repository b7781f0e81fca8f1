//! What transcripts say, message by message.

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
fn an_answer_that_was_begun_before_the_message_arrived_is_not_an_answer_to_it() {
    let mut late = user("p1");
    late.info.time.created = 3;
    check(&[late.clone(), done("unseen")], Outcome::Unanswered);
    let seen = assistant("seen", json!({"finish": "stop", "time": {"created": 3, "completed": 3}}));
    check(&[late.clone(), done("unseen"), seen.clone()], answered("seen"));
    // A clock that was set back proves nothing when the answer names the message.
    let named = json!({"finish": "stop", "parentID": "p1", "time": {"created": 2, "completed": 2}});
    check(&[late.clone(), assistant("named", named.clone())], answered("named"));
    check(&[late, assistant("named", named), done("last")], answered("last"));
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
fn the_outcome_of_a_run_follows_from_its_last_message() {
    let last = |extra| [user("p1"), assistant("half", extra)];
    let partial = Some(Arc::from("half"));
    let error = |name: &str, data: Value| json!({"error": {"name": name, "data": data}});
    check(&last(error("MessageAbortedError", json!({}))), Outcome::Aborted);
    let failed = |error: &str| Outcome::Failed { error: error.into(), partial: partial.clone() };
    check(&last(error("APIError", json!({"message": "no credit"}))), failed("no credit"));
    check(&last(error("UnknownError", json!({}))), failed("UnknownError"));
    let completed = json!({"time": {"created": 2, "completed": 3}});
    check(&last(completed), Outcome::Aborted);
    check(&last(json!({})), Outcome::Unfinished { partial: partial.clone() });
    let length = json!({"finish": "length", "time": {"created": 2, "completed": 3}});
    check(&last(length), answered("half\n\n[cut off: the model reached its output limit]"));
    let filtered = json!({"finish": "content-filter", "time": {"created": 2, "completed": 3}});
    check(&last(filtered), failed("the answer was stopped by the provider's content filter"));
    let refused = Outcome::Refused { what: "read /x".into(), partial: partial.clone() };
    check(&last(error("PermissionRefusedError", json!({"message": "read /x"}))), refused);
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
    let state =
        ToolState { status: CallStatus::from(status.to_owned()), input, output: None, error };
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
    // Some providers restart their ids in every answer: (message, call) is one call.
    let mut two = assistant(
        "said",
        json!({"cost": 0.5, "tokens": {"reasoning": 1, "cache": {"read": 100, "write": 20}}}),
    );
    two.info.id = "b".into();
    two.parts.push(tool("c1", "grep", "completed", json!(1)));
    two.parts.push(tool("c2", "grep", "completed", json!(1)));
    let expected = Figures {
        tool_calls: 5,
        tool_calls_by_name: [("bash", 1), ("grep", 2), ("read", 2)]
            .map(|(name, n)| (name.to_owned(), n))
            .into(),
        last_tools: vec!["bash".into(), "grep".into(), "grep".into()],
        last_message: Some("said".into()),
        last_message_at: Some(2),
        tokens: Some(136),
        cost: Some(0.75),
        repeated: 2,
    };
    assert_eq!(figures(&[user("p1"), one, two]), expected);
}

#[test]
fn parts_of_unknown_types_are_left_out_of_the_text() {
    let mixed = message(json!({
        "info": {"id": "a", "role": "user", "time": {"created": 1}, "summary": {"diffs": []},
                 "model": {"providerID": "x"}},
        "parts": [{"type": "step-start"}, {"type": "file", "url": "x"},
                  {"type": "text", "text": "hello"}, {"type": "patch", "hash": "y"}],
    }));
    assert_eq!(mixed.text(), "hello");
}

#[test]
fn only_the_end_of_a_long_message_is_shown_as_the_last_one() {
    for (text, characters) in [("", 1), ("x", 1), ("short", 5), (&"ä".repeat(2_000), 2_000)] {
        assert_eq!(newest_part(text, characters), text);
    }
    assert_eq!(newest_part("ends", 1), "…");
    assert_eq!(newest_part("it ends", 5), "…ends");
    for text in ["x".repeat(2_001), "ä€😀".repeat(5_000), "x".repeat(1 << 20)] {
        let shown = newest_part(&text, 2_000);
        assert_eq!(shown.chars().count(), 2_000);
        let end = shown.strip_prefix('…').unwrap();
        assert!(text.ends_with(end));
    }
}
