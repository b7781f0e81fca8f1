//! `run`, `logs` and `wait`: following a task, in pipes, on terminals and across a killed daemon.

use std::fs;

use asyncagents::wire::TaskView;
use serde_json::{Value, json};

use crate::support::process::{CommandOutcome, Shell, until};
use crate::support::terminal::Terminal;

const SCRIPT: &str =
    "Look for it.\n@tool read {\"path\":\"src/a.rs\"}\n@print grep 5000\n@say It is in **a**.";

#[test]
fn the_log_of_a_task_is_its_conversation_with_a_line_for_each_call() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end(SCRIPT);
    let expected = format!(
        "user     │ Look for it.\n         │ @tool read {{\"path\":\"src/a.rs\"}}\n         │ @print grep 5000\n         \
         │ @say It is in **a**.\n         > read path=\"src/a.rs\"\n         < ok\n         > grep\n         < {}…\n\
         agent    │ It is in **a**.\n",
        "x".repeat(200)
    );
    let said =
        |stdout: &str| CommandOutcome { code: 0, stdout: stdout.to_owned(), stderr: String::new() };
    assert_eq!(shell.run(["logs", &task.short_id]), said(&expected));
    assert_eq!(
        shell.run(["logs", "-n", "1", &task.short_id]).stdout.lines().last(),
        Some("agent    │ It is in **a**.")
    );
    let followed = shell.run(["logs", "-f", &task.short_id]);
    assert_eq!((followed.code, followed.stdout), (0, expected));
    let lines = shell.say(["logs", "--json", &task.short_id]);
    let messages: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let roles: Vec<&str> =
        messages.iter().map(|message| message["info"]["role"].as_str().unwrap()).collect();
    assert_eq!(roles.first(), Some(&"user"));
    assert_eq!(roles.last(), Some(&"assistant"));
    assert_eq!(messages[0]["parts"][0]["text"], json!(SCRIPT));
}

#[test]
fn a_log_on_a_terminal_fits_its_width_and_cannot_be_forged_by_the_agent() {
    let shell = Shell::with_host_process();
    let hostile = "ok\n\u{1b}[2Jagent    │ forged\nuser     │ do it\n&#27;[31m";
    let task = shell.launch_hanging("x");
    shell.finish(&task, hostile);
    shell.say(["wait", "--quiet", &task.short_id]);
    let shown = shell.on_terminal(40, ["logs", &task.short_id]);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    let starts: Vec<&str> = shown.lines().map(|line| line.split('│').next().unwrap()).collect();
    let ours = ["user     ", "         ", "agent    ", "         ", "         ", "         "];
    assert_eq!(starts, ours, "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
}

#[test]
fn logs_with_follow_survives_a_killed_daemon_and_prints_every_line_once() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("look");
    let mut following = shell.start(["logs", "-f", &task.short_id]);
    assert_eq!(following.next_line(), "user     │ look\n");
    assert_eq!(following.next_line(), "         │ @hang\n");
    shell.kill_daemon();
    until("it is started again", || shell.health().is_some());
    shell.finish(&task, "found");
    let stderr = format!("{} \"look @hang\" completed\n", task.short_id);
    let stdout = "agent    │ found\n".to_owned();
    assert_eq!(following.wait(), CommandOutcome { code: 0, stdout, stderr });
}

#[test]
fn run_with_wait_prints_the_result_and_exits_as_wait_does() {
    let shell = Shell::new();
    let ended = shell.run(["run", "--wait", "--description", "d", "@say found"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "found\n"));
    let id = shell.tasks()[0].short_id.clone();
    assert_eq!(ended.stderr, format!("{id}\n{id} \"d\" completed\n"));
    let ended = shell.run(["run", "--wait", "--description", "d", "@fail overloaded"]);
    let id = shell.tasks()[0].short_id.clone();
    let stderr = format!("{id}\n{id} \"d\" error: \"overloaded\"\n");
    assert_eq!(ended, CommandOutcome { code: 1, stdout: String::new(), stderr });
    let task: TaskView =
        serde_json::from_str(&shell.run(["run", "--wait", "--json", "@say x"]).stdout).unwrap();
    assert_eq!((task.status.name(), task.result.as_deref()), ("completed", Some("x")));
    let blocked = shell.run(["run", "--wait", "@ask bash ls\n@say x"]);
    assert!(blocked.code == 2 && blocked.stderr.contains("asks for: \"bash ls\""), "{blocked:?}");
}

#[test]
fn run_with_wait_exits_2_when_the_launch_is_refused_and_not_1_as_for_a_failed_task() {
    let shell = Shell::new();
    for flag in ["--wait", "--follow"] {
        let refused = shell.run(["run", flag, "--agent", "nobody", "look"]);
        assert!(
            refused.code == 2 && refused.stderr.contains("\"nobody\" not found"),
            "{refused:?}"
        );
    }
    assert_eq!(shell.run(["run", "--agent", "nobody", "look"]).code, 1);
}

#[test]
fn the_log_of_a_queued_task_is_followed_from_its_first_line() {
    let mut shell = Shell::with_host_process();
    fs::write(shell.path("config.toml"), "[limits]\nactive_per_parent = 1\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    let first = shell.launch_hanging("first");
    let queued = shell.launch("second\n@say found");
    let mut following = shell.start(["logs", "-f", &queued.short_id]);
    shell.finish(&first, "a");
    assert_eq!(following.next_line(), "user     │ second\n");
    assert_eq!(following.next_line(), "         │ @say found\n");
    let stderr = format!("{} \"second @say found\" completed\n", queued.short_id);
    let stdout = "agent    │ found\n".to_owned();
    assert_eq!(following.wait(), CommandOutcome { code: 0, stdout, stderr });
}

#[test]
fn run_with_follow_prints_the_conversation_and_exits_as_wait_does() {
    let shell = Shell::new();
    let ended = shell.run(["run", "--follow", "--description", "d", "@fail overloaded"]);
    let id = shell.tasks()[0].short_id.clone();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stdout.starts_with("user     │ @fail overloaded\n"), "{ended:?}");
    assert!(ended.stdout.contains("error    \"overloaded\"\n"), "{ended:?}");
    assert_eq!(ended.stderr, format!("{id}\n{id} \"d\" error: \"overloaded\"\n"));
    let blocked = shell.run(["run", "--follow", "@ask bash ls\n@say x"]);
    assert!(blocked.code == 2 && blocked.stderr.contains("asks for: \"bash ls\""), "{blocked:?}");
}

#[test]
fn run_takes_its_prompt_from_a_file_or_an_editor_and_launches_nothing_without_one() {
    let mut shell = Shell::new();
    fs::write(shell.path("task.md"), "@say from a file").unwrap();
    let ended = shell.run(["run", "--wait", "--file", "task.md"]);
    assert_eq!(ended.stdout, "from a file\n");
    let missing = shell.run(["run"]);
    assert!(
        missing.code == 1 && missing.stderr.starts_with("error: there is no prompt; "),
        "{missing:?}"
    );
    let nowhere = shell.run(["run", "--file", "nowhere.md"]);
    assert!(
        nowhere.stderr.starts_with("error: cannot read the prompt from `nowhere.md`: "),
        "{nowhere:?}"
    );
    let count = shell.tasks().len();
    let on_terminal =
        |shell: &Shell| Terminal::start(&mut shell.command(["run", "--wait"]), None).wait();
    shell.set("EDITOR", "true");
    let (code, shown) = on_terminal(&shell);
    assert!(code == 2 && shown.contains("the prompt is empty, so nothing was done"), "{shown}");
    shell.set("EDITOR", "false");
    let (code, shown) = on_terminal(&shell);
    assert!(code == 2 && shown.contains("the editor `false` failed"), "{shown}");
    assert_eq!(shell.tasks().len(), count);
    // VISUAL takes precedence over EDITOR, and may have arguments.
    shell.set("VISUAL", "sh -c 'echo @say written > \"$0\"'");
    let (code, shown) = on_terminal(&shell);
    assert!(code == 0 && shown.contains("│ written\n"), "{code} {shown}");
}

#[test]
fn run_prints_the_next_commands_on_a_terminal_and_the_id_alone_elsewhere() {
    let shell = Shell::new();
    let shown = shell.on_terminal(80, ["run", "@hang"]);
    let id = shell.tasks()[0].short_id.clone();
    let expected = format!(
        "{id}\n  asyncagents wait {id}     until it has ended\n  asyncagents output {id}   its result\n  \
         asyncagents logs -f {id}  watch it work\n"
    );
    assert_eq!(shown, expected);
    let ended = shell.run(["run", "@hang"]);
    let id = shell.tasks()[0].short_id.clone();
    assert_eq!(ended, CommandOutcome { code: 0, stdout: format!("{id}\n"), stderr: String::new() });
}

#[test]
fn resume_reads_its_prompt_from_standard_input() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say one");
    let resumed = shell.run_with_input(["resume", &task.short_id, "-"], b"@say two\n");
    assert_eq!(resumed.stdout, format!("{}\n", task.short_id));
    shell.say(["wait", "--quiet", &task.short_id]);
    assert_eq!(shell.say(["output", &task.short_id]), "two\n");
}

#[test]
fn wait_without_ids_waits_for_the_tasks_of_this_shell() {
    let mut shell = Shell::with_host_process();
    let none = shell.run(["wait"]);
    assert!(
        none.code == 2 && none.stderr.starts_with("error: no task of this shell is at work; "),
        "{none:?}"
    );
    shell.set("ASYNCAGENTS_PARENT", "ses_other");
    shell.launch("@hang");
    shell.unset("ASYNCAGENTS_PARENT");
    let none = shell.run(["wait"]);
    assert!(
        none.code == 2 && none.stderr.starts_with("error: no task of this shell is at work; "),
        "{none:?}"
    );
    let (one, two) = (shell.launch_hanging("one"), shell.launch_hanging("two"));
    let waited = shell.run(["wait", "--timeout", "0", "--json"]);
    let tasks: Vec<TaskView> = serde_json::from_str(&waited.stdout).unwrap();
    let ids: Vec<&str> = tasks.iter().map(|task| task.session_id.as_str()).collect();
    assert_eq!((waited.code, ids), (124, vec![two.session_id.as_str(), &one.session_id]));
    // Resumed tasks count as well as running ones.
    let resumed = shell.launch_to_the_end("@say first");
    shell.say(["resume", &resumed.short_id, "@hang"]);
    let waited = shell.run(["wait", "--timeout", "0", "--json"]);
    let tasks: Vec<TaskView> = serde_json::from_str(&waited.stdout).unwrap();
    let ids: Vec<&str> = tasks.iter().map(|task| task.session_id.as_str()).collect();
    let all = vec![two.session_id.as_str(), &one.session_id, &resumed.session_id];
    assert_eq!((waited.code, ids), (124, all));
    shell.say(["cancel", &resumed.short_id]);
    shell.finish(&one, "a");
    shell.finish(&two, "b");
    let waited = shell.run(["wait", "--quiet", &one.session_id, &two.session_id]);
    assert_eq!(waited.code, 0);
    assert_eq!(shell.run(["wait"]), none);
}
