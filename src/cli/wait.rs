//! `asyncagents wait`: sleeps until tasks have ended, and exits with what became of them.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::{connect, resolve, seconds, show};
use crate::config::Settings;
use crate::quote;
use crate::task::Status;
use crate::wire::{TaskView, WaitRequest};

/// One call waits no longer than this; the next one goes on.
const SLICE: Duration = Duration::from_secs(300);

const TIMED_OUT: u8 = 124;
const FAILED: u8 = 1;
const CANCELLED: u8 = 130;

#[derive(Args)]
#[command(after_help = "\
Exits 124 on timeout; else 0 if all that were waited for completed, 1 if any failed, 130 if none
failed and any was cancelled.

Example:
  asyncagents wait --any ab12c3 x9k2m4 && echo one of them is done")]
pub(super) struct Wait {
    /// The tasks: ids, short ids, or beginnings of ids
    #[arg(required = true)]
    ids: Vec<String>,
    /// Until one of them has ended
    #[arg(long, conflicts_with_all = ["all", "n"])]
    any: bool,
    /// Until all of them have ended (the default)
    #[arg(long, conflicts_with = "n")]
    all: bool,
    /// Until so many of them have ended
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Do not tell of ends as they come
    #[arg(long, short)]
    quiet: bool,
}

impl Wait {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let timeout = self.timeout.map(|timeout| seconds("--timeout", timeout)).transpose()?;
        let mut client = connect(settings).await?;
        let mut ids = resolve(&client, &self.ids).await?;
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        let need = match (self.any, self.n) {
            (true, _) => 1,
            (false, Some(n)) => (n as usize).min(ids.len()),
            (false, None) => ids.len(),
        };
        let started = Instant::now();
        let mut ended = 0;
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let next = (ended + 1).min(need);
            let request =
                WaitRequest { ids: ids.clone(), need: Some(next), timeout: slice.as_secs_f64() };
            let waited = match client.wait(&request).await {
                Ok(waited) => waited,
                Err(error) if error.went_away() => {
                    client = connect(settings).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let over: Vec<&TaskView> = waited.tasks.iter().filter(|task| is_over(task)).collect();
            if !self.quiet {
                over.iter()
                    .filter(|task| seen.remove(&task.session_id))
                    .for_each(|task| tell(task));
            }
            ended = over.len();
            if ended >= need {
                return Ok(ExitCode::from(verdict(&over)));
            }
            if left.is_some_and(|left| left <= slice) && waited.timed_out {
                return Ok(ExitCode::from(TIMED_OUT));
            }
        }
    }
}

fn tell(task: &TaskView) {
    let TaskView { short_id, description, status, error, .. } = task;
    let ended = format!("{short_id} {} {status}", quote::literal(description));
    match error {
        Some(error) => show::note_quoted(&format!("{ended}:"), error),
        None => show::note(&ended),
    }
}

fn is_over(task: &TaskView) -> bool {
    Status::parse(&task.status).is_some_and(|status| !status.is_live())
}

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
