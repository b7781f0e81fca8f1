//! Notice delivery (N1–N3): one notice per run, although posts fail, are retried or are interrupted
//! by a restart.

use std::time::Duration;

use asyncagents::host::scripted::Control;
use asyncagents::store::MOST_DUE;
use asyncagents::supervisor::{
    Caller, Error, Fork, Launch, Mailbox, Need, PermissionDialog, Supervisor, WaitEnd,
};
use asyncagents::task::{MAILBOX, SessionId, Status, Task, TaskId};

use serde_json::json;

use crate::support::{World, caller, order, owes_notices, quoted};

/// Waits for the ends of all, as a parent whose answer arrives: what it says is acknowledged at once.
pub(super) async fn wait_as_parent(
    supervisor: &Supervisor,
    caller: &Caller,
    ids: &[TaskId],
) -> Result<WaitEnd, Error> {
    let (long, asking) = (Duration::from_secs(60), PermissionDialog::default());
    let awaited = supervisor.await_ends(caller, ids, Need::All, long, &asking).await?;
    let ended: Vec<&Task> = awaited.tasks.iter().filter(|task| !task.is_live()).collect();
    supervisor.mail_was_read(awaited.give(&ended).await?).await?;
    Ok(awaited.end)
}

#[tokio::test]
async fn a_notice_is_one_message_of_two_parts_that_wakes_the_parent() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say src/auth.rs").await;
    let post = world.posts(&parent, 1).await.remove(0);
    let visible = post.visible.lines().next().unwrap();
    assert!(visible.starts_with("✓ **Agent \"look around\" finished in "), "{visible}");
    assert_eq!(
        post.hidden,
        format!(
            "All 1 tasks finished.\nUse asyncagents_output tools to see agent responses.\n\n\
             {}",
            quoted(&format!("Result of task {}", task.short_id), "src/auth.rs")
        )
    );
    assert!(post.wake);
    assert_eq!(post.agent, "build");
}

#[tokio::test]
async fn a_notice_that_cannot_be_delivered_is_tried_again() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.control(Control::FailPosts { posts: 2, stored: false }).await;
    world.end_of(&parent, "quick").await;
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_notice_that_arrived_although_its_answer_was_lost_is_not_sent_again() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.control(Control::FailPosts { posts: 1, stored: true }).await;
    world.end_of(&parent, "quick").await;
    let store = world.store.clone();
    world.until("nothing is owed", || !owes_notices(&store)).await;
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_notice_owed_before_a_crash_is_delivered_after_it_and_only_once() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    // Crash window: the first post is stored and its response is lost; then the daemon dies.
    world.control(Control::FailPosts { posts: 1, stored: true }).await;
    world.end_of(&parent, "quick").await;
    world.posts(&parent, 1).await;
    world.restart().await;
    world.end_of(&parent, "again").await;
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
    let store = world.store.clone();
    world.until("nothing is owed", || !owes_notices(&store)).await;
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn notices_of_one_parent_come_in_the_order_of_the_ends() {
    let world = World::start().await;
    let parent = world.parent().await;
    let first = world.launch(&parent, "@hang").await;
    let second = world.launch(&parent, "@hang").await;
    world.control(Control::FailPosts { posts: 1, stored: false }).await;
    world.finish(&second, "second").await;
    world.ended(&second).await;
    world.finish(&first, "first").await;
    world.ended(&first).await;
    let posts = world.posts(&parent, 2).await;
    assert!(posts[0].hidden.ends_with("\nsecond\n~~~"), "{}", posts[0].hidden);
    assert!(posts[1].hidden.ends_with("\nfirst\n~~~"), "{}", posts[1].hidden);
}

#[tokio::test]
async fn a_vanished_parent_does_not_hold_up_the_others() {
    let world = World::start().await;
    let (gone, parent) = (world.parent().await, world.parent().await);
    let task = world.launch(&gone, "@hang").await;
    world.control(Control::Delete { session: gone }).await;
    world.ended(&task).await;
    world.end_of(&parent, "quick").await;
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
    let store = world.store.clone();
    world.until("nothing is owed", || !owes_notices(&store)).await;
}

#[tokio::test]
async fn however_many_notices_wait_for_one_parent_others_get_theirs() {
    let world = World::start().await;
    let (waiting, parent) = (world.parent().await, world.parent().await);
    let first = world.launch(&waiting, "@hang").await;
    let last = world.launch(&waiting, "@hang").await;
    let wait = {
        let (supervisor, caller) = (world.supervisor.clone(), caller(&waiting));
        let both = [first.id.clone(), last.id.clone()];
        tokio::spawn(async move { wait_as_parent(&supervisor, &caller, &both).await })
    };
    tokio::task::yield_now().await;
    world.finish(&first, "found").await;
    world.ended(&first).await;
    let mut others = Vec::new();
    for _ in 0..MOST_DUE {
        others.push(world.launch(&waiting, "@say found").await.id);
    }
    world.supervisor.wait(&others, Need::All, Duration::from_secs(60)).await.unwrap();
    world.end_of(&parent, "quick").await;
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
    let store = world.store.clone();
    assert!(owes_notices(&store));
    world.finish(&last, "found").await;
    wait.await.unwrap().unwrap();
    world.until("nothing is owed", || !owes_notices(&store)).await;
}

#[tokio::test]
async fn an_end_that_a_blocking_output_returned_is_recorded_without_a_reply() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let waiting = {
        let (supervisor, caller, id) = (world.supervisor.clone(), caller(&parent), task.id.clone());
        tokio::spawn(
            async move { supervisor.output(&caller, &id, Some(Duration::from_secs(30))).await },
        )
    };
    let host = world.host.clone();
    world.until("it is prompted", || !host.prompts(&task.id).is_empty()).await;
    // Let the blocking call subscribe before the task ends.
    tokio::task::yield_now().await;
    world.finish(&task, "found").await;
    let output = waiting.await.unwrap().unwrap();
    assert_eq!(output.task.state.result(), Some("found"));
    let posts = world.posts(&parent, 1).await;
    assert_eq!((posts.len(), posts[0].wake), (1, false));
}

#[tokio::test]
async fn a_caller_that_disconnects_while_waiting_is_woken_by_the_notice() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let waiting = {
        let (supervisor, caller, id) = (world.supervisor.clone(), caller(&parent), task.id.clone());
        tokio::spawn(async move { wait_as_parent(&supervisor, &caller, &[id]).await })
    };
    tokio::task::yield_now().await;
    waiting.abort();
    let _ = waiting.await;
    world.finish(&task, "found").await;
    assert!(world.posts(&parent, 1).await[0].wake);
}

#[tokio::test]
async fn a_parent_without_a_conversation_has_its_notices_in_a_mailbox() {
    let world = World::start().await;
    let mut client = caller(&SessionId::new("mcp-client"));
    client.host = MAILBOX.into();
    let launch = Launch { wanted: order("@say found").into(), fork: Fork::No, key: None };
    let task = world.supervisor.launch(client, launch).await.unwrap();
    let task = world.ended(&task).await;
    assert_eq!(task.status(), Status::Completed);
    assert_eq!(world.host.posts(), []);
    let mail =
        world.supervisor.read_mailbox(&caller(&task.origin.parent.session)).await.unwrap().notices;
    assert_eq!(mail.len(), 1);
    assert!(mail[0].visible.starts_with("✓ **Agent \"look around\" finished in "));
    let again = world.supervisor.read_mailbox(&caller(&task.origin.parent.session)).await.unwrap();
    assert_eq!(again, Mailbox::default());
}

#[tokio::test]
async fn a_full_mailbox_is_read_in_parts_and_nothing_twice() {
    let world = World::start().await;
    let client = Caller { host: MAILBOX.into(), ..caller(&SessionId::new("mcp-client")) };
    let mut tasks = Vec::new();
    for _ in 0..120 {
        let launch = Launch { wanted: order("@say found").into(), fork: Fork::No, key: None };
        tasks.push(world.supervisor.launch(client.clone(), launch).await.unwrap().id);
    }
    world.supervisor.wait(&tasks, Need::All, Duration::from_secs(60)).await.unwrap();
    let list = async || world.tool(&client, "asyncagents_list", json!({})).await.text;
    let finished = |text: &str| text.matches("✓ **Agent").count();
    let more = |text: &str, n: usize| {
        text.contains(&format!("\n\n… and {n} more, which come with your next calls.\n\n---\n"))
    };
    let (first, second, third) = (list().await, list().await, list().await);
    assert_eq!([&first, &second, &third].map(|text| finished(text)), [50, 50, 20]);
    assert!(more(&first, 70) && more(&second, 20) && !third.contains("more"), "{first}");
    assert_eq!(finished(&list().await), 0);
}

#[tokio::test]
async fn a_notice_to_a_parent_in_development_mode_says_so() {
    let world = World::start().await;
    let parent = world.parent().await;
    let mut caller = caller(&parent);
    caller.development = true;
    let launch = Launch { wanted: order("quick").into(), fork: Fork::No, key: None };
    world.supervisor.launch(caller, launch).await.unwrap();
    let post = world.posts(&parent, 1).await.remove(0);
    assert!(post.visible.ends_with("\nTask Progress: 1/1\n[hint attached]"), "{}", post.visible);
}
