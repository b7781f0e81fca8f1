//! `asyncagents agents`: lists the agents of this directory, those that it would have if it were trusted, and
//! agent files with problems; and asks, once and on a terminal, whether to trust it.
//!
//! It needs no daemon: the files are loaded here, with the same code and bounds as in the daemon. What it prints
//! comes from files of any cloned repository, so nothing of it reaches the terminal raw: an escape sequence in a
//! description could rewrite the question that follows it.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::{show, trust};
use crate::agent::definition::{self, AgentSet, Definition, Folder, Rule, Source, TOOLS};
use crate::config::Settings;
use crate::daemon::definition_bounds;
use crate::quote;
use crate::sandbox::{Grants, Network};
use crate::text;
use crate::trust::{Decision, Trust, TrustStatus, Workspace};

const LONGEST_DESCRIPTION: usize = 100;

/// How many rules of one agent are listed, and how much of each; the JSON has all of them.
const MOST_RULES: usize = 20;
const LONGEST_PATTERN: usize = 100;

#[derive(Args)]
#[command(after_help = "\
Five agents are built in. Markdown files add to them; of two with the same name, the one further
down this list wins. No file can take the name of a built-in agent:
  <config>/agents      next to the configuration file
  .claude/agents       in the current directory, as the following
  .opencode/agent
  .opencode/agents

Files of the current directory are not used until it is trusted (`asyncagents trust --help`).
Until then their agents are listed apart, with what they would be allowed.

Example, as `.claude/agents/tester.md`:
  ---
  description: Runs the tests and explains what fails
  tools: Read, Grep, Bash(make test)
  ---
  Run `make test` and report what fails and why, as path:line and one sentence each.

Commands of agents run in a sandbox (`asyncagents doctor` says which). A file may ask for more of
it, or for less: `readable: ~/data, /srv/x` and `writable:` name paths, `network: off` cuts its
commands off. A file of a directory opens no credentials, even where it is trusted.

and then:
  asyncagents agents
  asyncagents trust
  asyncagents run --agent tester 'Why is the build red?'

Rules for commands match whole words, as the shell will see them. `Bash(make test)` allows
that command and no other. `Bash(git diff:*)`, or `git diff*` in OpenCode's dialect, allows
`git diff` with every argument there is, so also `git diff --output=FILE`, but not `git
difftool`. It does not allow what it does not name: assignments (`A=1 git diff`), files
written with `>`, `sudo`, variables and substitutions. A rule that denies a command finds it
behind all of these. A line that cannot be parsed with certainty asks for permission.")]
pub(super) struct Agents {
    /// Print the agents as a JSON array; `trusted` says which can be used
    #[arg(long)]
    json: bool,
}

/// The agents of a directory, whether it is trusted, and the folders they were loaded from.
pub(super) struct WorkspaceAgents {
    pub(super) workspace: Workspace,
    pub(super) loaded: AgentSet,
    folders: Vec<Folder>,
}

impl WorkspaceAgents {
    pub(super) fn load(settings: &Settings, directory: &Path) -> WorkspaceAgents {
        let config_dir = settings.config_file.parent().unwrap_or(Path::new("/"));
        // Read here and not asked of the daemon: whether to trust a workspace is decided before anything runs.
        let workspace = Trust::in_home(&settings.home).look(directory);
        let folders = definition::folders(config_dir, &workspace);
        WorkspaceAgents {
            loaded: definition::load(&folders, definition_bounds(&settings.config.agent)),
            workspace,
            folders,
        }
    }

    pub(super) fn here(settings: &Settings) -> anyhow::Result<WorkspaceAgents> {
        let here = std::env::current_dir().context("cannot find the current directory")?;
        Ok(WorkspaceAgents::load(settings, &here))
    }

    /// What the files of an untrusted workspace would define, line by line, with what each would be
    /// allowed.
    pub(super) fn untrusted(&self) -> Vec<String> {
        let agents = self.loaded.untrusted.values();
        let rows: Vec<Vec<String>> = agents.clone().map(|agent| self.row(agent)).collect();
        let mut lines = Vec::new();
        let mut rows = show::aligned(&HEADER, &rows).into_iter();
        lines.extend(rows.next());
        for (row, agent) in rows.zip(agents) {
            lines.push(row);
            lines.extend(self.replaced(agent));
            lines.extend(rules(agent));
        }
        lines
    }

    /// The user's own agent of the same name, which this one would replace. Worth a line of its own: the name is
    /// one that the user trusts.
    fn replaced(&self, agent: &Definition) -> Option<String> {
        match &self.loaded.agents.get(&agent.name)?.source {
            Source::BuiltIn => None,
            Source::File(file) => {
                Some(format!("    in place of {}", quote::line(&place(file, &self.folders))))
            }
        }
    }

    fn row(&self, agent: &Definition) -> Vec<String> {
        let tools = match usable_tools(agent) {
            tools if tools.is_empty() => "none".to_owned(),
            tools if tools.len() == TOOLS.len() => "all".to_owned(),
            tools => tools.join(" "),
        };
        let wishes: String = wishes(agent).iter().map(|wish| format!("; {wish}")).collect();
        let tools = tools + &cut(&quote::line(&wishes), LONGEST_PATTERN);
        let source = match &agent.source {
            Source::BuiltIn => "built-in".to_owned(),
            Source::File(file) => place(file, &self.folders),
        };
        vec![agent.name.clone(), tools, quote::line(&source), shorten(&agent.description)]
    }

    fn print(&self) -> anyhow::Result<()> {
        let rows: Vec<Vec<String>> =
            self.loaded.agents.values().map(|agent| self.row(agent)).collect();
        show::columns(&HEADER, &rows)?;
        // In a list of their own: mixed with the others they would look usable.
        if self.loaded.untrusted.is_empty() {
            return Ok(());
        }
        show::line(&format!("\n{}", self.heading()))?;
        self.untrusted().iter().try_for_each(|line| show::line(line))
    }

    fn heading(&self) -> String {
        let way_out = match self.workspace.status {
            // Said below, whether or not there are agents.
            TrustStatus::Unknown(_) => String::new(),
            TrustStatus::Trusted | TrustStatus::Declined | TrustStatus::Undecided => {
                format!("; {}", definition::way_out(&self.workspace))
            }
        };
        format!("Untrusted, from files of this directory, and not used{way_out}:")
    }

    fn json(&self) -> anyhow::Result<()> {
        let usable = self.loaded.agents.values().map(|agent| AgentView::of(agent, true));
        let untrusted = self.loaded.untrusted.values().map(|agent| AgentView::of(agent, false));
        show::json(&usable.chain(untrusted).collect::<Vec<_>>())
    }
}

const HEADER: [&str; 4] = ["NAME", "TOOLS", "SOURCE", "DESCRIPTION"];

impl Agents {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let agents = WorkspaceAgents::here(settings)?;
        match self.json {
            true => agents.json()?,
            false => agents.print()?,
        }
        if let TrustStatus::Unknown(error) = &agents.workspace.status {
            show::note(&quote::line(&error.to_string()));
        }
        for problem in &agents.loaded.problems {
            let file = problem.file.display().to_string();
            show::note(&format!("`{}` {}", quote::line(&file), quote::line(&problem.why)));
        }
        // Only when the list itself was printed on a terminal: in a pipe the user has not seen what the
        // question is about.
        if !self.json && std::io::stdout().is_terminal() {
            ask(settings, &agents)?;
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
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    readable: &'a [PathBuf],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    writable: &'a [PathBuf],
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'static str>,
    /// A path, or `built-in`.
    source: String,
    /// Only these can be used.
    trusted: bool,
}

impl AgentView<'_> {
    fn of(agent: &Definition, trusted: bool) -> AgentView<'_> {
        AgentView {
            name: &agent.name,
            description: &agent.description,
            model: agent.model.as_deref(),
            tools: usable_tools(agent),
            rules: &agent.rules,
            readable: &agent.grants.readable,
            writable: &agent.grants.writable,
            network: agent.grants.network.map(Network::name),
            source: match &agent.source {
                Source::BuiltIn => "built-in".to_owned(),
                Source::File(file) => file.display().to_string(),
            },
            trusted,
        }
    }
}

fn usable_tools(agent: &Definition) -> Vec<&'static str> {
    agent.tools.iter().filter(|tool| agent.may_use(tool)).collect()
}

/// What an agent's file asks of the sandbox.
fn wishes(agent: &Definition) -> Vec<String> {
    let Grants { readable, writable, network, .. } = &agent.grants;
    let reads = readable.iter().map(|path| format!("reads {}", path.display()));
    let writes = writable.iter().map(|path| format!("writes {}", path.display()));
    let network = network.map(|network| format!("network {}", network.name()));
    reads.chain(writes).chain(network).collect()
}

/// The rules of an agent, one line each. The last rule that matches decides, so of many the last ones are shown.
fn rules(agent: &Definition) -> Vec<String> {
    let hidden = agent.rules.len().saturating_sub(MOST_RULES);
    let mut lines: Vec<String> =
        wishes(agent).iter().map(|wish| format!("    {}", quote::line(wish))).collect();
    if hidden > 0 {
        lines.push(format!("    ({hidden} more rules, see `asyncagents agents --json`)"));
    }
    lines.extend(agent.rules.iter().skip(hidden).map(|rule| {
        let pattern = cut(&quote::line(&rule.pattern), LONGEST_PATTERN);
        format!("    {} {} {pattern}", rule.action.name(), rule.tool)
    }));
    lines
}

/// A file by the short name of its folder, such as `.claude/agents/tester.md`.
fn place(file: &Path, folders: &[Folder]) -> String {
    let inside = |folder: &Folder| {
        let rest = file.strip_prefix(&folder.path).ok()?;
        Some(format!("{}/{}", folder.origin, rest.display()))
    };
    folders.iter().find_map(inside).unwrap_or_else(|| file.display().to_string())
}

/// The first line of a description. Those written for Claude Code may go on for pages, with `\\n` as two
/// characters at the ends of lines.
fn shorten(description: &str) -> String {
    let start = description.split("\\n").next().unwrap_or_default();
    let line = quote::line(start.trim().lines().next().unwrap_or_default());
    cut(&line, LONGEST_DESCRIPTION)
}

fn cut(line: &str, longest: usize) -> String {
    let head = text::head(line, longest);
    if head.len() == line.len() { line.to_owned() } else { format!("{}…", head.trim_end()) }
}

/// Asks whether to trust the agents of a directory, which have just been printed; `true` if they are trusted
/// now. The answer is remembered, also a no: the question is not asked again.
fn ask(settings: &Settings, agents: &WorkspaceAgents) -> anyhow::Result<bool> {
    if !is_undecided(agents) {
        return Ok(false);
    }
    let path = quote::line(&agents.workspace.path.display().to_string());
    eprint!("Trust the agents of {path}? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    // End of input is no answer, so nothing is remembered.
    if read.context("cannot read the answer")? == 0 {
        eprintln!();
        return Ok(false);
    }
    let decision = match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Decision::Trusted,
        _ => Decision::Declined,
    };
    trust::decide(settings, &agents.workspace.path, decision)?;
    match decision {
        Decision::Trusted => {
            eprintln!("They can be used now; `asyncagents untrust` takes it back.")
        }
        Decision::Declined => eprintln!("They are not used; `asyncagents trust` changes that."),
    }
    Ok(decision == Decision::Trusted)
}

/// For `run` with one of these agents: prints what the files would define, then asks.
pub(super) fn show_and_ask(settings: &Settings, agent: &str) -> anyhow::Result<bool> {
    let agents = WorkspaceAgents::here(settings)?;
    // The launch may have been refused for another reason, which no answer would change.
    if !is_undecided(&agents) || !agents.loaded.untrusted.contains_key(agent) {
        return Ok(false);
    }
    eprintln!("Agent `{agent}` comes from files of this directory, which would define:");
    agents.untrusted().iter().for_each(|line| eprintln!("{line}"));
    ask(settings, &agents)
}

/// Whether there is something to decide, nobody has decided yet, and a person is there to do so.
fn is_undecided(agents: &WorkspaceAgents) -> bool {
    let undecided = match agents.workspace.status {
        TrustStatus::Undecided => !agents.loaded.untrusted.is_empty(),
        TrustStatus::Trusted | TrustStatus::Declined | TrustStatus::Unknown(_) => false,
    };
    undecided && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
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
        check("\u{202e}txet", "\\u{202e}txet");
        check(&"ä".repeat(100), &"ä".repeat(100));
        check(&format!("{} {}", "ä".repeat(99), "b"), &format!("{}…", "ä".repeat(99)));
        check("", "");
    }
}
