//! `asyncagents approve` and `asyncagents deny`: what agents ask for, and the answers.

use std::cell::RefCell;
use std::process::ExitCode;

use clap::Args;

use super::connection::has_status;
use super::{connect, show};
use crate::client::{Client, Error};
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
                        asked.replace(meant(client, id).await?);
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

/// The questions that are meant: the one of this id, or all of the one task that it names.
async fn meant(client: &Client, id: &str) -> Result<Vec<String>, Error> {
    let mut open = client.permissions().await?.permissions;
    if open.iter().any(|open| open.id == id) {
        return Ok(vec![id.to_owned()]);
    }
    // A name that fits none, or several, is refused by the call itself.
    let named = client.resolve(&[id.to_owned()]).await.map(|named| named.tasks).unwrap_or_default();
    open.retain(|open| named.iter().any(|task| task.session_id == open.session_id));
    Ok(open.into_iter().map(|open| open.id).collect())
}
