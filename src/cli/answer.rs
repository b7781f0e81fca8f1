//! `asyncagents approve` and `asyncagents deny`: what agents ask for, and the answers.

use std::process::ExitCode;

use clap::Args;

use super::{connect, show};
use crate::config::Settings;
use crate::quote;
use crate::wire::{AnswerRequest, PermissionView};

#[derive(Args)]
#[command(after_help = "\
Without an id it lists what is asked: the command as it will run, in quotes, with control characters
as escapes.

Example:
  asyncagents approve          # what waits?
  asyncagents approve ab12c3   # everything task ab12c3 asks for now")]
pub(super) struct Answer {
    /// The id of a question, or of a task to answer all it asks
    id: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Answer {
    pub(super) async fn run(self, settings: &Settings, allow: bool) -> anyhow::Result<ExitCode> {
        let client = connect(settings).await?;
        let (permissions, word) = match &self.id {
            None => (client.permissions().await?.permissions, "asks"),
            Some(id) => {
                let answered = client.answer(id, &AnswerRequest { allow }).await?;
                (answered.permissions, if allow { "allowed" } else { "denied" })
            }
        };
        if self.json {
            show::json(&permissions)?;
        } else if permissions.is_empty() {
            show::line("Nothing is asked.")?;
        } else {
            for PermissionView { id, short_id, description, what, .. } in permissions {
                let task = format!("{short_id} {}", quote::literal(&description));
                show::quoted(&format!("{id}  {task} {word}:"), &what)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
