//! S0 and S1: a child that starts with its parent's conversation. How much of it, and in which
//! form, is defined by S2.

use asyncagents::host::scripted::Scripted;
use asyncagents::host::{Host, Place, Prompt};
use asyncagents::task::Task;
use serde_json::{Value, json};

use super::{S0_AND_S1, Tools, order_with};
use crate::support::World;

/// Runs this script in the caller's own conversation.
async fn talk(tools: &Tools<'_>, script: &str) {
    let parent = &tools.caller.session;
    let prompt = Prompt {
        to: Place::unknown(parent.clone()),
        message: tools.world.clock.message_id(),
        text: script.to_owned(),
        agent: "build".into(),
        model: None,
    };
    Scripted::Here(tools.world.host.clone()).prompt(prompt).await.unwrap();
    tools.world.until("the parent has answered", || !tools.world.host.is_busy(parent)).await;
}

/// A forked child, and all messages before its prompt.
async fn fork(tools: &Tools<'_>) -> (Task, String) {
    tools.says("task", order_with("@hang", json!({ "fork": true }))).await;
    let (world, task) = (tools.world, tools.newest());
    world.until("the child is prompted", || world.host.prompts(&task.id).len() == 2).await;
    let said = world.host.prompts(&task.id);
    assert_eq!(said[1], "@hang");
    (task, said[0].clone())
}

#[tokio::test]
async fn s0_and_s1_launch_forked_background_task() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        talk(&tools, "where is the login?\n@say in src/login.rs").await;
        assert_eq!(
            tools.says("task", order_with("@hang", json!({ "fork": true }))).await,
            format!(
                "Background task launched.\n\n\
                 Task ID: <task 1> (forked)\nDescription: find the login\nAgent: explore\n\
                 Status: running\n\n\
                 You will get a message when it ends. Go on with your work; \
                 {prefix}_output(task_id=\"<task 1>\") shows how far it is."
            )
        );
        assert!(tools.newest().origin.is_forked);
        let (task, inherited) = fork(&tools).await;
        assert!(task.origin.is_forked);
        let conversation = "\n[User]\nwhere is the login?\n@say in src/login.rs\n\n\
                            [Assistant]\nin src/login.rs";
        assert!(inherited.ends_with(conversation), "{inherited}");
    }
}

#[tokio::test]
async fn s0_fork_with_context_truncation() {
    let world = World::start().await;
    let tools = Tools::of(&world, "superagents").await;
    let newer = "@tool grep {\"pattern\":\"login\"}\n".repeat(5);
    talk(&tools, &format!("@print read 5000\n{newer}@say much")).await;
    let (_, inherited) = fork(&tools).await;
    let cut = format!("\n[Tool result]\n{}\n[2000 more characters cut]\n", "x".repeat(3_000));
    assert!(inherited.contains(&cut), "{inherited}");
    let calls: Vec<&str> = inherited.lines().filter(|line| line.starts_with("[Tool")).collect();
    assert_eq!(calls.len(), 12, "six calls with their results: {calls:?}");
    assert!(inherited.contains("{\"pattern\":\"login\"}"), "{inherited}");
}

#[tokio::test]
async fn s0_fork_with_token_limit_enforcement() {
    let world = World::start().await;
    let tools = Tools::of(&world, "superagents").await;
    for n in 0..9 {
        talk(&tools, &format!("message {n} {}\n@say answer {n}", "x".repeat(30_000))).await;
    }
    let (_, inherited) = fork(&tools).await;
    assert!(inherited.chars().count() < 201_000, "{}", inherited.chars().count());
    assert!(!inherited.contains("message 0 "), "the oldest is gone");
    assert!(inherited.contains("message 8 ") && inherited.ends_with("answer 8"));
    assert!(inherited.contains("removed, the oldest ones, to fit into 200000 characters."));
}

#[tokio::test]
async fn s1_preamble_content() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    talk(&tools, "@say before").await;
    let (task, inherited) = fork(&tools).await;
    assert!(
        inherited.starts_with(
            "You continue from another conversation. What it said so far follows, as background \
             for the prompt that comes after it.\n\n\
             - No compaction found.\n\
             - Tool results, newest first: 0 whole, 0 cut to 3000 characters, 0 cut to 500 \
             characters where they were longer.\n\
             - No messages removed.\n\
             - Every cut says how much is gone. Read a file again if you need its complete content."
        ),
        "{inherited}"
    );
    // The inherited context was posted without asking the model.
    let host = Scripted::Here(world.host.clone());
    let transcript = host.transcript(Place::from(&task)).await.unwrap();
    let messages: Vec<Value> = serde_json::from_str(&transcript).unwrap();
    let roles: Vec<&str> = messages.iter().map(|m| m["info"]["role"].as_str().unwrap()).collect();
    assert_eq!(roles[..2], ["user", "user"]);
}

#[tokio::test]
async fn s0_and_s1_reject_fork_with_resume() {
    for prefix in S0_AND_S1 {
        let world = World::start().await;
        let tools = Tools::of(&world, prefix).await;
        let task = tools.end_of("@say found").await;
        let sessions = world.host.sessions();
        let both = order_with("look", json!({ "fork": true, "resume": task.short_id }));
        assert_eq!(
            tools.refuses("task", both).await,
            "Error: `fork` and `resume` are mutually exclusive: fork starts a new task with this \
             conversation's context, resume goes on with an existing task; pass one of them"
        );
        assert_eq!(world.host.sessions(), sessions);
        assert_eq!(tools.tasks(), [world.task(&task.id)]);
        assert_eq!(world.task(&task.id).run, 0);
    }
}

#[tokio::test]
async fn s1_validate_mutually_exclusive_modes() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    // Also when the task to resume does not exist.
    let both = order_with("look", json!({ "fork": true, "resume": "nobody" }));
    let text = tools.refuses("task", both).await;
    assert!(text.starts_with("Error: `fork` and `resume` are mutually exclusive: "), "{text}");
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}
