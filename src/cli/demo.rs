//! `asyncagents demo`: three background agents in the current directory, with progress bars, on the offline
//! explorer: no key, no server, no network. Its parent is a mailbox of its own, so that the notices can be shown
//! as they come.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::connection::Connection;
use super::{connect, launcher, show};
use crate::clock::Clock;
use crate::config::Settings;
use crate::quote;
use crate::task::Status;
use crate::task::launch::Arguments;
use crate::wire::{CallerRequest, CallerView, LaunchRequest, TaskView};

/// How often the tasks are read and the screen is drawn.
const FRAME: Duration = Duration::from_millis(80);

/// The demo gives up after this time: the offline explorer takes seconds.
const LONGEST: Duration = Duration::from_secs(120);

/// Agent, description, prompt.
const TASKS: [(&str, &str, &str); 3] = [
    ("explore", "find where it starts", "Where is main, the entry, and what does it start?"),
    ("explore", "find how errors are treated", "Where is an error, exception or panic raised?"),
    (
        "librarian",
        "read what the docs promise",
        "What does the documentation say about install, usage, license and dependencies?",
    ),
];

#[derive(Args)]
#[command(after_help = "\
It needs no key, no server and no network: its agents use the offline explorer, a rule-based search
instead of a model. For real models set ASYNCAGENTS_MODEL and use `asyncagents run`.")]
pub(super) struct Demo {}

impl Demo {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        // A parent of its own for each demo: its mailbox has the notices of these three tasks alone.
        let parent = CallerView {
            session_id: format!("demo-{}", &Clock::system().nonce()[..8]),
            ..launcher(settings)?
        };
        show::line(&format!("Three background agents look around in {}\n", parent.directory))?;
        let mut ids = Vec::new();
        for (agent, description, prompt) in TASKS {
            let request = request(&parent, agent, description, prompt);
            let task = connection.call(async |client| client.launch(&request).await).await?;
            ids.push(task.session_id);
        }
        let tasks = watch(&connection, &parent, &ids).await?;
        print_results(&tasks)?;
        let failed = tasks.iter().any(|task| task.status != Status::Completed.name());
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn request(parent: &CallerView, agent: &str, description: &str, prompt: &str) -> LaunchRequest {
    LaunchRequest {
        caller: parent.clone(),
        arguments: Arguments {
            description: Some(description.into()),
            prompt: Some(prompt.into()),
            agent: Some(agent.into()),
            // Pinned, whatever the configuration and the environment say: a demo must not cost anything.
            host: Some("embedded".into()),
            model: Some("offline/explorer".into()),
            ..Arguments::default()
        },
        key: Some(Clock::system().nonce()),
        ..LaunchRequest::default()
    }
}

/// Draws the progress until all tasks have ended, and prints notices as they arrive.
async fn watch(
    connection: &Connection<'_>,
    parent: &CallerView,
    ids: &[String],
) -> anyhow::Result<Vec<TaskView>> {
    let screen = MultiProgress::new();
    let line = ProgressStyle::with_template("  {spinner} {prefix:<28} {msg} [{elapsed}]")?;
    let all = ProgressStyle::with_template("  [{bar:30}] {pos}/{len} ended")?;
    let bars: Vec<ProgressBar> = TASKS
        .iter()
        .map(|(_, description, _)| {
            let bar = screen.add(ProgressBar::new_spinner().with_style(line.clone()));
            bar.with_prefix(*description)
        })
        .collect();
    let total = screen.add(ProgressBar::new(ids.len() as u64).with_style(all));
    let started = Clock::system();
    // Polls, unlike `wait`: the bars are drawn again with every frame anyway.
    loop {
        let mut tasks = Vec::with_capacity(ids.len());
        for id in ids {
            tasks.push(connection.call(async |client| client.task(id).await).await?);
        }
        for (bar, task) in bars.iter().zip(&tasks) {
            bar.set_message(doing(task));
            match is_over(task) {
                true => bar.finish(),
                false => bar.tick(),
            }
        }
        total.set_position(tasks.iter().filter(|task| is_over(task)).count() as u64);
        let request = CallerRequest { caller: parent.clone() };
        let mail = connection.call(async |client| client.read_mailbox(&request).await).await?;
        for notice in mail.notices {
            // The bars are hidden while a line is printed; otherwise they would be drawn into it.
            screen.suspend(|| show::line(&notice.visible))?;
        }
        if tasks.iter().all(is_over) {
            total.finish_and_clear();
            return Ok(tasks);
        }
        if started.uptime() > LONGEST {
            anyhow::bail!(
                "the demo's agents have not finished after {} seconds; `asyncagents list` shows them",
                LONGEST.as_secs()
            );
        }
        tokio::time::sleep(FRAME).await;
    }
}

fn doing(task: &TaskView) -> String {
    let progress = &task.progress;
    let last = progress.last_tools.last().map(|tool| format!(", last {}", quote::line(tool)));
    let last = last.unwrap_or_default();
    let calls = show::counted(progress.tool_calls.into(), "tool call");
    match is_over(task) {
        true => format!("{}: {calls}", task.status),
        false => format!("{}: {calls}{last}", progress.phase.name()),
    }
}

fn is_over(task: &TaskView) -> bool {
    Status::parse(&task.status).is_some_and(|status| !status.is_live())
}

fn print_results(tasks: &[TaskView]) -> anyhow::Result<()> {
    for task in tasks {
        show::line(&format!("\n── {} ({}, {})", task.description, task.agent, task.short_id))?;
        let text = task.result.as_ref().or(task.error.as_ref());
        show::framed("written by the agent", text.map_or("(no output)", String::as_str))?;
    }
    let first = tasks.first().map_or("ID", |task| task.short_id.as_str());
    show::line(&format!(
        "\nWhere to look next:\n  \
         asyncagents list                       everything that was launched\n  \
         asyncagents output {first} --json        a task with all there is to know\n  \
         asyncagents resume {first} 'And tests?'  a follow-up in the same session\n  \
         asyncagents run --agent explore '…'    one of your own"
    ))
}
