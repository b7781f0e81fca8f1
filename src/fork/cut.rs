//! Truncation of texts and tool results (F4): keeps a number of characters from the beginning, or from
//! the beginning and the end, and notes how many are gone. No cut splits a character.

use crate::text::{head, tail};

/// Tools whose output is cut in the middle, because it ends with what matters. Matched anywhere in the
/// tool's name (`my_bash_tool`).
const SHELLS: [&str; 3] = ["bash", "pty", "exec"];
const ERROR_WORDS: [&str; 7] =
    ["error", "Error", "ERROR", "failed", "FAILED", "exception", "traceback"];

/// An upper bound for the note that a cut leaves.
pub(super) const LONGEST_NOTE: usize = 48;

/// Which part of a text survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Head,
    /// Four fifths from the beginning, one from the end.
    HeadAndTail,
}

/// How the result of a tool is cut: errors and shell output keep their end.
pub(super) fn method(tool: &str, result: &str) -> Method {
    let is_shell = SHELLS.iter().any(|shell| tool.contains(shell));
    match is_shell || ERROR_WORDS.iter().any(|word| result.contains(word)) {
        true => Method::HeadAndTail,
        false => Method::Head,
    }
}

/// Whether the text has more characters than this, without counting a long one to its end.
pub(super) fn exceeds(text: &str, characters: usize) -> bool {
    text.len() > characters && text.char_indices().nth(characters).is_some()
}

/// Appends `text`, cut to this many characters. `method` is called only if it is cut, because it searches
/// the whole text.
pub(super) fn push(
    out: &mut String,
    text: &str,
    characters: usize,
    method: impl FnOnce() -> Method,
) {
    if !exceeds(text, characters) {
        return out.push_str(text);
    }
    let gone = text.chars().count() - characters;
    let noun = if gone == 1 { "character" } else { "characters" };
    match method() {
        Method::Head => {
            out.push_str(head(text, characters));
            out.push_str(&format!("\n[{gone} more {noun} cut]"));
        }
        Method::HeadAndTail => {
            // The head gets the remainder, so that together they are exactly `characters`.
            let tail_characters = characters / 5;
            out.push_str(head(text, characters - tail_characters));
            out.push_str(&format!("\n[{gone} {noun} cut]\n"));
            out.push_str(tail(text, tail_characters));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, characters: usize, method: Method) -> String {
        let mut out = String::new();
        push(&mut out, text, characters, || method);
        out
    }

    #[test]
    fn the_truncation_method_depends_on_the_tool_and_on_error_words_in_its_result() {
        let check = |tool: &str, result: &str, expected: Method| {
            assert_eq!(method(tool, result), expected, "{tool}: {result}");
        };
        for tool in ["bash", "pty", "exec", "my_bash_tool", "pty_spawn", "remote-exec", "executor"]
        {
            check(tool, "all is well", Method::HeadAndTail);
        }
        for tool in ["read", "grep", "Bash", "BASH", "bas", "pt", "exe", "e-x-e-c", ""] {
            check(tool, "all is well", Method::Head);
        }
        for word in ["error", "Error", "ERROR", "failed", "FAILED", "exception", "traceback"] {
            check("read", word, Method::HeadAndTail);
            check("read", &format!("é{word}é"), Method::HeadAndTail);
            check("read", &format!("12{word}s: 3"), Method::HeadAndTail);
        }
        for near_miss in [
            "erro",
            "rror",
            "eRror",
            "ERRor",
            "err or",
            "fail",
            "Failed",
            "FAILe",
            "faile",
            "excep",
            "Exception",
            "EXCEPTION",
            "Traceback",
            "trace back",
            "TRACEBACK",
            "",
        ] {
            check("read", near_miss, Method::Head);
        }
    }

    #[test]
    fn a_text_is_cut_only_beyond_its_limit_and_says_how_much_is_gone() {
        for letter in ["a", "é", "€", "🦀"] {
            for limit in [100, 200, 500, 3_000] {
                let text = |n: usize| letter.repeat(n);
                for whole in [0, 1, limit - 1, limit] {
                    assert_eq!(cut(&text(whole), limit, Method::Head), text(whole));
                    assert_eq!(cut(&text(whole), limit, Method::HeadAndTail), text(whole));
                }
                for (gone, noun) in [(1, "character"), (2, "characters"), (9_999, "characters")] {
                    let long = text(limit + gone);
                    let head = format!("{}\n[{gone} more {noun} cut]", text(limit));
                    assert_eq!(cut(&long, limit, Method::Head), head);
                    let both = format!(
                        "{}\n[{gone} {noun} cut]\n{}",
                        text(limit / 5 * 4),
                        text(limit / 5)
                    );
                    assert_eq!(cut(&long, limit, Method::HeadAndTail), both);
                }
            }
        }
    }

    #[test]
    fn head_and_tail_are_the_beginning_and_the_end() {
        let text = "0123456789é123456789€123456789";
        assert_eq!(cut(text, 10, Method::Head), "0123456789\n[20 more characters cut]");
        assert_eq!(cut(text, 10, Method::HeadAndTail), "01234567\n[20 characters cut]\n89");
        assert_eq!(cut(text, 11, Method::Head), "0123456789é\n[19 more characters cut]");
        assert_eq!(cut(text, 0, Method::HeadAndTail), "\n[30 characters cut]\n");
        assert_eq!(cut(text, 4, Method::HeadAndTail), "0123\n[26 characters cut]\n");
    }

    #[test]
    fn the_longest_truncation_note_fits_its_reserved_space() {
        let longest = format!("\n[{} more characters cut]\n", usize::MAX);
        assert!(longest.len() <= LONGEST_NOTE, "{}", longest.len());
    }

    #[test]
    fn the_truncation_method_is_not_computed_for_a_text_that_fits() {
        let mut out = String::new();
        push(&mut out, "short", 5, || panic!("asked"));
        assert_eq!(out, "short");
    }
}
