//! S1: creating tasks, their states and their batches.

use asyncagents::task::{Parent, Status};
use serde_json::json;

use super::{S0_AND_S1, Tools, order, order_with};
use crate::support::{World, caller, shown};

#[tokio::test]
async fn s1_launch_background_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    assert_eq!(
        tools.says("task", order("@hang")).await,
        "Background task launched.\n\n\
         Task ID: <task 1>\nDescription: find the login\nAgent: explore\nStatus: running\n\n\
         You will get a message when it ends. Go on with your work; \
         asyncagents_output(task_id=\"<task 1>\") shows how far it is."
    );
    let first = tools.newest();
    assert_eq!(
        first.origin.parent,
        Parent {
            session: tools.caller.session.clone(),
            message: "msg_parent".into(),
            agent: "build".into(),
            host: "scripted".into(),
        }
    );
    let second = tools.launch("@hang").await;
    assert_ne!((first.id, first.short_id), (second.id, second.short_id));
}

#[tokio::test]
async fn s1_initial_resume_count() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    assert_eq!(tools.launch("@hang").await.run, 0);
}

#[tokio::test]
async fn s1_track_task_completion() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.end_of("@say src/login.rs:12").await;
    assert_eq!(task.status(), Status::Completed);
    assert!(task.completed_at.is_some());
    assert_eq!(
        tools.output(&task).await,
        format!(
            "Task Result\n\nTask ID: <task 1>\nDescription: find the login\nDuration: <time>{}",
            shown("src/login.rs:12")
        )
    );
}

#[tokio::test]
async fn s1_handle_task_errors() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.end_of("@fail the model is overloaded").await;
    let expected = "Task Status\n\n| Field | Value |\n| --- | --- |\n| Task ID | <task 1> |\n\
                    | Description | find the login |\n| Agent | explore |\n| Status | error |\n\
                    | Error | \"the model is overloaded\" |\n| Duration | <time>|\n| Tool calls | 0 |\n\n\
                    To try again, launch it anew with asyncagents_task; a person can retry it in a \
                    shell: `asyncagents retry <task 1>`.";
    assert_eq!(tools.output(&task).await, expected);
    assert_eq!(tools.output(&task).await, expected, "it is kept");
}

#[tokio::test]
async fn s1_cancel_running_tasks() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.launch("@slow-tool bash 60000\n@say never").await;
    world.until("it works", || world.task(&task.id).progress.tool_calls == 1).await;
    let cancel = json!({ "task_id": task.short_id });
    assert_eq!(
        tools.says("cancel", cancel.clone()).await,
        "Cancelled task <task 1> \"find the login\"."
    );
    let output = tools.output(&task).await;
    assert!(output.contains("| Status | cancelled |"), "{output}");
    world.until("its session is stopped", || !world.host.is_busy(&task.id)).await;
    assert_eq!(tools.refuses("cancel", cancel).await, "Error: the task is already over");
}

#[tokio::test]
async fn s1_track_resumed_status() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.end_of("@say first").await;
    tools.says("task", json!({ "resume": task.short_id, "prompt": "@hang" })).await;
    assert_eq!(world.status(&task), Status::Resumed);
    let output = tools.output(&task).await;
    assert!(output.contains("| Status | resumed |"), "{output}");
    tools.finish(&task, "second").await;
    assert_eq!(world.status(&task), Status::Completed);
    let output = tools.output(&task).await;
    assert!(output.ends_with(&shown("second")), "{output}");
}

#[tokio::test]
async fn s1_group_related_tasks() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let (one, two) = (tools.launch("@hang").await, tools.launch("@hang").await);
    assert_eq!(one.batch, two.batch);
    tools.says("task", order_with("@hang", json!({ "batch": "nightly" }))).await;
    let named = tools.newest();
    assert_eq!(named.batch.as_str(), "nightly");
    assert_eq!(
        tools.says("cancel", json!({ "batch": one.batch })).await,
        "Cancelled 2 tasks:\n- <task 1> \"find the login\"\n- <task 2> \"find the login\""
    );
    assert_eq!(world.status(&named), Status::Running);
    tools.finish(&named, "a quiet night").await;
    let waited = tools.says("wait", json!({ "batch": "nightly" })).await;
    assert!(waited.starts_with("1 of 1 task has ended.\n\nTask Result\n\n"), "{waited}");
    assert_eq!(
        tools.says("cancel", json!({ "batch": "nightly" })).await,
        "No running background tasks to cancel."
    );
    let never = json!({ "batch": "never" });
    assert_eq!(tools.refuses("cancel", never.clone()).await, "Error: there is no batch `never`");
    assert_eq!(tools.refuses("wait", never).await, "Error: there is no batch `never`");
}

#[tokio::test]
async fn s0_and_s1_task_persistence() {
    for prefix in S0_AND_S1 {
        let mut world = World::start().await;
        let parent = world.parent().await;
        let task = Tools::by(&world, caller(&parent), prefix).end_of("@say found").await;
        world.restart().await;
        let tools = Tools::by(&world, caller(&parent), prefix);
        for _ in 0..2 {
            let output = tools.output(&task).await;
            assert!(output.ends_with(&shown("found")), "{output}");
        }
        assert_eq!(tools.tasks().len(), 1);
        assert_eq!(tools.says("clear", json!({})).await, "Cleared 1 task.");
        assert_eq!(tools.says("list", json!({})).await, "No background tasks found");
        // It is off the list, but not lost.
        let output = tools.output(&task).await;
        assert!(output.ends_with(&shown("found")), "{output}");
        assert_eq!(tools.says("clear", json!({})).await, "No background tasks to clear.");
    }
}

#[tokio::test]
async fn s0_and_s1_clear_stops_what_runs() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        tools.end_of("@say found").await;
        let live = tools.launch("@hang").await;
        assert_eq!(tools.says("clear", json!({})).await, "Cleared 2 tasks, 1 of them cancelled.");
        assert_eq!(world.status(&live), Status::Cancelled);
        assert_eq!(tools.says("list", json!({})).await, "No background tasks found");
    }
}
