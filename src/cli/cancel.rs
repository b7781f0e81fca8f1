//! `asyncagents cancel`: stops tasks by id, by batch, or all of them, also those of other parents.

use std::process::ExitCode;

use clap::Args;

use super::connection::{Connection, has_status};
use super::{caller, connect, show};
use crate::client::Client;
use crate::config::Settings;
use crate::quote;
use crate::task::Status;
use crate::wire::{CancelRequest, CancelView, TaskView};

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct Cancel {
    /// The tasks: ids, short ids, or beginnings of ids
    ids: Vec<String>,
    /// Everything that runs
    #[arg(long)]
    all: bool,
    /// The running tasks of this batch
    #[arg(long)]
    batch: Option<String>,
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
        let CancelView { cancelled, over } = cancel(&connection, &request).await?;
        // With ids the answer names every task, so that a repeat loses nothing; `--all` and `--batch` only list
        // what the last call has stopped.
        if request.ids.is_empty() {
            connection.note_repeat();
        }
        for task in &over {
            show::note(&format!("{} is already over ({})", named(task), task.status));
        }
        if cancelled.is_empty() {
            show::line("No running background tasks to cancel.")?;
        }
        for task in &cancelled {
            show::line(&format!("cancelled {}", named(task)))?;
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

fn named(task: &TaskView) -> String {
    format!("{} {}", task.short_id, quote::literal(&task.description))
}
