//! `asyncagents run`: launches an agent in the background, prints the task's short id, and returns at once. Only the
//! id goes to standard output, for `id=$(asyncagents run …)`; a person on a terminal is told on standard error how to
//! go on. With `--wait` and `--follow` it stays, and standard output is the result or the conversation.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::connection::{Connection, has_status};
use super::show::{self, Line};
use super::wait::{self, WaitState};
use super::{agents, connect, input, launcher, logs, tasks};
use crate::config::Settings;
use crate::task::Budget;
use crate::task::launch::{Arguments, plan};
use crate::text::clip;
use crate::wire::{LaunchRequest, TaskView};

const MISSING: &str = "there is no prompt; give it as an argument, with `--file FILE`, or with `-` on \
                       standard input (on a terminal, VISUAL or EDITOR names an editor for it)";

#[derive(Args)]
#[command(after_help = "\
With --model the task runs on that model, whatever the agent's file names. With --schema an answer
that does not fit is asked for again; the task fails when three do not. Without a prompt the
editor in VISUAL or EDITOR is opened, on a terminal. With --wait and --follow it exits as
`asyncagents wait`; when the task waits for a permission, --follow stays on a terminal, and shows
the request and exits 2 elsewhere.

Example:
  asyncagents run --agent explore 'Where is the login handled?'
  git diff | asyncagents run --wait --agent oracle -
  asyncagents run --follow --file task.md")]
pub(super) struct Run {
    /// What the agent is to do; `-` reads it from standard input
    prompt: Option<String>,
    /// Read the prompt from this file
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Wait until the task has ended and print its result
    #[arg(long, conflicts_with = "follow")]
    wait: bool,
    /// Print the conversation while the agent works, until the task has ended
    #[arg(long, conflicts_with = "json")]
    follow: bool,
    /// The agent to run
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
    /// A file with a JSON Schema: the result is JSON that fits it
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Print the task as JSON
    #[arg(long)]
    json: bool,
}

impl Run {
    /// Whether its exit code is that of `wait`.
    pub(super) fn stays(&self) -> bool {
        self.wait || self.follow
    }

    pub(super) async fn run(
        self,
        settings: &Settings,
        editor: Option<String>,
    ) -> anyhow::Result<ExitCode> {
        let Run { json, wait, follow, .. } = self;
        // Validated before the connection: a call that is wrong must not start a daemon.
        let request = self.request(settings, editor.as_deref())?;
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
        if follow {
            show::note(&task.short_id);
            let task = logs::follow(&connection, &task.session_id).await?;
            return Ok(ExitCode::from(match tasks::is_over(&task) {
                true => wait::verdict(&[&task]),
                false => wait::BLOCKED,
            }));
        }
        if wait {
            return wait_and_print(&connection, settings, &task, json).await;
        }
        if json {
            show::json(&task)?;
        } else {
            show::line(&task.short_id)?;
            if std::io::stderr().is_terminal() && std::io::stdout().is_terminal() {
                suggest(&task.short_id);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn prompt(&self, editor: Option<&str>) -> anyhow::Result<String> {
        match (&self.prompt, &self.file, editor) {
            (Some(prompt), _, _) => input::argument("prompt", prompt.clone()),
            (None, Some(file), _) => input::file("prompt", file),
            (None, None, Some(editor)) if input::has_person() => input::editor(editor),
            (None, None, _) => anyhow::bail!("{MISSING}"),
        }
    }

    fn request(self, settings: &Settings, editor: Option<&str>) -> anyhow::Result<LaunchRequest> {
        let prompt = self.prompt(editor)?;
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
            schema: self.schema.as_deref().map(read_schema).transpose()?,
            ..Arguments::default()
        };
        // Validated here as well as in the daemon: a NaN budget does not survive JSON, and a prompt that is too
        // long does not fit into a request.
        plan(arguments.clone())?;
        let key = Some(crate::clock::Clock::system().nonce());
        Ok(LaunchRequest { caller: launcher(settings)?, arguments, fork_session: self.fork, key })
    }
}

/// Waits for a task that was just launched, and prints its result. Returns the exit code of `wait`.
async fn wait_and_print(
    connection: &Connection<'_>,
    settings: &Settings,
    task: &TaskView,
    json: bool,
) -> anyhow::Result<ExitCode> {
    show::note(&task.short_id);
    let ids = vec![task.session_id.clone()];
    let waited = WaitState::for_all(ids).watch(connection, settings).await?;
    let whole = connection.call(async |client| client.task(&task.session_id).await).await?;
    match (json, &whole.result) {
        (true, _) => show::json(&whole)?,
        (false, Some(result)) => {
            let title = format!("written by the agent of {}", whole.short_id);
            show::framed_markdown(&title, result)?;
        }
        (false, None) => {}
    }
    Ok(ExitCode::from(waited.code))
}

/// The next commands, for a person.
fn suggest(id: &str) {
    for (verb, what) in
        [("wait", "until it has ended"), ("output", "its result"), ("logs -f", "watch it work")]
    {
        let command = format!("  asyncagents {:<14}", format!("{verb} {id}"));
        show::note_line(&Line::plain(&command).with(show::DIM, &format!("  {what}")));
    }
}

/// The request carries an idempotency key, so a repeat does not launch twice.
async fn launch(connection: &Connection<'_>, request: &LaunchRequest) -> anyhow::Result<TaskView> {
    connection.call(async |client| client.launch(request).await).await
}

fn read_schema(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read the schema `{}`", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("`{}` is not JSON", file.display()))
}

fn beginning(prompt: &str) -> String {
    const MOST: usize = 60;
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    clip(&line, MOST)
}
