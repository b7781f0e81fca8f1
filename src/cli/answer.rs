//! `asyncagents approve` and `asyncagents deny`: list and answer the permission requests of agents.
//!
//! A request is shown as a quoted literal, as it will run: an agent chooses the text, and control characters in
//! it could make one command look like another. An answer is for exactly the requests that were open when the
//! command began, also when the daemon is restarted under it.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;

use super::connection::has_status;
use super::{connect, picker, show};
use crate::client::{Client, Error};
use crate::clock::Clock;
use crate::config::Settings;
use crate::quote;
use crate::task::SHELL;
use crate::wire::{AnswerRequest, Door, PermissionView, PermissionsView};

const LOST: &str = "the daemon went away during the call, so the request may have been answered";

pub(super) const APPROVE_HELP: &str = "\
Without an id it lists the open requests: each command as it will run, in quotes, with control
characters as escapes. On a terminal it then asks which of them to allow, and an empty line allows
none.

Example:
  asyncagents approve          # list the open requests, and pick
  asyncagents approve ab12c3   # allow everything that task ab12c3 asks for now";

pub(super) const DENY_HELP: &str = "\
Without an id it lists the open requests: each command as it will run, in quotes, with control
characters as escapes. On a terminal it then asks which of them to refuse, and an empty line
refuses none. A task whose request is refused ends.

Example:
  asyncagents deny          # list the open requests, and pick
  asyncagents deny ab12c3   # refuse everything that task ab12c3 asks for now";

#[derive(Args)]
pub(super) struct Answer {
    /// The id of a request, or of a task to answer all of its requests
    id: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Answer {
    pub(super) async fn run(self, settings: &Settings, allow: bool) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        // Only where a person sees the list and types the answer.
        let on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if self.id.is_none() && !self.json && on_terminal && std::io::stderr().is_terminal() {
            return picker::pick(&connection, allow).await;
        }
        let (permissions, word) = match &self.id {
            None => (connection.permissions().await?, "asks"),
            Some(id) => {
                let by = SHELL.to_owned();
                let key = Some(Clock::system().nonce());
                let answer = AnswerRequest { allow, door: Door::Cli, by, key };
                // Looked up once and kept for a repeat: after a restart the task may ask for something else,
                // which the user has not seen.
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
                // A 404 to a repeat is ambiguous: the daemon may have gone away after the host took the answer and
                // before that was noted under the key. The error says so.
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
            show::line("No permission requests are waiting.")?;
        } else {
            for PermissionView { id, short_id, description, what, .. } in permissions {
                let task = format!("{short_id} {}", quote::literal(&description));
                show::quoted(&format!("{id}  {task} {word}:"), &what)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The requests that an id stands for: the one of this id, or all of the task that it names.
async fn meant(client: &Client, id: &str) -> Result<Vec<String>, Error> {
    let mut open = client.permissions().await?.permissions;
    if open.iter().any(|open| open.id == id) {
        return Ok(vec![id.to_owned()]);
    }
    // An id that is unknown or ambiguous gives an empty list here; the call that follows refuses it with the
    // right text.
    let named = client.resolve(&[id.to_owned()]).await.map(|named| named.tasks).unwrap_or_default();
    open.retain(|open| named.iter().any(|task| task.session_id == open.session_id));
    Ok(open.into_iter().map(|open| open.id).collect())
}
