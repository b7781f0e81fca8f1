//! Retrying: a failed or cancelled task launched again with the same order, its link to the first one, its idempotency
//! key, and what is refused.

use asyncagents::feed::EventKind;
use asyncagents::host::scripted::Control;
use asyncagents::supervisor::{Caller, Error, Fork, Launch, Target};
use asyncagents::task::launch::TaskSpec;
use asyncagents::task::lifecycle::Refused;
use asyncagents::task::{
    Budget, LaunchMode, MAILBOX, Order, Origin, SHELL, Schema, SessionId, State, Task,
};
use serde_json::json;

use crate::support::{World, caller, order, settings};

impl World {
    async fn retry(&self, by: &SessionId, task: &Task) -> Result<Task, Error> {
        self.supervisor.retry(&caller(by), &task.id, None).await
    }
}

/// A person at the shell, in another directory.
fn shell() -> Caller {
    Caller {
        directory: "/elsewhere".into(),
        host: MAILBOX.into(),
        ..caller(&SessionId::new(SHELL))
    }
}

#[tokio::test]
async fn a_failed_task_is_launched_again_with_the_same_order_and_each_names_the_other() {
    let world = World::start().await;
    let parent = world.parent().await;
    let wanted = TaskSpec {
        order: Order {
            model: Some("openai/gpt".into()),
            budget: Budget { tokens: Some(1_000_000), ..Budget::default() },
            schema: Some(Schema::new(json!({ "type": "object" })).unwrap()),
            ..order("@fail overloaded")
        },
        batch: Some("search".into()),
        host: None,
    };
    let first = world.try_launch(&parent, wanted).await.unwrap();
    let first = world.ended(&first).await;
    assert_eq!(first.state, State::Failed { error: "overloaded".into(), result: None });

    let mut changes = world.supervisor.events();
    let retry = world.retry(&parent, &first).await.unwrap();
    let expected = Origin { retry_of: Some(first.id.clone()), ..first.origin.clone() };
    assert_eq!((&retry.origin, &retry.order), (&expected, &first.order));
    assert_eq!((&retry.batch, &retry.state, retry.run), (&first.batch, &State::Running, 0));
    assert_ne!(retry.id, first.id);
    let linked = Task { retried_by: Some(retry.id.clone()), ..first };
    assert_eq!(world.task(&linked.id), linked);
    let news = [changes.try_recv().unwrap(), changes.try_recv().unwrap()];
    let news = news.map(|change| (change.kind, change.task.id.clone()));
    assert_eq!(
        news,
        [(EventKind::Created, retry.id.clone()), (EventKind::Updated, linked.id.clone())]
    );
    world.ended(&retry).await;
    assert_eq!(world.host.prompts(&retry.id), world.host.prompts(&linked.id));
    assert_eq!(world.posts(&parent, 2).await.len(), 2, "the parent is notified of both ends");
}

#[tokio::test]
async fn live_and_completed_tasks_are_not_retried() {
    let world = World::start().await;
    let parent = world.parent().await;
    let check = async |task: &Task, expected: Refused| {
        let error = world.retry(&parent, task).await.unwrap_err();
        assert!(matches!(error, Error::Refused(refused) if refused == expected), "{error}");
    };
    let running = world.launch(&parent, "@hang").await;
    check(&running, Refused::RetryOfLive).await;
    let done = world.end_of(&parent, "@say done").await;
    check(&done, Refused::RetryOfCompleted).await;
    world.supervisor.resume(&done.id, "@hang".into()).await.unwrap();
    check(&done, Refused::RetryOfLive).await;
    let target = Target::Task(running.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    let retry = world.retry(&parent, &running).await.unwrap();
    assert_eq!(retry.origin.retry_of, Some(running.id));
}

#[tokio::test]
async fn a_parent_retries_only_its_own_tasks_and_a_person_any_for_the_same_parent() {
    let world = World::start().await;
    let (parent, stranger) = (world.parent().await, world.parent().await);
    let first = world.end_of(&parent, "@fail no").await;
    let error = world.retry(&stranger, &first).await.unwrap_err();
    assert!(matches!(&error, Error::NotYours(task) if *task == first.short_id.to_string()));
    assert_eq!(world.task(&first.id), first, "nothing was launched");
    let retry = world.supervisor.retry(&shell(), &first.id, None).await.unwrap();
    assert_eq!(retry.origin, Origin { retry_of: Some(first.id), ..first.origin });
    assert_eq!(retry.batch, first.batch);
    world.ended(&retry).await;
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn the_same_key_retries_once_also_after_a_restart_and_a_resume_of_the_first() {
    let mut any = settings();
    any.resumable = asyncagents::task::lifecycle::ResumePolicy::AnyEnded;
    let mut world = World::with(any).await;
    let parent = world.parent().await;
    let first = world.end_of(&parent, "@fail no").await;
    let by = caller(&parent);
    let key = || Some("key".to_owned());
    let (one, two) = tokio::join!(
        world.supervisor.retry(&by, &first.id, key()),
        world.supervisor.retry(&by, &first.id, key())
    );
    let retry = one.unwrap();
    assert_eq!(two.unwrap().id, retry.id);
    world.restart().await;
    world.supervisor.resume(&first.id, "@hang".into()).await.unwrap();
    assert_eq!(world.supervisor.retry(&by, &first.id, key()).await.unwrap().id, retry.id);
    let another = world.supervisor.retry(&by, &first.id, Some("another".into())).await;
    assert!(matches!(another, Err(Error::Refused(Refused::RetryOfLive))), "{another:?}");
}

#[tokio::test]
async fn a_retried_fork_begins_with_the_context_of_the_first_although_its_parent_talks_on() {
    let world = World::start().await;
    let parent = world.parent().await;
    let fork =
        |prompt: &str| Launch { wanted: order(prompt).into(), fork: Fork::Caller, key: None };
    let first = world.supervisor.launch(caller(&parent), fork("@fail no")).await.unwrap();
    world.ended(&first).await;
    world.posts(&parent, 1).await;
    let retry = world.retry(&parent, &first).await.unwrap();
    world.ended(&retry).await;
    assert!(retry.origin.is_forked);
    assert_eq!(world.host.prompts(&retry.id), world.host.prompts(&first.id));
    assert_eq!(world.host.prompts(&retry.id).len(), 2, "context and prompt");
}

#[tokio::test]
async fn a_blocking_task_is_retried_in_the_background_and_its_session_need_not_exist() {
    let world = World::start().await;
    let parent = world.parent().await;
    let blocking = Order { mode: LaunchMode::Blocking, ..order("@fail no") };
    let first = world.try_launch(&parent, blocking).await.unwrap();
    let first = world.ended(&first).await;
    world.control(Control::Delete { session: first.id.clone() }).await;
    let retry = world.retry(&parent, &first).await.unwrap();
    assert_eq!(retry.order, Order { mode: LaunchMode::Background, ..first.order });
}
