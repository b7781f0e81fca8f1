//! `asyncagents mcp`: serves MCP on stdio, and registers that server with MCP clients.
//!
//! `install` and `uninstall` edit other programs' configurations: our entry only, the rest byte for byte. What was
//! added is recorded in an undo log first, so that a crash in between never leaves an edit that cannot be undone.

mod clients;
mod codex;
mod json;
mod program;
mod variables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use self::clients::Client;
use self::program::Program;
use super::files::{read, write};
use super::show;
use super::undo::{UndoLog, restore};
use crate::config::Settings;
use crate::mcp;

/// The name of our server in clients' configurations.
const NAME: &str = "asyncagents";

#[derive(Args)]
#[command(after_help = "\
Without a verb it serves on stdin and stdout, which is what clients start it for.

Example:
  asyncagents mcp install claude --write
  claude mcp add --scope user asyncagents -- asyncagents mcp   # Claude Code, for every project")]
pub(super) struct Mcp {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the configuration a client needs and the file it goes into, or write it
    #[command(after_help = "\
Example:
  asyncagents mcp install claude           # prints what to add to .mcp.json
  asyncagents mcp install claude --write   # adds it, for the current directory")]
    Install(ClientArguments),
    /// Say whether a client's configuration has our server, or remove it
    #[command(after_help = "\
Example:
  asyncagents mcp uninstall codex --write")]
    Uninstall(ClientArguments),
}

#[derive(Args)]
struct ClientArguments {
    client: Client,
    /// Change the client's configuration; everything else in it stays as it is
    #[arg(long)]
    write: bool,
}

impl Mcp {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            None => mcp::serve(settings).await?,
            Some(Verb::Install(arguments)) => arguments.install(settings)?,
            Some(Verb::Uninstall(arguments)) => arguments.uninstall(settings)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ClientArguments {
    fn install(&self, settings: &Settings) -> anyhow::Result<()> {
        let file = self.client.file(settings)?;
        let mut log = UndoLog::read(undo_file(settings))?;
        let program = Program::this(settings)?;
        let before = read(&file)?;
        let given = before.as_deref().unwrap_or_default();
        let left_alone = || format!("`{}` was left as it is", file.display());
        let after = self.client.add_server(given, program.name()).with_context(left_alone)?;
        if before.as_deref() == Some(after.as_str()) {
            return show::line(&format!("{} already has the server", file.display()));
        }
        if self.write {
            // The original, if an entry of ours was in the file before the log knew of it.
            let without = self.client.remove_server(given).with_context(left_alone)?;
            log.add(&file, before, without, &after);
            // The log before the file: a log of an edit that was not made is harmless, since its checksum does
            // not match.
            log.write()?;
            write(&file, &after)?;
            show::line(&format!("added the server to {}", file.display()))?;
        } else {
            show::note(&format!("to be added to {} (--write adds it):", file.display()));
            show::line(self.client.add_server("", program.name())?.trim_end())?;
        }
        let words = program.warning().into_iter().chain(self.client.notes().iter().copied());
        words.for_each(show::note);
        Ok(())
    }

    fn uninstall(&self, settings: &Settings) -> anyhow::Result<()> {
        let file = self.client.file(settings)?;
        let mut log = UndoLog::read(undo_file(settings))?;
        let Some(now) = read(&file)? else {
            return show::line(&format!("{} does not exist", file.display()));
        };
        let without = self
            .client
            .remove_server(&now)
            .with_context(|| format!("`{}` was left as it is", file.display()))?;
        let Some(without) = without else {
            return show::line(&format!("{} does not have the server", file.display()));
        };
        if !self.write {
            return show::line(&format!("{} has the server (--write removes it)", file.display()));
        }
        match log.take(&file, Some(&now)) {
            Some(before) => restore(&file, before)?,
            None => {
                write(&file, &without)?;
                show::line(&format!("removed the server from {}", file.display()))?;
            }
        }
        log.write()
    }
}

/// Beside the configuration file: the storage directory belongs to the daemon.
fn undo_file(settings: &Settings) -> PathBuf {
    settings.config_file.with_file_name("mcp").join("installed.json")
}
