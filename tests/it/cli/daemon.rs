//! `asyncagents daemon`: its log, its systemd unit, and draining: a stop that waits for running tasks.

use std::fs;

use asyncagents::task::Phase;
use rustix::process::Signal;
use serde_json::json;

use crate::support::process::{CommandOutcome, Shell, until};

/// A shell whose limit is so high that a task is queued only while the daemon drains. A drain shows
/// in nothing else, so the tests launch tasks until one is queued.
fn with_high_limit() -> Shell {
    let mut shell = Shell::with_host_process();
    let file = shell.path("config.toml");
    fs::write(&file, "[limits]\nactive_per_parent = 1000\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &file);
    shell
}

#[test]
fn a_drained_daemon_stops_when_the_running_tasks_have_ended() {
    let shell = with_high_limit();
    let running = shell.launch_hanging("busy");
    let refused = shell.run(["daemon", "stop", "--drain", "--timeout", "0.05"]);
    let still = "error: the time is up and 1 task is still at work; the daemon was not stopped, and queued \
                 tasks start again\n";
    let expected = CommandOutcome { code: 1, stdout: String::new(), stderr: still.into() };
    assert_eq!(refused, expected);
    let pid = shell.pid();
    let stopping = shell.start(["daemon", "stop", "--drain", "--json"]);
    // The command starts the drain at some later moment: it has begun once a launch is queued.
    let queued = || shell.launch("@hang").progress.phase == Phase::Queued;
    until("nothing starts any more", queued);
    assert_eq!(shell.pid(), pid, "it waits for running tasks");
    for task in shell.tasks() {
        if task.progress.phase != Phase::Queued {
            until("it is at work", || {
                shell.task(&task.session_id).progress.phase == Phase::Waiting
            });
            shell.finish(&task, "done");
        }
    }
    let stopped = "{\n  \"stopped\": true\n}\n".to_owned();
    assert_eq!(stopping.wait(), CommandOutcome { code: 0, stdout: stopped, stderr: String::new() });
    assert_eq!(shell.health(), None);
    // A drain is not persisted: queued tasks start with the next daemon.
    shell.say(["daemon", "start"]);
    until("the others start", || {
        shell.tasks().iter().all(|task| task.progress.phase != Phase::Queued)
    });
    assert_eq!(shell.task(&running.session_id).result.as_deref(), Some("done"));
}

#[test]
fn ctrl_c_during_a_drain_leaves_the_daemon_running_and_starts_queued_tasks_again() {
    let shell = with_high_limit();
    shell.launch_hanging("busy");
    let pid = shell.pid();
    let stopping = shell.start(["daemon", "stop", "--drain"]);
    let mut waiting = None;
    until("nothing starts any more", || {
        let task = shell.launch("@hang");
        let is_queued = task.progress.phase == Phase::Queued;
        waiting = is_queued.then_some(task);
        is_queued
    });
    stopping.signal(Signal::INT);
    let waiting = waiting.unwrap().session_id;
    until("it starts", || shell.task(&waiting).progress.phase == Phase::Waiting);
    assert_eq!(shell.pid(), pid);
}

#[test]
fn the_last_lines_of_the_log_are_shown_and_new_ones_followed() {
    let shell = Shell::new();
    let missing = shell.run(["daemon", "logs"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("there is no log in "), "{missing:?}");
    let task = shell.launch_to_the_end("@say done");
    let all = shell.say(["daemon", "logs", "-n", "10000"]);
    assert_eq!(all, shell.log());
    let last = shell.say(["daemon", "logs", "-n", "1"]);
    assert!(last.lines().count() == 1 && all.ends_with(&last), "{last}");
    assert!(all.contains(&task.session_id), "{all}");

    let mut following = shell.command(["daemon", "logs", "-f", "-n", "0"]);
    let shown = shell.path("shown");
    let file = fs::File::create(&shown).unwrap();
    let mut following = following.stdout(file).spawn().unwrap();
    // With `-n 0` it skips what was logged before it opened the file, and nothing tells when that
    // is: log more until one of the lines is shown.
    until("it shows what is logged", || {
        let task = shell.launch_to_the_end("@say more");
        fs::read_to_string(&shown).unwrap().contains(&task.session_id)
    });
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn a_systemd_unit_is_written_once_and_removed_and_a_foreign_one_is_left_alone() {
    let shell = Shell::new();
    let file = shell.path(".config/systemd/user/asyncagents.service");
    let unit = shell.say(["daemon", "install", "--print"]);
    assert!(!file.exists(), "--print writes nothing");
    let masked = unit.replace(env!("CARGO_BIN_EXE_asyncagents"), "<program>");
    let masked = masked.replace(shell.home().to_str().unwrap(), "<home>");
    insta::assert_snapshot!("daemon_install", masked);
    let next = "next: `asyncagents daemon stop`, then `systemctl --user daemon-reload && systemctl --user \
                enable --now asyncagents`\n";
    let said =
        |stdout: String, stderr: &str| CommandOutcome { code: 0, stdout, stderr: stderr.into() };
    let shown = file.display();
    assert_eq!(shell.run(["daemon", "install"]), said(format!("wrote {shown}\n"), next));
    assert_eq!(fs::read_to_string(&file).unwrap(), unit);
    let again = said(format!("{shown} is there already\n"), next);
    assert_eq!(shell.run(["daemon", "install"]), again);
    let removed = shell.run(["daemon", "uninstall"]);
    assert_eq!((removed.code, removed.stdout), (0, format!("removed {shown}\n")));
    assert!(!file.exists());
    let gone = said(format!("{shown} does not exist\n"), "");
    assert_eq!(shell.run(["daemon", "uninstall"]), gone);

    fs::write(&file, "[Service]\nExecStart=/mine\n").unwrap();
    for verb in ["install", "uninstall"] {
        let refused = shell.run(["daemon", verb]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("was left as it is"), "{refused:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "[Service]\nExecStart=/mine\n");
    assert_eq!(shell.health(), None, "none of this starts a daemon");
}

#[test]
fn stop_reports_as_json_whether_a_daemon_was_running() {
    let shell = Shell::new();
    assert_eq!(shell.json(["daemon", "stop", "--json"]), json!({ "stopped": false }));
    shell.say(["daemon", "start"]);
    assert_eq!(shell.json(["daemon", "stop", "--json"]), json!({ "stopped": true }));
}
