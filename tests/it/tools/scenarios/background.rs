//! S3: the testing scenarios and usage patterns of `background_*`.

use asyncagents::host::scripted::Control;
use asyncagents::task::{State, Status, TaskId};
use serde_json::{Value, json};

use super::{SHORT, Tools, order, order_with};
use crate::support::{World, caller, shown};

fn research(agent: &str, prompt: &str) -> Value {
    order_with(prompt, json!({ "agent": agent }))
}

#[tokio::test]
async fn s3_happy_path() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    assert_eq!(
        tools.says("task", order("@tool read {\"path\":\"a\"}\n@say src/login.rs:12")).await,
        "Background task launched.\n\n\
         Task ID: <task 1>\nDescription: find the login\nAgent: explore\nStatus: running\n\n\
         You will get a message when it ends. Go on with your work; \
         background_output(task_id=\"<task 1>\") shows how far it is."
    );
    let task = world.ended(&tools.newest()).await;
    assert_eq!(task.progress.tool_calls, 1);
    assert!(world.posts(&tools.caller.session, 1).await[0].wake);
    assert_eq!(
        tools.output(&task).await,
        format!(
            "Task Result\n\nTask ID: <task 1>\nDescription: find the login\nDuration: <time>{}",
            shown("src/login.rs:12")
        )
    );
}

/// In S3 the task ends with an error; ours is refused before it exists.
#[tokio::test]
async fn s3_error_path_with_an_invalid_agent() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    assert_eq!(
        tools.refuses("task", research("nobody", "look")).await,
        "Agent \"nobody\" not found. Make sure it's registered. \
         Known agents: build, explore, general, librarian, oracle"
    );
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
    assert_eq!(world.host.sessions().len(), 1, "the caller's own");
}

#[tokio::test]
async fn s3_error_path_of_a_task_that_fails() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let task = tools.end_of("@fail overloaded").await;
    let post = world.posts(&tools.caller.session, 1).await.remove(0);
    assert!(post.hidden.contains("Error: \"overloaded\""), "{}", post.hidden);
    let output = tools.output(&task).await;
    assert!(output.contains("| Status | error |\n| Error | \"overloaded\" |"), "{output}");
}

#[tokio::test]
async fn s3_concurrent_tasks() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(tools.launch("@tool read {}\n@hang").await);
    }
    for task in &tasks {
        world.until("it was seen", || world.task(&task.id).progress.tool_calls == 1).await;
        let output = tools.output(task).await;
        assert!(output.contains("| Tool calls | 1 |\n| Last tools | read |"), "{output}");
    }
    for (n, task) in tasks.iter().enumerate().rev() {
        tools.finish(task, &format!("result {n}")).await;
        world.posts(&tools.caller.session, 3 - n).await;
    }
    for (n, task) in tasks.iter().enumerate() {
        let output = tools.output(task).await;
        assert!(output.ends_with(&shown(&format!("result {n}"))), "{output}");
    }
    assert_eq!(world.posts(&tools.caller.session, 3).await.len(), 3);
}

/// S3 posts no notice here. S1 does, without waking the parent, which cancelled the task itself.
#[tokio::test]
async fn s3_cancellation() {
    for name in ["taskId", "task_id"] {
        let world = World::start().await;
        let tools = Tools::of(&world, "background").await;
        let task = tools.launch("@hang").await;
        world.until("it works", || world.host.is_busy(&task.id)).await;
        assert_eq!(
            tools.says("cancel", json!({ name: task.short_id })).await,
            "Cancelled task <task 1> \"find the login\"."
        );
        let state = world.task(&task.id).state;
        assert_eq!(state, State::Cancelled { error: None, result: None });
        world.until("its session is stopped", || !world.host.is_busy(&task.id)).await;
        let posts = world.posts(&tools.caller.session, 1).await;
        assert_eq!((posts.len(), posts[0].wake), (1, false));
    }
}

#[tokio::test]
async fn s3_cleanup_when_the_parent_is_deleted() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let other = Tools::of(&world, "background").await;
    let (task, theirs) = (tools.launch("@hang").await, other.launch("@hang").await);
    world.until("it works", || world.host.is_busy(&task.id)).await;
    world.control(Control::Delete { session: tools.caller.session.clone() }).await;
    let ended = world.ended(&task).await;
    let error = Some("Parent session deleted".to_owned());
    assert_eq!(ended.state, State::Cancelled { error, result: None });
    world.until("its session is stopped", || !world.host.is_busy(&task.id)).await;
    assert_eq!(world.status(&theirs), Status::Running);
    // It remains in the history.
    let output = other.says("output", json!({ "task_id": task.id })).await;
    assert!(output.contains("| Error | \"Parent session deleted\" |"), "{output}");
}

#[tokio::test]
async fn s3_a_deleted_session_cancels_its_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let task = tools.end_of("@delete").await;
    let output = tools.output(&task).await;
    let row = "| Status | cancelled |\n| Error | \"Session deleted\" |";
    assert!(output.contains(row), "{output}");
}

#[tokio::test]
async fn s3_pattern_1_parallel_research() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    tools.says("task", research("explore", "Find all authentication\n@hang")).await;
    tools.says("task", research("librarian", "Find JWT best practices\n@hang")).await;
    let tasks = tools.tasks();
    assert!(tasks.iter().all(|task| task.status() == Status::Running));
    for task in &tasks {
        tools.finish(task, &format!("by {}", task.order.agent)).await;
    }
    let posts = world.posts(&tools.caller.session, 2).await;
    assert!(posts[1].visible.ends_with("\nTask Progress: 2/2"), "{}", posts[1].visible);
    for task in &tasks {
        let output = tools.output(task).await;
        assert!(output.ends_with(&shown(&format!("by {}", task.order.agent))), "{output}");
    }
}

#[tokio::test]
async fn s3_pattern_2_long_running_build() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    tools.says("task", research("build", "@slow-tool bash 60000\n@say built")).await;
    let task = tools.newest();
    world.until("it builds", || world.task(&task.id).progress.tool_calls == 1).await;
    let output = tools.output(&task).await;
    assert!(
        output.contains("| Agent | build |\n| Status | running |\n| Phase | tool |"),
        "{output}"
    );
    world.finish(&task, "no errors").await;
    assert!(world.posts(&tools.caller.session, 1).await[0].wake);
}

#[tokio::test]
async fn s3_pattern_3_multiple_agents_single_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    for agent in ["explore", "librarian", "oracle"] {
        tools.says("task", research(agent, "audit\n@hang")).await;
    }
    let tasks = tools.tasks();
    world.until("all run at once", || tasks.iter().all(|t| world.host.is_busy(&t.id))).await;
    for (n, task) in tasks.iter().enumerate() {
        tools.finish(task, "nothing").await;
        assert_eq!(world.posts(&tools.caller.session, n + 1).await.len(), n + 1);
    }
}

#[tokio::test]
async fn s3_pattern_4_cleanup_before_finish() {
    let world = World::start().await;
    let (tools, other) =
        (Tools::of(&world, "background").await, Tools::of(&world, "background").await);
    let all = json!({ "all": true });
    let nothing = "No running background tasks to cancel.";
    assert_eq!(tools.says("cancel", all.clone()).await, nothing);
    let done = tools.end_of("@say found").await;
    let forgotten = [tools.launch("@hang").await, tools.launch("@hang").await];
    let theirs = other.launch("@hang").await;
    assert_eq!(
        tools.says("cancel", all.clone()).await,
        "Cancelled 2 tasks:\n- <task 2> \"find the login\"\n- <task 3> \"find the login\""
    );
    assert_eq!(forgotten.map(|task| world.status(&task)), [Status::Cancelled; 2]);
    assert_eq!(world.status(&done), Status::Completed);
    assert_eq!(world.status(&theirs), Status::Running);
    assert_eq!(tools.says("cancel", all).await, nothing);
}

#[tokio::test]
async fn s3_non_blocking_output_returns_at_once() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let task = tools.launch("@hang").await;
    let output = tools.output(&task).await;
    assert!(output.contains("| Status | running |"), "{output}");
    assert!(!output.contains("Timed out"), "{output}");
}

#[tokio::test]
async fn s3_blocking_output_counts_in_milliseconds() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "background").await;
    let task = tools.launch("@hang").await;
    let block =
        |timeout: u64| json!({ "task_id": task.short_id, "block": true, "timeout": timeout });
    for timeout in [0, 999, 600_001] {
        assert_eq!(
            tools.refuses("output", block(timeout)).await,
            "Error: `timeout` must be between 1 second and 10 minutes"
        );
    }
    tools.caller.longest_wait = Some(SHORT);
    let output = tools.says("output", block(600_000)).await;
    assert!(output.contains("Timed out after <time>of waiting. The task goes on"), "{output}");
    tools.caller.longest_wait = None;
    let (output, ()) = tokio::join!(tools.says("output", block(60_000)), async {
        world.finish(&task, "found").await;
    });
    assert!(output.ends_with(&shown("found")), "{output}");
}

#[tokio::test]
async fn s3_nested_background_tasks_are_prevented() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let task = tools.launch("@hang").await;
    let denied = world.host.denied(&task.id);
    assert!(denied.contains(&"background_*".to_owned()) && denied.contains(&"task".to_owned()));
    let child = Tools::by(&world, caller(&task.id), "background");
    assert_eq!(
        child.refuses("task", order("look")).await,
        "Error: a background task may not launch tasks of its own (max_depth = 1); report back and \
         let your parent launch it"
    );
    assert_eq!(world.supervisor.task_count().unwrap(), 1);
}

#[tokio::test]
async fn s3_at_most_ten_concurrent_tasks_per_session() {
    let world = World::start().await;
    let tools = Tools::of(&world, "background").await;
    let first = tools.launch("@hang").await;
    for _ in 1..10 {
        tools.launch("@hang").await;
    }
    let text = tools.says("task", order("@say found")).await;
    let queued = "\nStatus: running (queued: it starts when one of your running tasks ends)\n";
    assert!(text.contains(queued), "{text}");
    let eleventh = tools.newest();
    assert!(tools.output(&eleventh).await.contains("| Phase | queued |"));
    world.finish(&first, "done").await;
    assert_eq!(world.ended(&eleventh).await.state.result(), Some("found"));
}

#[tokio::test]
async fn s3_the_same_ids_name_the_same_tasks_under_every_prefix() {
    let world = World::start().await;
    let background = Tools::of(&world, "background").await;
    let task = background.end_of("@say found").await;
    for prefix in ["asyncagents", "superagents", "background"] {
        let tools = Tools::by(&world, background.caller.clone(), prefix);
        let id: &TaskId = &task.id;
        for reference in
            [task.short_id.as_str(), id.as_str(), &id.as_str()[..id.as_str().len() - 1]]
        {
            let output = tools.says("output", json!({ "task_id": reference })).await;
            assert!(output.ends_with(&shown("found")), "{output}");
        }
    }
}
