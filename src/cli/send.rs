//! `asyncagents send`: says something to a task that is at work, and returns once that is on disk. The request carries
//! an idempotency key, so that a repeat does not say it twice.

use std::process::ExitCode;

use clap::Args;

use super::{connect, input, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::task::launch::message_text;
use crate::wire::{DeliveryView, SendRequest};

#[derive(Args)]
#[command(after_help = "\
A task at work sees the message before its next step, a queued one with its first. To a completed
task it is a follow-up, as with `asyncagents resume`.

Example:
  asyncagents send ab12c3 'Leave the tests alone, only look at src/'
  git diff | asyncagents send ab12c3 -")]
pub(super) struct Send {
    /// The task: its id, its short id, or the beginning of its id
    id: String,
    /// What to say; `-` reads it from standard input
    #[arg(default_value = "-", hide_default_value = true)]
    message: String,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Send {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let message = input::argument("message", self.message)?;
        // Validated before the connection: a call that is wrong must not start a daemon.
        let message = message_text(message)?;
        let connection = connect(settings).await?;
        let id = connection.resolve(&[self.id]).await?.remove(0);
        let key = Some(Clock::system().nonce());
        let request = SendRequest { message, hand_over: hand_over(settings), key };
        let sent = connection.call(async |client| client.send_message(&id, &request).await).await?;
        if self.json {
            show::json(&sent)?;
            return Ok(ExitCode::SUCCESS);
        }
        match sent.delivery {
            DeliveryView::Steered => {}
            DeliveryView::Queued => show::note("queued; the agent sees it with its first step"),
            DeliveryView::Resumed => show::note("it had completed; resumed with this message"),
        }
        show::line(&sent.task.short_id)?;
        Ok(ExitCode::SUCCESS)
    }
}
