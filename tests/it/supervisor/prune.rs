//! Pruning (D3): by number and by age, on request and automatically, and what is never pruned.

use std::fs;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::scripted::Control;
use asyncagents::supervisor::{self, Caller, Fork, Launch, Retention, Settings, Target};
use asyncagents::task::{MAILBOX, SHELL, SessionId, Status, Task, Timestamp};

use crate::support::process::{Shell, until};
use crate::support::{World, caller, order, owes_notices, settings};

#[tokio::test]
async fn a_limited_history_is_pruned_when_the_daemon_starts() {
    let history = Retention { tasks: Some(1), ..Retention::default() };
    let mut world = World::with(Settings { history, ..settings() }).await;
    let parent = world.parent().await;
    let live = world.launch(&parent, "@hang").await;
    let old = world.end_of(&parent, "old").await;
    let new = world.end_of(&parent, "new").await;
    nothing_is_owed(&world).await;
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
    nothing_is_owed(&world).await;
    world.restart().await;
    assert_eq!(world.task(&done.id).state, done.state);
    let keep = |tasks| Retention { tasks: Some(tasks), ..Retention::default() };
    assert_eq!(world.supervisor.prune(&keep(1)).await.unwrap(), 0);
    assert_eq!(world.supervisor.prune(&keep(0)).await.unwrap(), 1);
    let gone = world.supervisor.task(&done.id).unwrap_err().to_string();
    assert!(gone.starts_with(&format!("no task `{}`", done.id)), "{gone}");
}

#[tokio::test]
async fn a_clock_that_was_set_forward_does_not_delete_the_history() {
    let day = Duration::from_secs(86_400);
    let clock = Clock::manual(Timestamp::from_millis(1_700_000_000_000));
    let history = Retention { age: Some(day), ..Retention::default() };
    let mut world = World::at(Settings { history, ..settings() }, clock).await;
    let parent = world.parent().await;
    let old = world.end_of(&parent, "old").await;
    world.clock.advance(10 * day);
    let new = world.end_of(&parent, "new").await;
    nothing_is_owed(&world).await;
    world.kill();
    world.clock.advance(400 * day);
    world.revive();
    world.until("it is pruned", || world.supervisor.task_count().unwrap() < 2).await;
    assert!(world.supervisor.task(&old.id).is_err(), "it is older than the newest change");
    assert_eq!(world.status(&new), Status::Completed);
    // A request brings its own limits; those of the configuration do not apply.
    assert_eq!(world.supervisor.prune(&history).await.unwrap(), 1);
}

#[tokio::test]
async fn ids_go_on_when_the_clock_was_set_back_between_two_daemons() {
    let at = |millis| Clock::manual(Timestamp::from_millis(millis));
    let world = World::at(settings(), at(1_700_000_000_000)).await;
    let parent = world.parent().await;
    let queued = world.launch(&parent, "@hang").await;
    let back = at(1_699_000_000_000);
    supervisor::seed_ids_from_store(&world.store, &back).unwrap();
    assert!(back.session_id() > queued.id);
    let newest = world.store.history().newest_ids().unwrap();
    assert!(newest.iter().all(|id| *id < back.message_id().to_string() || id.starts_with("ses_")));
}

#[tokio::test]
async fn pruning_keeps_tasks_whose_end_their_client_has_not_read() {
    let world = World::start().await;
    let client = without_conversation("client");
    for n in 1..=3 {
        let task = launch(&world, &client, &format!("@say result {n}")).await;
        world.ended(&task).await;
    }
    nothing_is_owed(&world).await;
    assert_eq!(world.supervisor.prune(&none()).await.unwrap(), 0);
    let told = world.tool(&client, "asyncagents_list", serde_json::json!({})).await.text;
    assert_eq!(told.matches("✓ **Agent \"look around\" finished").count(), 3, "{told}");
    assert_eq!(world.supervisor.prune(&none()).await.unwrap(), 3);
}

#[tokio::test]
async fn the_address_of_a_server_is_kept_while_a_task_there_is_live_or_its_end_unread() {
    let world = World::start().await;
    let client = without_conversation("client");
    let task = launch(&world, &client, "@hang").await;
    let shell = without_conversation(SHELL);
    let store = &world.store;
    let address = || "http://127.0.0.1:1".to_owned();
    store.instances().put(task.origin.host_instance.clone(), address()).await.unwrap();
    store.instances().put("other".to_owned(), address()).await.unwrap();
    let unneeded = || store.instances().unneeded("").unwrap();
    assert_eq!(unneeded(), ["other"]);
    assert_eq!(store.instances().unneeded("oh").unwrap(), [""; 0]);
    world.finish(&task, "done").await;
    world.ended(&task).await;
    // The mailbox of the shell is never read, so its unread ends must not keep an address.
    world.ended(&launch(&world, &shell, "@say done").await).await;
    nothing_is_owed(&world).await;
    assert_eq!(unneeded(), ["other"]);
    let told = world.tool(&client, "asyncagents_list", serde_json::json!({})).await.text;
    assert!(told.contains("finished"), "{told}");
    let both = ["other", &task.origin.host_instance];
    world.until("it is read", || unneeded() == both).await;
}

#[tokio::test]
async fn pruning_keeps_a_task_whose_session_is_still_to_be_stopped() {
    let mut world = World::start().await;
    let shell = without_conversation(SHELL);
    let task = launch(&world, &shell, "@hang").await;
    world.until("it works", || world.host.is_busy(&task.id)).await;
    world.control(Control::Unreachable { yes: true }).await;
    world.supervisor.cancel(&shell, Target::Task(task.id.clone())).await.unwrap();
    assert_eq!(world.status(&task), Status::Cancelled);
    assert_eq!(world.supervisor.prune(&none()).await.unwrap(), 0);
    world.kill();
    world.control(Control::Unreachable { yes: false }).await;
    assert!(world.host.is_busy(&task.id));
    world.revive();
    world.until("it is stopped", || !world.host.is_busy(&task.id)).await;
    nothing_is_owed(&world).await;
    assert_eq!(world.supervisor.prune(&none()).await.unwrap(), 1);
}

#[test]
fn output_files_are_deleted_with_their_task_and_orphaned_ones_when_the_daemon_starts() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_HOST", "embedded");
    let [gone, kept] = ["first", "second"].map(|what| shell.launch_to_the_end(what).session_id);
    let folder = |name: &str| shell.home().join("output").join(name);
    for name in [&gone, &kept, "ses_nobody", "notes"] {
        fs::create_dir_all(folder(name)).unwrap();
        fs::write(folder(name).join("bash-1-1.txt"), "long").unwrap();
    }
    assert_eq!(shell.say(["prune", "--keep", "1"]), "Removed 1 task.\n");
    until("its files are gone", || !folder(&gone).exists());
    until("files without a task are removed as well", || !folder("ses_nobody").exists());
    fs::create_dir(folder(&gone)).unwrap();
    shell.say(["daemon", "stop"]);
    shell.say(["daemon", "start"]);
    until("the files left by the crash are removed", || !folder(&gone).exists());
    assert_eq!([&kept, "notes"].map(|name| folder(name).join("bash-1-1.txt").exists()), [true; 2]);
}

fn none() -> Retention {
    Retention { tasks: Some(0), ..Retention::default() }
}

/// A caller whose notices go to a mailbox.
fn without_conversation(name: &str) -> Caller {
    Caller { host: MAILBOX.into(), ..caller(&SessionId::new(name)) }
}

async fn launch(world: &World, caller: &Caller, prompt: &str) -> Task {
    let launch = Launch { wanted: order(prompt).into(), fork: Fork::No, key: None };
    world.supervisor.launch(caller.clone(), launch).await.unwrap()
}

async fn nothing_is_owed(world: &World) {
    let store = &world.store;
    let owed = || {
        owes_notices(store)
            || !store.tasks().owed_aborts().unwrap().is_empty()
            || !store.transcripts().owed(0, 1).unwrap().is_empty()
    };
    world.until("nothing is owed", || !owed()).await;
}
