//! Patterns of permission rules: `*` is any text, slashes and all, `?` one character, `**/` any
//! folders or none; everything else stands for itself. The whole text has to match.

/// `git *` also means a bare `git`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let bare = pattern.strip_suffix(" *");
    covers(pattern, text) || bare.is_some_and(|bare| covers(bare, text))
}

enum Token {
    Folders,
    AnyText,
    AnyOne,
    One(char),
}

/// Walks all ways through the text at once, so that no pattern takes exponential time.
fn covers(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens(pattern) {
        reached = step(&token, &reached, &text);
    }
    reached[text.len()]
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
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

/// From the places in the text that are reached before the token to those reached after it.
fn step(token: &Token, reached: &[bool], text: &[char]) -> Vec<bool> {
    let mut after = vec![false; reached.len()];
    let mut any_before = false;
    for place in 0..reached.len() {
        let came_by =
            |fits: &dyn Fn(char) -> bool| place > 0 && reached[place - 1] && fits(text[place - 1]);
        after[place] = match token {
            Token::AnyText => any_before || reached[place],
            Token::Folders => reached[place] || any_before && text[place - 1] == '/',
            Token::AnyOne => came_by(&|_| true),
            Token::One(one) => came_by(&|c| c == *one),
        };
        any_before |= reached[place];
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_the_whole_text() {
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

    #[test]
    fn a_hostile_pattern_takes_no_longer() {
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
        assert!(!matches(&"**/".repeat(100), &format!("{}b", "a/".repeat(99))));
    }
}
