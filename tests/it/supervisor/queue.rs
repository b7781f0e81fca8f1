//! Limits and the queue (T11) through supervisor and store: caps, fairness between parents,
//! restarts.

use std::sync::Arc;

use asyncagents::supervisor::{DrainOutcome, Error, Settings, Target};
use asyncagents::task::Order;
use asyncagents::task::queue::Limits;
use asyncagents::task::{Phase, SessionId, Slot, Status, Task};

use crate::support::process::{Shell, until};
use crate::support::{World, caller, order, settings};

fn limited(active: usize, queued: usize, models: &[(&str, usize)]) -> Settings {
    let models = models.iter().map(|(name, n)| ((*name).to_owned(), *n));
    let limits = Limits {
        active: None,
        active_per_parent: active,
        blocking_per_parent: 3,
        active_per_model: models.collect(),
        queued_per_parent: queued,
        is_draining: false,
    };
    Settings { limits: Arc::new(limits), ..settings() }
}

#[tokio::test]
async fn at_the_cap_a_launch_is_queued_and_starts_when_a_finished_task_frees_its_slot() {
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
    // First in, first out.
    for n in 0..5 {
        let host = world.host.clone();
        world
            .until("it is admitted from the queue", || !host.prompts(&tasks[n].id).is_empty())
            .await;
        let started = tasks.iter().filter(|task| !world.host.prompts(&task.id).is_empty()).count();
        assert!(started <= n + 2, "{started} started after {n} ended");
        world.finish(&tasks[n], "done").await;
        world.ended(&tasks[n]).await;
    }
    assert_eq!(world.posts(&parent, 5).await.len(), 5);
}

#[test]
fn a_slot_that_could_not_be_given_is_given_when_the_store_works_again() {
    let mut shell = Shell::with_host_process();
    let file = shell.path("config.toml");
    std::fs::write(&file, "[limits]\nactive_per_parent = 1\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &file);
    let (first, second) = (shell.launch_hanging("first"), shell.launch("@hang"));
    let database = rusqlite::Connection::open(shell.database()).unwrap();
    database
        .execute_batch(
            "CREATE TRIGGER refusing BEFORE UPDATE OF slot ON task WHEN NEW.slot = 2
             BEGIN SELECT RAISE(FAIL, 'no slot can be given'); END",
        )
        .unwrap();
    shell.finish(&first, "done");
    until("the slot cannot be granted", || shell.log().contains("queued tasks not admitted"));
    database.execute_batch("DROP TRIGGER refusing").unwrap();
    // No event announces that the store works again: the retry timer has to admit the task.
    until("it is admitted from the queue", || {
        database
            .query_row("SELECT slot FROM task WHERE id = ?1", [&second.session_id], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
            == 2
    });
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
    // First in, first out per parent: it waits behind its sibling although its own model has a free
    // slot.
    assert_eq!(third.slot, Slot::Queued);
    world.finish(&first, "done").await;
    let slot = |task: &Task| world.task(&task.id).slot;
    world
        .until("both start", || slot(&second) == Slot::Active && slot(&third) == Slot::Active)
        .await;
}

/// Launches on the model that has a limit.
async fn launch_on_acme(world: &World, parent: &SessionId) -> Task {
    let order = Order { model: Some("acme/one".into()), ..order("@hang") };
    world.try_launch(parent, order).await.unwrap()
}

#[tokio::test]
async fn two_parents_with_one_slot_are_served_alternately() {
    let world = World::with(limited(10, 100, &[("acme", 1)])).await;
    let (greedy, modest) = (world.parent().await, world.parent().await);
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(launch_on_acme(&world, &greedy).await);
    }
    for _ in 0..3 {
        waiting.push(launch_on_acme(&world, &modest).await);
    }
    let mut served = Vec::new();
    while !waiting.is_empty() {
        let active = || waiting.iter().position(|task| world.task(&task.id).slot == Slot::Active);
        world.until("one has the slot", || active().is_some()).await;
        let task = waiting.remove(active().unwrap());
        assert!(waiting.iter().all(|other| world.task(&other.id).slot == Slot::Queued));
        served.push(if task.origin.parent.session == greedy { "greedy" } else { "modest" });
        world.finish(&task, "done").await;
        world.ended(&task).await;
    }
    let turns = ["greedy", "modest"].repeat(3);
    assert_eq!(served, [turns, vec!["greedy"; 3]].concat());
}

#[tokio::test]
async fn nobody_overtakes_a_waiting_task_of_the_same_model() {
    let world = World::with(limited(1, 100, &[("acme", 2)])).await;
    let (parent, other) = (world.parent().await, world.parent().await);
    launch_on_acme(&world, &parent).await;
    // The parent's limit holds it back; the model still has a free slot.
    assert_eq!(launch_on_acme(&world, &parent).await.slot, Slot::Queued);
    let newcomer = launch_on_acme(&world, &other).await;
    assert_eq!(newcomer.slot, Slot::Queued, "a newcomer does not take the slot itself");
    let slot = || world.task(&newcomer.id).slot;
    world.until("it gets the slot that no other task could use", || slot() == Slot::Active).await;
    let third = world.parent().await;
    let unlimited = world.launch(&third, "@hang").await;
    assert_eq!(unlimited.slot, Slot::Active, "another model is not affected");
}

#[tokio::test]
async fn a_limit_over_all_parents_holds_and_is_shared_by_turns() {
    let base = limited(10, 100, &[]);
    let limits = Limits { active: Some(2), ..(*base.limits).clone() };
    let world = World::with(Settings { limits: Arc::new(limits), ..base }).await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(world.launch(&parent, "@hang").await);
    }
    tasks.push(world.launch(&other, "@hang").await);
    let slots = || tasks.iter().map(|task| world.task(&task.id).slot).collect::<Vec<_>>();
    use Slot::{Active, None as Over, Queued};
    assert_eq!(slots(), [Active, Active, Queued, Queued, Queued]);
    world.finish(&tasks[0], "done").await;
    world.until("the other parent is next", || slots()[4] == Active).await;
    assert_eq!(slots(), [Over, Active, Queued, Queued, Active]);
}

#[tokio::test]
async fn a_queue_cap_of_zero_still_allows_every_launch_that_need_not_wait() {
    let world = World::with(limited(1, 0, &[])).await;
    let parent = world.parent().await;
    let first = world.end_of(&parent, "@say done").await;
    let second = world.launch(&parent, "@hang").await;
    assert_eq!(second.slot, Slot::Active);
    let error = world.try_launch(&parent, order("@hang")).await.unwrap_err();
    assert!(matches!(error, Error::QueueFull(0)), "{error}");
    // A resume needs a place in the queue, too.
    let error = world.supervisor.resume(&first.id, "go on".into()).await.unwrap_err();
    assert!(matches!(error, Error::QueueFull(0)), "{error}");
    assert_eq!(world.status(&first), Status::Completed);
    world.finish(&second, "done").await;
    world.ended(&second).await;
    let resumed = world.supervisor.resume(&first.id, "go on\n@hang".into()).await.unwrap();
    assert_eq!(resumed.slot, Slot::Active);
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

#[tokio::test]
async fn while_the_queue_is_paused_launches_wait_and_running_tasks_go_on_also_after_a_restart() {
    let mut world = World::with(limited(10, 100, &[])).await;
    let parent = world.parent().await;
    let running = world.launch(&parent, "@hang").await;
    world.supervisor.pause_queue().await.unwrap();
    world.supervisor.pause_queue().await.unwrap();
    let waiting = world.launch(&parent, "@say done").await;
    let paused = "the queue is paused; `asyncagents continue` starts it again";
    let place = |task: &Task| (task.slot, task.progress.phase, task.progress.detail.clone());
    assert_eq!(place(&waiting), (Slot::Queued, Phase::Queued, Some(paused.into())));
    world.finish(&running, "went on").await;
    assert_eq!(world.ended(&running).await.state.result(), Some("went on"));
    let resumed = world.supervisor.resume(&running.id, "@say more".into()).await.unwrap();
    assert_eq!(place(&resumed), (Slot::Queued, Phase::Queued, Some(paused.into())));
    world.restart().await;
    assert!(world.supervisor.is_queue_paused().unwrap());
    assert_eq!(world.supervisor.health_figures().unwrap(), (2, true));
    world.supervisor.sweep();
    let another = world.launch(&parent, "@hang").await;
    assert_eq!(another.slot, Slot::Queued);
    let counts = world.supervisor.slot_counts().unwrap();
    assert_eq!((counts.queued, counts.active), (3, 0));
    world.supervisor.continue_queue().await.unwrap();
    world.supervisor.continue_queue().await.unwrap();
    assert!(!world.supervisor.is_queue_paused().unwrap());
    assert_eq!(world.supervisor.health_figures().unwrap(), (3, false));
    assert_eq!(world.ended(&waiting).await.state.result(), Some("done"));
    assert_eq!(world.ended(&resumed).await.state.result(), Some("more"));
}

#[tokio::test]
async fn a_queued_task_says_that_the_queue_is_paused_only_while_it_is() {
    let world = World::with(limited(1, 100, &[])).await;
    let parent = world.parent().await;
    world.launch(&parent, "@hang").await;
    let waiting = world.launch(&parent, "@hang").await;
    let detail = || world.task(&waiting.id).progress.detail.is_some();
    assert!(!detail());
    world.supervisor.pause_queue().await.unwrap();
    assert!(detail());
    world.supervisor.continue_queue().await.unwrap();
    assert!(!detail());
    assert_eq!(world.task(&waiting.id).progress, waiting.progress);
}

#[tokio::test]
async fn the_next_daemon_corrects_what_queued_tasks_say_of_a_pause_after_a_kill_in_between() {
    let mut world = World::with(limited(1, 100, &[])).await;
    let parent = world.parent().await;
    world.launch(&parent, "@hang").await;
    let waiting = world.launch(&parent, "@hang").await;
    // The pause is written first, the texts of the tasks after it.
    world.crash();
    world.store.slots().pause(waiting.started_at).await.unwrap();
    let stored = world.store.tasks().get(&waiting.id).unwrap().unwrap();
    assert_eq!(stored.progress.detail, None);
    world.revive();
    let says = |task: &Task| task.progress.detail.clone();
    world.until("it says so", || says(&world.task(&waiting.id)).is_some()).await;
    world.crash();
    world.store.slots().unpause().await.unwrap();
    world.revive();
    world.until("it does not any more", || says(&world.task(&waiting.id)).is_none()).await;
}

#[tokio::test]
async fn nothing_starts_while_the_queue_is_drained_and_everything_when_the_drain_is_abandoned() {
    let world = World::with(limited(10, 100, &[])).await;
    let parent = world.parent().await;
    let running = world.launch(&parent, "@hang").await;
    let short = Some(std::time::Duration::from_millis(20));
    let outcome = world.supervisor.drain(short).await.unwrap();
    assert!(matches!(outcome, DrainOutcome::TimedOut(1)));

    let supervisor = world.supervisor.clone();
    let draining = tokio::spawn(async move { supervisor.drain(None).await });
    let mut waiting = Vec::new();
    // It has not begun to drain before the first task that has to wait.
    while waiting.is_empty() {
        tokio::task::yield_now().await;
        let task = world.launch(&parent, "@hang").await;
        match task.slot {
            Slot::Queued => waiting.push(task),
            _ => world
                .supervisor
                .cancel(&caller(&parent), Target::Task(task.id))
                .await
                .map(drop)
                .unwrap(),
        }
    }
    draining.abort();
    let slot = |task: &Task| world.task(&task.id).slot;
    world.until("it starts", || slot(&waiting[0]) == Slot::Active).await;

    world.finish(&waiting[0], "done").await;
    world.finish(&running, "done").await;
    let DrainOutcome::Drained(drained) = world.supervisor.drain(None).await.unwrap() else {
        panic!("there was no time limit");
    };
    let late = world.launch(&parent, "@hang").await;
    assert_eq!(late.slot, Slot::Queued);
    drop(drained);
    world.until("it starts", || slot(&late) == Slot::Active).await;
}
