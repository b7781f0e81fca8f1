//! Terminal output: lines, tables, JSON, and quoted text of agents.
//!
//! Text of agents is untrusted: control characters reach a terminal as escapes only, and long lines are broken here,
//! behind a gutter. If the terminal broke them, the rest would begin in its first column, where it could pass for a
//! line of ours. A reader of the pipe that goes away (`| head`) ends the program quietly.

use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::quote;

/// The width of terminals that do not tell theirs.
const USUAL_WIDTH: usize = 80;

/// In front of every line of an agent's text on a terminal, also of continuation lines.
const GUTTER: &str = "│ ";

/// Prints a line of ours. Text of others in it is expected to be quoted; control characters are escaped in any
/// case.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    raw(&quote::body(text))
}

/// Prints a line of ours on standard error.
pub(super) fn note(text: &str) {
    eprintln!("{}", quote::body(text));
}

/// A number with its noun, in the right plural: `1 task`, `2 tasks`.
pub(super) fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Prints text as it is, for another program or already escaped.
pub(super) fn raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    raw(&serde_json::to_string_pretty(value)?)
}

/// Prints what an agent wrote: in a frame on a terminal, as it is elsewhere.
pub(super) fn framed(title: &str, text: &str) -> anyhow::Result<()> {
    match width_of(&std::io::stdout()) {
        Some(width) => raw(&frame(title, text, width)),
        None => raw(text),
    }
}

/// Prints words of ours, and then text of somebody else as a quoted literal.
pub(super) fn quoted(words: &str, text: &str) -> anyhow::Result<()> {
    raw(&in_quotes(words, text, width_of(&std::io::stdout())))
}

/// The same on standard error.
pub(super) fn note_quoted(words: &str, text: &str) {
    eprintln!("{}", in_quotes(words, text, width_of(&std::io::stderr())));
}

/// Prints a table. All columns but the last are aligned; the last is broken under itself on a terminal.
pub(super) fn columns(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let (rows, before_last) = table(header, rows);
    let Some(width) = width_of(&std::io::stdout()) else {
        return rows.iter().try_for_each(|row| raw(row));
    };
    // Continuation lines stand under the last column, or at half the width if that begins further right.
    let indent = " ".repeat(before_last.clamp(2, 2.max(width / 2)));
    rows.iter().try_for_each(|row| raw(&broken(row, width, "", &indent)))
}

/// The lines of such a table, the header first.
pub(super) fn aligned(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    table(header, rows).0
}

/// The lines of a table, and the column in which its last one begins.
fn table(header: &[&str], rows: &[Vec<String>]) -> (Vec<String>, usize) {
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| quote::line(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&header]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let aligned = |row: &Vec<String>| {
        // Not with `{:<width}`, which counts characters: CJK characters take two columns, combining ones none.
        let padded = |(cell, width): (&String, &usize)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())))
        };
        let cells: Vec<String> = row.iter().zip(&widths).map(padded).collect();
        cells.join("  ").trim_end().to_owned()
    };
    let lines = [&header].into_iter().chain(&rows).map(aligned).collect();
    (lines, widths.iter().rev().skip(1).map(|width| width + 2).sum())
}

/// The width of a terminal; `None` for anything else.
fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stream).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    Some(columns.unwrap_or(USUAL_WIDTH))
}

fn frame(title: &str, text: &str, width: usize) -> String {
    let title = quote::line(title);
    let lines: Vec<String> =
        quote::body(text).split('\n').map(|line| broken(line, width, GUTTER, GUTTER)).collect();
    format!("╭ {title}\n{}\n╰", lines.join("\n"))
}

/// Words and quoted text in one line if it fits; otherwise the text follows on lines of its own, behind a gutter.
fn in_quotes(words: &str, text: &str, width: Option<usize>) -> String {
    let (words, text) = (quote::line(words), quote::literal(text));
    let whole = format!("{words} {text}");
    match width {
        Some(width) if columns_of(&whole) > width => {
            format!("{}\n{}", broken(&words, width, "", "  "), broken(&text, width, GUTTER, GUTTER))
        }
        Some(_) | None => whole,
    }
}

/// Breaks a line to a width, with a prefix for the first line and one for the others. It breaks anywhere, not only
/// at spaces: a word may be longer than the terminal is wide.
fn broken(line: &str, width: usize, first: &str, others: &str) -> String {
    let mut lines = vec![first.to_owned()];
    let mut used = columns_of(first);
    for c in line.replace('\t', "    ").chars() {
        let is_empty = lines.last().is_none_or(|line| line == first || line == others);
        if used + column_of(c) > width && !is_empty {
            lines.push(others.to_owned());
            used = columns_of(others);
        }
        used += column_of(c);
        if let Some(last) = lines.last_mut() {
            last.push(c);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

fn columns_of(text: &str) -> usize {
    text.chars().map(column_of).sum()
}

/// An upper bound of the columns a character takes. Terminals disagree about the width of some; a line that is
/// shorter than we think does no harm, one that is longer would be broken by the terminal.
fn column_of(c: char) -> usize {
    match c {
        '│' | '…' => 1,
        c if c.is_ascii() => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_under_characters_of_any_width() {
        let row = |name: &str| vec![name.to_owned(), "x".to_owned()];
        let rows = [row("検索"), row("äbc"), row("e\u{301}")];
        let expected = ["NAME  X", "検索  x", "äbc   x", "e\u{301}     x"];
        assert_eq!(aligned(&["NAME", "X"], &rows), expected);
    }

    #[test]
    fn a_frame_holds_every_line_however_long() {
        let check = |text: &str, expected: &str| assert_eq!(frame("t", text, 10), expected);
        check("", "╭ t\n│\n╰");
        check("a\n\nb", "╭ t\n│ a\n│\n│ b\n╰");
        check("12345678", "╭ t\n│ 12345678\n╰");
        check("123456789", "╭ t\n│ 12345678\n│ 9\n╰");
        check("ääääb", "╭ t\n│ ääää\n│ b\n╰");
        check("a\r\u{1b}[2K\n╰", "╭ t\n│ a\\r\\x1b[\n│ 2K\n│ ╰\n╰");
        check("a\u{2028}b", "╭ t\n│ a\\u{2028\n│ }b\n╰");
        check("\tx", "╭ t\n│     x\n╰");
        assert_eq!(frame("a\nb", "c", 1), "╭ a\\nb\n│ c\n╰");
    }

    #[test]
    fn a_line_that_is_broken_does_not_begin_like_one_of_ours() {
        let check = |width: usize, expected: &str| {
            assert_eq!(in_quotes("per_1 asks:", "ls; rm", Some(width)), expected, "{width}");
        };
        check(20, "per_1 asks: \"ls; rm\"");
        check(19, "per_1 asks:\n│ \"ls; rm\"");
        check(8, "per_1 as\n  ks:\n│ \"ls; r\n│ m\"");
        assert_eq!(in_quotes("per_1 asks:", "a\nb", None), "per_1 asks: \"a\\nb\"");
        assert_eq!(broken("ab cd", 4, "", "  "), "ab c\n  d");
    }
}
