//! The pipeline as a whole: tables for the rules that need more than one stage, and properties that
//! hold for any conversation.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::block::CLEARED;
use super::*;

fn inherited(transcript: &Value) -> Inheritance {
    inherit(&transcript.to_string()).unwrap()
}

fn context(transcript: &Value) -> String {
    inherited(transcript).context
}

fn user(text: &str) -> Value {
    json!({"info": {"role": "user"}, "parts": [{"type": "text", "text": text}]})
}

fn assistant(parts: Value) -> Value {
    json!({"info": {"role": "assistant"}, "parts": parts})
}

fn tool(id: &str, name: &str, state: Value) -> Value {
    json!({"type": "tool", "callID": id, "tool": name, "state": state})
}

/// This many results of a tool, oldest first, all with this text and these arguments.
fn results(n: usize, name: &str, input: &Value, output: &str) -> Value {
    let state = json!({"status": "completed", "input": input, "output": output});
    Value::from_iter(
        (0..n).map(|n| assistant(json!([tool(&format!("c{n}"), name, state.clone())]))),
    )
}

/// The oldest block of a context.
fn oldest(context: &str) -> &str {
    context.split("\n\n[").next().unwrap()
}

#[test]
fn real_messages_of_opencode_are_read() {
    let tools = inherit(include_str!("samples/tools.json")).unwrap();
    insta::assert_snapshot!("tools", tools.context);
    let compacted = inherit(include_str!("samples/compaction.json")).unwrap();
    insta::assert_snapshot!("compaction", compacted.context);
    assert!(compacted.counts.compacted.is_some(), "{:?}", compacted.counts);
}

#[test]
fn every_message_is_a_block_with_its_role_text_calls_and_results() {
    let transcript = json!([
        user("Where is the login?"),
        assistant(json!([
            {"type": "step-start"},
            {"type": "reasoning", "text": "a secret thought"},
            {"type": "text", "text": "I look."},
            tool("call_1", "grep", json!({"input": {"pattern": "login"}, "output": "src/a.rs:1"})),
            tool("call_2", "read", json!({"input": {"path": "b"}, "error": "no such file"})),
            {"type": "text", "text": "hidden", "ignored": true},
            tool("call_3", "asyncagents_task", json!({"status": "running", "input": {"fork": true}})),
            {"type": "step-finish"},
        ])),
        {"info": {"role": "user"}, "parts": [
            {"type": "text", "text": "seen", "synthetic": true}, {"type": "file", "url": "x"}]},
    ]);
    assert_eq!(
        context(&transcript),
        "[User]\nWhere is the login?\n\n\
         [Assistant]\nI look.\n\
         [Tool: grep call_1] {\"pattern\":\"login\"}\n[Tool result]\nsrc/a.rs:1\n\
         [Tool: read call_2] {\"path\":\"b\"}\n[Tool result]\nno such file\n\
         [Tool: asyncagents_task call_3] {\"fork\":true}\n[No tool result]\n\n\
         [User]\nseen"
    );
}

#[test]
fn results_in_a_text_field_are_read_and_unknown_parts_are_noted() {
    let transcript = json!([
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t1", "name": "bash", "input": {}},
            {"type": "tool_use", "id": "t2", "name": "bash", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "text": "one"},
            {"type": "tool_result", "tool_use_id": "t2", "data": "two"},
            {"type": "hologram", "id": "x"},
            {"type": "thinking", "thinking": "hm"}]},
        {"info": {"role": "user"}, "parts": [{"type": "text", "text": "seen"}, 7]},
    ]);
    assert_eq!(
        context(&transcript),
        "[Assistant]\n[Tool: bash t1] {}\n[Tool result]\none\n\
         [Tool: bash t2] {}\n[Tool result]\n[empty, or in a form that is not understood]\n\n\
         [User]\n[A part of the kind `hologram` cannot be understood and is left out]\n\n\
         [User]\nseen\n[A part of the kind `unknown` cannot be understood and is left out]"
    );
}

#[test]
fn results_in_messages_of_their_own_go_to_their_calls() {
    let transcript = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Both."},
            {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
            {"type": "tool_use", "id": "t2", "name": "read", "input": {}},
            {"type": "tool_use", "id": "t3", "name": "read", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "two"}]},
            {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "t9", "content": "whose?"}]},
        {"info": {"role": "assistant"}, "parts": [
            {"type": "tool_use", "id": "t4", "name": "list", "input": null}]},
        {"info": {"role": "user"}, "parts": [{"type": "tool_result", "tool_use_id": "t4"}]},
    ]);
    let inherited = inherited(&transcript);
    assert_eq!(
        inherited.context,
        "[Other]\nBe brief.\n\n\
         [User]\nLook.\n\n\
         [Assistant]\nBoth.\n\
         [Tool: bash t1] {\"command\":\"ls\"}\n[Tool result]\none\n\
         [Tool: read t2] {}\n[Tool result]\ntwo\n\
         [Tool: read t3] {}\n[No tool result]\n\n\
         [User]\n[Tool: unknown t9]\n[Tool result]\nwhose?\n\n\
         [Assistant]\n[Tool: list t4]\n[Tool result]\n[empty, or in a form that is not understood]"
    );
    assert_eq!(inherited.counts.results, PerTier { whole: 4, long: 0, short: 0 });
}

#[test]
fn results_are_cut_by_tier_and_by_method() {
    let check = |n: usize, name: &str, letter: &str, length: usize, expected: &str| {
        let text = context(&results(n, name, &Value::Null, &letter.repeat(length)));
        let result = oldest(&text).split_once("[Tool result]\n").unwrap().1;
        assert_eq!(result, expected, "{n} results of {length} × {letter}");
    };
    for letter in ["a", "é", "🦀"] {
        let of = |n: usize| letter.repeat(n);
        for whole in [2_999, 3_000, 3_001, 20_000] {
            check(5, "read", letter, whole, &of(whole));
        }
        for results in [6, 15] {
            check(results, "read", letter, 2_999, &of(2_999));
            check(results, "read", letter, 3_000, &of(3_000));
            let head = format!("{}\n[1 more character cut]", of(3_000));
            check(results, "read", letter, 3_001, &head);
            let both = format!("{}\n[1 character cut]\n{}", of(2_400), of(600));
            check(results, "bash", letter, 3_001, &both);
        }
        check(16, "read", letter, 499, &of(499));
        check(16, "read", letter, 500, &of(500));
        check(16, "read", letter, 501, &format!("{}\n[1 more character cut]", of(500)));
        let both = format!("{}\n[101 characters cut]\n{}", of(400), of(100));
        check(16, "exec", letter, 601, &both);
    }
    let error = format!("{}error", "-".repeat(500));
    let cut = format!("{}\n[5 characters cut]\n{}error", "-".repeat(400), "-".repeat(95));
    let text = context(&results(16, "read", &Value::Null, &error));
    assert!(oldest(&text).ends_with(&cut), "{}", oldest(&text));
}

#[test]
fn arguments_are_cut_by_tier_and_names_and_ids_never() {
    let name = "n".repeat(700);
    for (calls, limit) in [(5, 500), (6, 200), (15, 200), (16, 100)] {
        for length in [limit - 1, limit, limit + 1] {
            // A JSON text of this many characters, quotes included.
            let input = json!("é".repeat(length - 2));
            let text = context(&results(calls, &name, &input, "x"));
            let expected = match length > limit {
                false => format!("[Tool: {name} c0] {input}\n[Tool result]\nx"),
                true => {
                    let head: String = input.to_string().chars().take(limit).collect();
                    let head = format!("{head}\n[1 more character cut]");
                    format!("[Tool: {name} c0] {head}\n[Tool result]\nx")
                }
            };
            assert_eq!(oldest(&text), format!("[Assistant]\n{expected}"), "{calls} {length}");
        }
    }
}

#[test]
fn g18_cleared_results_pass_untouched() {
    let cleared = context(&results(16, "read", &Value::Null, CLEARED));
    assert!(oldest(&cleared).ends_with(&format!("[Tool result]\n{CLEARED}")));
    // One that merely contains those words is cut like any other.
    let long = format!("{}{CLEARED}{}", "a".repeat(5_000), "b".repeat(5_000));
    let cut = context(&results(16, "read", &Value::Null, &long));
    let expected = format!("[Tool result]\n{}\n[9533 more characters cut]", "a".repeat(500));
    assert!(oldest(&cut).ends_with(&expected), "{}", oldest(&cut));
    let state = json!({"output": "x".repeat(9_000), "time": {"start": 1, "compacted": 2}});
    let transcript = json!([assistant(json!([tool("c", "read", state)]))]);
    assert_eq!(
        context(&transcript),
        format!("[Assistant]\n[Tool: read c]\n[Tool result]\n{CLEARED}")
    );
    let state = json!({"output": "here", "time": {"start": 1, "compacted": null}});
    let transcript = json!([assistant(json!([tool("c", "read", state)]))]);
    assert_eq!(context(&transcript), "[Assistant]\n[Tool: read c]\n[Tool result]\nhere");
}

/// Messages whose blocks, with what is between them, have this many characters each.
fn sized(letter: &str, lengths: &[usize]) -> Value {
    let message = |(n, length): (usize, &usize)| {
        let between = if n == 0 { 0 } else { 2 };
        user(&letter.repeat(length - "[User]\n".len() - between))
    };
    Value::from_iter(lengths.iter().enumerate().map(message))
}

#[test]
fn the_oldest_messages_are_dropped_only_over_two_hundred_thousand_characters() {
    for letter in ["a", "é", "🦀"] {
        let check = |lengths: &[usize], kept: usize, characters: usize| {
            let inherited = inherited(&sized(letter, lengths));
            let counts = Counts {
                messages: lengths.len(),
                compacted: None,
                removed: lengths.len() - kept,
                kept,
                results: PerTier::default(),
                characters,
            };
            assert_eq!(inherited.counts, counts, "{lengths:?}");
            assert_eq!(inherited.context.chars().count(), characters, "{lengths:?}");
        };
        check(&[60_000, 60_000], 2, 120_000);
        check(&[60_000, 60_001], 2, 120_001);
        check(&[100_000, 50_000, 50_000], 3, 200_000);
        // Without the oldest the next one needs nothing in front of it.
        check(&[100_001, 50_000, 50_000], 2, 99_998);
        check(&[100_000, 100_001], 1, 99_999);
        check(&[10, 100_000, 100_001], 2, 199_999);
        check(&[10, 100_000, 99_990], 3, 200_000);
        check(&[200_000], 1, 200_000);
        check(&[&[1_000; 500][..], &[100_000]].concat(), 101, 199_998);
    }
}

#[test]
fn one_oversize_message_is_cut_and_not_kept_whole() {
    let last = inherited(&json!([user("before"), user(&"é".repeat(300_000))]));
    assert_eq!((last.counts.kept, last.counts.removed), (1, 1));
    assert!(last.counts.characters <= MOST_CHARACTERS && last.counts.characters > 199_000);
    assert!(last.context.starts_with("[User]\néé"), "{}", &last.context[..40]);
    let gone = 300_000 - last.context.matches('é').count();
    assert!(last.context.contains(&format!("é\n[{gone} characters cut]\né")));

    // What comes after it is kept, and it gets the rest.
    let middle = inherited(&json!([user("before"), user(&"a".repeat(300_000)), user("after")]));
    assert_eq!((middle.counts.kept, middle.counts.removed), (2, 1));
    assert!(middle.context.ends_with("a\n\n[User]\nafter"));
    assert!(middle.counts.characters <= MOST_CHARACTERS && middle.counts.characters > 199_000);

    // One that would fit by itself is dropped like any other.
    let fits = inherited(&json!([user(&"a".repeat(150_000)), user(&"b".repeat(100_000))]));
    assert_eq!((fits.counts.kept, fits.counts.removed), (1, 1));
    assert!(!fits.context.contains('a'));
}

#[test]
fn an_oversize_message_keeps_names_and_ids_of_the_calls_it_keeps() {
    let output = |n: usize| json!({"output": "x".repeat(n)});
    let parts = json!([
        {"type": "text", "text": "first"},
        tool("c1", "read", output(10)),
        tool("c2", "bash", output(190_000)),
        tool("c3", "read", output(50_000)),
    ]);
    let inherited = inherited(&json!([assistant(parts)]));
    let context = &inherited.context;
    assert!(inherited.counts.characters <= MOST_CHARACTERS);
    let start = "[Assistant]\n[2 earlier parts of this message left out]\n[Tool: bash c2]\n\
                 [Tool result]\nxxx";
    assert!(context.starts_with(start), "{}", &context[..120]);
    let end = format!("xxx\n[Tool: read c3]\n[Tool result]\n{}", "x".repeat(50_000));
    assert!(context.ends_with(&end));
    assert!(context.contains(" characters cut]\nxxx"));
}

#[test]
fn an_empty_history_is_reported_as_empty() {
    let markers = json!([{"info": {"role": "user"}, "parts": [{"type": "compaction"}]}]);
    let thoughts = json!([assistant(json!([{"type": "reasoning", "text": "hm"}])), user("")]);
    for transcript in [json!([]), markers, thoughts] {
        let inherited = inherited(&transcript);
        assert_eq!(inherited.context, "(nothing was said yet)");
        assert_eq!(inherited.counts, Counts::default());
    }
}

#[test]
fn compaction_tiers_and_budget_come_in_this_order() {
    let mut messages = vec![user("before")];
    messages.extend(results(20, "read", &Value::Null, "old").as_array().unwrap().clone());
    messages.push(json!({"info": {"role": "user"}, "parts": [{"type": "compaction"}]}));
    messages.push(json!({"info": {"role": "assistant", "summary": true},
        "parts": [{"type": "text", "text": "the summary"}]}));
    messages.extend(results(6, "read", &Value::Null, "new").as_array().unwrap().clone());
    let inherited = inherited(&json!(messages));
    assert!(inherited.context.starts_with("[Assistant]\nthe summary\n\n"));
    assert!(!inherited.context.contains("old"));
    let expected = Counts {
        messages: 28,
        compacted: Some(21),
        removed: 0,
        kept: 7,
        results: PerTier { whole: 5, long: 1, short: 0 },
        characters: inherited.context.len(),
    };
    assert_eq!(inherited.counts, expected);
}

#[test]
fn input_that_is_not_a_list_of_messages_is_refused() {
    let check = |json: &str, expected: &str| {
        let error = inherit(json).unwrap_err().to_string();
        let start = "the conversation cannot be read as a list of messages: ";
        assert_eq!(error.strip_prefix(start), Some(expected), "{json}");
    };
    check("", "EOF while parsing a value at line 1 column 0");
    check("{}", "invalid type: map, expected a sequence at line 1 column 0");
    check("[1]", "invalid type: integer `1`, expected a message at line 1 column 2");
    check(
        "[{\"parts\": 1}]",
        "invalid type: integer `1`, expected a list of parts at line 1 column 12",
    );
    check("[] x", "trailing characters at line 1 column 4");
}

/// Letters of one to four bytes, with what JSON has to escape.
fn words(longest: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", "\n", "\"", "é", "€", "🦀", "error "]),
        0..longest,
    )
    .prop_map(|letters| letters.concat())
}

#[derive(Clone, Debug)]
enum Utterance {
    Text(String),
    Long(usize),
    Call { name: &'static str, arguments: String, output: Option<String>, repeat: usize },
    Apart { output: String },
    Compaction,
}

fn said() -> impl Strategy<Value = Utterance> {
    let name = || prop::sample::select(vec!["read", "bash", "grep_it", "exec"]);
    prop_oneof![
        4 => words(30).prop_map(Utterance::Text),
        1 => (1_000..250_000usize).prop_map(Utterance::Long),
        4 => (name(), words(200), prop::option::of(words(20)), 1..500usize).prop_map(
            |(name, arguments, output, repeat)| Utterance::Call { name, arguments, output, repeat }
        ),
        2 => words(700).prop_map(|output| Utterance::Apart { output }),
        1 => Just(Utterance::Compaction),
    ]
}

/// A conversation, and the ids of its calls with their names, oldest first.
fn conversation(said: &[Utterance]) -> (Value, Vec<(String, String)>) {
    let mut messages = Vec::new();
    let mut calls = Vec::new();
    for (n, said) in said.iter().enumerate() {
        match said {
            Utterance::Text(text) => messages.push(user(&format!("<{n}>{text}"))),
            Utterance::Long(length) => {
                messages.push(user(&format!("<{n}>{}", "€".repeat(*length))))
            }
            Utterance::Call { name, arguments, output, repeat } => {
                let output = output.as_ref().map(|output| output.repeat(*repeat));
                let state = json!({"input": {"a": arguments}, "output": output});
                messages.push(assistant(json!([tool(&format!("id{n}"), name, state)])));
                calls.push((format!("id{n}"), (*name).to_owned()));
            }
            Utterance::Apart { output } => {
                let id = format!("id{n}");
                let call = json!({"type": "tool_use", "id": id, "name": "apart", "input": n});
                let result = json!({"type": "tool_result", "tool_use_id": id, "content": output});
                messages.push(json!({"role": "assistant", "content": [call]}));
                messages.push(json!({"role": "user", "content": [result]}));
                calls.push((id, "apart".to_owned()));
            }
            Utterance::Compaction => {
                messages.push(json!({"info": {"role": "user"}, "parts": [{"type": "compaction"}]}));
                messages.push(json!({"info": {"role": "assistant", "summary": true},
                    "parts": [{"type": "text", "text": format!("<{n}>")}]}));
            }
        }
    }
    (json!(messages), calls)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_stays_within_the_budget_in_order_and_without_gaps(said in prop::collection::vec(said(), 0..40)) {
        let (transcript, calls) = conversation(&said);
        let inherited = inherited(&transcript);
        let Inheritance { context, counts, .. } = &inherited;

        // It never exceeds the budget, and says how long it is.
        if counts.kept > 0 {
            prop_assert_eq!(counts.characters, context.chars().count());
        }
        prop_assert!(counts.characters <= MOST_CHARACTERS);

        // Everything is somewhere.
        let all = counts.compacted.unwrap_or(0) + counts.removed + counts.kept;
        prop_assert_eq!(all, counts.messages);

        // The newest message is there, and what is there is in its order and without gaps.
        let marks: Vec<usize> = (0..said.len())
            .filter(|n| {
                context.contains(&format!("<{n}>")) || context.contains(&format!(" id{n}]"))
            })
            .collect();
        let newest_first: Vec<usize> = marks.iter().rev().copied().collect();
        let expected: Vec<usize> = (0..said.len()).rev().take(marks.len()).collect();
        prop_assert_eq!(newest_first, expected);
        prop_assert_eq!(marks.is_empty(), said.is_empty());
        let place = |n: &usize| {
            context.find(&format!("<{n}>")).or(context.find(&format!(" id{n}]")))
        };
        prop_assert!(marks.iter().map(place).is_sorted());

        // Kept calls have their names and ids, and a result or the word that there is none.
        for (id, name) in &calls {
            let kept = context.contains(&format!(" {id}]"));
            prop_assert_eq!(kept, context.contains(&format!("[Tool: {name} {id}]")));
        }

        // The same conversation gives the same bytes, however its JSON is written.
        let pretty = serde_json::to_string_pretty(&transcript).unwrap();
        prop_assert_eq!(&inherit(&pretty).unwrap(), &inherited);
    }

    #[test]
    fn malformed_input_never_panics(text in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,200}") {
        let _ = inherit(&text);
    }
}
