//! `asyncagents resume`: sends a follow-up prompt to a completed task, in its own session, and returns at once. The
//! request carries an idempotency key, so that a repeat does not send the prompt twice.

use std::process::ExitCode;

use clap::Args;

use super::{connect, input, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::task::launch::prompt_text;
use crate::wire::ResumeRequest;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents resume ab12c3 'And where is it tested?'
  git diff | asyncagents resume ab12c3 -")]
pub(super) struct Resume {
    /// The task: its id, its short id, or the beginning of its id
    id: String,
    /// The follow-up; `-` reads it from standard input
    prompt: String,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        // Validated before the connection: a call that is wrong must not start a daemon.
        let prompt = prompt_text(Some(input::argument("prompt", self.prompt)?))?;
        let connection = connect(settings).await?;
        let id = connection.resolve(&[self.id]).await?.remove(0);
        let key = Some(Clock::system().nonce());
        let request = ResumeRequest { prompt, hand_over: hand_over(settings), key };
        let task = connection.call(async |client| client.resume(&id, &request).await).await?;
        if self.json {
            show::json(&task)?;
        } else {
            show::line(&task.short_id)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
