//! Finding the daemon, and starting it when it is not there. Safe when many do so at once: all
//! may start one, the lock lets one live, everybody finds that one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::home;
use crate::client::{self, Client};
use crate::config::Settings;

/// The exit code of a daemon that found another one at work.
pub const SOMEBODY_WAS_FASTER: u8 = 75;

const LONGEST_START: Duration = Duration::from_secs(30);
const BETWEEN_STARTS: Duration = Duration::from_millis(200);
const LONGEST_STOP: Duration = Duration::from_secs(30);

/// Where the daemon of this directory listens.
pub fn socket(home: &Path) -> PathBuf {
    home::socket(home)
}

/// A client of the daemon in this directory, running or not.
pub fn client(home: &Path) -> Client {
    Client::new(&socket(home))
}

/// A client of a daemon that answers; started if need be.
pub async fn ensure(settings: &Settings) -> anyhow::Result<Client> {
    let client = client(&settings.home);
    if client.health().await.is_ok() {
        return Ok(client);
    }
    let mut child = spawn(settings)?;
    let started = Instant::now();
    let mut spawned = started;
    let mut pause = Duration::from_millis(2);
    loop {
        if client.health().await.is_ok() {
            return Ok(client);
        }
        if let Some(status) = child.try_wait().context("watching the daemon start")? {
            if status.code() != Some(i32::from(SOMEBODY_WAS_FASTER)) {
                anyhow::bail!("the daemon did not start: {}", complaint(&mut child));
            }
            // That one is about to answer; or it was on its way out, and nobody followed it.
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
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Asks the daemon to stop and waits until it has. `false` when none was running.
pub async fn stop(settings: &Settings) -> anyhow::Result<bool> {
    let client = client(&settings.home);
    let asked = match client.stop().await {
        Ok(health) => health.pid,
        Err(client::Error::NotRunning(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let started = Instant::now();
    let socket = socket(&settings.home);
    // Its socket is the last thing to go, and the next daemon may already have one there.
    while socket.exists() && !client.health().await.is_ok_and(|health| health.pid != asked) {
        if started.elapsed() > LONGEST_STOP {
            anyhow::bail!("the daemon was asked to stop and is still there");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(true)
}

fn spawn(settings: &Settings) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("--home").arg(&settings.home);
    if settings.config_file.exists() {
        command.arg("--config").arg(&settings.config_file);
    }
    if !settings.config.host.is_empty() {
        command.arg("--host").arg(&settings.config.host);
    }
    if !settings.config.model.is_empty() {
        command.arg("--model").arg(&settings.config.model);
    }
    command.args(["serve", "--background"]);
    // glibc keeps large blocks that were freed, in every thread's arena: one long answer after the
    // other would take a multiple of the memory it needs. Above this size they are given back.
    command.env("MALLOC_MMAP_THRESHOLD_", "262144");
    // Not the directory somebody may want to unmount or delete.
    command.current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().context("cannot start the daemon")
}

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
