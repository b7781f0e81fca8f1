//! A run that cannot start or continue ends within seconds, with the reason (T6); a transient
//! failure is retried, visibly, and ends the run after a while.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::scripted::Control;
use asyncagents::supervisor::Settings;
use asyncagents::task::{Phase, State, Timestamp};
use asyncagents::wire::{CallerView, LaunchRequest};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::Value;

use crate::support::hostile_server::HostileServer;
use crate::support::process::{Shell, launch_request, until};
use crate::support::{World, settings, skip};

struct Fixture {
    shell: Shell,
    server: HostileServer,
    project: PathBuf,
}

impl Fixture {
    fn build() -> Fixture {
        let server = HostileServer::start();
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/hostile");
        shell.set("OPENAI_BASE_URL", server.base_url());
        let config = shell.path("config.toml");
        fs::write(&config, "[agent]\nmodel_retries = 0\nsilence_seconds = 60\n").unwrap();
        shell.set("ASYNCAGENTS_CONFIG", config);
        let project = shell.path("project");
        fs::create_dir(&project).unwrap();
        let project = project.canonicalize().unwrap();
        Fixture { shell, server, project }
    }

    fn launch(&self, agent: &str, prompt: &str) -> String {
        let run = self.shell.run_in(&self.project, ["run", "--agent", agent, prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.trim().to_owned()
    }

    fn task(&self, id: &str) -> Value {
        self.shell.json(["output", id, "--json"])
    }

    /// Status and error of a task, once it has ended.
    fn end(&self, id: &str) -> (String, String) {
        let waited = self.shell.run(["wait", "--timeout", "30", id]);
        assert_ne!(waited.code, 124, "{waited:?} {}", self.task(id));
        let task = self.task(id);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("error"))
    }

    fn fails(&self, id: &str, error: &str) {
        assert_eq!(self.end(id), ("error".to_owned(), error.to_owned()));
    }
}

#[test]
fn a_path_that_is_no_directory_is_refused_at_launch() {
    let place = Fixture::build();
    fs::write(place.project.join("file"), "").unwrap();
    let gone = place.project.join("gone");
    assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = |directory: &str| {
        let request = launch_request("anything");
        let caller = CallerView { directory: directory.into(), ..request.caller.clone() };
        let request = LaunchRequest { caller, ..request };
        runtime.block_on(place.shell.client().launch(&request)).unwrap_err().to_string()
    };
    let text = |directory: &str, why: &str| {
        format!(
            "host refused: the directory `{directory}` {why}; name an existing directory by its \
             absolute path"
        )
    };
    let file = place.project.join("file").display().to_string();
    let gone = gone.display().to_string();
    for (directory, why) in [
        ("", "has no name"),
        ("project", "is not absolute"),
        (gone.as_str(), "does not exist"),
        (file.as_str(), "is not a directory"),
    ] {
        assert_eq!(refused(directory), text(directory, why));
    }
    assert_eq!(place.shell.tasks(), []);
}

#[test]
fn a_shell_whose_directory_is_deleted_or_not_utf_8_launches_nothing() {
    let place = Fixture::build();
    let odd = place.project.join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    let refused = place.shell.run_in(&odd, ["run", "look"]);
    let shown = odd.display();
    let expected = format!("error: the name of the current directory `{shown}` is not UTF-8\n");
    assert_eq!((refused.code, refused.stderr), (1, expected));
    let gone = place.project.join("gone");
    fs::create_dir(&gone).unwrap();
    let mut command = std::process::Command::new("sh");
    let program = env!("CARGO_BIN_EXE_asyncagents");
    let script = "rmdir \"$PWD\"; exec \"$0\" run look";
    let ended = command.args(["-c", script, program]).current_dir(&gone);
    let ended = ended.env("ASYNCAGENTS_HOME", place.shell.home()).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    let expected =
        "error: the current directory does not exist any more; change to one that does: ";
    assert!(stderr.starts_with(expected), "{stderr}");
    assert_eq!(place.shell.tasks(), []);
}

#[test]
fn the_directory_of_a_task_is_stored_with_its_links_resolved() {
    let place = Fixture::build();
    let link = place.shell.path("link");
    std::os::unix::fs::symlink(&place.project, &link).unwrap();
    let run = place.shell.run_in(&link, ["run", "--json", "politely"]);
    let task: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(task["directory"], place.project.display().to_string());
}

#[test]
fn a_run_whose_workspace_is_gone_ends_after_a_restart_and_frees_its_slot() {
    let place = Fixture::build();
    // As many as the shell's parent has slots.
    let ids: Vec<String> = (0..10).map(|_| place.launch("general", "@silent")).collect();
    until("all are asked", || place.server.asked("@silent") == 10);
    let next = place.launch("general", "politely");
    assert_eq!(place.task(&next)["progress"]["phase"], "queued");
    let path = place.project.display().to_string();
    fs::rename(&place.project, place.shell.path("elsewhere")).unwrap();
    place.shell.kill_daemon();
    let gone = format!(
        "interrupted: its workspace `{path}` is gone: No such file or directory (os error 2)"
    );
    for id in &ids {
        place.fails(id, &gone);
    }
    place.fails(&next, &gone);
    // A follow-up fails in the same way.
    fs::rename(place.shell.path("elsewhere"), &place.project).unwrap();
    let done = place.launch("general", "politely");
    assert_eq!(place.end(&done).0, "completed");
    fs::rename(&place.project, place.shell.path("elsewhere")).unwrap();
    assert_eq!(place.shell.run(["resume", &done, "and again"]).code, 0);
    let waited = place.shell.run(["wait", "--timeout", "30", &done]);
    assert_eq!(waited.code, 0, "it is completed as before: {waited:?}");
    assert_eq!(place.task(&done)["error"], gone);
}

#[test]
fn a_run_whose_agent_is_gone_ends_after_a_restart() {
    let place = Fixture::build();
    let file = place.project.join(".claude/agents/looker.md");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "---\nname: looker\ndescription: looks\n---\nYou look.\n").unwrap();
    assert_eq!(place.shell.run_in(&place.project, ["trust"]).code, 0);
    let id = place.launch("looker", "@silent");
    until("it is asked", || place.server.asked("@silent") == 1);
    fs::remove_file(&file).unwrap();
    place.shell.kill_daemon();
    let (status, error) = place.end(&id);
    assert_eq!(status, "error");
    assert!(error.starts_with("interrupted: Agent \"looker\" not found."), "{error}");
}

#[test]
fn while_nothing_can_be_saved_the_model_is_not_asked() {
    let place = Fixture::build();
    fs::create_dir(place.shell.home()).unwrap();
    let Some(disk) = Mount::small_disk(place.shell.home()) else { return only_root_can_mount() };
    let polite = place.launch("general", "politely");
    assert_eq!(place.end(&polite).0, "completed");
    // An answer larger than the whole disk: of all writes, that of the answer is the one that fails.
    let prompt = "@bytes 4000000";
    let id = place.launch("general", prompt);
    until("it is retrying", || place.task(&id)["progress"]["phase"] == "retrying");
    let full = "the disk is full; free some space, nothing was changed";
    assert_eq!(place.task(&id)["progress"]["detail"], full);
    let tries = || place.shell.log().matches("task store failed in the embedded host").count();
    let before = tries();
    until("it is tried again", || tries() >= before + 2);
    assert_eq!(place.server.asked(prompt), 1, "the answer is kept and not requested again");
    disk.grow();
    assert_eq!(place.end(&id), ("completed".to_owned(), String::new()));
    assert_eq!(place.server.asked(prompt), 1);
    assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
}

#[test]
fn a_file_system_that_does_not_answer_stops_one_call_and_not_the_daemon() {
    let place = Fixture::build();
    let hung = place.project.join("hung");
    fs::create_dir(&hung).unwrap();
    let Some(mount) = Mount::that_hangs(&hung) else { return only_root_can_mount() };
    let calls = "@tool read {\"path\": \"hung/file\"}";
    let ids: Vec<String> = (0..4).map(|_| place.launch("explore", calls)).collect();
    until("they hang", || place.server.asked(calls) == 4);
    // Other tasks are served meanwhile.
    for _ in 0..3 {
        let polite = place.launch("explore", "politely");
        assert_eq!(place.end(&polite).0, "completed");
        assert!(place.shell.health().is_some());
    }
    for id in &ids {
        assert_eq!(place.end(id), ("completed".to_owned(), String::new()));
    }
    // A launch in the hanging directory gets an error instead of no response.
    assert_eq!(place.shell.run(["daemon", "status"]).code, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = launch_request("anything");
    let directory = hung.display().to_string();
    let caller = CallerView { directory, ..request.caller.clone() };
    let launch = LaunchRequest { caller, ..request };
    let refused = runtime.block_on(place.shell.client().launch(&launch)).unwrap_err();
    let silent = "host cannot be reached: the file system did not answer within 10 s";
    assert_eq!(refused.to_string(), silent);
    drop(mount);
}

#[test]
fn a_run_whose_workspace_does_not_answer_is_shown_as_retrying_and_ends_after_a_while() {
    let place = Fixture::build();
    let config = place.shell.path("config.toml");
    fs::write(config, "[supervisor]\ngone_seconds = 1\n").unwrap();
    let id = place.launch("general", "@silent");
    until("it is asked", || place.server.asked("@silent") == 1);
    assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
    let Some(mount) = Mount::that_hangs(&place.project) else { return only_root_can_mount() };
    assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
    let silent = "the file system did not answer within 10 s";
    until("it is tried again", || {
        let progress = &place.task(&id)["progress"];
        progress["phase"] == "retrying" && progress["detail"] == silent
    });
    place.fails(&id, &format!("interrupted: {silent}, for 1 s"));
    drop(mount);
}

/// Lets a test that has to mount be skipped, but not for root, who always may.
fn only_root_can_mount() {
    assert!(!rustix::process::geteuid().is_root(), "cannot mount a file system");
    skip("only root can mount a file system");
}

/// A file system mounted by a test; unmounted when dropped.
struct Mount {
    path: PathBuf,
    _server: Option<fs::File>,
}

impl Mount {
    /// A FUSE mount whose server never responds.
    fn that_hangs(path: &Path) -> Option<Mount> {
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        Mount::make("fuse", path, &options)?;
        Some(Mount { path: path.to_owned(), _server: Some(server) })
    }

    fn small_disk(path: &Path) -> Option<Mount> {
        Mount::make("tmpfs", path, "size=2m,mode=700")?;
        Some(Mount { path: path.to_owned(), _server: None })
    }

    fn make(kind: &str, path: &Path, options: &str) -> Option<()> {
        let options = CString::new(options).unwrap();
        mount(kind, path, kind, MountFlags::empty(), Some(options.as_c_str())).ok()
    }

    fn grow(&self) {
        mount_remount(&self.path, MountFlags::empty(), "size=64m").unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

#[test]
fn a_task_whose_host_is_no_longer_configured_ends() {
    let mut shell = Shell::with_host_process();
    let working = shell.launch_hanging("works");
    let cancelled = shell.launch_hanging("cancelled");
    assert_eq!(shell.run(["daemon", "stop"]).code, 0);
    // The intent of a launch that crashed before its caller got a response.
    let database = shell.database();
    let count = |what: &str| {
        let db = rusqlite::Connection::open(&database).unwrap();
        let count = format!("SELECT count(*) FROM {what}");
        db.query_row(&count, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let db = rusqlite::Connection::open(&database).unwrap();
    let intent = "INSERT INTO intent VALUES ('cut-off', 'scripted', 'cli', 0, '{}')";
    db.execute(intent, []).unwrap();
    shell.set("ASYNCAGENTS_HOST", "embedded");
    let waited = shell.run(["wait", "--timeout", "30", &working.session_id]);
    assert_eq!(waited.code, 1, "{waited:?}");
    let task = shell.task(&working.session_id);
    let error = "interrupted: no host `scripted`; configured: embedded, opencode";
    assert_eq!((task.status.name(), task.error.as_deref()), ("error", Some(error)));
    let _ = shell.run(["cancel", &cancelled.session_id]);
    until("nothing is owed to it", || count("run WHERE abort_owed = 1") == 0);
    until("the launch is dropped", || count("intent") == 0);
}

#[tokio::test]
async fn an_unreachable_host_is_shown_and_its_runs_end_after_a_while() {
    let clock = Clock::manual(Timestamp::from_millis(1_790_000_000_000));
    let settings = Settings { gone: Duration::from_secs(60), ..settings() };
    let world = World::at(settings, clock.clone()).await;
    let parent = world.parent().await;
    let working = world.launch(&parent, "@hang").await;
    world.until("it works", || world.task(&working.id).progress.phase == Phase::Waiting).await;
    world.control(Control::Unreachable { yes: true }).await;
    world.supervisor.sweep();
    let why = "host cannot be reached: switched off by its script";
    world
        .until("it is shown", || {
            let progress = world.task(&working.id).progress;
            progress.phase == Phase::Retrying && progress.detail.as_deref() == Some(why)
        })
        .await;
    // The host returns within `gone`: the run is not affected.
    clock.advance(Duration::from_secs(59));
    world.control(Control::Unreachable { yes: false }).await;
    world.supervisor.sweep();
    world.until("it works", || world.task(&working.id).progress.phase == Phase::Waiting).await;
    world.control(Control::Unreachable { yes: true }).await;
    world.supervisor.sweep();
    world.until("it is shown", || world.task(&working.id).progress.phase == Phase::Retrying).await;
    clock.advance(Duration::from_secs(61));
    let ended = world.ended(&working).await;
    let error = format!("interrupted: {why}, for 1m 0s");
    assert_eq!(ended.state, State::Failed { error, result: None });
}
