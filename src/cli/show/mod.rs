//! Terminal output: lines, tables, JSON, and quoted text of agents.
//!
//! Text of agents is untrusted: control characters reach a terminal as escapes only, and long lines are broken here,
//! behind a gutter. If the terminal broke them, the rest would begin in its first column, where it could pass for a
//! line of ours. A reader of the pipe that goes away (`| head`) ends the command quietly, by [`ReaderGone`].

mod frame;
mod line;
mod live;
mod markdown;
mod screen;
mod table;
mod time;

use std::io::{ErrorKind, Write};

use anstyle::Style;
use serde::Serialize;

pub(super) use frame::{Kind, body};
pub(super) use line::{
    BAD, BOLD, DIM, GOOD, LIVE, Line, PLAIN, WARNING, phase_style, status_style,
};
pub(super) use live::LiveFrame;
pub(super) use screen::{Screen, set_terminal};
pub(super) use table::{Column, Table, aligned, columns};
pub(super) use time::{age, ago, cost, tokens};

use frame::{frame, in_quotes};

use crate::quote;

/// The first words of lines of ours that say how serious they are.
const SEVERITIES: [(&str, Style); 3] =
    [("error:", BAD.bold()), ("warning:", WARNING.bold()), ("note:", LIVE.bold())];

/// Nobody reads standard output any more (`| head`). An error and no exit, so that a command cleans up on its way out.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(super) struct ReaderGone;

/// Prints a line of ours. Text of others in it is expected to be quoted; control characters are escaped in any
/// case.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    raw(&quote::body(text))
}

/// Prints a line of ours on standard error.
pub(super) fn note(text: &str) {
    let screen = Screen::stderr();
    let found = SEVERITIES.iter().find(|(word, _)| text.starts_with(word));
    match found {
        Some((word, style)) if screen.is_coloured => {
            let rest = quote::body(&text[word.len()..]);
            complain(&format!("{style}{word}{style:#}{rest}"));
        }
        Some(_) | None => complain(&quote::body(text)),
    }
}

/// Prints a line with styles.
pub(super) fn print(line: &Line) -> anyhow::Result<()> {
    put(line, Screen::stdout())
}

/// Prints a line with styles on standard error.
pub(super) fn note_line(line: &Line) {
    complain(&line.render(Screen::stderr().is_coloured));
}

/// A number with its noun, in the right plural: `1 task`, `2 tasks`.
pub(super) fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Prints text as it is, for another program or already escaped.
pub(super) fn raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => Ok(other?),
    }
}

pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    raw(&serde_json::to_string_pretty(value)?)
}

/// Prints the Markdown that an agent wrote: rendered and in a frame on a terminal, as it is elsewhere.
pub(super) fn framed_markdown(title: &str, text: &str) -> anyhow::Result<()> {
    print_frame(title, text, Kind::Markdown)
}

/// Prints what an agent wrote: in a frame on a terminal, as it is elsewhere.
pub(super) fn framed(title: &str, text: &str) -> anyhow::Result<()> {
    print_frame(title, text, Kind::Plain)
}

fn print_frame(title: &str, text: &str, kind: Kind) -> anyhow::Result<()> {
    let screen = Screen::stdout();
    match screen.width {
        Some(width) => {
            frame(title, text, kind, width).iter().try_for_each(|line| put(line, screen))
        }
        None => raw(text),
    }
}

/// Prints words of ours, and then untrusted text as a quoted literal.
pub(super) fn quoted(words: &str, text: &str) -> anyhow::Result<()> {
    let screen = Screen::stdout();
    let lines = in_quotes(&Line::plain(words), text, screen.width);
    lines.iter().try_for_each(|line| put(line, screen))
}

/// The same on standard error, with styles.
pub(super) fn note_quoted(words: &Line, text: &str) {
    let screen = Screen::stderr();
    for line in in_quotes(words, text, screen.width) {
        complain(&line.render(screen.is_coloured));
    }
}

fn put(line: &Line, screen: Screen) -> anyhow::Result<()> {
    raw(&line.render(screen.is_coloured))
}

/// Not with `eprintln!`, which panics when nobody reads standard error any more.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
