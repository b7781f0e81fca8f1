//! The tool `bash`, with the built program as its guard: its output, and that no process it started
//! outlives the call (T20).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asyncagents::agent::tools::{self, Context, Error, Output, OutputRoom, Todos, Workspace};
use asyncagents::process::{Journal, Launcher, Record, Variables};
use asyncagents::sandbox::SessionSandbox;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const PROGRAM: &str = env!("CARGO_BIN_EXE_asyncagents");
const LEASE: Duration = Duration::from_secs(30);

/// A journal in memory. It also writes the latest marker to a file, which commands can read.
#[derive(Default)]
struct Ledger {
    file: PathBuf,
    open: Mutex<Vec<Record>>,
    refuses: Option<&'static str>,
}

impl Journal for Ledger {
    fn record(&self, record: &Record) -> BoxFuture<'static, Result<(), String>> {
        let answer = self.refuses.map_or(Ok(()), |why| Err(why.to_owned()));
        if answer.is_ok() {
            self.open.lock().unwrap().push(record.clone());
            fs::write(&self.file, &record.marker).unwrap();
        }
        Box::pin(async { answer })
    }

    fn erase(&self, record: &Record) {
        self.open.lock().unwrap().retain(|open| open != record);
    }
}

/// An agent's tools in their own workspace.
struct ToolFixture {
    context: Context,
    ledger: Arc<Ledger>,
    _directory: TempDir,
}

/// A usual `PATH` and nothing inherited.
fn environment() -> Variables {
    Arc::new(vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())])
}

impl ToolFixture {
    fn new() -> ToolFixture {
        ToolFixture::guarded_by(PROGRAM, None)
    }

    fn guarded_by(program: &str, refuses: Option<&'static str>) -> ToolFixture {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir(top.join("workspace")).unwrap();
        let file = top.join("ledger");
        let ledger = Arc::new(Ledger { file, refuses, ..Ledger::default() });
        let context = Context {
            workspace: Workspace::open(&top.join("workspace")).unwrap(),
            todos: Todos::default(),
            overflow: top.join("overflow"),
            output_room: OutputRoom::left(64 << 20, &top.join("overflow")),
            cancel: CancellationToken::new(),
            may_leave: None,
            launcher: Launcher::new(program.into(), LEASE, environment(), ledger.clone()),
            session_sandbox: SessionSandbox::off(),
        };
        ToolFixture { context, ledger, _directory: directory }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.context.workspace.root().join(path)
    }

    /// The records that were not erased.
    fn recorded(&self) -> Vec<Record> {
        self.ledger.open.lock().unwrap().clone()
    }

    async fn run(&self, name: &str, arguments: Value) -> Result<Output, Error> {
        tools::run(name, &arguments, &self.context).await
    }

    /// The text for the model, of a success or a failure.
    async fn call(&self, name: &str, arguments: Value) -> String {
        match self.run(name, arguments).await {
            Ok(output) => output.text,
            Err(error) => format!("error: {error}"),
        }
    }

    async fn check(&self, name: &str, arguments: Value, expected: &str) {
        assert_eq!(self.call(name, arguments.clone()).await, expected, "{name} {arguments}");
    }
}

/// Polls until `look` returns something.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pid(fixture: &ToolFixture, file: &str) -> Option<i32> {
    let text = fs::read_to_string(fixture.path(file)).ok()?;
    text.ends_with('\n').then(|| text.trim().parse().unwrap())
}

/// The state letter of a process, `None` when there is none.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// A zombie that was not reaped yet counts as dead.
fn is_dead(pid: i32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// A shell and its child, both ignoring SIGTERM.
const STUBBORN: &str = "trap '' TERM
(trap '' TERM; echo $BASHPID > child; exec sleep 1000) &
echo $$ > shell
echo started
wait";

const LOST: &str = "(killed: the process that watched over it was killed, perhaps by the command \
    itself; see what it has done before you run it again)";

#[tokio::test]
async fn a_command_is_answered_with_what_it_prints_and_its_exit_code() {
    let fixture = ToolFixture::new();
    fs::write(fixture.path("a.txt"), "content\n").unwrap();
    let root = fixture.path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    for (command, expected) in [
        ("cat a.txt", "content\n(exit code 0)"),
        ("printf x", "x\n(exit code 0)"),
        ("true", "(no output)\n(exit code 0)"),
        ("echo 1; echo 2 >&2; echo 3; exit 3", "1\n2\n3\n(exit code 3)"),
        ("cat", "(no output)\n(exit code 0)"),
        ("kill -9 $$", "(no output)\n(killed by signal 9)"),
        ("printf 'a\\0b\\377'", "a\u{fffd}b\u{fffd}\n(exit code 0)"),
        ("exec >&- 2>&-; exit 4", "(no output)\n(exit code 4)"),
        ("pwd", &format!("{root}\n(exit code 0)")),
    ] {
        fixture.check("bash", json!({ "command": command }), expected).await;
    }
    let output = fixture.run("bash", json!({ "command": "# why\ntrue" })).await.unwrap();
    assert_eq!(output.title, "# why");
    assert!(!fixture.context.overflow.exists());

    fs::remove_dir_all(fixture.path("")).unwrap();
    let gone = format!("error: cannot run `bash`: the directory `{root}` does not exist");
    fixture.check("bash", json!({ "command": "true" }), &gone).await;
}

#[tokio::test]
async fn long_output_is_cut_in_the_middle_and_stored_whole_in_a_file() {
    let fixture = ToolFixture::new();
    for (command, length) in [
        ("echo begin; yes | head -c 50000000; echo end", 50_000_010_u64),
        ("echo begin; yes | head -c 31000; echo end", 31_010),
        ("echo begin; yes | head -c 200000; echo end", 200_010),
    ] {
        let text = fixture.call("bash", json!({ "command": command })).await;
        assert!(text.starts_with("begin\ny\ny\n"), "{}", &text[..100]);
        assert!(text.ends_with("y\ny\nend\n(exit code 0)"), "{}", &text[text.len() - 100..]);
        assert!((30_000..30_500).contains(&text.chars().count()));
        assert!(text.contains(&format!("of {length} bytes you see the beginning and the end")));
        let (_, file) = text.split_once("all is in `").unwrap();
        let (file, _) = file.split_once('`').unwrap();
        assert_eq!(fs::metadata(file).unwrap().len(), length);
        let text = fixture.call("read", json!({ "path": file, "limit": 2 })).await;
        assert_eq!(text, "     1\tbegin\n     2\ty\n(there is more; go on with `offset: 3`)\n");
        let found = fixture.call("grep", json!({ "path": file, "pattern": "end" })).await;
        assert!(found.ends_with(": end"), "{found}");
    }
    let just = fixture.call("bash", json!({ "command": "yes ä | head -n 15000" })).await;
    assert_eq!(just, "ä\n".repeat(15_000) + "(exit code 0)");
}

#[tokio::test]
async fn the_stored_output_of_a_session_has_one_size_limit() {
    let mut fixture = ToolFixture::new();
    fixture.context.output_room = OutputRoom::left(100_000, &fixture.context.overflow);
    let text = fixture.call("bash", json!({ "command": "yes | head -c 60000" })).await;
    assert!(text.contains("all is in `"), "{text}");
    let text = fixture.call("bash", json!({ "command": "yes | head -c 60000" })).await;
    let expected = "of 60000 bytes you see the beginning and the end; the first 40000 are in `";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("there is no room for more (`agent.output_bytes`)"), "{text}");
    // Existing files count against the limit, also after a restart.
    fixture.context.output_room = OutputRoom::left(100_001, &fixture.context.overflow);
    let text = fixture.call("bash", json!({ "command": "yes | head -c 60000" })).await;
    assert!(text.contains("the first 1 are in `"), "{text}");
}

#[tokio::test]
async fn long_output_that_cannot_be_stored_is_still_shown() {
    let fixture = ToolFixture::new();
    fs::write(&fixture.context.overflow, "in the way").unwrap();
    let text = fixture.call("bash", json!({ "command": "yes | head -c 500000; echo end" })).await;
    assert!(text.contains("the rest could not be kept: "));
    assert!(text.ends_with("end\n(exit code 0)"));
}

#[tokio::test]
async fn a_command_that_ignores_signals_is_killed_at_its_timeout_with_its_children() {
    let fixture = ToolFixture::new();
    // On a busy machine the processes may not have started within the shortest time-out: retry with
    // a longer one.
    for timeout in [0.5, 5.0, 30.0] {
        let text = fixture.call("bash", json!({ "command": STUBBORN, "timeout": timeout })).await;
        let (Some(shell), Some(child)) = (pid(&fixture, "shell"), pid(&fixture, "child")) else {
            continue;
        };
        let expected = format!(
            "started\n(killed after {timeout} s, its time-out; pass a longer `timeout`, at most \
             600, or do it in smaller steps)"
        );
        assert_eq!(text, expected);
        assert_eq!((state(shell), state(child)), (None, None), "both are gone and reaped");
        assert_eq!(fixture.recorded(), []);
        return;
    }
    panic!("the command never started");
}

#[tokio::test]
async fn a_cancelled_call_returns_when_everything_it_started_is_gone() {
    let fixture = ToolFixture::new();
    let cancel = async {
        let shell = until("the shell starts", || pid(&fixture, "shell")).await;
        let child = until("its child starts", || pid(&fixture, "child")).await;
        fixture.context.cancel.cancel();
        (shell, child)
    };
    let run = fixture.run("bash", json!({ "command": STUBBORN }));
    let (result, (shell, child)) = tokio::join!(run, cancel);
    assert_eq!(result, Err(Error::Cancelled));
    assert_eq!((state(shell), state(child)), (None, None));
    assert_eq!(fixture.recorded(), []);
}

#[tokio::test]
async fn a_command_whose_caller_is_gone_is_killed_with_its_children() {
    let fixture = ToolFixture::new();
    let started = async {
        let shell = until("the shell starts", || pid(&fixture, "shell")).await;
        (shell, until("its child starts", || pid(&fixture, "child")).await)
    };
    let (shell, child) = tokio::select! {
        started = started => started,
        result = fixture.run("bash", json!({ "command": STUBBORN })) => panic!("{result:?}"),
    };
    until("its record is erased", || fixture.recorded().is_empty().then_some(())).await;
    assert_eq!((state(shell), state(child)), (None, None));
}

/// Ways to leave a process behind. `CHILD` is its command.
const WAYS_OUT: [&str; 7] = [
    "CHILD &",
    "nohup CHILD > /dev/null 2>&1 &",
    "setsid CHILD &",
    "setsid --fork nohup CHILD",
    "(CHILD &)",
    "(setsid bash -c '(CHILD &)' &)",
    "env -i PATH=\"$PATH\" setsid --fork CHILD",
];

const CHILD: &str =
    "bash -c \"trap \\\"\\\" TERM HUP INT; echo \\$\\$ > child; while :; do sleep 1000; done\"";

fn left_behind(way_out: &str) -> String {
    format!("{}\nuntil [ -s child ]; do sleep 0.01; done", way_out.replace("CHILD", CHILD))
}

#[tokio::test]
async fn programs_in_the_background_end_with_the_call_and_the_model_is_told() {
    for way_out in WAYS_OUT {
        let fixture = ToolFixture::new();
        let command = format!("{}; echo up; exit 3", left_behind(way_out));
        let text = fixture.call("bash", json!({ "command": command })).await;
        let child = pid(&fixture, "child").unwrap();
        assert_eq!(state(child), None, "{way_out}");
        // The count is the shell, its `sleep` and possibly their parent, which may have exited
        // already.
        let (said, count) = text.rsplit_once("\n(").unwrap();
        assert_eq!(said, "up\n(exit code 3)", "{way_out}");
        let expected = "programs it left in the background were ended with the call)";
        assert_eq!(count.split_once(' ').unwrap().1, expected, "{way_out}: {count}");
        assert_eq!(fixture.recorded(), []);
    }
}

#[tokio::test]
async fn one_program_left_in_the_background_is_reported_in_the_singular() {
    let fixture = ToolFixture::new();
    let command = "sleep 1000 & echo up";
    let expected =
        "up\n(exit code 0)\n(1 program it left in the background was ended with the call)";
    fixture.check("bash", json!({ "command": command }), expected).await;
}

#[tokio::test]
async fn a_program_that_ends_right_after_the_command_is_not_cut_off() {
    let fixture = ToolFixture::new();
    // A busy machine may exceed the grace period: one success in twenty is enough.
    for _ in 0..20 {
        let command = "echo late > >(sleep 0.02; cat)";
        if fixture.call("bash", json!({ "command": command })).await == "late\n(exit code 0)" {
            return;
        }
    }
    panic!("its output was lost every time");
}

#[tokio::test]
async fn a_command_that_kills_its_guard_is_still_found_and_killed() {
    for way_out in &WAYS_OUT[..6] {
        let fixture = ToolFixture::new();
        let command = format!(
            "echo $$ > shell; {}; echo up; kill -9 $PPID; sleep 1000",
            left_behind(way_out)
        );
        let result = fixture.run("bash", json!({ "command": command })).await;
        assert_eq!(result, Err(Error::Killed { text: format!("up\n{LOST}") }), "{way_out}");
        let (shell, child) = (pid(&fixture, "shell").unwrap(), pid(&fixture, "child").unwrap());
        assert!(is_dead(shell) && is_dead(child), "{way_out}");
        assert_eq!(fixture.recorded(), []);
    }
}

#[tokio::test]
async fn a_command_that_stops_its_guard_can_still_be_cancelled() {
    let fixture = ToolFixture::new();
    let command = format!("kill -STOP $PPID; {STUBBORN}");
    let cancel = async {
        let shell = until("the shell starts", || pid(&fixture, "shell")).await;
        let child = until("its child starts", || pid(&fixture, "child")).await;
        fixture.context.cancel.cancel();
        (shell, child)
    };
    let run = fixture.run("bash", json!({ "command": command }));
    let (result, (shell, child)) = tokio::join!(run, cancel);
    assert_eq!(result, Err(Error::Cancelled));
    assert!(is_dead(shell) && is_dead(child));
    assert_eq!(fixture.recorded(), []);
}

#[tokio::test]
async fn a_command_that_signals_its_own_group_does_not_reach_its_guard() {
    let fixture = ToolFixture::new();
    let expected = "(no output)\n(killed by signal 15)";
    fixture.check("bash", json!({ "command": "kill 0; sleep 1000" }), expected).await;
}

#[tokio::test]
async fn processes_that_fork_faster_than_they_can_be_listed_are_killed() {
    let fixture = ToolFixture::new();
    // A chain of forks: few processes at a time, each of them short-lived.
    let fork = "f() { echo x >> forked; f & }; f; f; f; f; sleep 1000";
    let cancel = async {
        let many = || fs::metadata(fixture.path("forked")).is_ok_and(|file| file.len() > 100);
        until("it forks", || many().then_some(())).await;
        fixture.context.cancel.cancel();
    };
    let run = fixture.run("bash", json!({ "command": fork }));
    let (result, ()) = tokio::join!(run, cancel);
    assert_eq!(result, Err(Error::Cancelled));
    assert_eq!((fixture.recorded(), working_in(&fixture.path(""))), (Vec::new(), BTreeSet::new()));
}

/// Processes with this working directory, except the guard, which is about to exit: an exiting
/// process loses its command line before its directory.
fn working_in(directory: &Path) -> BTreeSet<i32> {
    let directory = directory.canonicalize().unwrap();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        if line.is_empty() || line == "asyncagents\0__guard\0" {
            return None;
        }
        (fs::read_link(format!("/proc/{pid}/cwd")).ok()? == directory).then_some(pid)
    });
    pids.collect()
}

#[tokio::test]
async fn commands_run_at_the_same_time_do_not_keep_each_other_alive() {
    let fixture = ToolFixture::new();
    let others: Vec<ToolFixture> = (0..4).map(|_| ToolFixture::new()).collect();
    let cancel = async {
        until("the first starts", || pid(&fixture, "child")).await;
        for other in &others {
            until("another starts", || pid(other, "child")).await;
        }
        fixture.context.cancel.cancel();
    };
    let runs = others.iter().map(|other| other.run("bash", json!({ "command": STUBBORN })));
    let mut runs = futures_util::future::join_all(runs);
    let run = fixture.run("bash", json!({ "command": STUBBORN }));
    let result = tokio::select! {
        (result, ()) = async { tokio::join!(run, cancel) } => result,
        ended = &mut runs => panic!("{ended:?}"),
    };
    assert_eq!(result, Err(Error::Cancelled));
    assert!(is_dead(pid(&fixture, "child").unwrap()));
    for other in &others {
        assert!(!is_dead(pid(other, "child").unwrap()));
        other.context.cancel.cancel();
    }
    assert_eq!(runs.await, vec![Err(Error::Cancelled); 4]);
}

#[tokio::test]
async fn a_command_inherits_no_descriptor_but_its_input_and_its_output() {
    let fixture = ToolFixture::new();
    let command = "for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done; \
        readlink /proc/$$/fd/* | grep -c socket";
    let text = fixture.call("bash", json!({ "command": command })).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "/dev/null");
    assert!(lines[1].starts_with("pipe:") && lines[1] == lines[2], "{text}");
    assert_eq!(lines[3..], ["0", "(exit code 1)"], "{text}");
}

#[tokio::test]
async fn a_command_is_recorded_before_it_starts_and_not_started_unrecorded() {
    let fixture = ToolFixture::new();
    let command = "cat ../ledger; echo; echo $ASYNCAGENTS_GUARD";
    let text = fixture.call("bash", json!({ "command": command })).await;
    let marker = fs::read_to_string(&fixture.ledger.file).unwrap();
    assert_eq!(text, format!("{marker}\n{marker}\n(exit code 0)"));
    assert_eq!(fixture.recorded(), []);

    let fixture = ToolFixture::guarded_by(PROGRAM, Some("the disk is full"));
    let expected = "error: cannot run `bash`: it could not be recorded first: the disk is full";
    fixture.check("bash", json!({ "command": "touch ../done" }), expected).await;
    assert!(!fixture.path("../done").exists());
}

#[tokio::test]
async fn a_missing_guard_or_shell_is_reported_with_the_way_out() {
    let fixture = ToolFixture::guarded_by("/none/asyncagents", None);
    let expected = "error: cannot run `bash`: cannot start `/none/asyncagents`, the program that \
        starts agents' commands; was asyncagents uninstalled? run `asyncagents \
        daemon restart`: No such file or directory (os error 2)";
    fixture.check("bash", json!({ "command": "true" }), expected).await;

    let fixture = ToolFixture::guarded_by("/bin/true", None);
    let result = fixture.run("bash", json!({ "command": "true" })).await;
    assert_eq!(result, Err(Error::Killed { text: format!("(no output)\n{LOST}") }));
    assert_eq!(fixture.recorded(), []);
}
