//! Protected paths that are repaired after a command or removed later (X2), for a user who is not
//! root: root bypasses the permissions of directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use asyncagents::wire::TaskView;
use tokio::task::block_in_place;

use crate::support::process::{Shell, until};
use crate::support::{ModelServer, skip};

/// An arbitrary uid: the user need not exist.
const SOMEBODY: u32 = 12_345;

struct Fixture {
    shell: Shell,
    server: ModelServer,
}

impl Fixture {
    /// A workspace with a git directory and these files. `None` without root, who alone can switch
    /// users, which is a failure in CI.
    async fn build(level: &str, files: &[&str]) -> Option<Fixture> {
        if !rustix::process::geteuid().is_root() {
            skip("only root can be another user");
            return None;
        }
        let server = ModelServer::start().await;
        let mut shell = Shell::new().of_user(SOMEBODY);
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
        shell.set("OPENAI_BASE_URL", server.base_url());
        shell.set("OPENAI_API_KEY", "sk-only-for-tests");
        fs::write(shell.path("config.toml"), format!("sandbox = '{level}'\n")).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
        let place = Fixture { shell, server };
        fs::create_dir_all(place.project().join(".git")).unwrap();
        for file in files {
            fs::write(place.project().join(file), "mine").unwrap();
        }
        let owner = format!("{SOMEBODY}:{SOMEBODY}");
        let chown = Command::new("chown").args(["-R", &owner]).arg(place.shell.path("")).status();
        assert!(chown.unwrap().success());
        Some(place)
    }

    fn project(&self) -> PathBuf {
        self.shell.path("project")
    }

    /// Runs one command of an agent; returns its session and the result that the model was given.
    fn run(&self, command: &str) -> (String, String) {
        let call = serde_json::json!({ "command": command });
        let prompt = format!("work\n@call bash {call}\n@say over");
        let run =
            self.shell.run_in(&self.project(), ["run", "--json", "--agent", "build", &prompt]);
        let task: TaskView = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(self.shell.run(["wait", &task.session_id]).code, 0);
        let told = self.server.asked().last().unwrap().texts("tool").pop().unwrap();
        (task.session_id, told)
    }
}

fn put_back(path: &Path) -> String {
    format!("(`{}` was put back as it was: agents may not change it)", path.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protected_paths_are_repaired_although_the_command_removed_permissions() {
    let made = [".claude/settings.json", ".mcp.json", ".opencode/plugin", ".git/commondir"];
    let command = "mkdir -p .claude .opencode/plugin/a/b; echo x > .git/commondir; chmod 555 .git; \
        echo x > .claude/settings.json; chmod 0 .claude; echo x > .opencode/plugin/a/b/x.ts; \
        chmod 0 .opencode/plugin/a/b; chmod 0 .opencode/plugin/a; chmod 555 .opencode/plugin .opencode; \
        echo x > .mcp.json; chmod 555 .; echo done";
    for level in ["bwrap", "landlock"] {
        let Some(place) = Fixture::build(level, &[]).await else { return };
        block_in_place(|| {
            let (_, told) = place.run(command);
            let made = made.map(|path| place.project().join(path));
            let left: Vec<&PathBuf> = made.iter().filter(|path| path.exists()).collect();
            assert_eq!(left, [] as [&PathBuf; 0], "{level}: {told}");
            let put_back = made.each_ref().map(|path| put_back(path));
            assert_eq!(told, format!("done\n(exit code 0)\n{}", put_back.join("\n")), "{level}");
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_repair_is_reported_to_the_model_and_in_the_log() {
    let Some(place) = Fixture::build("bwrap", &[]).await else { return };
    let folder = place.project().join(".claude");
    let by_root = || {
        until("the command runs", || place.project().join("started").exists());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("settings.json"), "{}").unwrap();
        fs::write(place.project().join("go"), "").unwrap();
    };
    let command = "touch started; until [ -e go ]; do sleep 0.01; done";
    let (_, told) = block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(by_root);
            place.run(command)
        })
    });
    let path = folder.join("settings.json").display().to_string();
    let expected = format!(
        "(no output)\n(exit code 0)\n(`{path}` could not be put back as it was: Permission denied \
         (os error 13); agents may not change it: undo it, or tell the person)"
    );
    assert_eq!(told, expected);
    let words = "protected path restore failed; the command's change stays";
    let is_it = |line: &str| line.contains(words) && line.contains(&path);
    until("it is in the log", || place.shell.log().lines().any(is_it));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_directories_of_a_session_are_removed_also_without_write_permission() {
    let Some(place) = Fixture::build("bwrap", &[]).await else { return };
    block_in_place(|| {
        let command = "mkdir -p ~/go/mod/a; echo x > ~/go/mod/a/x; chmod 555 ~/go/mod/a ~/go/mod";
        let (session, told) = place.run(command);
        let folder = place.shell.home().join("scratch").join(session);
        assert!(folder.join("home/go/mod/a/x").exists(), "{told}");
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        fs::File::open(&folder).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        until("it is gone", || !folder.exists());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_own_file_where_a_folder_is_expected_is_still_there_after_a_command() {
    let files = [".claude", ".opencode", ".vscode", ".cursor"];
    let Some(place) = Fixture::build("bwrap", &files).await else { return };
    block_in_place(|| {
        for command in ["true", "rm -f .claude .vscode; echo x > .opencode; chmod 0 .cursor; true"]
        {
            let (_, told) = place.run(command);
            let read = |file: &str| fs::read_to_string(place.project().join(file)).ok();
            let mine = Some("mine".to_owned());
            assert_eq!(files.map(read), [(); 4].map(|()| mine.clone()), "{told}");
            assert!(!told.contains("put back"), "{told}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_its_owner_has_closed_is_neither_opened_nor_emptied() {
    use std::os::unix::fs::PermissionsExt;

    let Some(place) = Fixture::build("bwrap", &[]).await else { return };
    block_in_place(|| {
        let folder = place.project().join(".claude");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("settings.json"), "mine").unwrap();
        std::os::unix::fs::chown(&folder, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
        let (_, told) = place.run("chmod 700 .claude; rm -rf .claude; true");
        let mode = fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        let text = fs::read_to_string(folder.join("settings.json")).ok();
        assert_eq!((mode, text.as_deref()), (0, Some("mine")), "{told}");
    });
}
