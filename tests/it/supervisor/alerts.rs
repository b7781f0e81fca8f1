//! Notifications for people (N5): a webhook, a command and the desktop, each until it is delivered, whatever is killed
//! meanwhile. The receivers are on loopback.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::process::{Shell, until};

const SECRET: &str = "a secret of the webhook, which nobody else has";

#[derive(Clone, Debug, PartialEq)]
struct Request {
    path: String,
    /// By their names in small letters.
    headers: BTreeMap<String, String>,
    body: String,
    /// What it was answered with.
    status: u16,
}

/// What a receiver refuses for good when it is in a notification.
const REFUSED: &str = "refuse this";

/// A receiver that answers every request with the status it is set to.
struct Receiver {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    fn answering(status: u16) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let status = Arc::new(AtomicU16::new(status));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, noted) = (status.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                // A daemon that is killed cuts its request off.
                let Some(mut request) = read(&mut stream) else { continue };
                request.status = match request.body.contains(REFUSED) {
                    true => 400,
                    false => answer.load(Ordering::SeqCst),
                };
                let head = format!(
                    "HTTP/1.1 {} x\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    request.status
                );
                noted.lock().unwrap().push(request);
                let _ = stream.get_mut().write_all(head.as_bytes());
            }
        });
        Receiver { address, status, requests }
    }

    fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// A shell whose daemon posts to this receiver.
    fn shell(&self, more: &str) -> Shell {
        let mut shell = Shell::new();
        fs::write(shell.path("secret"), format!("{SECRET}\n")).unwrap();
        let url = format!("http://{}/hook?token=of-the-address", self.address);
        let config =
            format!("[notify]\nwebhook_url = \"{url}\"\nwebhook_secret_file = \"secret\"\n{more}");
        fs::write(shell.path("config.toml"), config).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
        shell
    }
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines[0].split(' ').nth(1)?.to_owned();
    let header = |line: &String| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    };
    let headers: BTreeMap<String, String> = lines[1..].iter().filter_map(header).collect();
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(Request { path, headers, body: String::from_utf8(body).unwrap(), status: 0 })
}

/// The signature as another program computes it.
fn signature(request: &Request) -> String {
    let script = "import hmac, hashlib, sys\n\
                  print(hmac.new(sys.argv[1].encode(), sys.stdin.buffer.read(), hashlib.sha256).hexdigest())";
    let mut python = Command::new("python3");
    python.args(["-c", script, SECRET]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    let signed = format!("{}.{}", request.headers["x-asyncagents-timestamp"], request.body);
    python.stdin.take().unwrap().write_all(signed.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    format!("sha256={}", String::from_utf8(output.stdout).unwrap().trim())
}

/// How many notifications the store still owes.
fn owed(shell: &Shell) -> i64 {
    let database = rusqlite::Connection::open(shell.database()).unwrap();
    database.query_row("SELECT count(*) FROM alert", [], |row| row.get(0)).unwrap()
}

#[test]
fn an_end_is_posted_with_a_signature_until_the_webhook_accepts_it_whatever_is_killed() {
    let receiver = Receiver::answering(503);
    let shell = receiver.shell("");
    let task = shell.launch_to_the_end("find it\n@say src/auth.rs");
    until("it was tried", || !receiver.requests().is_empty());
    assert_eq!(owed(&shell), 1);
    shell.kill_daemon();
    let tried = receiver.requests().len();
    shell.say(["daemon", "start"]);
    until("the next daemon tries", || receiver.requests().len() > tried);
    receiver.answer(204);
    until("it was taken", || receiver.requests().iter().any(|request| request.status == 204));
    until("nothing is owed", || owed(&shell) == 0);

    let requests = receiver.requests();
    assert_eq!(requests.iter().filter(|request| request.status == 204).count(), 1);
    let first = &requests[0];
    for request in &requests {
        assert_eq!((&request.path, &request.body), (&first.path, &first.body));
        let [key, again] = [request, first].map(|request| &request.headers["idempotency-key"]);
        assert_eq!(key, again, "a receiver can tell a repeat");
        assert_eq!(request.headers["x-asyncagents-signature"], signature(request));
        assert_eq!(request.headers["content-type"], "application/json");
    }
    assert_eq!(first.path, "/hook?token=of-the-address");
    let body: Value = serde_json::from_str(&first.body).unwrap();
    let expected = json!({
        "id": first.headers["idempotency-key"],
        "event": "task.completed",
        "at": body["at"],
        "task": serde_json::to_value(&task).unwrap(),
    });
    assert_eq!(body, expected);
    let log = shell.log();
    assert!(log.contains("notification failed; retrying"), "{log}");
    assert!(!log.contains(SECRET) && !log.contains("of-the-address"), "{log}");
}

#[test]
fn a_refused_notification_does_not_hold_up_the_others() {
    let receiver = Receiver::answering(204);
    let shell = receiver.shell("");
    shell.launch_to_the_end(&format!("{REFUSED}\n@say done"));
    until("it was refused", || !receiver.requests().is_empty());
    let other = shell.launch_to_the_end("find it\n@say found");
    until("the other one was taken", || {
        let requests = receiver.requests();
        requests
            .iter()
            .any(|request| request.status == 204 && request.body.contains(&other.session_id))
    });
    until("the first one is still owed", || owed(&shell) == 1);
}

#[test]
fn a_notification_that_cannot_be_delivered_is_dropped_after_a_while_and_redirects_are_not_followed()
{
    let receiver = Receiver::answering(302);
    let shell = receiver.shell("give_up_seconds = 2\n");
    shell.launch_to_the_end("@say done");
    until("it is given up", || shell.log().contains("notification given up"));
    until("nothing is owed", || owed(&shell) == 0);
    let paths: Vec<String> = receiver.requests().into_iter().map(|request| request.path).collect();
    assert!(!paths.is_empty() && paths.iter().all(|path| path.starts_with("/hook")), "{paths:?}");
}

#[test]
fn the_end_of_a_task_that_the_next_daemon_cannot_read_is_notified_like_any_other() {
    let receiver = Receiver::answering(204);
    let shell = receiver.shell("");
    let task = shell.launch_hanging("find it");
    shell.kill_daemon();
    let database = rusqlite::Connection::open(shell.database()).unwrap();
    let damage = "UPDATE task SET budget = '7' WHERE id = ?1";
    assert_eq!(database.execute(damage, [&task.session_id]).unwrap(), 1);
    shell.say(["daemon", "start"]);
    until("it is told", || !receiver.requests().is_empty());
    let told: Value = serde_json::from_str(&receiver.requests()[0].body).unwrap();
    assert_eq!(told["event"], "task.error");
    assert_eq!(told["task"], serde_json::to_value(shell.task(&task.session_id)).unwrap());
    let why = told["task"]["error"].as_str().unwrap();
    assert!(why.starts_with("the record of this task was damaged (`budget`)"), "{why}");
}

#[test]
fn a_command_and_the_desktop_are_notified_of_permission_requests_and_ends() {
    let mut shell = Shell::new();
    let (bin, heard, shown) = (shell.path("bin"), shell.path("heard"), shell.path("shown"));
    fs::create_dir(&bin).unwrap();
    script(&bin.join("notify-send"), &format!("printf '%s|' \"$@\" >> {}\n", shown.display()));
    let line = format!("{{ cat; echo; }} >> {}", heard.display());
    let config = format!("[notify]\ndesktop = true\ncommand = \"{line}\"\n");
    fs::write(shell.path("config.toml"), config).unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    shell.set("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let task = shell.launch("@ask bash ls <b>\n@say found");
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&heard).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    until("the request is told", || lines().len() == 1);
    let asked = lines().remove(0);
    let request = shell.json(["approve", "--json"])[0].clone();
    assert_eq!(asked["event"], "permission.requested");
    assert_eq!(asked["permission"], json!({ "id": request["id"], "what": "bash ls <b>" }));
    assert_eq!(asked["task"]["sessionID"], json!(task.session_id));
    shell.kill_daemon();
    shell.say(["daemon", "start"]);
    let second = shell.launch_to_the_end("second\n@say done");
    until("the end is told", || {
        lines().iter().any(|told| told["task"]["sessionID"] == json!(second.session_id))
    });
    let told = lines().into_iter().find(|told| told["event"] == "task.completed").unwrap();
    assert_eq!(told["task"], serde_json::to_value(&second).unwrap());
    until("nothing is owed", || owed(&shell) == 0);
    let shown = fs::read_to_string(shown).unwrap();
    let first = format!(
        "--app-name=asyncagents|--|Permission requested|{}\nbash ls &lt;b&gt;|",
        task.description.replace('<', "&lt;").replace('>', "&gt;")
    );
    assert!(shown.starts_with(&first), "{shown}");
    assert!(shown.contains("|Background task completed|second @say done|"), "{shown}");
}

#[test]
fn a_webhook_without_a_secret_or_with_a_wrong_address_is_refused_with_the_way_out() {
    let mut shell = Shell::new();
    let file = shell.path("config.toml");
    shell.set("ASYNCAGENTS_CONFIG", &file);
    let check = |config: &str, expected: &str| {
        fs::write(&file, format!("[notify]\n{config}")).unwrap();
        let refused = shell.run(["daemon", "start"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(expected), "{refused:?}");
    };
    check(
        "webhook_url = \"http://127.0.0.1:1/\"\n",
        "`notify.webhook_url` needs a secret to sign with; set `notify.webhook_secret_file` or \
         `notify.webhook_secret_command`",
    );
    check(
        "webhook_url = \"http://127.0.0.1:1/\"\nwebhook_secret_file = \"s\"\nwebhook_secret_command = \"c\"\n",
        "`notify.webhook_secret_file` and `notify.webhook_secret_command` are both set; remove one of them",
    );
    check(
        "webhook_url = \"file:///x\"\nwebhook_secret_file = \"s\"\n",
        "`notify.webhook_url` is not a URL: it has to begin with http:// or https://",
    );
}

fn script(path: &Path, lines: &str) {
    fs::write(path, format!("#!/bin/sh\n{lines}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
