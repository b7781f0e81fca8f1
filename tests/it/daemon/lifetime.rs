//! The daemon as a process: one per storage directory, started on demand, stopped gracefully,
//! killed without loss.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use asyncagents::client;
use asyncagents::host::scripted::Control;
use asyncagents::task::SessionId;
use asyncagents::wire::{ErrorView, TaskView, WaitRequest};
use rustix::process::Signal;

use crate::support::process::{CommandOutcome, RunningCommand, Shell, until};

#[test]
fn ten_clients_at_once_start_one_daemon_and_all_get_their_task() {
    let shell = Shell::new();
    let clients: Vec<RunningCommand> =
        (0..10).map(|_| shell.start(["run", "--json", "@hang"])).collect();
    let ended: Vec<CommandOutcome> = clients.into_iter().map(RunningCommand::wait).collect();
    let task = |ended: &CommandOutcome| -> TaskView {
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let launched: BTreeSet<String> = ended.iter().map(|ended| task(ended).session_id).collect();
    let listed: BTreeSet<String> = shell.tasks().into_iter().map(|task| task.session_id).collect();
    assert_eq!(launched.len(), 10);
    assert_eq!(listed, launched);
    let ready: Vec<String> = log_lines(&shell, " ready ");
    assert_eq!(ready.len(), 1, "{ready:#?}");
    assert!(ready[0].ends_with(&format!("pid={}", shell.pid())), "{ready:#?}");
}

#[test]
fn the_socket_is_for_its_owner_only_in_a_directory_for_its_owner_only() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    assert_eq!((mode(shell.home()), mode(&shell.socket())), (0o700, 0o600));
}

#[test]
fn files_of_the_daemon_are_for_its_owner_only_whatever_the_umask() {
    let shell = Shell::new();
    let mut start = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_asyncagents");
    start.args(["-c", "umask 000 && exec \"$0\" daemon start", program]).env_clear();
    start.env("PATH", "/usr/bin:/bin").env("HOME", shell.path("")).env("ASYNCAGENTS_API_PORT", "0");
    start.env("ASYNCAGENTS_HOST", "scripted").env("ASYNCAGENTS_HOME", shell.home());
    assert!(start.status().unwrap().success());
    shell.launch_to_the_end("@say done");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let all: Vec<PathBuf> = [shell.home(), &shell.home().join("log")].map(entries).concat();
    let open = all.iter().filter(|path| mode(path) & 0o077 != 0);
    assert_eq!(open.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    assert!(all.len() > 6, "{all:?}");
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_its_target_is_left_alone() {
    let shell = Shell::new();
    let file = shell.path("file");
    fs::write(&file, "text").unwrap();
    fs::create_dir(shell.home()).unwrap();
    fs::set_permissions(shell.home(), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&file, shell.home().join("asyncagents.lock")).unwrap();
    let refused = shell.run(["daemon", "start"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("Too many levels of symbolic links"), "{refused:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

#[test]
fn a_directory_of_ours_that_was_open_to_others_is_closed() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    shell.say(["daemon", "stop"]);
    fs::set_permissions(shell.home(), fs::Permissions::from_mode(0o755)).unwrap();
    shell.say(["daemon", "start"]);
    assert_eq!(mode(shell.home()), 0o700);
}

#[test]
fn a_second_daemon_in_the_same_directory_is_refused() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let pid = shell.pid();
    let text = format!(
        "error: a daemon is already running in `{}`; `asyncagents daemon status` shows it\n",
        shell.home().display()
    );
    let stdout = String::new();
    assert_eq!(shell.run(["serve"]), CommandOutcome { code: 1, stdout, stderr: text });
    assert_eq!(shell.pid(), pid);
}

#[test]
fn start_status_and_stop_report_the_state_of_the_daemon() {
    let shell = Shell::new();
    let ended =
        |code, stdout: &str| CommandOutcome { code, stdout: stdout.into(), stderr: String::new() };
    let not_running = format!("not running in {}\n", shell.home().display());
    assert_eq!(shell.run(["daemon", "status"]), ended(3, &not_running));
    assert_eq!(shell.health(), None);
    assert_eq!(shell.run(["daemon", "stop"]), ended(0, "not running\n"));
    assert!(!shell.home().exists(), "a read-only command creates no files");

    let started = shell.say(["daemon", "start"]);
    let running = format!("running in {}: pid {}, ", shell.home().display(), shell.pid());
    assert!(started.starts_with(&running), "{started}");
    let status = shell.say(["daemon", "status"]);
    assert!(status.starts_with(&running), "{status}");
    let url = shell.json(["status", "--json"])["url"].as_str().unwrap().to_owned();
    assert!(status.ends_with(&format!("\nstatus API and dashboard: {url}\n")), "{status}");
    let pid = shell.pid();
    assert!(shell.say(["daemon", "start"]).starts_with(&running), "the same one");
    let health = shell.health().unwrap();
    assert_eq!(
        (health.status.as_str(), health.version.as_str(), health.pid, health.task_count),
        ("ok", env!("CARGO_PKG_VERSION"), pid, 0)
    );
    assert_eq!(health.warnings, [""; 0]);

    assert_eq!(shell.run(["daemon", "stop"]), ended(0, "stopped\n"));
    assert!(!shell.socket().exists());
    assert_eq!(shell.run(["daemon", "status"]), ended(3, &not_running));
}

#[test]
fn starting_and_stopping_works_every_time() {
    let shell = Shell::new();
    for _ in 0..10 {
        shell.say(["daemon", "start"]);
        assert_eq!(shell.say(["daemon", "stop"]), "stopped\n");
    }
    assert_eq!(log_lines(&shell, " ready ").len(), 10);
}

#[tokio::test]
async fn a_caller_that_waits_is_answered_when_the_daemon_stops() {
    let shell = Shell::new();
    let task = shell.launch("@hang");
    let client = shell.client();
    let request =
        WaitRequest { ids: vec![task.session_id], timeout: 600.0, ..WaitRequest::default() };
    let waiting = tokio::spawn(async move { client.wait(&request).await });
    // The daemon has read the wait by the time it has answered this many later requests.
    let client = shell.client();
    for _ in 0..100 {
        client.health().await.unwrap();
    }
    assert!(!waiting.is_finished());
    client.stop(client::Stop::ForGood).await.unwrap();
    match waiting.await.unwrap() {
        Err(client::Error::Refused(answer)) => assert_eq!(answer, stopping()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_that_was_accepted_is_answered_when_the_daemon_stops() {
    let shell = Shell::new();
    let task = shell.launch("@hang");
    let body = serde_json::json!({ "ids": [task.session_id], "timeout": 600.0 }).to_string();
    let mut stream = UnixStream::connect(shell.socket()).unwrap();
    let head = format!(
        "POST /v1/wait HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(String::from_utf8_lossy(&go_on), "HTTP/1.1 100 Continue\r\n\r\n");

    let stop = shell.start(["daemon", "stop"]);
    until("the daemon is stopping", || !log_lines(&shell, " stopping").is_empty());
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(serde_json::from_str::<ErrorView>(body).unwrap(), stopping());
    assert_eq!(stop.wait().stdout, "stopped\n");
}

#[test]
fn a_command_that_needs_a_daemon_while_the_last_one_is_stopping_gets_a_new_one() {
    let shell = Shell::with_host_process();
    shell.say(["daemon", "start"]);
    let pid = shell.pid();
    // An incomplete request keeps the old daemon draining.
    let mut stream = UnixStream::connect(shell.socket()).unwrap();
    stream.write_all(b"POST /v1/tasks HTTP/1.1\r\nhost:").unwrap();
    let stop = shell.start(["daemon", "stop"]);
    until("the daemon is stopping", || !log_lines(&shell, " stopping").is_empty());
    let mut needy = shell.start(["run", "--json", "@hang"]);
    assert!(!needy.is_over());
    until("the socket refuses connections", || UnixStream::connect(shell.socket()).is_err());
    drop(stream);
    let ended = needy.wait();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(stop.wait().code, 0);
    assert_ne!(shell.pid(), pid);
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn wait_survives_a_restart_of_the_daemon() {
    let restart = |shell: &Shell| {
        shell.say(["daemon", "restart"]);
    };
    let ways: [&dyn Fn(&Shell); 2] = [&restart, &Shell::kill_daemon];
    for way in ways {
        for (text, code) in [(Ok("found"), 0), (Err("overloaded"), 1)] {
            let shell = Shell::with_host_process();
            let quick = shell.launch_to_the_end("quick");
            let task = shell.launch_hanging("slow");
            let mut waiting = shell.start(["wait", &quick.short_id, &task.short_id]);
            // After this line the command blocks.
            let told = format!("{} \"quick\" completed\n", quick.short_id);
            assert_eq!(waiting.next_stderr_line(), told);
            way(&shell);
            until("the daemon is there again", || shell.health().is_some());
            assert!(!waiting.is_over());
            let (status, error) = match text {
                Ok(text) => {
                    shell.finish(&task, text);
                    ("completed", String::new())
                }
                Err(error) => {
                    let session = SessionId::new(&task.session_id);
                    shell.control(Control::Fail { session, error: error.into() });
                    ("error", format!(": \"{error}\""))
                }
            };
            let stderr = format!("{} \"slow @hang\" {status}{error}\n", task.short_id);
            assert_eq!(waiting.wait(), CommandOutcome { code, stdout: String::new(), stderr });
        }
    }
}

#[test]
fn a_signal_to_terminate_stops_the_daemon_and_removes_its_socket() {
    let shell = Shell::new();
    shell.launch("@hang");
    shell.terminate_daemon();
    until("the socket is gone", || !shell.socket().exists());
    until("it says so", || log_lines(&shell, " stopped").len() == 1);
    assert_eq!(shell.run(["daemon", "status"]).code, 3);
}

#[test]
fn serve_stays_in_the_foreground_until_a_signal_and_then_succeeds() {
    for signal in [Signal::TERM, Signal::INT] {
        let shell = Shell::new();
        let mut serve = shell.start(["serve"]);
        until("it answers", || shell.health().is_some());
        serve.signal(Signal::HUP);
        shell.launch_to_the_end("look");
        assert!(!serve.is_over());
        serve.signal(signal);
        let ended = serve.wait();
        assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{ended:?}");
        assert!(ended.stderr.contains(" ready "), "it logs to the terminal: {ended:?}");
        assert!(!shell.socket().exists());
    }
}

#[test]
fn tasks_survive_the_death_of_the_daemon() {
    let shell = Shell::with_host_process();
    let finished = shell.launch_to_the_end("first\n@say the result");
    let failed = shell.launch_to_the_end("second\n@fail overloaded");
    let running = shell.launch_hanging("third");
    let before = shell.tasks();
    shell.kill_daemon();
    assert!(shell.socket().exists(), "a stale socket is left");
    assert_eq!(shell.tasks(), before);
    let output = shell.run(["output", &finished.short_id]);
    assert_eq!(output.stdout, "the result\n");
    assert_eq!(shell.run(["wait", "--quiet", &failed.short_id]).code, 1);
    // No event reports this end: the daemon has to find it when it starts.
    shell.kill_daemon();
    shell.finish(&running, "found while nobody looked");
    assert_eq!(shell.run(["wait", "--quiet", &running.short_id]).code, 0);
    let output = shell.run(["output", &running.short_id]);
    assert_eq!(output.stdout, "found while nobody looked\n");
}

#[test]
fn no_launch_is_lost_or_doubled_however_often_the_daemon_is_killed() {
    let shell = Shell::with_host_process();
    let mut launched = BTreeSet::new();
    for _ in 0..5 {
        let runs: Vec<RunningCommand> =
            (0..4).map(|_| shell.start(["run", "--json", "@hang"])).collect();
        until("it is up", || shell.health().is_some());
        shell.kill_daemon();
        for run in runs {
            let ended = run.wait();
            assert_eq!(ended.code, 0, "{ended:?}");
            let task: TaskView = serde_json::from_str(&ended.stdout).unwrap();
            launched.insert(task.session_id);
        }
    }
    assert_eq!(launched.len(), 20);
    let listed: BTreeSet<String> = shell.tasks().into_iter().map(|task| task.session_id).collect();
    assert_eq!(listed, launched);
}

#[test]
fn the_log_has_every_event_and_no_text_of_prompts_or_answers() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_LOG", "debug");
    let task = shell.launch_to_the_end("password hunter2\n@say it is hunter2");
    shell.say(["resume", &task.short_id, "and hunter2 again"]);
    shell.say(["wait", &task.short_id]);
    shell.say(["output", &task.short_id]);
    let cancelled = shell.launch("hunter2\n@hang").short_id;
    shell.say(["cancel", &cancelled]);
    shell.launch_to_the_end("hunter2\n@fail hunter2 is wrong");
    shell.launch_to_the_end("hunter2\n@panic");
    assert_eq!(shell.run(["run", "--agent", "nobody", "hunter2"]).code, 1);
    assert_eq!(shell.run(["resume", &cancelled, "hunter2"]).code, 1);
    shell.say(["daemon", "stop"]);

    let log = shell.log();
    let launched = format!("launched task={}", task.session_id);
    for event in [" ready ", &launched, "cancelled", "ended", "stopped"] {
        assert!(log.contains(event), "{event}:\n{log}");
    }
    let leaks: Vec<&str> = log.lines().filter(|line| line.contains("hunter2")).collect();
    assert_eq!(leaks, [""; 0]);
}

fn stopping() -> ErrorView {
    let error = "the daemon is stopping; try again, a new one is started on demand".to_owned();
    ErrorView { error, status: 503 }
}

fn log_lines(shell: &Shell, word: &str) -> Vec<String> {
    shell.log().lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
