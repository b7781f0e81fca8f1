//! `asyncagents daemon`: start, stop, restart, status.

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

/// As `systemctl status` says it.
const NOT_RUNNING: u8 = 3;

#[derive(Args)]
pub(super) struct Daemon {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start the daemon unless it runs
    Start {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the daemon; what it accepted is finished, what runs on hosts goes on
    Stop,
    /// Replace the daemon by one of this program; live runs go on, and so do commands that wait
    Restart {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say whether it runs; exits 3 when it does not
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

/// For programs that speak to the daemon themselves.
#[derive(Serialize)]
struct Started {
    socket: String,
    #[serde(flatten)]
    health: HealthView,
}

impl Started {
    fn of(settings: &Settings, health: HealthView) -> Started {
        Started { socket: start::socket(&settings.home).display().to_string(), health }
    }
}

async fn started(settings: &Settings, found: start::Found, json: bool) -> anyhow::Result<()> {
    let health = found.client.health().await?;
    match json {
        true => show::json(&Started::of(settings, health)),
        false => print(settings, &health),
    }
}

fn print(settings: &Settings, health: &HealthView) -> anyhow::Result<()> {
    show::line(&format!(
        "running in {}: pid {}, version {}, up {}, {} tasks",
        settings.home.display(),
        health.pid,
        health.version,
        say(Duration::from_secs(health.uptime)),
        health.task_count
    ))?;
    // Here another version is something to show, not an error.
    let version = Handshake::from(health).judge().unwrap_or_else(|other| Some(other.to_string()));
    for warning in health.warnings.iter().chain(&health.restart_needed).chain(&version) {
        show::line(&format!("warning: {}", quote::line(warning)))?;
    }
    Ok(())
}
