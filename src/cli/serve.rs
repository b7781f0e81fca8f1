//! `asyncagents serve`: the daemon itself, in the foreground. With `--background` it is what other commands start:
//! detached from the terminal, with its log in files only.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use super::demo;
use crate::config::{Environment, Flags, Settings};
use crate::daemon::start::{AgentCommandError, LOCK_HELD};
use crate::daemon::{self, AlreadyRunning, Home, ReloadTargets};
use crate::mcp;
use crate::process;

const STATUS: &str = "\
Other programs can read its status API on 127.0.0.1:5165, or on another port if that is taken;
`server.json` in the storage directory has the address. ASYNCAGENTS_API_PORT and
ASYNCAGENTS_API_HOST change it, ASYNCAGENTS_API_ENABLED=false turns it off.

Example:
  asyncagents serve";

/// How long the exit of a daemon waits for blocking threads.
const LAST_THREADS: Duration = Duration::from_secs(2);

#[derive(Args)]
#[command(after_help = STATUS)]
pub(super) struct Serve {
    /// Started on demand: leave the terminal, log to files only
    #[arg(long, hide = true)]
    background: bool,
    /// End with the process that has the other end of standard input, however that ends, and then remove this
    /// directory, which that process has made around the storage directory
    #[arg(long, hide = true, value_name = "DIR")]
    tied: Option<PathBuf>,
}

impl Serve {
    pub(super) fn run(
        self,
        settings: &Settings,
        environment: Environment,
        flags: Flags,
    ) -> anyhow::Result<ExitCode> {
        if settings.of_command {
            return Err(AgentCommandError.into());
        }
        process::keep_descriptors_from_children();
        if self.background {
            // A session of its own, so that closing the terminal sends no SIGHUP to the daemon.
            let _ = rustix::process::setsid();
        }
        // The lock of the storage directory before the log and the store: only its owner writes there.
        let home = match Home::take(&settings.home) {
            // Two commands that start a daemon at the same moment: the lock lets one of them win, and the
            // other command learns by the exit code that it can connect.
            Err(error) if self.background && error.is::<AlreadyRunning>() => {
                return Ok(ExitCode::from(LOCK_HELD));
            }
            taken => taken?,
        };
        let level = daemon::init_log(home.path(), &settings.config.log, !self.background)?;
        let reread = Box::new(move || Settings::resolve(&environment, &flags));
        let reloadable = ReloadTargets { reread, level };
        // Two threads are enough: handlers do not block, and long reads have threads of their own.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let is_orphaned = Arc::<AtomicBool>::default();
        runtime.block_on(async {
            let terminated = terminated()?;
            let starter = self.tied.is_some().then(starter).transpose()?;
            let is_orphaned = is_orphaned.clone();
            let shutdown = async move {
                tokio::select! {
                    () = terminated => {}
                    () = gone(starter) => is_orphaned.store(true, Ordering::Relaxed),
                }
            };
            let background = self.background;
            let on_ready = move || {
                if background {
                    let_go_of_stderr();
                }
            };
            daemon::run(settings, home, reloadable, mcp::over_http, on_ready, shutdown).await
        })?;
        // Everything that matters was waited for. What is left are blocking threads: reads of a long check, or of a
        // network file system that hangs, for which dropping the runtime would wait for ever.
        runtime.shutdown_timeout(LAST_THREADS);
        // The process that started us was killed, or it would have removed the directory after our end.
        if let Some(directory) = self.tied
            && is_orphaned.load(Ordering::Relaxed)
        {
            demo::remove_left(&directory, &settings.home)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Redirects standard error to /dev/null. The command that started us reads it only until the daemon is ready;
/// after that, writing into the pipe would fail.
fn let_go_of_stderr() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Standard input, whose other end only the process that started us has.
fn starter() -> anyhow::Result<pipe::Receiver> {
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    pipe::Receiver::from_owned_fd(input).context("standard input is no pipe")
}

/// Resolves when the pipe is closed; never without one.
async fn gone(starter: Option<pipe::Receiver>) {
    match starter {
        // Nobody writes into it, so what is read is its end.
        Some(mut pipe) => {
            let _ = pipe.read(&mut [0]).await;
        }
        None => std::future::pending().await,
    }
}

/// Resolves at the first SIGINT or SIGTERM. SIGHUP, whose default is to kill, is caught and ignored.
fn terminated() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => return,
                _ = terminate.recv() => return,
                _ = hangup.recv() => {}
            }
        }
    })
}
