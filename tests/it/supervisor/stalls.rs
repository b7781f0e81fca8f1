//! Stall detection (T14): no activity, repeated tool calls, cancelling. On a manual clock, with the scripted host.

use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::scripted::Control;
use asyncagents::supervisor::Target;
use asyncagents::task::{Phase, RunEvent, RunEventKind, State, Timestamp};

use crate::support::{World, caller, settings};

async fn world(cancel: bool) -> World {
    let mut settings = settings();
    settings.cancel_stalled = cancel;
    settings.poll_interval = Duration::from_millis(10);
    World::at(settings, Clock::manual(Timestamp::from_millis(1_000_000_000))).await
}

#[tokio::test]
async fn a_stall_is_shown_and_notified_once_and_the_task_goes_on() {
    let world = world(false).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@tool read\n@hang").await;
    let phase = || world.task(&task.id).progress.phase;
    world.until("it was seen working", || world.task(&task.id).progress.tool_calls == 1).await;
    world.until("it waits", || phase() == Phase::Waiting || phase() == Phase::Tool).await;
    world.clock.advance(Duration::from_secs(601));
    world.until("it is stalled", || phase() == Phase::Stalled).await;
    let posts = world.posts(&parent, 1).await;
    let line = posts[0].visible.lines().next().unwrap();
    assert!(line.starts_with("⏸ **Agent \"look around\" has shown no activity for 10m "), "{line}");
    world.clock.advance(Duration::from_secs(3_600));
    world.control(Control::Ring).await;
    world.finish(&task, "found").await;
    let ended = world.ended(&task).await;
    assert_eq!(ended.state, State::Completed { result: "found".into(), error: None });
    let posts = world.posts(&parent, 2).await;
    assert_eq!(posts.len(), 2);
    assert!(posts[1].visible.starts_with("✓"), "{}", posts[1].visible);
}

#[tokio::test]
async fn what_happened_to_a_task_is_told_in_order_with_times_over_all_its_runs() {
    use RunEventKind::*;
    let world = world(false).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let phase = || world.task(&task.id).progress.phase;
    world.until("it was seen", || phase() == Phase::Waiting).await;
    world.clock.advance(Duration::from_secs(601));
    world.until("it is stalled", || phase() == Phase::Stalled).await;
    world.clock.advance(Duration::from_secs(1));
    world.supervisor.send(&task.id, "look at src only".into(), None).await.unwrap();
    world.clock.advance(Duration::from_secs(1));
    world.finish(&task, "found").await;
    world.ended(&task).await;
    world.posts(&parent, 2).await;
    let told = |events: &[RunEvent]| events.iter().any(|event| event.kind == Told);
    let events = || world.supervisor.run_events(&task.id).unwrap();
    world.until("the notice is noted as delivered", || told(&events())).await;
    world.clock.advance(Duration::from_secs(1));
    world.supervisor.resume(&task.id, "@hang".into()).await.unwrap();
    world.until("it works again", || world.host.is_busy(&task.id)).await;
    world.until("the prompt is noted as sent", || events().last().unwrap().kind == Started).await;
    world.clock.advance(Duration::from_secs(1));
    let target = Target::Task(task.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();

    let since = |event: &RunEvent| event.at.since(task.started_at).as_secs();
    let all = events();
    let all: Vec<_> = all
        .iter()
        .map(|event| (since(event), event.run, event.kind, event.text.as_deref()))
        .collect();
    let expected = [
        (0, 0, Queued, None),
        (0, 0, Started, None),
        (601, 0, Stalled, None),
        (602, 0, Message, Some("look at src only")),
        (603, 0, Completed, None),
        (603, 0, Told, None),
        (604, 1, Queued, None),
        (604, 1, Started, None),
        // The caller cancelled it, so it gets no notice.
        (605, 1, Cancelled, None),
    ];
    assert_eq!(all, expected);
}

#[tokio::test]
async fn a_stalled_task_is_cancelled_only_if_the_config_says_so() {
    let world = world(true).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    world.until("it was seen", || world.task(&task.id).progress.phase == Phase::Waiting).await;
    world.clock.advance(Duration::from_secs(600));
    let ended = world.ended(&task).await;
    let State::Cancelled { error: Some(error), .. } = &ended.state else {
        panic!("{:?}", ended.state)
    };
    assert!(error.starts_with("stalled: no activity for 10m "), "{error}");
}

#[tokio::test]
async fn the_same_tool_call_twenty_times_in_a_row_is_a_stall() {
    let world = world(false).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@repeat 20 read\n@hang").await;
    let phase = || world.task(&task.id).progress.phase;
    world.until("it is stalled", || phase() == Phase::Stalled).await;
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_run_that_goes_in_circles_is_notified_once_and_its_figures_go_on() {
    let world = world(false).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@repeat 20 read\n@repeat 20 read\n@hang").await;
    world.until("all calls are shown", || world.task(&task.id).progress.tool_calls == 40).await;
    let progress = world.task(&task.id).progress;
    assert_eq!(progress.phase, Phase::Stalled);
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_stall_is_also_notified_to_a_parent_that_waits_for_the_end() {
    let world = world(false).await;
    let parent = world.parent().await;
    let caller = caller(&parent);
    let task = world.launch(&parent, "@hang").await;
    world.until("it was seen", || world.task(&task.id).progress.phase == Phase::Waiting).await;
    let waiting = world.supervisor.output(&caller, &task.id, Some(Duration::from_secs(100_000)));
    let stalling = async {
        world.clock.advance(Duration::from_secs(601));
        assert_eq!(world.posts(&parent, 1).await.len(), 1);
        world.finish(&task, "found").await;
    };
    let (output, ()) = tokio::join!(waiting, stalling);
    assert_eq!(output.unwrap().task.state.result(), Some("found"));
}
