//! `asyncagents opencode`: installs our plugin into OpenCode's configuration, and removes it exactly. The plugin is
//! part of this program; installing again after an upgrade replaces it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::changes::{Changes, State};
use super::files::{cannot, read, write};
use super::opencode_config::{self as text, FILE};
use super::undo::{UndoLog, remove_folder_of, restore};
use crate::config::Settings;

const PLUGIN: &str = include_str!("../../plugin/asyncagents.ts");

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents opencode install")]
pub(super) struct OpenCode {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Add the plugin to OpenCode's configuration; run it again to upgrade the plugin
    #[command(after_help = "\
Example:
  asyncagents opencode install             # for every project of yours
  asyncagents opencode install --project   # for the current directory only")]
    Install(Arguments),
    /// Undo exactly what install did
    #[command(after_help = "\
Example:
  asyncagents opencode uninstall
  asyncagents opencode uninstall --project")]
    Uninstall(Arguments),
}

#[derive(Args)]
struct Arguments {
    #[command(flatten)]
    scope: Scope,
    /// Print which files were changed as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(multiple = false)]
struct Scope {
    /// In your own configuration, for every project (the default)
    #[arg(long)]
    global: bool,
    /// In the configuration of the current directory
    #[arg(long)]
    project: bool,
}

impl OpenCode {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let (Verb::Install(arguments) | Verb::Uninstall(arguments)) = &self.verb;
        let file = config_file(settings, &arguments.scope)?;
        let mut changes = Changes::new(arguments.json);
        let done = match &self.verb {
            Verb::Install(_) => install(settings, &file, &mut changes),
            Verb::Uninstall(_) => uninstall(settings, &file, &mut changes),
        };
        changes.print_after(done)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The path of the installed plugin.
pub(super) fn plugin_file(settings: &Settings) -> PathBuf {
    folder(settings).join(FILE)
}

/// Beside the configuration file: the storage directory belongs to the daemon.
fn folder(settings: &Settings) -> PathBuf {
    settings.config_file.with_file_name("opencode")
}

fn undo_file(settings: &Settings) -> PathBuf {
    folder(settings).join("installed.json")
}

/// Of an installed plugin: whether it is the one of this program.
pub(super) fn is_current(settings: &Settings) -> Option<bool> {
    let installed = std::fs::read_to_string(plugin_file(settings)).ok()?;
    Some(installed == PLUGIN)
}

fn config_file(settings: &Settings, scope: &Scope) -> anyhow::Result<PathBuf> {
    let folder = match scope.project {
        true => std::env::current_dir().context("cannot find the current directory")?,
        false => settings
            .opencode_config
            .clone()
            .context("there is no home directory; use --project, or set HOME")?,
    };
    Ok(config_file_in(&folder))
}

/// OpenCode's configuration file in this folder: the one that exists, else `opencode.json`.
pub(super) fn config_file_in(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"].map(|name| folder.join(name));
    let there = names.iter().find(|file| file.exists());
    there.unwrap_or(&names[1]).clone()
}

/// A path as a `file://` URL, percent-encoded: a `#`, `?` or `%` in the name of a home directory would cut or
/// change the path.
fn file_url(path: &Path) -> String {
    const PLAIN: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    format!("file://{}", percent_encode(path.as_os_str().as_bytes(), PLAIN))
}

fn install(settings: &Settings, file: &Path, changes: &mut Changes) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut log = UndoLog::read(undo_file(settings))?;
    let before = read(file)?;
    let plugin = plugin_file(settings);
    let url = file_url(&plugin);
    let given = before.clone().unwrap_or_default();
    let after = text::with_plugin(&given, &url, &program.to_string_lossy())
        .with_context(|| format!("`{}` was left as it is", file.display()))?;
    let upgraded = plugin.exists();
    // The plugin before the configuration that names it: OpenCode may be started in between.
    write(&plugin, PLUGIN)?;
    let word = if upgraded { "replaced" } else { "wrote" };
    changes.add(&plugin, State::Written, &format!("{word} {}", plugin.display()))?;
    if before.as_deref() == Some(after.as_str()) {
        let line = format!("{} already lists the plugin", file.display());
        changes.add(file, State::Unchanged, &line)?;
    } else {
        // The log before the file: see `mcp install`.
        log.add(file, before, text::without_plugin(&given).ok().flatten(), &after);
        log.write()?;
        write(file, &after)?;
        let line = format!("added the plugin to {}", file.display());
        changes.add(file, State::Written, &line)?;
    }
    changes.say("Restart OpenCode to load the plugin.")
}

fn uninstall(settings: &Settings, file: &Path, changes: &mut Changes) -> anyhow::Result<()> {
    let shown = file.display();
    let mut log = UndoLog::read(undo_file(settings))?;
    let now = read(file)?;
    match (log.take(file, now.as_deref()), now) {
        (Some(before), _) => restore(file, before, changes)?,
        (None, Some(now)) => {
            let out = text::without_plugin(&now)
                .with_context(|| format!("`{shown}` was left as it is"))?;
            match out {
                Some(out) => {
                    write(file, &out)?;
                    let line = format!("removed the plugin from {shown}");
                    changes.add(file, State::Written, &line)?;
                }
                None => {
                    let line = format!("{shown} does not list the plugin");
                    changes.add(file, State::Unchanged, &line)?;
                }
            }
        }
        (None, None) => {
            changes.add(file, State::Unchanged, &format!("{shown} does not exist"))?;
        }
    }
    log.write()?;
    let plugin = plugin_file(settings);
    // Configurations of other projects may still name the plugin; it goes with the last one.
    if log.is_empty() && plugin.exists() {
        std::fs::remove_file(&plugin).with_context(|| cannot("remove", &plugin))?;
        remove_folder_of(&plugin);
        changes.add(&plugin, State::Removed, &format!("removed {}", plugin.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_reserved_characters_is_percent_encoded_in_the_url() {
        let check = |path: &str, url: &str| assert_eq!(file_url(Path::new(path)), url);
        check("/home/ada/.config/a-b_c~d.ts", "file:///home/ada/.config/a-b_c~d.ts");
        check("/home/C# 100%?/ä.ts", "file:///home/C%23%20100%25%3F/%C3%A4.ts");
    }
}
