//! Tolerance for what models send over MCP: arguments of similar tools, other spellings of names.

use serde_json::{Value, json};

use super::{SHORT, Tools, order_with};
use crate::support::World;

const LAUNCHED: &str = "Background task launched.\n\n\
    Task ID: <task 1>\nDescription: find the login\nAgent: explore\nStatus: running\n\n\
    Go on with your work. When there is none left, asyncagents_wait(task_ids=[\"<task 1>\"]) sleeps \
    until it has ended and gives you its result.";

#[tokio::test]
async fn an_agent_is_found_by_the_names_that_models_know_it_by() {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    for (argument, name, agent) in [
        ("subagent_type", "explore", "explore"),
        ("agent", "Explore", "explore"),
        ("subagent_type", "general-purpose", "general"),
        ("agent", "General-Purpose", "general"),
    ] {
        let order = json!({ "description": "find the login", "prompt": "@hang", argument: name });
        let answer = tools.call("task", order).await;
        assert!(!answer.is_error && !answer.text.contains("Note:"), "{}", answer.text);
        assert_eq!(tools.newest().order.agent, agent, "{name}");
    }
    assert_eq!(
        tools.refuses("task", order_with("look", json!({ "agent": "explorer" }))).await,
        "Agent \"explorer\" not found. Make sure it's registered. \
         Known agents: build, explore, general, librarian, oracle"
    );
}

#[tokio::test]
async fn arguments_a_tool_does_not_have_are_ignored_over_mcp_with_a_note() {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    let made_up = json!({ "run_in_background": true, "effort": "high", "wait_for_previous": true });
    assert_eq!(
        tools.says("task", order_with("@hang", made_up)).await,
        format!(
            "{LAUNCHED}\n\nNote: ignored, not an argument of this tool: `run_in_background`, `effort`"
        )
    );
    // Gemini CLI adds this argument to every call.
    let silent = json!({ "wait_for_previous": false });
    for tool in ["list", "clear"] {
        let text = tools.says(tool, silent.clone()).await;
        assert!(!text.contains("wait_for_previous"), "{text}");
    }
    let errand = json!({
        "description": "look", "prompt": "@say found", "subagent_type": "explore",
        "wait_for_previous": true,
    });
    let answered = tools.says("Task", errand).await;
    assert!(
        answered.ends_with("~~~\n\nNote: ignored, not an argument of this tool: `subagent_type`"),
        "{answered}"
    );
    let note = "\n\nNote: ignored, not an argument of this tool: `x`";
    let refused = tools.refuses("cancel", json!({ "x": "\u{1b}[2K" })).await;
    let exactly_one = "Error: pass exactly one of `task_id`, `all: true` and `batch`";
    assert_eq!(refused, format!("{exactly_one}{note}"));
}

#[tokio::test]
async fn an_argument_that_cannot_be_honoured_is_refused_and_launches_nothing() {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    let check = async |more: Value, expected: &str| {
        assert_eq!(tools.refuses("task", order_with("look", more)).await, expected);
    };
    let without = "is not available here, and the result would differ without it; leave it out if \
                   that is what you want";
    check(json!({ "worktree": true }), &format!("Error: `worktree` {without}")).await;
    check(json!({ "node": "other" }), &format!("Error: `node` {without}")).await;
    check(
        json!({ "fork": true }),
        "Error: `fork` needs a conversation, and this caller has none; launch without it and put what \
         the agent needs into the prompt (`asyncagents run --fork SESSION` names a conversation)",
    )
    .await;
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn a_timeout_beyond_the_limit_is_clamped_with_a_note() {
    let world = World::start().await;
    let mut tools = Tools::of_client(&world);
    let task = tools.launch("@hang").await;
    tools.caller.longest_wait = Some(SHORT);
    for (tool, id) in [("wait", json!({})), ("output", json!({ "block": true }))] {
        let mut arguments = json!({ "task_id": task.short_id, "timeout": 3600 });
        arguments.as_object_mut().unwrap().extend(id.as_object().unwrap().clone());
        let text = tools.says(tool, arguments).await;
        assert!(
            text.ends_with(&format!(
                "Timed out after <time>of waiting (`timeout` was cut to that: calls of this client \
                 may not take longer). Nothing is lost, what runs goes on: call asyncagents_{tool} \
                 again with the same arguments to go on waiting, or do something else meanwhile.\n\n\
                 Note: `timeout` was lowered from 3600 to its maximum, 600"
            )),
            "{text}"
        );
    }
    tools.prefix = "background";
    let arguments = json!({ "task_id": task.short_id, "timeout": 3_600_000 });
    let text = tools.says("output", arguments).await;
    assert!(
        text.ends_with("Note: `timeout` was lowered from 3600000 to its maximum, 600000"),
        "{text}"
    );
}
