//! What a shell line will run, as far as that can be told without running it. The grammar is that
//! of `brush-parser`; whatever it leaves open makes the line uncertain. Whether a command is allowed
//! is decided elsewhere.

mod guard;
#[cfg(test)]
mod tests;
mod walk;
mod word;
mod wrapper;

use std::panic::{AssertUnwindSafe, catch_unwind};

use brush_parser::{ParserOptions, parse_tokens};

/// A line taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) commands: Vec<Command>,
    /// Some of it is known at run time only, or did not parse: other commands may run than these.
    pub(super) is_uncertain: bool,
}

/// A simple command, or a file that is written to as the command `> file`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// As it stands, and as it is without what comes before it: `A=1 sudo rm`, `sudo rm`, `rm`.
    pub(super) forms: Vec<Form>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) words: Vec<Word>,
    /// Nothing was left out of it that changes what these words do. Rules that allow must look at
    /// whole forms only: `git diff` is harmless, `GIT_EXTERNAL_DIFF=./x git diff` runs `./x`.
    pub(super) is_whole: bool,
}

/// A word as the command gets it, without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Literal(String),
    /// `*.rs`, `~/x`: other words wherever there are files of such names.
    Glob(String),
    /// Only a running shell can tell.
    Unknown,
}

impl Word {
    /// The word with something literal before it.
    fn after(self, start: &str) -> Word {
        match self {
            Word::Literal(text) => Word::Literal(format!("{start}{text}")),
            Word::Glob(text) => Word::Glob(format!("{start}{text}")),
            Word::Unknown => Word::Unknown,
        }
    }

    pub(super) fn literal(&self) -> Option<&str> {
        match self {
            Word::Literal(text) => Some(text),
            Word::Glob(_) | Word::Unknown => None,
        }
    }
}

/// Takes a line apart, in time that its length bounds. It does not panic, whatever is in the line.
pub(super) fn parse(line: &str) -> Line {
    let (text, is_cut) = match line.contains(guard::HERE_DOCUMENT) {
        true => (before_documents(line), true),
        false => (line.to_owned(), false),
    };
    // The parser unwraps in places where it may be wrong to.
    let parsed = catch_unwind(AssertUnwindSafe(|| parse_plainly(&text)));
    let parsed = parsed.ok().flatten();
    let is_certain = parsed.is_some() && !is_cut && !line.contains(is_odd);
    let Line { commands, is_uncertain } = parsed.unwrap_or_default();
    Line { commands, is_uncertain: is_uncertain || !is_certain }
}

/// Here-documents are not parsed. This much is seen of the commands that get them: the first line,
/// as if they read a file.
fn before_documents(line: &str) -> String {
    let joined = line.replace("\\\n", "");
    let first = joined.lines().next().unwrap_or_default();
    first.replace("<<<", "<").replace("<<-", "<").replace("<<", "<")
}

fn parse_plainly(line: &str) -> Option<Line> {
    let tokens = guard::tokens(line)?;
    let program = parse_tokens(&tokens, &options()).ok()?;
    Some(walk::commands(&program))
}

/// As in `bash -c`, where `extglob` is off. Tildes are left to us, because the parser panics on
/// `~99999999999999999999`.
fn options() -> ParserOptions {
    ParserOptions {
        enable_extended_globbing: false,
        tilde_expansion_at_word_start: false,
        ..ParserOptions::default()
    }
}

/// Control characters and spaces beyond ASCII: parsers disagree on whether they separate words.
fn is_odd(c: char) -> bool {
    c.is_control() && !['\t', '\n'].contains(&c) || c.is_whitespace() && !c.is_ascii()
}
