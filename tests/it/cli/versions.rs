//! Daemons of other versions are recognised and reported, never mistaken for a broken connection (D5); and
//! requests may have fields this version does not know (H9). The answers of the older daemon were recorded.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use asyncagents::wire::{ErrorView, HealthView, PageView, ServerView};
use serde_json::{Value, json};

use crate::support::front::{Answers, CannedDaemon};
use crate::support::process::{CommandOutcome, Shell};

/// Recorded answers of a daemon from before the protocol had a number, which counts as protocol 0.
const OLDER_HEALTH: &str = include_str!("../../fixtures/protocol-0/health.json");
const OLDER_TASKS: &str = include_str!("../../fixtures/protocol-0/tasks.json");
const OLDER_SERVER: &str = include_str!("../../fixtures/protocol-0/server.json");
const OLDER_REFUSAL: &str = include_str!("../../fixtures/protocol-0/unknown-field.json");

const VERBS: [&str; 21] = [
    "run x",
    "list",
    "output x",
    "wait x",
    "resume x y",
    "fork-preview x",
    "approve",
    "deny x",
    "cancel x",
    "clear",
    "prune --keep 1",
    "hosts",
    "daemon start",
    "logs x",
    "batch x",
    "stats",
    "send x y",
    "status",
    "retry x",
    "pause",
    "continue",
];

fn health(version: &str, protocol: u32) -> (&'static str, u16, String) {
    let health = json!({
        "status": "ok", "uptime": 5, "version": version, "protocol": protocol, "taskCount": 0,
        "pid": 1, "mood": "good",
    });
    ("GET /v1/health", 200, health.to_string())
}

fn with_daemon(answers: Answers) -> (Shell, CannedDaemon) {
    let shell = Shell::new();
    let daemon = CannedDaemon::listen(&shell.socket(), answers);
    (shell, daemon)
}

fn check_refused(answers: Answers, text: &str) {
    let (shell, daemon) = with_daemon(answers);
    let stderr = format!("error: {text}\n");
    let refused = CommandOutcome { code: 2, stdout: String::new(), stderr };
    for verb in VERBS {
        assert_eq!(shell.run(verb.split(' ')), refused, "{verb}");
        assert_eq!(
            daemon.take_asked(),
            ["GET /v1/health?fresh=true"],
            "nothing else is requested: {verb}"
        );
    }
}

#[test]
fn every_verb_refuses_an_older_daemon_with_the_way_out() {
    check_refused(
        vec![("GET /v1/health", 200, OLDER_HEALTH.into())],
        "the daemon is older than this program, and they do not understand each other (daemon: \
         version 0.1.0, protocol 0; program: version 0.1.0, protocol 1); `asyncagents daemon \
         restart` replaces it, and live runs go on",
    );
}

#[test]
fn every_verb_refuses_a_newer_daemon_with_the_way_out() {
    check_refused(
        vec![health("9.9.0", 2)],
        "the daemon is newer than this program, and they do not understand each other (daemon: \
         version 9.9.0, protocol 2; program: version 0.1.0, protocol 1); update this program \
         (`asyncagents daemon restart` would replace the daemon by this older one)",
    );
}

#[test]
fn the_recorded_answers_of_an_older_daemon_are_protocol_0() {
    let health: HealthView = serde_json::from_str(OLDER_HEALTH).unwrap();
    assert_eq!((health.version.as_str(), health.protocol), ("0.1.0", 0));
    let page: PageView = serde_json::from_str(OLDER_TASKS).unwrap();
    assert_eq!((page.tasks.len(), page.total), (1, 1));
    assert_eq!(page.tasks[0].status.name(), "completed");
    let server: ServerView = serde_json::from_str(OLDER_SERVER).unwrap();
    assert_eq!(server.url, format!("http://127.0.0.1:{}", server.port));
    // Why it counts as another protocol: it refuses the idempotency key that makes a retry safe.
    let refusal: ErrorView = serde_json::from_str(OLDER_REFUSAL).unwrap();
    assert!(refusal.error.contains("unknown field `key`"), "{refusal:?}");
}

#[test]
fn daemon_status_shows_a_daemon_of_another_version_and_says_so() {
    let (shell, _daemon) = with_daemon(vec![("GET /v1/health", 200, OLDER_HEALTH.into())]);
    let health: HealthView = serde_json::from_str(OLDER_HEALTH).unwrap();
    let stdout = format!(
        "running in {}: pid {}, version 0.1.0, up {}s, 1 task\nwarning: the daemon is older than \
         this program, and they do not understand each other (daemon: version 0.1.0, protocol 0; \
         program: version 0.1.0, protocol 1); `asyncagents daemon restart` replaces it, and live \
         runs go on\n",
        shell.home().display(),
        health.pid,
        health.uptime
    );
    let stderr = String::new();
    assert_eq!(shell.run(["daemon", "status"]), CommandOutcome { code: 0, stdout, stderr });
}

#[test]
fn daemon_restart_replaces_a_daemon_of_any_version_by_one_of_this_program() {
    let newer = vec![health("9.9.0", 2), ("POST /v1/daemon/stop", 200, r#"{"pid":1}"#.into())];
    let older = vec![
        ("GET /v1/health", 200, OLDER_HEALTH.into()),
        ("POST /v1/daemon/stop", 200, OLDER_HEALTH.into()),
    ];
    for answers in [newer, older] {
        let (shell, daemon) = with_daemon(answers);
        let restarted = shell.say(["daemon", "restart"]);
        let running = format!("running in {}: pid {}, ", shell.home().display(), shell.pid());
        assert!(restarted.starts_with(&running), "{restarted}");
        assert_eq!(daemon.take_asked()[0], "POST /v1/daemon/stop?restart=true");
        shell.say(["list"]);
    }
}

#[test]
fn a_newer_daemon_of_the_same_protocol_is_used_with_a_note() {
    let mut page: Value = serde_json::from_str(OLDER_TASKS).unwrap();
    page["mood"] = json!("good");
    page["tasks"][0]["mood"] = json!({ "now": "good" });
    page["tasks"][0]["budget"] = json!({ "tokens": 5, "mood": 1 });
    let tasks = ("GET /v1/tasks", 200, page.to_string());
    let (shell, _daemon) = with_daemon(vec![health("9.9.0", 1), tasks]);
    let listed = shell.run(["list", "--limit", "1"]);
    let stderr = "note: the daemon is newer than this program (daemon: version 9.9.0, protocol 1; \
                  program: version 0.1.0, protocol 1); update this program (`asyncagents daemon \
                  restart` would replace the daemon by this older one)\n";
    assert_eq!((listed.code, listed.stderr.as_str()), (0, stderr));
    assert_eq!(listed.stdout.lines().count(), 2, "{listed:?}");
}

#[test]
fn another_patch_version_is_not_mentioned() {
    let (shell, _daemon) =
        with_daemon(vec![health("0.1.77", 1), ("GET /v1/tasks", 200, OLDER_TASKS.into())]);
    let listed = shell.run(["list", "--limit", "1"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (0, ""));
}

#[test]
fn an_answer_that_cannot_be_parsed_names_both_versions_and_is_not_requested_again() {
    let odd = || r#"{"tasks":[{"number":7}]}"#.to_owned();
    let (shell, daemon) = with_daemon(vec![
        health("0.1.0", 1),
        ("POST /v1/resolve", 200, odd()),
        ("GET /v1/tasks", 200, odd()),
        ("POST /v1/tasks", 201, "created".into()),
    ]);
    let check = |verb: &str, route: &str, why: &str| {
        let stderr = format!(
            "error: the daemon's answer is not understood (daemon: version 0.1.0, protocol 1; \
             program: version 0.1.0, protocol 1); `asyncagents daemon restart` replaces the daemon, \
             and live runs go on: {why}\n"
        );
        let refused = CommandOutcome { code: 2, stdout: String::new(), stderr };
        assert_eq!(shell.run(verb.split(' ')), refused, "{verb}");
        assert_eq!(
            daemon.take_asked(),
            ["GET /v1/health?fresh=true", route, "GET /v1/health?fresh=true"],
            "{verb}"
        );
    };
    let missing = "missing field `sessionID` at line 1 column 22";
    check("wait x", "POST /v1/resolve", missing);
    check("list", "GET /v1/tasks?listed=true&limit=50&offset=0", missing);
    check("run x", "POST /v1/tasks", "expected value at line 1 column 1");
}

#[test]
fn a_request_may_carry_fields_this_version_does_not_know() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say done").session_id;
    let caller = json!({ "sessionID": "cli", "mood": "good" });
    let launch = json!({
        "caller": caller, "mood": "good", "arguments": {
            "description": "d", "prompt": "@say x", "agent": "general", "mood": "good",
            "budget": { "tokens": 5, "mood": 1 },
        },
    });
    let check = |line: &str, mut body: Value, expected: u16| {
        body["mood"] = json!("good");
        assert_eq!(ask(&shell, line, &body), expected, "{line} {body}");
    };
    check("POST /v1/tasks", launch, 201);
    check("POST /v1/resolve", json!({ "ids": [task] }), 200);
    check("POST /v1/wait", json!({ "ids": [task], "timeout": 1.0 }), 200);
    check(&format!("POST /v1/tasks/{task}/output"), json!({ "caller": caller }), 200);
    check(&format!("POST /v1/tasks/{task}/resume"), json!({ "prompt": "@say y" }), 200);
    check("POST /v1/cancel", json!({ "caller": caller, "all": true }), 200);
    check("POST /v1/clear", json!({ "caller": caller }), 200);
    check("POST /v1/prune", json!({ "keep": 100 }), 200);
    check("POST /v1/mailbox", json!({ "caller": caller }), 200);
    check("POST /v1/mailbox/read", json!({ "notices": [] }), 200);
    check("POST /v1/permissions/x", json!({ "allow": true }), 404);
    check("POST /v1/fork", json!({ "session": "nobody" }), 404);
    check("PUT /v1/hosts/opencode/w", json!({ "url": "http://127.0.0.1:1" }), 200);
    check("POST /v1/tools/asyncagents_list", json!({ "caller": caller, "arguments": {} }), 200);
    // An unknown filter is refused: ignored, it would return everything.
    assert_eq!(ask(&shell, "GET /v1/tasks?mood=good", &json!({})), 400);
}

/// The status of the daemon's answer.
fn ask(shell: &Shell, line: &str, body: &Value) -> u16 {
    let body = body.to_string();
    let mut stream = UnixStream::connect(shell.socket()).unwrap();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}
