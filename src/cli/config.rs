//! `asyncagents config`: writes the commented default file, or shows the settings in force. It runs before the
//! configuration is resolved, since it has to work when that is broken.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::changes::{Changes, State};
use super::show;
use crate::config::{Environment, Flags, Settings, default_file};

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents config init
  asyncagents config show")]
pub(super) struct Configuration {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write a commented configuration file; an existing one is left alone
    #[command(after_help = "\
Example:
  asyncagents config init
  asyncagents config init --print | less")]
    Init {
        /// Print it instead
        #[arg(long)]
        print: bool,
        /// Print which file was written as JSON
        #[arg(long, conflicts_with = "print")]
        json: bool,
    },
    /// Show the settings that are in force, as TOML
    #[command(after_help = "\
Example:
  asyncagents config show
  asyncagents config show --json | jq .settings.limits")]
    Show {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Configuration {
    pub(super) fn run(self, environment: &Environment, flags: &Flags) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Init { print: true, .. } => show::line(default_file().trim_end())?,
            Verb::Init { print: false, json } => init(environment, flags, json)?,
            Verb::Show { json: true } => {
                let settings = Settings::resolve(environment, flags)?;
                show::json(&SettingsView {
                    storage: settings.home.display().to_string(),
                    file: settings.config_file.display().to_string(),
                    settings: settings.config.to_toml().parse()?,
                })?;
            }
            Verb::Show { json: false } => {
                let settings = Settings::resolve(environment, flags)?;
                show::line(&format!("# storage: {}", settings.home.display()))?;
                show::line(&format!("# file: {}\n", settings.config_file.display()))?;
                show::line(settings.config.to_toml().trim_end())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Serialize)]
struct SettingsView {
    storage: String,
    file: String,
    settings: toml::Table,
}

fn init(environment: &Environment, flags: &Flags, json: bool) -> anyhow::Result<()> {
    let file = Settings::config_file(environment, flags)?;
    let written = || -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // `create_new`, so that a file that appears at the same moment is not overwritten; private, because
        // passwords of servers may be put into it.
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        new.write_all(default_file().as_bytes())
    };
    match written() {
        Ok(()) => {
            let mut changes = Changes::new(json);
            changes.add(&file, State::Written, &format!("wrote {}", file.display()))?;
            changes.print()
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            anyhow::bail!("`{}` already exists; it was left as it is", file.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot write `{}`", file.display())),
    }
}
