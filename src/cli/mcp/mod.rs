//! `asyncagents mcp`: serves MCP on stdio, and registers that server, or the daemon's own over HTTP, with MCP clients.
//!
//! `install` and `uninstall` edit other programs' configurations: our entry only, the rest byte for byte. What was
//! added is recorded in an undo log first, so that a crash in between never leaves an edit that cannot be undone.

mod address;
mod clients;
mod codex;
mod json;
mod program;
mod variables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};

use self::address::Address;
use self::clients::Client;
use self::program::Program;
use super::changes::{Changes, State};
use super::files::{read, write, write_private};
use super::undo::{UndoLog, restore};
use super::{block_on, show};
use crate::config::Settings;
use crate::mcp;

/// The name of our server in clients' configurations.
const NAME: &str = "asyncagents";

/// An entry that is there already leads to our server in the other way.
const OTHER_WAY: &str = "it has the server already, but over another transport; `asyncagents mcp uninstall \
                         CLIENT --write` removes that entry";

/// How a client gets to our server.
enum Server<'a> {
    /// It starts a process, by this name or path.
    Program(&'a str),
    /// It connects to the daemon, with the token in a header.
    Address { url: String, authorization: String },
}

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
  asyncagents mcp install claude --write   # adds it, for the current directory

With --http the client connects to the running daemon instead of starting a process. That entry has
the daemon's token in it, so keep the file to yourself:
  asyncagents mcp install --http cursor --directory ~/project --write")]
    Install(InstallArguments),
    /// Say whether a client's configuration has our server, or remove it
    #[command(after_help = "\
Example:
  asyncagents mcp uninstall codex --write")]
    Uninstall(UninstallArguments),
}

#[derive(Args)]
struct InstallArguments {
    #[command(flatten)]
    of: ClientArguments,
    /// With --http: the directory in which agents of this client work. For `claude` and `vscode` it is the
    /// current one by default; of other clients it is their root, where they name one
    #[arg(long, value_name = "DIR", requires = "http")]
    directory: Option<PathBuf>,
    /// Print which file was changed, or what would be added to it, as JSON; never an entry over HTTP, which may
    /// have the token in it
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct UninstallArguments {
    #[command(flatten)]
    of: ClientArguments,
    /// Print the file and what became of it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ClientArguments {
    client: Client,
    /// Over HTTP, for clients that are to start no process: an address and the token, for the daemon that runs
    #[arg(long)]
    http: bool,
    /// Change the client's configuration; everything else in it stays as it is
    #[arg(long)]
    write: bool,
}

impl Mcp {
    /// Without a verb.
    pub(super) fn serve() -> Mcp {
        Mcp { verb: None }
    }

    pub(super) fn run(self, settings: Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            None => block_on(|| mcp::serve(settings))?,
            Some(Verb::Install(arguments)) => {
                let mut changes = Changes::new(arguments.json);
                let done = block_on(|| arguments.install(&settings, &mut changes));
                changes.print_after(done)?;
            }
            Some(Verb::Uninstall(arguments)) => {
                let mut changes = Changes::new(arguments.json);
                let done = arguments.of.uninstall(&settings, &mut changes);
                changes.print_after(done)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl InstallArguments {
    async fn install(&self, settings: &Settings, changes: &mut Changes) -> anyhow::Result<()> {
        let client = self.of.client;
        if !self.of.http {
            let program = Program::this(settings)?;
            let notes = program.warning().into_iter().chain(client.notes().iter().copied());
            let notes: Vec<String> = notes.map(str::to_owned).collect();
            return self.of.install(settings, &Server::Program(program.name()), &notes, changes);
        }
        let file = client.file(settings)?;
        let address = Address::find(settings, client, self.directory.as_deref()).await?;
        let notes = address.notes(client, &file).into_iter();
        let notes = notes.chain(client.notes_over_http().iter().map(|note| (*note).to_owned()));
        let notes: Vec<String> = notes.collect();
        self.of.install(settings, &address.server(client), &notes, changes)
    }
}

impl ClientArguments {
    fn install(
        &self,
        settings: &Settings,
        server: &Server,
        notes: &[String],
        changes: &mut Changes,
    ) -> anyhow::Result<()> {
        let file = self.client.file(settings)?;
        let mut log = UndoLog::read(undo_file(settings))?;
        let before = read(&file)?;
        let given = before.as_deref().unwrap_or_default();
        let left_alone = || format!("`{}` was left as it is", file.display());
        let after = self.client.add_server(given, server).with_context(left_alone)?;
        if before.as_deref() == Some(after.as_str()) {
            let line = format!("{} already has the server", file.display());
            return changes.add(&file, State::Unchanged, &line);
        }
        if self.write {
            // The original, if an entry of ours was in the file before the log knew of it.
            let without = self.client.remove_server(given).with_context(left_alone)?;
            log.add(&file, before, without, &after);
            // The log before the file: a log of an edit that was not made is harmless, since its checksum does
            // not match.
            log.write()?;
            match server {
                // A file of the project has the name of a variable in it, and stays readable for the others.
                Server::Address { .. } if !self.client.is_of_a_project() => {
                    write_private(&file, &after)?;
                }
                Server::Address { .. } | Server::Program(_) => write(&file, &after)?,
            }
            let line = format!("added the server to {}", file.display());
            changes.add(&file, State::Written, &line)?;
        } else if changes.is_json() {
            let entry = match server {
                Server::Program(_) => Some(self.client.add_server("", server)?),
                Server::Address { .. } => None,
            };
            changes.propose(&file, entry);
        } else {
            show::note(&format!("to be added to {} (--write adds it):", file.display()));
            show::line(self.client.add_server("", server)?.trim_end())?;
        }
        notes.iter().for_each(|note| show::note(note));
        Ok(())
    }

    fn uninstall(&self, settings: &Settings, changes: &mut Changes) -> anyhow::Result<()> {
        let file = self.client.file(settings)?;
        let shown = file.display();
        let mut log = UndoLog::read(undo_file(settings))?;
        let Some(now) = read(&file)? else {
            return changes.add(&file, State::Unchanged, &format!("{shown} does not exist"));
        };
        let without = self
            .client
            .remove_server(&now)
            .with_context(|| format!("`{shown}` was left as it is"))?;
        let Some(without) = without else {
            let line = format!("{shown} does not have the server");
            return changes.add(&file, State::Unchanged, &line);
        };
        if !self.write {
            let line = format!("{shown} has the server (--write removes it)");
            return changes.add(&file, State::Proposed, &line);
        }
        match log.take(&file, Some(&now)) {
            Some(before) => restore(&file, before, changes)?,
            None => {
                write(&file, &without)?;
                let line = format!("removed the server from {shown}");
                changes.add(&file, State::Written, &line)?;
            }
        }
        log.write()
    }
}

/// Whether a client's configuration names our server.
pub(super) struct Registration {
    pub(super) client: String,
    pub(super) file: PathBuf,
    pub(super) state: anyhow::Result<bool>,
}

/// Of every client that we know, as far as it has a configuration.
pub(super) fn registrations(settings: &Settings) -> Vec<Registration> {
    let of = |client: &Client| {
        let file = client.file(settings).ok()?;
        let text = read(&file).transpose()?;
        let state = text.and_then(|text| Ok(client.remove_server(&text)?.is_some()));
        let client = client.to_possible_value().map(|name| name.get_name().to_owned());
        Some(Registration { client: client.unwrap_or_default(), file, state })
    };
    Client::value_variants().iter().filter_map(of).collect()
}

/// Beside the configuration file: the storage directory belongs to the daemon.
fn undo_file(settings: &Settings) -> PathBuf {
    settings.config_file.with_file_name("mcp").join("installed.json")
}
