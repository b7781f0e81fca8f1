//! Agent definitions: a name, a system prompt, tools and permission rules. Read from Markdown files with
//! YAML front matter, in our dialect, OpenCode's and Claude's; five agents are built in, in the same
//! format. The last rule that matches a call decides; shell lines are parsed, and the strictest of their
//! commands decides. What a command can reach once it runs is bounded by the sandbox, not by rules.

mod grants;
mod load;
mod lookup;
mod parse;
mod pattern;
mod permission;
mod shell;
mod walk;
mod yaml;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde::Serialize;

pub use load::{AgentSet, Bounds, Folder, Problem, folders, load};
pub use lookup::{AgentUnavailable, find, way_out};
pub use parse::is_invisible;

use parse::AgentFile;
use pattern::Coverage;
use shell::Command;

use crate::sandbox::Grants;

/// All tools, in the order in which they are listed.
pub const TOOLS: [&str; 8] = ["read", "list", "glob", "grep", "edit", "write", "bash", "todo"];

/// The name in rules for access to a path outside the workspace, whichever tool it is for.
pub const EXTERNAL_DIRECTORY: &str = "external_directory";

const BUILT_IN: [(&str, &str); 5] = [
    ("build", include_str!("build.md")),
    ("explore", include_str!("explore.md")),
    ("general", include_str!("general.md")),
    ("librarian", include_str!("librarian.md")),
    ("oracle", include_str!("oracle.md")),
];

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    pub description: String,
    /// The system prompt.
    pub prompt: String,
    /// `provider/model`
    pub model: Option<String>,
    pub tools: Tools,
    /// Permission rules; the last one that matches decides.
    pub rules: Vec<Rule>,
    /// What its commands may reach in addition to the sandbox's defaults.
    pub grants: Grants,
    pub source: Source,
}

/// A subset of [`TOOLS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools(BTreeSet<&'static str>);

/// A permission rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// One of the [`TOOLS`], [`EXTERNAL_DIRECTORY`], or `*` for all of these.
    pub tool: String,
    /// Matches the subject of a call: a path, or a command. `*` is any text, slashes included.
    pub pattern: String,
    pub action: Action,
}

/// What happens to a call; ordered from the mildest to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    Ask,
    Deny,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Ask => "ask",
            Action::Deny => "deny",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    BuiltIn,
    File(PathBuf),
}

/// The built-in agents. Parsed once: every list of tools names them.
pub fn builtin() -> Vec<Definition> {
    PARSED.clone()
}

static PARSED: LazyLock<Vec<Definition>> =
    LazyLock::new(|| BUILT_IN.iter().map(|(name, text)| read_built_in(name, text)).collect());

fn built_in(name: &str) -> Option<Definition> {
    PARSED.iter().find(|agent| agent.name == name).cloned()
}

fn read_built_in(name: &str, text: &str) -> Definition {
    match parse::parse(text, name, Source::BuiltIn) {
        Ok(AgentFile::Agent(definition)) => definition,
        Ok(AgentFile::Disabled { .. }) | Err(_) => unreachable!("a test reads all of them"),
    }
}

impl Definition {
    /// Whether the tool is worth offering to the model: some calls of it would not be denied.
    pub fn may_use(&self, tool: &str) -> bool {
        let mut allowed = true;
        // In order, because the last match decides: a general rule settles it for all calls, a particular
        // one can only open it for some.
        for rule in self.rules_of(tool) {
            let denied = rule.action == Action::Deny;
            if rule.is_general() {
                allowed = !denied;
            } else {
                allowed |= !denied;
            }
        }
        allowed && self.tools.contains(tool)
    }

    /// Whether it has no tool that could change anything.
    pub fn reads_only(&self) -> bool {
        !["edit", "write", "bash"].into_iter().any(|tool| self.may_use(tool))
    }

    /// What happens to a call about `subject`: the path as the tool has resolved it, relative if it is in
    /// the workspace; for `bash`, the whole line.
    pub fn action(&self, tool: &str, subject: &str) -> Action {
        match tool {
            EXTERNAL_DIRECTORY => self.decide(tool, subject),
            _ if !self.tools.contains(tool) => Action::Deny,
            "bash" => self.decide_line(subject),
            _ => self.decide(tool, subject),
        }
    }

    /// The last matching rule, or the default: ask for paths outside the workspace, allow the rest.
    fn decide(&self, tool: &str, subject: &str) -> Action {
        let default = match tool {
            EXTERNAL_DIRECTORY => Action::Ask,
            _ => Action::Allow,
        };
        self.rules_of(tool).rfind(|rule| rule.covers(subject)).map_or(default, |rule| rule.action)
    }

    /// Decides about a shell line: as strict as its strictest command. If the line cannot be parsed with
    /// certainty, the general rule counts as well, and it is at least asked about if there are rules for
    /// particular commands: one of those may be hidden in it.
    fn decide_line(&self, line: &str) -> Action {
        let general = self.decide("bash", "");
        // Without rules for particular commands there is nothing to look for in the line, so it is not
        // parsed, and nothing is uncertain.
        let mut particular = self.rules_of("bash").filter(|rule| !rule.is_general()).peekable();
        if particular.peek().is_none() {
            return general;
        }
        let shell::Line { commands, is_uncertain } = shell::parse(line);
        let actions = commands.iter().map(|command| self.decide_command(command));
        let mut action = actions.max().unwrap_or(general);
        if is_uncertain {
            action = action.max(general).max(Action::Ask);
        }
        // A rule may be about the whole line, as `* | sh` is.
        let of_line = particular.rfind(|rule| rule.covers(line)).map(|rule| rule.action);
        action.max(of_line.unwrap_or(Action::Allow))
    }

    /// Decides about one command. Rules that forbid see through quotes, assignments and wrappers such as
    /// `sudo`; a rule that allows vouches only for the exact words it names. A rule that forbids what the
    /// command may turn out to be at run time makes it `Ask` at least.
    fn decide_command(&self, command: &Command) -> Action {
        let mut least = Action::Allow;
        for rule in self.rules_of("bash").rev() {
            let forms = || command.forms.iter();
            let decides = match rule.action {
                _ if rule.is_general() => true,
                Action::Allow => forms()
                    .any(|form| form.is_whole && pattern::permits(&rule.pattern, &form.words)),
                Action::Ask | Action::Deny => {
                    let cover =
                        forms().map(|form| pattern::cover(&rule.pattern, &form.words)).max();
                    match cover.unwrap_or(Coverage::None) {
                        Coverage::All => true,
                        // It may be what the rule forbids: the search for a decision goes on, but the
                        // command is at least asked about.
                        Coverage::Some => {
                            least = Action::Ask;
                            false
                        }
                        Coverage::None => false,
                    }
                }
            };
            if decides {
                return rule.action.max(least);
            }
        }
        least
    }

    fn rules_of(&self, tool: &str) -> impl DoubleEndedIterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.tool == "*" || rule.tool == tool)
    }
}

impl Rule {
    fn new(tool: &str, pattern: impl Into<String>, action: Action) -> Rule {
        Rule { tool: tool.to_owned(), pattern: pattern.into(), action }
    }

    fn is_general(&self) -> bool {
        self.pattern == "*"
    }

    fn covers(&self, subject: &str) -> bool {
        self.is_general() || pattern::matches(&self.pattern, subject)
    }
}

impl Tools {
    pub fn all() -> Tools {
        TOOLS.into_iter().collect()
    }

    pub fn contains(&self, tool: &str) -> bool {
        self.0.contains(tool)
    }

    /// In the order of [`TOOLS`].
    pub fn iter(&self) -> impl Iterator<Item = &'static str> {
        TOOLS.into_iter().filter(|tool| self.contains(tool))
    }

    fn set(&mut self, tool: &'static str, on: bool) {
        if on {
            self.0.insert(tool);
        } else {
            self.0.remove(tool);
        }
    }
}

impl FromIterator<&'static str> for Tools {
    fn from_iter<I: IntoIterator<Item = &'static str>>(tools: I) -> Tools {
        Tools(tools.into_iter().collect())
    }
}

/// Why a file is no agent, or a directory is not read. Each text continues a sentence that begins with the
/// file's name.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("is not a folder; put the files of agents into one")]
    NotAFolder,
    #[error("leads to something that is not a Markdown file; put the file itself here")]
    NotMarkdown,
    #[error("is larger than {0} bytes (`agent.definition_bytes`); shorten it")]
    TooLarge(usize),
    #[error("is not UTF-8 text; save it as such")]
    NotText,
    #[error("has front matter without an end; close it with a line of `---`")]
    Unclosed,
    #[error("has front matter that is not valid YAML: {0}")]
    Syntax(String),
    #[error("has front matter that is {0}; give keys and values")]
    NotKeys(String),
    #[error("says that `{key}` is {found}; give {expected}")]
    Unfit { key: String, found: String, expected: &'static str },
    #[error("has no prompt; write it below the front matter")]
    NoPrompt,
    #[error("would be named `{0}`; give a short, printable name without `..`")]
    BadName(String),
    #[error(
        "would be named `{0}`, and a built-in agent can neither be replaced nor switched off; give \
         it another name"
    )]
    BuiltInName(String),
    #[error(
        "is not read: with the files before it in this folder it is more than {0} bytes \
         (`agent.definition_folder_bytes`); delete some"
    )]
    NoRoom(usize),
    #[error(
        "holds {found} agent files, and only the first {read} (`agent.definition_files`) are read; \
         move or delete others"
    )]
    TooManyFiles { found: usize, read: usize },
    #[error("holds more than {0} files and folders, so nothing in it is read; delete some")]
    TooManyEntries(usize),
    #[error("is nested more than {0} folders deep, so nothing in it is read; move it up")]
    TooDeep(usize),
    #[error("has {}", more_folders(*.0))]
    MoreFolders(usize),
}

fn more_folders(number: usize) -> String {
    match number {
        1 => "1 more folder that is not read".to_owned(),
        _ => format!("{number} more folders that are not read"),
    }
}

#[cfg(test)]
mod tests;
