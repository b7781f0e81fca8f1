//! Errors of tools, as the model reads them: what is wrong, and what to do instead.

use std::fmt::Display;
use std::time::Duration;

use super::ALL;

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no tool `{name}`; there are: {}", ALL.map(|tool| tool.name()).join(", "))]
    NoSuchTool { name: String },
    #[error("the arguments of `{tool}` do not fit: {reason}")]
    Arguments { tool: &'static str, reason: String },
    #[error(
        "`{path}` is outside the workspace `{root}`, and access was not permitted; use a path inside"
    )]
    Outside { path: String, root: String },
    #[error("`{path}` holds credentials, and access was not permitted; do without it")]
    Credentials { path: String },
    #[error(
        "`{path}` belongs to asyncagents itself (token, tasks, conversations) and is closed to agents; \
         do without it"
    )]
    Own { path: String },
    #[error("running this outside the sandbox was not permitted; run it without `outside`")]
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
    #[error("`{path}` has only {}; pass a smaller `offset`", lines_of(*.lines))]
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
    /// A command that was killed neither by its caller nor by its time limit: its output, and why.
    #[error("{text}")]
    Killed { text: String },
    #[error("cancelled")]
    Cancelled,
    #[error("no answer from the file system after {} s; try something smaller", .after.as_secs())]
    TimedOut { after: Duration },
    #[error("the tool itself failed, which is a bug in asyncagents: {reason}")]
    Broken { reason: String },
}

impl Error {
    pub(super) fn failed(doing: &'static str, path: &str, reason: impl Display) -> Error {
        Error::Failed { doing, path: path.to_owned(), reason: reason.to_string() }
    }
}

fn lines_of(lines: u64) -> String {
    if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") }
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
