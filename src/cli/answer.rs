//! `asyncagents approve` and `asyncagents deny`: what agents ask for, and the answers.

use std::cell::RefCell;
use std::process::ExitCode;

use clap::Args;

use super::connection::has_status;
use super::{connect, show};
use crate::client::Client;
use crate::config::Settings;
use crate::quote;
use crate::wire::{AnswerRequest, PermissionView, PermissionsView};

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
                // Found out once: a repeat must not answer what nobody has seen yet.
                let asked = RefCell::new(Vec::new());
                let call = async |client: &Client| {
                    if asked.borrow().is_empty() {
                        let open = client.permissions().await?.permissions;
                        let meant = open.into_iter().filter(|open| is_meant(open, id));
                        asked.replace(meant.map(|open| open.id).collect());
                    }
                    let ids = asked.borrow().clone();
                    if ids.is_empty() {
                        return client.answer(id, &answer).await;
                    }
                    let mut permissions = Vec::new();
                    for id in ids {
                        permissions.extend(client.answer(&id, &answer).await?.permissions);
                    }
                    Ok(PermissionsView { permissions })
                };
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

/// By the id of the question, or of the task that asks.
fn is_meant(open: &PermissionView, id: &str) -> bool {
    open.id == id || open.short_id == id || open.session_id.starts_with(id)
}
