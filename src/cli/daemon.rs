//! `asyncagents daemon`: starts, stops, restarts the daemon and shows its status. `daemon start --json` is also how
//! the OpenCode plugin finds the socket.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::show;
use crate::client::{self, Handshake, Stop};
use crate::config::Settings;
use crate::daemon::start;
use crate::quote;
use crate::task::time::say;
use crate::wire::HealthView;

/// The exit code of `systemctl status` for a service that is not running.
const NOT_RUNNING: u8 = 3;

#[derive(Args)]
pub(super) struct Daemon {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start the daemon if it is not running
    Start {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the daemon; calls under way are finished, and runs on OpenCode servers go on
    Stop,
    /// Replace the daemon by one of this version; live runs go on, and so do commands that wait
    Restart {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show whether the daemon is running; exits 3 if it is not
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Daemon {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Start { json } => started(settings, start::ensure(settings).await?, json).await?,
            Verb::Restart { json } => {
                started(settings, start::restart(settings).await?, json).await?;
            }
            Verb::Stop => match start::stop(settings, Stop::ForGood).await? {
                true => show::line("stopped")?,
                false => show::line("not running")?,
            },
            // Without `start::ensure`: to ask for the status must not start the daemon.
            Verb::Status { json } => match start::client(&settings.home).health().await {
                Ok(health) if json => show::json(&health)?,
                Ok(health) => print(settings, &health)?,
                Err(client::Error::NotRunning(_)) => {
                    if json {
                        show::json(&serde_json::json!({ "status": "not running" }))?;
                        return Ok(ExitCode::from(NOT_RUNNING));
                    }
                    show::line(&format!("not running in {}", settings.home.display()))?;
                    return Ok(ExitCode::from(NOT_RUNNING));
                }
                Err(error) => return Err(error.into()),
            },
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The JSON of `start` and `restart`, for programs that connect to the socket themselves.
#[derive(Serialize)]
struct StartView {
    socket: String,
    #[serde(flatten)]
    health: HealthView,
}

impl StartView {
    fn of(settings: &Settings, health: HealthView) -> StartView {
        StartView { socket: start::socket(&settings.home).display().to_string(), health }
    }
}

async fn started(settings: &Settings, found: start::Found, json: bool) -> anyhow::Result<()> {
    let health = found.client.health().await?;
    match json {
        true => show::json(&StartView::of(settings, health)),
        false => print(settings, &health),
    }
}

fn print(settings: &Settings, health: &HealthView) -> anyhow::Result<()> {
    show::line(&format!(
        "running in {}: pid {}, version {}, up {}, {}",
        settings.home.display(),
        health.pid,
        health.version,
        say(Duration::from_secs(health.uptime)),
        show::counted(health.task_count, "task")
    ))?;
    // For every other command an incompatible version is an error; here it is what the user wants to know.
    let version = Handshake::from(health).judge().unwrap_or_else(|other| Some(other.to_string()));
    for warning in health.warnings.iter().chain(&health.restart_needed).chain(&version) {
        show::line(&format!("warning: {}", quote::line(warning)))?;
    }
    Ok(())
}
