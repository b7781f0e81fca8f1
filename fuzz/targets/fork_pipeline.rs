//! Any conversation of a sensible shape: the rules hold, whatever is said, called and answered.

#![no_main]

#[path = "../../src/fork/mod.rs"]
#[allow(dead_code, unused_imports)]
mod fork;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

#[derive(Arbitrary, Debug)]
enum Utterance<'a> {
    Text { text: &'a str, times: u16 },
    Call { tool: &'a str, arguments: &'a str, result: Outcome<'a> },
    Apart { tool: &'a str, result: &'a str, times: u16, answered: bool },
    Several(Vec<(&'a str, u16)>),
    Marker,
    Summary { failed: bool },
    Thought(&'a str),
}

#[derive(Arbitrary, Debug)]
enum Outcome<'a> {
    None,
    Output { text: &'a str, times: u16 },
    Error(&'a str),
    Cleared,
}

/// Around the limits of results; larger ones only take time.
fn repeated(text: &str, times: u16) -> String {
    text.repeat(usize::from(times).min(8_000 / text.len().max(1)))
}

/// Around the budget, now and then.
fn paragraph(text: &str, times: u16) -> String {
    let most = if times.is_multiple_of(64) { 300_000 } else { 2_000 };
    text.repeat(usize::from(times).min(most / text.len().max(1)))
}

fn tool(id: String, name: &str, state: Value) -> Value {
    json!({"type": "tool", "callID": id, "tool": name, "state": state})
}

fn message(role: &str, parts: Value) -> Value {
    json!({"info": {"role": role}, "parts": parts})
}

/// The messages, and a mark that shows them when they have something to show.
fn messages(n: usize, said: &Utterance<'_>) -> (Vec<Value>, Option<String>) {
    let id = format!("id{n}.");
    let mark = Some(format!(" {id}]"));
    match said {
        Utterance::Text { text, times } => {
            let text = format!("<{n}>{}", paragraph(text, *times));
            let part = json!([{"type": "text", "text": text}]);
            (vec![message("user", part)], Some(format!("<{n}>")))
        }
        Utterance::Call { tool: name, arguments, result } => {
            let mut state = json!({"input": {"of": arguments}});
            match result {
                Outcome::None => {}
                Outcome::Output { text, times } => state["output"] = json!(repeated(text, *times)),
                Outcome::Error(text) => state["error"] = json!(text),
                Outcome::Cleared => {
                    state["output"] = json!("old");
                    state["time"] = json!({"compacted": 1});
                }
            }
            (vec![message("assistant", json!([tool(id, name, state)]))], mark)
        }
        Utterance::Apart { tool, result, times, answered } => {
            let call = json!({"type": "tool_use", "id": id, "name": tool, "input": {}});
            let content = repeated(result, *times);
            let answer = json!({"type": "tool_result", "tool_use_id": id, "content": content});
            let mut both = vec![json!({"role": "assistant", "content": [call]})];
            both.extend(answered.then(|| json!({"role": "user", "content": [answer]})));
            (both, mark)
        }
        Utterance::Several(outputs) => {
            let part = |(k, (text, times)): (usize, &(&str, u16))| {
                tool(format!("{k}"), "bash", json!({"output": paragraph(text, *times)}))
            };
            let mut parts: Vec<Value> = outputs.iter().take(50).enumerate().map(part).collect();
            parts.push(tool(id, "read", json!({"output": "the last"})));
            (vec![message("assistant", json!(parts))], mark)
        }
        Utterance::Marker => (vec![message("user", json!([{"type": "compaction"}]))], None),
        Utterance::Summary { failed } => {
            let error = failed.then(|| json!({"name": "APIError"}));
            let info = json!({"role": "assistant", "summary": true, "error": error});
            let text = format!("<{n}>");
            let parts = json!([{"type": "text", "text": text}]);
            (vec![json!({"info": info, "parts": parts})], Some(text))
        }
        Utterance::Thought(text) => {
            (vec![message("assistant", json!([{"type": "reasoning", "text": text}]))], None)
        }
    }
}

fuzz_target!(|said: Vec<Utterance<'_>>| {
    let (mut transcript, mut marks) = (Vec::new(), Vec::new());
    for (n, said) in said.iter().enumerate().take(200) {
        let (more, mark) = messages(n, said);
        transcript.extend(more);
        marks.extend(mark);
    }
    let transcript = json!(transcript);
    let inherited = fork::inherit(&transcript.to_string()).expect("it is a transcript");
    let (context, counts) = (&inherited.context, inherited.counts);

    assert!(counts.characters <= fork::MOST_CHARACTERS);
    assert_eq!(counts.messages, counts.compacted.unwrap_or(0) + counts.removed + counts.kept);
    assert_eq!(counts.messages, marks.len());
    // The newest ones, all of them in their order, and no others of ours in between.
    let kept = &marks[marks.len() - counts.kept..];
    assert!(kept.iter().all(|mark| context.contains(mark)), "{kept:?}");
    assert_eq!(kept.is_empty(), marks.is_empty(), "the newest is never lost");
    let pretty = serde_json::to_string_pretty(&transcript).expect("it is JSON");
    assert_eq!(fork::inherit(&pretty).ok(), Some(inherited), "stable");
});
