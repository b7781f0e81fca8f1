//! Real MCP clients, registered by `mcp install`: their models launch agents, wait for them and get
//! results, also across a killed daemon.

mod terminal;

use std::time::Duration;

use asyncagents::task::Phase;
use asyncagents::wire::TaskView;
use serde_json::json;

use crate::support::canary::CANARY;
use crate::support::process::until;
use crate::support::quoted;
use crate::support::real_client::{Call, Client, RealClient};

fn task(description: &str, prompt: &str) -> Call {
    let arguments = json!({"description": description, "prompt": prompt, "agent": "general"});
    ("asyncagents_task", arguments)
}

fn wait() -> Call {
    ("asyncagents_wait", json!({"timeout": 600}))
}

/// The only task, once its agent hangs and can be ended from the host's side.
fn hanging(real: &RealClient) -> TaskView {
    until("the agent hangs", || real.shell.tasks()[0].progress.phase == Phase::Waiting);
    let mut tasks = real.shell.tasks();
    assert_eq!((tasks.len(), tasks[0].status.name()), (1, "running"));
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

/// The client starts no process of ours. Claude Code has no session here and does not identify its
/// conversation (T18), so it waits by the id of the launch; the others may also wait for all their
/// tasks.
fn launches_and_waits_over_http(client: Client) {
    let Some(real) = RealClient::over_http(client) else { return };
    let calls = match client {
        Client::Claude => vec![errand("one", "@say found it")],
        Client::Codex | Client::Gemini => vec![task("one", "@say found it"), wait()],
    };
    let ended = real.converse("first", &calls);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let answers = real.answers("first");
    assert_eq!(answers.len(), calls.len(), "{answers:?}");
    let last = answers.last().unwrap();
    assert!(last.ends_with(&quoted("Result", "found it")), "{answers:?} {ended:?}");
    assert!(real.sent().is_empty());
    let task = real.shell.tasks().remove(0);
    let project = real.shell.path("project").canonicalize().unwrap();
    assert_eq!(Some(task.directory.as_str()), project.to_str());
}

#[test]
fn claude_code_launches_and_waits_over_http() {
    launches_and_waits_over_http(Client::Claude);
}

#[test]
fn codex_launches_and_waits_over_http() {
    launches_and_waits_over_http(Client::Codex);
}

#[test]
fn gemini_cli_launches_and_waits_over_http() {
    launches_and_waits_over_http(Client::Gemini);
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
    // The wait delivered the result, so no notice precedes the list.
    assert!(answers[2].starts_with("1 task"), "{answers:?}");
    assert_eq!(real.calls("asyncagents_wait"), 1);
}

#[test]
fn a_wait_of_claude_code_survives_a_killed_daemon_and_returns_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Claude);
}

#[test]
fn a_wait_of_codex_survives_a_killed_daemon_and_returns_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Codex);
}

#[test]
fn a_wait_of_gemini_cli_survives_a_killed_daemon_and_returns_the_result_once() {
    a_wait_survives_a_killed_daemon(Client::Gemini);
}

/// A blocking `Task` belongs to its call and is cancelled with it; other agents continue when a
/// wait for them is abandoned.
fn a_call_that_is_given_up_cancels_its_task(client: Client) {
    let Some(mut real) = RealClient::registered(client) else { return };
    real.give_up_after(3);
    // Start it now, so that the start-up time does not count against the client's time-out.
    real.shell.say(["daemon", "start"]);
    let calls = [task("kept", "@hang"), wait(), errand("errand", "@hang")];
    let ended = real.converse("first", &calls);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let mut states: Vec<(String, String)> = Vec::new();
    until("the errand is cancelled", || {
        let tasks = real.shell.tasks().into_iter();
        states = tasks.map(|task| (task.description, task.status.name().to_owned())).collect();
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

fn errand(description: &str, prompt: &str) -> Call {
    ("Task", json!({"description": description, "prompt": prompt}))
}

/// `explore` is read-only, and so `Task` is announced as read-only.
const READS: &str = "[task_tool]\nagent = 'explore'";

/// A rendezvous: no agent gets a model answer before all of them have asked for one.
fn task_calls_of_one_message_run_at_the_same_time(client: Client, settings: &str) {
    let Some(real) = RealClient::with_own_agents(client, settings) else { return };
    let calls = ["one", "two", "three"].map(|name| errand(name, &format!("@meet 3 | say {name}")));
    let ended = real.converse_with("first", &[&calls]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    let mut answers = real.answers("first");
    // The order of arrival is arbitrary.
    answers.sort();
    assert_eq!(answers, ["one", "three", "two"].map(|name| quoted("Result", name)));
}

#[test]
fn claude_code_runs_task_calls_of_one_message_at_the_same_time_if_their_agent_only_reads() {
    task_calls_of_one_message_run_at_the_same_time(Client::Claude, READS);
}

#[test]
fn codex_runs_task_calls_of_one_message_at_the_same_time_if_their_agent_only_reads() {
    task_calls_of_one_message_run_at_the_same_time(Client::Codex, READS);
}

#[test]
fn gemini_cli_runs_task_calls_of_one_message_at_the_same_time_whatever_their_agent_may_do() {
    task_calls_of_one_message_run_at_the_same_time(Client::Gemini, "");
}

/// The README's statement about the default: an agent that may write is never announced as
/// read-only.
fn task_calls_of_one_message_run_one_after_the_other(client: Client) {
    let Some(real) = RealClient::with_own_agents(client, "") else { return };
    let calls = ["one", "two", "three"].map(|name| errand(name, "@wait 200 | say done"));
    let ended = real.converse_with("first", &[&calls]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    assert_eq!(real.answers("first"), [(); 3].map(|()| quoted("Result", "done")));
    let mut tasks = real.shell.tasks();
    tasks.sort_by_key(|task| task.started_at);
    for pair in tasks.windows(2) {
        assert!(pair[0].completed_at <= Some(pair[1].started_at), "{pair:?}");
    }
    // Codex starts each call in a task of its own, which waits there for its turn: whichever asks
    // first runs first.
    let names = ["one", "two", "three"];
    if let Client::Codex = client {
        tasks.sort_by_key(|task| names.iter().position(|name| *name == task.description));
    }
    let descriptions: Vec<&str> = tasks.iter().map(|task| task.description.as_str()).collect();
    assert_eq!(descriptions, names);
}

#[test]
fn claude_code_runs_task_calls_of_one_message_one_after_the_other_if_their_agent_may_write() {
    task_calls_of_one_message_run_one_after_the_other(Client::Claude);
}

#[test]
fn codex_runs_task_calls_of_one_message_one_after_the_other_if_their_agent_may_write() {
    task_calls_of_one_message_run_one_after_the_other(Client::Codex);
}

fn agents_launched_in_one_message_run_at_the_same_time(client: Client) {
    let Some(real) = RealClient::with_own_agents(client, "") else { return };
    let launches = ["one", "two", "three"].map(|name| task(name, "@meet 3 | say done"));
    let ended = real.converse_with("first", &[&launches, &[wait()]]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    assert_eq!(real.answers("first").len(), 4);
    let tasks = real.shell.tasks().into_iter();
    let mut ends: Vec<(String, Option<String>)> =
        tasks.map(|task| (task.description, task.result)).collect();
    ends.sort();
    assert_eq!(ends, ["one", "three", "two"].map(|name| (name.into(), Some("done".into()))));
}

#[test]
fn agents_that_claude_code_launches_in_one_message_run_at_the_same_time() {
    agents_launched_in_one_message_run_at_the_same_time(Client::Claude);
}

#[test]
fn agents_that_codex_launches_in_one_message_run_at_the_same_time() {
    agents_launched_in_one_message_run_at_the_same_time(Client::Codex);
}

/// `mcp.longest_call_seconds` is not set, so the client's name decides how long a call may take;
/// with an unrecognised name, waits would return after 45 seconds.
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

/// The longest call of this client, scaled down to three seconds. The conversation continues with a
/// second call, during which the agent ends. The name is the one in the table beside
/// `longest_call`.
fn a_wait_longer_than_a_call_is_two_calls(client: Client, name: &str) {
    let Some(mut real) = RealClient::registered(client) else { return };
    let slice = Duration::from_secs(3);
    real.set_up(&format!("[mcp]\nlongest_call_seconds = {}\n", slice.as_secs()));
    let conversation = real.start("first", &[task("long", "@hang"), wait(), wait()]);
    until("the client waits", || real.calls("asyncagents_wait") == 1);
    let task = hanging(&real);
    until("the client waits again", || real.calls("asyncagents_wait") == 2);
    real.shell.finish(&task, "found late");
    let ended = conversation.wait();
    assert_eq!((ended.code, ended.stdout.trim()), (0, "the end"), "{ended:?}");
    assert_eq!(real.calls("asyncagents_wait"), 2);
    let answers = real.answers("first");
    let over = "Timed out after 3s of waiting (`timeout` was cut to that: calls of this client may not \
                take longer). Nothing is lost, what runs goes on: call asyncagents_wait again with the \
                same arguments to go on waiting, or do something else meanwhile.";
    assert!(
        answers[1].contains("\n\nStill running:\n") && answers[1].ends_with(over),
        "{answers:?}"
    );
    assert!(answers[2].ends_with(&quoted("Result", "found late")), "{answers:?}");
    // The first wait ran between these two model requests.
    let asked = real.asked_at("first");
    let took = asked[asked.len() - 2] - asked[asked.len() - 3];
    assert!(took >= slice, "answered after {took:?}");
    assert!(task.parent_session_id.starts_with(&format!("mcp-{name}-")), "{task:?}");
}

#[test]
fn a_wait_of_claude_code_longer_than_a_call_is_answered_in_slices() {
    a_wait_longer_than_a_call_is_two_calls(Client::Claude, "claude-code");
}

#[test]
fn a_wait_of_codex_longer_than_a_call_is_answered_in_slices() {
    a_wait_longer_than_a_call_is_two_calls(Client::Codex, "codex-mcp-client");
}

#[test]
fn a_wait_of_gemini_cli_longer_than_a_call_is_answered_in_slices() {
    a_wait_longer_than_a_call_is_two_calls(Client::Gemini, "gemini-cli-mcp-client");
}
