//! `asyncagents cancel`: stops tasks by id, by batch, or all of them, also those of other parents.

use std::process::ExitCode;

use clap::{ArgGroup, Args};

use super::connection::{Connection, has_status};
use super::show::{self, Line};
use super::{caller, connect, tasks};
use crate::client::Client;
use crate::config::Settings;
use crate::task::Status;
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
        };
        let view = cancel(&connection, &request).await?;
        // With ids the answer names every task, so that a repeat loses nothing; `--all` and `--batch` only list
        // what the last call has stopped.
        if request.ids.is_empty() {
            connection.note_repeat();
        }
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

/// Cancels, and makes a repeated call look like one: when the daemon goes away after it has cancelled and before
/// it has answered, the repeat finds the tasks over (409, or in `over`). Those that are cancelled now were
/// cancelled by the first call, so they are reported as such.
async fn cancel(
    connection: &Connection<'_>,
    request: &CancelRequest,
) -> anyhow::Result<CancelView> {
    let asked = connection.call(async |client: &Client| client.cancel(request).await).await;
    let view = match asked {
        Err(error) if connection.was_repeated() && has_status(&error, 409) => {
            let ids = &request.ids;
            let over = connection.call(async |client| client.resolve(ids).await).await?.tasks;
            CancelView { cancelled: Vec::new(), over }
        }
        // The daemon does not say which.
        Err(error) if has_status(&error, 409) && !request.ids.is_empty() => {
            let ids = &request.ids;
            let over = connection.call(async |client| client.resolve(ids).await).await?.tasks;
            let over: Vec<String> = over.iter().map(is_over).collect();
            anyhow::bail!("{}", over.join("; "));
        }
        other => other?,
    };
    if !connection.was_repeated() {
        return Ok(view);
    }
    let CancelView { mut cancelled, over } = view;
    let is_cancelled = |task: &TaskView| task.status == Status::Cancelled.name();
    let (ours, over) = over.into_iter().partition(is_cancelled);
    cancelled.extend::<Vec<TaskView>>(ours);
    Ok(CancelView { cancelled, over })
}

fn is_over(task: &TaskView) -> String {
    format!("{} is already over ({})", named(task), task.status)
}

fn named(task: &TaskView) -> String {
    tasks::named(task).text()
}
