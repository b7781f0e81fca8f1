//! The escape suite (X2, X3): an embedded agent's command tries to break out, at every sandbox
//! level, as root and as a normal user. The guarantees of each level are a table in the code, and
//! exactly that table is asserted, including what is not guaranteed.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use asyncagents::clock::Clock;
use asyncagents::sandbox::{
    self, Caches, Choice, GUARANTEES, Grants, Level, Limits, Property, Sandbox, SessionSandbox,
    Settings, UserPlaces, VERB,
};
use asyncagents::wire::TaskView;
use tempfile::TempDir;

use crate::support::process::{CommandOutcome, Shell, until};
use crate::support::{ModelServer, skip};

/// An arbitrary uid: the user need not exist.
const SOMEBODY: u32 = 12_345;
const SECRET: &str = "sk-secret-of-the-daemon";
const SCRIPT: &str = include_str!("escapes.sh");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestUser {
    Me,
    Somebody,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    On,
    Off,
}

struct Fixture {
    shell: Shell,
    server: ModelServer,
    level: &'static str,
    who: TestUser,
    network: Network,
    /// An unrelated process of the same user.
    sentinel: Child,
    /// A directory of the same user in `/tmp`.
    other: TempDir,
    /// A service of the same user, listening in that directory.
    _service: UnixListener,
    tcp: TcpListener,
    udp: UdpSocket,
    sleep: String,
}

impl Fixture {
    async fn build(level: &'static str, who: TestUser, network: Network) -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = match who {
            TestUser::Me => Shell::new(),
            TestUser::Somebody => Shell::new().of_user(SOMEBODY),
        };
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
        shell.set("OPENAI_BASE_URL", server.base_url());
        shell.set("OPENAI_API_KEY", SECRET);
        let words = if network == Network::On { "on" } else { "off" };
        let settings = format!(
            "sandbox = '{level}'\n[agent]\ncommand_network = '{words}'\ncommand_processes = 64\n\
             command_memory_bytes = {}\ncommand_file_bytes = 1000000\n\
             [supervisor]\npoll_interval_seconds = 0.1\n",
            256 << 20
        );
        fs::write(shell.path("config.toml"), settings).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
        let other = tempfile::Builder::new().prefix("other").tempdir_in("/tmp").unwrap();
        fs::write(other.path().join("file"), "CANARY").unwrap();
        let service = UnixListener::bind(other.path().join("service.sock")).unwrap();
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(Stdio::null());
        if who == TestUser::Somebody {
            sleep.uid(SOMEBODY).gid(SOMEBODY);
        }
        let unique = Clock::system().nonce();
        let digits = unique.bytes().map(|byte| char::from(b'0' + byte % 10));
        let place = Fixture {
            shell,
            server,
            level,
            who,
            network,
            sentinel: sleep.spawn().unwrap(),
            other,
            _service: service,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            sleep: format!("1000.{}", digits.collect::<String>()),
        };
        place.udp.set_nonblocking(true).unwrap();
        place.make_files();
        place
    }

    fn make_files(&self) {
        let root = self.shell.path("");
        for (path, text) in [
            (".ssh/id_test", "CANARY"),
            (".aws/credentials", "CANARY"),
            (".config/gh/hosts.yml", "CANARY"),
            ("outside/file", "untouched"),
            ("project/.claude/agents/mine.md", "mine"),
        ] {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let git = Command::new("git").args(["init", "-q"]).arg(self.project()).status().unwrap();
        assert!(git.success());
        if self.who == TestUser::Somebody {
            for path in [&root, &self.other.path().to_owned()] {
                let owner = format!("{SOMEBODY}:{SOMEBODY}");
                let chown = Command::new("chown").args(["-R", &owner]).arg(path).status().unwrap();
                assert!(chown.success());
            }
        }
    }

    fn project(&self) -> PathBuf {
        self.shell.path("project")
    }

    /// Launches a task that waits for a permission.
    fn park(&self) -> (String, String) {
        let prompt = "parked\n@call read {\"path\": \"/etc/hostname\"}\n@say read it";
        let run = self.shell.run_in(&self.shell.path("outside"), ["run", "--json", prompt]);
        let task: TaskView = serde_json::from_str(&run.stdout).unwrap();
        let asked = || {
            let client = self.shell.client();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| runtime.block_on(client.permissions())).join().unwrap().unwrap()
            })
        };
        until("it asks", || !asked().permissions.is_empty());
        (task.session_id, asked().permissions[0].id.clone())
    }

    /// Launches an agent that runs one command.
    fn launch(&self, directory: &Path, command: &str) -> TaskView {
        let call = serde_json::json!({ "command": command });
        let prompt = format!("escape\n@call bash {call}\n@say over");
        let run = self.shell.run_in(directory, ["run", "--json", "--agent", "build", &prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        serde_json::from_str(&run.stdout).unwrap()
    }

    /// Whether a command can keep more processes than its limit, 64, for some seconds. It runs as a
    /// separate command, because it is killed for it.
    fn keeps_too_many_processes(&self) -> bool {
        let forks = "my @p; for (1..100) { my $p = fork; if (!defined $p) { kill 9, @p; exit 1 } \
                     if (!$p) { sleep 60; exit } push @p, $p } sleep 3; kill 9, @p";
        let task = self.launch(&self.project(), &format!("perl -e '{forks}' && echo x > kept"));
        let waited = self.shell.run(["wait", "--timeout", "120", &task.session_id]);
        assert_eq!(waited.code, 0, "{waited:?}");
        let kept = self.project().join("kept").exists();
        // Stopped by the guard, or by the kernel, which refuses to fork and so makes it exit.
        let ends =
            ["(killed: it had more than 64 processes and threads, the limit;", "(exit code 1)"];
        assert_eq!(kept, !ends.iter().any(|end| self.told().contains(end)), "{}", self.told());
        kept
    }

    /// The guarantees that the command could break.
    fn broken(self) -> BTreeSet<Property> {
        assert_eq!(self.shell.run_in(&self.project(), ["trust"]).code, 0);
        let keeps_processes = self.keeps_too_many_processes();
        let (parked, ask) = self.park();
        let daemon = self.shell.pid();
        let config = fs::read_to_string(self.project().join(".git/config")).unwrap();
        fs::write(self.project().join("run.sh"), self.script(&parked, &ask)).unwrap();
        let task = self.launch(&self.project(), "bash run.sh");
        fs::write(self.project().join("own"), &task.session_id).unwrap();
        let waited = self.shell.run(["wait", "--timeout", "120", &task.session_id]);
        assert_eq!(waited.code, 0, "{waited:?} {}", self.told());
        let told = self.told();
        assert!(told.contains("all was tried"), "{told}");
        if self.network == Network::On {
            assert!(told.contains("own task: 200"), "{told}");
        }
        let mut broken = said(&told);
        broken.extend(keeps_processes.then_some(Property::Processes));
        assert!(!broken.contains(&Property::Api), "while its guard is alive: {told}");
        self.look(&config, &mut broken);
        assert_eq!((self.shell.pid(), self.shell.tasks().len()), (daemon, 3), "{told}");
        assert_eq!(self.shell.task(&parked).progress.detail.as_deref(), Some("read /etc/hostname"));
        println!("{told}");
        broken
    }

    fn script(&self, parked: &str, ask: &str) -> String {
        let port = self.tcp.local_addr().unwrap().port();
        let udp = self.udp.local_addr().unwrap().port();
        let server = fs::read_to_string(self.shell.home().join("server.json")).unwrap();
        let server: serde_json::Value = serde_json::from_str(&server).unwrap();
        let token = fs::read_to_string(self.shell.home().join("token")).unwrap();
        let network = if self.network == Network::On { "on" } else { "off" };
        let root = self.shell.path("").display().to_string();
        let set = [
            ("STORE", self.shell.home().display().to_string()),
            ("ROOT", root.trim_end_matches('/').to_owned()),
            ("OTHER", self.other.path().display().to_string()),
            ("SECRET", SECRET.to_owned()),
            ("SENTINEL", self.sentinel.id().to_string()),
            ("DAEMON", self.shell.pid().to_string()),
            ("PORT", server["port"].to_string()),
            ("TOKEN", token.trim().to_owned()),
            ("ASK", ask.to_owned()),
            ("PARKED", parked.to_owned()),
            ("PROGRAM", env!("CARGO_BIN_EXE_asyncagents").to_owned()),
            ("NETWORK", network.to_owned()),
            ("TCP", port.to_string()),
            ("UDP", udp.to_string()),
            ("SLEEP", self.sleep.clone()),
        ];
        let set: String = set.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
        set + SCRIPT
    }

    /// The result that the model was given.
    fn told(&self) -> String {
        let asked = self.server.asked().into_iter();
        let asked = asked.filter(|asked| asked.texts("user")[0].starts_with("escape"));
        asked.flat_map(|asked| asked.texts("tool")).last().unwrap_or_default()
    }

    /// Checks what was written, sent and left behind.
    fn look(&self, config: &str, broken: &mut BTreeSet<Property>) {
        let project = self.project();
        let holds = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let outside = holds(&self.shell.path("outside/file")) != "untouched";
        let mode = fs::metadata(self.shell.path("outside/file")).unwrap().permissions().mode();
        let is_changed = mode & 0o777 == 0o700;
        if outside || is_changed || self.shell.path("made").exists() {
            broken.insert(Property::Outside);
        }
        let hook = project.join(".git/hooks/pre-commit").exists();
        let common = project.join(".git/commondir").exists();
        if hook || common || holds(&project.join(".git/config")) != config {
            broken.insert(Property::Git);
        }
        let agents = [".claude/agents/evil.md", ".opencode/agents/evil.md"];
        let mine = holds(&project.join(".claude/agents/mine.md")) == "mine";
        if !mine || agents.iter().any(|path| project.join(path).exists()) {
            broken.insert(Property::Agents);
        }
        let through = project.join("through");
        if self.level == "off" && self.network == Network::On {
            until("it got through", || through.exists());
        }
        if through.exists() {
            broken.insert(Property::Api);
        }
        if self.udp.recv(&mut [0; 8]).is_ok() {
            broken.insert(Property::Udp);
        }
        let left = sleeping(&self.sleep);
        if !left.is_empty() {
            broken.insert(Property::Outlive);
        }
        left.into_iter().for_each(kill);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.sentinel.kill();
        let _ = self.sentinel.wait();
        sleeping(&self.sleep).into_iter().for_each(kill);
    }
}

fn said(told: &str) -> BTreeSet<Property> {
    let words = told.lines().filter_map(|line| line.strip_prefix("broken "));
    let property = |word: &str| GUARANTEES.iter().find(|row| format!("{:?}", row.property) == word);
    words.map(|word| property(word).unwrap_or_else(|| panic!("no {word}")).property).collect()
}

fn sleeping(seconds: &str) -> Vec<i32> {
    let wanted = format!("sleep\0{seconds}\0");
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted)
    })
    .collect()
}

fn kill(pid: i32) {
    use rustix::process::{Pid, Signal, kill_process};

    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// With the network off, only the network properties; with it on, all others.
fn is_about(network: Network, property: Property) -> bool {
    let is_network = matches!(property, Property::Tcp | Property::Udp);
    is_network == (network == Network::Off)
}

async fn check(level: Level, choice: &'static str, who: TestUser) {
    if who == TestUser::Somebody && !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    for network in [Network::On, Network::Off] {
        let place = Fixture::build(choice, who, network).await;
        let mut broken = tokio::task::spawn_blocking(|| place.broken()).await.unwrap();
        broken.retain(|property| is_about(network, *property));
        let landlock = landlock_version();
        let rows = GUARANTEES.iter().filter(|row| is_about(network, row.property));
        let open = rows.filter(|row| !row.at(level).holds(landlock)).map(|row| row.property);
        let open: BTreeSet<Property> = open.collect();
        // Where nothing is enforced, a normal user still cannot do everything that root can.
        let is_exact = who == TestUser::Me || level == Level::BwrapUser;
        match is_exact {
            true => assert_eq!(broken, open, "{level:?} {who:?}"),
            false => assert!(broken.is_subset(&open), "{level:?}: {broken:?} in {open:?}"),
        }
    }
}

fn landlock_version() -> i32 {
    let program = env!("CARGO_BIN_EXE_asyncagents");
    let said = Command::new(program).args([VERB, "?"]).output().unwrap().stdout;
    String::from_utf8(said).unwrap().trim().parse().unwrap()
}

fn bwrap_as_me() -> Level {
    match rustix::process::geteuid().is_root() {
        true => Level::BwrapRoot,
        false => Level::BwrapUser,
    }
}

#[test]
fn a_command_of_an_agent_starts_no_daemon_and_is_told_so() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_GUARD", "1-2-3");
    for verb in [&["list"][..], &["run", "hello"], &["daemon", "start"], &["serve"]] {
        let ended = shell.run(verb);
        let why = "error: commands of agents cannot use `asyncagents`: they reach no daemon and may not \
                   start one; use the agent's own tools, or run this in a shell of yours\n";
        let expected = CommandOutcome { code: 1, stdout: String::new(), stderr: why.to_owned() };
        assert_eq!(ended, expected, "{verb:?}");
    }
    assert!(!shell.home().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_get_no_descriptors_of_whoever_started_the_daemon() {
    for choice in ["bwrap", "off"] {
        let place = Fixture::build(choice, TestUser::Me, Network::On).await;
        tokio::task::block_in_place(|| {
            let call = serde_json::json!({"command": "ls /proc/self/fd|xargs"});
            let secrets = place.shell.path(".ssh");
            let start = "exec 7< \"$0\" 250< \"$0\" && exec \"$@\"";
            let mut run = place.shell.program("bash");
            run.args(["-c", start]).arg(&secrets).arg(env!("CARGO_BIN_EXE_asyncagents"));
            run.args(["run", "--json", "--agent", "build"]);
            run.arg(format!("escape\n@call bash {call}\n@say over"));
            let task: TaskView = serde_json::from_slice(&run.output().unwrap().stdout).unwrap();
            assert_eq!(place.shell.run(["wait", &task.session_id]).code, 0);
            // The last descriptor is the directory that `ls` reads.
            assert_eq!(place.told(), "0 1 2 3\n(exit code 0)", "{choice}");
            let open = fs::read_dir(format!("/proc/{}/fd", place.shell.pid())).unwrap();
            let open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
            assert_eq!(open.filter(|path| *path == secrets).count(), 0, "the daemon has it");
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_to_protected_paths_are_repaired_also_when_the_command_is_cancelled() {
    let place = Fixture::build("bwrap", TestUser::Me, Network::On).await;
    tokio::task::block_in_place(|| {
        let command = "echo x > .git/commondir; touch started; sleep 1000";
        let task = place.launch(&place.project(), command);
        until("it has started", || place.project().join("started").exists());
        let common = place.project().join(".git/commondir");
        assert!(common.exists());
        assert_eq!(place.shell.run(["cancel", &task.session_id]).code, 0);
        until("it is gone", || !common.exists());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_below_a_directory_that_cannot_be_listed_is_usable_and_protected() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user");
    }
    for level in ["bwrap", "landlock"] {
        let place = Fixture::build(level, TestUser::Somebody, Network::On).await;
        let closed = place.shell.path("closed");
        let project = closed.join("project");
        tokio::task::block_in_place(|| {
            fs::create_dir_all(project.join(".git")).unwrap();
            for path in [&project, &project.join(".git")] {
                std::os::unix::fs::chown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
            }
            fs::set_permissions(&closed, fs::Permissions::from_mode(0o711)).unwrap();
            let task = place.launch(&project, "echo x > made; echo x > .git/commondir");
            assert_eq!(place.shell.run(["wait", &task.session_id]).code, 0);
            let common = project.join(".git/commondir");
            let there = (project.join("made").exists(), common.exists());
            assert_eq!(there, (true, false), "{level}: {}", place.told());
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_to_protected_paths_are_repaired_also_when_the_daemon_is_killed() {
    let place = Fixture::build("bwrap", TestUser::Me, Network::On).await;
    tokio::task::block_in_place(|| {
        place.launch(&place.project(), "echo x > .git/commondir; touch started; sleep 1000");
        until("it has started", || place.project().join("started").exists());
        let common = place.project().join(".git/commondir");
        assert!(common.exists());
        kill(place.shell.pid().cast_signed());
        // The guard has to clean up: no other daemon is running.
        until("it is gone", || !common.exists());
    });
}

#[test]
fn a_directory_replaced_by_a_link_after_planning_gives_the_command_no_access() {
    // bubblewrap would mount the target of the link, so the command is not run at all.
    swap_after_planning(Choice::Bwrap, (Some(1), ""));
    if landlock_version() > 0 {
        swap_after_planning(Choice::Landlock, (Some(0), "ran with 0\n"));
    }
}

fn swap_after_planning(choice: Choice, expected: (Option<i32>, &str)) {
    let top = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let top = top.path().canonicalize().unwrap();
    let (workspace, outside) = (top.join("workspace"), top.join("outside"));
    fs::create_dir_all(workspace.join(".git")).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    let session_sandbox = SessionSandbox {
        sandbox: Sandbox::new(Settings {
            choice,
            program: env!("CARGO_BIN_EXE_asyncagents").into(),
            network: sandbox::Network::On,
            readable: Vec::new(),
            writable: Vec::new(),
            caches: Caches::Readable,
            limits: Limits::default(),
            user: UserPlaces::default(),
            own: Vec::new(),
        }),
        scratch: top.join("scratch"),
        grants: Grants::default(),
        trusted: false,
    };
    let run = || {
        let command = "echo changed > ../outside/file; echo \"ran with $#\"";
        let plan = session_sandbox.plan(&workspace, &[], command).unwrap();
        move |()| Command::new(plan.program).args(plan.arguments).output().unwrap()
    };
    let ran = run()(());
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), "ran with 0\n");
    let planned = run();
    fs::rename(workspace.join(".git"), workspace.join("moved")).unwrap();
    std::os::unix::fs::symlink("../outside", workspace.join(".git")).unwrap();
    let ran = planned(());
    let said = String::from_utf8(ran.stdout).unwrap();
    assert_eq!((ran.status.code(), said.as_str()), expected, "{choice:?}");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "untouched");
}

#[tokio::test]
async fn bubblewrap_guarantees_what_the_table_says_for_whoever_runs_the_tests() {
    check(bwrap_as_me(), "bwrap", TestUser::Me).await;
}

#[tokio::test]
async fn bubblewrap_guarantees_what_the_table_says_for_a_normal_user() {
    check(Level::BwrapUser, "bwrap", TestUser::Somebody).await;
}

#[tokio::test]
async fn landlock_guarantees_what_the_table_says_for_whoever_runs_the_tests() {
    check(Level::Landlock, "landlock", TestUser::Me).await;
}

#[tokio::test]
async fn landlock_guarantees_what_the_table_says_for_a_normal_user() {
    check(Level::Landlock, "landlock", TestUser::Somebody).await;
}

#[tokio::test]
async fn without_a_sandbox_agents_cannot_answer_requests_or_launch_while_their_guard_is_alive() {
    check(Level::Off, "off", TestUser::Me).await;
}

#[tokio::test]
async fn without_a_sandbox_a_normal_users_agents_cannot_answer_or_launch_while_their_guard_is_alive()
 {
    check(Level::Off, "off", TestUser::Somebody).await;
}
