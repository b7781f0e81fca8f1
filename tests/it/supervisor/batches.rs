//! Batches (T10): which tasks belong to one, and the counts in the notices of their ends (N4).

use asyncagents::supervisor::Launch;
use asyncagents::task::launch::TaskSpec;
use asyncagents::task::{BatchId, MAILBOX, SessionId};

use crate::support::{World, caller, order};

#[tokio::test]
async fn tasks_launched_while_the_batch_has_a_live_task_share_it() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let first = world.launch(&parent, "@hang").await;
    let second = world.launch(&parent, "@hang").await;
    let theirs = world.launch(&other, "@hang").await;
    assert_eq!(first.batch, second.batch);
    assert_ne!(first.batch, theirs.batch);
    world.finish(&first, "one").await;
    world.ended(&first).await;
    let third = world.launch(&parent, "@hang").await;
    assert_eq!(first.batch, third.batch);
    for task in [&second, &third] {
        world.finish(task, "more").await;
        world.ended(task).await;
    }
    let fourth = world.launch(&parent, "@hang").await;
    assert_ne!(first.batch, fourth.batch);
}

#[tokio::test]
async fn a_launch_can_name_its_batch() {
    let world = World::start().await;
    let parent = world.parent().await;
    let wanted = TaskSpec { batch: Some("nightly".into()), ..order("@hang").into() };
    let task = world.try_launch(&parent, wanted).await.unwrap();
    assert_eq!(task.batch, BatchId::new("nightly"));
}

#[tokio::test]
async fn each_launch_from_the_shell_is_a_batch_of_its_own() {
    let world = World::start().await;
    let mut shell = caller(&SessionId::new("cli"));
    shell.host = MAILBOX.into();
    shell.lone_batches = true;
    let launch = || Launch {
        wanted: order("@hang").into(),
        fork: asyncagents::supervisor::Fork::No,
        key: None,
    };
    let first = world.supervisor.launch(shell.clone(), launch()).await.unwrap();
    let second = world.supervisor.launch(shell, launch()).await.unwrap();
    assert_ne!(first.batch, second.batch);
    assert_eq!(first.origin.parent.message, "");
}

#[tokio::test]
async fn progress_counts_the_ended_tasks_of_the_batch() {
    let world = World::start().await;
    let parent = world.parent().await;
    let tasks = [
        world.launch(&parent, "@hang").await,
        world.launch(&parent, "@hang").await,
        world.launch(&parent, "@hang").await,
    ];
    for (n, task) in tasks.iter().enumerate() {
        world.finish(task, "done").await;
        world.ended(task).await;
        let post = world.posts(&parent, n + 1).await.remove(n);
        let progress = format!("\nTask Progress: {}/3", n + 1);
        assert!(post.visible.ends_with(&progress), "{}", post.visible);
        let hint = match n {
            2 => "All 3 tasks finished.\nUse asyncagents_output tools to see agent responses.",
            _ => {
                "WATCH OUT for leftovers, you will likely WANT to wait for all agents to complete."
            }
        };
        assert!(post.hidden.contains(hint), "{}", post.hidden);
    }
}
