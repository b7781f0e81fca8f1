//! `asyncagents batch`: the tasks of a batch, oldest first, and their figures in sum.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::connection::has_status;
use super::show::{self, DIM, Line, PLAIN};
use super::{connect, list, tasks};
use crate::config::Settings;
use crate::task::Status;
use crate::task::time::say;
use crate::wire::GroupStatsView;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents run --batch login 'Where is it?'
  asyncagents run --batch login 'Where is it tested?'
  asyncagents batch login")]
pub(super) struct Batch {
    /// The name or id of the batch, or a task in it
    id: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Batch {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let group = async |id: &str| connection.call(async |client| client.group(id).await).await;
        let group = match group(&self.id).await {
            // Most batches are one task's own, whose id nobody has seen.
            Err(error) if has_status(&error, 404) => {
                let ids = [self.id.clone()];
                let named = connection.call(async |client| client.resolve(&ids).await).await;
                match named {
                    Ok(named) => group(&named.tasks[0].batch_id).await?,
                    Err(_) => anyhow::bail!(
                        "no batch `{}`, and no task of that id; `asyncagents list --json` shows the \
                         `batchId` of tasks",
                        self.id
                    ),
                }
            }
            other => other?,
        };
        if self.json {
            show::json(&group)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::print(&summary(&group.group_id, &group.stats))?;
        list::table(&group.tasks, tasks::now()).print()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn summary(id: &str, stats: &GroupStatsView) -> Line {
    let mut line = Line::new(show::BOLD, id).with(PLAIN, ": ");
    line.push(PLAIN, &show::counted(stats.total, "task"));
    for (n, status) in [
        (stats.running, Status::Running),
        (stats.completed, Status::Completed),
        (stats.error, Status::Error),
        (stats.cancelled, Status::Cancelled),
    ] {
        if n > 0 {
            line.push(PLAIN, ", ");
            line.push(show::status_style(status), &format!("{n} {}", status.name()));
        }
    }
    let calls = show::counted(stats.total_tool_calls, "tool call");
    let took = say(Duration::from_millis(stats.duration));
    line.with(DIM, &format!("; {calls}, {took} from first to last"))
}
