//! `asyncagents retry`: launches failed or cancelled tasks again with the same order, and returns at once. Each request
//! carries an idempotency key, so that a repeat does not launch twice.

use std::process::ExitCode;

use clap::Args;

use super::{caller, complain, connect, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::wire::{CallerView, RetryRequest};

#[derive(Args)]
#[command(after_help = "\
A retry is a new task with the prompt, agent, model, budget, schema, directory and inherited
context of the first one, in the same batch and for the same parent. The JSON links both: `retryOf`
on the new task, `retriedBy` on the old one.

Example:
  asyncagents retry ab12c3
  asyncagents wait $(asyncagents retry ab12c3 x7y8z9)")]
pub(super) struct Retry {
    /// The failed or cancelled tasks: ids, short ids, or beginnings of ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print the new tasks as a JSON array
    #[arg(long)]
    json: bool,
}

impl Retry {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        // All of them first: a wrong id must not leave the ones before it launched.
        let ids = connection.resolve(&self.ids).await?;
        let caller = CallerView { hand_over: hand_over(settings), ..caller(settings) };
        let mut tasks = Vec::with_capacity(ids.len());
        let mut exit = ExitCode::SUCCESS;
        for (id, typed) in ids.iter().zip(&self.ids) {
            let key = Some(Clock::system().nonce());
            let request = RetryRequest { caller: caller.clone(), key };
            match connection.call(async |client| client.retry(id, &request).await).await {
                Ok(task) => tasks.push(task),
                // The others are retried all the same, and what was launched is printed in any case.
                Err(error) => {
                    complain(&format!("error: `{typed}` was not retried"), &error);
                    exit = ExitCode::FAILURE;
                }
            }
        }
        if self.json {
            show::json(&tasks)?;
        } else {
            tasks.iter().try_for_each(|task| show::line(&task.short_id))?;
        }
        Ok(exit)
    }
}
