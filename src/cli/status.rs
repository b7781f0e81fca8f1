//! `asyncagents status`: the daemon, where agents run, what they do, and what waits for the user. It starts no daemon:
//! it says that none is running.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::show::{self, DIM, GOOD, Line, PLAIN, WARNING};
use super::wait::say_what_is_asked;
use crate::client::{self, Client, Handshake};
use crate::config::Settings;
use crate::daemon::start;
use crate::quote;
use crate::task::time::say;
use crate::task::{Phase, Status};
use crate::wire::{HealthView, HostView, PermissionView, TaskView};

/// The API's limit of a page; with more live tasks than that, phases are counted in the newest.
const LARGEST_PAGE: &str = "200";

#[derive(Args)]
#[command(after_help = "\
It starts no daemon. What needs an answer is shown with the command that gives it.

Example:
  asyncagents status
  asyncagents status --json | jq .needsAnswer")]
pub(super) struct StatusCommand {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    running: bool,
    home: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<HealthView>,
    /// Of the status API.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    hosts: Vec<HostView>,
    live: LiveCounts,
    needs_answer: Vec<PermissionView>,
}

/// Tasks that have not ended.
#[derive(Default, Serialize)]
struct LiveCounts {
    total: u64,
    queued: u64,
    blocked: u64,
}

impl StatusCommand {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let client = start::client(&settings.home);
        let overview = match client.health().await {
            Ok(health) => {
                // An incompatible daemon is said as for every command; a mere difference is a warning.
                Handshake::from(&health).judge().map_err(client::Error::from)?;
                overview(settings, &client, health).await?
            }
            Err(client::Error::NotRunning(_)) => Overview {
                running: false,
                home: settings.home.display().to_string(),
                daemon: None,
                url: None,
                hosts: Vec::new(),
                live: LiveCounts::default(),
                needs_answer: Vec::new(),
            },
            Err(error) => return Err(error.into()),
        };
        match self.json {
            true => show::json(&overview)?,
            false => print(&overview)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn overview(
    settings: &Settings,
    client: &Client,
    health: HealthView,
) -> anyhow::Result<Overview> {
    let mut live = LiveCounts::default();
    for status in [Status::Running, Status::Resumed] {
        let query = [("status", status.name().to_owned()), ("limit", LARGEST_PAGE.to_owned())];
        let page = client.tasks(&query).await?;
        let count = |phase: Phase| {
            let is_in = |task: &&TaskView| task.progress.phase == phase;
            page.tasks.iter().filter(is_in).count() as u64
        };
        live.total += page.total;
        live.queued += count(Phase::Queued);
        live.blocked += count(Phase::Blocked);
    }
    let server = start::server(&settings.home).filter(|server| server.pid == health.pid);
    Ok(Overview {
        running: true,
        home: settings.home.display().to_string(),
        url: server.map(|server| server.url),
        hosts: client.hosts().await?.hosts,
        live,
        needs_answer: client.permissions().await?.permissions,
        daemon: Some(health),
    })
}

fn print(overview: &Overview) -> anyhow::Result<()> {
    let Some(health) = &overview.daemon else {
        fact("daemon", Line::new(WARNING, "not running"))?;
        fact("storage", Line::plain(&overview.home))?;
        return show::line(
            "It starts with the first command that needs it, such as `asyncagents run`.",
        );
    };
    let up = say(Duration::from_secs(health.uptime));
    let facts = format!(", version {}, pid {}, up {up}", health.version, health.pid);
    fact("daemon", Line::new(GOOD, "running").with(PLAIN, &facts))?;
    fact("storage", Line::plain(&overview.home))?;
    let url = match &overview.url {
        Some(url) => Line::plain(url),
        None => Line::new(DIM, "not served"),
    };
    fact("status API", url)?;
    for host in &overview.hosts {
        fact("host", host_line(host))?;
    }
    let LiveCounts { total, queued, blocked } = overview.live;
    let mut tasks = Line::plain(&format!("{} live of {}", total, health.task_count));
    for (n, what, style) in [(queued, "queued", DIM), (blocked, "blocked", WARNING.bold())] {
        if n > 0 {
            tasks.push(PLAIN, ", ");
            tasks.push(style, &format!("{n} {what}"));
        }
    }
    fact("tasks", tasks)?;
    if health.paused {
        let waits = ": queued tasks wait for `asyncagents continue`";
        fact("queue", Line::new(WARNING.bold(), "paused").with(PLAIN, waits))?;
    }
    for warning in health.warnings.iter().chain(&health.restart_needed) {
        fact("warning", Line::new(WARNING, &quote::line(warning)))?;
    }
    if overview.needs_answer.is_empty() {
        return fact("needs you", Line::new(DIM, "nothing"));
    }
    let requests = show::counted(overview.needs_answer.len() as u64, "permission request");
    fact("needs you", Line::new(WARNING.bold(), &requests))?;
    say_what_is_asked(&overview.needs_answer);
    Ok(())
}

fn fact(name: &str, value: Line) -> anyhow::Result<()> {
    let mut line = Line::new(DIM, &format!("{name:<12}"));
    line.extend(&value);
    show::print(&line)
}

fn host_line(host: &HostView) -> Line {
    let mut line = Line::plain(&host.name);
    if host.is_default {
        line.push(DIM, " (default)");
    }
    line.push(PLAIN, &format!(", {}", show::counted(host.active_tasks as u64, "active task")));
    for server in &host.servers {
        match &server.error {
            Some(error) => line.push(WARNING, &format!(", {}: {error}", server.name)),
            None => line.push(PLAIN, &format!(", {} at {}", server.name, server.url)),
        }
    }
    line
}
