//! `asyncagents hosts`: lists where agents can run, and adds and removes OpenCode servers.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::connection::has_status;
use super::{connect, show};
use crate::client::Client;
use crate::config::Settings;
use crate::wire::{HostView, OpenCodeView};

#[derive(Args)]
#[command(after_help = "\
A server keeps its name when its address changes: add it again with the new one, and its
tasks go on.

Example:
  asyncagents hosts add work http://127.0.0.1:4096
  asyncagents hosts
  asyncagents run --host opencode --agent explore 'Where is the login handled?'")]
pub(super) struct Hosts {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Print the hosts as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Add an OpenCode server, or change the address of one
    #[command(after_help = "\
Example:
  asyncagents hosts add work http://127.0.0.1:4096")]
    Add {
        /// The name of the server; its tasks are found by it
        name: String,
        /// Such as http://127.0.0.1:4096
        url: String,
    },
    /// Remove a server that was added
    #[command(after_help = "\
Example:
  asyncagents hosts remove work")]
    Remove {
        /// The name it was added under
        name: String,
    },
}

impl Hosts {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let call = async |client: &Client| match &self.verb {
            None => client.hosts().await,
            Some(Verb::Add { name, url }) => client.add_server(name, url).await,
            Some(Verb::Remove { name }) => client.remove_server(name).await,
        };
        let hosts = match connection.call(call).await {
            // A repeated removal that is refused: the first call removed it before the daemon went away.
            Err(error)
                if matches!(self.verb, Some(Verb::Remove { .. }))
                    && connection.was_repeated()
                    && has_status(&error, 400) =>
            {
                connection.call(Client::hosts).await?.hosts
            }
            other => other?.hosts,
        };
        if self.json {
            show::json(&hosts)?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows: Vec<Vec<String>> = hosts.iter().flat_map(rows).collect();
        show::columns(&["HOST", "SERVER", "TASKS", "STATE"], &rows)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A row for each server of a host, or one for a host without servers. `*` marks the default host.
fn rows(host: &HostView) -> Vec<Vec<String>> {
    let name = if host.is_default { format!("{} *", host.name) } else { host.name.clone() };
    if host.servers.is_empty() {
        let state = match host.has_servers {
            true => "no server; `asyncagents hosts add NAME URL`",
            false => "ready",
        };
        return vec![vec![name, "-".into(), host.active_tasks.to_string(), state.into()]];
    }
    let row = |server: &OpenCodeView| {
        let state = match (&server.version, &server.error) {
            (Some(version), _) => format!("{} (version {version})", server.url),
            (None, Some(error)) => format!("{}: {error}", server.url),
            (None, None) => server.url.clone(),
        };
        vec![name.clone(), server.name.clone(), server.active_tasks.to_string(), state]
    };
    host.servers.iter().map(row).collect()
}
