//! `asyncagents opencode`: puts our plugin into OpenCode, and takes it out again.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Deserialize, Serialize};

use super::files::{cannot, read, write};
use super::opencode_config::{self as text, FILE};
use super::show;
use crate::config::Settings;

const PLUGIN: &str = include_str!("../../plugin/asyncagents.ts");

#[derive(Args)]
pub(super) struct OpenCode {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Put the plugin into OpenCode's configuration; again, to upgrade it
    #[command(after_help = "\
Example:
  asyncagents opencode install             # for every project of yours
  asyncagents opencode install --project   # for the current directory only")]
    Install(Scope),
    /// Undo exactly what install did
    Uninstall(Scope),
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

/// What was done, so that it can be undone.
#[derive(Default, Serialize, Deserialize)]
struct Installed {
    /// By the configuration file that was changed.
    files: BTreeMap<PathBuf, Change>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Change {
    /// What was there before; `None` when nothing was.
    before: Option<String>,
    after: String,
}

impl OpenCode {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Install(scope) => install(settings, &config_file(settings, &scope)?)?,
            Verb::Uninstall(scope) => uninstall(settings, &config_file(settings, &scope)?)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where the plugin lies when it is installed.
pub(super) fn plugin_file(settings: &Settings) -> PathBuf {
    folder(settings).join(FILE)
}

/// Beside the configuration file: the storage directory belongs to the daemon.
fn folder(settings: &Settings) -> PathBuf {
    settings.config_file.with_file_name("opencode")
}

/// Of an installed plugin: whether it is the one of this program.
pub(super) fn is_current(settings: &Settings) -> Option<bool> {
    let installed = std::fs::read_to_string(plugin_file(settings)).ok()?;
    Some(installed == PLUGIN)
}

fn config_file(settings: &Settings, scope: &Scope) -> anyhow::Result<PathBuf> {
    let folder = match scope.project {
        true => std::env::current_dir().context("cannot tell what the current directory is")?,
        false => settings
            .opencode_config
            .clone()
            .context("there is no home directory; use --project, or set HOME")?,
    };
    Ok(config_file_in(&folder))
}

/// The one that is there, else the one OpenCode would look for first.
pub(super) fn config_file_in(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"].map(|name| folder.join(name));
    let there = names.iter().find(|file| file.exists());
    there.unwrap_or(&names[1]).clone()
}

/// A path as a URL: `#`, `?` and `%` in it would mean something else there.
fn file_url(path: &Path) -> String {
    const PLAIN: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    format!("file://{}", percent_encode(path.as_os_str().as_bytes(), PLAIN))
}

fn install(settings: &Settings, file: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let before = read(file)?;
    let plugin = plugin_file(settings);
    let url = file_url(&plugin);
    let given = before.clone().unwrap_or_default();
    let after = text::with_plugin(&given, &url, &program.to_string_lossy())
        .with_context(|| format!("`{}` was left as it is", file.display()))?;
    let upgraded = plugin.exists();
    write(&plugin, PLUGIN)?;
    let word = if upgraded { "renewed" } else { "wrote" };
    show::line(&format!("{word} {}", plugin.display()))?;
    if before.as_deref() == Some(after.as_str()) {
        show::line(&format!("{} names it already", file.display()))?;
    } else {
        let mut installed = Installed::read(settings)?;
        // What was there before us stays what it was, however often we are put in, as long as
        // nobody else has changed it since: then it is what there is without us.
        let first = installed.files.remove(file);
        let before = match first {
            Some(first) if before.as_ref() == Some(&first.after) => first.before,
            Some(_) | None => match text::without_plugin(&given) {
                Ok(Some(without)) => Some(without),
                Ok(None) | Err(_) => before,
            },
        };
        let change = Change { before, after: after.clone() };
        installed.files.insert(file.to_owned(), change);
        installed.write(settings)?;
        write(file, &after)?;
        show::line(&format!("added it to {}", file.display()))?;
    }
    show::line("OpenCode loads it when it is started the next time.")
}

fn uninstall(settings: &Settings, file: &Path) -> anyhow::Result<()> {
    let mut installed = Installed::read(settings)?;
    let change = installed.files.remove(file);
    match (read(file)?, change) {
        (Some(now), Some(change)) if now == change.after => match change.before {
            Some(before) => {
                write(file, &before)?;
                show::line(&format!("{} is as it was before", file.display()))?;
            }
            None => {
                std::fs::remove_file(file).with_context(|| cannot("remove", file))?;
                show::line(&format!("removed {}", file.display()))?;
            }
        },
        (Some(now), _) => {
            let out = text::without_plugin(&now)
                .with_context(|| format!("`{}` was left as it is", file.display()))?;
            match out {
                Some(out) => {
                    write(file, &out)?;
                    show::line(&format!("took it out of {}", file.display()))?;
                }
                None => show::line(&format!("{} does not name it", file.display()))?,
            }
        }
        (None, _) => show::line(&format!("{} does not exist", file.display()))?,
    }
    installed.write(settings)?;
    let plugin = plugin_file(settings);
    if installed.files.is_empty() && plugin.exists() {
        std::fs::remove_file(&plugin).with_context(|| cannot("remove", &plugin))?;
        show::line(&format!("removed {}", plugin.display()))?;
    }
    Ok(())
}

impl Installed {
    fn file(settings: &Settings) -> PathBuf {
        folder(settings).join("installed.json")
    }

    fn read(settings: &Settings) -> anyhow::Result<Installed> {
        match read(&Installed::file(settings))? {
            // A note that is damaged only costs the exact way back.
            Some(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
            None => Ok(Installed::default()),
        }
    }

    fn write(&self, settings: &Settings) -> anyhow::Result<()> {
        let file = Installed::file(settings);
        if self.files.is_empty() {
            return match std::fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| cannot("remove", &file))
                }
                Ok(()) | Err(_) => Ok(()),
            };
        }
        write(&file, &serde_json::to_string_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_signs_that_mean_something_in_a_url_is_encoded() {
        let check = |path: &str, url: &str| assert_eq!(file_url(Path::new(path)), url);
        check("/home/ada/.config/a-b_c~d.ts", "file:///home/ada/.config/a-b_c~d.ts");
        check("/home/C# 100%?/ä.ts", "file:///home/C%23%20100%25%3F/%C3%A4.ts");
    }
}
