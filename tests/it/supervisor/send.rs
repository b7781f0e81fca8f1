//! Steering (T21): messages to tasks in every state, across restarts, and racing with the end of a
//! run.

use std::sync::Arc;
use std::time::Duration;

use asyncagents::host::scripted::Control;
use asyncagents::supervisor::{Delivery, Error, Target};
use asyncagents::task::queue::Limits;
use asyncagents::task::{SessionId, State, Status, Task};
use asyncagents::wire::{DeliveryView, SendRequest};

use crate::support::process::{Shell, until};
use crate::support::{World, caller, settings};

async fn send(world: &World, task: &Task, message: &str) -> Delivery {
    world.supervisor.send(&task.id, message.into(), None).await.unwrap().delivery
}

fn completed(result: &str) -> State {
    State::Completed { result: result.into(), error: None }
}

async fn at_work(world: &World, parent: &SessionId, prompt: &str) -> Task {
    let task = world.launch(parent, prompt).await;
    world.until("it works", || world.host.is_busy(&task.id)).await;
    task
}

#[tokio::test]
async fn a_message_to_a_live_task_is_sent_to_its_session_and_the_same_run_answers_it() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@think 100\n@say first").await;
    assert_eq!(send(&world, &task, "@say second").await, Delivery::Steered);
    let ended = world.ended(&task).await;
    assert_eq!((ended.state, ended.run), (completed("second"), 0));
    assert_eq!(world.host.prompts(&task.id), ["@think 100\n@say first", "@say second"]);
    assert_eq!(world.posts(&parent, 1).await.len(), 1, "one end, told once");
    assert_eq!(world.task(&task.id).order.prompt, "@think 100\n@say first");
}

#[tokio::test]
async fn messages_are_delivered_in_order_and_each_once() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@think 100\n@say first").await;
    for n in 0..5 {
        send(&world, &task, &format!("@say {n}")).await;
    }
    assert_eq!(world.ended(&task).await.state, completed("4"));
    let expected = ["@think 100\n@say first", "@say 0", "@say 1", "@say 2", "@say 3", "@say 4"];
    assert_eq!(world.host.prompts(&task.id), expected);
}

#[tokio::test]
async fn a_message_to_a_completed_task_resumes_it() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    let sent = world.supervisor.send(&task.id, "@say second".into(), None).await.unwrap();
    assert_eq!((sent.delivery, sent.task.status()), (Delivery::Resumed, Status::Resumed));
    let ended = world.ended(&task).await;
    assert_eq!((ended.state, ended.run), (completed("second"), 1));
    let posts = world.posts(&parent, 2).await;
    assert!(posts[1].visible.starts_with("✓ **Resume #1 completed in "), "{}", posts[1].visible);
}

#[tokio::test]
async fn a_task_that_is_being_resumed_takes_messages() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say first").await;
    world.supervisor.resume(&task.id, "@hang".into()).await.unwrap();
    world.until("it works", || world.host.is_busy(&task.id)).await;
    assert_eq!(send(&world, &task, "also this").await, Delivery::Steered);
    world.until("it was said", || world.host.prompts(&task.id).len() == 3).await;
    world.finish(&task, "third").await;
    let ended = world.ended(&task).await;
    assert_eq!((ended.state, ended.run), (completed("third"), 1));
}

#[tokio::test]
async fn a_message_to_a_queued_task_is_added_to_its_first_prompt() {
    let mut one = settings();
    one.limits = Arc::new(Limits { active_per_parent: 1, ..(*one.limits).clone() });
    let mut world = World::with(one).await;
    let parent = world.parent().await;
    let first = at_work(&world, &parent, "@hang").await;
    let queued = world.launch(&parent, "look").await;
    assert_eq!(send(&world, &queued, "not there").await, Delivery::Queued);
    assert_eq!(send(&world, &queued, "@say found").await, Delivery::Queued);
    assert_eq!(world.host.prompts(&queued.id), [] as [&str; 0]);
    world.restart().await;
    world.finish(&first, "done").await;
    assert_eq!(world.ended(&queued).await.state, completed("found"));
    let expected =
        "look\n\nAdded before you began:\nnot there\n\nAdded before you began:\n@say found";
    assert_eq!(world.host.prompts(&queued.id), [expected]);
    assert_eq!(world.task(&queued.id).order.prompt, "look");
}

#[tokio::test]
async fn a_task_that_failed_or_was_cancelled_and_an_unknown_one_are_refused_with_a_way_out() {
    let world = World::start().await;
    let parent = world.parent().await;
    let refused = async |task: &Task| {
        world.supervisor.send(&task.id, "more".into(), None).await.unwrap_err().to_string()
    };
    let failed = world.end_of(&parent, "@fail no").await;
    let expected = |task: &Task, status: &str| {
        format!(
            "task `{}` takes no messages any more, its status is {status}; start a new task with \
             asyncagents_task",
            task.short_id
        )
    };
    assert_eq!(refused(&failed).await, expected(&failed, "error"));
    let cancelled = at_work(&world, &parent, "@hang").await;
    let target = Target::Task(cancelled.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    assert_eq!(refused(&cancelled).await, expected(&cancelled, "cancelled"));
    assert_eq!(world.host.prompts(&cancelled.id), ["@hang"]);
    let nobody = SessionId::new("ses_nobody");
    let error = world.supervisor.send(&nobody, "more".into(), None).await.unwrap_err();
    assert!(matches!(error, Error::NoSuchTask(_)), "{error}");
}

#[tokio::test]
async fn a_host_that_takes_no_messages_refuses_them_while_the_task_is_live_and_resumes_afterwards()
{
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@hang").await;
    world.control(Control::TakeNoMessages).await;
    let error = world.supervisor.send(&task.id, "more".into(), None).await.unwrap_err();
    let expected = format!(
        "the host `scripted` cannot give a message to an agent at work; wait for the end of task `{}` \
         and send it then, or cancel the task and start a new one",
        task.short_id
    );
    assert_eq!(error.to_string(), expected);
    world.finish(&task, "done").await;
    world.ended(&task).await;
    assert_eq!(world.host.prompts(&task.id), ["@hang"]);
    assert_eq!(send(&world, &task, "@say more").await, Delivery::Resumed);
    assert_eq!(world.ended(&task).await.state, completed("more"));
}

#[tokio::test]
async fn messages_are_bounded_in_size_and_number() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@hang").await;
    let refused = async |message: String| {
        world.supervisor.send(&task.id, message, None).await.unwrap_err().to_string()
    };
    assert_eq!(refused(" \n".into()).await, "`message` is required and must not be empty");
    assert_eq!(refused("a\0".into()).await, "`message` must not contain control characters");
    let long = "`message` is too long: 1000001 characters, at most 1000000";
    assert_eq!(refused("x".repeat(1_000_001)).await, long);
    world.control(Control::Unreachable { yes: true }).await;
    for n in 0..100 {
        send(&world, &task, &n.to_string()).await;
    }
    let full = "100 messages wait for this task already; wait until it has taken them in";
    assert_eq!(refused("one more".into()).await, full);
}

#[tokio::test]
async fn the_same_key_delivers_a_message_once() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@hang").await;
    let send = async |message: &str, key: &str| {
        let sent = world.supervisor.send(&task.id, message.into(), Some(key.into())).await;
        sent.unwrap().delivery
    };
    assert_eq!(send("also this", "one").await, Delivery::Steered);
    assert_eq!(send("also this", "one").await, Delivery::Steered);
    world.until("it was said", || world.host.prompts(&task.id).len() > 1).await;
    world.finish(&task, "done").await;
    world.ended(&task).await;
    assert_eq!(send("also this", "one").await, Delivery::Steered, "also when it is over");
    assert_eq!(world.status(&task), Status::Completed);
    assert_eq!(send("@hang", "two").await, Delivery::Resumed);
    assert_eq!(
        send("@hang", "two").await,
        Delivery::Resumed,
        "the message is not repeated to the run it started"
    );
    world.until("it works", || world.host.is_busy(&task.id)).await;
    assert_eq!(world.host.prompts(&task.id), ["@hang", "also this", "@hang"]);
    assert_eq!(world.task(&task.id).run, 1);
}

#[tokio::test]
async fn a_message_to_a_run_whose_end_was_not_yet_observed_is_answered_in_it() {
    let slow = settings();
    let slow =
        asyncagents::supervisor::Settings { poll_interval: Duration::from_secs(3600), ..slow };
    let world = World::with(slow).await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@hang").await;
    world.until("it was seen", || world.task(&task.id).progress.phase.name() == "waiting").await;
    let session = task.id.clone();
    world.control(Control::FinishSilently { session, text: "first".into() }).await;
    assert_eq!(send(&world, &task, "@say second").await, Delivery::Steered);
    let ended = world.ended(&task).await;
    assert_eq!((ended.state, ended.run), (completed("second"), 0));
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_message_that_arrives_just_as_the_run_ends_is_answered_whoever_is_first() {
    let world = World::start().await;
    let parent = world.parent().await;
    let mut resumed = 0;
    for n in 0..60 {
        let task = world.launch(&parent, "@think 12\n@say first").await;
        tokio::time::sleep(Duration::from_millis(n % 30)).await;
        send(&world, &task, "@say second").await;
        world.ended(&task).await;
        world.until("it was answered", || world.task(&task.id).state == completed("second")).await;
        let prompts = world.host.prompts(&task.id);
        let said = prompts.iter().filter(|prompt| prompt.ends_with("@say second")).count();
        assert_eq!(said, 1, "{prompts:?}");
        resumed += world.task(&task.id).run;
    }
    println!("{resumed} of 60 became a resume");
}

#[tokio::test]
async fn an_idle_session_with_an_unanswered_message_is_not_an_end() {
    let quick = asyncagents::supervisor::Settings {
        answer_grace: Duration::from_millis(300),
        ..settings()
    };
    let world = World::with(quick).await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@think 50\n@say first\n@hang").await;
    send(&world, &task, "and this").await;
    world.until("it was said", || world.host.prompts(&task.id).len() == 2).await;
    // Long enough for the prompt's answer to be stored. The message is unanswered, and after the
    // restart no run is working on it.
    tokio::time::sleep(Duration::from_millis(60)).await;
    world.control(Control::Restart).await;
    let ended = world.ended(&task).await;
    let result = ended.state.result().unwrap();
    assert!(result.starts_with("done: Your work was interrupted by a restart."), "{result}");
}

#[tokio::test]
async fn a_cancel_beats_a_message_that_is_not_delivered_yet() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = at_work(&world, &parent, "@hang").await;
    world.control(Control::Unreachable { yes: true }).await;
    send(&world, &task, "more").await;
    let target = Target::Task(task.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    world.control(Control::Unreachable { yes: false }).await;
    world.until("it was stopped", || !world.host.is_busy(&task.id)).await;
    assert_eq!(world.status(&task), Status::Cancelled);
    assert_eq!(world.host.prompts(&task.id), ["@hang"]);
}

#[test]
fn an_acknowledged_message_is_delivered_once_although_the_daemon_was_killed_before() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("look");
    for n in 0..3 {
        shell.control(Control::Unreachable { yes: true });
        let message = format!("message {n}");
        assert_eq!(shell.say(["send", &task.short_id, &message]), format!("{}\n", task.short_id));
        shell.kill_daemon();
        shell.control(Control::Unreachable { yes: false });
        shell.say(["daemon", "start"]);
        let said = || logged(&shell, &task.session_id).matches(&message).count();
        until("it was said", || said() == 1);
        // A kill at this moment may hit the crash window between the delivery and its record.
        shell.kill_daemon();
    }
    shell.say(["daemon", "start"]);
    until("nothing is owed", || {
        let db = rusqlite::Connection::open(shell.database()).unwrap();
        let owed = "SELECT count(*) FROM further_prompt WHERE sent_at IS NULL";
        db.query_row(owed, [], |row| row.get::<_, i64>(0)).unwrap() == 0
    });
    shell.finish(&task, "all seen");
    assert_eq!(shell.run(["wait", &task.short_id]).code, 0);
    assert_eq!(shell.task(&task.session_id).result.as_deref(), Some("all seen"));
    let log = logged(&shell, &task.session_id);
    for n in 0..3 {
        assert_eq!(log.matches(&format!("message {n}")).count(), 1, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_the_same_key_delivers_a_message_once_and_refusals_have_a_status() {
    let shell = tokio::task::block_in_place(Shell::with_host_process);
    let task = tokio::task::block_in_place(|| shell.launch_hanging("look"));
    let client = shell.client();
    let request = |message: &str| SendRequest {
        message: message.into(),
        key: Some("a key".into()),
        ..SendRequest::default()
    };
    for _ in 0..2 {
        let sent = client.send_message(&task.session_id, &request("more")).await.unwrap();
        assert_eq!(
            (sent.delivery, sent.task.session_id),
            (DeliveryView::Steered, task.session_id.clone())
        );
    }
    let status = async |id: &str, message: &str| match client
        .send_message(id, &SendRequest { key: None, ..request(message) })
        .await
    {
        Err(asyncagents::client::Error::Refused(view)) => view.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status("ses_nobody", "more").await, 404);
    assert_eq!(status(&task.session_id, " ").await, 400);
    tokio::task::block_in_place(|| {
        until("it was said", || {
            logged_apart(&shell, &task.session_id).matches("more").count() == 1
        });
        shell.say(["cancel", &task.short_id]);
    });
    assert_eq!(status(&task.session_id, "more").await, 409);
}

/// `logged`, called from inside a runtime.
fn logged_apart(shell: &Shell, id: &str) -> String {
    std::thread::scope(|scope| scope.spawn(|| logged(shell, id)).join().unwrap())
}

/// The prompts of the task's session in the host's log.
fn logged(shell: &Shell, id: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let transcript = asyncagents::host::scripted::Call::Transcript { session: SessionId::new(id) };
    match runtime.block_on(shell.host().call(transcript)) {
        Ok(asyncagents::host::scripted::Reply::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}
