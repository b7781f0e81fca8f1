//! Static analysis of a shell line: the commands it will run, as far as that can be told without running
//! it. Parsing is done by `brush-parser`, which is not built for hostile input (it backtracks, recurses
//! and may panic), so lines are checked first and panics caught. Whatever stays open (substitutions,
//! `eval`, a line that does not parse) makes the line uncertain. Whether a command is allowed is decided
//! elsewhere.

mod guard;
#[cfg(test)]
mod tests;
mod walk;
mod word;
mod wrapper;

use std::panic::{AssertUnwindSafe, catch_unwind};

use brush_parser::{ParserOptions, parse_tokens};

/// The commands of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) commands: Vec<Command>,
    /// Some of it is only known at run time, or did not parse: other commands than these may run.
    pub(super) is_uncertain: bool,
}

/// A simple command. A file that is written to counts as the command `> file`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// As it is written, and with what comes before the actual command stripped step by step:
    /// `A=1 sudo rm`, `sudo rm`, `rm`.
    pub(super) forms: Vec<Form>,
}

/// One way to read a command, for rules to match.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) words: Vec<Word>,
    /// Nothing was stripped that changes what these words do. Rules that allow look at whole forms only:
    /// `git diff` is harmless, `GIT_EXTERNAL_DIFF=./x git diff` runs `./x`.
    pub(super) is_whole: bool,
}

/// A word as the command gets it, without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Literal(String),
    /// `*.rs`, `~/x`: expands to other words, depending on the files there are.
    Glob(String),
    /// Only known at run time.
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

/// Parses a line, in time bounded by its length. Never panics, whatever is in the line.
pub(super) fn parse(line: &str) -> Line {
    let (text, is_cut) = match line.contains(guard::HERE_DOCUMENT) {
        true => (before_documents(line), true),
        false => (line.to_owned(), false),
    };
    // The parser has `unwrap`s that hostile input can reach.
    let parsed = catch_unwind(AssertUnwindSafe(|| parse_plainly(&text)));
    let parsed = parsed.ok().flatten();
    // Everything has to be clear at once: parsed, complete, and without odd characters.
    let is_certain = parsed.is_some() && !is_cut && !line.contains(is_odd);
    let Line { commands, is_uncertain } = parsed.unwrap_or_default();
    Line { commands, is_uncertain: is_uncertain || !is_certain }
}

/// What is parsed of a line with here-documents: its first line, as if the commands read a file instead.
/// The rest makes the line uncertain.
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

/// The parser's options: as in `bash -c`, where `extglob` is off. Tildes are handled by us, because the
/// parser panics on `~99999999999999999999`.
fn options() -> ParserOptions {
    ParserOptions {
        enable_extended_globbing: false,
        tilde_expansion_at_word_start: false,
        ..ParserOptions::default()
    }
}

/// Control characters and non-ASCII spaces: bash and the parser disagree on whether they separate words.
fn is_odd(c: char) -> bool {
    c.is_control() && !['\t', '\n'].contains(&c) || c.is_whitespace() && !c.is_ascii()
}
