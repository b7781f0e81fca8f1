//! What models read when a tool could not do what it was asked: what is wrong and the way out.

use std::fmt::Display;
use std::time::Duration;

use super::ALL;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no tool `{name}`; there are: {}", ALL.map(|tool| tool.name()).join(", "))]
    NoSuchTool { name: String },
    #[error("the arguments of `{tool}` do not fit: {reason}")]
    Arguments { tool: &'static str, reason: String },
    #[error(
        "`{path}` is outside the workspace `{root}` and nobody permitted that; use a path inside"
    )]
    Outside { path: String, root: String },
    #[error("`{path}` holds credentials and nobody permitted to open it; do without it")]
    Credentials { path: String },
    #[error(
        "`{path}` belongs to asyncagents itself (token, tasks, conversations) and is closed to agents; \
         do without it"
    )]
    Own { path: String },
    #[error("nobody permitted to run this outside the sandbox; run it without `outside`")]
    InSandbox,
    #[error(
        "`{path}` cannot be changed by agents: git or agents run by a person would run what is in it; \
         leave it, and say in your answer what should change there"
    )]
    Protected { path: String },
    #[error("`{path}` does not exist; {}", suggestion(near))]
    Missing { path: String, near: Vec<String> },
    #[error("`{path}` is a directory; `list` shows what is in it")]
    IsDirectory { path: String },
    #[error("`{path}` is not a directory; `read` shows files")]
    NotDirectory { path: String },
    #[error("`{path}` is a pipe, a socket or a device, not a file")]
    Special { path: String },
    #[error("`{path}` is binary ({kind}, {size} bytes); look at it with a program, through `bash`")]
    Binary { path: String, kind: &'static str, size: u64 },
    #[error("`{path}` has only {lines} lines; pass a smaller `offset`")]
    PastTheEnd { path: String, lines: u64 },
    #[error("`{path}` has {size} bytes and can be edited up to {most}; change it through `bash`")]
    TooLarge { path: String, size: u64, most: u64 },
    #[error("`{path}` is not UTF-8 text; change it through `bash`")]
    NotText { path: String },
    #[error("`old` does not occur in `{path}`{}; read the file and copy the text exactly, without line numbers", first_line(*.line))]
    Absent {
        path: String,
        /// Where the first line of `old` is, white space aside.
        line: Option<usize>,
    },
    #[error(
        "`old` occurs {count} times in `{path}`; add what is around it until it is unique, or pass `replace_all: true`"
    )]
    Ambiguous { path: String, count: usize },
    #[error("the pattern is not valid: {reason}")]
    Pattern { reason: String },
    #[error("cannot {doing} `{path}`: {reason}")]
    Failed { doing: &'static str, path: String, reason: String },
    /// A command that neither ended by itself nor was stopped by its caller: what it had printed, and
    /// why it was killed.
    #[error("{text}")]
    Killed { text: String },
    #[error("cancelled")]
    Cancelled,
    #[error("no answer from the file system after {} s; try something smaller", .after.as_secs())]
    TimedOut { after: Duration },
    #[error("the tool itself failed, which is a defect: {reason}")]
    Broken { reason: String },
}

impl Error {
    pub(super) fn failed(doing: &'static str, path: &str, reason: impl Display) -> Error {
        Error::Failed { doing, path: path.to_owned(), reason: reason.to_string() }
    }
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        return "`list` and `glob` show what is there".to_owned();
    }
    let near: Vec<String> = near.iter().map(|path| format!("`{path}`")).collect();
    format!("did you mean {}?", near.join(" or "))
}

fn first_line(line: Option<usize>) -> String {
    let Some(line) = line else { return String::new() };
    format!(" (its first line is like line {line}, but the white space or what follows differs)")
}
