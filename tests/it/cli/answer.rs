//! `approve` and `deny` without an id: a picker on a terminal, the list elsewhere.

use std::fs;

use asyncagents::wire::{PROTOCOL, TaskView};
use serde_json::{Value, json};

use crate::support::front::{CannedDaemon, lose_answer};
use crate::support::process::{Shell, until};
use crate::support::terminal::Terminal;

/// Launches a task that asks to run this command, and waits until the request is open.
fn launch_asking(shell: &Shell, what: &str) -> TaskView {
    let task = shell.launch(&format!("@ask bash {what}\n@say done"));
    until("it asks", || shell.say(["approve"]).contains(&task.short_id));
    task
}

/// The short ids of the tasks with open requests.
fn open_requests(shell: &Shell) -> Vec<String> {
    let asked: Vec<Value> = serde_json::from_value(shell.json(["approve", "--json"])).unwrap();
    asked.iter().map(|asked| asked["shortID"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_number_typed_on_a_terminal_answers_that_request_and_an_empty_line_none() {
    let shell = Shell::new();
    let (first, second) = (launch_asking(&shell, "ls"), launch_asking(&shell, "rm \u{1b}[2Kx"));
    let mut terminal = Terminal::start(&mut shell.command(["approve"]), None);
    let question = "Allow which? A number, `a NUMBER` for all of that task, `q` to leave: ";
    terminal.until_shows(question);
    for nothing in ["\n", "  \n"] {
        terminal.type_keys(nothing);
    }
    terminal.type_keys("y\n3\n");
    terminal.until_shows("there is no such choice; the numbers go from 1 to 2.\n");
    assert_eq!(open_requests(&shell), [first.short_id.as_str(), &second.short_id]);
    terminal.type_keys("2\n");
    terminal.until_shows(&format!("allowed {}: ", second.short_id));
    until("it goes on", || shell.task(&second.session_id).status.name() == "completed");
    assert_eq!(open_requests(&shell), [first.short_id.as_str()]);
    // Keys typed before the next list is shown are discarded, so wait for it.
    terminal.until_shows(&format!("asks: \"bash ls\"\n{question}"));
    terminal.type_keys("q\n");
    let (code, screen) = terminal.wait();
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("bash rm \\x1b[2Kx"), "escaped: {screen}");
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    assert_eq!(open_requests(&shell), [first.short_id], "leaving answers nothing");
}

#[test]
fn deny_refuses_the_picked_requests_until_none_is_left() {
    let shell = Shell::new();
    let task = launch_asking(&shell, "ls");
    let mut terminal = Terminal::start(&mut shell.command(["deny"]), None);
    terminal.until_shows("Deny which? ");
    terminal.type_keys("a 1\n");
    let (code, screen) = terminal.wait();
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains(&format!("denied {}: \"bash ls\"\n", task.short_id)), "{screen}");
    assert!(screen.ends_with("No permission requests are waiting.\n"), "{screen}");
    until("it is over", || shell.task(&task.session_id).status.name() == "error");
}

#[test]
fn keys_typed_before_the_list_was_shown_answer_nothing() {
    let shell = Shell::new();
    let task = launch_asking(&shell, "ls");
    // The program starts when the file exists, so that the keys are in the terminal's input queue
    // before it.
    let script = "while ! [ -e go ]; do sleep 0.01; done; exec \"$0\" approve";
    let mut command = shell.program("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_asyncagents")]);
    let mut terminal = Terminal::start(&mut command, None);
    terminal.type_keys("1\n");
    // Shown by the echo of the terminal: the keys have arrived.
    terminal.until_shows("1\n");
    fs::write(shell.path("go"), "").unwrap();
    terminal.until_shows("Allow which? ");
    terminal.type_keys("q\n");
    let (code, screen) = terminal.wait();
    assert_eq!(code, 0, "{screen}");
    assert_eq!(open_requests(&shell), [task.short_id]);
    assert!(!screen.contains("allowed "), "{screen}");
}

#[test]
fn the_end_of_the_input_answers_nothing() {
    let shell = Shell::new();
    let task = launch_asking(&shell, "ls");
    let mut terminal = Terminal::start(&mut shell.command(["approve"]), None);
    terminal.until_shows("Allow which? ");
    // Ctrl-D: the end of the input.
    terminal.type_keys("\u{4}");
    let (code, screen) = terminal.wait();
    assert_eq!(code, 0, "{screen}");
    assert_eq!(open_requests(&shell), [task.short_id]);
}

#[test]
fn an_empty_list_of_a_new_daemon_is_not_believed_before_it_has_looked_at_its_hosts() {
    let shell = Shell::new();
    let health = json!({
        "status": "ok", "uptime": 0, "version": "0.1.0", "protocol": PROTOCOL, "taskCount": 1, "pid": 1,
    });
    let answers = vec![
        ("GET /v1/health", 200, health.to_string()),
        ("GET /v1/permissions", 200, json!({ "permissions": [] }).to_string()),
    ];
    let daemon = CannedDaemon::listen(&shell.socket(), answers);
    // The first answer does not arrive, as when the daemon is killed.
    let lost = lose_answer(&shell.socket(), "GET /v1/permissions");
    let mut asked = 0;
    let _terminal = Terminal::start(&mut shell.command(["approve"]), None);
    until("it is asked again", || {
        let lines = daemon.take_asked();
        asked += lines.iter().filter(|line| line.starts_with("GET /v1/permissions")).count();
        // The lost one, the first empty one, and one more.
        asked > 2
    });
    assert_eq!(lost.lock().unwrap().len(), 1);
}

#[test]
fn what_is_picked_is_answered_again_while_a_new_daemon_has_not_looked_at_its_hosts() {
    let shell = Shell::new();
    let health = json!({
        "status": "ok", "uptime": 0, "version": "0.1.0", "protocol": PROTOCOL, "taskCount": 1, "pid": 1,
    });
    let asked = json!({ "permissions": [{
        "id": "per_1", "sessionID": "ses_1", "shortID": "ab12c3", "description": "look",
        "what": "bash ls", "since": "2026-01-01T00:00:00.000Z",
    }]});
    let unknown = json!({ "error": "no permission request `per_1` is open", "status": 404 });
    let answers = vec![
        ("GET /v1/health", 200, health.to_string()),
        ("GET /v1/permissions", 200, asked.to_string()),
        ("POST /v1/permissions/per_1", 404, unknown.to_string()),
    ];
    let daemon = CannedDaemon::listen(&shell.socket(), answers);
    let mut terminal = Terminal::start(&mut shell.command(["approve"]), None);
    terminal.until_shows("Allow which? ");
    terminal.type_keys("1\n");
    let mut answered = 0;
    until("it is tried again", || {
        let asked = daemon.take_asked();
        answered += asked.iter().filter(|line| line.starts_with("POST /v1/permissions/")).count();
        answered > 1
    });
}
