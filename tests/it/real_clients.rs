//! Real MCP clients, registered by `mcp install`: their models launch agents, wait for them and get
//! results, also across a killed daemon.

use asyncagents::task::Phase;
use asyncagents::wire::TaskView;
use serde_json::{Value, json};

use crate::support::canary::CANARY;
use crate::support::process::until;
use crate::support::quoted;
use crate::support::real_client::{Client, RealClient};

fn task(description: &str, prompt: &str) -> (&'static str, Value) {
    let arguments = json!({"description": description, "prompt": prompt, "agent": "general"});
    ("asyncagents_task", arguments)
}

fn wait() -> (&'static str, Value) {
    ("asyncagents_wait", json!({"timeout": 600}))
}

/// The only task, once its agent hangs: then it can be ended from the host's side.
fn hanging(real: &RealClient) -> TaskView {
    until("the agent hangs", || real.shell.tasks()[0].progress.phase == Phase::Waiting);
    let mut tasks = real.shell.tasks();
    assert_eq!((tasks.len(), tasks[0].status.as_str()), (1, "running"));
    tasks.remove(0)
}

fn launches_waits_and_gets_the_result(client: Client) {
    let Some(real) = RealClient::registered(client) else { return };
    let ended = real.converse("first", &[task("one", "@say found it"), wait()]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let answers = real.answers("first");
    let id = &real.shell.tasks()[0].short_id;
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers[0].starts_with(&format!("Background task launched.\n\nTask ID: {id}\n")));
    assert!(answers[1].ends_with(&quoted("Result", "found it")), "{answers:?}");
    assert_eq!(real.variable("OPENROUTER_API_KEY").as_deref(), Some(CANARY));
}

#[test]
fn claude_code_launches_waits_and_gets_the_result() {
    launches_waits_and_gets_the_result(Client::Claude);
}

#[test]
fn codex_launches_waits_and_gets_the_result() {
    launches_waits_and_gets_the_result(Client::Codex);
}

#[test]
fn gemini_cli_launches_waits_and_gets_the_result() {
    launches_waits_and_gets_the_result(Client::Gemini);
}

fn a_wait_survives_a_killed_daemon(client: Client) {
    let Some(real) = RealClient::registered(client) else { return };
    let calls = [task("one", "@hang"), wait(), ("asyncagents_list", json!({}))];
    let conversation = real.start("first", &calls);
    until("the client waits", || real.calls("asyncagents_wait") == 1);
    real.shell.kill_daemon();
    until("it is started again", || real.shell.health().is_some());
    real.shell.finish(&hanging(&real), "found late");
    let ended = conversation.wait();
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let answers = real.answers("first");
    assert!(answers[1].ends_with(&quoted("Result", "found late")), "{answers:?}");
    // No notice comes before the list: the wait has told it.
    assert!(answers[2].starts_with("1 task"), "{answers:?}");
    assert_eq!(real.calls("asyncagents_wait"), 1);
}

#[test]
fn a_wait_of_claude_code_survives_a_killed_daemon_and_tells_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Claude);
}

#[test]
fn a_wait_of_codex_survives_a_killed_daemon_and_tells_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Codex);
}

#[test]
fn a_wait_of_gemini_cli_survives_a_killed_daemon_and_tells_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Gemini);
}

/// A blocking `Task` belongs to its call; other agents go on when a wait for them is given up.
fn a_call_that_is_given_up_cancels_its_task(client: Client) {
    let Some(mut real) = RealClient::registered(client) else { return };
    real.give_up_after(3);
    // Its start is not what is given up.
    real.shell.say(["daemon", "start"]);
    let errand = ("Task", json!({"description": "errand", "prompt": "@hang"}));
    let ended = real.converse("first", &[task("kept", "@hang"), wait(), errand]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let mut states: Vec<(String, String)> = Vec::new();
    until("the errand is cancelled", || {
        let tasks = real.shell.tasks().into_iter();
        states = tasks.map(|task| (task.description, task.status)).collect();
        states.contains(&("errand".to_owned(), "cancelled".to_owned()))
    });
    assert!(states.contains(&("kept".to_owned(), "running".to_owned())), "{states:?}");
    let sent = real.sent().into_iter();
    let cancelled = sent.filter(|sent| sent["method"] == "notifications/cancelled").count();
    assert_eq!(cancelled, 2);
}

#[test]
fn a_call_that_claude_code_gives_up_cancels_its_task_and_no_other() {
    a_call_that_is_given_up_cancels_its_task(Client::Claude);
}

#[test]
fn a_call_that_codex_gives_up_cancels_its_task_and_no_other() {
    a_call_that_is_given_up_cancels_its_task(Client::Codex);
}

#[test]
fn a_call_that_gemini_cli_gives_up_cancels_its_task_and_no_other() {
    a_call_that_is_given_up_cancels_its_task(Client::Gemini);
}

#[test]
fn two_conversations_of_claude_code_in_one_directory_leave_each_others_tasks_alone() {
    let Some(real) = RealClient::registered(Client::Claude) else { return };
    let first = real.start("first", &[task("of the first", "@hang"), wait()]);
    until("the first one waits", || real.calls("asyncagents_wait") == 1);
    let others = [("asyncagents_list", json!({})), ("asyncagents_cancel", json!({"all": true}))];
    let ended = real.converse("second", &others);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let answers = real.answers("second");
    assert_eq!(answers, ["No background tasks found", "No running background tasks to cancel."]);
    real.shell.finish(&hanging(&real), "found it");
    assert_eq!(first.wait().stdout.trim(), "the end");
    let answers = real.answers("first");
    assert!(answers[1].ends_with(&quoted("Result", "found it")), "{answers:?}");
}

/// `mcp.longest_call_seconds` is not set: the client's name decides how long a call may take, and a
/// name that is not recognised would have waits return after 45 seconds.
fn a_wait_is_one_call(client: Client, name: &str) {
    let Some(real) = RealClient::registered(client) else { return };
    let conversation = real.start("first", &[task("long", "@think 4000\n@say found it"), wait()]);
    let ended = conversation.wait();
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    assert_eq!(real.calls("asyncagents_wait"), 1);
    let answers = real.answers("first");
    assert!(answers[1].ends_with(&quoted("Result", "found it")), "{answers:?}");
    let parent = &real.shell.tasks()[0].parent_session_id;
    assert!(parent.starts_with(&format!("mcp-{name}")), "{parent}");
}

#[test]
fn a_wait_of_claude_code_is_one_call() {
    a_wait_is_one_call(Client::Claude, "claude");
}

#[test]
fn a_wait_of_codex_is_one_call() {
    a_wait_is_one_call(Client::Codex, "codex");
}

#[test]
fn a_wait_of_gemini_cli_is_one_call() {
    a_wait_is_one_call(Client::Gemini, "gemini");
}
