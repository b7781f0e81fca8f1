//! S0 and S1: what the list shows of a task, and whose tasks it shows.

use serde_json::json;

use super::{S0_AND_S1, Tools, order, order_with};
use crate::support::World;

/// The list without the phases of running tasks, which may change at any time.
async fn list(tools: &Tools<'_>) -> String {
    let text = tools.says("list", json!({})).await;
    let phases = ["queued", "starting", "waiting", "streaming", "tool"];
    phases.iter().fold(text, |text, phase| text.replace(&format!(", {phase}]"), "]"))
}

#[tokio::test]
async fn s0_and_s1_show_resumed_indicator() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say first").await;
        tools.says("task", json!({ "resume": task.short_id, "prompt": "@hang" })).await;
        assert_eq!(
            list(&tools).await,
            "1 task: 0 running, 0 completed, 0 error, 0 cancelled, 1 resumed\n\
             - <task 1> (resumed) [resumed] explore: \"find the login\" (<time>"
        );
        tools.finish(&task, "second").await;
        assert_eq!(
            list(&tools).await,
            "1 task: 0 running, 1 completed, 0 error, 0 cancelled, 0 resumed\n\
             - <task 1> (resumed) [completed] explore: \"find the login\" (<time>"
        );
    }
}

#[tokio::test]
async fn s0_and_s1_show_forked_indicator() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        tools.says("task", order_with("@say found", json!({ "fork": true }))).await;
        let task = world.ended(&tools.newest()).await;
        assert_eq!(
            list(&tools).await,
            "1 task: 0 running, 1 completed, 0 error, 0 cancelled, 0 resumed\n\
             - <task 1> (forked) [completed] explore: \"find the login\" (<time>"
        );
        // A task that is forked and resumed shows both marks, in this order.
        tools.says("task", json!({ "resume": task.short_id, "prompt": "@say more" })).await;
        world.ended(&task).await;
        assert_eq!(
            list(&tools).await,
            "1 task: 0 running, 1 completed, 0 error, 0 cancelled, 0 resumed\n\
             - <task 1> (forked) (resumed) [completed] explore: \"find the login\" (<time>"
        );
    }
}

#[tokio::test]
async fn s0_and_s1_no_indicator_for_new_tasks() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        tools.says("task", order("@hang")).await;
        assert_eq!(
            list(&tools).await,
            "1 task: 1 running, 0 completed, 0 error, 0 cancelled, 0 resumed\n\
             - <task 1> [running] explore: \"find the login\" (<time>"
        );
    }
}

#[tokio::test]
async fn s0_and_s1_filter_by_parent_session() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let (mine, theirs) = (Tools::of(&world, prefix).await, Tools::of(&world, prefix).await);
        mine.end_of("@say found").await;
        mine.end_of("@fail no").await;
        let unlisted = theirs.launch("@hang").await;
        let text = list(&mine).await;
        assert_eq!(
            text,
            "2 tasks: 0 running, 1 completed, 1 error, 0 cancelled, 0 resumed\n\
             - <task 2> [error] explore: \"find the login\" (<time>\n\
             - <task 1> [completed] explore: \"find the login\" (<time>"
        );
        assert!(!text.contains(unlisted.short_id.as_str()), "{text}");
        assert_eq!(
            mine.says("list", json!({ "status": "completed" })).await,
            "2 tasks: 0 running, 1 completed, 1 error, 0 cancelled, 0 resumed\n\
             - <task 1> [completed] explore: \"find the login\" (<time>"
        );
        assert_eq!(
            mine.says("list", json!({ "status": "running" })).await,
            "2 tasks: 0 running, 1 completed, 1 error, 0 cancelled, 0 resumed\n\
             None of them is in the state you asked for."
        );
    }
}

#[tokio::test]
async fn s0_and_s1_empty_list_for_no_children() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let (mine, theirs) = (Tools::of(&world, prefix).await, Tools::of(&world, prefix).await);
        theirs.launch("@hang").await;
        assert_eq!(mine.says("list", json!({})).await, "No background tasks found");
    }
}
