//! `asyncagents pause` and `continue`: no queued task starts in between. Running tasks go on, launches are accepted and
//! wait, and a restart of the daemon changes nothing of it.

use std::process::ExitCode;

use clap::Args;

use super::{connect, show};
use crate::config::Settings;

pub(super) const PAUSE_HELP: &str = "\
Running tasks go on, and launches are accepted and wait. The queue stays paused when the daemon is
restarted.

Example:
  asyncagents pause
  asyncagents daemon status        # says that the queue is paused
  asyncagents continue";

pub(super) const CONTINUE_HELP: &str = "\
Example:
  asyncagents continue";

#[derive(Args)]
pub(super) struct Queue {
    /// Print whether the queue is paused, and how many tasks wait and run, as JSON
    #[arg(long)]
    json: bool,
}

impl Queue {
    pub(super) async fn pause(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let queue = connection.call(async |client| client.pause_queue().await).await?;
        if self.json {
            show::json(&queue)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::line(&format!(
            "The queue is paused: {}, {}. `asyncagents continue` starts it again.",
            are(queue.active, "running"),
            are(queue.queued, "waiting")
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn go_on(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let queue = connection.call(async |client| client.continue_queue().await).await?;
        if self.json {
            show::json(&queue)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::line("The queue is not paused; tasks start as slots become free.")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn are(n: u64, what: &str) -> String {
    format!("{} {what}", show::counted(n, "task"))
}
