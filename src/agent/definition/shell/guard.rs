//! Protects the parser from lines it could not finish: it backtracks, so that its time doubles with every
//! bracket; it recurses; and its tokenizer can allocate without end. A line that is refused here is
//! treated as uncertain.

use brush_parser::{Token, uncached_tokenize_str};

use super::options;

const LONGEST_LINE: usize = 64 * 1024;

/// The tokenizer returns the same token for ever on some here-documents.
pub(super) const HERE_DOCUMENT: &str = "<<";

/// Expansions, for each of which the tokenizer recurses.
const EXPANSIONS: [&str; 3] = ["$(", "${", "$["];
const MOST_EXPANSIONS: usize = 64;

/// The parser's time is exponential in the number of brackets.
const MOST_BRACKETS: usize = 8;

/// Words that open a compound command, for which the parser recurses.
const OPENING: [&str; 12] =
    ["{", "[[", "case", "coproc", "do", "elif", "else", "for", "function", "if", "until", "while"];
const MOST_OPENING: usize = 32;

/// The parser tries each `case` three times, so nested ones multiply.
const MOST_CASES: usize = 3;

/// Longer numbers may not fit into those of the parser.
const LONGEST_NUMBER: usize = 9;

/// The tokens of a line; `None` if it must not be parsed, or cannot be.
pub(super) fn tokens(line: &str) -> Option<Vec<Token>> {
    let expansions: usize = EXPANSIONS.iter().map(|opening| line.matches(opening).count()).sum();
    let is_short = line.len() <= LONGEST_LINE && expansions <= MOST_EXPANSIONS;
    if !is_short || line.contains(HERE_DOCUMENT) {
        return None;
    }
    let tokens = uncached_tokenize_str(line, &options().tokenizer_options()).ok()?;
    let is_opening = |token: &&Token| OPENING.contains(&token.to_str());
    let cases = tokens.iter().filter(|token| token.to_str() == "case").count();
    let opening = tokens.iter().filter(is_opening).count();
    let brackets: usize = tokens.iter().map(brackets).sum();
    let is_bounded = cases <= MOST_CASES && opening <= MOST_OPENING && brackets <= MOST_BRACKETS;
    (is_bounded && !tokens.iter().any(is_huge_number)).then_some(tokens)
}

/// How many brackets of a token the parser looks into.
fn brackets(token: &Token) -> usize {
    match token {
        Token::Operator(operator, _) => usize::from(operator == "("),
        Token::Word(word, _) if is_quoted_whole(word) => 0,
        Token::Word(word, _) if word.contains(['$', '`']) || is_subscripted(word) => {
            word.matches(['(', '{', '[', '`']).count()
        }
        Token::Word(_, _) => 0,
    }
}

/// `'…'` with nothing else about it.
fn is_quoted_whole(word: &str) -> bool {
    let inner = word.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    inner.is_some_and(|inner| !inner.contains('\''))
}

/// `name[…`, which the parser tries to read as an assignment to an array element.
fn is_subscripted(word: &str) -> bool {
    let name = word.split_once('[').map(|(name, _)| name);
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

fn is_huge_number(token: &Token) -> bool {
    let text = token.to_str();
    text.len() > LONGEST_NUMBER && text.bytes().all(|byte| byte.is_ascii_digit())
}
