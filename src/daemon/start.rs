//! Service discovery: finding the daemon through its socket, and starting it on demand. Safe when many clients do so at
//! once: each may start one, the lock lets one live, the others exit with a code of their own, and every client
//! connects to the one that lives.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::home;
use crate::backoff::Backoff;
use crate::client::{self, Client, Stop};
use crate::config::Settings;
use crate::process;
use crate::wire::ServerView;

/// The exit code of a daemon that lost the race for the lock (`EX_TEMPFAIL`).
pub const LOCK_HELD: u8 = 75;

const LONGEST_START: Duration = Duration::from_secs(30);
const BETWEEN_STARTS: Duration = Duration::from_millis(200);
const BETWEEN_GREETINGS: Backoff =
    Backoff { first: Duration::from_millis(2), longest: Duration::from_millis(50) };
const LONGEST_STOP: Duration = Duration::from_secs(30);

/// Where the daemon of this directory listens.
pub fn socket(home: &Path) -> PathBuf {
    home::socket(home)
}

/// Where the status API of the daemon in this directory listens, as its file says. The daemon may be gone.
pub fn server(home: &Path) -> Option<ServerView> {
    home::server(home)
}

/// A client of the daemon in this directory, running or not.
pub fn client(home: &Path) -> Client {
    Client::new(&socket(home))
}

/// A daemon that answers and speaks our version of the protocol.
pub struct ReadyDaemon {
    pub client: Client,
    /// What the user should know about it: another version, a configuration that was changed.
    pub notes: Vec<String>,
    /// What every command says: the store is damaged, or was set aside.
    pub warnings: Vec<String>,
}

/// Refused: a daemon that a command of an agent started would be in the command's sandbox and die with it. Worse, where
/// the sandbox hides the real one, it would look as if the command had reached it.
#[derive(Debug, thiserror::Error)]
#[error(
    "commands of agents cannot use `asyncagents`: they reach no daemon and may not start one; use the \
     agent's own tools, or run this in a shell of yours"
)]
pub struct AgentCommandError;

/// The daemon of this directory was stopped on purpose, and none was started since.
pub fn was_stopped(home: &Path) -> bool {
    home::was_stopped(home)
}

/// Finds the daemon; it is started if need be, except by commands of agents.
pub async fn ensure(settings: &Settings) -> anyhow::Result<ReadyDaemon> {
    ensure_through(&client(&settings.home), settings).await
}

/// The same through a client that goes on to be used: the connection of the handshake stays open for the next call.
pub async fn ensure_through(client: &Client, settings: &Settings) -> anyhow::Result<ReadyDaemon> {
    if let Some(found) = greet(client).await? {
        return Ok(found);
    }
    if settings.of_command {
        return Err(AgentCommandError.into());
    }
    let mut child = spawn(settings)?;
    let started = Instant::now();
    let mut spawned = started;
    let mut tries = 0;
    loop {
        if let Some(found) = greet(client).await? {
            return Ok(found);
        }
        if let Some(status) = child.try_wait().context("watching the daemon start")? {
            // Without a code it was killed by a signal, with 0 it was stopped: neither means that the next one
            // cannot start. Any other code is a configuration or a directory that cannot be used: do not retry.
            let may_start = [None, Some(0), Some(i32::from(LOCK_HELD))];
            if !may_start.contains(&status.code()) {
                anyhow::bail!("the daemon did not start: {}", complaint(&mut child));
            }
            // The winner of the race is about to answer; or it held the lock while it was stopping, and no
            // other followed. So another one is started, after a pause.
            if spawned.elapsed() > BETWEEN_STARTS {
                child = spawn(settings)?;
                spawned = Instant::now();
            }
        }
        if started.elapsed() > LONGEST_START {
            anyhow::bail!(
                "the daemon does not answer; look into `{}`",
                settings.home.join("log").display()
            );
        }
        tokio::time::sleep(BETWEEN_GREETINGS.pause(tries)).await;
        tries += 1;
    }
}

/// The handshake. `None` when no daemon is there, so that one can be started. One that is there and speaks another
/// protocol is an error: the lock is its, and starting a second one cannot help.
async fn greet(client: &Client) -> Result<Option<ReadyDaemon>, client::Error> {
    match client.hello().await {
        Ok(hello) => {
            let notes = hello.judge()?.into_iter().chain(hello.restart_needed).collect();
            Ok(Some(ReadyDaemon { client: client.clone(), notes, warnings: hello.urgent }))
        }
        Err(error) if error.went_away() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the daemon by one of this program. Those who wait for tasks go on with the new one.
pub async fn restart(settings: &Settings) -> anyhow::Result<ReadyDaemon> {
    stop(settings, Stop::ToRestart).await?;
    ensure(settings).await
}

/// Asks the daemon to stop, whatever its version, and waits until it has. `false` when none was
/// running.
pub async fn stop(settings: &Settings, purpose: Stop) -> anyhow::Result<bool> {
    let client = client(&settings.home);
    let asked = match client.stop(purpose).await {
        Ok(hello) => hello.pid,
        Err(client::Error::NotRunning(_)) => return Ok(false),
        // Versions before protocol 1 stop, and answer so when they cannot count their tasks.
        Err(client::Error::Refused(view)) if view.status == 500 => 0,
        Err(client::Error::Refused(view)) if view.status == 404 => anyhow::bail!(
            "the daemon is of an earlier version that cannot be drained; `asyncagents wait` waits for tasks, \
             then `asyncagents daemon stop` stops it"
        ),
        Err(error) => return Err(error.into()),
    };
    let started = Instant::now();
    let socket = socket(&settings.home);
    // Its socket is the last thing to go. The next daemon may already have bound one there: then another pid answers.
    while socket.exists() && !client.hello().await.is_ok_and(|hello| hello.pid != asked) {
        if started.elapsed() > LONGEST_STOP {
            anyhow::bail!("the daemon was asked to stop and is still there");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(true)
}

/// Starts a daemon in the background, with a clean environment. Its stderr is a pipe, for the reason when it exits at
/// once.
fn spawn(settings: &Settings) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("--home").arg(&settings.home);
    if settings.config_file.exists() {
        command.arg("--config").arg(&settings.config_file);
    }
    // Only what was said on the command line: the daemon gets what it needs of the environment, and
    // reads the file itself, also when it is changed.
    for (flag, value) in [("--host", &settings.host_flag), ("--model", &settings.model_flag)] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    command.args(["serve", "--background"]);
    command.stdin(Stdio::null());
    if let Some(directory) = &settings.tied_directory {
        command.arg("--tied").arg(directory).stdin(Stdio::piped());
    }
    // It outlives the program that started us, whose tokens are none of its business, nor of the agents
    // that could read them in `/proc`.
    command.env_clear().envs(settings.daemon_variables.iter());
    // glibc keeps large blocks that were freed, in every thread's arena: one long answer after the
    // other would take a multiple of the memory it needs. Above this size they are given back.
    command.env("MALLOC_MMAP_THRESHOLD_", "262144");
    // A daemon must not keep a directory busy that somebody wants to unmount or delete.
    command.current_dir("/");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // Descriptors are close-on-exec: a pipe that we inherited would otherwise stay open for as long as the daemon
    // lives, and its reader would wait.
    process::keep_descriptors_from_children();
    let mut child = command.spawn().context("cannot start the daemon")?;
    // A daemon that is tied to us waits for the end of this pipe. Nothing but our own end closes it, also `kill -9`.
    std::mem::forget(child.stdin.take());
    Ok(child)
}

/// The reason a daemon gave on stderr before it exited.
fn complaint(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    match text.trim() {
        "" => "it said nothing".to_owned(),
        text => text.strip_prefix("error: ").unwrap_or(text).to_owned(),
    }
}
