//! Cancelling (T8): one task or all of a parent, queued or running, and the abort that the host is
//! owed.

use asyncagents::host::scripted::Control;
use asyncagents::store::End;
use asyncagents::supervisor::{Caller, ClearOutcome, Error, Target};
use asyncagents::task::launch::TaskSpec;
use asyncagents::task::lifecycle::{Change, Refused, Report, Request, ResumePolicy};
use asyncagents::task::{BatchId, SHELL, SessionId, State, Status, Task, TaskId};

use crate::support::{World, caller, order, settings};

fn stopped() -> State {
    State::Cancelled { error: None, result: None }
}

#[tokio::test]
async fn cancel_marks_the_task_stops_its_session_and_posts_a_notice_without_waking_the_caller() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@slow-tool bash 60000\n@say never").await;
    world.until("it works", || world.task(&task.id).progress.tool_calls == 1).await;
    let target = Target::Task(task.id.clone());
    let cancelled = world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    assert_eq!(cancelled.tasks[0].state, stopped());
    let post = world.posts(&parent, 1).await.remove(0);
    assert!(post.visible.starts_with("⊘ **Agent \"look around\" cancelled after"));
    assert!(!post.wake);
}

#[tokio::test]
async fn a_person_in_a_shell_may_cancel_what_another_conversation_may_not_and_it_wakes_the_parent()
{
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let task = world.launch(&parent, "@hang").await;
    let target = || Target::Task(task.id.clone());
    let refused = world.supervisor.cancel(&caller(&other), target()).await;
    assert!(matches!(refused, Err(Error::NotYours(_))), "{refused:?}");
    let strangers = Target::Batch(task.batch.clone());
    let refused = world.supervisor.cancel(&caller(&other), strangers).await;
    assert!(matches!(refused, Err(Error::NoSuchBatch(_))), "{refused:?}");
    let shell = caller(&SessionId::new(SHELL));
    world.supervisor.cancel(&shell, target()).await.unwrap();
    assert!(world.posts(&parent, 1).await[0].wake);
}

/// What a daemon leaves that is killed when it has cancelled one task of several.
#[tokio::test]
async fn a_repeated_cancel_does_what_was_left_and_answers_with_all_of_it() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let first = world.launch(&parent, "@hang").await;
    let second = world.launch(&parent, "@hang").await;
    let strange = world.launch(&other, "@hang").await;
    let cancel = async |caller: &Caller, target| {
        let key = Some("key".to_owned());
        let cancelled = world.supervisor.cancel_once(caller, target, key).await.unwrap();
        cancelled.tasks.into_iter().map(|task| task.id).collect::<Vec<TaskId>>()
    };
    let (parent, other) = (caller(&parent), caller(&other));
    let one = Target::Task(first.id.clone());
    assert_eq!(cancel(&parent, one.clone()).await, std::slice::from_ref(&first.id));
    let both = [first.id.clone(), second.id.clone()];
    assert_eq!(cancel(&parent, Target::All).await, both);
    assert_eq!(cancel(&parent, Target::All).await, both);
    assert_eq!(cancel(&parent, one).await, std::slice::from_ref(&first.id));
    assert_eq!(cancel(&parent, Target::Batch(first.batch.clone())).await, both);
    // A key says nothing of tasks that are not its caller's.
    assert_eq!(cancel(&other, Target::All).await, [strange.id]);
}

#[tokio::test]
async fn calls_with_one_key_at_the_same_time_get_the_same_answer() {
    let world = World::start().await;
    let parent = caller(&world.parent().await);
    let task = world.launch(&parent.session, "@hang").await;
    let key = || Some("key".to_owned());
    let cancel = || world.supervisor.cancel_once(&parent, Target::All, key());
    let clear = || world.supervisor.clear_once(&parent, key());
    let (one, other) = tokio::join!(cancel(), cancel());
    for cancelled in [one, other] {
        let ids: Vec<TaskId> = cancelled.unwrap().tasks.into_iter().map(|task| task.id).collect();
        assert_eq!(ids, std::slice::from_ref(&task.id));
    }
    let (one, other) = tokio::join!(clear(), clear());
    let expected = ClearOutcome { cancelled: 1, cleared: 1 };
    assert_eq!([one.unwrap(), other.unwrap()], [expected; 2]);
}

#[tokio::test]
async fn a_repeated_cancel_leaves_alone_what_was_resumed_since() {
    let mut settings = settings();
    settings.resumable = ResumePolicy::AnyEnded;
    let world = World::with(settings).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let cancel = || {
        let key = Some("key".to_owned());
        let target = Target::Task(task.id.clone());
        async { world.supervisor.cancel_once(&caller(&parent), target, key).await.unwrap() }
    };
    cancel().await;
    world.supervisor.resume(&task.id, "@hang".to_owned()).await.unwrap();
    assert_eq!(cancel().await.tasks[0].status(), Status::Resumed);
    assert_eq!(world.status(&task), Status::Resumed);
}

#[tokio::test]
async fn an_ended_task_refuses_to_be_cancelled() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "quick").await;
    let error = world.supervisor.cancel(&caller(&parent), Target::Task(task.id.clone())).await;
    assert!(matches!(error, Err(Error::Refused(Refused::AlreadyOver))));
    assert_eq!(world.task(&task.id), world.task(&task.id));
    let unknown = Target::Task(TaskId::new("ses_nobody"));
    let error = world.supervisor.cancel(&caller(&parent), unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "no task `ses_nobody`; list the tasks to see their ids");
}

#[tokio::test]
async fn cancel_all_stops_the_callers_live_tasks_and_no_others() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let done = world.end_of(&parent, "quick").await;
    let mine = [world.launch(&parent, "@hang").await, world.launch(&parent, "@hang").await];
    let theirs = world.launch(&other, "@hang").await;
    let cancelled = world.supervisor.cancel(&caller(&parent), Target::All).await.unwrap();
    let ids: Vec<TaskId> = cancelled.tasks.iter().map(|task| task.id.clone()).collect();
    assert_eq!(ids, mine.map(|task| task.id));
    assert_eq!(world.status(&done), Status::Completed);
    assert_eq!(world.status(&theirs), Status::Running);
}

#[tokio::test]
async fn cancel_batch_stops_its_live_tasks() {
    let world = World::start().await;
    let parent = world.parent().await;
    let named = |prompt: &str| TaskSpec { batch: Some("nightly".into()), ..order(prompt).into() };
    let inside = world.try_launch(&parent, named("@hang")).await.unwrap();
    let other = world.parent().await;
    let outside = world.launch(&other, "@hang").await;
    let batch = Target::Batch(BatchId::new("nightly"));
    let cancelled = world.supervisor.cancel(&caller(&parent), batch.clone()).await.unwrap();
    assert_eq!(cancelled.tasks.len(), 1);
    assert_eq!(world.task(&inside.id).state, stopped());
    // Cancelling is idempotent, but an unknown batch is an error.
    let again = world.supervisor.cancel(&caller(&parent), batch).await.unwrap();
    assert_eq!(again.tasks, []);
    let never = Target::Batch(BatchId::new("never"));
    let error = world.supervisor.cancel(&caller(&parent), never).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no batch `never`");
    assert_eq!(world.status(&outside), Status::Running);
}

#[tokio::test]
async fn cancelling_a_task_cancels_its_descendants() {
    let mut deep = settings();
    deep.max_depth = 3;
    let world = World::with(deep).await;
    let parent = world.parent().await;
    let child = world.launch(&parent, "@hang").await;
    let grandchild = world.launch(&child.id, "@hang").await;
    let great = world.launch(&grandchild.id, "@hang").await;
    let other = world.launch(&parent, "@hang").await;
    let target = Target::Task(child.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    for task in [&child, &grandchild, &great] {
        assert_eq!(world.task(&task.id).state, stopped());
    }
    assert_eq!(world.status(&other), Status::Running);
    assert!(world.posts(&child.id, 1).await.iter().all(|post| !post.wake));
}

#[tokio::test]
async fn a_session_is_aborted_only_after_its_descendants_are_cancelled() {
    let mut deep = settings();
    deep.max_depth = 2;
    let world = World::with(deep).await;
    let parent = world.parent().await;
    let child = world.launch(&parent, "@hang").await;
    let grandchild = world.launch(&child.id, "@hang").await;
    world
        .until("both work", || {
            [&child, &grandchild].iter().all(|task| world.host.is_busy(&task.id))
        })
        .await;
    let target = Target::Task(child.id.clone());
    let by = caller(&parent);
    // Crash window: once the child's abort is recorded as sent, a restarted daemon does not send it
    // again, so the grandchild has to be cancelled by then.
    let watch = async {
        while world.host.is_busy(&child.id) {
            tokio::task::yield_now().await;
        }
        world.task(&grandchild.id).state
    };
    let (cancelled, seen) = tokio::join!(world.supervisor.cancel(&by, target), watch);
    cancelled.unwrap();
    assert_eq!(seen, stopped());
}

#[tokio::test]
async fn a_crash_before_the_abort_cancels_the_descendants_of_a_cancelled_task_and_of_no_other() {
    let mut deep = settings();
    deep.max_depth = 2;
    let given_up: fn(&Task) -> Change = |task| {
        let report = Report::Failed { error: "out of reach".into(), partial: None };
        task.state.stop(report).unwrap()
    };
    let cancelled: fn(&Task) -> Change =
        |task| task.state.request(Request::Cancel { why: None }).unwrap();
    for (way, expected) in [(given_up, Status::Running), (cancelled, Status::Cancelled)] {
        let mut world = World::with(deep.clone()).await;
        let parent = world.parent().await;
        let child = world.launch(&parent, "@hang").await;
        let grandchild = world.launch(&child.id, "@hang").await;
        world.until("it works", || world.host.is_busy(&child.id)).await;
        let end = End {
            at: world.clock.now(),
            message_id: world.clock.message_id(),
            wake: true,
            open_todos: Vec::new(),
            progress: None,
            transcript: false,
            key: None,
        };
        let now = world.task(&child.id);
        world.store.tasks().end(&now, way(&now), end).await.unwrap().unwrap();
        world.restart().await;
        let store = world.store.clone();
        world.until("it is aborted", || store.tasks().owed_aborts().unwrap().is_empty()).await;
        assert_eq!(world.status(&grandchild), expected);
    }
}

#[tokio::test]
async fn a_cancelled_resume_keeps_the_earlier_result() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    world.supervisor.resume(&task.id, "@hang".into()).await.unwrap();
    let target = Target::Task(task.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    let expected = State::Cancelled { error: None, result: Some("first".into()) };
    assert_eq!(world.task(&task.id).state, expected);
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn an_abort_that_did_not_reach_the_host_is_sent_again_also_by_the_next_daemon() {
    for restart in [false, true] {
        let mut world = World::start().await;
        let parent = world.parent().await;
        let task = world.launch(&parent, "@hang").await;
        world.until("it works", || world.host.is_busy(&task.id)).await;
        world.control(Control::Unreachable { yes: true }).await;
        let target = Target::Task(task.id.clone());
        world.supervisor.cancel(&caller(&parent), target).await.unwrap();
        if restart {
            world.restart().await;
        }
        world.control(Control::Unreachable { yes: false }).await;
        world.until("its session is stopped", || !world.host.is_busy(&task.id)).await;
        let store = world.store.clone();
        world.until("no abort is owed", || store.tasks().owed_aborts().unwrap().is_empty()).await;
        assert_eq!(world.task(&task.id).state, stopped());
    }
}
