//! `asyncagents cancel`: stops tasks by id, by batch, or all of them, also those of other parents.

use std::process::ExitCode;

use clap::{ArgGroup, Args};

use super::connection::has_status;
use super::show::{self, Line};
use super::{caller, connect, tasks};
use crate::clock::Clock;
use crate::config::Settings;
use crate::wire::{CancelRequest, CancelView, TaskView};

#[derive(Args)]
#[command(
    group = ArgGroup::new("tasks").required(true),
    after_help = "\
Example:
  asyncagents cancel ab12c3 x9k2m4
  asyncagents stop --all"
)]
pub(super) struct Cancel {
    /// The tasks: ids, short ids, or beginnings of ids
    #[arg(group = "tasks")]
    ids: Vec<String>,
    /// Everything that runs
    #[arg(long, group = "tasks")]
    all: bool,
    /// The running tasks of this batch
    #[arg(long, group = "tasks")]
    batch: Option<String>,
    /// Print what was cancelled, and what was over before, as JSON
    #[arg(long)]
    json: bool,
}

impl Cancel {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let request = CancelRequest {
            caller: caller(settings),
            ids: connection.resolve(&self.ids).await?,
            all: self.all,
            batch: self.batch,
            key: Some(Clock::system().nonce()),
        };
        let view = match connection.call(async |client| client.cancel(&request).await).await {
            // The daemon does not say which.
            Err(error) if has_status(&error, 409) && !request.ids.is_empty() => {
                let ids = &request.ids;
                let over = connection.call(async |client| client.resolve(ids).await).await?.tasks;
                let over: Vec<String> = over.iter().map(is_over).collect();
                anyhow::bail!("{}", over.join("; "));
            }
            other => other?,
        };
        if self.json {
            show::json(&view)?;
            return Ok(ExitCode::SUCCESS);
        }
        let CancelView { cancelled, over } = view;
        for task in &over {
            show::note(&is_over(task));
        }
        if cancelled.is_empty() {
            show::line("No running background tasks to cancel.")?;
        }
        for task in &cancelled {
            let mut line = Line::new(show::DIM, "cancelled").with(show::PLAIN, " ");
            line.extend(&tasks::named(task));
            show::print(&line)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn is_over(task: &TaskView) -> String {
    format!("{} is already over ({})", named(task), task.status.name())
}

fn named(task: &TaskView) -> String {
    tasks::named(task).text()
}
