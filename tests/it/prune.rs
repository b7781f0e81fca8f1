//! Pruning (D3).

use asyncagents::supervisor::{Keep, Settings};
use asyncagents::task::Status;

use crate::support::{World, settings};

#[tokio::test]
async fn a_limited_history_is_pruned_when_the_daemon_starts() {
    let history = Keep { tasks: Some(1), ..Keep::default() };
    let mut world = World::with(Settings { history, ..settings() }).await;
    let parent = world.parent().await;
    let live = world.launch(&parent, "@hang").await;
    let old = world.end_of(&parent, "old").await;
    let new = world.end_of(&parent, "new").await;
    everybody_is_told(&world).await;
    assert_eq!(world.supervisor.task_count().unwrap(), 3);
    world.restart().await;
    world.until("it is pruned", || world.supervisor.task_count().unwrap() == 2).await;
    assert!(world.supervisor.task(&old.id).is_err());
    assert_eq!(world.status(&new), Status::Completed);
    assert_eq!(world.status(&live), Status::Running);
}

#[tokio::test]
async fn history_is_kept_until_pruned() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let done = world.end_of(&parent, "quick").await;
    everybody_is_told(&world).await;
    world.restart().await;
    assert_eq!(world.task(&done.id).state, done.state);
    let keep = |tasks| Keep { tasks: Some(tasks), ..Keep::default() };
    assert_eq!(world.supervisor.prune(&keep(1)).await.unwrap(), 0);
    assert_eq!(world.supervisor.prune(&keep(0)).await.unwrap(), 1);
    let gone = world.supervisor.task(&done.id).unwrap_err().to_string();
    assert!(gone.starts_with(&format!("no task `{}`", done.id)), "{gone}");
}

async fn everybody_is_told(world: &World) {
    let owed = || world.supervisor.store().owes_notices().unwrap();
    world.until("everybody is told", || !owed()).await;
}
