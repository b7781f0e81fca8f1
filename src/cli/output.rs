//! `asyncagents output`: the result on standard output, everything else about the task on standard error, so that
//! `asyncagents output ID > file` has the result alone. In a pipe it is raw; on a terminal it is framed and escaped.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::connection::within;
use super::show::{self, PLAIN};
use super::wait::{BLOCKED, say_what_is_asked, tell, verdict};
use super::{EXIT_UNKNOWN, caller, connect, seconds, tasks};
use crate::client::Client;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::wire::{CallerView, OutputRequest, OutputView, PermissionView};

const TIMED_OUT: u8 = 124;

#[derive(Args)]
#[command(after_help = "\
On a terminal the result is rendered and framed, with control characters as escapes. In a pipe it
is exactly what the agent wrote; --json prints the whole task. With --wait it exits 124 when the
time is up first, and 2 when the task waits for a permission. With --exit-code it exits as
`asyncagents wait` would: 1 if the task failed, 130 if it was cancelled, 2 if it has not ended or
the outcome is not known (no daemon, unknown id).

Example:
  asyncagents output ab12c3
  asyncagents output ab12c3 --wait 60 > answer.md")]
pub(super) struct Output {
    /// The task: its id, its short id, or the beginning of its id
    id: String,
    /// Wait up to this many seconds for the end
    #[arg(long, value_name = "SECONDS")]
    wait: Option<f64>,
    /// Say by the exit code how the task ended
    #[arg(long)]
    exit_code: bool,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Whether its exit code is that of `wait`.
    pub(super) fn tells_outcome(&self) -> bool {
        self.exit_code
    }

    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let wait = self.wait.map(|wait| seconds("--wait", wait)).transpose()?;
        let fetched = within(wait, fetch(settings, self.id, wait)).await?;
        let Some(output) = fetched else { return Ok(ExitCode::from(TIMED_OUT)) };
        if self.json {
            show::json(&output.task)?;
        } else {
            print(&output)?;
        }
        if !output.asks.is_empty() {
            say_what_is_asked(&output.asks);
        }
        // The asks of one that was not waited for are shown as well, and change no exit code.
        let code = match (output.timed_out, output.asks.is_empty()) {
            (true, false) => BLOCKED,
            (true, true) => TIMED_OUT,
            (false, _) if !self.exit_code => 0,
            (false, _) if tasks::is_over(&output.task) => verdict(&[&output.task]),
            (false, _) => EXIT_UNKNOWN,
        };
        Ok(ExitCode::from(code))
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
    let mut output = match wait {
        Some(_) => return connection.wait(call).await,
        None => connection.call(call).await?,
    };
    if tasks::is_blocked(&output.task) {
        let open = connection.call(Client::permissions).await?.permissions;
        let is_its = |ask: &PermissionView| ask.session_id == output.task.session_id;
        output.asks = open.into_iter().filter(is_its).collect();
    }
    Ok(output)
}

fn print(output: &OutputView) -> anyhow::Result<()> {
    let OutputView { task, asks, .. } = output;
    let progress = &task.progress;
    let now = tasks::now();
    if tasks::is_over(task) {
        tell(task);
    } else {
        let last = show::ago(now.since(progress.last_update));
        let facts = format!(": {}, last active {last}", tasks::tool_calls(task));
        let mut line = tasks::named(task).with(PLAIN, " ");
        line.extend(&tasks::status(task));
        match &progress.detail {
            // Permission requests follow by themselves.
            Some(detail) if asks.is_empty() => {
                show::note_quoted(&line.with(PLAIN, &format!("{facts};")), detail)
            }
            Some(_) | None => show::note_line(&line.with(PLAIN, &facts)),
        }
    }
    match &task.result {
        Some(result) => {
            let title = format!("written by the agent of {}", task.short_id);
            show::framed_markdown(&title, result)
        }
        None => Ok(()),
    }
}
