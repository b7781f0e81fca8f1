//! Evaluates a shell word (quotes, escapes) as far as its value does not depend on a running shell, and
//! collects the command substitutions in it.

use brush_parser::word::{WordPiece, WordPieceWithSource, parse, parse_heredoc};

use super::{Word, options};

/// The value of a word.
pub(super) struct Value {
    pub(super) word: Word,
    /// The source of commands whose output goes into it.
    pub(super) substitutions: Vec<String>,
}

/// Evaluates the source of a word.
pub(super) fn read(source: &str) -> Value {
    let Ok(pieces) = parse(source, &options()) else {
        return Value { word: Word::Unknown, substitutions: Vec::new() };
    };
    let mut reader = Reader { is_known: true, ..Reader::default() };
    reader.pieces(source, &pieces, Quotes::None);
    let Reader { text, is_known, is_glob, has_brace, substitutions } = reader;
    // Brace expansion (`{a,b}`, `{1..9}`), which makes several words of one.
    let is_expanded =
        has_brace && (text.contains(',') || text.contains("..") || is_variable(&text));
    // A lone `[` is the command of that name and no glob.
    let word = match (is_known && !is_expanded, is_glob && text != "[") {
        (false, _) => Word::Unknown,
        (true, true) => Word::Glob(text),
        (true, false) => Word::Literal(text),
    };
    Value { word, substitutions }
}

/// `{name}`: before a redirection it is not an argument, but a variable that gets the new descriptor.
fn is_variable(text: &str) -> bool {
    text.len() > 2 && text.starts_with('{') && text.ends_with('}')
}

/// Whether a piece that the parser takes for text contains an expansion that bash would perform: bash
/// knows more of them than the parser, and `${ command; }` runs one. A dollar at the end is literal.
fn is_unread_expansion(piece: &WordPiece, rest: &str) -> bool {
    let WordPiece::Text(text) = piece else { return false };
    let is_last = rest.is_empty() || rest.starts_with('"');
    let text = if is_last { text.strip_suffix('$').unwrap_or(text) } else { text };
    text.contains(['$', '`'])
}

/// The command substitutions in a text where quotes have no meaning, such as arithmetic.
pub(super) fn substitutions(text: &str) -> Vec<String> {
    let mut reader = Reader::default();
    if let Ok(pieces) = parse_heredoc(text, &options()) {
        reader.pieces(text, &pieces, Quotes::Double);
    }
    reader.substitutions
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    None,
    Double,
}

#[derive(Default)]
struct Reader {
    text: String,
    is_known: bool,
    is_glob: bool,
    has_brace: bool,
    substitutions: Vec<String>,
}

impl Reader {
    fn pieces(&mut self, source: &str, pieces: &[WordPieceWithSource], quotes: Quotes) {
        for WordPieceWithSource { piece, start_index, end_index } in pieces {
            match piece {
                WordPiece::DoubleQuotedSequence(inner) => {
                    self.pieces(source, inner, Quotes::Double)
                }
                // `$"…"` is translated by the locale's message catalogue.
                WordPiece::GettextDoubleQuotedSequence(inner) => {
                    self.is_known = false;
                    self.pieces(source, inner, Quotes::Double);
                }
                other => {
                    let range = *start_index..*end_index;
                    self.piece(source.get(range).unwrap_or_default(), other, quotes);
                    let rest = source.get(*end_index..).unwrap_or_default();
                    self.is_known &= !is_unread_expansion(other, rest);
                }
            }
        }
    }

    fn piece(&mut self, source: &str, piece: &WordPiece, quotes: Quotes) {
        match piece {
            WordPiece::Text(text) => {
                if quotes == Quotes::None {
                    // A tilde expands at the start of a word, in some also after `=` and `:`; anywhere
                    // counts.
                    self.is_glob |= text.contains(['*', '?', '[', '~']);
                    self.has_brace |= text.contains('{');
                }
                self.text.push_str(text);
            }
            WordPiece::SingleQuotedText(text) => self.text.push_str(text),
            WordPiece::EscapeSequence(sequence) => {
                self.text.push_str(sequence.strip_prefix('\\').unwrap_or(sequence));
            }
            // `$'…'` has escapes of its own, which are not evaluated here.
            WordPiece::AnsiCQuotedText(_)
            | WordPiece::TildeExpansion(_)
            | WordPiece::DoubleQuotedSequence(_)
            | WordPiece::GettextDoubleQuotedSequence(_) => self.is_known = false,
            WordPiece::CommandSubstitution(command)
            | WordPiece::BackquotedCommandSubstitution(command) => {
                self.is_known = false;
                self.substitutions.push(command.clone());
            }
            // `${x:-$(command)}` and `$((a[$(command)]))`
            WordPiece::ParameterExpansion(_) | WordPiece::ArithmeticExpression(_) => {
                self.is_known = false;
                let inner = source.get(2..).unwrap_or_default();
                self.substitutions.extend(substitutions(inner));
            }
        }
    }
}
