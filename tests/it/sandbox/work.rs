//! Ordinary work succeeds in the sandbox (X2): version control, package managers and tests run
//! there, what it blocks is explained, and a person can let a command run outside.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use asyncagents::sandbox;
use serde_json::json;

use crate::support::ModelServer;
use crate::support::process::{Shell, until};

struct Fixture {
    shell: Shell,
    server: ModelServer,
}

impl Fixture {
    async fn build(config: &str) -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
        shell.set("OPENAI_BASE_URL", server.base_url());
        shell.set("OPENAI_API_KEY", "sk-only-for-tests");
        let text = format!("{config}\n[supervisor]\npoll_interval_seconds = 0.1\n");
        fs::create_dir_all(shell.path("config/agents")).unwrap();
        fs::write(shell.path("config/config.toml"), text).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", shell.path("config/config.toml"));
        fs::create_dir(shell.path("project")).unwrap();
        Fixture { shell, server }
    }

    fn project(&self) -> PathBuf {
        self.shell.path("project")
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.shell.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn launch(&self, agent: &str, calls: &[serde_json::Value]) -> String {
        let calls = calls.iter().map(|call| format!("@call bash {call}\n")).collect::<String>();
        let prompt = format!("work\n{calls}@say over");
        let run = self.shell.run_in(&self.project(), ["run", "--agent", agent, &prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.trim().to_owned()
    }

    /// The tool results that the model was given, once the task has ended.
    fn told(&self, task: &str) -> Vec<String> {
        let waited = self.shell.run(["wait", "--timeout", "300", task]);
        assert_ne!(waited.code, 124, "{waited:?}");
        self.server.asked().last().unwrap().texts("tool")
    }

    /// The output of one command of an agent in the sandbox.
    fn bash(&self, command: &str) -> String {
        let task = self.launch("build", &[json!({ "command": command, "timeout": 300 })]);
        self.told(&task).pop().unwrap()
    }
}

/// Runs the test on a blocking thread, so that the model server can answer meanwhile.
async fn with<T: Send + 'static>(
    config: &str,
    test: impl FnOnce(Fixture) -> T + Send + 'static,
) -> T {
    let place = Fixture::build(config).await;
    tokio::task::spawn_blocking(move || test(place)).await.unwrap()
}

fn git(directory: &Path, words: &str) {
    let mut git = Command::new("git");
    git.current_dir(directory).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    assert!(git.args(words.split(' ')).status().unwrap().success(), "{words}");
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// The directory of a toolchain on this machine.
#[expect(clippy::disallowed_methods, reason = "where things are installed is known outside only")]
fn toolchain(name: &str, usual: &str) -> PathBuf {
    let home = || std::env::home_dir().unwrap().join(usual);
    std::env::var_os(name).map_or_else(home, PathBuf::from)
}

const GIT: &str = "git config --get user.name || true; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
    GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; echo x > new && git add new && git commit -qm new && \
    git branch topic && git checkout -q topic && git log --format=%s && git status --short";

#[tokio::test]
async fn git_works_in_the_sandbox_also_in_a_worktree_whose_repository_is_elsewhere() {
    with("", |place| {
        git(&place.project(), "init -q");
        git(&place.project(), "commit -q --allow-empty -m first");
        assert_eq!(place.bash(GIT), "new\nfirst\n(exit code 0)");
    })
    .await;
    with("", |place| {
        let main = place.shell.path("main");
        fs::create_dir(&main).unwrap();
        git(&main, "init -q");
        git(&main, "commit -q --allow-empty -m first");
        fs::remove_dir(place.project()).unwrap();
        git(&main, "worktree add -q ../project");
        assert_eq!(place.bash(GIT), "new\nfirst\n(exit code 0)");
        let config = fs::read_to_string(main.join(".git/config")).unwrap();
        let evil = format!(
            "cd {}; echo x > .git/hooks/pre-commit; echo x > README; git config a.b c; echo x > \
             {}/.git",
            main.display(),
            place.project().display()
        );
        place.bash(&evil);
        assert!(!main.join(".git/hooks/pre-commit").exists() && !main.join("README").exists());
        assert_eq!(fs::read_to_string(main.join(".git/config")).unwrap(), config);
        git(&place.project(), "status");
    })
    .await;
}

#[tokio::test]
async fn cargo_builds_and_tests_offline_with_the_toolchain_and_the_registry_of_the_user() {
    if !is_there("cargo") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
    with("", move |mut place| {
        let cargo = toolchain("CARGO_HOME", ".cargo");
        place.shell.set("CARGO_HOME", &cargo);
        place.shell.set("RUSTUP_HOME", toolchain("RUSTUP_HOME", ".rustup"));
        place.shell.set("PATH", format!("{}/bin:/usr/bin:/bin", cargo.display()));
        let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
            [dependencies]\nmemchr = \"2\"\n";
        place.file("project/Cargo.toml", manifest);
        place.file("project/Cargo.lock", &lock);
        let test = "#[test]\nfn finds() { assert_eq!(memchr::memchr(b'b', b\"abc\"), Some(1)); }";
        place.file("project/src/lib.rs", test);
        let said = place.bash("cargo test --lib --offline --quiet 2>&1");
        assert!(said.contains("1 passed") && said.ends_with("(exit code 0)"), "{said}");
        let said = place.bash("echo x > $CARGO_HOME/registry/x");
        assert!(said.contains("Read-only file system"), "{said}");
    })
    .await;
}

/// Uses the target directory of this build, so that there is next to nothing to compile.
#[tokio::test]
async fn an_agent_tests_this_project_in_the_sandbox() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    if !is_there("cargo") {
        return;
    }
    let config = format!("[agent]\ncommand_writable = ['{}']", target.display());
    with(&config, move |mut place| {
        let cargo = toolchain("CARGO_HOME", ".cargo");
        place.shell.set("CARGO_HOME", &cargo);
        place.shell.set("RUSTUP_HOME", toolchain("RUSTUP_HOME", ".rustup"));
        place.shell.set("PATH", format!("{}/bin:/usr/bin:/bin", cargo.display()));
        let profile = if cfg!(debug_assertions) { "" } else { "--release" };
        let command = format!(
            "{}set -o pipefail; CARGO_TARGET_DIR='{}' cargo test --lib --offline {profile} 2>&1|\
             tail -n 40",
            build_variables(),
            target.display()
        );
        // Another cargo may hold the lock of the target directory: allow for a long wait.
        let call = json!({ "command": command, "timeout": 600 });
        let prompt = format!("work\n@call bash {call}\n@say over");
        let run = place.shell.run_in(root, ["run", "--agent", "build", &prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        let task = run.stdout.trim();
        assert_ne!(place.shell.run(["wait", "--timeout", "900", task]).code, 124);
        let said = place.server.asked().last().unwrap().texts("tool").pop().unwrap();
        let passed = said.lines().find_map(|line| {
            let (count, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
            count.parse::<usize>().ok()
        });
        assert!(passed.is_some_and(|count| count > 300), "{said}");
        assert!(said.ends_with("(exit code 0)"), "{said}");
    })
    .await;
}

/// The cargo variables of this build: with any others, cargo would rebuild everything.
#[expect(clippy::disallowed_methods, reason = "how this was built is known outside only")]
fn build_variables() -> String {
    let names = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN"];
    let set = names.iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
    set.map(|(name, value)| format!("export {name}='{value}'; ")).collect()
}

#[tokio::test]
async fn npm_and_pip_run_tests_in_the_sandbox() {
    with("", |place| {
        let package = json!({ "name": "small", "scripts": { "test": "node test.js" } });
        place.file("project/package.json", &package.to_string());
        place.file("project/test.js", "console.log('node: ' + require('os').tmpdir());");
        if is_there("npm") {
            let said = place.bash("npm test --silent 2>&1");
            assert_eq!(said, "node: /tmp\n(exit code 0)");
        }
        place.file(
            "project/pkg/setup.py",
            "from setuptools import setup\nsetup(name='small', py_modules=['small'])\n",
        );
        place.file("project/pkg/small.py", "ANSWER = 42\n");
        place.file(
            "project/test_small.py",
            "import unittest, small\nclass T(unittest.TestCase):\n  def test(self):\n    \
             self.assertEqual(small.ANSWER, 42)\n",
        );
        if is_there("/usr/bin/python3") {
            let said = place.bash(
                "/usr/bin/python3 -m venv .venv && .venv/bin/pip install -q --no-index \
                 --no-build-isolation ./pkg 2>&1 && .venv/bin/python -m unittest -q 2>&1",
            );
            assert!(said.ends_with("OK\n(exit code 0)"), "{said}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_keeps_its_own_temporary_directory_and_home_from_one_command_to_the_next() {
    with("", |place| {
        let other = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let list = format!("cat /tmp/kept ~/kept; ls {} ~/project/..", other.path().display());
        let calls = [
            json!({ "command": "echo one > /tmp/kept; echo two > ~/kept; echo $TMPDIR" }),
            json!({ "command": list }),
        ];
        let task = place.launch("build", &calls);
        let told = place.told(&task);
        assert_eq!(told[0], "/tmp\n(exit code 0)");
        assert!(told[1].starts_with("one\ntwo\n"), "{}", told[1]);
        assert!(told[1].contains("No such file or directory"), "{}", told[1]);
        assert!(!place.shell.path("kept").exists() && !Path::new("/tmp/kept").exists());
        let session = place.shell.tasks()[0].session_id.clone();
        let scratch = place.shell.home().join("scratch").join(session);
        assert_eq!(fs::read_to_string(scratch.join("tmp/kept")).unwrap(), "one\n");
    })
    .await;
}

#[tokio::test]
async fn a_session_with_too_much_in_its_private_directories_is_warned_until_it_removes_it() {
    with("[agent]\nscratch_bytes = 1048576", |place| {
        let calls = ["head -c 3000000 /dev/zero > /tmp/large", "echo small", "rm /tmp/large"];
        let task = place.launch("build", &calls.map(|command| json!({ "command": command })));
        let over = "\n(`/tmp` and the home directory of this session hold more than 1 MiB, their limit; \
            remove what is no longer needed there before you go on)";
        let expected = [
            format!("(no output)\n(exit code 0){over}"),
            format!("small\n(exit code 0){over}"),
            "(no output)\n(exit code 0)".to_owned(),
        ];
        assert_eq!(place.told(&task), expected);
    })
    .await;
}

#[tokio::test]
async fn private_directories_of_a_session_are_removed_a_week_after_its_last_command() {
    with("", |place| {
        for _ in 0..2 {
            place.bash("echo kept > /tmp/kept");
        }
        let tasks = place.shell.tasks();
        let folder = |task: usize| {
            let session = &tasks[task].session_id;
            place.shell.home().join("scratch").join(session)
        };
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        let days = |days: u64| std::time::Duration::from_secs(days * 86_400);
        for (task, age) in [(0, days(8)), (1, days(6))] {
            let time = fs::metadata(folder(task)).unwrap().modified().unwrap() - age;
            fs::File::open(folder(task)).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        until("the old one is gone", || !folder(0).exists());
        assert_eq!(fs::read_to_string(folder(1).join("tmp/kept")).unwrap(), "kept\n");
    })
    .await;
}

#[tokio::test]
async fn a_command_that_fails_because_of_the_sandbox_says_so_and_a_person_can_allow_it_outside() {
    with("", |place| {
        let command = "echo x > /usr/from-a-sandbox";
        let said = place.bash(command);
        insta::assert_snapshot!("a_command_that_the_sandbox_stops", said);

        let outside = place.shell.path("outside");
        let command = format!("echo out > {}", outside.display());
        let call = json!({ "command": command, "outside": true });
        for (answer, end, written) in [("deny", 1, false), ("approve", 0, true)] {
            let task = place.launch("build", std::slice::from_ref(&call));
            let detail = || {
                let tasks = place.shell.tasks();
                tasks
                    .into_iter()
                    .find(|found| found.session_id.contains(&task) || found.short_id == task)
            };
            until("it asks", || detail().is_some_and(|task| task.progress.detail.is_some()));
            let asked = detail().unwrap().progress.detail.unwrap();
            assert_eq!(asked, format!("bash outside the sandbox: {command}"));
            assert_eq!(place.shell.run([answer, &task]).code, 0);
            assert_eq!(place.shell.run(["wait", "--timeout", "60", &task]).code, end);
            assert_eq!(outside.exists(), written, "{answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn agent_definitions_that_a_cancelled_command_created_are_removed() {
    with("", |place| {
        let evil = place.project().join(".claude/agents/evil.md");
        let command = "mkdir -p .claude/agents; echo x > .claude/agents/evil.md; sleep 600";
        let task = place.launch("build", &[json!({ "command": command })]);
        until("it is made", || evil.exists());
        assert_eq!(place.shell.run(["cancel", &task]).code, 0);
        until("it is gone", || !evil.exists());
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_is_asked_for_and_does_not_work_refuses_commands_with_the_way_out() {
    with("sandbox = 'bwrap'", |mut place| {
        fs::create_dir(place.shell.path("bin")).unwrap();
        std::os::unix::fs::symlink("/bin/bash", place.shell.path("bin/bash")).unwrap();
        place.shell.set("PATH", place.shell.path("bin"));
        let expected = "cannot run `bash`: `sandbox = \"bwrap\"` in the configuration, but that does not \
            work here: there is no `bwrap` in `PATH`; set it to \"auto\", or to \"off\" to run commands \
            without a sandbox";
        let said = place.bash("echo x > made");
        assert!(said.contains(expected), "{said}");
        assert!(!place.project().join("made").exists());
        let doctor = place.shell.run(["doctor"]);
        assert!(doctor.stdout.contains("✗ sandbox: `sandbox = \"bwrap\"`"), "{}", doctor.stdout);
        assert_eq!(doctor.code, 1);
    })
    .await;
}

#[tokio::test]
async fn the_doctor_names_the_sandbox_in_force_and_what_it_does_not_guarantee() {
    with("", |mut place| {
        let doctor = place.shell.run(["doctor"]);
        assert!(doctor.stdout.contains("✓ sandbox: bubblewrap"), "{}", doctor.stdout);
        // A `PATH` without bubblewrap.
        fs::create_dir(place.shell.path("bin")).unwrap();
        place.shell.set("PATH", place.shell.path("bin"));
        let doctor = place.shell.run(["doctor"]);
        let lines: Vec<&str> = doctor.stdout.lines().filter(|l| l.contains("sandbox")).collect();
        insta::assert_snapshot!("the_doctor_on_landlock", lines.join("\n"));
    })
    .await;
}

#[tokio::test]
async fn an_agents_file_may_ask_for_more_paths_and_less_network_but_not_for_credentials_from_a_workspace()
 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    with("", move |place| {
        for path in ["data/file", "more/file", ".ssh/key", "home/../.aws/key"] {
            place.file(path, "CANARY\n");
        }
        let own = "---\nnetwork: off\nreadable: ~/data, ~/.aws\nwritable: [~/more]\n---\nWork.";
        place.file("config/agents/mine.md", own);
        let theirs = "---\nreadable: ~/data, ~/.ssh, ~/home\n---\nWork.";
        place.file("project/.claude/agents/theirs.md", theirs);
        assert_eq!(place.shell.run_in(&place.project(), ["trust"]).code, 0);
        let read = "for f in data/file .aws/key .ssh/key home/token; do grep -qs . ~/$f && echo $f; done; \
            echo x 2>/dev/null > ~/more/new; ";
        let connect = format!("{read} (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo net; true");
        let call = json!({ "command": connect });
        let task = place.launch("mine", std::slice::from_ref(&call));
        assert_eq!(place.told(&task), ["data/file\n.aws/key\n(exit code 0)"]);
        assert!(place.shell.path("more/new").exists());
        fs::remove_file(place.shell.path("more/new")).unwrap();
        let task = place.launch("theirs", &[call]);
        assert_eq!(place.told(&task), ["data/file\nnet\n(exit code 0)"]);
        assert!(!place.shell.path("more/new").exists());
        let agents = place.shell.run_in(&place.project(), ["agents"]).stdout;
        assert!(agents.contains("all; reads ~/data; reads ~/.aws; writes ~/more; network off"), "{agents}");
        assert!(agents.contains("all; reads ~/data; reads ~/.ssh; reads ~/home"), "{agents}");
    })
    .await;
    drop(listener);
}

#[test]
fn the_readme_has_the_table_of_what_each_level_guarantees() {
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.contains(&sandbox::table()), "put this into README.md:\n{}", sandbox::table());
}
