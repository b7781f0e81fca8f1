//! Launching a task (T4, T5, T12, O4): what is refused, what is on disk before the host is called,
//! and how recovery treats an interrupted launch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::feed::{EventKind, Feed};
use asyncagents::host::scripted::{Control, Remote, Scripted};
use asyncagents::host::{Host, NewSession};
use asyncagents::store::{Intent, Store};
use asyncagents::supervisor::{Caller, Error, Fork, Hosts, Launch, Supervisor, Target};
use asyncagents::task::launch::TaskSpec;
use asyncagents::task::{LaunchMode, MAILBOX, Parent, Phase, Slot, State, Status, Timestamp};

use crate::support::{World, caller, order, settings};

#[tokio::test]
async fn launch_returns_at_once_with_id_running_and_the_parent_recorded() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    assert!(task.id.as_str().starts_with("ses_"));
    assert_eq!(task.short_id.as_str().len(), 6);
    assert_eq!((task.state.clone(), task.run, task.slot), (State::Running, 0, Slot::Active));
    let expected = Parent {
        session: parent,
        message: "msg_parent".into(),
        agent: "build".into(),
        host: "scripted".into(),
    };
    assert_eq!(task.origin.parent, expected);
    assert_eq!(
        (task.origin.host.as_str(), task.origin.host_instance.as_str()),
        ("scripted", "scripted-0")
    );
    assert_eq!(task.origin.directory, "/project");
    assert_eq!(world.task(&task.id).short_id, task.short_id);
}

#[tokio::test]
async fn created_comes_before_any_other_event_of_a_task() {
    let world = World::start().await;
    let parent = world.parent().await;
    let mut changes = world.supervisor.events();
    let task = world.end_of(&parent, "@tool read\n@say found").await;
    let mut kinds = Vec::new();
    while let Ok(change) = changes.try_recv() {
        assert_eq!(change.task.id, task.id);
        kinds.push(change.kind);
    }
    assert_eq!(kinds.first(), Some(&EventKind::Created));
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::Created).count(), 1);
    assert_eq!(kinds.last(), Some(&EventKind::Completed));
}

#[tokio::test]
async fn an_unknown_agent_is_refused_with_the_known_names_and_nothing_is_created() {
    let world = World::start().await;
    let parent = world.parent().await;
    let mut order = order("look");
    order.agent = "x".into();
    let error = world.try_launch(&parent, order).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Agent \"x\" not found. Make sure it's registered. \
         Known agents: build, explore, general, librarian, oracle"
    );
    assert_eq!(world.host.sessions(), [parent]);
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn a_host_that_cannot_open_a_session_gives_a_clear_error_and_no_task() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.control(Control::FailOpens { opens: 1 }).await;
    let error = world.try_launch(&parent, order("look")).await.unwrap_err();
    assert_eq!(error.to_string(), "host cannot be reached: opening failed by its script");
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
    world.end_of(&parent, "look").await;
}

#[tokio::test]
async fn a_child_may_not_launch_tasks_and_our_tools_are_denied_to_it() {
    let world = World::start().await;
    let parent = world.parent().await;
    let child = world.launch(&parent, "@hang").await;
    let error = world.try_launch(&child.id, order("deeper")).await.unwrap_err();
    assert!(matches!(error, Error::TooDeep(1)), "{error}");
    let denied = ["asyncagents_*", "superagents_*", "background_*", "Task", "task", "question"];
    assert_eq!(world.host.denied(&child.id), denied);
}

#[tokio::test]
async fn nested_launches_can_be_allowed_up_to_a_depth() {
    let mut deep = settings();
    deep.max_depth = 2;
    let world = World::with(deep).await;
    let parent = world.parent().await;
    let child = world.launch(&parent, "@hang").await;
    let grandchild = world.launch(&child.id, "@hang").await;
    assert_eq!((child.origin.depth, grandchild.origin.depth), (1, 2));
    let error = world.try_launch(&grandchild.id, order("deeper")).await.unwrap_err();
    assert!(matches!(error, Error::TooDeep(2)), "{error}");
}

#[tokio::test]
async fn the_same_key_launches_the_same_task() {
    let world = World::start().await;
    let parent = world.parent().await;
    let launch =
        || Launch { wanted: order("@hang").into(), fork: Fork::No, key: Some("k1".into()) };
    let first = world.supervisor.launch(caller(&parent), launch()).await.unwrap();
    let second = world.supervisor.launch(caller(&parent), launch()).await.unwrap();
    assert_eq!(first.id, second.id);
    assert_eq!(world.supervisor.task_count().unwrap(), 1);
}

/// Writes the intent of a daemon that died before it called the host; [`World::crash`] comes first.
async fn intend(world: &World, parent: &asyncagents::task::SessionId, nonce: &str) {
    intend_on("scripted", world, parent, nonce).await;
}

async fn intend_on(host: &str, world: &World, parent: &asyncagents::task::SessionId, nonce: &str) {
    let begun = serde_json::json!({
        "caller": caller(parent),
        // The stored format since the first version: recovery has to read old rows.
        "order": {
            "description": "look around", "prompt": "adopted\n@say found", "agent": "explore",
            "batch": "nightly", "model": null, "budget": {}, "host": null,
        },
        "host": host,
        "depth": 1,
        "at": world.clock.now(),
    });
    let intent = Intent {
        nonce: nonce.into(),
        host: host.into(),
        parent_session: parent.clone(),
        created_at: world.clock.now(),
        launch: begun.to_string(),
    };
    world
        .store
        .intents()
        .intend(intent, None, LaunchMode::Background, settings().limits)
        .await
        .unwrap();
}

async fn open(world: &World, nonce: &str) -> asyncagents::task::SessionId {
    let session = NewSession {
        parent: None,
        title: "Background: look around".into(),
        nonce: nonce.into(),
        directory: "/project".into(),
        agent: "explore".into(),
        deny: Vec::new(),
        handed: Default::default(),
    };
    Scripted::Here(world.host.clone()).open(session).await.unwrap().session
}

#[tokio::test]
async fn a_host_that_does_not_answer_does_not_hold_up_the_recovery_of_launches_on_another() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    for _ in 0..3 {
        world.launch(&parent, "@hang").await;
    }
    world.control(Control::Unreachable { yes: true }).await;
    world.supervisor.cancel(&caller(&parent), Target::All).await.unwrap();
    world.control(Control::Unreachable { yes: false }).await;
    world.crash();
    intend_on("other", &world, &parent, "n1").await;
    let session = open(&world, "n1").await;
    // A host that accepts connections and never responds.
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("silent.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut all: BTreeMap<String, Arc<dyn Host>> = BTreeMap::new();
    all.insert("scripted".into(), Arc::new(Scripted::Process(Remote::new(&socket).unwrap())));
    all.insert("other".into(), Arc::new(Scripted::Here(world.host.clone())));
    world.revive_with(Hosts { all, default: Some("other".into()) });
    let supervisor = world.supervisor.clone();
    world.until("it is adopted", || supervisor.task(&session).is_ok()).await;
    assert_eq!(world.ended(&world.task(&session)).await.state.result(), Some("found"));
    assert_eq!(world.store.tasks().owed_aborts().unwrap().len(), 3);
}

#[tokio::test]
async fn a_crash_after_the_session_was_opened_leaves_a_task_that_goes_on() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    world.crash();
    intend(&world, &parent, "n1").await;
    let session = open(&world, "n1").await;
    world.revive();
    let supervisor = world.supervisor.clone();
    world.until("it is adopted", || supervisor.task(&session).is_ok()).await;
    let task = world.ended(&world.task(&session)).await;
    assert_eq!(task.state, State::Completed { result: "found".into(), error: None });
    assert_eq!(
        (task.batch.as_str(), task.order),
        ("nightly", order("adopted\n@say found")),
        "as it was ordered"
    );
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
    assert_eq!(world.store.intents().all().unwrap(), []);
}

#[tokio::test]
async fn a_crash_before_the_session_was_opened_leaves_nothing() {
    let mut world = World::at(settings(), Clock::manual(Timestamp::from_millis(1_000_000))).await;
    let parent = world.parent().await;
    world.crash();
    intend(&world, &parent, "n1").await;
    world.clock.advance(Duration::from_secs(60));
    world.revive();
    let store = world.store.clone();
    world.until("the intent is gone", || store.intents().all().unwrap().is_empty()).await;
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
    assert_eq!(world.host.sessions(), [parent]);
}

/// A host may carry out what a killed daemon asked of it after its successor has looked for it.
#[tokio::test]
async fn a_session_that_a_killed_daemon_asked_for_and_that_is_opened_late_is_deleted() {
    let mut world = World::at(settings(), Clock::manual(Timestamp::from_millis(1_000_000))).await;
    let parent = world.parent().await;
    world.crash();
    intend(&world, &parent, "k1").await;
    world.revive();
    let launch = Launch { wanted: order("@hang").into(), fork: Fork::No, key: Some("k1".into()) };
    let task = world.supervisor.launch(caller(&parent), launch).await.unwrap();
    world.control(Control::OpenTwin { of: task.id.clone() }).await;
    assert_eq!(world.host.sessions().len(), 3);
    world.clock.advance(Duration::from_secs(15));
    let (host, mut expected) = (world.host.clone(), [parent, task.id]);
    expected.sort();
    world.until("the late one is deleted", || host.sessions() == expected).await;
}

#[tokio::test]
async fn a_session_of_a_launch_that_was_refused_is_deleted() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    world.crash();
    intend(&world, &parent, "n1").await;
    open(&world, "n1").await;
    world.store.intents().abandon("n1".into()).await.unwrap();
    world.revive();
    let store = world.store.clone();
    world.until("the intent is gone", || store.intents().all().unwrap().is_empty()).await;
    assert_eq!(world.host.sessions(), [parent]);
}

#[tokio::test]
async fn a_prompt_that_was_not_sent_before_a_crash_is_sent_after_it() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    world.control(Control::Unreachable { yes: false }).await;
    let blocked: Vec<_> = {
        // Crash window: the session is open and the row complete, but the host becomes unreachable
        // before the prompt.
        let task = world.launch(&parent, "@hang").await;
        world.control(Control::Unreachable { yes: true }).await;
        vec![task]
    };
    world.restart().await;
    world.control(Control::Unreachable { yes: false }).await;
    let host = world.host.clone();
    world.until("it is prompted", || !host.prompts(&blocked[0].id).is_empty()).await;
    world.finish(&blocked[0], "late").await;
    let task = world.ended(&blocked[0]).await;
    assert_eq!(task.state.result(), Some("late"));
    assert_eq!(world.host.prompts(&task.id), ["@hang"]);
}

#[tokio::test]
async fn a_launch_without_a_usable_host_is_refused_with_the_way_out() {
    let world = World::start().await;
    let parent = world.parent().await;
    let wanted = TaskSpec { host: Some("elsewhere".into()), ..order("look").into() };
    let error = world.try_launch(&parent, wanted).await.unwrap_err();
    assert_eq!(error.to_string(), "no host `elsewhere`; configured: scripted");
    // The error without any configured host.
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&dir.path().join("asyncagents.db"), |_| {}).unwrap();
    let bare = Supervisor::new(store, Feed::new(), Clock::system(), Hosts::default(), settings());
    let launch = Launch { wanted: crate::support::order("look").into(), fork: Fork::No, key: None };
    let error = bare.launch(caller(&parent), launch.clone()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no host `scripted`; configured: ",
        "its notices would have no host"
    );
    let shell = Caller { host: MAILBOX.into(), ..caller(&parent) };
    let error = bare.launch(shell, launch).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no host to run agents on: set ASYNCAGENTS_HOST, or `host` in the configuration file \
         (`asyncagents config init` writes a commented one)"
    );
}

#[tokio::test]
async fn phases_show_where_a_live_task_is() {
    let world = World::start().await;
    let parent = world.parent().await;
    let check = async |prompt: &str, phase: Phase, detail: Option<&str>| {
        let task = world.launch(&parent, prompt).await;
        let shown = || world.task(&task.id).progress;
        world.until(phase.name(), || shown().phase == phase).await;
        assert_eq!(shown().detail.as_deref(), detail);
        assert_eq!(world.status(&task), Status::Running);
    };
    check("@hang", Phase::Waiting, None).await;
    check("@slow-tool bash 60000", Phase::Tool, None).await;
    check("@stream 1 60000", Phase::Streaming, None).await;
    check("@retry 60000 overloaded", Phase::Retrying, Some("overloaded")).await;
    check("@ask bash rm x", Phase::Blocked, Some("bash rm x")).await;
}

#[tokio::test]
async fn a_caller_that_repeats_its_launch_after_a_crash_gets_the_task_that_was_begun() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    intend(&world, &parent, "k1").await;
    let session = open(&world, "k1").await;
    world.restart().await;
    let launch =
        || Launch { wanted: order("@hang").into(), fork: Fork::No, key: Some("k1".into()) };
    let supervisor = &world.supervisor;
    let (one, two) = tokio::join!(
        supervisor.launch(caller(&parent), launch()),
        supervisor.launch(caller(&parent), launch())
    );
    assert_eq!((one.unwrap().id, two.unwrap().id), (session.clone(), session.clone()));
    let mut expected = [parent, session];
    expected.sort();
    assert_eq!(world.host.sessions(), expected);
}
