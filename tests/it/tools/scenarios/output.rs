//! S0 and S1: fetching results and progress.

use serde_json::json;

use super::{S0_AND_S1, SHORT, Tools};
use crate::support::{World, shown};

#[tokio::test]
async fn s0_and_s1_retrieve_completed_task_results() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say src/login.rs:12").await;
        assert_eq!(task.result_retrieved_at, None);
        let expected = format!(
            "Task Result\n\nTask ID: <task 1>\nDescription: find the login\nDuration: <time>{}",
            shown("src/login.rs:12")
        );
        assert_eq!(tools.output(&task).await, expected);
        let retrieved_at = world.task(&task.id).result_retrieved_at;
        assert!(retrieved_at >= task.completed_at);
        assert_eq!(tools.output(&task).await, expected);
        assert_eq!(world.task(&task.id).result_retrieved_at, retrieved_at, "the first time counts");
    }
}

#[tokio::test]
async fn s0_and_s1_check_running_task_status() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.launch("@tool read {\"path\":\"a\"}\n@hang").await;
        world.until("it was seen", || world.task(&task.id).progress.tool_calls == 1).await;
        let output = tools.output(&task).await;
        assert!(
            output.starts_with(
                "Task Status\n\n| Field | Value |\n| --- | --- |\n| Task ID | <task 1> |\n\
                 | Description | find the login |\n| Agent | explore |\n| Status | running |\n\
                 | Phase | "
            ),
            "{output}"
        );
        assert_eq!(world.task(&task.id).result_retrieved_at, None);
    }
}

#[tokio::test]
async fn s1_monitor_task_progress() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let calls = "@tool read {}\n@tool grep {}\n@tool read {}\n@tool glob {}\n";
    let task = tools.launch(&format!("{calls}@spend 120 0.5\n@slow-tool bash 60000")).await;
    world.until("it was seen", || world.task(&task.id).progress.tool_calls == 5).await;
    let before = world.task(&task.id).progress.last_update;
    assert_eq!(
        tools.output(&task).await,
        "Task Status\n\n| Field | Value |\n| --- | --- |\n| Task ID | <task 1> |\n\
         | Description | find the login |\n| Agent | explore |\n| Status | running |\n\
         | Phase | tool |\n| Duration | <time>|\n| Tool calls | 5 |\n\
         | Last tools | read, glob, bash |\n| Tokens | 120 |\n| Last activity | <time>ago |"
    );
    assert_eq!(world.task(&task.id).progress.last_update, before, "looking is no activity");
}

/// S0 and S1 describe an output that never blocks and one with `block`: ours blocks only when asked
/// to.
#[tokio::test]
async fn s0_and_s1_output_blocks_only_when_asked_to() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let mut tools = Tools::of(&world, prefix).await;
        let task = tools.launch("@hang").await;
        let block = json!({ "task_id": task.short_id, "block": true, "timeout": 30 });
        let (output, ()) = tokio::join!(tools.says("output", block.clone()), async {
            world.finish(&task, "found").await;
        });
        assert!(output.ends_with(&shown("found")), "{output}");
        let task = tools.launch("@hang").await;
        tools.caller.longest_wait = Some(SHORT);
        let output = tools
            .says("output", json!({ "task_id": task.short_id, "block": true, "timeout": 30 }))
            .await;
        assert!(output.contains("| Status | running |"), "{output}");
        assert!(
            output.ends_with(
                "\n\nTimed out after <time>of waiting. The task goes on; you will get a message \
                 when it ends."
            ),
            "{output}"
        );
    }
}
