//! `asyncagents auth`: stores API keys of model providers in a file that only its owner can read, or commands
//! that print them.
//!
//! A key is never an argument, where `ps` and the shell's history would show it, and never printed. The file is
//! written here, without the daemon, which reads it at every use.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::json;
use tokio::sync::oneshot;

use super::{connect, show};
use crate::agent::model::provider::Provider;
use crate::auth::{Auth as Keys, Credential};
use crate::config::Settings;
use crate::daemon::{hand_over, make_private};
use crate::wire::{ProviderView, ProvidersRequest};

/// Bound of what is read from standard input: longer than any key, shorter than a file piped in by mistake.
const MOST_INPUT: u64 = 64 * 1024;

#[derive(Args)]
#[command(after_help = "\
The key is asked for on a terminal, without being shown, and read from standard input
otherwise. It is never an argument, which others could read. A running daemon uses it from the
next launch on.

Example:
  asyncagents auth set openai
  pass show work | asyncagents auth set work
  asyncagents auth set work --command 'pass show work'
  asyncagents auth list")]
pub(super) struct Auth {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Store the key of a provider, or a command that prints it
    #[command(after_help = "\
Example:
  asyncagents auth set openai
  asyncagents auth set work --command 'pass show work'")]
    Set {
        /// Such as openai, or NAME of a `[providers.NAME]` in the configuration
        provider: String,
        /// Run this with sh whenever the key is needed, instead of storing the key
        #[arg(long, value_name = "CMD")]
        command: Option<String>,
        /// Print what was stored where as JSON, never the key
        #[arg(long)]
        json: bool,
    },
    /// Show where the keys of providers come from, never the keys
    #[command(after_help = "\
Example:
  asyncagents auth list")]
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the stored key of a provider
    #[command(after_help = "\
Example:
  asyncagents auth remove openai")]
    Remove {
        /// The provider whose key is removed
        provider: String,
        /// Print what was removed from where as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Auth {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Set { provider, command, json } => {
                set(settings, &provider, command, json).await?;
            }
            Verb::List { json } => list(settings, json).await?,
            Verb::Remove { provider, json } => remove(settings, &provider, json)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn set(
    settings: &Settings,
    provider: &str,
    command: Option<String>,
    json: bool,
) -> anyhow::Result<()> {
    let mut known: BTreeSet<&str> = Provider::known_names().collect();
    known.extend(settings.config.providers.keys().map(String::as_str));
    if !known.contains(provider) {
        let known: Vec<&str> = known.into_iter().collect();
        anyhow::bail!(
            "no provider `{provider}`; there are {}; a section `[providers.{provider}]` with a \
             `base_url` in `{}` adds it",
            known.join(", "),
            settings.config_file.display()
        );
    }
    let (what, stored) = match command {
        Some(_) => ("command for the key", "command"),
        None => ("key", "key"),
    };
    let kept = match command {
        Some(command) if command.trim().is_empty() => {
            anyhow::bail!("the command is empty; give one that prints the key")
        }
        Some(command) => Credential::Command(command),
        None if std::io::stdin().is_terminal() => Credential::key(&ask(provider).await?)?,
        None => {
            let mut text = String::new();
            let read = std::io::stdin().take(MOST_INPUT).read_to_string(&mut text);
            read.context("cannot read the key from standard input")?;
            Credential::key(&text)?
        }
    };
    // The storage directory may not exist yet; it is made private before a key is put into it.
    make_private(&settings.home)?;
    let keys = Keys::in_home(&settings.home);
    keys.set(provider, kept)?;
    let file = keys.file().display().to_string();
    match json {
        true => show::json(&json!({ "provider": provider, "stored": stored, "file": file }))?,
        false => show::line(&format!(
            "stored the {what} of `{provider}` in {file}; launches use it from now on"
        ))?,
    }
    if comes_first(settings, provider) {
        show::note(&format!(
            "note: the environment of this shell has a key for `{provider}`, which takes precedence \
             for what is launched here"
        ));
    }
    Ok(())
}

/// Whether launches from this shell use a key of its environment instead of the stored one. Key and address have
/// to come from one place, so the environment's key counts only with its own address, or when the configuration
/// names none.
fn comes_first(settings: &Settings, provider: &str) -> bool {
    let Some(here) = settings.providers.models.get(provider) else { return false };
    let section = settings.config.providers.get(provider);
    let is_whole = section.is_some_and(|section| !section.base_url.trim().is_empty());
    here.key.is_some() && (here.base_url.is_some() || !is_whole)
}

fn remove(settings: &Settings, provider: &str, json: bool) -> anyhow::Result<()> {
    let keys = Keys::in_home(&settings.home);
    make_private(&settings.home)?;
    anyhow::ensure!(
        keys.remove(provider)?,
        "no key is stored for `{provider}`; `asyncagents auth list` shows where keys come from"
    );
    let file = keys.file().display().to_string();
    match json {
        true => show::json(&json!({ "provider": provider, "removed": true, "file": file })),
        false => show::line(&format!("removed the key of `{provider}`")),
    }
}

async fn list(settings: &Settings, json: bool) -> anyhow::Result<()> {
    let connection = connect(settings).await?;
    let request =
        ProvidersRequest { hand_over: hand_over(settings), ..ProvidersRequest::default() };
    let view = connection.call(async |client| client.providers(&request).await).await?;
    let mut providers = view.providers;
    // A key for a provider whose section was removed from the configuration: the daemon does not list it, but
    // the user should know that it is still on disk.
    for name in Keys::in_home(&settings.home).names()? {
        if !providers.iter().any(|provider| provider.name == name) {
            providers.push(ProviderView {
                problem: Some(format!("there is no `[providers.{name}]` in the configuration")),
                key: Some("file (asyncagents auth)".to_owned()),
                name,
                ..ProviderView::default()
            });
        }
    }
    if json {
        return show::json(&providers);
    }
    if providers.is_empty() {
        return show::line("no keys; `asyncagents auth set PROVIDER` stores one");
    }
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
    let row = |provider: &ProviderView| {
        let address = match &provider.problem {
            Some(problem) => problem.clone(),
            None => or_none(&provider.address),
        };
        vec![provider.name.clone(), or_none(&provider.key), address]
    };
    show::columns(&["PROVIDER", "KEY", "ADDRESS"], &providers.iter().map(row).collect::<Vec<_>>())
}

/// Reads a line from the terminal without echo. Ctrl-C is caught, so that the echo is switched on again before
/// the program ends: otherwise the user's shell would stay mute.
async fn ask(provider: &str) -> anyhow::Result<String> {
    let no_terminal = "cannot stop the terminal from showing the key; pipe it in instead";
    let before = tcgetattr(std::io::stdin()).context(no_terminal)?;
    let mut silent = before.clone();
    // The newline alone is echoed, so that what follows begins on a line of its own.
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    eprint!("Key of {provider} (it is not shown): ");
    std::io::stderr().flush()?;
    // `Flush` discards what was typed before the prompt, which was echoed and is no key.
    tcsetattr(std::io::stdin(), OptionalActions::Flush, &silent).context(no_terminal)?;
    let (sender, receiver) = oneshot::channel();
    // A detached thread: a blocking read cannot be interrupted, and it ends with the process.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let answer = tokio::select! {
        line = receiver => Some(line),
        _ = tokio::signal::ctrl_c() => None,
    };
    let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
    match answer {
        Some(line) => Ok(line.context("cannot read the key")?.context("cannot read the key")?),
        None => anyhow::bail!("interrupted; nothing was changed"),
    }
}
