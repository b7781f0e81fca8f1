//! Real processes: the built program in a clean environment, with a temporary storage directory.
//! Processes are killed when their handles are dropped.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use asyncagents::client::Client;
use asyncagents::host::scripted::{Control, Remote, Scripted};
use asyncagents::task::Phase;
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{CallerView, HealthView, LaunchRequest, TaskView};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;

use super::canary;

/// Long enough for a busy machine; nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A user's shell. When it is dropped, the daemon of its storage directory is killed, and the files
/// there are searched for the canary key.
pub struct Shell {
    home: PathBuf,
    variables: Vec<(String, OsString)>,
    host: Option<HostProcess>,
    user: Option<u32>,
    root: TempDir,
}

/// A running command; killed when it is dropped.
pub struct RunningCommand {
    child: Child,
    stdout: CapturedOutput,
    stderr: CapturedOutput,
}

/// The output of a command so far, read by a thread.
struct CapturedOutput {
    bytes: Arc<Mutex<Vec<u8>>>,
    listening: Option<JoinHandle<()>>,
}

/// The scripted host in its own process, which outlives daemons.
struct HostProcess {
    socket: PathBuf,
    _process: RunningCommand,
}

impl Shell {
    /// Agents run inside the daemon.
    pub fn new() -> Shell {
        // A short path: that of a socket is limited to 107 bytes.
        let root = tempfile::Builder::new().prefix("aa").tempdir_in("/tmp").unwrap();
        let home = root.path().join("home");
        let host = ("ASYNCAGENTS_HOST".to_owned(), "scripted".into());
        // Any free port: tests run in parallel.
        let port = ("ASYNCAGENTS_API_PORT".to_owned(), "0".into());
        Shell { home, variables: vec![host, port], host: None, user: None, root }
    }

    /// Agents run in a separate process, which keeps them when the daemon dies.
    pub fn with_host_process() -> Shell {
        let mut shell = Shell::new();
        let socket = shell.path("host.sock");
        let mut command = shell.command(["scripted-host", "--socket"]);
        command.arg(&socket).arg("--log").arg(shell.path("host.log"));
        let process = RunningCommand::new(&mut command);
        until("the scripted host listens", || UnixStream::connect(&socket).is_ok());
        shell.set("ASYNCAGENTS_HOST", format!("scripted:{}", socket.display()));
        shell.host = Some(HostProcess { socket, _process: process });
        shell
    }

    /// Runs as another user, who need not exist. Needs root.
    pub fn of_user(mut self, user: u32) -> Shell {
        std::os::unix::fs::chown(self.root.path(), Some(user), Some(user)).unwrap();
        self.user = Some(user);
        self
    }

    /// The same shell with another storage directory.
    pub fn at_home(mut self, home: impl Into<PathBuf>) -> Shell {
        self.home = home.into();
        self
    }

    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.unset(name);
        self.variables.push((name.to_owned(), value.into()));
    }

    pub fn unset(&mut self, name: &str) {
        self.variables.retain(|(known, _)| known != name);
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn socket(&self) -> PathBuf {
        self.home.join("asyncagents.sock")
    }

    pub fn database(&self) -> PathBuf {
        self.home.join("asyncagents.db")
    }

    /// A path in the temporary directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_asyncagents"));
        command.args(args);
        command
    }

    /// Another program in the same environment.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.root.path());
        command.env("ASYNCAGENTS_HOME", &self.home).env("COLUMNS", "100");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.root.path());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> CommandOutcome {
        self.run_with_input(args, b"")
    }

    /// Runs a command in another directory.
    pub fn run_in<A: AsRef<OsStr>>(
        &self,
        directory: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> CommandOutcome {
        RunningCommand::new(self.command(args).current_dir(directory)).wait()
    }

    pub fn run_with_input<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> CommandOutcome {
        let mut running = self.start(args);
        // A command that exits early does not read it, and reports why.
        let _ = running.child.stdin.take().unwrap().write_all(input);
        running.wait()
    }

    pub fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> RunningCommand {
        RunningCommand::new(&mut self.command(args))
    }

    /// The output of a command on a terminal of this width, both streams together.
    pub fn on_terminal<A: AsRef<OsStr>>(
        &self,
        columns: u16,
        args: impl IntoIterator<Item = A>,
    ) -> String {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let other_end =
            File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&other_end, size).unwrap();
        let mut command = self.command(args);
        command.stdin(Stdio::null());
        command.stdout(other_end.try_clone().unwrap()).stderr(other_end);
        let mut child = command.spawn().unwrap();
        // The command holds the other end, which would keep the terminal open.
        drop(command);
        let mut heard = Vec::new();
        // Linux reports an error when the last process has closed its end.
        let _ = File::from(terminal).read_to_end(&mut heard);
        child.wait().unwrap();
        String::from_utf8(heard).unwrap().replace("\r\n", "\n")
    }

    /// The standard output of a command that succeeds.
    pub fn say<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout
    }

    pub fn json<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Value {
        serde_json::from_str(&self.say(args)).unwrap()
    }

    pub fn launch(&self, prompt: &str) -> TaskView {
        serde_json::from_value(self.json(["run", "--json", prompt])).unwrap()
    }

    /// Launches a task and waits until its agent hangs and can be ended from the host's side.
    pub fn launch_hanging(&self, description: &str) -> TaskView {
        let task = self.launch(&format!("{description}\n@hang"));
        let phase = || self.task(&task.session_id).progress.phase;
        until("the agent is at work", || phase() == Phase::Waiting);
        self.task(&task.session_id)
    }

    /// Launches a task and waits for its end.
    pub fn launch_to_the_end(&self, prompt: &str) -> TaskView {
        let task = self.launch(prompt);
        let waited = self.run(["wait", &task.session_id]);
        assert!([0, 1, 130].contains(&waited.code), "{waited:?}");
        self.task(&task.session_id)
    }

    pub fn tasks(&self) -> Vec<TaskView> {
        let list = self.json(["list", "--json", "--limit", "100000"]);
        serde_json::from_value(list).unwrap()
    }

    /// The task from the list, which does not count as retrieving its result.
    pub fn task(&self, id: &str) -> TaskView {
        self.tasks().into_iter().find(|task| task.session_id == id).unwrap()
    }

    /// The daemon's health, if it is running.
    pub fn health(&self) -> Option<HealthView> {
        let status = self.run(["daemon", "status", "--json"]);
        match status.code {
            0 => Some(serde_json::from_str(&status.stdout).unwrap()),
            3 => None,
            _ => panic!("{status:?}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.health().expect("the daemon runs").pid
    }

    pub fn terminate_daemon(&self) {
        self.signal_daemon(Signal::TERM);
    }

    /// `kill -9`
    pub fn kill_daemon(&self) {
        self.signal_daemon(Signal::KILL);
    }

    /// Returns when that daemon has exited, possibly with another one in its place.
    fn signal_daemon(&self, signal: Signal) {
        let pid = self.pid();
        kill(pid, signal);
        // While the daemon dies, a request can fail in any way.
        until("the daemon is gone", || {
            let status = self.run(["daemon", "status", "--json"]);
            let health: Option<HealthView> = serde_json::from_str(&status.stdout).ok();
            health.is_none_or(|health| health.pid != pid)
        });
    }

    pub fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    /// The host, when it is a separate process.
    pub fn host(&self) -> Scripted {
        let host = self.host.as_ref().expect("the host is a process of its own");
        Scripted::Process(Remote::new(&host.socket).unwrap())
    }

    /// Controls the host without the daemon's knowledge.
    pub fn control(&self, control: Control) {
        let host = self.host();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(host.control(control)).unwrap();
    }

    /// Ends a hanging agent with this text.
    pub fn finish(&self, task: &TaskView, text: &str) {
        let session = asyncagents::task::SessionId::new(&task.session_id);
        self.control(Control::Finish { session, text: text.to_owned() });
    }

    /// The logs of all daemons of this directory.
    pub fn log(&self) -> String {
        let files = fs::read_dir(self.home.join("log")).unwrap();
        let text = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap();
        files.map(|file| text(file.unwrap())).collect()
    }
}

impl Drop for Shell {
    /// The holder of the lock is our daemon, even when it does not respond.
    fn drop(&mut self) {
        let started = Instant::now();
        let lock = self.home.join("asyncagents.lock");
        while let Ok(mut file) = File::open(&lock)
            && file.try_lock().is_err()
            && started.elapsed() < PATIENCE
        {
            let mut holder = String::new();
            if file.read_to_string(&mut holder).is_ok()
                && let Ok(pid) = holder.parse()
            {
                kill(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A client that the test killed may just have started a daemon. That has no lock yet, and would make the
        // directory anew.
        loop {
            let left = started_in(&self.home);
            if left.is_empty() || started.elapsed() > PATIENCE {
                break;
            }
            left.into_iter().for_each(|pid| kill(pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(5));
        }
        // In every test: no file that the daemon wrote contains the canary key.
        if !std::thread::panicking() {
            assert_eq!(canary::leaks(&self.home), [] as [PathBuf; 0], "a key was written");
        }
    }
}

/// The processes that were started with this storage directory in their environment.
fn started_in(home: &Path) -> Vec<u32> {
    let wanted = format!("ASYNCAGENTS_HOME={}", home.display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| *pid != std::process::id())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

impl RunningCommand {
    pub fn new(command: &mut Command) -> RunningCommand {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = CapturedOutput::from(child.stdout.take().unwrap());
        let stderr = CapturedOutput::from(child.stderr.take().unwrap());
        RunningCommand { child, stdout, stderr }
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn wait(mut self) -> CommandOutcome {
        self.close_input();
        until("the command ends", || self.is_over());
        let code = self.child.wait().unwrap().code().expect("ended by itself");
        let ended = CommandOutcome { code, stdout: self.stdout.all(), stderr: self.stderr.all() };
        for said in [&ended.stdout, &ended.stderr] {
            assert!(!canary::is_in(said.as_bytes()), "a key was printed: {said}");
        }
        ended
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Takes the next line from its standard error.
    pub fn next_stderr_line(&mut self) -> String {
        self.stderr.next()
    }

    /// The same of its standard output.
    pub fn next_line(&mut self) -> String {
        self.stdout.next()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }
}

impl CapturedOutput {
    fn from(mut pipe: impl Read + Send + 'static) -> CapturedOutput {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let said = bytes.clone();
        let listen = move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut some) {
                said.lock().unwrap().extend_from_slice(&some[..n]);
            }
        };
        CapturedOutput { bytes, listening: Some(std::thread::spawn(listen)) }
    }

    fn next(&self) -> String {
        let mut line = None;
        until("the command says something", || {
            line = self.line();
            line.is_some()
        });
        line.unwrap()
    }

    fn line(&self) -> Option<String> {
        let mut bytes = self.bytes.lock().unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        Some(String::from_utf8(bytes.drain(..=end).collect()).unwrap())
    }

    /// The remaining output of a command that has exited.
    fn all(&mut self) -> String {
        if let Some(listening) = self.listening.take() {
            listening.join().unwrap();
        }
        String::from_utf8(std::mem::take(&mut self.bytes.lock().unwrap())).unwrap()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The request that `run` sends.
pub fn launch_request(prompt: &str) -> LaunchRequest {
    LaunchRequest {
        caller: CallerView { session_id: "cli".into(), ..CallerView::default() },
        arguments: Arguments {
            description: Some("a task".into()),
            prompt: Some(prompt.to_owned()),
            agent: Some("general".into()),
            ..Arguments::default()
        },
        key: None,
        ..LaunchRequest::default()
    }
}

/// Polls a condition, and fails the test with its description after the time limit.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !is() {
        assert!(started.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    // The process may be gone already.
    let _ = kill_process(pid, signal);
}
