//! Faults around the daemon: directories, disks, databases, clients, agents. Each produces a clear
//! error, loses nothing that was acknowledged, and leaves other tasks alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use asyncagents::wire::TaskView;
use rusqlite::Connection;

use crate::support::process::{CommandOutcome, Shell, launch_request, until};
use crate::support::skip;

fn failed(stderr: impl Into<String>) -> CommandOutcome {
    CommandOutcome { code: 1, stdout: String::new(), stderr: stderr.into() }
}

/// The error of every command that needs a daemon; `serve` prints it without the prefix.
fn check_no_start(shell: &Shell, why: &str) {
    for verb in [vec!["run", "x"], vec!["list"], vec!["daemon", "start"]] {
        assert_eq!(shell.run(&verb), failed(format!("error: the daemon did not start: {why}\n")));
    }
    assert_eq!(shell.run(["serve"]).stderr.lines().last().unwrap(), format!("error: {why}"));
    assert_eq!(shell.run(["serve"]).code, 1);
}

fn unwritable(home: &Path, why: &str) -> String {
    format!(
        "cannot write in the storage directory `{}`; \
         make it writable or set ASYNCAGENTS_HOME: {why}",
        home.display()
    )
}

#[test]
fn a_storage_directory_that_cannot_be_made_is_named_with_the_way_out() {
    let shell = Shell::new();
    let file = shell.path("file");
    fs::write(&file, "text").unwrap();
    let home = file.join("home");
    let shell = shell.at_home(&home);
    check_no_start(&shell, &unwritable(&home, "Not a directory (os error 20)"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");

    let home = Path::new("/proc/asyncagents");
    let shell = shell.at_home(home);
    check_no_start(&shell, &unwritable(home, "No such file or directory (os error 2)"));
}

#[test]
fn a_storage_directory_on_a_read_only_disk_is_named_with_the_way_out() {
    let Some(disk) = Disk::mount("size=1m,mode=700") else { return };
    let shell = Shell::new().at_home(disk.path().join("home"));
    shell.launch("@hang");
    shell.say(["daemon", "stop"]);
    disk.remount("ro");
    let why = unwritable(shell.home(), "Read-only file system (os error 30)");
    check_no_start(&shell, &why);
    disk.remount("rw");
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn a_path_too_long_for_a_socket_is_refused_with_the_way_out() {
    let shell = Shell::new();
    let home = shell.path(&"x".repeat(100));
    let shell = shell.at_home(&home);
    let socket = shell.socket();
    let why = format!(
        "the path `{}` is too long for a socket ({} bytes, at most 107); \
         set ASYNCAGENTS_HOME to a shorter one",
        socket.display(),
        socket.as_os_str().len()
    );
    check_no_start(&shell, &why);
    assert_eq!(shell.run(["daemon", "status"]).code, 3);
}

#[test]
fn the_longest_path_for_a_socket_works() {
    let shell = Shell::new();
    let home = shell.path("");
    let used = home.as_os_str().len() + "/asyncagents.sock".len();
    let shell = shell.at_home(home.join("x".repeat(107 - used)));
    assert_eq!(shell.socket().as_os_str().len(), 107);
    assert_eq!(shell.launch_to_the_end("@say it works").result.unwrap(), "it works");
}

#[test]
fn a_directory_whose_name_is_not_utf_8_works_like_any_other() {
    let shell = Shell::new();
    let home = shell.path("").join(OsStr::from_bytes(b"h\xff"));
    let mut shell = shell.at_home(&home);
    shell.set("ASYNCAGENTS_HOME", "");
    fs::create_dir(&home).unwrap();
    fs::write(shell.database(), "garbage").unwrap();
    let flag = [OsStr::new("--home"), home.as_os_str()];
    let run = |args: [&'static str; 2]| shell.run(flag.into_iter().chain(args.map(OsStr::new)));
    assert_eq!(run(["run", "@hang"]).code, 0);
    assert_eq!(run(["daemon", "stop"]).stdout, "stopped\n");
    let mut aside = shell.database().into_os_string();
    aside.push(".damaged-1");
    assert_eq!(fs::read_to_string(aside).unwrap(), "garbage");
}

#[test]
fn a_directory_with_other_files_that_is_open_to_others_is_refused_and_stays_as_it_is() {
    let shell = Shell::new();
    fs::create_dir(shell.home()).unwrap();
    fs::set_permissions(shell.home(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(shell.home().join("notes.txt"), "mine").unwrap();
    let why = format!(
        "the storage directory `{}` is open to others and holds other things (`notes.txt`); \
         set ASYNCAGENTS_HOME to a directory of its own",
        shell.home().display()
    );
    check_no_start(&shell, &why);
    assert_eq!(fs::metadata(shell.home()).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(names(shell.home()), ["notes.txt"]);
}

/// What a client leaves there before the first daemon runs.
#[test]
fn a_directory_with_only_our_own_files_that_is_open_to_others_is_closed_to_them() {
    let shell = Shell::new();
    fs::create_dir_all(shell.home()).unwrap();
    fs::write(shell.home().join("clients.lock"), "").unwrap();
    fs::write(shell.home().join("config.toml"), "").unwrap();
    fs::set_permissions(shell.home(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(shell.launch_to_the_end("@say it works").result.unwrap(), "it works");
    assert_eq!(fs::metadata(shell.home()).unwrap().permissions().mode() & 0o777, 0o700);
}

/// The warning about a damaged store, shown as long as its file exists.
fn kept_as(aside: &str) -> String {
    format!(
        "the task store was damaged; it was kept as `{aside}` and a new one was started; move \
         or delete that file to clear this warning"
    )
}

#[test]
fn a_damaged_database_is_set_aside_unchanged_and_warned_about_until_its_file_is_gone() {
    let shell = Shell::new();
    fs::create_dir(shell.home()).unwrap();
    let garbage = [b"\x00\xff garbage ".repeat(999), b"more garbage".to_vec()];
    let aside = |n: usize| format!("{}.damaged-{n}", shell.database().display());
    for (n, garbage) in (1..).zip(&garbage) {
        fs::write(shell.database(), garbage).unwrap();
        let warnings: Vec<String> = (1..=n).map(|n| kept_as(&aside(n))).collect();
        let said: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
        for verb in ["start", "status"] {
            let status = shell.say(["daemon", verb]);
            assert!(status.ends_with(&said), "{status}");
        }
        assert_eq!(shell.health().unwrap().warnings, warnings);
        assert_eq!(fs::read(aside(n)).unwrap(), *garbage);
        let list = shell.run(["list"]);
        assert_eq!((list.stdout.as_str(), &list.stderr), ("No background tasks found\n", &said));
        assert_eq!(shell.launch_to_the_end("@say fine").result.unwrap(), "fine");
        assert_eq!(shell.tasks().len(), 1);
        for warning in warnings {
            assert!(shell.log().contains(&warning));
        }
        shell.say(["daemon", "stop"]);
    }
    assert_eq!(shell.run(["list"]).stderr.lines().count(), 2, "also after a restart");
    for n in [1, 2] {
        fs::remove_file(aside(n)).unwrap();
    }
    until("the warning is gone", || shell.health().unwrap().warnings.is_empty());
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn a_truncated_database_is_set_aside_unchanged() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say fine");
    shell.say(["daemon", "stop"]);
    let whole = fs::read(shell.database()).unwrap();
    assert!(whole.len() > 3 * 4096);
    let mut warnings = Vec::new();
    for length in [1, 16, 50, 100, 511, 4095, 4096, 2 * 4096, whole.len() / 2, whole.len() - 4096] {
        fs::write(shell.database(), &whole[..length]).unwrap();
        shell.say(["daemon", "start"]);
        let aside = format!("{}.damaged-{}", shell.database().display(), warnings.len() + 1);
        warnings.push(kept_as(&aside));
        assert_eq!(shell.health().unwrap().warnings, warnings, "{length} bytes");
        assert!(fs::read(&aside).unwrap() == whole[..length], "{length} bytes");
        assert_eq!(shell.tasks(), []);
        shell.say(["daemon", "stop"]);
    }
    fs::write(shell.database(), &whole).unwrap();
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn the_write_ahead_log_of_a_killed_daemon_is_never_deleted() {
    let wal = |shell: &Shell| PathBuf::from(format!("{}-wal", shell.database().display()));
    let aside = |shell: &Shell, companion: &str| {
        PathBuf::from(format!("{}.damaged-1{companion}", shell.database().display()))
    };
    type Accident = fn(&Shell);
    let emptied: Accident = |shell| fs::write(shell.database(), "").unwrap();
    let removed: Accident = |shell| fs::remove_file(shell.database()).unwrap();
    for accident in [emptied, removed] {
        let shell = Shell::with_host_process();
        shell.launch_to_the_end("@say fine");
        shell.kill_daemon();
        let kept = fs::read(wal(&shell)).unwrap();
        assert!(kept.len() > 4096, "it is in the log only");
        accident(&shell);
        shell.say(["daemon", "start"]);
        assert_eq!(shell.health().unwrap().warnings.len(), 1);
        assert!(fs::read(aside(&shell, "-wal")).unwrap() == kept);
        assert_eq!(shell.tasks(), []);
    }
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_stays_as_it_is() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say fine");
    shell.say(["daemon", "stop"]);
    let open = || Connection::open(shell.database()).unwrap();
    let set_version = |version: i64| open().pragma_update(None, "user_version", version).unwrap();
    let known = open().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    set_version(999);
    let before = fs::read(shell.database()).unwrap();
    let why = format!(
        "the task store was written by a newer asyncagents (schema 999, this one knows {known}); \
         upgrade asyncagents, or set ASYNCAGENTS_HOME to another directory"
    );
    check_no_start(&shell, &why);
    assert!(fs::read(shell.database()).unwrap() == before);
    set_version(known);
    assert_eq!(shell.tasks().len(), 1);
}

#[test]
fn a_database_of_another_program_is_refused_and_stays_as_it_is() {
    for journal in ["delete", "wal"] {
        let shell = Shell::new();
        fs::create_dir(shell.home()).unwrap();
        let db = Connection::open(shell.database()).unwrap();
        db.pragma_update(None, "journal_mode", journal).unwrap();
        db.execute_batch("CREATE TABLE note (text); INSERT INTO note VALUES ('mine')").unwrap();
        drop(db);
        let before = fs::read(shell.database()).unwrap();
        let why = format!(
            "`{}` is a database of another program; set ASYNCAGENTS_HOME to another directory",
            shell.database().display()
        );
        check_no_start(&shell, &why);
        assert!(fs::read(shell.database()).unwrap() == before, "journal_mode = {journal}");
    }
}

#[test]
fn a_full_disk_is_reported_clearly_and_loses_nothing_that_was_acknowledged() {
    let Some(disk) = Disk::mount("size=2m,mode=700") else { return };
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 512 << 10]).unwrap();
    let shell = Shell::with_host_process().at_home(disk.path().join("home"));
    let prompt = format!("@hang\n{}", "x".repeat(20_000));
    let mut acknowledged = BTreeSet::new();
    let refused = loop {
        let ended = shell.run(["run", "--json", &prompt]);
        if ended.code != 0 {
            break ended;
        }
        let task: TaskView = serde_json::from_str(&ended.stdout).unwrap();
        acknowledged.insert(task.session_id);
        assert!(acknowledged.len() < 100, "the disk is never full");
    };
    let full = "error: the disk is full; free some space, nothing was changed\n";
    assert_eq!(refused, failed(full));
    for _ in 0..20 {
        assert_eq!(shell.run(["run", &prompt]), failed(full));
    }
    let warnings = shell.health().unwrap().warnings;
    let nearly = format!("the disk of `{}` has only ", shell.home().display());
    assert!(warnings[0].starts_with(&nearly), "{warnings:?}");
    let listed =
        || -> BTreeSet<String> { shell.tasks().into_iter().map(|task| task.session_id).collect() };
    let pid = shell.pid();
    assert_eq!(listed(), acknowledged, "while the disk is full");

    fs::remove_file(ballast).unwrap();
    assert_eq!(listed(), acknowledged, "when there is space again");
    acknowledged.insert(shell.launch("@hang").session_id);
    assert_eq!(shell.pid(), pid, "it was never gone");
    shell.kill_daemon();
    assert_eq!(listed(), acknowledged, "after a restart");
    // Recovery of unfinished intents must not bring refused launches back.
    until("no launch is left unfinished", || unfinished(&shell) == 0);
    assert_eq!(listed(), acknowledged);
}

#[test]
fn a_truncated_or_malformed_request_creates_no_task() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let request = launch("half\n@hang");
    for length in [1, 10, 60, request.len() / 2, request.len() - 1] {
        let mut stream = UnixStream::connect(shell.socket()).unwrap();
        stream.write_all(&request[..length]).unwrap();
    }
    for nonsense in [&b"\x00\xff\xfe\n\n"[..], b"GET / HTTP/9.9\r\n\r\n", &[b'a'; 100_000]] {
        let mut stream = UnixStream::connect(shell.socket()).unwrap();
        stream.write_all(nonsense).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    assert_eq!(shell.launch_to_the_end("whole").result.unwrap(), "done: whole");
    let prompts: Vec<String> = shell.tasks().into_iter().map(|task| task.prompt).collect();
    assert_eq!(prompts, ["whole"]);
    assert_eq!(unfinished(&shell), 0);
}

#[test]
fn a_client_that_disconnects_leaves_a_complete_task_or_none() {
    for shell in [Shell::new(), Shell::with_host_process()] {
        shell.say(["daemon", "start"]);
        let request = launch("hung up\n@say done");
        for _ in 0..100 {
            let mut stream = UnixStream::connect(shell.socket()).unwrap();
            stream.write_all(&request).unwrap();
        }
        assert_eq!(shell.launch_to_the_end("@say fine").result.unwrap(), "fine");
        until("no launch is left unfinished", || unfinished(&shell) == 0);
        until("all tasks have completed", || {
            shell.tasks().iter().all(|task| task.status.name() == "completed")
        });
    }
}

#[test]
fn a_panic_in_the_work_of_one_task_fails_that_task_only() {
    let shell = Shell::new();
    let before = shell.launch("before\n@think 200\n@say fine");
    let panicking = shell.launch("@panic");
    let after = shell.launch("after\n@say fine");
    let pid = shell.pid();
    shell.run(["wait", &before.session_id, &panicking.session_id, &after.session_id]);
    let ends = [&before, &panicking, &after].map(|task| {
        let TaskView { status, result, error, .. } = shell.task(&task.session_id);
        (status.name(), result.unwrap_or_default(), error.unwrap_or_default())
    });
    let end = |status, result: &str, error: &str| (status, result.to_owned(), error.to_owned());
    let blamed = "internal error while looking at it; see the daemon's log";
    assert_eq!(
        ends,
        [end("completed", "fine", ""), end("error", "", blamed), end("completed", "fine", "")]
    );
    assert_eq!(shell.pid(), pid);
    assert!(shell.log().contains("the script asked for a panic"));
}

#[test]
fn a_launch_that_the_host_refuses_leaves_nothing() {
    use asyncagents::host::scripted::Control;
    let shell = Shell::with_host_process();
    shell.control(Control::FailOpens { opens: 1 });
    let refused = failed("error: host cannot be reached: opening failed by its script\n");
    assert_eq!(shell.run(["run", "x"]), refused);
    assert_eq!(shell.tasks(), []);
    assert_eq!(shell.launch_to_the_end("@say fine").result.unwrap(), "fine");
}

/// Intents that became neither a task nor were dropped.
fn unfinished(shell: &Shell) -> i64 {
    let db = Connection::open(shell.database()).unwrap();
    db.query_row("SELECT count(*) FROM intent", [], |row| row.get(0)).unwrap()
}

/// A launch request as a client sends it.
fn launch(prompt: &str) -> Vec<u8> {
    let body = serde_json::to_string(&launch_request(prompt)).unwrap();
    format!(
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A small tmpfs, unmounted when it is dropped. Declare it before the values that live on it.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None` where this user may not mount, which is a failure in CI.
    fn mount(options: &str) -> Option<Disk> {
        let folder = tempfile::Builder::new().prefix("aa").tempdir_in("/tmp").unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path());
        let why = match mount.output() {
            Ok(output) if output.status.success() => return Some(Disk(folder)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        skip(&format!("a small disk cannot be mounted: {why}"));
        None
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        let status = Command::new("mount").args(["-o", &options]).arg(self.path()).status();
        assert!(status.unwrap().success());
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
