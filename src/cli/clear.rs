//! `asyncagents clear`: stops the shell's tasks and empties its list.

use std::process::ExitCode;

use clap::Args;

use super::{caller, connect, show};
use crate::config::Settings;
use crate::wire::CallerRequest;

#[derive(Args)]
pub(super) struct Clear {}

impl Clear {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let client = connect(settings).await?;
        let cleared = client.clear(&CallerRequest { caller: caller(settings) }).await?;
        show::line(&format!(
            "Cleared {} tasks, {} of them cancelled.",
            cleared.cleared, cleared.cancelled
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
