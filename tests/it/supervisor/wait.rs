//! Waiting for one, any, all or some tasks: what ends a wait, and which notices it replaces.

use std::time::Duration;

use asyncagents::supervisor::{Answer, Asks, Error, Need, Settings, WaitEnd};
use asyncagents::task::{Answerer, Phase, Status, TaskId};

use crate::support::{World, settings};

const LONG: Duration = Duration::from_secs(30);

async fn three(world: &World) -> Vec<TaskId> {
    let parent = world.parent().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.launch(&parent, "@hang").await.id);
    }
    ids
}

#[tokio::test]
async fn wait_ends_when_enough_tasks_have_ended() {
    for (need, enough) in [(Need::Any, 1), (Need::AtLeast(2), 2), (Need::All, 3)] {
        let world = World::start().await;
        let ids = three(&world).await;
        let waiting = {
            let (supervisor, ids) = (world.supervisor.clone(), ids.clone());
            tokio::spawn(async move { supervisor.wait(&ids, need, LONG).await })
        };
        for id in &ids[..enough] {
            assert!(!waiting.is_finished());
            world.finish(&world.task(id), "done").await;
            world.ended(&world.task(id)).await;
        }
        let waited = waiting.await.unwrap().unwrap();
        assert!(waited.end == WaitEnd::Enough);
        let over = waited.tasks.iter().filter(|task| task.status() == Status::Completed).count();
        assert_eq!(over, enough, "{need:?}");
    }
}

#[tokio::test]
async fn waiting_for_no_tasks_or_for_ended_ones_returns_at_once() {
    let world = World::start().await;
    let parent = world.parent().await;
    let done = world.end_of(&parent, "quick").await;
    let waited = world.supervisor.wait(&[done.id], Need::All, LONG).await.unwrap();
    assert_eq!((waited.tasks.len(), waited.end), (1, WaitEnd::Enough));
    let nothing = world.supervisor.wait(&[], Need::All, LONG).await.unwrap();
    assert_eq!((nothing.tasks.len(), nothing.end), (0, WaitEnd::Enough));
    let unknown = world.supervisor.wait(&[TaskId::new("ses_x")], Need::All, LONG).await;
    assert!(matches!(unknown, Err(Error::NoSuchTask(_))));
}

#[tokio::test]
async fn a_waiter_is_answered_when_the_daemon_stops() {
    let world = World::start().await;
    let ids = three(&world).await;
    let supervisor = world.supervisor.clone();
    let waiting = tokio::spawn(async move { supervisor.wait(&ids, Need::All, LONG).await });
    tokio::task::yield_now().await;
    world.supervisor.stop();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Stopping)));
}

#[tokio::test]
async fn a_waiter_that_fell_behind_the_feed_still_sees_the_end() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let busy = world.launch(&parent, "@hang").await;
    let ids = [task.id.clone()];
    let waiting = world.supervisor.wait(&ids, Need::All, LONG);
    tokio::pin!(waiting);
    // Polled once, so that it has subscribed, and then not while more changes happen than the feed
    // buffers: it has to recover from the lag.
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("nothing has ended yet"),
        () = std::future::ready(()) => {}
    }
    world.finish(&task, "done").await;
    world.until("it has ended", || !world.task(&task.id).is_live()).await;
    let store = &world.store;
    for n in 0..1_100 {
        let mut progress = busy.progress.clone();
        progress.tool_calls = n;
        store.tasks().set_progress(&busy, progress).await.unwrap();
    }
    let waited = waiting.await.unwrap();
    assert_eq!(waited.tasks[0].status(), Status::Completed);
}

#[tokio::test]
async fn a_wait_whose_tasks_are_all_blocked_returns_at_once() {
    let world = World::start().await;
    let parent = world.parent().await;
    let working = world.launch(&parent, "@hang").await;
    let asking = world.launch(&parent, "@ask bash ls\n@say found").await;
    let both = [working.id.clone(), asking.id.clone()];
    let waiting = {
        let (supervisor, both) = (world.supervisor.clone(), both.clone());
        tokio::spawn(async move { supervisor.wait_or_blocked(&both, Need::All, LONG).await })
    };
    world.until("it asks", || !world.supervisor.asks().is_empty()).await;
    assert!(!waiting.is_finished(), "one of them is still running");
    world.finish(&working, "done").await;
    let waited = waiting.await.unwrap().unwrap();
    assert_eq!(waited.end, WaitEnd::Blocked);
    let asked: Vec<TaskId> =
        world.supervisor.asks_of(&waited.tasks).into_iter().map(|asked| asked.task).collect();
    assert_eq!(asked, std::slice::from_ref(&asking.id));
    // A wait for ends alone does not return for the request; the answer unblocks the task.
    let ids = [asking.id.clone()];
    let (ended, answered) = tokio::join!(world.supervisor.wait(&ids, Need::All, LONG), async {
        world.supervisor.answer(asking.short_id.as_str(), Answer::Allow, Answerer::default()).await
    });
    assert_eq!((ended.unwrap().end, answered.unwrap().len()), (WaitEnd::Enough, 1));
}

#[tokio::test]
async fn a_wait_for_a_task_blocked_since_before_a_restart_returns_at_once() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@ask bash ls\n@say found").await;
    world.until("it is blocked", || world.task(&task.id).progress.phase == Phase::Blocked).await;
    world.restart().await;
    let ids = [task.id];
    let waited = world.supervisor.wait_or_blocked(&ids, Need::All, LONG).await.unwrap();
    assert_eq!(waited.end, WaitEnd::Blocked);
}

#[tokio::test]
async fn a_request_that_the_policy_answers_does_not_end_a_wait() {
    let world = World::with(Settings { asks: Asks::Allow, ..settings() }).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@ask bash ls\n@say found").await;
    let ids = [task.id];
    let waited = world.supervisor.wait_or_blocked(&ids, Need::All, LONG).await.unwrap();
    assert_eq!((waited.end, waited.tasks[0].status()), (WaitEnd::Enough, Status::Completed));
}
