//! `asyncagents mcp`: the tools for clients of MCP, and how such clients are configured.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};

use super::files::{read, write};
use super::mcp_config;
use super::opencode::config_file_in;
use super::show;
use crate::config::Settings;
use crate::mcp;

#[derive(Args)]
#[command(after_help = "\
Without a verb it serves on stdin and stdout, which is what clients start it for.

Example:
  claude mcp add asyncagents -- asyncagents mcp
  asyncagents mcp install codex --write")]
pub(super) struct Mcp {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the configuration a client needs, or write it
    #[command(after_help = "\
Example:
  asyncagents mcp install claude           # prints what belongs into .mcp.json
  asyncagents mcp install claude --write   # puts it there, for the current directory")]
    Install(Install),
}

#[derive(Args)]
struct Install {
    client: Client,
    /// Put it into the client's configuration; everything else there stays as it is
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Client {
    /// Claude Code: `.mcp.json` in the current directory
    Claude,
    /// Codex: its `config.toml`, for every project
    Codex,
    /// OpenCode, without the plugin: its `opencode.json`, for every project
    Opencode,
}

impl Mcp {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            None => mcp::serve(settings).await?,
            Some(Verb::Install(install)) => install.run(settings)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Install {
    fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let program = program.to_string_lossy();
        let file = self.client.file(settings)?;
        let put = match self.client {
            Client::Claude => mcp_config::claude,
            Client::Codex => mcp_config::codex,
            Client::Opencode => mcp_config::opencode,
        };
        if !self.write {
            show::note(&format!("into {}:", file.display()));
            return show::line(put("", &program)?.trim_end());
        }
        let before = read(&file)?;
        let after = put(before.as_deref().unwrap_or_default(), &program)
            .with_context(|| format!("`{}` was left as it is", file.display()))?;
        if before.as_deref() == Some(after.as_str()) {
            return show::line(&format!("{} names it already", file.display()));
        }
        write(&file, &after)?;
        show::line(&format!("added it to {}", file.display()))
    }
}

impl Client {
    fn file(self, settings: &Settings) -> anyhow::Result<PathBuf> {
        let nowhere = "there is no home directory; set HOME";
        Ok(match self {
            Client::Claude => {
                let here = std::env::current_dir();
                here.context("cannot tell what the current directory is")?.join(".mcp.json")
            }
            Client::Codex => settings.codex_config.clone().context(nowhere)?.join("config.toml"),
            Client::Opencode => config_file_in(&settings.opencode_config.clone().context(nowhere)?),
        })
    }
}
