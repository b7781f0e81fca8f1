//! `asyncagents run`: launches an agent in the background, prints the task's short id, and returns at once. Only the
//! id goes to standard output, for `id=$(asyncagents run …)`.

use std::io::Read;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::connection::{Connection, has_status};
use super::{agents, connect, launcher, show};
use crate::config::Settings;
use crate::task::Budget;
use crate::task::launch::{Arguments, plan};
use crate::text::clip;
use crate::wire::{LaunchRequest, TaskView};

#[derive(Args)]
#[command(after_help = "\
With --model the task runs on that model, whatever the agent's file names.

Example:
  asyncagents run --agent explore 'Where is the login handled?'")]
pub(super) struct Run {
    /// What the agent is to do; `-` reads it from standard input
    prompt: String,
    /// Which agent does it
    #[arg(long, default_value = "general")]
    agent: String,
    /// A few words for lists and notices [default: the beginning of the prompt]
    #[arg(long)]
    description: Option<String>,
    /// Give the agent the conversation of this session, or of this task, as its context
    #[arg(long, value_name = "SESSION")]
    fork: Option<String>,
    /// The batch it belongs to [default: one of its own]
    #[arg(long)]
    batch: Option<String>,
    /// Stop it after this many seconds
    #[arg(long, value_name = "SECONDS")]
    budget_seconds: Option<u64>,
    /// Stop it after this many tool calls
    #[arg(long, value_name = "CALLS")]
    budget_tool_calls: Option<u64>,
    /// Stop it after this many tokens
    #[arg(long, value_name = "TOKENS")]
    budget_tokens: Option<u64>,
    /// Stop it when it has cost this much
    #[arg(long, value_name = "COST")]
    budget_cost: Option<f64>,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let json = self.json;
        // Validated before the connection: a call that is wrong must not start a daemon.
        let request = self.request(settings)?;
        // `--model` is for this task. A daemon that is started on the way inherits our flags, and must not take
        // it as the default of all tasks.
        let without_model = Settings { model_flag: None, ..settings.clone() };
        let connection = connect(&without_model).await?;
        let task = match launch(&connection, &request).await {
            // 403: the agent comes from an untrusted workspace. Asked only now, because the daemon knows which
            // host the launch goes to; OpenCode decides about its own agents.
            Err(error) if !json && has_status(&error, 403) => {
                let agent = request.arguments.agent.as_deref().unwrap_or_default();
                match agents::show_and_ask(settings, agent)? {
                    true => launch(&connection, &request).await?,
                    false => return Err(error),
                }
            }
            other => other?,
        };
        if json {
            show::json(&task)?;
        } else {
            show::line(&task.short_id)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn request(self, settings: &Settings) -> anyhow::Result<LaunchRequest> {
        let prompt = match self.prompt.as_str() {
            "-" => {
                let mut text = String::new();
                let read = std::io::stdin().read_to_string(&mut text);
                read.context("cannot read the prompt from standard input")?;
                text
            }
            _ => self.prompt,
        };
        let budget = Budget {
            wall_seconds: self.budget_seconds,
            tokens: self.budget_tokens,
            cost: self.budget_cost,
            tool_calls: self.budget_tool_calls,
        };
        let arguments = Arguments {
            description: Some(self.description.unwrap_or_else(|| beginning(&prompt))),
            prompt: Some(prompt),
            agent: Some(self.agent),
            fork: self.fork.is_some(),
            batch: self.batch,
            // Only what was asked for in this call: a default must not overrule the agent's file.
            model: settings.model_flag.clone(),
            budget: Some(budget).filter(|budget| !budget.is_empty()),
            host: settings.named_host.clone(),
            ..Arguments::default()
        };
        // Validated here as well as in the daemon: a NaN budget does not survive JSON, and a prompt that is too
        // long does not fit into a request.
        plan(arguments.clone())?;
        let key = Some(crate::clock::Clock::system().nonce());
        Ok(LaunchRequest { caller: launcher(settings)?, arguments, fork_session: self.fork, key })
    }
}

/// The request carries an idempotency key, so a repeat does not launch twice.
async fn launch(connection: &Connection<'_>, request: &LaunchRequest) -> anyhow::Result<TaskView> {
    connection.call(async |client| client.launch(request).await).await
}

fn beginning(prompt: &str) -> String {
    const MOST: usize = 60;
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    clip(&line, MOST)
}
