//! CLI calls while the daemon exits, freezes or is stopped (D5), and the exit codes that scripts
//! rely on.

use std::fs;
use std::time::{Duration, Instant};

use asyncagents::wire::{PermissionView, TaskView};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::front::lose_answer;
use crate::support::process::{CommandOutcome, RunningCommand, Shell, until};

fn said(stdout: impl Into<String>) -> CommandOutcome {
    CommandOutcome { code: 0, stdout: stdout.into(), stderr: String::new() }
}

/// Runs a command whose request the daemon executes and whose response is lost.
fn run_losing(shell: &Shell, route: &str, args: &[&str]) -> CommandOutcome {
    let lost = lose_answer(&shell.socket(), route);
    let ended = shell.run(args);
    assert_eq!(lost.lock().unwrap().len(), 1, "{args:?} {ended:?}");
    ended
}

#[test]
fn a_launch_whose_answer_was_lost_launches_one_task() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let ended = run_losing(&shell, "POST /v1/tasks", &["run", "@hang"]);
    let tasks = shell.tasks();
    assert_eq!(tasks.len(), 1);
    assert_eq!(ended, said(format!("{}\n", tasks[0].short_id)));
}

#[test]
fn a_resume_whose_answer_was_lost_begins_one_run() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say first");
    let route = format!("POST /v1/tasks/{}/resume", task.session_id);
    let ended = run_losing(&shell, &route, &["resume", &task.short_id, "@hang"]);
    assert_eq!(ended, said(format!("{}\n", task.short_id)));
    let resumed = shell.task(&task.session_id);
    assert_eq!((resumed.status.name(), resumed.resume_count), ("resumed", 1));
}

#[test]
fn a_resume_whose_answer_was_lost_and_that_ended_meanwhile_does_not_begin_again() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say first");
    let route = format!("POST /v1/tasks/{}/resume", task.session_id);
    let ended = run_losing(&shell, &route, &["resume", &task.short_id, "@say second"]);
    assert_eq!(ended, said(format!("{}\n", task.short_id)));
    assert_eq!(shell.run(["wait", "--quiet", &task.short_id]), said(""));
    assert_eq!(shell.task(&task.session_id).resume_count, 1);
}

#[test]
fn a_cancel_whose_answer_was_lost_says_what_was_cancelled() {
    let shell = Shell::new();
    let (one, two) = (shell.launch("@hang"), shell.launch("@hang"));
    let done = shell.launch_to_the_end("@say done");
    let line = |task: &TaskView| format!("cancelled {} \"@hang\"\n", task.short_id);
    let ended = run_losing(&shell, "POST /v1/cancel", &["cancel", &one.short_id]);
    assert_eq!(ended, said(line(&one)));
    let ended = run_losing(&shell, "POST /v1/cancel", &["cancel", &two.short_id, &done.short_id]);
    let over = format!("{} \"@say done\" is already over (completed)\n", done.short_id);
    assert_eq!(ended, CommandOutcome { stderr: over, ..said(line(&two)) });

    let three = shell.launch("@hang");
    let ended = run_losing(&shell, "POST /v1/cancel", &["cancel", "--all"]);
    assert_eq!(ended, said(line(&three)));
    assert_eq!(shell.task(&three.session_id).status.name(), "cancelled");
}

#[test]
fn clear_and_prune_whose_answers_were_lost_count_what_the_first_call_did() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say done");
    shell.launch("@hang");
    let ended = run_losing(&shell, "POST /v1/clear", &["clear"]);
    assert_eq!(ended, said("Cleared 2 tasks, 1 of them cancelled.\n"));
    assert_eq!(shell.tasks().len(), 0);
    let ended = run_losing(&shell, "POST /v1/prune", &["prune", "--keep", "0"]);
    assert_eq!(ended, said("Removed 2 tasks.\n"));
    assert_eq!(shell.json(["list", "--all", "--json"]), serde_json::json!([]));
}

#[test]
fn an_approval_whose_answer_was_lost_says_what_was_allowed() {
    let shell = Shell::new();
    let task = shell.launch("@ask bash rm -r build\n@say removed");
    let asked = || -> Vec<PermissionView> {
        serde_json::from_value(shell.json(["approve", "--json"])).unwrap()
    };
    until("it asks", || asked().len() == 1);
    let id = asked().remove(0).id;
    let ended = run_losing(&shell, "POST /v1/permissions/", &["approve", &id]);
    let asker = format!("{} \"@ask bash rm -r build @say removed\"", task.short_id);
    assert_eq!(ended, said(format!("{id}  {asker} allowed: \"bash rm -r build\"\n")));
    assert_eq!(shell.run(["wait", "--quiet", &task.short_id]), said(""));
    // Under another key it is another answer.
    let again = shell.run(["approve", &id]);
    assert_eq!((again.code, again.stdout.as_str()), (1, ""));
    assert!(again.stderr.starts_with(&format!("error: `{id}` was answered already")), "{again:?}");
}

#[test]
fn read_requests_and_server_changes_whose_answers_were_lost_are_repeated() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say found");
    let ended = run_losing(&shell, "GET /v1/tasks", &["list", "--json"]);
    let listed: Vec<TaskView> = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((listed.len(), ended.stderr.as_str()), (1, ""));
    let route = format!("POST /v1/tasks/{}/output", task.session_id);
    assert_eq!(run_losing(&shell, &route, &["output", &task.short_id]).stdout, "found\n");
    assert_eq!(run_losing(&shell, "POST /v1/resolve", &["wait", "-q", &task.short_id]), said(""));
    assert_eq!(run_losing(&shell, "POST /v1/wait", &["wait", "-q", &task.short_id]), said(""));

    let names = |ended: &CommandOutcome| -> Vec<String> {
        let hosts: Value = serde_json::from_str(&ended.stdout).unwrap();
        let opencode = hosts.as_array().unwrap().iter().find(|host| host["name"] == "opencode");
        let servers = opencode.unwrap()["servers"].as_array().unwrap();
        servers.iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    };
    let add = ["hosts", "--json", "add", "work", "http://127.0.0.1:1"];
    assert_eq!(names(&run_losing(&shell, "PUT /v1/hosts", &add)), ["work"]);
    let remove = ["hosts", "--json", "remove", "work"];
    assert_eq!(names(&run_losing(&shell, "DELETE /v1/hosts", &remove)), [""; 0]);
}

#[test]
fn output_and_wait_go_on_with_the_next_daemon_when_the_last_one_was_killed_meanwhile() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("slow");
    let output = shell.start(["output", "--wait", "600", &task.short_id]);
    let wait = shell.start(["wait", "--quiet", "--timeout", "600", &task.short_id]);
    for _ in 0..4 {
        shell.kill_daemon();
        until("the daemon is there again", || shell.health().is_some());
    }
    shell.finish(&task, "found");
    assert_eq!(wait.wait(), said(""));
    assert_eq!(output.wait().stdout, "found\n");
}

#[test]
fn a_daemon_that_is_killed_while_it_starts_is_started_again() {
    let shell = Shell::new();
    let lock = shell.home().join("asyncagents.lock");
    for _ in 0..5 {
        let start = shell.start(["daemon", "start"]);
        let mut pid = None;
        until("it has begun to start", || {
            pid = fs::read_to_string(&lock).ok().and_then(|text| text.parse::<i32>().ok());
            pid.is_some()
        });
        let _ = kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::KILL);
        let started = start.wait();
        // Race: the daemon may have responded just before the kill, and then fails the health
        // check.
        let gone = started.stderr.starts_with("error: the connection to the daemon broke");
        assert!(started.code == 0 || gone, "{started:?}");
        shell.say(["list"]);
        shell.say(["daemon", "stop"]);
        assert_eq!(fs::read_to_string(&lock).unwrap(), "");
    }
}

#[test]
fn wait_exits_2_when_it_could_not_find_out() {
    let shell = Shell::new();
    let check = |shell: &Shell, args: &[&str], stderr: &str| {
        let ended = shell.run(["wait"].iter().chain(args));
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{args:?} {ended:?}");
        assert!(ended.stderr.starts_with(stderr), "{args:?} {ended:?}");
    };
    check(&shell, &["nobody"], "error: no task `nobody`; ");
    check(&shell, &["--timeout", "5", "nobody"], "error: no task `nobody`; ");
    check(&shell, &["--timeout=-1", "nobody"], "error: --timeout must be ");
    check(
        &shell,
        &["--config", "/none/config.toml", "x"],
        "error: config file `/none/config.toml`",
    );
    check(&shell, &[], "error: no task of this shell is at work; ");
    let nowhere = shell.path("file");
    fs::write(&nowhere, "text").unwrap();
    check(&Shell::new().at_home(nowhere.join("x")), &["x"], "error: the daemon did not start: ");
}

#[test]
fn a_wait_under_which_the_daemon_is_stopped_on_purpose_says_so_and_exits_2() {
    let stop = |shell: &Shell| {
        shell.say(["daemon", "stop"]);
    };
    let ways: [&dyn Fn(&Shell); 2] = [&stop, &Shell::terminate_daemon];
    for way in ways {
        let shell = Shell::with_host_process();
        let quick = shell.launch_to_the_end("quick").short_id;
        let task = shell.launch_hanging("slow");
        let mut wait = shell.start(["wait", &quick, &task.short_id]);
        assert_eq!(wait.next_stderr_line(), format!("{quick} \"quick\" completed\n"));
        way(&shell);
        let stderr = "error: the daemon was stopped on purpose while this command waited; \
                      `asyncagents daemon start` starts it again, and then its tasks go on\n";
        assert_eq!(wait.wait(), CommandOutcome { code: 2, stderr: stderr.into(), ..said("") });
        until("the old daemon has exited", || !shell.socket().exists());
        assert_eq!(shell.health(), None, "no other daemon was started");
    }
}

#[test]
fn a_command_after_a_stop_starts_the_daemon_again() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("slow");
    shell.say(["daemon", "stop"]);
    let wait = shell.start(["wait", "--quiet", &task.short_id]);
    until("the daemon is there again", || shell.health().is_some());
    shell.finish(&task, "found");
    assert_eq!(wait.wait(), said(""));
}

#[test]
fn time_limits_are_kept_also_when_the_daemon_is_frozen() {
    let shell = Shell::new();
    let task = shell.launch("@hang").short_id;
    let daemon = Pid::from_raw(shell.pid().try_into().unwrap()).unwrap();
    kill_process(daemon, Signal::STOP).unwrap();
    let began = Instant::now();
    let commands: [RunningCommand; 2] =
        [["wait", "--timeout", "1", &task], ["output", "--wait", "1", &task]]
            .map(|args| shell.start(args));
    let stderr =
        "the daemon does not answer; `asyncagents daemon status` shows whether it is running\n";
    for command in commands {
        assert_eq!(command.wait(), CommandOutcome { code: 124, stderr: stderr.into(), ..said("") });
    }
    let took = began.elapsed();
    kill_process(daemon, Signal::CONT).unwrap();
    assert!((Duration::from_secs(1)..Duration::from_secs(20)).contains(&took), "{took:?}");
    let ended = shell.run(["wait", "--timeout", "0", &task]);
    assert_eq!(ended, CommandOutcome { code: 124, ..said("") });
}

#[test]
fn health_answers_also_when_the_tasks_cannot_be_counted() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say done");
    let pid = shell.pid();
    let db = Connection::open(shell.database()).unwrap();
    db.execute_batch("ALTER TABLE tally RENAME TO gone").unwrap();
    // Launches go on: the triggers that count follow the table to its new name.
    shell.launch("@hang");
    let health = shell.health().unwrap();
    let warning = "the tasks cannot be counted, so the task store may be damaged; `asyncagents \
                   doctor` says more";
    assert_eq!((health.pid, health.task_count), (pid, 0));
    assert_eq!(health.warnings, [warning]);
    let list = shell.run(["list"]);
    assert!(!list.stderr.contains("did not start"), "{list:?}");
    assert_eq!(shell.pid(), pid);
    assert_eq!(shell.say(["daemon", "stop"]), "stopped\n");
}
