//! `asyncagents output`: the result on standard output, everything else about the task on standard error, so that
//! `asyncagents output ID > file` has the result alone. In a pipe it is raw; on a terminal it is framed and escaped.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::connection::within;
use super::wait::{BLOCKED, say_what_is_asked};
use super::{caller, connect, seconds, show};
use crate::client::Client;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::quote;
use crate::wire::{CallerView, OutputRequest, OutputView, TaskView};

const TIMED_OUT: u8 = 124;

#[derive(Args)]
#[command(after_help = "\
On a terminal the result is framed, with control characters as escapes. In a pipe, and with --json,
it is exactly what the agent wrote. With --wait it exits 124 when the time is up first, and 2 when
the task waits for a permission.")]
pub(super) struct Output {
    /// The task: its id, its short id, or the beginning of its id
    id: String,
    /// Wait up to this many seconds for the end
    #[arg(long, value_name = "SECONDS")]
    wait: Option<f64>,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Output {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let wait = self.wait.map(|wait| seconds("--wait", wait)).transpose()?;
        let fetched = within(wait, fetch(settings, self.id, wait)).await?;
        let Some(output) = fetched else { return Ok(ExitCode::from(TIMED_OUT)) };
        if self.json {
            show::json(&output.task)?;
        } else {
            print(&output.task)?;
        }
        if !output.asks.is_empty() {
            say_what_is_asked(&output.asks);
            return Ok(ExitCode::from(BLOCKED));
        }
        Ok(if output.timed_out { ExitCode::from(TIMED_OUT) } else { ExitCode::SUCCESS })
    }
}

async fn fetch(
    settings: &Settings,
    id: String,
    wait: Option<Duration>,
) -> anyhow::Result<OutputView> {
    let started = Instant::now();
    let connection = connect(settings).await?;
    let id = connection.resolve(&[id]).await?.remove(0);
    let call = async |client: &Client| {
        let left = wait.map(|wait| wait.saturating_sub(started.elapsed()));
        let timeout = left.map(|left| left.as_secs_f64());
        let caller = CallerView { hand_over: hand_over(settings), ..caller(settings) };
        client.output(&id, &OutputRequest { caller, timeout }).await
    };
    // Only a wait gives up when the daemon is stopped on purpose; to show a task, it is started again.
    match wait {
        Some(_) => connection.wait(call).await,
        None => connection.call(call).await,
    }
}

fn print(task: &TaskView) -> anyhow::Result<()> {
    let TaskView { short_id, description, status, progress, .. } = task;
    let name = format!("{short_id} {}", quote::literal(description));
    match &task.error {
        Some(error) => show::note_quoted(&format!("{name} {status}:"), error),
        None if task.completed_at.is_none() => show::note(&format!(
            "{name} {status}, {}: {}, last active {}",
            progress.phase.name(),
            show::counted(progress.tool_calls.into(), "tool call"),
            progress.last_update
        )),
        None => show::note(&format!("{name} {status}")),
    }
    match &task.result {
        Some(result) => show::framed(&format!("written by the agent of {short_id}"), result),
        None => Ok(()),
    }
}
