//! The value of a word, where it does not depend on a running shell.

use brush_parser::word::{WordPiece, WordPieceWithSource, parse, parse_heredoc};

use super::{Word, options};

pub(super) struct Value {
    pub(super) word: Word,
    /// The commands whose output goes into it.
    pub(super) substitutions: Vec<String>,
}

pub(super) fn read(source: &str) -> Value {
    let Ok(pieces) = parse(source, &options()) else {
        return Value { word: Word::Unknown, substitutions: Vec::new() };
    };
    let mut reader = Reader { is_known: true, ..Reader::default() };
    reader.pieces(source, &pieces, Quotes::None);
    let Reader { text, is_known, is_glob, has_brace, substitutions } = reader;
    let is_expanded =
        has_brace && (text.contains(',') || text.contains("..") || is_variable(&text));
    let word = match (is_known && !is_expanded, is_glob && text != "[") {
        (false, _) => Word::Unknown,
        (true, true) => Word::Glob(text),
        (true, false) => Word::Literal(text),
    };
    Value { word, substitutions }
}

/// `{name}`, which before a redirection is no argument but a variable for the new descriptor.
fn is_variable(text: &str) -> bool {
    text.len() > 2 && text.starts_with('{') && text.ends_with('}')
}

/// What the parser does not know as an expansion, it takes for text. Bash knows more of them:
/// `${ command; }` runs one. A dollar at the end stands for itself.
fn is_unread_expansion(piece: &WordPiece, rest: &str) -> bool {
    let WordPiece::Text(text) = piece else { return false };
    let is_last = rest.is_empty() || rest.starts_with('"');
    let text = if is_last { text.strip_suffix('$').unwrap_or(text) } else { text };
    text.contains(['$', '`'])
}

/// The commands whose output goes into a text, in which quotes are like other characters.
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
                // What a translation would make of it is not looked up.
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
                    // A tilde counts at the start of a word, and after `=` and `:` in some.
                    self.is_glob |= text.contains(['*', '?', '[', '~']);
                    self.has_brace |= text.contains('{');
                }
                self.text.push_str(text);
            }
            WordPiece::SingleQuotedText(text) => self.text.push_str(text),
            WordPiece::EscapeSequence(sequence) => {
                self.text.push_str(sequence.strip_prefix('\\').unwrap_or(sequence));
            }
            // Its escapes are a language of their own.
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
