//! Access control of the status API: where it listens, how it is found, and which clients may do what.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use asyncagents::wire::{HealthView, ServerView};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::process::{Shell, until};
use crate::support::skip;
use crate::support::web::{Answer, Site, fields};

#[test]
fn server_starts_on_plugin_init() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    // It listens before any tool call.
    let site = Site::of(&shell);
    assert_eq!(site.server.url, format!("http://127.0.0.1:{}", site.server.port));
    assert_eq!(site.get("/v1/health").status, 200);
    assert_eq!(asyncagents::config::Api::default().port, 5165);
    assert_eq!(asyncagents::config::Api::default().host, "127.0.0.1");
}

/// Ten consecutive ports, all in use.
fn ten_in_a_row() -> Vec<TcpListener> {
    for first in (20_000..60_000).step_by(97) {
        let taken: Vec<TcpListener> = (first..first + 10)
            .map_while(|port| TcpListener::bind(("127.0.0.1", port)).ok())
            .collect();
        if taken.len() == 10 {
            return taken;
        }
    }
    panic!("no ten consecutive ports are free");
}

#[test]
fn server_retries_next_port_on_collision() {
    let mut taken = ten_in_a_row();
    let first = taken[0].local_addr().unwrap().port();
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_API_PORT", first.to_string());
    let start = || Site::start(&shell).server.port;
    let port = start();
    assert!(
        !(first..first + 10).contains(&port),
        "all ten were in use, so the kernel chose: {port}"
    );
    shell.say(["daemon", "stop"]);
    taken.truncate(9);
    assert_eq!(start(), first + 9, "the last of ten");
    shell.say(["daemon", "stop"]);
    drop(taken);
    assert_eq!(start(), first, "the one that was asked for");
}

#[test]
fn server_writes_discovery_file_on_start() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let file = shell.home().join("server.json");
    let server: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let fields = fields(&server);
    assert_eq!(fields, ["pid", "port", "startedAt", "url", "version"]);
    assert_eq!(server["pid"], shell.pid());
    let names: Vec<String> = fs::read_dir(shell.home())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("server"))
        .collect();
    assert_eq!(names, ["server.json"], "no partially written file is left");
}

#[test]
fn server_stops_gracefully_on_process_exit() {
    for signal in [Signal::INT, Signal::TERM] {
        let shell = Shell::new();
        let running = shell.start(["serve"]);
        let file = shell.home().join("server.json");
        until("it serves", || file.exists());
        let site = Site::of(&shell);
        let mut events = site.events("");
        assert_eq!(events.next().unwrap().name, "snapshot");
        running.signal(signal);
        assert_eq!(events.next(), None, "the stream is closed cleanly");
        assert_eq!(running.wait().code, 0);
        assert!(!file.exists());
        assert!(std::net::TcpStream::connect(("127.0.0.1", site.server.port)).is_err());
    }
}

#[test]
fn server_is_disabled_via_environment_variable() {
    let mut shell = Shell::new();
    shell.say(["daemon", "start"]);
    let before = Site::of(&shell);
    shell.kill_daemon();
    assert!(shell.home().join("server.json").exists(), "left by the one that was killed");
    shell.set("ASYNCAGENTS_API_ENABLED", "false");
    let task = shell.launch_to_the_end("@say done");
    assert_eq!(task.result.as_deref(), Some("done"));
    assert!(!shell.home().join("server.json").exists());
    assert!(std::net::TcpStream::connect(("127.0.0.1", before.server.port)).is_err());
}

#[test]
fn server_json_created_on_server_start() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let old = Site::of(&shell).server;
    // A killed daemon leaves its file behind; the next one replaces it.
    shell.kill_daemon();
    shell.say(["daemon", "start"]);
    let new: ServerView = Site::of(&shell).server;
    assert!(new.pid != old.pid && new.started_at > old.started_at, "{old:?} {new:?}");
    assert_eq!(new.pid, shell.pid());
}

#[test]
fn server_json_deleted_on_graceful_shutdown() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    assert!(shell.home().join("server.json").exists());
    shell.say(["daemon", "stop"]);
    assert!(!shell.home().join("server.json").exists());
}

#[test]
fn server_json_enables_external_tool_discovery() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let text = fs::read_to_string(shell.home().join("server.json")).unwrap();
    let server: ServerView = serde_json::from_str(&text).unwrap();
    let health: HealthView = Site { server: server.clone() }.read("/v1/health");
    assert_eq!((health.status.as_str(), health.pid), ("ok", server.pid));
}

#[test]
fn responses_include_cors_headers() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for (method, path, status) in [
        ("GET", "/v1/health", 200),
        ("GET", "/v1/tasks?limit=x", 400),
        ("GET", "/v1/tasks/ses_nobody", 404),
        ("GET", "/nowhere", 404),
        ("HEAD", "/v1/stats", 200),
        ("POST", "/v1/tasks", 405),
        ("DELETE", "/v1/tasks/ses_nobody", 405),
    ] {
        let answer = site.ask(method, path, &["Origin: http://localhost:3000"], "");
        assert_eq!(answer.status, status, "{method} {path}");
        assert_cors(&answer.headers);
    }
    // The refusal has CORS headers as well, so that the page can read why, and nothing else.
    let refused = site.ask("GET", "/v1/health", &["Origin: http://elsewhere.example"], "");
    assert_eq!(refused.status, 403);
    assert_cors(&refused.headers);
    let token = fs::read_to_string(shell.home().join("token")).unwrap();
    let right = format!("Authorization: Bearer {}", token.trim());
    let trusted = site.ask("GET", "/v1/health", &[&right, "Origin: http://elsewhere.example"], "");
    assert_eq!(trusted.status, 200);
    assert_eq!(trusted.headers.get("access-control-allow-origin"), None, "never with a wildcard");
}

const SECRETS: [&str; 6] =
    ["/v1/tasks", "/v1/events", "/v1/stats", "/v1/task-groups", "/metrics", "/v1/health"];

#[test]
fn a_page_of_another_origin_reads_nothing_unless_the_configuration_names_it() {
    let mut shell = Shell::new();
    shell.launch("a secret\n@hang");
    let site = Site::of(&shell);
    let why = "pages of this origin may not read here; `api.origins` in the configuration file names \
               those that may";
    for origin in ["http://evil.example", "https://localhost.evil.example:5165", "null"] {
        for path in SECRETS {
            let answer = site.ask("GET", path, &[&format!("Origin: {origin}")], "");
            assert_eq!((answer.status, answer.error().as_str()), (403, why), "{origin} {path}");
        }
    }
    for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
        let answer = site.ask("GET", "/v1/tasks", &[&format!("Origin: {origin}")], "");
        assert_eq!(answer.status, 200, "{origin}");
    }
    shell.say(["daemon", "stop"]);
    let file = shell.path("config.toml");
    fs::write(&file, "[api]\norigins = [\"https://status.example\"]\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &file);
    let site = Site::start(&shell);
    for (origin, status) in [("https://status.example", 200), ("http://status.example", 403)] {
        let answer = site.ask("GET", "/v1/tasks", &[&format!("Origin: {origin}")], "");
        assert_eq!(answer.status, status, "{origin}");
    }
}

/// The response for another user of this machine; `None` without root, who alone can switch users, which is a
/// failure in CI.
fn as_another_user(site: &Site, path: &str, header: &str) -> Option<Answer> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can be another user");
        return None;
    }
    let script = "exec 3<>/dev/tcp/127.0.0.1/$1; printf \
                  'GET %s HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n%s\\r\\n' \
                  \"$2\" \"$3\" >&3; cat <&3";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, "bash", &site.server.port.to_string(), path, header]);
    let output = command.uid(65_534).gid(65_534).current_dir("/").output().unwrap();
    Some(Answer::parse(&String::from_utf8(output.stdout).unwrap()))
}

#[test]
fn another_user_of_this_machine_reads_nothing_unless_the_configuration_says_anyone() {
    let mut shell = Shell::new();
    let task = shell.launch("a secret\n@hang");
    let site = Site::of(&shell);
    let why = "this server belongs to another user; send its bearer token, or let every user of this \
               machine read with `api.readers = \"anyone\"` in its configuration file";
    let logs = format!("/v1/tasks/{}/logs", task.session_id);
    for path in SECRETS.into_iter().chain([logs.as_str()]) {
        let Some(answer) = as_another_user(&site, path, "") else { return };
        assert_eq!((answer.status, answer.error().as_str()), (403, why), "{path}");
        assert_cors(&answer.headers);
    }
    let token = fs::read_to_string(shell.home().join("token")).unwrap();
    let right = format!("Authorization: Bearer {}\r\n", token.trim());
    assert_eq!(as_another_user(&site, "/v1/tasks", &right).unwrap().status, 200);
    assert_eq!(site.get(&logs).status, 200, "who started it reads on");
    shell.say(["daemon", "stop"]);
    let file = shell.path("config.toml");
    fs::write(&file, "[api]\nreaders = \"anyone\"\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &file);
    let site = Site::start(&shell);
    assert_eq!(as_another_user(&site, "/v1/tasks", "").unwrap().status, 200);
    let page = as_another_user(&site, "/v1/tasks", "Origin: http://evil.example\r\n").unwrap();
    assert_eq!(page.status, 403, "but pages are not exempt");
}

fn assert_cors(headers: &std::collections::BTreeMap<String, String>) {
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert_eq!(headers["access-control-allow-methods"], "GET, OPTIONS");
    assert_eq!(headers["access-control-allow-headers"], "Content-Type");
}

#[test]
fn options_preflight_returns_204_with_cors_headers() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for path in ["/v1/tasks", "/v1/events", "/v1/cancel", "/nowhere"] {
        let answer = site.ask("OPTIONS", path, &["Origin: http://elsewhere.example"], "");
        assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{path}");
        assert_cors(&answer.headers);
    }
}

#[test]
fn a_request_that_changes_something_needs_the_socket_or_the_token() {
    let shell = Shell::new();
    let task = shell.launch("@hang");
    let site = Site::of(&shell);
    let file = shell.home().join("token");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let right = format!("Authorization: Bearer {}", token.trim());
    let body =
        format!("{{\"caller\":{{\"sessionID\":\"cli\"}},\"ids\":[\"{}\"]}}", task.session_id);
    let json = "Content-Type: application/json";
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let without = site.ask(method, "/v1/cancel", &[json], &body);
        let text = "this port is read-only without the bearer token; send the token, or use the \
                    daemon's socket";
        assert_eq!((without.status, without.error()), (405, text.to_owned()));
        assert_eq!(without.headers["allow"], "GET, HEAD, OPTIONS");
    }
    for wrong in
        ["Authorization: Bearer wrong", "Authorization: Basic cm9vdA==", "Authorization: x"]
    {
        let answer = site.ask("POST", "/v1/cancel", &[json, wrong], &body);
        assert_eq!(answer.status, 401, "{wrong}");
        assert!(answer.error().contains("token"));
    }
    assert_eq!(site.task(&task.session_id).status.name(), "running", "nothing was changed");
    let answer = site.ask("POST", "/v1/cancel", &[json, &right, "Origin: http://a.example"], &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers.get("access-control-allow-origin"), None, "never with a wildcard");
    assert_eq!(site.task(&task.session_id).status.name(), "cancelled");
    // The token is kept across a restart.
    shell.say(["daemon", "stop"]);
    shell.say(["daemon", "start"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
}

#[test]
fn a_host_header_that_is_not_loopback_is_refused() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for host in ["evil.example", "evil.example:5165", "127.0.0.1.evil.example", "192.168.0.1"] {
        for method in ["GET", "OPTIONS", "POST"] {
            let answer = site.ask(method, "/v1/tasks", &[&format!("Host: {host}")], "");
            assert_eq!(answer.status, 403, "{method} {host}");
        }
    }
    for host in ["127.0.0.1", "localhost", &format!("localhost:{}", site.server.port), "[::1]:1"] {
        assert_eq!(site.ask("GET", "/v1/tasks", &[&format!("Host: {host}")], "").status, 200);
    }
}

#[test]
fn a_request_in_absolute_form_to_a_host_that_is_not_loopback_is_refused() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for method in ["GET", "OPTIONS", "POST"] {
        let answer = site.ask(method, "http://evil.example/v1/tasks", &[], "");
        assert_eq!(answer.status, 403, "{method}");
    }
    assert_eq!(site.get("http://localhost/v1/tasks").status, 200);
}

#[test]
fn a_line_of_a_head_that_ends_with_a_bare_line_feed_is_refused() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let sound = "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let says = |requests: &str| {
        let mut stream = site.connect();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        let status = answers.match_indices("HTTP/1.1 ").map(|(at, start)| at + start.len());
        status.map(|at| answers[at..at + 3].to_owned()).collect::<Vec<String>>()
    };
    for at in [0, 1, 2] {
        let lines: Vec<String> = ["GET /v1/health HTTP/1.1", "Host: localhost", ""]
            .iter()
            .enumerate()
            .map(|(n, line)| format!("{line}{}", if n == at { "\n" } else { "\r\n" }))
            .collect();
        let bare = lines.concat();
        assert_eq!(says(&bare), ["400"], "{bare:?}");
        assert_eq!(says(&format!("{sound}{bare}")), ["200", "400"], "{bare:?}");
    }
    // A length that a filter could read in another way than the server.
    let spaces = " ".repeat(60);
    for length in [format!("{spaces}1"), "+1".into(), "1, 1".into()] {
        let hidden = format!(
            "GET /v1/health HTTP/1.1\r\nHost: localhost\r\nContent-Length:{length}\r\n\r\n\n\
             GET /v1/health HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        );
        assert_eq!(says(&hidden), ["400"], "{hidden:?}");
    }
    // What is smuggled behind a chunked body is not read.
    let chunked =
        "POST /v1/clear HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(says(&format!("{chunked}{sound}")), ["405"]);
}

#[test]
fn an_address_that_others_can_reach_is_refused_without_a_token_of_its_own() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_API_HOST", "0.0.0.0");
    let ended = shell.run(["daemon", "start"]);
    let text = "error: the daemon did not start: `api.host` is `0.0.0.0`, which other machines can \
                reach; set `api.token_file` to a file with a token, which they then have to send, \
                or listen on `127.0.0.1`\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (1, text));
    assert!(!shell.home().join("server.json").exists());
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    shell.say(["daemon", "stop"]);
    let file = shell.home().join("token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let ended = shell.run(["daemon", "start"]);
    let shown = file.display();
    let text = format!(
        "error: the daemon did not start: the token file `{shown}` can be read by others; \
         `chmod 600 {shown}` closes it\n"
    );
    assert_eq!((ended.code, ended.stderr), (1, text));
}

#[test]
fn a_token_half_written_when_the_daemon_died_is_created_again() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    shell.say(["daemon", "stop"]);
    let (file, half) = (shell.home().join("token"), shell.home().join("token.new"));
    fs::write(&file, "").unwrap();
    fs::write(&half, "half").unwrap();
    shell.say(["daemon", "start"]);
    let token = fs::read_to_string(&file).unwrap();
    assert_eq!((token.len(), half.exists()), (65, false));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn requests_that_are_too_large_are_refused() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let long = format!("X-Long: {}", "x".repeat(300_000));
    assert_eq!(site.ask("GET", "/v1/health", &[&long], "").status, 431);
    let many: Vec<String> = (0..200).map(|n| format!("X-{n}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(site.ask("GET", "/v1/health", &many, "").status, 431);
    let token = fs::read_to_string(shell.home().join("token")).unwrap();
    let headers =
        [&format!("Authorization: Bearer {}", token.trim()), "Content-Type: application/json"];
    let large = format!("\"{}\"", "x".repeat(9 << 20));
    let mut stream = site.connect();
    let head = format!(
        "POST /v1/cancel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n{}\r\n\
         Content-Length: {}\r\n\r\n",
        headers[0],
        headers[1],
        large.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The daemon may refuse it by its length and close the connection before it has read
    // everything.
    let _ = stream.write_all(large.as_bytes());
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert_eq!(site.get("/v1/health").status, 200);
}

#[test]
fn errors_do_not_reveal_paths() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("a task");
    fs::remove_file(shell.path("host.sock")).unwrap();
    shell.kill_daemon();
    shell.say(["daemon", "start"]);
    let site = Site::of(&shell);
    let answer = site.get(&format!("/v1/tasks/{}/logs", task.session_id));
    let text = "the host of this task does not answer; try again later";
    assert_eq!((answer.status, answer.error()), (502, text.to_owned()));
}
