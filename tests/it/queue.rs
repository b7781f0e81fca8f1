//! Limits and the queue (T11).

use std::sync::Arc;

use asyncagents::supervisor::{Error, Settings, Target};
use asyncagents::task::queue::Limits;
use asyncagents::task::{Phase, Slot, Status, Task};

use crate::support::{World, caller, order, settings};

fn limited(active: usize, queued: usize, models: &[(&str, usize)]) -> Settings {
    let models = models.iter().map(|(name, n)| ((*name).to_owned(), *n));
    let limits = Limits {
        active_per_parent: active,
        blocking_per_parent: 3,
        active_per_model: models.collect(),
        queued_per_parent: queued,
    };
    Settings { limits: Arc::new(limits), ..settings() }
}

#[tokio::test]
async fn at_the_cap_a_launch_is_queued_and_starts_when_a_finished_task_frees_its_place() {
    let world = World::with(limited(2, 100, &[])).await;
    let parent = world.parent().await;
    let mut tasks: Vec<Task> = Vec::new();
    for _ in 0..5 {
        tasks.push(world.launch(&parent, "@hang").await);
    }
    let slots: Vec<Slot> = tasks.iter().map(|task| task.slot).collect();
    use Slot::{Active, Queued};
    assert_eq!(slots, [Active, Active, Queued, Queued, Queued]);
    assert_eq!(tasks[4].progress.phase, Phase::Queued);
    assert_eq!(tasks[4].status(), Status::Running);
    // In the order in which they came.
    for n in 0..5 {
        let host = world.host.clone();
        world.until("its turn comes", || !host.prompts(&tasks[n].id).is_empty()).await;
        let started = tasks.iter().filter(|task| !world.host.prompts(&task.id).is_empty()).count();
        assert!(started <= n + 2, "{started} started after {n} ended");
        world.finish(&tasks[n], "done").await;
        world.ended(&tasks[n]).await;
    }
    assert_eq!(world.posts(&parent, 5).await.len(), 5);
}

#[tokio::test]
async fn parents_do_not_wait_for_each_other() {
    let world = World::with(limited(1, 100, &[])).await;
    let (parent, other) = (world.parent().await, world.parent().await);
    world.launch(&parent, "@hang").await;
    assert_eq!(world.launch(&parent, "@hang").await.slot, Slot::Queued);
    assert_eq!(world.launch(&other, "@hang").await.slot, Slot::Active);
}

#[tokio::test]
async fn a_model_has_a_limit_of_its_own() {
    let world = World::with(limited(10, 100, &[("acme", 1)])).await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let with_model = |model: &str| {
        let mut order = order("@hang");
        order.model = Some(model.into());
        order
    };
    let first = world.try_launch(&parent, with_model("acme/one")).await.unwrap();
    let second = world.try_launch(&other, with_model("acme/two")).await.unwrap();
    let third = world.try_launch(&other, with_model("other/one")).await.unwrap();
    assert_eq!((first.slot, second.slot), (Slot::Active, Slot::Queued));
    // First in, first out: it waits behind its sibling.
    assert_eq!(third.slot, Slot::Queued);
    world.finish(&first, "done").await;
    let slot = |task: &Task| world.task(&task.id).slot;
    world
        .until("both start", || slot(&second) == Slot::Active && slot(&third) == Slot::Active)
        .await;
}

#[tokio::test]
async fn a_hard_cap_on_queued_tasks_gives_a_clear_error() {
    let world = World::with(limited(1, 2, &[])).await;
    let parent = world.parent().await;
    for _ in 0..3 {
        world.launch(&parent, "@hang").await;
    }
    let error = world.try_launch(&parent, order("@hang")).await.unwrap_err();
    assert!(matches!(error, Error::QueueFull(2)), "{error}");
    assert_eq!(world.supervisor.task_count().unwrap(), 3);
}

#[tokio::test]
async fn a_cancelled_task_that_was_still_queued_never_starts() {
    let world = World::with(limited(1, 10, &[])).await;
    let parent = world.parent().await;
    let first = world.launch(&parent, "@hang").await;
    let second = world.launch(&parent, "@hang").await;
    let third = world.launch(&parent, "@hang").await;
    let target = Target::Task(second.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    world.finish(&first, "done").await;
    let host = world.host.clone();
    world.until("the third starts", || !host.prompts(&third.id).is_empty()).await;
    assert_eq!(world.host.prompts(&second.id), [""; 0]);
    assert_eq!(world.status(&second), Status::Cancelled);
}

#[tokio::test]
async fn cancelling_all_starts_none_of_the_queued() {
    let world = World::with(limited(1, 10, &[])).await;
    let parent = world.parent().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(world.launch(&parent, "@hang").await);
    }
    world.supervisor.cancel(&caller(&parent), Target::All).await.unwrap();
    for task in &tasks[1..] {
        assert_eq!(world.host.prompts(&task.id), [""; 0]);
    }
    assert_eq!(world.launch(&parent, "@hang").await.slot, Slot::Active);
}

#[tokio::test]
async fn a_resume_takes_a_slot_like_a_launch() {
    let world = World::with(limited(1, 10, &[])).await;
    let parent = world.parent().await;
    let done = world.end_of(&parent, "@say first").await;
    let busy = world.launch(&parent, "@hang").await;
    let resumed = world.supervisor.resume(&done.id, "@say second".into()).await.unwrap();
    assert_eq!((resumed.slot, resumed.progress.phase), (Slot::Queued, Phase::Queued));
    assert_eq!(resumed.status(), Status::Resumed);
    world.finish(&busy, "done").await;
    assert_eq!(world.ended(&resumed).await.state.result(), Some("second"));
}

#[tokio::test]
async fn a_queue_survives_a_restart() {
    let mut world = World::with(limited(1, 10, &[])).await;
    let parent = world.parent().await;
    let first = world.launch(&parent, "@hang").await;
    let second = world.launch(&parent, "@say mine").await;
    world.restart().await;
    let host = world.host.clone();
    world.until("the first works", || !host.prompts(&first.id).is_empty()).await;
    assert_eq!(world.task(&second.id).slot, Slot::Queued);
    world.finish(&first, "done").await;
    assert_eq!(world.ended(&second).await.state.result(), Some("mine"));
}
