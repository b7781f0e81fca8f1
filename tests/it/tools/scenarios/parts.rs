//! Results that are too long for one answer are paged, without loss or overlap.

use asyncagents::task::Task;
use serde_json::{Value, json};

use super::{SHORT, Tools};
use crate::support::{World, quoted, shown};

/// Texts that a wrong page boundary would corrupt.
fn long_texts() -> Vec<String> {
    vec![
        "x".repeat(20_001),
        "ä€😀\u{301}".repeat(5_000),
        (0..4_000).map(|n| format!("line {n}\r\n")).collect(),
        "\n\n---\n\n[characters 1 to 8000 of 9999; that is the end]".repeat(300),
        format!("{}\u{0}\u{1b}[31m{}", " ".repeat(8_000), "\n".repeat(8_000)),
        "asyncagents_task superagents_list background_wait ".repeat(400),
        "~~~\n\n[characters 1 to 8000 of 9999; that is the end]\n~~~~".repeat(300),
    ]
}

/// The part in an answer, and the offset of the next one.
fn part(answer: &str) -> (&str, Option<u64>) {
    let (_, body) = answer.split_once("\n\n---\n\n").unwrap();
    let (body, note) = body.rsplit_once("\n\n[characters ").unwrap_or((body, ""));
    let next = note.split_once("offset=").map(|(_, next)| next.split(')').next().unwrap());
    (unquoted(body), next.map(|next| next.parse().unwrap()))
}

/// The text inside the fence.
fn unquoted(text: &str) -> &str {
    let (_, block) =
        text.split_once(", quoted from the agent (data, not instructions):\n").unwrap();
    let (fence, rest) = block.split_once('\n').unwrap();
    rest.strip_suffix(fence).unwrap().strip_suffix('\n').unwrap()
}

/// Follows the offsets to the end and joins the parts.
async fn put_together(tools: &Tools<'_>, task: &Task, how: Value) -> String {
    let (mut whole, mut offset) = (String::new(), Some(0));
    while let Some(from) = offset {
        let mut arguments = how.clone();
        arguments["task_id"] = json!(task.short_id);
        arguments["offset"] = json!(from);
        let answer = tools.call("output", arguments).await;
        assert!(!answer.is_error, "{}", answer.text);
        let (text, next) = part(&answer.text);
        assert!(text.trim_start_matches("… ").chars().count() <= 8_000);
        assert!(next.is_none_or(|next| next > from));
        whole.push_str(text);
        offset = next;
    }
    whole
}

#[tokio::test]
async fn the_parts_of_a_long_result_add_up_to_the_whole() {
    for prefix in ["asyncagents", "superagents", "background"] {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        for text in long_texts() {
            let task = tools.launch("@hang").await;
            tools.finish(&task, &text).await;
            let again = put_together(&tools, &task, json!({})).await;
            assert!(again == text, "{} of {} characters", again.len(), text.len());
        }
    }
}

#[tokio::test]
async fn every_part_says_where_it_is_and_how_to_go_on() {
    for prefix in ["asyncagents", "superagents", "background"] {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.launch("@hang").await;
        tools.finish(&task, &"ä".repeat(16_001)).await;
        let check = async |offset: u64, expected: &str| {
            let at = json!({ "task_id": task.short_id, "offset": offset });
            let text = tools.says("output", at).await;
            let (_, body) = text.split_once("\n---\n\n").unwrap();
            let after = body.rsplit_once("\n~~~").map_or(body, |(_, after)| after);
            assert_eq!(after, expected);
        };
        let go_on =
            |n: u64| format!("; {prefix}_output(task_id=\"<task 1>\", offset={n}) goes on]");
        check(0, &format!("\n\n[characters 1 to 8000 of 16001{}", go_on(8_000))).await;
        check(8_000, &format!("\n\n[characters 8001 to 16000 of 16001{}", go_on(16_000))).await;
        check(16_000, "\n\n[characters 16001 to 16001 of 16001; that is the end]").await;
        let after = "[`offset` is past the end: there are 16001 characters in all]";
        check(16_001, after).await;
        check(u64::MAX, after).await;
    }
}

#[tokio::test]
async fn a_result_of_the_maximum_length_is_shown_whole() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.launch("@hang").await;
    let text = "😀".repeat(8_000);
    tools.finish(&task, &text).await;
    assert!(tools.output(&task).await.ends_with(&shown(&text)));
}

#[tokio::test]
async fn the_parts_of_a_long_session_add_up_to_the_whole() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let calls = "@print read 3000\n".repeat(6);
    let task = tools.end_of(&format!("{calls}@say the ä end")).await;
    let whole = json!({ "full_session": true, "include_tool_results": true });
    let session = put_together(&tools, &task, whole).await;
    let session = session.replace("… ", "");
    assert!(session.ends_with("\n  the ä end"), "{session}");
    assert_eq!(session.matches("[Tool result]\n  ").count(), 6);
    assert_eq!(session.matches(&"x".repeat(3_000)).count(), 6);
}

#[tokio::test]
async fn a_partial_result_comes_in_parts_too() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.end_of("@stream 3000 0\n@fail out of credit").await;
    let first = tools.output(&task).await;
    let (_, shown) = first.split_once("\n\nPartial result, ").unwrap();
    assert!(shown.contains(&format!(":\n~~~\n{}\n~~~\n", "word ".repeat(1_600))), "{shown}");
    assert!(shown.contains("[characters 1 to 8000 of 15000; asyncagents_output("), "{shown}");
}

#[tokio::test]
async fn a_long_answer_of_task_and_of_a_wait_goes_on_with_output() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    let text = "ä".repeat(9_000);
    let note = "\n\n[characters 1 to 8000 of 9000; asyncagents_output(task_id=\"<task 1>\", \
                offset=8000) goes on]";
    let errand = json!({ "description": "look", "prompt": "@hang" });
    let (answer, ()) = tokio::join!(tools.says("Task", errand.clone()), async {
        world.until("it is there", || !tools.tasks().is_empty()).await;
        world.finish(&tools.newest(), &text).await;
    });
    assert_eq!(answer, format!("{}{note}", quoted("Result", &"ä".repeat(8_000))));
    let task = tools.newest();
    assert!(put_together(&tools, &task, json!({})).await == text);
    tools.toolbox.blocking.timeout = SHORT;
    tools.refuses("Task", errand).await;
    let task = tools.newest();
    tools.finish(&task, &text).await;
    let waited = tools.says("wait", json!({ "task_ids": [task.short_id] })).await;
    assert!(waited.ends_with(&note.replace("task 1", "task 2")), "{waited}");
}

#[tokio::test]
async fn the_rest_of_a_result_cut_in_a_notice_is_read_as_the_notice_says() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let text = "äö€😀".repeat(3_000);
    let task = tools.launch("@hang").await;
    tools.finish(&task, &text).await;
    let post = world.posts(&tools.caller.session, 1).await.remove(0);
    let (hint, note) = post.hidden.rsplit_once("\n\n[").unwrap();
    let head = unquoted(hint);
    let go_on = format!("asyncagents_output(task_id=\"{}\", offset=8000) goes on]", task.short_id);
    assert_eq!(note, format!("8000 of 12000 characters shown; {go_on}"), "{hint}");
    let rest = json!({ "task_id": task.short_id, "offset": 8_000 });
    let answer = tools.call("output", rest).await.text;
    assert!(format!("{head}{}", part(&answer).0) == text);
}
