//! `asyncagents approve` and `asyncagents deny`: what agents ask for, and the answers.

use std::process::ExitCode;

use clap::Args;

use super::connection::has_status;
use super::{connect, show};
use crate::client::Client;
use crate::config::Settings;
use crate::quote;
use crate::wire::{AnswerRequest, PermissionView};

const LOST: &str = "the daemon went away during the call, so the request may have been answered";

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
        let connection = connect(settings).await?;
        let (permissions, word) = match &self.id {
            None => (connection.call(Client::permissions).await?.permissions, "asks"),
            Some(id) => {
                let answer = AnswerRequest { allow };
                let call = async |client: &Client| client.answer(id, &answer).await;
                let answered = connection.call_settling(call).await;
                // The answer may have been the last thing the daemon did before it went away.
                let answered = match answered {
                    Err(error) if connection.was_repeated() && has_status(&error, 404) => {
                        Err(error.context(LOST))
                    }
                    other => other,
                };
                (answered?.permissions, if allow { "allowed" } else { "denied" })
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
