//! Markdown as lines for a terminal: headings, lists, quotes, code and tables, wrapped to a width. Nothing that an
//! agent wrote is hidden by it: links show their addresses, and HTML is shown as text.
//!
//! The parser decodes entities (`&#27;`), so that text is escaped afterwards, when it becomes a span.

use anstyle::{AnsiColor, Color, Style};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::line::{BOLD, DIM, Line, PLAIN, Side, spaced};

const CODE: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Cyan)));

/// The lines of a text, none of them wider than this as long as one character fits.
pub(super) fn lines(text: &str, width: usize) -> Vec<Line> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut page = Page { width, ..Page::default() };
    for event in Parser::new_ext(text, options) {
        page.take(event);
    }
    page.end_line();
    page.lines
}

#[derive(Default)]
struct Page {
    width: usize,
    lines: Vec<Line>,
    /// The line that is being filled.
    line: Line,
    styles: Vec<Style>,
    indents: Vec<Indent>,
    /// The next number of each list that is open, `None` for bullets.
    lists: Vec<Option<u64>>,
    links: Vec<Link>,
    table: Option<Vec<Vec<Line>>>,
    in_code: bool,
}

/// What a list item or a quote puts in front of its lines.
struct Indent {
    first: Line,
    others: Line,
    is_used: bool,
}

struct Link {
    address: String,
    text: String,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => self.code(&text),
            Event::Text(text) => self.say(self.style(), &text),
            Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                self.say(CODE, &text);
            }
            Event::Html(text) | Event::InlineHtml(text) => self.html(&text),
            Event::FootnoteReference(name) => self.say(DIM, &format!("[{name}]")),
            // Agents mean the lines they write: one place each, one step each.
            Event::SoftBreak | Event::HardBreak => match self.table {
                Some(_) => self.say(PLAIN, " "),
                None => self.end_line(),
            },
            Event::Rule => {
                self.start_block();
                self.line.push(DIM, "───");
                self.end_line();
            }
            Event::TaskListMarker(is_done) => self.say(BOLD, if is_done { "[x] " } else { "[ ] " }),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        let style = self.style();
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.start_block(),
            Tag::Heading { .. } => {
                self.start_block();
                self.styles.push(style.bold());
            }
            Tag::BlockQuote(_) => {
                self.start_block();
                self.indent(Line::new(DIM, "> "), Line::new(DIM, "> "));
            }
            Tag::CodeBlock(kind) => {
                self.start_block();
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    self.line.push(DIM, &spaced(&language));
                    self.end_line();
                }
                self.indent(Line::plain("  "), Line::plain("  "));
                self.in_code = true;
            }
            Tag::List(first) => {
                self.end_line();
                if self.lists.is_empty() {
                    self.start_block();
                }
                self.lists.push(first);
            }
            Tag::Item => {
                self.end_line();
                let marker = match self.lists.last_mut() {
                    Some(Some(n)) => {
                        *n += 1;
                        format!("{}. ", *n - 1)
                    }
                    Some(None) | None => "• ".to_owned(),
                };
                let others = Line::plain(&" ".repeat(marker.chars().count()));
                self.indent(Line::new(DIM, &marker), others);
            }
            Tag::Table(_) => {
                self.start_block();
                self.table = Some(Vec::new());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(rows) = &mut self.table {
                    rows.push(Vec::new());
                }
            }
            Tag::TableCell => self.line = Line::default(),
            Tag::Emphasis => self.styles.push(style.italic()),
            Tag::Strong => self.styles.push(style.bold()),
            Tag::Strikethrough => self.styles.push(style.strikethrough()),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                let address = dest_url.into_string();
                self.links.push(Link { address, text: String::new() });
                self.styles.push(style.underline());
            }
            Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_line(),
            TagEnd::Heading(_) => {
                self.end_line();
                self.styles.pop();
            }
            TagEnd::BlockQuote(_) => {
                self.end_line();
                self.indents.pop();
            }
            TagEnd::Item => {
                // An item without text still shows its marker.
                if self.indents.last().is_some_and(|indent| !indent.is_used) {
                    self.line.push(PLAIN, " ");
                }
                self.end_line();
                self.indents.pop();
            }
            TagEnd::CodeBlock => {
                self.in_code = false;
                self.indents.pop();
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line);
                if let Some(row) = self.table.as_mut().and_then(|rows| rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => self.end_table(),
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some(Link { address, text }) = self.links.pop()
                    && address != text
                {
                    self.say(DIM, &format!(" ({address})"));
                }
            }
            TagEnd::TableHead
            | TagEnd::TableRow
            | TagEnd::FootnoteDefinition
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::MetadataBlock(_) => {}
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or(PLAIN)
    }

    fn say(&mut self, style: Style, text: &str) {
        if let Some(link) = self.links.last_mut() {
            link.text.push_str(text);
        }
        self.line.push(style, &spaced(text));
    }

    fn code(&mut self, text: &str) {
        for line in text.split_terminator('\n') {
            // A line without text is a line of the code, too.
            self.line.push(CODE, &format!("{} ", spaced(line)));
            self.end_line();
        }
    }

    fn html(&mut self, text: &str) {
        for (n, line) in text.trim_end_matches('\n').split('\n').enumerate() {
            if n > 0 {
                self.end_line();
            }
            self.say(DIM, line);
        }
        if text.ends_with('\n') {
            self.end_line();
        }
    }

    /// Quotes and lists can be nested at will; those that would leave no room are not indented any further.
    fn indent(&mut self, first: Line, others: Line) {
        let used: usize = self.indents.iter().map(|indent| indent.others.columns()).sum();
        let indent = match used + others.columns() <= self.width / 2 {
            true => Indent { first, others, is_used: false },
            false => Indent { first: Line::default(), others: Line::default(), is_used: true },
        };
        self.indents.push(indent);
    }

    /// An empty line between two blocks, but none between an item's marker and its text.
    fn start_block(&mut self) {
        self.end_line();
        let follows_marker = self.indents.last().is_some_and(|indent| !indent.is_used);
        if !self.lines.is_empty() && !follows_marker {
            let mut gap = Line::default();
            self.indents.iter().for_each(|indent| gap.extend(&indent.others));
            self.lines.push(gap);
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        let (mut first, mut others) = (Line::default(), Line::default());
        for indent in &mut self.indents {
            first.extend(if indent.is_used { &indent.others } else { &indent.first });
            others.extend(&indent.others);
            indent.is_used = true;
        }
        self.lines.extend(line.wrapped(self.width, &first, &others));
    }

    /// Columns are aligned; a row that is too wide is wrapped like a paragraph.
    fn end_table(&mut self) {
        let rows = self.table.take().unwrap_or_default();
        let widest =
            |n: usize| rows.iter().filter_map(|row| row.get(n)).map(Line::width).max().unwrap_or(0);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(widest).collect();
        // A hostile table could be padded to any size.
        let is_aligned = widths.iter().sum::<usize>() + 3 * columns <= self.width;
        for (n, row) in rows.into_iter().enumerate() {
            for (cell, width) in row.into_iter().zip(&widths) {
                if !self.line.is_empty() {
                    self.line.push(DIM, " │ ");
                }
                let cell = if is_aligned { cell.padded(*width, Side::Right) } else { cell };
                self.line.extend(&cell);
            }
            self.end_line();
            if n == 0 {
                self.line.push(DIM, "───");
                self.end_line();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rendered(text: &str, width: usize) -> String {
        let lines: Vec<String> = lines(text, width).iter().map(|line| line.render(false)).collect();
        lines.join("\n")
    }

    #[test]
    fn markdown_becomes_lines() {
        let text = "# Title\n\nSome **bold** and `code` and\nanother line.\n\n- one\n- two\n  - nested\n\n\
                    3. three\n4. four\n\n```rust\nfn main() {\n\n    x();\n}\n```\n\n> quoted\n> text\n\n---\n\n\
                    | a | bb |\n|---|---|\n| 1 | 2 |\n\n[here](http://x/y) <b>html</b> <http://z>\n\n- [x] done";
        insta::assert_snapshot!(rendered(text, 40), @r"
        Title

        Some bold and code and
        another line.

        • one
        • two
          • nested

        3. three
        4. four

        rust
          fn main() {

              x();
          }

        > quoted
        > text

        ───

        a │ bb
        ───
        1 │ 2

        here (http://x/y) <b>html</b> http://z

        • [x] done
        ");
    }

    #[test]
    fn styles_are_bold_and_colours() {
        let line = lines("**a** `b` *c* ~~d~~", 40).remove(0).render(true);
        let expected =
            "\u{1b}[1ma\u{1b}[0m \u{1b}[36mb\u{1b}[0m \u{1b}[3mc\u{1b}[0m \u{1b}[9md\u{1b}[0m";
        assert_eq!(line, expected);
    }

    #[test]
    fn entities_are_escaped_and_deep_nesting_stays_within_the_width() {
        assert_eq!(rendered("a&#27;[2J&#x202e;b", 40), "a\\x1b[2J\\u{202e}b");
        let deep = format!("{}text that goes on", "> ".repeat(50));
        assert!(
            lines(&deep, 20).iter().all(|line| line.columns() <= 20),
            "{}",
            rendered(&deep, 20)
        );
        assert!(rendered(&deep, 20).starts_with("> > > > > "), "{}", rendered(&deep, 20));
        assert_eq!(rendered("", 20), "");
        assert_eq!(rendered("-\n- b", 20), "•\n• b");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal_and_none_moves_the_cursor(
            text in "(?s)[-#>*`|\n\t 0-9.a-c\\[\\]()<&;\u{1b}é]{0,200}|.{0,200}",
            width in 8..60_usize,
        ) {
            for line in lines(&text, width) {
                prop_assert!(line.columns() <= width, "{:?}", line.text());
                prop_assert!(!line.text().contains(char::is_control), "{:?}", line.text());
            }
        }
    }
}
