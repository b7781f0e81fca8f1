//! Wildcard patterns of permission rules: `*` is any text, slashes included, `?` one character, `**/` any
//! directories or none; everything else is literal, and the whole text has to match. For commands, a rule
//! that allows is taken at its narrowest and one that forbids at its widest. Matching simulates all ways
//! through the text at once (an NFA), so no pattern takes exponential time.

use super::shell::Word;

/// How much of what a command may turn out to be at run time is covered by a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Coverage {
    None,
    /// Some of it, depending on a value that is only known at run time.
    Some,
    All,
}

/// Whether a pattern matches a text. `git *` also matches a bare `git`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<Symbol> = text.chars().map(Symbol::One).collect();
    covers(pattern, &text, UnknownText::MustMatch)
}

/// For rules that forbid: the words are matched as one text, so `git push*` also covers `git pushy`.
pub(super) fn cover(pattern: &str, words: &[Word]) -> Coverage {
    let pattern = unquoted(pattern);
    if covers(&pattern, &symbols(words, UnknownText::MustMatch), UnknownText::MustMatch) {
        Coverage::All
    } else if covers(&pattern, &symbols(words, UnknownText::MayMatch), UnknownText::MayMatch) {
        Coverage::Some
    } else {
        Coverage::None
    }
}

/// For rules that allow: matched word by word. A `*` inside a word stays inside it. One at the end stands
/// for any further words, and for the rest of its own word only if it does not follow a letter or digit:
/// `git diff*` allows `git diff --stat` and not `git difftool` (which runs any program), `make test-*`
/// allows `make test-unit`.
pub(super) fn permits(pattern: &str, words: &[Word]) -> bool {
    let pattern = unquoted(pattern);
    let mut elements: Vec<Element> = pattern.split_whitespace().map(Element::of).collect();
    if let Some(Element::One(last)) = elements.last().copied()
        && let Some(start) = last.strip_suffix('*')
    {
        // `git diff*`: the star does not extend the word itself, only what comes after it.
        if start.ends_with(char::is_alphanumeric) {
            elements.pop();
            elements.push(Element::One(start));
        }
        elements.push(Element::Any);
    }
    let last = elements.len().saturating_sub(1);
    let mut reached = vec![false; words.len() + 1];
    reached[0] = true;
    for (n, element) in elements.iter().enumerate() {
        // A `*` in the middle stands for at least one word; at the end it may stand for none.
        let least = usize::from(n != last);
        reached = element.step(&reached, words, least);
    }
    // An empty pattern allows nothing.
    !elements.is_empty() && reached[words.len()]
}

/// A word of a pattern.
#[derive(Clone, Copy)]
enum Element<'a> {
    One(&'a str),
    Any,
}

impl<'a> Element<'a> {
    fn of(word: &'a str) -> Element<'a> {
        if word == "*" { Element::Any } else { Element::One(word) }
    }

    /// One step of the simulation: from the positions reached before this element to those after it.
    fn step(self, reached: &[bool], words: &[Word], least: usize) -> Vec<bool> {
        let fits = |pattern: &str, word: &Word| match word {
            Word::Literal(text) | Word::Glob(text) => matches(pattern, text),
            Word::Unknown => false,
        };
        let mut any_before = false;
        let mut after = vec![false; reached.len()];
        for place in 0..reached.len() {
            after[place] = match self {
                Element::One(pattern) => {
                    place > 0 && reached[place - 1] && fits(pattern, &words[place - 1])
                }
                Element::Any => any_before || least == 0 && reached[place],
            };
            any_before |= reached[place];
        }
        after
    }
}

/// A pattern without quotes: it was written for lines as they are typed, and parsed words have none left.
fn unquoted(pattern: &str) -> String {
    pattern.replace(['\'', '"', '\\'], "")
}

/// What is matched: a character, or a text that is only known at run time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Symbol {
    One(char),
    Unknown,
}

/// Whether a pattern has to match all that a text only known at run time can be, or any of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownText {
    MustMatch,
    MayMatch,
}

/// The words as one sequence of symbols, with spaces between them.
fn symbols(words: &[Word], unknown: UnknownText) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    for (n, word) in words.iter().enumerate() {
        symbols.extend((n > 0).then_some(Symbol::One(' ')));
        match (word, unknown) {
            (Word::Literal(text), _) | (Word::Glob(text), UnknownText::MustMatch) => {
                symbols.extend(text.chars().map(Symbol::One));
            }
            (Word::Unknown, _) | (Word::Glob(_), UnknownText::MayMatch) => {
                symbols.push(Symbol::Unknown);
            }
        }
    }
    symbols
}

/// A token of a pattern.
enum Token {
    /// `**/`
    Folders,
    AnyText,
    AnyOne,
    One(char),
}

fn covers(pattern: &str, text: &[Symbol], unknown: UnknownText) -> bool {
    let bare = pattern.strip_suffix(" *");
    walk(pattern, text, unknown) || bare.is_some_and(|bare| walk(bare, text, unknown))
}

/// The simulation: keeps the set of positions in the text that some way through the pattern reaches, so
/// that the time is the product of both lengths.
fn walk(pattern: &str, text: &[Symbol], unknown: UnknownText) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    skip_unknown(&mut reached, text, unknown);
    for token in tokens(pattern) {
        reached = step(&token, &reached, text, unknown);
        skip_unknown(&mut reached, text, unknown);
    }
    reached[text.len()]
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            // `**/x` also matches `x` itself, which `*` and a literal `/` would not.
            '*' if rest.starts_with("**/") => (Token::Folders, 3),
            '*' => (Token::AnyText, 1),
            '?' => (Token::AnyOne, 1),
            other => (Token::One(other), other.len_utf8()),
        };
        tokens.push(token);
        rest = &rest[length..];
    }
    tokens
}

/// One step: from the positions reached before a token to those reached after it.
fn step(token: &Token, reached: &[bool], text: &[Symbol], unknown: UnknownText) -> Vec<bool> {
    let may_be_slash = |symbol: Symbol| match symbol {
        Symbol::One(c) => c == '/',
        Symbol::Unknown => unknown == UnknownText::MayMatch,
    };
    let mut after = vec![false; reached.len()];
    let mut any_before = false;
    for place in 0..reached.len() {
        let came_by = |fits: &dyn Fn(char) -> bool| {
            let before = place > 0 && reached[place - 1];
            let one = before && matches!(text[place - 1], Symbol::One(c) if fits(c));
            // An unknown text can contain any character, and more after it.
            one || unknown == UnknownText::MayMatch
                && reached[place]
                && text.get(place) == Some(&Symbol::Unknown)
        };
        after[place] = match token {
            Token::AnyText => any_before || reached[place],
            Token::Folders => reached[place] || any_before && may_be_slash(text[place - 1]),
            Token::AnyOne => came_by(&|_| true),
            Token::One(one) => came_by(&|c| c == *one),
        };
        any_before |= reached[place];
    }
    after
}

/// An unknown text can also be empty, so the position after it is reached as well.
fn skip_unknown(reached: &mut [bool], text: &[Symbol], unknown: UnknownText) {
    if unknown == UnknownText::MustMatch {
        return;
    }
    for (place, symbol) in text.iter().enumerate() {
        if *symbol == Symbol::Unknown && reached[place] {
            reached[place + 1] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_text_or_nothing() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            for text in yes {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in no {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        };
        check("*", &["", "a", "a/b c"], &[]);
        check("git *", &["git", "git log", "git log -p"], &["gitk", "a git log", " git"]);
        check("git diff*", &["git diff", "git diff --stat", "git diffx"], &["git di"]);
        check("src/*.rs", &["src/a.rs", "src/a/b.rs"], &["src/a.rst", "a/src/a.rs"]);
        check("src/**", &["src/a", "src/a/b"], &["src"]);
        check("**/*.rs", &["a.rs", "a/b/c.rs"], &["a.md"]);
        check("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb"]);
        check("?.rs", &["a.rs", "ä.rs"], &[".rs", "ab.rs"]);
        check("[a]{b}", &["[a]{b}"], &["ab"]);
        check("", &[""], &["a"]);
    }

    /// Words without quotes: `?…` is one only a running shell knows, `~…` one with a glob in it.
    fn words(line: &str) -> Vec<Word> {
        let word = |text: &str| match text.chars().next() {
            Some('?') => Word::Unknown,
            Some('~') => Word::Glob(text[1..].to_owned()),
            Some(_) | None => Word::Literal(text.replace('_', " ")),
        };
        line.split(' ').map(word).collect()
    }

    #[test]
    fn an_allow_pattern_matches_whole_words_only() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            for line in yes {
                assert!(permits(pattern, &words(line)), "{pattern}: {line}");
            }
            for line in no {
                assert!(!permits(pattern, &words(line)), "{pattern}: {line}");
            }
        };
        for pattern in ["git diff*", "git diff *"] {
            check(
                pattern,
                &["git diff", "git diff --stat", "git diff a b", "git diff ~*.rs"],
                &["git difftool", "git diff-files", "git", "gitk", "git_diff", "a git diff"],
            );
        }
        check("git diff", &["git diff"], &["git diff a", "git difftool"]);
        check("make test-*", &["make test-unit", "make test-unit a"], &["make test", "make testx"]);
        check("./bin/*", &["./bin/a", "./bin/a b"], &["./bin", "./x ./bin/a"]);
        check("npm run test:*", &["npm run test:a", "npm run test: a"], &["npm run test"]);
        check("cat src/*.rs", &["cat src/a.rs", "cat src/a/b.rs"], &["cat src/a /etc/b.rs"]);
        check(
            "git * --stat",
            &["git diff --stat", "git diff a --stat"],
            &["git --stat", "git diff"],
        );
        check("* --version", &["git --version"], &["--version", "git"]);
        check("git commit -m 'x'", &["git commit -m x"], &["git commit -m y"]);
        check("git diff*", &["git diff ?"], &["?", "git ?"]);
        check("", &[], &["a"]);
    }

    #[test]
    fn a_deny_pattern_also_matches_beyond_word_boundaries() {
        let check = |pattern: &str, line: &str, expected: Coverage| {
            assert_eq!(cover(pattern, &words(line)), expected, "{pattern}: {line}");
        };
        check("git push*", "git push", Coverage::All);
        check("git push*", "git push --force", Coverage::All);
        check("git push*", "git pushx", Coverage::All);
        check("git push *", "git push", Coverage::All);
        check("git push*", "git push_x", Coverage::All);
        check("git push*", "git push ?", Coverage::All);
        check("git push*", "git ?", Coverage::Some);
        check("git push*", "?", Coverage::Some);
        check("git push*", "git ~pu*", Coverage::Some);
        check("git push --force*", "git push ?", Coverage::Some);
        check("git push --force*", "git push origin ?", Coverage::None);
        check("git push*", "git pull ?", Coverage::None);
        check("git push*", "git add ~*.rs", Coverage::None);
        check("* --force*", "git push ? --force", Coverage::All);
        check("rm a/**/b", "rm ?", Coverage::Some);
        check("git commit -m \"x\"*", "git commit -m x", Coverage::All);
    }

    #[test]
    fn a_hostile_pattern_does_not_backtrack_exponentially() {
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
        assert!(!matches(&"**/".repeat(100), &format!("{}b", "a/".repeat(99))));
    }
}
