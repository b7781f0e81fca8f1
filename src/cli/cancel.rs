//! `asyncagents cancel`: by id, by batch, or all.

use std::process::ExitCode;

use clap::Args;

use super::{caller, connect, resolve, show};
use crate::config::Settings;
use crate::quote;
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
        let client = connect(settings).await?;
        let request = CancelRequest {
            caller: caller(settings),
            ids: resolve(&client, &self.ids).await?,
            all: self.all,
            batch: self.batch,
        };
        let CancelView { cancelled, over } = client.cancel(&request).await?;
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

fn named(task: &TaskView) -> String {
    format!("{} {}", task.short_id, quote::literal(&task.description))
}
