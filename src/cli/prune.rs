//! `asyncagents prune`: deletes old tasks from the history, with their results, transcripts and files. Tasks with
//! something pending stay.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::spinner::Spinner;
use super::{connect, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::start;
use crate::wire::PruneRequest;

/// How often the tasks that are left are counted; the spinner limits its redraws by itself.
const BETWEEN_COUNTS: Duration = Duration::from_millis(20);

#[derive(Args)]
#[command(
    group = ArgGroup::new("limits").required(true).multiple(true),
    after_help = "\
Only tasks that have ended are deleted, with their results and files. A task is kept while something
is pending: its notice is not delivered or not read (for `history.unread_days`), its session is not
stopped, or its transcript is not fetched. With both limits, a task is deleted if either says so.

Example:
  asyncagents prune --keep 1000 --older-than 30"
)]
pub(super) struct Prune {
    /// Keep this many ended tasks, the newest ones; 0 keeps none
    #[arg(long, value_name = "N", group = "limits")]
    keep: Option<u64>,
    /// Delete tasks that ended more than this many days ago
    #[arg(long, value_name = "DAYS", group = "limits")]
    older_than: Option<u64>,
    /// Print how many were removed as JSON
    #[arg(long)]
    json: bool,
}

impl Prune {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let request = PruneRequest {
            keep: self.keep,
            older_than_days: self.older_than,
            key: Some(Clock::system().nonce()),
        };
        let pruning = Spinner::start("deleting old tasks");
        let client = start::client(&settings.home);
        // Only a figure to look at: without it the tasks are deleted all the same.
        let before = match pruning.is_drawn() {
            true => client.health().await.ok().map(|health| health.task_count),
            false => None,
        };
        // How many there are to delete, only the daemon finds out, as it goes along.
        let count = async {
            let Some(before) = before else { return std::future::pending().await };
            loop {
                if let Ok(health) = client.health().await {
                    let gone = before.saturating_sub(health.task_count);
                    let gone = show::counted(gone, "task");
                    pruning.say(format!("deleting old tasks: {gone} deleted"));
                }
                tokio::time::sleep(BETWEEN_COUNTS).await;
            }
        };
        let pruned = tokio::select! {
            pruned = connection.call(async |client| client.prune(&request).await) => pruned?,
            never = count => never,
        };
        drop(pruning);
        match pruned.removed {
            _ if self.json => show::json(&pruned)?,
            1 => show::line("Removed 1 task.")?,
            removed => show::line(&format!("Removed {removed} tasks."))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Arguments;

    #[test]
    fn pruning_needs_a_limit_and_takes_both() {
        let check = |flags: &[&str], expected: bool| {
            let words = ["asyncagents", "prune"].iter().chain(flags);
            assert_eq!(Arguments::try_parse_from(words).is_ok(), expected, "{flags:?}");
        };
        check(&[], false);
        check(&["--json"], false);
        check(&["--keep", "0"], true);
        check(&["--older-than", "30"], true);
        check(&["--keep", "5", "--older-than", "30", "--json"], true);
        check(&["--keep", "-1"], false);
    }
}
