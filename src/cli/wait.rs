//! `asyncagents wait`: sleeps until tasks have ended; its exit code says how. The exit codes are an interface for
//! scripts: 0, 1 and 130 for tasks, 124 for a timeout, 2 when the outcome is not known.
//!
//! It waits in slices, so that no call outlasts the timeouts of the connection, and goes on when the daemon dies or
//! is restarted under it. It ends when only a person could end the wait.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::connection::{Connection, within};
use super::{caller, connect, seconds, show};
use crate::client::Client;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::quote;
use crate::task::Status;
use crate::wire::{CallerView, PermissionView, TaskView, WaitRequest, WaitView};

/// How long one call waits; the next one goes on.
const SLICE: Duration = Duration::from_secs(300);

/// All tasks that are left wait for a person, so the outcome cannot be known now.
pub(super) const BLOCKED: u8 = 2;
const TIMED_OUT: u8 = 124;
const FAILED: u8 = 1;
const CANCELLED: u8 = 130;

#[derive(Args)]
#[command(after_help = "\
Exits 0 if all that were waited for completed, 1 if any failed, 130 if none failed and any was
cancelled, 124 on timeout, and 2 when the outcome is not known (no daemon, unknown id). It goes on
when the daemon crashes or is restarted; when somebody stops the daemon, it says so and exits 2.
When all tasks that are left wait for a permission, it shows the requests and how to answer, and
exits 2, too.

Example:
  asyncagents wait --any ab12c3 x9k2m4 && echo one of them is done")]
pub(super) struct Wait {
    /// The tasks: ids, short ids, or beginnings of ids
    #[arg(required = true)]
    ids: Vec<String>,
    /// Wait until one of them has ended
    #[arg(long, conflicts_with_all = ["all", "n"])]
    any: bool,
    /// Wait until all of them have ended (the default)
    #[arg(long, conflicts_with = "n")]
    all: bool,
    /// Wait until this many of them have ended
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Do not print tasks as they finish
    #[arg(long, short)]
    quiet: bool,
}

impl Wait {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let started = Instant::now();
        let timeout = self.timeout.map(|timeout| seconds("--timeout", timeout)).transpose()?;
        let waited = within(timeout, self.wait(settings, started, timeout)).await?;
        Ok(ExitCode::from(waited.unwrap_or(TIMED_OUT)))
    }

    /// Returns the exit code.
    async fn wait(
        &self,
        settings: &Settings,
        started: Instant,
        timeout: Option<Duration>,
    ) -> anyhow::Result<u8> {
        let connection = connect(settings).await?;
        // With credentials, although a wait launches nothing: if the daemon is restarted meanwhile, the tasks
        // have lost theirs and could not go on.
        let caller = CallerView { hand_over: hand_over(settings), ..caller(settings) };
        let mut ids = connection.resolve(&self.ids).await?;
        // Duplicates are dropped: `wait -n 2 a a` would count one end twice. Afterwards the set holds the tasks
        // that have not been printed yet.
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        let need = match (self.any, self.n) {
            (true, _) => 1,
            (false, Some(n)) => (n as usize).min(ids.len()),
            (false, None) => ids.len(),
        };
        let mut ended = 0;
        loop {
            // One more than have ended, so that each task is printed when it finishes.
            let next = (ended + 1).min(need);
            let left = || timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let waited = slice(&connection, &caller, &ids, next, left).await?;
            let over: Vec<&TaskView> = waited.tasks.iter().filter(|task| is_over(task)).collect();
            if !self.quiet {
                over.iter()
                    .filter(|task| seen.remove(&task.session_id))
                    .for_each(|task| tell(task));
            }
            ended = over.len();
            if ended >= need {
                return Ok(verdict(&over));
            }
            if waited.blocked {
                say_what_is_asked(&waited.asks);
                return Ok(BLOCKED);
            }
            if waited.timed_out && left().is_some_and(|left| left.is_zero()) {
                return Ok(TIMED_OUT);
            }
        }
    }
}

/// Waits for the next end, for as long as one call may take.
async fn slice(
    connection: &Connection<'_>,
    caller: &CallerView,
    ids: &[String],
    need: usize,
    left: impl Fn() -> Option<Duration>,
) -> anyhow::Result<WaitView> {
    let call = async |client: &Client| {
        let timeout = left().map_or(SLICE, |left| left.min(SLICE)).as_secs_f64();
        let ids = ids.to_vec();
        let request = WaitRequest {
            ids,
            need: Some(need),
            timeout,
            until_blocked: true,
            caller: Some(caller.clone()),
        };
        client.wait(&request).await
    };
    connection.wait(call).await
}

fn tell(task: &TaskView) {
    let TaskView { short_id, description, status, error, .. } = task;
    let ended = format!("{short_id} {} {status}", quote::literal(description));
    match error {
        Some(error) => show::note_quoted(&format!("{ended}:"), error),
        None => show::note(&ended),
    }
}

/// Prints the permission requests that block tasks, and the commands that answer them.
pub(super) fn say_what_is_asked(asks: &[PermissionView]) {
    for PermissionView { short_id, description, what, .. } in asks {
        show::note_quoted(&format!("{short_id} {} asks for:", quote::literal(description)), what);
    }
    let mut ids: Vec<&str> = asks.iter().map(|asked| asked.short_id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        show::note(&format!(
            "  allow it with `asyncagents approve {id}`, refuse it with `asyncagents deny {id}`"
        ));
    }
}

fn is_over(task: &TaskView) -> bool {
    Status::parse(&task.status).is_some_and(|status| !status.is_live())
}

/// The exit code for tasks that have ended: a failure counts for more than a cancellation.
fn verdict(over: &[&TaskView]) -> u8 {
    let any = |status: Status| over.iter().any(|task| task.status == status.name());
    if any(Status::Error) {
        FAILED
    } else if any(Status::Cancelled) {
        CANCELLED
    } else {
        0
    }
}
