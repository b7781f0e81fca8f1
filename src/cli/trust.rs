//! `asyncagents trust` and `untrust`: decide whether the agent files of a directory may be used. The list is a file in
//! the storage directory, read at every use, so neither command needs the daemon.

use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use clap::Args;

use super::show;
use crate::config::Settings;
use crate::daemon;
use crate::quote;
use crate::trust::{Decision, Error, ListEntry, State, Trust as TrustList};

#[derive(Args)]
#[command(after_help = "\
Files in .claude/agents, .opencode/agent and .opencode/agents of a directory define agents, with
tools and permissions of their choice. They come with any repository that is cloned, so they are
not used until the directory is trusted. `asyncagents agents` shows what they would be allowed.

On a terminal, `agents`, and `run` with an agent of such a file, ask once and remember the answer.

Trust belongs to the path of this one directory, not to those below it, and covers later changes to
its files. It ends with `asyncagents untrust`, or when another user owns the directory. It is about
agents that asyncagents runs itself; OpenCode has agents and settings of its own.

Example:
  asyncagents agents
  asyncagents trust")]
pub(super) struct Trust {
    /// The directory that agents are started in [default: the current one]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Show what was decided so far, about all directories
    #[arg(long, conflicts_with = "directory")]
    list: bool,
    /// Trust it, and print the directory and the decision as JSON; with --list only print all decisions
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Tasks that run go on; none is launched or resumed with an agent of the directory's files any more.
The question whether to trust it is not asked again.

Example:
  asyncagents untrust ~/src/cloned")]
pub(super) struct Untrust {
    /// A directory that was trusted [default: the current one]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Stop trusting it, and print the directory and the decision as JSON
    #[arg(long)]
    json: bool,
}

impl Trust {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        if self.list {
            return list(settings, self.json);
        }
        let directory = self.directory.unwrap_or_else(|| PathBuf::from("."));
        let path = decide(settings, &directory, Decision::Trusted)?;
        if self.json {
            show::json(&ListEntry { path, state: State::Trusted })?;
            return Ok(ExitCode::SUCCESS);
        }
        show::line(&format!(
            "`{}` is trusted: the agents of its files can be used (`asyncagents agents` lists them)",
            quote::line(&path)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Untrust {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let directory = self.directory.unwrap_or_else(|| PathBuf::from("."));
        let (path, state) = match decide(settings, &directory, Decision::Declined) {
            // The directory does not exist any more. There is nothing to decline, but its entry is removed: a
            // directory that is created there later must not be trusted.
            Err(error) if is_gone(&error) => {
                let path: PathBuf = absolute(&directory)?.components().collect();
                let path = path.to_string_lossy().into_owned();
                let was_there = TrustList::in_home(&settings.home).forget(&path)?;
                anyhow::ensure!(was_there, error);
                (path, State::Missing)
            }
            other => (other?, State::Declined),
        };
        if self.json {
            show::json(&ListEntry { path, state })?;
            return Ok(ExitCode::SUCCESS);
        }
        show::line(&format!("`{}` is not trusted", quote::line(&path)))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NoDirectory { .. }))
}

pub(super) fn decide(
    settings: &Settings,
    directory: &Path,
    decision: Decision,
) -> anyhow::Result<String> {
    daemon::make_private(&settings.home)?;
    Ok(TrustList::in_home(&settings.home).decide(directory, decision)?)
}

fn list(settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    let listed = TrustList::in_home(&settings.home).list()?;
    if json {
        show::json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |path: &str, state: State| {
        let state = match state {
            State::Trusted => "trusted",
            State::Declined => "declined",
            State::Missing => "missing",
            State::Replaced => "replaced",
        };
        vec![state.to_owned(), quote::line(path)]
    };
    let rows: Vec<Vec<String>> =
        listed.iter().map(|listed| row(&listed.path, listed.state)).collect();
    show::columns(&["STATE", "DIRECTORY"], &rows)?;
    Ok(ExitCode::SUCCESS)
}
