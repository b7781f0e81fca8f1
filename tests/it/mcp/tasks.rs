//! MCP tasks: blocking calls become handles for clients that declare the extension. Each end is
//! delivered once, over whichever path reaches the client first, whatever is killed in between.

use asyncagents::wire::{CallStatus, CallView, CallerRequest, CallerView};
use rmcp::model::ClientCapabilities;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::user::{BOTH, Generation, Session, finish, hanging, text};
use crate::support::process::{Shell, until};
use crate::support::{quoted, shown};

fn with_tasks() -> ClientCapabilities {
    ClientCapabilities::builder().enable_tasks().build()
}

/// A shell whose sessions all have the same parent.
fn named() -> Shell {
    let mut shell = Shell::with_host_process();
    shell.set("ASYNCAGENTS_PARENT", "me");
    shell
}

async fn open(shell: &Shell) -> Session {
    Session::open(shell, Generation::Modern, with_tasks()).await
}

/// Fetches a call like the server process, but without acknowledging the answer.
async fn look(shell: &Shell, id: &str) -> CallView {
    let caller = CallerView { session_id: "me".into(), ..CallerView::default() };
    shell.client().deferred_call(id, &CallerRequest { caller }).await.unwrap()
}

async fn is_told(session: &Session, count: &str) {
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.starts_with(count), "told once: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_is_a_task_whose_answer_stays_the_same() {
    for generation in BOTH {
        let shell = Shell::with_host_process();
        let session = Session::open(&shell, generation, with_tasks()).await;
        let task = session.launch_hanging(&shell).await;
        let wait = session.begin("asyncagents_wait", json!({})).await;
        let working = session.get(&wait).await;
        assert_eq!((&working["status"], &working["ttlMs"]), (&json!("working"), &Value::Null));
        let doing = format!("{} \"look around\": waiting", task.short_id);
        assert_eq!(working["statusMessage"], doing);
        block_in_place(|| finish(&shell, &task, "found"));
        let ended = session.until(&wait, "completed").await;
        let (said, is_error) = text(&ended["result"]);
        assert!(!is_error && said.starts_with("1 of 1 task has ended."), "{said}");
        assert!(said.ends_with(&shown("found")), "{said}");
        assert!(ended["ttlMs"].as_u64().is_some(), "{ended}");
        assert_eq!(session.get(&wait).await, ended);
        is_told(&session, "1 task: 0 running, 1 completed").await;

        let errand = json!({"description": "errand", "prompt": "@hang"});
        let errand = session.begin("Task", errand).await;
        block_in_place(|| {
            let task = hanging(&shell);
            finish(&shell, &task, "the answer");
        });
        let ended = session.until(&errand, "completed").await;
        assert_eq!(text(&ended["result"]), (quoted("Result", "the answer"), false));
        assert_eq!(session.get(&errand).await, ended);
        is_told(&session, "2 tasks: 0 running, 2 completed").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_need_not_wait_is_answered_at_once() {
    let shell = Shell::with_host_process();
    let session = open(&shell).await;
    let nothing = session.say("asyncagents_wait", json!({})).await;
    assert_eq!(nothing, "No running background tasks to wait for.");
    let refused = session.answer("Task", json!({"description": "", "prompt": "x"})).await;
    assert!(refused.1, "{refused:?}");
    let task = session.launch_hanging(&shell).await;
    block_in_place(|| finish(&shell, &task, "found"));
    let waited = session.say("asyncagents_wait", json!({})).await;
    assert!(waited.ends_with(&shown("found")), "{waited}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_another_answer_has_shown_is_not_shown_again() {
    let shell = named();
    let session = open(&shell).await;
    let task = session.launch_hanging(&shell).await;
    let wait = session.begin("asyncagents_wait", json!({})).await;
    block_in_place(|| finish(&shell, &task, "found"));
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.contains("found"), "told with this one: {listed}");
    let (said, _) = text(&session.until(&wait, "completed").await["result"]);
    let before = format!(
        "1 of 1 task has ended.\n\nShown before, asyncagents_output shows them again:\n- {}",
        task.short_id
    );
    assert!(said.starts_with(&before) && !said.contains("found"), "{said}");

    let errand = json!({"description": "errand", "prompt": "@hang"});
    let errand = session.begin("Task", errand).await;
    let id = block_in_place(|| {
        let task = hanging(&shell);
        finish(&shell, &task, "the answer");
        task.short_id
    });
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.contains("the answer"), "told with this one: {listed}");
    let expected = format!(
        "task {id} has completed, which you were told of before; asyncagents_output(task_id=\"{id}\") \
         shows it again"
    );
    let ended = session.until(&errand, "completed").await;
    assert_eq!(text(&ended["result"]), (expected, false));
    assert_eq!(session.get(&errand).await, ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_daemon_was_killed_before_the_end_goes_on() {
    for tool in ["asyncagents_wait", "Task"] {
        let shell = named();
        let session = open(&shell).await;
        let (call, task) = begun(&shell, &session, tool).await;
        block_in_place(|| shell.kill_daemon());
        assert_eq!(session.get(&call).await["status"], "working");
        block_in_place(|| finish(&shell, &task, "found"));
        let (said, _) = text(&session.until(&call, "completed").await["result"]);
        assert!(said.ends_with("found\n~~~"), "{said}");
        is_told(&session, "1 task: 0 running, 1 completed").await;
        assert_eq!(block_in_place(|| shell.tasks().len()), 1, "launched once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_between_the_end_and_the_first_poll_returns_the_result_once() {
    for tool in ["asyncagents_wait", "Task"] {
        let shell = named();
        let session = open(&shell).await;
        let (call, task) = begun(&shell, &session, tool).await;
        block_in_place(|| {
            finish(&shell, &task, "found");
            shell.kill_daemon();
        });
        let (said, _) = text(&session.until(&call, "completed").await["result"]);
        assert!(said.ends_with("found\n~~~"), "{said}");
        is_told(&session, "1 task: 0 running, 1 completed").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_before_the_answer_is_acknowledged_gives_the_same_one_again() {
    for tool in ["asyncagents_wait", "Task"] {
        let shell = named();
        let session = open(&shell).await;
        let (call, task) = begun(&shell, &session, tool).await;
        block_in_place(|| finish(&shell, &task, "found"));
        let first = unacknowledged(&shell, &call).await;
        block_in_place(|| shell.kill_daemon());
        let again = session.until(&call, "completed").await;
        assert_eq!(text(&again["result"]).0, first);
        is_told(&session, "1 task: 0 running, 1 completed").await;
        assert_eq!(session.get(&call).await, again);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_arrived_does_not_repeat_a_result_shown_since() {
    for tool in ["asyncagents_wait", "Task"] {
        let shell = named();
        let session = open(&shell).await;
        let (call, task) = begun(&shell, &session, tool).await;
        block_in_place(|| finish(&shell, &task, "found"));
        assert!(unacknowledged(&shell, &call).await.contains("found"));
        block_in_place(|| shell.kill_daemon());
        let listed = session.say("asyncagents_list", json!({})).await;
        assert!(listed.contains("found"), "nobody has it yet: {listed}");
        let again = session.until(&call, "completed").await;
        let (said, _) = text(&again["result"]);
        assert!(!said.contains("found") && said.contains("asyncagents_output"), "{said}");
        assert_eq!(session.get(&call).await, again);
    }
}

/// Starts a call that waits for a hanging agent.
async fn begun(
    shell: &Shell,
    session: &Session,
    tool: &'static str,
) -> (String, asyncagents::wire::TaskView) {
    if tool == "Task" {
        let errand = json!({"description": "errand", "prompt": "@hang"});
        let call = session.begin("Task", errand).await;
        return (call, block_in_place(|| hanging(shell)));
    }
    let task = session.launch_hanging(shell).await;
    (session.begin(tool, json!({})).await, task)
}

/// The text of an answer that is never acknowledged.
async fn unacknowledged(shell: &Shell, call: &str) -> String {
    loop {
        let seen = look(shell, call).await;
        match seen.status {
            CallStatus::Completed => return seen.answer.unwrap().text,
            CallStatus::Working => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_outlives_its_connection_and_only_its_parent_can_read_it() {
    let mut shell = named();
    let session = open(&shell).await;
    let (call, task) = begun(&shell, &session, "Task").await;
    drop(session);
    shell.set("ASYNCAGENTS_PARENT", "somebody else");
    let stranger = open(&shell).await;
    let refused = stranger.try_get(&call).await.unwrap_err().to_string();
    assert!(refused.contains("no call `"), "{refused}");
    shell.set("ASYNCAGENTS_PARENT", "me");
    let again = open(&shell).await;
    assert_eq!(again.get(&call).await["status"], "working");
    block_in_place(|| finish(&shell, &task, "found"));
    let ended = again.until(&call, "completed").await;
    assert_eq!(text(&ended["result"]), (quoted("Result", "found"), false));

    // Without a parent's name, the id alone identifies the call.
    shell.unset("ASYNCAGENTS_PARENT");
    let unnamed = open(&shell).await;
    let (call, _) = begun(&shell, &unnamed, "Task").await;
    drop(unnamed);
    assert_eq!(open(&shell).await.get(&call).await["status"], "working");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_task_stops_its_agent_and_cancelling_a_wait_leaves_it_alone() {
    let shell = named();
    let session = open(&shell).await;
    let (wait, waited) = begun(&shell, &session, "asyncagents_wait").await;
    let (errand, stopped) = begun(&shell, &session, "Task").await;
    for call in [&wait, &errand] {
        session.cancel(call).await;
        assert_eq!(session.until(call, "cancelled").await["status"], "cancelled");
        session.cancel(call).await;
    }
    block_in_place(|| {
        until("it is stopped", || shell.task(&stopped.session_id).status.name() == "cancelled");
        assert_eq!(shell.task(&waited.session_id).status.name(), "running");
    });
    // A restart does not change their state.
    block_in_place(|| shell.kill_daemon());
    for call in [&wait, &errand] {
        assert_eq!(session.get(call).await["status"], "cancelled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requested_timeout_also_applies_to_tasks() {
    let shell = named();
    let session = open(&shell).await;
    session.launch_hanging(&shell).await;
    let wait = session.begin("asyncagents_wait", json!({"timeout": 1})).await;
    let (said, _) = text(&session.until(&wait, "completed").await["result"]);
    assert!(said.contains("Timed out after 1s of waiting"), "{said}");
}
