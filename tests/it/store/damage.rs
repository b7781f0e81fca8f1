//! Damage while the store is in use (D4): a row, an index, a directory that disappears. Everything
//! undamaged keeps working, and every command reports the damage. Also backups.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use asyncagents::wire::{CallerView, TaskView, ToolLine, ToolRequest};
use rusqlite::Connection;

use crate::support::process::{CommandOutcome, Shell, until};

fn open(shell: &Shell) -> Connection {
    Connection::open(shell.database()).unwrap()
}

fn ended(code: i32, stdout: &str, stderr: &str) -> CommandOutcome {
    CommandOutcome { code, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

#[test]
fn a_row_that_cannot_be_read_is_reported_and_ended_in_error_and_other_tasks_go_on() {
    let mut shell = Shell::with_host_process();
    fs::write(shell.path("config.toml"), "[limits]\nactive_per_parent = 1\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    let done = shell.launch_to_the_end("done\n@say fine");
    let live = shell.launch_hanging("live");
    let queued = shell.launch("queued\n@say late");
    let innocent = shell.launch("innocent\n@say fine");
    shell.say(["daemon", "stop"]);
    for (task, change) in [
        (&done, "status = 'finnished'"),
        (&live, "progress = '{\"phase\": 7}'"),
        (&queued, "budget = 'no JSON'"),
    ] {
        let sql = format!("UPDATE task SET {change} WHERE id = '{}'", task.session_id);
        assert_eq!(open(&shell).execute(&sql, []).unwrap(), 1);
    }

    assert_eq!(shell.run(["wait", &innocent.session_id]).code, 0);
    let doctor = shell.run(["doctor"]);
    let named = |task: &TaskView, field: &str| format!("`{}` (`{field}`)", task.short_id);
    let names = [named(&done, "status"), named(&live, "progress"), named(&queued, "budget")];
    let said = format!(
        "! task store: the records of tasks {} were damaged; `asyncagents output ID` shows what is \
         left",
        names.join(", ")
    );
    assert!(doctor.stdout.contains(&said), "{doctor:?}");
    assert_eq!(doctor.code, 0, "{doctor:?}");
    let ends = [&done, &live, &queued, &innocent].map(|task| {
        let TaskView { status, error, result, .. } = shell.task(&task.session_id);
        (status.name(), error.unwrap_or_default(), result.unwrap_or_default())
    });
    let damaged = |field: &str, result: &str| {
        let why =
            format!("the record of this task was damaged (`{field}`); what is left of it is shown");
        ("error", why, result.to_owned())
    };
    let fine = ("completed", String::new(), "fine".to_owned());
    let expected =
        [damaged("status", "fine"), damaged("progress", ""), damaged("budget", ""), fine];
    assert_eq!(ends, expected);
    let found = shell.health().unwrap().warnings;
    assert!(found[0].starts_with("the records of tasks "), "{found:?}");
    until("the abort of the live task is sent", || owed_aborts(&shell) == 0);
    assert_eq!(shell.launch_to_the_end("after\n@say fine").result.unwrap(), "fine");
    assert_eq!(shell.say(["prune", "--keep", "0"]), "Removed 5 tasks.\n");
}

#[test]
fn rows_of_other_tables_that_cannot_be_read_are_left_out_and_named_and_nothing_else_is_lost() {
    let shell = Shell::with_host_process();
    let done = shell.launch_to_the_end("done\n@say fine");
    shell.say(["daemon", "stop"]);
    let damage = "INSERT INTO process VALUES ('m', x'ff00', 'call', 'no number', 1, 'boot', 1);
         INSERT INTO process VALUES ('n', 'ses', 'call', 1099511627776, 1, 'boot', 'late');
         INSERT INTO intent VALUES ('n1', 'scripted', 'cli', 'yesterday', '{}');
         INSERT INTO intent VALUES (CAST(x'ff' AS TEXT), 'scripted', 'cli', 1, '{}');
         INSERT INTO instance VALUES (CAST(x'ff' AS TEXT), 'http://127.0.0.1:1');
         INSERT INTO tool_call (id, parent, tool, key, request, created_at)
           VALUES ('c', 'cli', 'wait', 'k', x'00', 1);
         INSERT INTO session (id, nonce, title, directory, agent, deny, todos, model, running, created_at)
           VALUES (x'ff', 'a', 'b', 'c', 'd', '[]', '[]', '', 1, 1);
         UPDATE view SET json = x'ff00';";
    open(&shell).execute_batch(damage).unwrap();
    assert_eq!(shell.launch_to_the_end("after\n@say also fine").result.unwrap(), "also fine");
    let listed: Vec<TaskView> = shell.tasks();
    assert_eq!(listed.iter().filter(|task| task.session_id == done.session_id).count(), 1);
    assert!(shell.log().contains("row is unreadable and left out"), "{}", shell.log());

    let count = |table: &str| -> i64 {
        open(&shell)
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .unwrap()
    };
    open(&shell).execute_batch("UPDATE view SET json = '{\"broken}';").unwrap();
    let before = ["intent", "instance", "session", "tool_call"].map(count);
    let doctor = shell.run(["doctor"]);
    let said = "rows of the task store cannot be read and are left out, in its tables `instance` (1), \
                `intent` (2), `process` (1), `session` (1), `tool_call` (1); the others are not affected";
    assert!(doctor.stdout.contains(&format!("! task store: {said}\n")), "{doctor:?}");
    assert_eq!(doctor.code, 0, "{doctor:?}");
    assert_eq!(shell.tasks().len(), 2);
    assert_eq!(["intent", "instance", "session", "tool_call"].map(count), before);
}

fn owed_aborts(shell: &Shell) -> i64 {
    let sql = "SELECT count(*) FROM run WHERE abort_owed = 1 OR transcript_owed = 1";
    open(shell).query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Overwrites the root page of an index, as a disk that loses a block does.
fn blank_index(shell: &Shell, name: &str) {
    let db = open(shell);
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let root: i64 = db.query_row(root, [name], |row| row.get(0)).unwrap();
    let size: i64 = db.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    drop(db);
    let file = OpenOptions::new().write(true).open(shell.database()).unwrap();
    file.write_all_at(&vec![0; size as usize], ((root - 1) * size) as u64).unwrap();
}

/// The response to an MCP tool call.
fn tool(shell: &Shell, name: &str) -> String {
    let caller = CallerView { session_id: "client".into(), ..CallerView::default() };
    let arguments = serde_json::json!({});
    let request = ToolRequest { caller, arguments, ..ToolRequest::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let said = runtime.block_on(async {
        shell.client().call_tool(name, &request).await.unwrap().next().await.unwrap()
    });
    match said {
        ToolLine::Answer(answer) => answer.text,
        other => panic!("{other:?}"),
    }
}

const DAMAGED: &str = "the task store is damaged (database disk image is malformed), so nothing is \
    written to it any more; `asyncagents daemon stop`, then `asyncagents doctor --repair` saves what \
    can be read";

#[test]
fn a_damaged_index_makes_the_store_read_only_and_every_verb_says_so_until_it_is_repaired() {
    let shell = Shell::new();
    let tasks = [1, 2, 3].map(|n| shell.launch_to_the_end(&format!("task {n}\n@say {n}")));
    shell.say(["daemon", "stop"]);
    blank_index(&shell, "sqlite_autoindex_task_1");
    let before = fs::read(shell.database()).unwrap();

    let output = shell.run(["output", &tasks[0].session_id]);
    assert_eq!(output, ended(1, "", &format!("error: {DAMAGED}\n")));
    let warning = format!("warning: {DAMAGED}\n");
    let refused = ended(1, "", &format!("{warning}error: {DAMAGED}\n"));
    assert_eq!(shell.run(["run", "@say new"]), refused);
    let list = shell.run(["list"]);
    assert_eq!((list.code, list.stderr), (0, warning.clone()));
    assert_eq!(list.stdout.matches("completed").count(), 3, "{}", list.stdout);
    assert!(shell.say(["daemon", "status"]).ends_with(&warning));
    let answer = tool(&shell, "asyncagents_list");
    assert!(answer.starts_with(&format!("Warning: {DAMAGED}\n\n")), "{answer}");

    let doctor = shell.run(["doctor"]);
    assert_eq!(doctor.code, 1);
    assert!(doctor.stdout.contains("✗ task store: damaged: "), "{}", doctor.stdout);
    let repair =
        "error: the daemon has the task store open; `asyncagents daemon stop`, then try again\n";
    assert_eq!(shell.run(["doctor", "--repair"]), ended(1, "", repair));
    shell.say(["daemon", "stop"]);
    assert!(fs::read(shell.database()).unwrap() == before, "nothing was written to it");
    assert_eq!(shell.run(["run", "@say new"]).code, 1, "known from the start after a restart");
    shell.say(["daemon", "stop"]);

    let aside = format!("{}.damaged-1", shell.database().display());
    let repaired = shell.say(["doctor", "--repair"]);
    let saved = "The task store was rebuilt: 3 tasks and ";
    assert!(repaired.starts_with(saved), "{repaired}");
    assert!(repaired.ends_with(&format!("The damaged file is kept as {aside}.\n")), "{repaired}");
    assert!(fs::read(&aside).unwrap() == before);
    assert_eq!(shell.say(["output", &tasks[0].session_id]), "1\n");
    let kept = format!(
        "warning: the task store was damaged; it was kept as `{aside}` and a new one was \
         started; move or delete that file to clear this warning\n"
    );
    assert_eq!(shell.run(["list"]).stderr, kept);
    assert_eq!(shell.launch_to_the_end("@say new").result.unwrap(), "new");
    fs::remove_file(&aside).unwrap();
    until("the warning is gone", || shell.run(["list"]).stderr.is_empty());
    assert_eq!(shell.tasks().len(), 4);
    let sound = "The task store is sound; it was only compacted.\n";
    shell.say(["daemon", "stop"]);
    assert_eq!(shell.say(["doctor", "--repair"]), sound);
    assert_eq!(shell.tasks().len(), 4);
}

#[test]
fn damage_is_found_by_a_check_in_the_background_after_a_daemon_was_killed() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say fine");
    shell.kill_daemon();
    // Nothing reads this one unless it is asked for the tasks of an agent.
    blank_index(&shell, "task_by_agent");
    shell.say(["daemon", "start"]);
    until("the damage is known", || shell.health().unwrap().warnings == [DAMAGED]);
    assert_eq!(shell.run(["run", "@say new"]).code, 1);
}

#[test]
fn a_daemon_whose_directory_was_deleted_exits_and_touches_no_file_of_the_next_one() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say lost");
    let first = shell.pid();
    fs::remove_dir_all(shell.home()).unwrap();
    shell.launch_to_the_end("@say fine");
    let second = shell.pid();
    assert_ne!(first, second);
    until("the first daemon has exited", || !is_alive(first));
    assert_eq!(shell.pid(), second);
    assert!(shell.home().join("server.json").exists());
    assert_eq!(shell.launch_to_the_end("@say again").result.unwrap(), "again");
    shell.kill_daemon();
    assert_eq!(shell.tasks().len(), 2, "the log of the new store was left alone");
}

/// A zombie has no command line.
fn is_alive(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[test]
fn a_storage_directory_over_its_limit_refuses_launches_and_running_tasks_go_on() {
    let mut shell = Shell::with_host_process();
    fs::write(shell.path("config.toml"), "[storage]\nmax_bytes = 2097152\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    let live = shell.launch_hanging("live");
    let ballast = shell.home().join("output");
    fs::create_dir_all(&ballast).unwrap();
    fs::write(ballast.join("ballast"), vec![1; 3 << 20]).unwrap();
    let over = "the storage directory holds 3 MiB, more than the 2 MiB that `storage.max_bytes` allows; \
                `asyncagents prune` makes room, and what runs goes on";
    until("it is seen", || shell.health().unwrap().warnings == [over]);
    assert_eq!(shell.run(["run", "@say no"]), ended(1, "", &format!("error: {over}\n")));
    let doctor = shell.run(["doctor"]);
    assert!(doctor.stdout.contains(&format!("! {over}\n")), "{doctor:?}");
    shell.finish(&live, "done all the same");
    assert_eq!(shell.run(["wait", &live.session_id]).code, 0);
    assert_eq!(shell.task(&live.session_id).result.unwrap(), "done all the same");
    fs::remove_file(ballast.join("ballast")).unwrap();
    until("there is room again", || shell.health().unwrap().warnings.is_empty());
    assert_eq!(shell.launch_to_the_end("@say yes").result.unwrap(), "yes");
    assert_eq!(shell.tasks().len(), 2);
}

#[test]
fn a_backup_is_complete_and_private_with_and_without_a_daemon_and_overwrites_nothing() {
    let shell = Shell::new();
    let none = format!(
        "error: there is no task store in `{}` yet; nothing was copied\n",
        shell.home().display()
    );
    assert_eq!(shell.run(["backup", "early.db"]), ended(1, "", &none));
    shell.launch_to_the_end("@say fine");
    shell.launch("@hang");
    let count = |file: &Path| -> i64 {
        let db = Connection::open(file).unwrap();
        db.query_row("SELECT count(*) FROM task", [], |row| row.get(0)).unwrap()
    };
    for name in ["with.db", "without.db"] {
        let copied = shell.say(["backup", name]);
        let file = shell.path(name);
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(
            copied,
            format!("Copied the task store to {name} ({} bytes).\n", metadata.len())
        );
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(count(&file), 2);
        shell.say(["daemon", "stop"]);
    }
    fs::write(shell.path("mine"), "mine").unwrap();
    let exists = "error: `mine` exists; name another file, or overwrite it with --force\n";
    assert_eq!(shell.run(["backup", "mine"]), ended(1, "", exists));
    assert_eq!(fs::read_to_string(shell.path("mine")).unwrap(), "mine");
    shell.say(["backup", "--force", "mine"]);
    assert_eq!(count(&shell.path("mine")), 2);
    let itself = shell.run(["backup", "--force", shell.database().to_str().unwrap()]);
    assert_eq!(itself.code, 1, "{itself:?}");
    fs::copy(shell.path("with.db"), shell.database()).unwrap();
    assert_eq!(shell.tasks().len(), 2, "going back to it");
}
