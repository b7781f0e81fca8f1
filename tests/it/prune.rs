//! Pruning (D3).

use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::supervisor::{self, Keep, Settings};
use asyncagents::task::{Status, Timestamp};

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

#[tokio::test]
async fn a_clock_that_was_set_forward_does_not_take_the_history_along() {
    let day = Duration::from_secs(86_400);
    let clock = Clock::manual(Timestamp::from_millis(1_700_000_000_000));
    let history = Keep { age: Some(day), ..Keep::default() };
    let mut world = World::at(Settings { history, ..settings() }, clock).await;
    let parent = world.parent().await;
    let old = world.end_of(&parent, "old").await;
    world.clock.advance(10 * day);
    let new = world.end_of(&parent, "new").await;
    everybody_is_told(&world).await;
    world.kill();
    world.clock.advance(400 * day);
    world.revive();
    world.until("it is pruned", || world.supervisor.task_count().unwrap() < 2).await;
    assert!(world.supervisor.task(&old.id).is_err(), "it is older than the newest change");
    assert_eq!(world.status(&new), Status::Completed);
    // Who asks is believed.
    assert_eq!(world.supervisor.prune(&history).await.unwrap(), 1);
}

#[tokio::test]
async fn ids_and_tickets_go_on_when_the_clock_was_set_back_between_two_daemons() {
    let at = |millis| Clock::manual(Timestamp::from_millis(millis));
    let world = World::at(settings(), at(1_700_000_000_000)).await;
    let parent = world.parent().await;
    let queued = world.launch(&parent, "@hang").await;
    let back = at(1_699_000_000_000);
    supervisor::go_on(world.supervisor.store(), &back).unwrap();
    assert!(back.session_id() > queued.id);
    assert!(back.tick() > world.supervisor.store().newest().unwrap().ticket);
    let newest = world.supervisor.store().newest().unwrap().ids;
    assert!(newest.iter().all(|id| *id < back.message_id().to_string() || id.starts_with("ses_")));
}

async fn everybody_is_told(world: &World) {
    let owed = || world.supervisor.store().owes_notices().unwrap();
    world.until("everybody is told", || !owed()).await;
}
