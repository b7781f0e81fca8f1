//! A line for a terminal, as spans of text with a style each. The text of a span is escaped when it is added, so the
//! only escape sequences that reach a terminal are those of the styles, whoever wrote the text.

use anstyle::{AnsiColor, Color, Style};
use unicode_width::UnicodeWidthStr;

use crate::quote;
use crate::task::{Phase, Status};

pub(in crate::cli) const PLAIN: Style = Style::new();
pub(in crate::cli) const BOLD: Style = Style::new().bold();
pub(in crate::cli) const DIM: Style = Style::new().dimmed();
pub(in crate::cli) const GOOD: Style = coloured(AnsiColor::Green);
pub(in crate::cli) const BAD: Style = coloured(AnsiColor::Red);
/// Something needs attention.
pub(in crate::cli) const WARNING: Style = coloured(AnsiColor::Yellow);
/// Something is going on.
pub(in crate::cli) const LIVE: Style = coloured(AnsiColor::Cyan);

const fn coloured(colour: AnsiColor) -> Style {
    Style::new().fg_color(Some(Color::Ansi(colour)))
}

/// Statuses are words in every case; the colour only helps to find them.
pub(in crate::cli) fn status_style(status: Status) -> Style {
    match status {
        Status::Running | Status::Resumed => LIVE,
        Status::Completed => GOOD,
        Status::Error => BAD,
        Status::Cancelled => DIM,
    }
}

pub(in crate::cli) fn phase_style(phase: Phase) -> Style {
    match phase {
        Phase::Queued => DIM,
        Phase::Starting | Phase::Waiting | Phase::Streaming | Phase::Tool => LIVE,
        Phase::Blocked => WARNING.bold(),
        Phase::Retrying | Phase::Stalled => WARNING,
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli) struct Line {
    spans: Vec<(Style, String)>,
}

impl Line {
    pub(in crate::cli) fn new(style: Style, text: &str) -> Line {
        Line::default().with(style, text)
    }

    pub(in crate::cli) fn plain(text: &str) -> Line {
        Line::new(PLAIN, text)
    }

    /// The same with more at its end.
    pub(in crate::cli) fn with(mut self, style: Style, text: &str) -> Line {
        self.push(style, text);
        self
    }

    pub(in crate::cli) fn push(&mut self, style: Style, text: &str) {
        if !text.is_empty() {
            self.spans.push((style, quote::line(text)));
        }
    }

    pub(in crate::cli) fn extend(&mut self, other: &Line) {
        self.spans.extend(other.spans.iter().cloned());
    }

    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(in crate::cli) fn text(&self) -> String {
        self.spans.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// For a terminal, with styles or without; spaces at the end are left out.
    pub(in crate::cli) fn render(&self, is_coloured: bool) -> String {
        if !is_coloured {
            return self.text().trim_end().to_owned();
        }
        let mut rendered = String::new();
        let end = self.text().trim_end().len();
        let mut at = 0;
        for (style, text) in &self.spans {
            let text = &text[..text.len().min(end.saturating_sub(at))];
            at += text.len();
            if *style == PLAIN || text.is_empty() {
                rendered.push_str(text);
            } else {
                rendered.push_str(&format!("{style}{text}{style:#}"));
            }
        }
        rendered
    }

    /// An upper bound of the columns it takes.
    pub(super) fn columns(&self) -> usize {
        self.characters().map(|(_, c)| column_of(c)).sum()
    }

    /// The columns it takes on a terminal that knows Unicode.
    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(|(_, text)| text.width()).sum()
    }

    pub(super) fn padded(mut self, width: usize, on: Side) -> Line {
        let spaces = " ".repeat(width.saturating_sub(self.width()));
        match on {
            Side::Right => self.push(PLAIN, &spaces),
            Side::Left => self.spans.insert(0, (PLAIN, spaces)),
        }
        self
    }

    /// The beginning that fits into a width, with `…` if something was cut off.
    pub(in crate::cli) fn cut(&self, width: usize) -> Line {
        if self.columns() <= width {
            return self.clone();
        }
        let mut used = column_of('…');
        let head = self.characters().take_while(|(_, c)| {
            used += column_of(*c);
            used <= width
        });
        let mut cut = Line::of(head);
        if width > 0 {
            cut.push(PLAIN, "…");
        }
        cut
    }

    /// Breaks it to a width at spaces, with a prefix for the first line and one for the others. A word that is longer
    /// than a line is broken anywhere: if the terminal broke it, the rest would begin in the first column.
    pub(super) fn wrapped(&self, width: usize, first: &Line, others: &Line) -> Vec<Line> {
        let characters: Vec<(Style, char)> = self.characters().collect();
        let mut rest = characters.as_slice();
        let mut lines = Vec::new();
        loop {
            let mut line = if lines.is_empty() { first.clone() } else { others.clone() };
            let room = width.saturating_sub(line.columns());
            let mut used = 0;
            let fits = rest.iter().take_while(|(_, c)| {
                used += column_of(*c);
                used <= room
            });
            // One at least, however narrow the terminal is.
            let fits = fits.count().max(1);
            if fits >= rest.len() {
                line.append(rest);
                lines.push(line);
                return lines;
            }
            let is_space = |(_, c): &(Style, char)| *c == ' ';
            let space = rest[..=fits].iter().rposition(is_space);
            // Not at the spaces that a line begins with: they are its indentation.
            let space = space.filter(|at| !rest[..*at].iter().all(is_space));
            let end = space.unwrap_or(fits);
            line.append(&rest[..end]);
            lines.push(line);
            rest = &rest[end + usize::from(space.is_some())..];
        }
    }

    fn of(characters: impl Iterator<Item = (Style, char)>) -> Line {
        let mut line = Line::default();
        line.append(&characters.collect::<Vec<_>>());
        line
    }

    /// Adds characters that are escaped already.
    fn append(&mut self, characters: &[(Style, char)]) {
        for (style, c) in characters {
            match self.spans.last_mut() {
                Some((last, text)) if last == style => text.push(*c),
                Some(_) | None => self.spans.push((*style, (*c).into())),
            }
        }
    }

    fn characters(&self) -> impl Iterator<Item = (Style, char)> {
        self.spans.iter().flat_map(|(style, text)| text.chars().map(|c| (*style, c)))
    }
}

/// Where a cell is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Side {
    Left,
    Right,
}

/// An upper bound of the columns a character takes. Terminals disagree about the width of some; a line that is
/// shorter than we think does no harm, one that is longer would be broken by the terminal.
fn column_of(c: char) -> usize {
    match c {
        '│' | '…' | '•' | '─' | '✓' | '✗' => 1,
        c if c.is_ascii() => 1,
        _ => 2,
    }
}

/// With spaces in place of tabs: those would be escaped.
pub(super) fn spaced(text: &str) -> String {
    text.replace('\t', "    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: usize) -> Vec<String> {
        let lines = Line::plain(text).wrapped(width, &Line::plain("- "), &Line::plain("  "));
        lines.iter().map(|line| line.render(false)).collect()
    }

    #[test]
    fn lines_are_wrapped_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrapped("", 9), ["-"]);
        assert_eq!(wrapped("one two", 9), ["- one two"]);
        assert_eq!(wrapped("one two", 8), ["- one", "  two"]);
        assert_eq!(wrapped("one two three", 9), ["- one two", "  three"]);
        assert_eq!(wrapped("abcdefghij k", 7), ["- abcde", "  fghij", "  k"]);
        assert_eq!(wrapped("    abcdef", 8), ["-     ab", "  cdef"]);
        assert_eq!(wrapped("日本語", 6), ["- 日本", "  語"]);
        assert_eq!(wrapped("ab", 1), ["- a", "  b"]);
    }

    #[test]
    fn a_line_is_cut_to_a_width_with_an_ellipsis() {
        let cut = |text: &str, width: usize| Line::plain(text).cut(width).render(false);
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 5), "abcd…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("abcdef", 1), "…");
        assert_eq!(cut("abcdef", 0), "");
    }

    #[test]
    fn only_styles_become_escape_sequences() {
        let line = Line::new(GOOD, "a\u{1b}[31m").with(PLAIN, " b ").with(DIM, "  ");
        assert_eq!(line.render(true), "\u{1b}[32ma\\x1b[31m\u{1b}[0m b");
        assert_eq!(line.render(false), "a\\x1b[31m b");
        let styled = Line::new(GOOD, "ab cd").wrapped(3, &Line::default(), &Line::default());
        let rendered: Vec<String> = styled.iter().map(|line| line.render(true)).collect();
        assert_eq!(rendered, ["\u{1b}[32mab\u{1b}[0m", "\u{1b}[32mcd\u{1b}[0m"]);
    }
}
