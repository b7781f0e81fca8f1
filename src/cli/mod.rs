//! The command line: one file per command, each a call of the client, plus printing. Results go to standard output,
//! everything else to standard error; exit codes are part of the interface.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what a command line does")]

mod agents;
mod answer;
mod auth;
mod backup;
mod batch;
mod cancel;
mod changes;
mod clear;
mod completions;
mod config;
mod connection;
mod daemon;
mod dash;
mod demo;
mod doctor;
mod files;
mod fork_preview;
mod guard;
mod hosts;
mod input;
mod list;
mod logs;
mod mcp;
mod opencode;
mod opencode_config;
mod output;
mod picker;
mod prune;
mod queue;
mod resume;
mod retry;
mod run;
mod scripted_host;
mod send;
mod serve;
mod show;
mod spinner;
mod stats;
mod status;
mod tasks;
mod trust;
mod undo;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use guard::guard;

use connection::connect;

use crate::client;
use crate::config::{Environment, Flags, Settings};
use crate::daemon::hand_over;
use crate::task::SHELL;
use crate::wire::CallerView;

/// The exit code when the outcome is not known; 1 means that it is known, and a failure.
const EXIT_UNKNOWN: u8 = 2;

/// Options that every command takes are listed apart from its own.
const GLOBAL: &str = "Global options";

/// Background agents for coding agents: they start at once, report once, and survive restarts.
#[derive(Parser)]
#[command(name = "asyncagents", version, about, after_help = EXAMPLE, propagate_version = true)]
pub struct Arguments {
    /// The storage directory [env: ASYNCAGENTS_HOME]
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL)]
    home: Option<PathBuf>,
    /// The configuration file [env: ASYNCAGENTS_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    config: Option<PathBuf>,
    /// Where agents run: embedded or opencode [env: ASYNCAGENTS_HOST]
    #[arg(long, global = true, value_name = "HOST", help_heading = GLOBAL)]
    host: Option<String>,
    /// provider/model for agents that name none [env: ASYNCAGENTS_MODEL]
    #[arg(long, global = true, value_name = "MODEL", help_heading = GLOBAL)]
    model: Option<String>,
    #[command(subcommand)]
    command: Command,
}

impl Arguments {
    /// Parses the process's arguments; exits with help or a complaint where they ask for it.
    ///
    /// Plain `asyncagents mcp` is recognised without the parser: MCP clients start it with every conversation and
    /// wait for it, and to build the parser with all verbs takes a fifth of the time until its first answer.
    pub fn read() -> Arguments {
        let mut words = std::env::args_os().skip(1);
        if words.next().is_some_and(|word| word == "mcp") && words.next().is_none() {
            let command = Command::Mcp(mcp::Mcp::serve());
            return Arguments { home: None, config: None, host: None, model: None, command };
        }
        let matches = Arguments::command()
            .try_get_matches()
            .unwrap_or_else(|error| nearest_verb(error).exit());
        Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Of the verbs that a wrong one is like, the error names the nearest alone: the parser's measure finds `hosts` in
/// `stauts`.
fn nearest_verb(mut error: clap::Error) -> clap::Error {
    let wrong = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(wrong)) => wrong.clone(),
        Some(_) | None => return error,
    };
    let similar = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(similar)) => similar,
        Some(_) | None => return error,
    };
    let distance = |verb: &String| strsim::osa_distance(&wrong, verb);
    if let Some(nearest) = similar.into_iter().min_by_key(distance) {
        let nearest = ContextValue::Strings(vec![nearest]);
        error.insert(ContextKind::SuggestedSubcommand, nearest);
    }
    error
}

const EXAMPLE: &str = "\
Example:
  id=$(asyncagents run --agent explore 'Where is the login handled?')
  asyncagents wait $id && asyncagents output $id";

#[derive(Subcommand)]
enum Command {
    /// Watch three background agents at work in the current directory; needs no key
    Demo(demo::Demo),
    /// Launch an agent in the background and print its task id
    Run(run::Run),
    /// Show tasks, newest first
    #[command(visible_aliases = ["ls", "ps"])]
    List(list::List),
    /// Show a task's result, or its progress
    Output(output::Output),
    /// Show a task's conversation: what was said, tool calls and their results
    Logs(logs::Logs),
    /// Wait until tasks have ended
    Wait(wait::Wait),
    /// Show the tasks of a batch and their figures
    Batch(batch::Batch),
    /// Show the daemon, its hosts, and what needs you
    Status(status::StatusCommand),
    /// Show counts and durations over the whole history
    Stats(stats::Stats),
    /// Ask a completed task a follow-up, in its own session
    Resume(resume::Resume),
    /// Launch failed or cancelled tasks again
    Retry(retry::Retry),
    /// Say something to a task that is at work
    Send(send::Send),
    /// Show what an agent launched with `run --fork` would inherit
    ForkPreview(fork_preview::ForkPreview),
    /// Open the dashboard in a browser
    Dash(dash::Dash),
    /// List or allow the permission requests of agents
    #[command(after_help = answer::APPROVE_HELP)]
    Approve(answer::Answer),
    /// List or refuse the permission requests of agents
    #[command(after_help = answer::DENY_HELP)]
    Deny(answer::Answer),
    /// Stop tasks
    #[command(visible_aliases = ["stop", "kill"])]
    Cancel(cancel::Cancel),
    /// Stop the shell's running tasks and take all of its tasks off the list
    Clear(clear::Clear),
    /// Pause the queue: no waiting task starts, running ones go on
    #[command(after_help = queue::PAUSE_HELP)]
    Pause(queue::Queue),
    /// Continue a paused queue
    #[command(after_help = queue::CONTINUE_HELP)]
    Continue(queue::Queue),
    /// Delete old tasks from the history
    Prune(prune::Prune),
    /// Show the agents that can be launched
    Agents(agents::Agents),
    /// Allow the agents that the files of a directory define
    Trust(trust::Trust),
    /// Revoke the trust in a directory
    Untrust(trust::Untrust),
    /// Show where agents can run; add OpenCode servers
    Hosts(hosts::Hosts),
    /// Store API keys of model providers; show where keys come from
    Auth(auth::Auth),
    /// Serve the tools to MCP clients; configure such clients
    Mcp(mcp::Mcp),
    /// Install the OpenCode plugin, or remove it
    Opencode(opencode::OpenCode),
    /// Check what is set up: daemon, task store, models, OpenCode; repair the task store
    Doctor(doctor::Doctor),
    /// Copy the task store into a file, whether or not the daemon is running
    Backup(backup::Backup),
    /// Run the daemon in the foreground
    Serve(serve::Serve),
    /// Start, stop or restart the daemon, show its status or its log, or install it
    Daemon(daemon::Daemon),
    /// Write or show the configuration
    Config(config::Configuration),
    /// Print a script that completes commands in a shell
    Completions(completions::Completions),
    /// Print the manual page, or write those of all commands
    Man(completions::Man),
    /// A host made of scripts, for tests and benchmarks
    #[command(hide = true)]
    ScriptedHost(scripted_host::ScriptedHost),
}

/// Carries out a command line and says how the process is to end.
pub fn run(arguments: Arguments) -> ExitCode {
    // The exit code 1 of these says that a task failed, so their own failures need another one; scripts rely on
    // it.
    let tells_outcome = match &arguments.command {
        Command::Wait(_) => true,
        Command::Run(run) => run.stays(),
        Command::Output(output) => output.tells_outcome(),
        _ => false,
    };
    carry_out(arguments).unwrap_or_else(|error| {
        if error.is::<show::ReaderGone>() {
            return ExitCode::SUCCESS;
        }
        complain("error", &error);
        let version = |error: &client::Error| error.is_of_another_version();
        match tells_outcome || error.downcast_ref().is_some_and(version) {
            true => ExitCode::from(EXIT_UNKNOWN),
            false => ExitCode::FAILURE,
        }
    })
}

fn carry_out(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { home, config, host, model, command } = arguments;
    let environment = Environment::read();
    show::set_terminal(environment.columns(), environment.moves_cursor());
    let flags = Flags { home, config, host, model };
    // These must work when the configuration is broken, so they run before it is resolved.
    let command = match command {
        Command::Config(command) => return command.run(&environment, &flags),
        Command::Completions(command) => return command.run(Arguments::command()),
        Command::Man(command) => return command.run(Arguments::command()),
        Command::ScriptedHost(command) => return block_on(|| command.run()),
        Command::Demo(command) => return block_on(|| command.run(&environment)),
        other => other,
    };
    let settings = Settings::resolve(&environment, &flags)?;
    let editor = environment.editor();
    // These need no async runtime, or start one of their own (`serve`).
    let command = match command {
        Command::Serve(command) => return command.run(&settings, environment, flags),
        Command::Agents(command) => return command.run(&settings),
        Command::Trust(command) => return command.run(&settings),
        Command::Untrust(command) => return command.run(&settings),
        Command::Opencode(command) => return command.run(&settings),
        Command::Backup(command) => return command.run(&settings),
        Command::Mcp(command) => return command.run(settings),
        other => other,
    };
    let settings = &settings;
    block_on(|| async move {
        match command {
            Command::Run(command) => command.run(settings, editor).await,
            Command::List(command) => command.run(settings).await,
            Command::Output(command) => command.run(settings).await,
            Command::Logs(command) => command.run(settings).await,
            Command::Wait(command) => command.run(settings).await,
            Command::Batch(command) => command.run(settings).await,
            Command::Status(command) => command.run(settings).await,
            Command::Stats(command) => command.run(settings).await,
            Command::Resume(command) => command.run(settings).await,
            Command::Retry(command) => command.run(settings).await,
            Command::Send(command) => command.run(settings).await,
            Command::ForkPreview(command) => command.run(settings).await,
            Command::Dash(command) => command.run(settings).await,
            Command::Approve(command) => command.run(settings, true).await,
            Command::Deny(command) => command.run(settings, false).await,
            Command::Cancel(command) => command.run(settings).await,
            Command::Clear(command) => command.run(settings).await,
            Command::Pause(command) => command.pause(settings).await,
            Command::Continue(command) => command.go_on(settings).await,
            Command::Prune(command) => command.run(settings).await,
            Command::Hosts(command) => command.run(settings).await,
            Command::Auth(command) => command.run(settings).await,
            Command::Doctor(command) => command.run(settings).await,
            Command::Daemon(command) => command.run(settings).await,
            Command::Agents(_)
            | Command::Demo(_)
            | Command::Mcp(_)
            | Command::Trust(_)
            | Command::Untrust(_)
            | Command::Opencode(_)
            | Command::Backup(_)
            | Command::Serve(_)
            | Command::Config(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::ScriptedHost(_) => {
                unreachable!("carried out above")
            }
        }
    })
}

/// Prints on standard error what failed, in words of ours, and why.
fn complain(what: &str, error: &anyhow::Error) {
    // An error never repeats the text of its source, so the whole chain is printed.
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    // A host may have written part of it. Further lines are indented, so that none of them looks like another
    // message of ours.
    show::note(&format!("{what}: {}", chain.join(": ").replace('\n', "\n  ")));
}

/// Runs a verb in a runtime of its own. Never inlined, and called with a closure: futures of verbs are large, and a
/// caller with all of them in its frame touches tens of pages of stack, which takes time at the start of every MCP
/// conversation.
#[inline(never)]
fn block_on<T, F>(verb: impl FnOnce() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(verb())
}

/// The caller of this command: the shell, unless ASYNCAGENTS_PARENT names another parent.
fn caller(settings: &Settings) -> CallerView {
    CallerView {
        session_id: settings.parent.clone().unwrap_or_else(|| SHELL.to_owned()),
        development: settings.development,
        ..CallerView::default()
    }
}

/// The caller of a command that launches: its agents work in the current directory, with the models and keys of
/// this environment. The daemon may have been started from another one.
fn launcher(settings: &Settings) -> anyhow::Result<CallerView> {
    Ok(CallerView { directory: here()?, hand_over: hand_over(settings), ..caller(settings) })
}

/// The current directory. It is sent as JSON, so its name has to be UTF-8.
fn here() -> anyhow::Result<String> {
    let directory = std::env::current_dir()
        .context("the current directory does not exist any more; change to one that does")?;
    let shown = directory.display().to_string();
    let name = directory.into_os_string().into_string();
    name.map_err(|_| anyhow::anyhow!("the name of the current directory `{shown}` is not UTF-8"))
}

fn seconds(flag: &str, seconds: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| anyhow::anyhow!("{flag} must be a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verbs without `--json`, and why.
    const WITHOUT_JSON: [(&str, &str); 8] = [
        ("completions", "prints a script for a shell"),
        ("daemon logs", "prints the lines of a file as they are"),
        ("dash", "opens a browser, or prints an address"),
        ("demo", "is made to be watched"),
        ("man", "prints a page for `man`"),
        ("mcp", "speaks MCP on standard output"),
        ("scripted-host", "is a server for tests"),
        ("serve", "is the daemon, which logs"),
    ];

    /// The verbs that do something by themselves and do not take `--json`.
    fn without_json(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        let takes = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
        let is_verb = !command.has_subcommands() || !command.is_subcommand_required_set();
        if is_verb && !takes {
            found.push(words.to_owned());
        }
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            without_json(verb, format!("{words} {}", verb.get_name()).trim(), found);
        }
    }

    #[test]
    fn every_verb_that_prints_a_result_takes_json() {
        let mut command = Arguments::command();
        // Hands options of a verb that are for its sub-verbs, too, on to them.
        command.build();
        let mut found = Vec::new();
        without_json(&command, "", &mut found);
        found.sort();
        assert_eq!(found, WITHOUT_JSON.map(|(verb, _)| verb));
    }

    /// The width of help without a terminal. A line that is broken by hand and longer is broken once more, which
    /// leaves a single word on the next one.
    const HELP_WIDTH: usize = 100;

    fn long_lines(command: &clap::Command, found: &mut Vec<String>) {
        let texts = [command.get_after_help(), command.get_after_long_help()];
        for text in texts.into_iter().flatten().map(ToString::to_string) {
            let long = text.lines().filter(|line| line.chars().count() > HELP_WIDTH);
            found.extend(long.map(|line| format!("{}: {line}", command.get_name())));
        }
        command.get_subcommands().for_each(|verb| long_lines(verb, found));
    }

    #[test]
    fn no_line_of_help_that_is_broken_by_hand_is_too_long() {
        let mut found = Vec::new();
        long_lines(&Arguments::command(), &mut found);
        assert_eq!(found, [""; 0]);
    }
}
