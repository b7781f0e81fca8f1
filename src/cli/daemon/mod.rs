//! `asyncagents daemon`: starts, stops, restarts the daemon, shows its status and its log, and installs it.
//! `daemon start --json` is also how the OpenCode plugin finds the socket.

mod logs;
mod unit;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use self::logs::Logs;
use super::spinner::Spinner;
use super::{seconds, show};
use crate::client::{self, Handshake, Stop};
use crate::config::Settings;
use crate::daemon::{hand_over, start};
use crate::quote;
use crate::task::time::say;
use crate::wire::{HandOverView, HealthView};

/// The exit code of `systemctl status` for a service that is not running.
const NOT_RUNNING: u8 = 3;

/// How often the tasks that still run are counted.
const BETWEEN_COUNTS: Duration = Duration::from_millis(500);

const DAEMON_HELP: &str = "\
Example:
  asyncagents daemon status
  asyncagents daemon logs -f";

const START_HELP: &str = "\
Example:
  asyncagents daemon start --json   # its socket and its health, for programs";

const RESTART_HELP: &str = "\
Example:
  asyncagents daemon restart        # after an upgrade or a change of the configuration";

const STOP_HELP: &str = "\
Example:
  asyncagents daemon stop
  asyncagents daemon stop --drain --timeout 600";

const STATUS_HELP: &str = "\
Example:
  asyncagents daemon status || asyncagents daemon start";

#[derive(Args)]
#[command(after_help = DAEMON_HELP)]
pub(super) struct Daemon {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start the daemon if it is not running
    #[command(after_help = START_HELP)]
    Start {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
        /// With --json: also the models and keys of this environment, for the OpenCode plugin, which sends them with
        /// its launches
        #[arg(long, hide = true, requires = "json")]
        hand_over: bool,
    },
    /// Stop the daemon; calls under way are finished, and runs on OpenCode servers go on
    #[command(after_help = STOP_HELP)]
    Stop {
        /// Wait until the running tasks have ended; no other task starts meanwhile, and Ctrl-C leaves the daemon as
        /// it was
        #[arg(long)]
        drain: bool,
        /// With --drain: wait for this many seconds at most, and do not stop if tasks still run then
        #[arg(long, value_name = "SECONDS", requires = "drain")]
        timeout: Option<f64>,
        /// Print whether it was running as JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the daemon by one of this version; live runs go on, and so do commands that wait
    #[command(after_help = RESTART_HELP)]
    Restart {
        /// Print its health and its socket as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the daemon's log
    Logs(Logs),
    /// Write a systemd unit that starts the daemon with your session
    #[command(after_help = unit::INSTALL_HELP)]
    Install {
        /// Show the unit, and write nothing
        #[arg(long)]
        print: bool,
        /// Print which file was changed as JSON
        #[arg(long, conflicts_with = "print")]
        json: bool,
    },
    /// Remove that unit
    #[command(after_help = unit::UNINSTALL_HELP)]
    Uninstall {
        /// Print which file was changed as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show whether the daemon is running; exits 3 if it is not
    #[command(after_help = STATUS_HELP)]
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Daemon {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Start { json: true, hand_over: true } => {
                let health = start::ensure(settings).await?.client.health().await?;
                // Without a host and a server: the caller is itself an OpenCode server and sends its own address.
                let (host, opencode_url) = (String::new(), String::new());
                let environment = HandOverView { host, opencode_url, ..hand_over(settings) };
                let start = StartView::of(settings, health);
                show::json(&StartView { hand_over: Some(environment), ..start })?;
            }
            Verb::Start { json, .. } => {
                started(settings, start::ensure(settings).await?, json).await?;
            }
            Verb::Restart { json } => {
                started(settings, start::restart(settings).await?, json).await?;
            }
            Verb::Stop { drain, timeout, json } => {
                let was_running = match drain {
                    true => drained(settings, timeout).await?,
                    false => start::stop(settings, Stop::ForGood).await?,
                };
                match was_running {
                    _ if json => show::json(&serde_json::json!({ "stopped": was_running }))?,
                    true => show::line("stopped")?,
                    false => show::line("not running")?,
                }
            }
            Verb::Logs(logs) => return logs.run(settings).await,
            Verb::Install { print: true, .. } => unit::print(settings)?,
            Verb::Install { print: false, json } => unit::install(settings, json)?,
            Verb::Uninstall { json } => unit::uninstall(settings, json)?,
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

/// Stops the daemon once no task runs any more, and shows how many do.
async fn drained(settings: &Settings, timeout: Option<f64>) -> anyhow::Result<bool> {
    let longest = timeout.map(|timeout| seconds("--timeout", timeout)).transpose()?;
    let spinner = Spinner::start("waiting for running tasks");
    let client = start::client(&settings.home);
    let count = async {
        loop {
            if let Ok(hosts) = client.hosts().await {
                let left = hosts.hosts.iter().map(|host| host.active_tasks as u64).sum();
                let live = show::counted(left, "live task");
                spinner.say(format!("waiting for running tasks; {live}, queued ones among them"));
            }
            tokio::time::sleep(BETWEEN_COUNTS).await;
        }
    };
    // Ctrl-C ends this process and its call with it, and the daemon goes on as before.
    tokio::select! {
        stopped = start::stop(settings, Stop::Drained(longest)) => stopped,
        never = count => never,
    }
}

/// The JSON of `start` and `restart`, for programs that connect to the socket themselves.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StartView {
    socket: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hand_over: Option<HandOverView>,
    #[serde(flatten)]
    health: HealthView,
}

impl StartView {
    fn of(settings: &Settings, health: HealthView) -> StartView {
        let socket = start::socket(&settings.home).display().to_string();
        StartView { socket, hand_over: None, health }
    }
}

async fn started(settings: &Settings, found: start::ReadyDaemon, json: bool) -> anyhow::Result<()> {
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
    if let Some(server) = start::server(&settings.home).filter(|server| server.pid == health.pid) {
        show::line(&format!("status API and dashboard: {}", server.url))?;
    }
    if health.paused {
        show::line("the queue is paused: queued tasks wait for `asyncagents continue`")?;
    }
    // For every other command an incompatible version is an error; here it is what the user wants to know.
    let version = Handshake::from(health).judge().unwrap_or_else(|other| Some(other.to_string()));
    for warning in health.warnings.iter().chain(&health.restart_needed).chain(&version) {
        show::line(&format!("warning: {}", quote::line(warning)))?;
    }
    Ok(())
}
