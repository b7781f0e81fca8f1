//! `asyncagents completions` and `asyncagents man`: what shells and manual pages know of the commands, generated from
//! the same definitions that parse them.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man as Page;

use super::show;

const PROGRAM: &str = "asyncagents";

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents completions bash > ~/.local/share/bash-completion/completions/asyncagents
  asyncagents completions zsh > ~/.zfunc/_asyncagents
  asyncagents completions fish > ~/.config/fish/completions/asyncagents.fish")]
pub(super) struct Completions {
    /// The shell that is to complete commands
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, mut command: Command) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, PROGRAM, &mut script);
        show::raw(String::from_utf8(script)?.trim_end())?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents man | man -l -
  asyncagents man --directory ~/.local/share/man/man1")]
pub(super) struct Man {
    /// Write a page for every command into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self, command: Command) -> anyhow::Result<ExitCode> {
        let Some(directory) = self.directory else {
            show::raw(page(command)?.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        };
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make `{}`", directory.display()))?;
        let mut written = 0;
        for (name, command) in pages(command) {
            let file = directory.join(format!("{name}.1"));
            fs::write(&file, page(command)?)
                .with_context(|| format!("cannot write `{}`", file.display()))?;
            written += 1;
        }
        show::line(&format!(
            "wrote {} into {}",
            show::counted(written, "page"),
            directory.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn page(command: Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    Page::new(command).render(&mut page)?;
    Ok(String::from_utf8(page)?)
}

/// The program and every command that help lists, each under its whole name: `asyncagents-daemon-start`.
fn pages(mut program: Command) -> Vec<(String, Command)> {
    // So that commands have the options that all of them take, and `help` is among them.
    program.build();
    let mut pages = Vec::new();
    let mut left = vec![(PROGRAM.to_owned(), program)];
    while let Some((name, command)) = left.pop() {
        for sub in command.get_subcommands() {
            if sub.get_name() != "help" && !sub.is_hide_set() {
                left.push((format!("{name}-{}", sub.get_name()), sub.clone()));
            }
        }
        pages.push((name, command));
    }
    pages.sort_by(|(one, _), (other, _)| one.cmp(other));
    pages
}
