//! `asyncagents serve`: the daemon itself, in the foreground.

use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Environment, Flags, Settings};
use crate::daemon::start::{OfCommand, SOMEBODY_WAS_FASTER};
use crate::daemon::{self, AlreadyRunning, Home, Reloadable};
use crate::process;

const STATUS: &str = "\
Other programs can look at it on 127.0.0.1:5165 or a port near it; `server.json` in the storage
directory says where. ASYNCAGENTS_API_PORT and ASYNCAGENTS_API_HOST choose another place,
ASYNCAGENTS_API_ENABLED=false none.";

#[derive(Args)]
#[command(after_help = STATUS)]
pub(super) struct Serve {
    /// Started on demand: leave the terminal, log to files only
    #[arg(long, hide = true)]
    background: bool,
}

impl Serve {
    pub(super) fn run(
        self,
        settings: &Settings,
        environment: Environment,
        flags: Flags,
    ) -> anyhow::Result<ExitCode> {
        if settings.of_command {
            return Err(OfCommand.into());
        }
        process::keep_descriptors_from_children();
        if self.background {
            // A session of its own: closing the terminal does not end the daemon.
            let _ = rustix::process::setsid();
        }
        let home = match Home::take(&settings.home) {
            Err(error) if self.background && error.is::<AlreadyRunning>() => {
                return Ok(ExitCode::from(SOMEBODY_WAS_FASTER));
            }
            taken => taken?,
        };
        let level = daemon::init_log(home.path(), &settings.config.log, !self.background)?;
        let reread = Box::new(move || Settings::resolve(&environment, &flags));
        let reloadable = Reloadable { reread, level };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let shutdown = terminated()?;
            let background = self.background;
            let on_ready = move || {
                if background {
                    let_go_of_stderr();
                }
            };
            daemon::run(settings, home, reloadable, on_ready, shutdown).await
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Whoever started us reads it no longer, and writing into a pipe without a reader fails.
fn let_go_of_stderr() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Resolves at the first SIGINT or SIGTERM; SIGHUP is not for us.
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
