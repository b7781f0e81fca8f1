//! `asyncagents clear`: stops the shell's running tasks and takes all of its tasks off the list. The history
//! keeps them (`asyncagents list --all`).

use std::process::ExitCode;

use clap::Args;

use super::{caller, connect, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::wire::ClearRequest;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents clear
  asyncagents list --all")]
pub(super) struct Clear {
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

impl Clear {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let key = Some(Clock::system().nonce());
        let request = ClearRequest { caller: caller(settings), key };
        let cleared = connection.call(async |client| client.clear(&request).await).await?;
        if self.json {
            show::json(&cleared)?;
            return Ok(ExitCode::SUCCESS);
        }
        let tasks = show::counted(cleared.cleared as u64, "task");
        show::line(&format!("Cleared {tasks}, {} of them cancelled.", cleared.cancelled))?;
        Ok(ExitCode::SUCCESS)
    }
}
