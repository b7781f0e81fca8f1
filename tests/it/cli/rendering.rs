//! Output on a terminal: colours, tables that fit its width, rendered Markdown; and the same information in a
//! pipe, where scripts read it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use asyncagents::clock::Clock;
use asyncagents::store::Store;
use asyncagents::wire::{PROTOCOL, TaskView};
use serde_json::{Value, json};

use crate::support::front::CannedDaemon;
use crate::support::process::{CommandOutcome, Shell, until};

#[path = "../../../benches/engine/rows.rs"]
#[allow(dead_code, reason = "the benchmarks use all of it")]
mod rows;

/// The text without its styles.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').expect("only styles are escape sequences").1;
    }
    plain + rest
}

/// A canned daemon with these tasks. They start in the far future, which is shown as an age of zero, so that the
/// snapshots do not depend on the clock.
fn listing() -> (Shell, CannedDaemon) {
    let task = |id: &str, status: &str, agent: &str, description: &str| {
        json!({
            "sessionID": format!("ses_{id}"), "shortID": id, "parentSessionID": "cli",
            "parentMessageID": "", "parentAgent": "", "parentHost": "mailbox", "host": "scripted",
            "hostInstance": "scripted-0", "directory": "/", "description": description,
            "prompt": "x", "agent": agent, "status": status,
            "startedAt": "2999-01-01T00:00:00.000Z", "batchId": "b", "resumeCount": 0,
            "isForked": false,
            "progress": {
                "toolCalls": 3, "toolCallsByName": {}, "lastTools": [], "phase": "waiting",
                "lastUpdate": "2999-01-01T00:00:00.000Z",
            },
        })
    };
    let login = "find where the login is handled, and by which of the two services";
    let mut tasks = vec![
        task("run123", "running", "explore", login),
        task("ask123", "running", "build", "tests"),
        task("don123", "completed", "general", "write the changelog"),
        task("err123", "error", "general", "量産する"),
        task("can123", "cancelled", "librarian", "tidy up"),
    ];
    tasks[1]["progress"]["phase"] = json!("blocked");
    tasks[2]["isForked"] = json!(true);
    tasks[2]["resumeCount"] = json!(1);
    tasks[2]["progress"]["cost"] = json!(0.25);
    for ended in &mut tasks[2..] {
        ended["completedAt"] = json!("2999-01-01T00:02:05.000Z");
    }
    let page = json!({ "tasks": tasks, "total": 6, "limit": 50, "offset": 0 });
    let health = json!({
        "status": "ok", "uptime": 5, "version": env!("CARGO_PKG_VERSION"), "protocol": PROTOCOL,
        "taskCount": 6, "pid": 1,
    });
    let answers = vec![
        ("GET /v1/health", 200, health.to_string()),
        ("GET /v1/tasks?", 200, page.to_string()),
    ];
    let shell = Shell::new();
    let daemon = CannedDaemon::listen(&shell.socket(), answers);
    (shell, daemon)
}

#[test]
fn the_list_fits_narrow_usual_and_wide_terminals() {
    let (mut shell, _daemon) = listing();
    shell.set("TERM", "xterm-256color");
    for columns in [60, 80, 200] {
        shell.unset("NO_COLOR");
        let coloured = shell.on_terminal(columns, ["list"]);
        let visible = coloured.replace('\u{1b}', "ESC");
        insta::assert_snapshot!(format!("list_in_colour_{columns}"), visible);
        shell.set("NO_COLOR", "1");
        let bare = shell.on_terminal(columns, ["list"]);
        insta::assert_snapshot!(format!("list_plain_{columns}"), bare);
        assert_eq!(plain(&coloured), bare);
        for line in bare.lines() {
            // East Asian characters take two columns.
            let width: usize = line.chars().map(|c| if c > '\u{2fff}' { 2 } else { 1 }).sum();
            assert!(width <= usize::from(columns), "{line}");
        }
    }
    // In a pipe no column is left out and nothing is cut.
    insta::assert_snapshot!("list_in_a_pipe", shell.say(["list"]));
    // With colours forced, a pipe gets what a terminal of that width gets.
    shell.unset("NO_COLOR");
    let coloured = shell.on_terminal(60, ["list"]);
    shell.set("CLICOLOR_FORCE", "1");
    shell.set("COLUMNS", "60");
    for name in ["list", "ls", "ps"] {
        assert_eq!(shell.say([name]), coloured, "{name}");
    }
}

#[test]
fn a_result_is_rendered_on_a_terminal_and_raw_elsewhere() {
    let mut shell = Shell::with_host_process();
    let text = "## Found\n\nThe login is in **src/auth.rs**, see `login` and its callers in the routes:\n\n\
                - src/auth.rs:3\n- src/routes.rs:42\n\n```rust\nfn login() {}\n```\n";
    let task = shell.launch_hanging("x");
    shell.finish(&task, text);
    shell.say(["wait", "--quiet", &task.short_id]);
    assert_eq!(shell.say(["output", &task.short_id]), format!("{text}\n"));
    // Forced colours alone do not make a pipe a terminal: the result stays raw.
    shell.set("CLICOLOR_FORCE", "1");
    shell.set("COLUMNS", "");
    assert_eq!(shell.say(["output", &task.short_id]), format!("{text}\n"));
    shell.unset("CLICOLOR_FORCE");
    shell.unset("COLUMNS");
    let shown = |shell: &Shell, columns| {
        shell.on_terminal(columns, ["output", &task.short_id]).replace(&task.short_id, "xxxxxx")
    };
    insta::assert_snapshot!("output_plain_40", shown(&shell, 40));
    shell.set("TERM", "xterm-256color");
    let coloured = shown(&shell, 80);
    insta::assert_snapshot!("output_in_colour_80", coloured.replace('\u{1b}', "ESC"));
}

#[test]
fn errors_are_coloured_on_a_terminal_and_have_the_same_text_elsewhere() {
    let mut shell = Shell::new();
    let bare = shell.on_terminal(100, ["output", "nobody"]);
    assert_eq!(bare, "error: no task `nobody`; list the tasks to see their ids\n");
    shell.set("TERM", "xterm");
    let coloured = shell.on_terminal(100, ["output", "nobody"]);
    assert!(coloured.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m no task"), "{coloured:?}");
    assert_eq!(plain(&coloured), bare);
    shell.set("TERM", "dumb");
    assert_eq!(shell.on_terminal(100, ["output", "nobody"]), bare);
}

#[test]
fn a_limit_of_0_lists_everything() {
    let shell = Shell::new();
    for _ in 0..3 {
        shell.launch("@hang");
    }
    assert_eq!(shell.say(["list", "--limit", "1"]).lines().count(), 1 + 1 + 1);
    assert_eq!(shell.say(["list", "--limit", "0"]).lines().count(), 1 + 3);
    assert_eq!(shell.json(["list", "--limit", "0", "--json"]).as_array().unwrap().len(), 3);
}

/// Writes ended tasks into the store of a daemon that does not run yet.
pub(super) fn fill(shell: &Shell, tasks: usize) {
    fs::create_dir(shell.home()).unwrap();
    fs::set_permissions(shell.home(), Permissions::from_mode(0o700)).unwrap();
    Store::open(&shell.database(), |_| {}).unwrap().0.close();
    let mut db = rusqlite::Connection::open(shell.database()).unwrap();
    rows::like_the_store(&db).unwrap();
    let clock = Clock::system();
    let all = db.transaction().unwrap();
    for n in 0..tasks {
        rows::ended(&all, &clock, n).unwrap();
    }
    all.commit().unwrap();
}

#[test]
fn ten_thousand_tasks_are_listed_and_a_closed_pipe_is_no_error() {
    let shell = Shell::new();
    fill(&shell, 10_000);
    let text = shell.say(["list", "--limit", "0"]);
    assert_eq!(text.lines().count(), 1 + 10_000);
    let text = shell.say(["list"]);
    assert_eq!(text.lines().last().unwrap(), "… and 9950 older ones; --limit shows more");
    // `head` closes the pipe after one line: EPIPE ends the program quietly, with exit code 0.
    for verb in ["list --limit 0", "list --limit 0 --json", "ls --limit 0", "man", "--help"] {
        let mut command = shell.program("bash");
        let program = env!("CARGO_BIN_EXE_asyncagents");
        let script =
            format!("set -o pipefail; {program} {verb} | head -1; echo ${{PIPESTATUS[0]}}");
        let output = command.args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().last(), Some("0"), "{verb}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{verb}");
    }
}

#[test]
fn a_watched_list_in_a_pipe_prints_each_change_once() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("look");
    let mut watching = shell.start(["list", "--watch"]);
    let line = |status: &str| format!("{} {status}: 0 tool calls \"look @hang\"\n", task.short_id);
    assert_eq!(watching.next_line(), line("running, waiting"));
    shell.finish(&task, "found");
    assert_eq!(watching.next_line(), line("completed"));
    shell.say(["daemon", "stop"]);
    let ended = watching.wait();
    assert!(
        (ended.code, ended.stdout.as_str()) == (1, "")
            && ended.stderr.contains("stopped on purpose"),
        "{ended:?}"
    );
}

#[test]
fn every_help_has_an_example() {
    let shell = Shell::new();
    let mut left: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(words) = left.pop() {
        let help = shell.say(words.iter().map(String::as_str).chain(["--help"]));
        assert!(help.contains("Example"), "{words:?}");
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let verbs = commands.take_while(|line| !line.is_empty());
        let verbs = verbs
            .filter(|line| !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next());
        for verb in verbs.filter(|verb| *verb != "help") {
            left.push(words.iter().cloned().chain([verb.to_owned()]).collect());
        }
        seen += 1;
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn an_unknown_verb_is_answered_with_the_most_similar_one() {
    let shell = Shell::new();
    for (wrong, right) in
        [("stauts", "status"), ("lisst", "list"), ("ouptut", "output"), ("resum", "resume")]
    {
        let ended = shell.run([wrong]);
        let tip = format!("tip: a similar subcommand exists: '{right}'");
        assert!(ended.code == 2 && ended.stderr.contains(&tip), "{ended:?}");
    }
    assert!(!shell.run(["xyzzyx"]).stderr.contains("tip"));
    let ended = shell.run(["daemon", "statsu"]);
    assert!(ended.stderr.contains("tip: a similar subcommand exists: 'status'"), "{ended:?}");
}

#[test]
fn an_unknown_id_is_answered_with_similar_ids() {
    let shell = Shell::new();
    let task = shell.launch("look\n@hang");
    let short = task.short_id.as_str();
    let missing = &short[..5];
    for (typed, verb) in [(missing, "output"), (missing, "logs"), (missing, "wait")] {
        let text = format!(
            "error: no task `{typed}`; list the tasks to see their ids; did you mean {short} \"look @hang\"?\n"
        );
        let code = if verb == "wait" { 2 } else { 1 };
        let refused = CommandOutcome { code, stdout: String::new(), stderr: text };
        assert_eq!(shell.run([verb, typed]), refused, "{verb}");
    }
    let far = shell.run(["output", "nowhere"]).stderr;
    assert_eq!(far, "error: no task `nowhere`; list the tasks to see their ids\n");
}

#[test]
fn an_ambiguous_id_names_ten_tasks_and_counts_the_others() {
    let shell = Shell::new();
    for n in 0..13 {
        shell.launch(&format!("{n}\n@hang"));
    }
    let stderr = shell.run(["output", "ses_"]).stderr;
    assert_eq!(stderr.matches("ses_").count(), 1 + 10, "{stderr}");
    assert!(stderr.ends_with(", and 3 more\n"), "{stderr}");
}

#[test]
fn verbs_that_change_something_print_json() {
    let shell = Shell::new();
    let (one, two) = (shell.launch("@hang"), shell.launch("@say done"));
    let waited = shell.json(["wait", "--quiet", "--json", &two.session_id]);
    assert_eq!(waited[0]["sessionID"], json!(two.session_id));
    assert_eq!(waited[0]["status"], "completed");
    let cancelled = shell.json(["stop", "--json", &one.session_id, &two.session_id]);
    let ids = |tasks: &Value| -> Vec<String> {
        let tasks: Vec<TaskView> = serde_json::from_value(tasks.clone()).unwrap();
        tasks.into_iter().map(|task| task.session_id).collect()
    };
    assert_eq!(ids(&cancelled["cancelled"]), [one.session_id]);
    assert_eq!(ids(&cancelled["over"]), [two.session_id]);
    assert_eq!(shell.json(["kill", "--all", "--json"]), json!({ "cancelled": [] }));
    assert_eq!(shell.json(["clear", "--json"]), json!({ "cancelled": 0, "cleared": 2 }));
    let config = shell.json(["config", "show", "--json"]);
    assert_eq!(config["storage"], json!(shell.home()));
    assert_eq!(config["settings"]["host"], "scripted");
}

#[test]
fn completions_and_manual_pages_are_generated_without_a_daemon() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish"] {
        let script = shell.say(["completions", name]);
        assert!(script.contains("fork-preview") && script.contains("watch"), "{name}");
        let file = shell.path(name);
        fs::write(&file, script).unwrap();
    }
    let syntax = Command::new("bash").arg("-n").arg(shell.path("bash")).status().unwrap();
    assert!(syntax.success());
    assert!(shell.say(["man"]).contains(".TH asyncagents 1"));
    let place = shell.path("man1");
    let said = shell.say(["man", "--directory", place.to_str().unwrap()]);
    let mut names: Vec<String> = fs::read_dir(&place)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(said, format!("wrote {} pages into {}\n", names.len(), place.display()));
    for name in ["asyncagents.1", "asyncagents-list.1", "asyncagents-daemon-start.1"] {
        assert!(names.iter().any(|there| there == name), "{names:?}");
    }
    assert!(!shell.home().exists(), "no daemon was started");
}

#[test]
fn status_shows_the_daemon_and_open_permission_requests_and_starts_nothing() {
    let shell = Shell::new();
    let idle = shell.say(["status"]);
    let home = shell.home().display();
    assert_eq!(
        idle,
        format!(
            "daemon      not running\nstorage     {home}\n\
             It starts with the first command that needs it, such as `asyncagents run`.\n"
        )
    );
    assert_eq!(shell.json(["status", "--json"])["running"], json!(false));
    assert!(!shell.home().exists());
    let task = shell.launch("@ask bash rm -rf x\n@say found");
    until("it asks", || shell.say(["approve"]).contains(&task.short_id));
    until("the port is served", || shell.json(["status", "--json"])["url"].is_string());
    until("it is blocked", || shell.json(["status", "--json"])["live"]["blocked"] == json!(1));
    let status = shell.json(["status", "--json"]);
    assert_eq!(status["running"], json!(true));
    assert_eq!(status["daemon"]["pid"], json!(shell.pid()));
    assert_eq!(status["live"], json!({ "total": 1, "queued": 0, "blocked": 1 }));
    assert_eq!(status["needsAnswer"][0]["shortID"], json!(task.short_id));
    let said = shell.run(["status"]);
    let words = "needs you   1 permission request\n";
    assert!(
        said.stdout.contains("daemon      running, version ") && said.stdout.ends_with(words),
        "{said:?}"
    );
    assert!(
        said.stderr.contains(&format!("allow it with `asyncagents approve {}`", task.short_id)),
        "{said:?}"
    );
}

#[test]
fn batch_and_stats_print_totals() {
    let shell = Shell::new();
    let run = |prompt: &str| -> TaskView {
        let args = ["run", "--json", "--batch", "b", prompt];
        serde_json::from_value(shell.json(args)).unwrap()
    };
    let done = run("one\n@tool read {}\n@tool grep {}\n@tool read {}\n@say a");
    let failed = run("two\n@fail no");
    shell.run(["wait", "--quiet", &done.session_id, &failed.session_id]);
    let batch = shell.say(["batch", "b"]);
    let lines: Vec<&str> = batch.lines().collect();
    assert!(lines[0].starts_with("b: 2 tasks, 1 completed, 1 error; 3 tool calls, "), "{batch}");
    assert_eq!(lines.len(), 1 + 1 + 2, "{batch}");
    assert!(lines[2].contains(&done.short_id) && lines[3].contains(&failed.short_id), "{batch}");
    let by_task = shell.say(["batch", &failed.short_id]);
    assert_eq!(by_task.lines().next(), batch.lines().next());
    assert_eq!(shell.json(["batch", "b", "--json"])["stats"]["total"], json!(2));
    let unknown = shell.run(["batch", "nothing"]);
    assert!(
        unknown.code == 1 && unknown.stderr.starts_with("error: no batch `nothing`, "),
        "{unknown:?}"
    );
    let stats = shell.say(["stats"]);
    assert!(stats.starts_with("2 tasks, 1 completed, 1 error\nfrom launch to end: "), "{stats}");
    assert!(stats.contains("\nTOOL  CALLS\nread      2\ngrep      1\n"), "{stats}");
    assert_eq!(shell.json(["stats", "--json"])["toolCallsByName"], json!({ "grep": 1, "read": 2 }));
}

#[test]
fn output_exits_by_the_outcome_of_the_task_only_with_exit_code() {
    let shell = Shell::new();
    let failed = shell.launch_to_the_end("@fail no").short_id;
    let done = shell.launch_to_the_end("@say a").short_id;
    let hangs = shell.launch("@hang").short_id;
    let code = |args: &[&str]| shell.run(["output"].iter().chain(args)).code;
    assert_eq!([&failed, &done, &hangs].map(|id| code(&[id])), [0, 0, 0]);
    assert_eq!([&failed, &done, &hangs].map(|id| code(&["--exit-code", id])), [1, 0, 2]);
    assert_eq!(code(&["--exit-code", "nobody"]), 2, "the outcome is not known");
    assert_eq!(code(&["nobody"]), 1);
}

#[test]
fn output_of_a_blocked_task_says_what_is_asked_and_how_to_answer() {
    let shell = Shell::new();
    let task = shell.launch("a task\n@ask bash rm -rf x\n@say found");
    let id = &task.short_id;
    until("it is blocked", || shell.task(&task.session_id).progress.phase.name() == "blocked");
    let ended = shell.run(["output", id]);
    let asked = format!(
        "{id} \"a task @ask bash rm -rf x @say found\" asks for: \"bash rm -rf x\"\n  \
         allow it with `asyncagents approve {id}`, refuse it with `asyncagents deny {id}`\n"
    );
    assert!(ended.code == 0 && ended.stderr.ends_with(&asked), "{ended:?}");
    assert!(ended.stderr.contains("running, blocked: 1 tool call, last active "), "{ended:?}");
}
