//! Text of agents between lines of ours: in a frame that it cannot leave, or as a quoted literal.

use super::line::{DIM, Line, PLAIN, spaced};
use super::markdown;
use crate::quote;

/// In front of every line of an agent's text on a terminal, also of continuation lines.
const GUTTER: &str = "│ ";

/// How the text in a frame is to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Kind {
    Plain,
    Markdown,
}

pub(super) fn frame(title: &str, text: &str, kind: Kind, width: usize) -> Vec<Line> {
    let gutter = Line::new(DIM, GUTTER);
    let mut framed = vec![Line::new(DIM, &format!("╭ {title}"))];
    framed.extend(body(text, kind, Some(width), &gutter, &gutter));
    framed.push(Line::new(DIM, "╰"));
    framed
}

/// The lines of a text, one at least, with a prefix for the first and one for the others. Without a width, for a
/// pipe, its lines are what they are, and Markdown is not rendered.
pub(in crate::cli) fn body(
    text: &str,
    kind: Kind,
    width: Option<usize>,
    first: &Line,
    others: &Line,
) -> Vec<Line> {
    let lines = match (kind, width) {
        (Kind::Markdown, Some(width)) => {
            let inside = width.saturating_sub(first.columns().max(others.columns()));
            markdown::lines(text, inside.max(1))
        }
        (Kind::Plain, _) | (Kind::Markdown, None) => {
            text.split('\n').map(|line| Line::plain(&spaced(line))).collect()
        }
    };
    let mut prefixed = Vec::new();
    for line in &lines {
        let first = if prefixed.is_empty() { first } else { others };
        prefixed.extend(line.wrapped(width.unwrap_or(usize::MAX), first, others));
    }
    if prefixed.is_empty() {
        prefixed.push(first.clone());
    }
    prefixed
}

/// Words and quoted text in one line if it fits; otherwise the text follows on lines of its own, behind a gutter.
pub(super) fn in_quotes(words: &Line, text: &str, width: Option<usize>) -> Vec<Line> {
    let text = Line::plain(&quote::literal(text));
    let mut whole = words.clone().with(PLAIN, " ");
    whole.extend(&text);
    match width {
        Some(width) if whole.columns() > width => {
            let gutter = Line::new(DIM, GUTTER);
            let mut lines = words.wrapped(width, &Line::default(), &Line::plain("  "));
            lines.extend(text.wrapped(width, &gutter, &gutter));
            lines
        }
        Some(_) | None => vec![whole],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(lines: &[Line]) -> String {
        lines.iter().map(|line| line.render(false)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_frame_wraps_every_line_and_escapes_control_characters() {
        let check = |text: &str, expected: &str| {
            assert_eq!(rendered(&frame("t", text, Kind::Plain, 10)), expected);
        };
        check("", "╭ t\n│\n╰");
        check("a\n\nb", "╭ t\n│ a\n│\n│ b\n╰");
        check("12345678", "╭ t\n│ 12345678\n╰");
        check("123456789", "╭ t\n│ 12345678\n│ 9\n╰");
        check("1234 6789", "╭ t\n│ 1234\n│ 6789\n╰");
        check("ääääb", "╭ t\n│ ääää\n│ b\n╰");
        check("a\r\u{1b}[2K\n╰", "╭ t\n│ a\\r\\x1b[\n│ 2K\n│ ╰\n╰");
        check("a\u{2028}b", "╭ t\n│ a\\u{2028\n│ }b\n╰");
        check("\tx", "╭ t\n│     x\n╰");
        assert_eq!(rendered(&frame("a\nb", "c", Kind::Plain, 1)), "╭ a\\nb\n│ c\n╰");
    }

    #[test]
    fn a_wrapped_line_has_a_margin_so_that_it_cannot_pass_for_one_of_ours() {
        let quoted = |text: &str, width: Option<usize>| {
            rendered(&in_quotes(&Line::plain("per_1 asks:"), text, width))
        };
        let check = |width: usize, expected: &str| {
            assert_eq!(quoted("ls; rm", Some(width)), expected, "{width}");
        };
        check(20, "per_1 asks: \"ls; rm\"");
        check(19, "per_1 asks:\n│ \"ls; rm\"");
        check(8, "per_1\n  asks:\n│ \"ls;\n│ rm\"");
        assert_eq!(quoted("a\nb", None), "per_1 asks: \"a\\nb\"");
    }
}
