//! Resuming (T3, O4): the next run of a completed task, its idempotency key, and what is refused.

use asyncagents::host::scripted::Control;
use asyncagents::supervisor::{Error, Target};
use asyncagents::task::lifecycle::{Refused, ResumePolicy};
use asyncagents::task::{State, Status};

use crate::support::{World, caller, settings};

#[tokio::test]
async fn a_resume_goes_on_in_the_same_session_and_its_notice_says_resume() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    let resumed = world.supervisor.resume(&task.id, "@think 20\n@say second".into()).await.unwrap();
    assert_eq!((resumed.status(), resumed.run), (Status::Resumed, 1));
    assert_eq!((resumed.completed_at, resumed.state.result()), (None, Some("first")));
    let ended = world.ended(&task).await;
    assert_eq!(ended.state, State::Completed { result: "second".into(), error: None });
    assert_eq!(ended.run, 1);
    assert_eq!(world.host.prompts(&task.id), ["@say first", "@think 20\n@say second"]);
    let posts = world.posts(&parent, 2).await;
    assert!(posts[1].visible.starts_with("✓ **Resume #1 completed in "), "{}", posts[1].visible);
    assert!(posts[1].hidden.ends_with("\nsecond\n~~~"));
}

#[tokio::test]
async fn a_resume_that_fails_goes_back_with_the_earlier_result_kept() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    world.supervisor.resume(&task.id, "@fail overloaded".into()).await.unwrap();
    let ended = world.ended(&task).await;
    let expected = State::Completed { result: "first".into(), error: Some("overloaded".into()) };
    assert_eq!(ended.state, expected);
    let posts = world.posts(&parent, 2).await;
    assert!(posts[1].visible.starts_with("✗ **Resume #1 failed in "), "{}", posts[1].visible);
    assert!(posts[1].hidden.contains("Error: \"overloaded\""), "{}", posts[1].hidden);
    // A failed resume can be retried.
    world.supervisor.resume(&task.id, "@say third".into()).await.unwrap();
    let ended = world.ended(&task).await;
    assert_eq!(ended.state, State::Completed { result: "third".into(), error: None });
    let posts = world.posts(&parent, 3).await;
    assert!(posts[2].visible.starts_with("✓ **Resume #2 completed in "), "{}", posts[2].visible);
}

#[tokio::test]
async fn only_completed_tasks_can_be_resumed() {
    let world = World::start().await;
    let parent = world.parent().await;
    let check = async |id, expected: Refused| {
        let error = world.supervisor.resume(id, "more".into()).await.unwrap_err();
        assert!(matches!(error, Error::Refused(refused) if refused == expected), "{error}");
    };
    let running = world.launch(&parent, "@hang").await;
    check(&running.id, Refused::StillRunning).await;
    let failed = world.end_of(&parent, "@fail no").await;
    check(&failed.id, Refused::NotCompleted).await;
    let target = Target::Task(running.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    check(&running.id, Refused::NotCompleted).await;
    let done = world.end_of(&parent, "quick").await;
    world.supervisor.resume(&done.id, "@hang".into()).await.unwrap();
    check(&done.id, Refused::BeingResumed).await;
    let error = world.supervisor.resume(&done.id, "  ".into()).await.unwrap_err();
    assert_eq!(error.to_string(), "`prompt` is required and must not be empty");
}

#[tokio::test]
async fn a_task_whose_session_is_gone_suggests_a_new_one() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "quick").await;
    world.control(Control::Delete { session: task.id.clone() }).await;
    let error = world.supervisor.resume(&task.id, "more".into()).await.unwrap_err();
    let expected = format!(
        "session of task `{}` no longer exists; start a new task with asyncagents_task",
        task.short_id
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(world.task(&task.id).state, task.state);
}

#[tokio::test]
async fn any_ended_task_can_be_resumed_when_the_settings_say_so() {
    let mut any = settings();
    any.resumable = ResumePolicy::AnyEnded;
    let world = World::with(any).await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@fail first").await;
    world.supervisor.resume(&task.id, "@fail second".into()).await.unwrap();
    let ended = world.ended(&task).await;
    assert_eq!(ended.state, State::Failed { error: "second".into(), result: None });
    world.supervisor.resume(&task.id, "@say found".into()).await.unwrap();
    assert_eq!(world.ended(&task).await.state.result(), Some("found"));
}

#[tokio::test]
async fn two_resumes_at_once_start_one_run() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "quick").await;
    let resume = || world.supervisor.resume(&task.id, "@think 30\n@say more".into());
    let (one, two) = tokio::join!(resume(), resume());
    assert_eq!([one.is_ok(), two.is_ok()].iter().filter(|ok| **ok).count(), 1);
    world.ended(&task).await;
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
    assert_eq!(world.task(&task.id).run, 1);
}

#[tokio::test]
async fn the_same_key_resumes_once() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    let resume = async |prompt: &str, key: &str| {
        world.supervisor.resume_once(&task.id, prompt.into(), Some(key.into())).await
    };
    let one = resume("@think 50\n@say second", "key").await.unwrap();
    let again = resume("@think 50\n@say second", "key").await.unwrap();
    assert_eq!((one.run, again.run), (1, 1));
    world.ended(&one).await;
    assert_eq!(resume("@say second", "key").await.unwrap().run, 1, "also when it is over");
    let next = resume("@say third", "another").await.unwrap();
    assert_eq!(next.run, 2);
    world.ended(&next).await;
    assert_eq!(
        resume("@say second", "key").await.unwrap().run,
        2,
        "also when another one followed"
    );
}
