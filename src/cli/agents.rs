//! `asyncagents agents`: the agents there are in this directory, and the files that are none.
//! What it prints comes from files of any workspace, so nothing of it reaches the terminal raw.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::show;
use crate::agent::definition::{self, Definition, Folder, Rule, Source, TOOLS};
use crate::config::Settings;
use crate::quote;

const LONGEST_DESCRIPTION: usize = 100;

#[derive(Args)]
#[command(after_help = "\
Five agents are built in. Markdown files add to them or replace them by name; of two with the same
name, the one further down this list counts:
  <config>/agents      next to the configuration file
  .claude/agents       in the current directory, as the following
  .opencode/agent
  .opencode/agents

Example, as `.claude/agents/tester.md`:
  ---
  description: Runs the tests and explains what fails
  tools: Read, Grep, Bash(make test)
  ---
  Run `make test` and report what fails and why, as path:line and one sentence each.

and then:
  asyncagents agents
  asyncagents run --agent tester 'Why is the build red?'

Rules for commands match whole words, as the shell will see them. `Bash(make test)` allows
that command and no other. `Bash(git diff:*)`, or `git diff*` in OpenCode's dialect, allows
`git diff` with every argument there is, so also `git diff --output=FILE`, but not `git
difftool`. It does not allow what it does not name: assignments (`A=1 git diff`), files
written with `>`, `sudo`, variables and substitutions. A rule that denies a command finds it
behind all of these. A line that cannot be told apart for certain is asked about.")]
pub(super) struct Agents {
    /// Print the agents as a JSON array
    #[arg(long)]
    json: bool,
}

impl Agents {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let here = std::env::current_dir().context("cannot tell what the current directory is")?;
        let config_dir = settings.config_file.parent().unwrap_or(Path::new("/"));
        let folders = definition::folders(config_dir, &here);
        let loaded = definition::load(&folders);
        let agents = loaded.agents.values();
        if self.json {
            show::json(&agents.map(AgentView::of).collect::<Vec<_>>())?;
        } else {
            let rows: Vec<Vec<String>> = agents.map(|agent| row(agent, &folders)).collect();
            show::columns(&["NAME", "TOOLS", "SOURCE", "DESCRIPTION"], &rows)?;
        }
        for problem in &loaded.problems {
            let file = problem.file.display().to_string();
            show::note(&format!("`{}` {}", quote::line(&file), quote::line(&problem.why)));
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Serialize)]
struct AgentView<'a> {
    name: &'a str,
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    tools: Vec<&'static str>,
    /// The last one that matches decides.
    rules: &'a [Rule],
    /// A path, or `built-in`.
    source: String,
}

impl AgentView<'_> {
    fn of(agent: &Definition) -> AgentView<'_> {
        AgentView {
            name: &agent.name,
            description: &agent.description,
            model: agent.model.as_deref(),
            tools: usable_tools(agent),
            rules: &agent.rules,
            source: match &agent.source {
                Source::BuiltIn => "built-in".to_owned(),
                Source::File(file) => file.display().to_string(),
            },
        }
    }
}

fn usable_tools(agent: &Definition) -> Vec<&'static str> {
    agent.tools.iter().filter(|tool| agent.may_use(tool)).collect()
}

fn row(agent: &Definition, folders: &[Folder]) -> Vec<String> {
    let tools = match usable_tools(agent) {
        tools if tools.is_empty() => "none".to_owned(),
        tools if tools.len() == TOOLS.len() => "all".to_owned(),
        tools => tools.join(" "),
    };
    let source = match &agent.source {
        Source::BuiltIn => "built-in".to_owned(),
        Source::File(file) => place(file, folders),
    };
    vec![agent.name.clone(), tools, source, shorten(&agent.description)]
}

/// The file under the name its folder goes by.
fn place(file: &Path, folders: &[Folder]) -> String {
    let inside = |folder: &Folder| {
        let rest = file.strip_prefix(&folder.path).ok()?;
        Some(format!("{}/{}", folder.origin, rest.display()))
    };
    folders.iter().find_map(inside).unwrap_or_else(|| file.display().to_string())
}

/// Descriptions written for Claude may go on for pages, with `\\n` for the ends of lines.
fn shorten(description: &str) -> String {
    let start = description.split("\\n").next().unwrap_or_default();
    let line = quote::line(start.trim().lines().next().unwrap_or_default());
    match line.char_indices().nth(LONGEST_DESCRIPTION) {
        Some((cut, _)) => format!("{}…", line[..cut].trim_end()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_shown_as_one_short_line() {
        let check = |description: &str, expected: &str| {
            assert_eq!(shorten(description), expected, "{description}");
        };
        check("Reviews.", "Reviews.");
        check("\nReviews.\nAt length.", "Reviews.");
        check("Reviews.\\n\\nExample: …", "Reviews.");
        check("\u{1b}[31mred\ttext", "\\x1b[31mred\\ttext");
        check(&"ä".repeat(100), &"ä".repeat(100));
        check(&format!("{} {}", "ä".repeat(99), "b"), &format!("{}…", "ä".repeat(99)));
        check("", "");
    }
}
