//! `asyncagents daemon install` and `uninstall`: a systemd unit of the user, which starts the daemon with the
//! session. Only the file is written; what systemd has to be told is printed, so that this works where there
//! is none.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cli::changes::{Changes, State};
use crate::cli::files::{read, write};
use crate::cli::show;
use crate::config::Settings;
use crate::daemon::start::LOCK_HELD;

pub(super) const INSTALL_HELP: &str = "\
Example:
  asyncagents daemon install --print   # show the unit
  asyncagents daemon install
  systemctl --user daemon-reload && systemctl --user enable --now asyncagents";

pub(super) const UNINSTALL_HELP: &str = "\
Example:
  systemctl --user disable --now asyncagents
  asyncagents daemon uninstall";

/// The first line of what we write: another file is not ours to change.
const MARK: &str =
    "# Written by `asyncagents daemon install`; `asyncagents daemon uninstall` removes it.";

pub(super) fn print(settings: &Settings) -> anyhow::Result<()> {
    show::line(unit(settings)?.trim_end())
}

pub(super) fn install(settings: &Settings, json: bool) -> anyhow::Result<()> {
    let unit = unit(settings)?;
    let file = file(settings)?;
    let mut changes = Changes::new(json);
    match read(&file)? {
        Some(there) if there == unit => {
            let line = format!("{} is there already", file.display());
            changes.add(&file, State::Unchanged, &line)?;
        }
        Some(there) if !there.starts_with(MARK) => bail!(
            "`{}` was not written by `asyncagents daemon install` and was left as it is; remove it, or keep \
             it and start `asyncagents serve` from there",
            file.display()
        ),
        Some(_) | None => {
            write(&file, &unit)?;
            changes.add(&file, State::Written, &format!("wrote {}", file.display()))?;
        }
    }
    show::note(
        "next: `asyncagents daemon stop`, then `systemctl --user daemon-reload && systemctl --user enable \
         --now asyncagents`",
    );
    changes.print()
}

pub(super) fn uninstall(settings: &Settings, json: bool) -> anyhow::Result<()> {
    let file = file(settings)?;
    let mut changes = Changes::new(json);
    match read(&file)? {
        None => {
            let line = format!("{} does not exist", file.display());
            changes.add(&file, State::Unchanged, &line)?;
        }
        Some(there) if !there.starts_with(MARK) => bail!(
            "`{}` was not written by `asyncagents daemon install` and was left as it is",
            file.display()
        ),
        Some(_) => {
            match fs::remove_file(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => {
                    removed.with_context(|| format!("cannot remove `{}`", file.display()))?;
                }
            }
            changes.add(&file, State::Removed, &format!("removed {}", file.display()))?;
            show::note(
                "next: `systemctl --user disable --now asyncagents; systemctl --user daemon-reload` if it was \
                 enabled",
            );
        }
    }
    changes.print()
}

/// Where systemd looks for the units of a user.
fn file(settings: &Settings) -> anyhow::Result<PathBuf> {
    let configurations = settings.opencode_config.as_ref().and_then(|folder| folder.parent());
    let configurations = configurations.context("there is no home directory; set HOME")?;
    Ok(configurations.join("systemd/user/asyncagents.service"))
}

fn unit(settings: &Settings) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = vec![program_word(&program)?, "--home".to_owned(), word(&settings.home)?];
    if settings.config_file.exists() {
        command.extend(["--config".to_owned(), word(&settings.config_file)?]);
    }
    command.push("serve".to_owned());
    // Another daemon of this directory is no reason to try again and again.
    Ok(format!(
        "{MARK}\n\
         [Unit]\n\
         Description=Background agents for coding agents\n\
         \n\
         [Service]\n\
         ExecStart={}\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         RestartPreventExitStatus={LOCK_HELD}\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        command.join(" ")
    ))
}

/// The first word of a command line of systemd, in which it replaces no variables: there `$$` would be two.
fn program_word(path: &Path) -> anyhow::Result<String> {
    Ok(word(path)?.replace("$$", "$"))
}

/// A word of a command line of systemd, in quotes that it cannot leave; `%` and `$` stand for themselves.
fn word(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.with_context(|| {
        format!("the path `{}` cannot be written in a systemd unit", path.display())
    })?;
    let mut word = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => word.extend(['\\', c]),
            '%' | '$' => word.extend([c, c]),
            other => word.push(other),
        }
    }
    word.push('"');
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_the_command_line_whatever_is_in_it() {
        let check =
            |path: &str, expected: &str| assert_eq!(word(Path::new(path)).unwrap(), expected);
        check("/usr/bin/asyncagents", "\"/usr/bin/asyncagents\"");
        check("/a b/%h/$x", "\"/a b/%%h/$$x\"");
        check("/a\"b\\c", "\"/a\\\"b\\\\c\"");
        assert!(word(Path::new("/a\nExecStartPre=/bin/x")).is_err());
        assert_eq!(program_word(Path::new("/$x/$$/%h")).unwrap(), "\"/$x/$$/%%h\"");
    }
}
