//! Commands die with the run that started them (T20), even when the daemon or the guard is killed:
//! the built program, real commands, a scripted model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use asyncagents::agent::definition::Bounds;
use asyncagents::agent::model::Models;
use asyncagents::agent::turn::Limits;
use asyncagents::clock::Clock;
use asyncagents::host::embedded::{Embedded, Setup, TaskPresence};
use asyncagents::host::{self, Activity, Host, NewSession, OpenedSession, Prompt, Watch};
use asyncagents::process::Survivors;
use asyncagents::sandbox::Sandbox;
use asyncagents::store::{RecordedProcess, Store};
use asyncagents::transcript::Outcome;
use asyncagents::trust::Trust;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::block_in_place;

use crate::support::ModelServer;
use crate::support::process::{Shell, until};

const INTERRUPTED: &str = "interrupted: the tool was cut off and may have done a part of it";

/// Ways to leave `SLEEP` running after an observable side effect. A second `SLEEP` keeps the
/// command itself running.
const WAYS_OUT: [&str; 7] = [
    "SLEEP",
    "trap '' TERM HUP INT; SLEEP; SLEEP",
    "nohup SLEEP > /dev/null 2>&1 & SLEEP",
    "setsid SLEEP & SLEEP",
    "setsid --fork nohup SLEEP; SLEEP",
    "(setsid bash -c '(SLEEP &)' &); SLEEP",
    "env -i \"$(command -v setsid)\" --fork SLEEP; SLEEP",
];

struct Fixture {
    shell: Shell,
    server: ModelServer,
    /// A duration that identifies our process: no other one sleeps for it.
    sleep: String,
}

struct Work {
    project: PathBuf,
    task: String,
}

impl Fixture {
    async fn build() -> Fixture {
        Fixture::with_lease(30).await
    }

    async fn with_lease(seconds: u32) -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        let config = shell.path("config.toml");
        // In the configuration file, so that a restarted daemon continues without a caller.
        let settings = format!(
            "model = \"openai/scripted\"\n\
             [agent]\ncommand_lease_seconds = {seconds}\n\
             [supervisor]\npoll_interval_seconds = 0.1\n\
             [providers.openai]\nbase_url = \"{}\"\n",
            server.base_url()
        );
        fs::write(&config, settings).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", config);
        let unique = Clock::system().nonce();
        let digits = unique.bytes().map(|byte| char::from(b'0' + byte % 10));
        Fixture { shell, server, sleep: format!("sleep 1000.{}", digits.collect::<String>()) }
    }

    /// Launches an agent that runs this script once, in its own directory.
    fn launch(&self, name: &str, script: &str) -> Work {
        self.launch_then(name, script, "say over")
    }

    /// Launches such an agent, with what its model does after the script's result.
    fn launch_then(&self, name: &str, script: &str, then: &str) -> Work {
        let project = self.shell.path(name);
        fs::create_dir(&project).unwrap();
        let script = format!("echo once >> done\n{}\n", script.replace("SLEEP", &self.sleep));
        fs::write(project.join("run.sh"), script).unwrap();
        let prompt = format!("{name}\n@call bash {{\"command\": \"bash run.sh\"}}\n@{then}");
        let run = self.shell.run_in(&project, ["run", "--agent", "build", &prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        Work { project, task: run.stdout.trim().to_owned() }
    }

    fn launch_all(&self) -> Vec<Work> {
        let all = WAYS_OUT.iter().enumerate();
        let all: Vec<Work> = all.map(|(n, way)| self.launch(&format!("work{n}"), way)).collect();
        until("all sleep", || self.sleeping().len() == 2 * WAYS_OUT.len() - 2);
        all
    }

    /// A command that sleeps, and a model that hangs when it gets the result.
    fn launch_one(&self) -> Work {
        let work = self.launch_then("work", "SLEEP", "hang");
        until("it sleeps", || self.sleeping().len() == 1);
        work
    }

    /// The running processes of the commands.
    fn sleeping(&self) -> BTreeSet<u32> {
        let wanted = self.sleep.replace(' ', "\0") + "\0";
        let is_ours = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted)
        };
        let pids = fs::read_dir("/proc").unwrap();
        let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }

    fn until_none_is_left(&self) {
        until("nothing is left", || self.sleeping().is_empty());
    }

    fn guards(&self) -> Vec<u32> {
        let db = rusqlite::Connection::open(self.shell.database()).unwrap();
        let mut guards = db.prepare("SELECT guard_pid FROM process").unwrap();
        guards.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Kills daemon and guards together, so that nothing is left to kill the commands.
    fn kill_daemon_and_guards(&self) {
        let daemon = self.shell.pid();
        signal(daemon, Signal::STOP);
        self.guards().into_iter().for_each(|guard| signal(guard, Signal::KILL));
        signal(daemon, Signal::KILL);
        until("the daemon is gone", || is_dead(daemon));
    }

    /// Status and result, once it has ended.
    fn end(&self, work: &Work) -> (String, String) {
        let waited = self.shell.run(["wait", "--timeout", "60", &work.task]);
        assert_ne!(waited.code, 124, "{waited:?}");
        let task = self.shell.json(["output", &work.task, "--json"]);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("result"))
    }

    /// The results that the model was given, over all its requests.
    fn told(&self, work: &Work) -> Vec<String> {
        let name = work.project.file_name().unwrap().to_str().unwrap();
        let asked = self.server.asked().into_iter();
        let asked = asked.filter(|asked| asked.texts("user")[0].starts_with(&format!("{name}\n")));
        asked.flat_map(|asked| asked.texts("tool")).collect()
    }

    fn check_once(&self, work: &Work, told: &str) {
        assert_eq!(self.end(work), ("completed".to_owned(), "over".to_owned()));
        assert_eq!(self.told(work), [told]);
        assert_eq!(fs::read_to_string(work.project.join("done")).unwrap(), "once\n");
    }
}

/// Leaves no process behind, even when the test fails.
impl Drop for Fixture {
    fn drop(&mut self) {
        self.sleeping().into_iter().for_each(|pid| signal(pid, Signal::KILL));
    }
}

/// A zombie that was not reaped yet counts as dead.
fn is_dead(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn signal(pid: u32, signal: Signal) {
    // The process may be gone already.
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_of_an_agent_outlives_a_killed_daemon_and_no_command_runs_twice() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let all = place.launch_all();
        place.shell.kill_daemon();
        place.until_none_is_left();
        for work in &all {
            place.check_once(work, INTERRUPTED);
        }
        assert_eq!(place.sleeping(), BTreeSet::new());
        until("no record is left", || place.guards().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_left_by_a_killed_daemon_and_guards_are_killed_before_the_run_goes_on() {
    let place = Fixture::build().await;
    block_in_place(|| {
        // Without the last one, which clears the environment and with it the marker.
        let mut all = Vec::new();
        for (n, way_out) in WAYS_OUT[..6].iter().enumerate() {
            all.push(place.launch(&format!("work{n}"), way_out));
        }
        until("all sleep", || place.sleeping().len() == 10);
        place.kill_daemon_and_guards();
        assert_eq!(place.sleeping().len(), 10, "only the next daemon can kill them");
        let asked = place.server.asked().len();
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        until("the first run goes on", || place.server.asked().len() > asked);
        for work in &all {
            place.check_once(work, INTERRUPTED);
        }
        assert_eq!(place.sleeping(), BTreeSet::new());
        until("no record is left", || place.guards().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_does_not_go_on_while_its_earlier_command_still_runs() {
    let place = Fixture::build().await;
    block_in_place(|| {
        for (name, kill) in [("killed", Signal::KILL), ("stopped", Signal::STOP)] {
            let work = place.launch(name, "SLEEP");
            until("it sleeps", || place.sleeping().len() == 1);
            let daemon = place.shell.pid();
            signal(daemon, Signal::STOP);
            place.guards().into_iter().for_each(|guard| signal(guard, kill));
            signal(daemon, Signal::KILL);
            until("the daemon is gone", || is_dead(daemon));
            assert_eq!(place.sleeping().len(), 1);
            let asked = place.server.asked().len();
            assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
            until("the model is asked", || place.server.asked().len() > asked);
            assert_eq!(place.sleeping(), BTreeSet::new(), "the guard was {name}");
            place.check_once(&work, INTERRUPTED);
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_after_the_restart_kills_the_processes_that_the_killed_daemon_left() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let work = place.launch_one();
        place.kill_daemon_and_guards();
        assert_eq!(place.shell.run(["cancel", &work.task]).code, 0);
        place.until_none_is_left();
        assert_eq!(place.end(&work).0, "cancelled");
        until("no record is left", || place.guards().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_a_run_that_does_not_go_on_are_killed_at_the_next_start() {
    let place = Fixture::build().await;
    block_in_place(|| {
        place.launch_one();
        place.kill_daemon_and_guards();
        let db = rusqlite::Connection::open(place.shell.database()).unwrap();
        db.execute("UPDATE session SET running = 0", []).unwrap();
        drop(db);
        assert_eq!(place.sleeping().len(), 1);
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        place.until_none_is_left();
        until("no record is left", || place.guards().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_and_a_stopped_daemon_leave_nothing() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let all = place.launch_all();
        let (last, others) = all.split_last().unwrap();
        let ids = others.iter().map(|work| work.task.as_str());
        let cancel = ["cancel"].into_iter().chain(ids);
        assert_eq!(place.shell.run(cancel).code, 0);
        until("only the processes of the last task are left", || place.sleeping().len() == 2);
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        assert_eq!(place.sleeping(), BTreeSet::new());
        place.check_once(last, INTERRUPTED);
        until("no record is left", || place.guards().is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_daemon_that_is_stopped_end_and_the_model_is_told_why() {
    let place = Fixture::with_lease(2).await;
    block_in_place(|| {
        let all = place.launch_all();
        let daemon = place.shell.pid();
        signal(daemon, Signal::STOP);
        place.until_none_is_left();
        signal(daemon, Signal::CONT);
        let told = "(no output)\n(killed: the daemon was stopped or stuck for too long to watch \
            over it; see what it has done before you run it again)";
        for work in &all {
            place.check_once(work, told);
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_renewed_does_not_expire() {
    let place = Fixture::with_lease(2).await;
    block_in_place(|| {
        let work = place.launch("work", "sleep 5; echo awake");
        place.check_once(&work, "awake\n(exit code 0)");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_any_moment_leave_no_process_and_run_no_command_twice() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let mut all = Vec::new();
        let mut chance: u64 = 0x9e37_79b9_7f4a_7c15;
        for n in 0..12 {
            all.push(place.launch(&format!("work{n}"), "setsid SLEEP & sleep 0.02"));
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            // Random crash points, from before the first model request to after the end.
            std::thread::sleep(std::time::Duration::from_millis(chance >> 8 & 0x7f));
            place.shell.kill_daemon();
            place.until_none_is_left();
        }
        for work in &all {
            assert_eq!(place.end(work), ("completed".to_owned(), "over".to_owned()));
            let told = place.told(work);
            assert!(!told.is_empty() && told.iter().all(|text| *text == told[0]), "{told:?}");
            let done = fs::read_to_string(work.project.join("done")).unwrap_or_default();
            let ran = told[0].contains("(exit code 0)");
            assert!(done == "once\n" || done.is_empty() && !ran, "{done} {told:?}");
        }
        assert_eq!(place.sleeping(), BTreeSet::new());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_still_run_after_the_program_was_replaced_under_the_running_daemon() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let program = place.shell.path("program");
        fs::copy(env!("CARGO_BIN_EXE_asyncagents"), &program).unwrap();
        let daemon = start_with(&place.shell, &program);
        until("it answers", || place.shell.health().is_some());
        fs::remove_file(&program).unwrap();
        fs::write(&program, "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let work = place.launch("work", "echo fine");
        place.check_once(&work, "fine\n(exit code 0)");
        drop(daemon);
    });
}

#[tokio::test]
async fn a_session_fails_rather_than_work_beside_a_command_that_cannot_be_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&directory.path().join("db"), |_| {}).unwrap();
    let clock = Clock::system();
    let host = Embedded::start(store.clone(), clock.clone(), setup(directory.path())).unwrap();
    let project = directory.path().to_str().unwrap().to_owned();
    let session = NewSession {
        parent: None,
        title: "a conversation".into(),
        nonce: clock.nonce(),
        directory: project.clone(),
        agent: "explore".into(),
        deny: Vec::new(),
        handed: Default::default(),
    };
    let opened = host.open(session).await.unwrap();
    let place = host::Place::of_child(&opened, &project);
    let OpenedSession { session, instance } = opened;
    let left = RecordedProcess {
        marker: "stuck".into(),
        session: session.clone(),
        call: "call_1".into(),
        guard_pid: 7,
        guard_start: 1,
        boot_id: "this one".into(),
        created_at: clock.now(),
    };
    store.processes().record(left.clone()).await.unwrap();
    let message = clock.message_id();
    let prompt = Prompt {
        to: place,
        message: message.clone(),
        text: "Where is the login?".into(),
        agent: "explore".into(),
        model: None,
    };
    host.prompt(prompt).await.unwrap();
    let watch = Watch { session, prompt: message, instance, directory: project };
    let started = std::time::Instant::now();
    let outcome = loop {
        let seen = host.observe(vec![watch.clone()]).await.unwrap().remove(0).unwrap();
        if seen.activity == Activity::Idle {
            break seen.outcome;
        }
        assert!(started.elapsed().as_secs() < 30, "{seen:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    let error = "interrupted: a command of an earlier run is still there: process 7 could not be killed within \
        5 s; end it by hand, then resume";
    assert_eq!(outcome, Outcome::Failed { error: error.into(), partial: None });
    assert_eq!(store.processes().all().unwrap(), [left]);
    host.stop().await;
}

fn setup(directory: &Path) -> Setup {
    Setup {
        config_dir: directory.join("config"),
        overflow: directory.join("output"),
        default_model: "offline/explorer".into(),
        output_bytes: 1 << 20,
        trust: Trust::in_home(&directory.join("home")),
        bounds: Bounds { files: 10, file_bytes: 1 << 10, folder_bytes: 1 << 20 },
        models: Models::new([], std::time::Duration::from_secs(1), 1 << 20),
        prices: BTreeMap::new(),
        limits: Limits {
            steps: 4,
            retries: 0,
            compact_at: 100_000,
            answer_bytes: 1 << 20,
            parallel_calls: 8,
            transcript_bytes: 1 << 20,
        },
        gone: std::time::Duration::from_secs(600),
        guard: "/none/asyncagents".into(),
        environment: Default::default(),
        command_lease: std::time::Duration::from_secs(30),
        sandbox: Sandbox::off(),
        scratch: directory.join("scratch"),
        scratch_age: None,
        task_lookup: Arc::new(|_| Ok(TaskPresence::Absent)),
        sweep: |record| Err(Survivors(vec![record.pid])),
    }
}

/// Starts a daemon from another copy of the program.
fn start_with(shell: &Shell, program: &Path) -> Daemon {
    let usual = shell.command(["serve"]);
    let mut command = std::process::Command::new(program);
    command.args(usual.get_args()).env_clear();
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    Daemon(command.spawn().unwrap())
}

struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
