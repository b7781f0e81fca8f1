//! S0 and S1: follow-ups to a completed task.

use asyncagents::host::scripted::Control;
use asyncagents::task::{State, Status};
use serde_json::{Value, json};

use super::{S0_AND_S1, Tools};
use crate::support::{World, shown};

fn follow_up(task: &asyncagents::task::Task, prompt: &str) -> Value {
    json!({ "resume": task.short_id, "prompt": prompt })
}

#[tokio::test]
async fn s0_and_s1_resume_completed_task_with_follow_up_prompt() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say first").await;
        assert_eq!(
            tools.says("task", follow_up(&task, "@hang")).await,
            "Resume #1 of task <task 1> started.\n\n\
             Task ID: <task 1>\nDescription: find the login\nStatus: resumed\n\n\
             You will get a message with the answer."
        );
        world.until("it is prompted", || world.host.prompts(&task.id).len() == 2).await;
        assert_eq!(world.host.prompts(&task.id), ["@say first", "@hang"], "the same session");
        assert_eq!(tools.tasks().len(), 1);
    }
}

#[tokio::test]
async fn s0_resume_completion_notification() {
    let world = World::start().await;
    let tools = Tools::of(&world, "superagents").await;
    let task = tools.end_of("@say first").await;
    tools.says("task", follow_up(&task, "@say second")).await;
    let ended = world.ended(&task).await;
    assert_eq!(ended.state, State::Completed { result: "second".into(), error: None });
    let posts = world.posts(&tools.caller.session, 2).await;
    assert!(posts[1].hidden.ends_with(":\n~~~\nsecond\n~~~"), "{}", posts[1].hidden);
    assert!(posts[1].wake);
}

#[tokio::test]
async fn s0_and_s1_wait_for_resume_response() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say first").await;
        let output = tools.output(&task).await;
        assert!(output.ends_with(&shown("first")), "{output}");
        tools.says("task", follow_up(&task, "@hang")).await;
        let block = json!({ "task_id": task.short_id, "block": true, "timeout": 30 });
        let (output, ()) = tokio::join!(tools.says("output", block), async {
            world.finish(&task, "second").await;
        });
        assert!(output.ends_with(&shown("second")), "{output}");
    }
}

#[tokio::test]
async fn s0_reject_resume_of_non_completed_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "superagents").await;
    let running = tools.launch("@hang").await;
    assert_eq!(
        tools.refuses("task", follow_up(&running, "more")).await,
        "Error: only completed tasks can be resumed; this one is still running"
    );
    let failed = tools.end_of("@fail no").await;
    tools.says("cancel", json!({ "task_id": running.short_id })).await;
    for task in [failed, running] {
        let before = world.task(&task.id);
        assert_eq!(
            tools.refuses("task", follow_up(&task, "more")).await,
            "Error: only completed tasks can be resumed; start a new task instead"
        );
        assert_eq!(world.task(&task.id), before);
    }
}

#[tokio::test]
async fn s0_reject_concurrent_resume() {
    let world = World::start().await;
    let tools = Tools::of(&world, "superagents").await;
    let task = tools.end_of("@say first").await;
    tools.says("task", follow_up(&task, "@hang")).await;
    assert_eq!(
        tools.refuses("task", follow_up(&task, "more")).await,
        "Error: the task is currently being resumed; wait for its notice and try again"
    );
    assert_eq!(world.task(&task.id).run, 1);
}

#[tokio::test]
async fn s0_and_s1_handle_expired_session_on_resume() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say first").await;
        world.control(Control::Delete { session: task.id.clone() }).await;
        assert_eq!(
            tools.refuses("task", follow_up(&task, "more")).await,
            format!(
                "Error: session of task `<task 1>` no longer exists; start a new task with \
                 {prefix}_task"
            )
        );
        // The earlier result is still available.
        let output = tools.output(&task).await;
        assert!(output.ends_with(&shown("first")), "{output}");
    }
}

#[tokio::test]
async fn s1_increment_resume_count() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let task = tools.end_of("@say first").await;
    for n in 1..=2 {
        let text = tools.says("task", follow_up(&task, "@say more")).await;
        assert!(text.starts_with(&format!("Resume #{n} of task <task 1> started.")), "{text}");
        let ended = world.ended(&task).await;
        assert_eq!((ended.run, ended.status()), (n, Status::Completed));
    }
    // A refused resume does not count as a run.
    tools.refuses("task", follow_up(&task, " ")).await;
    assert_eq!(world.task(&task.id).run, 2);
}
