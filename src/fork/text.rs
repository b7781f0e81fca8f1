//! The text of a raw JSON value. Strings without escapes are borrowed, not copied. Lone surrogates
//! (`\ud83e` without its other half, which JavaScript programs produce when they cut a string) become
//! U+FFFD: serde_json would refuse them, and with them the whole conversation.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The text of a string, the joined texts of a list of content blocks, or else the JSON itself.
pub(super) fn text(raw: &RawValue) -> Cow<'_, str> {
    let json = raw.get();
    let inside = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inside {
        Some(text) if !text.contains('\\') => Cow::Borrowed(text),
        Some(text) => Cow::Owned(unescape(text)),
        None if json == "null" => Cow::Borrowed(""),
        None if json.starts_with('[') => blocks(json),
        None => Cow::Borrowed(json),
    }
}

/// Arguments as JSON on one line, in the order in which the model wrote them.
pub(super) fn one_line(raw: &RawValue) -> Cow<'_, str> {
    match serde_json::from_str::<Value>(raw.get()) {
        Ok(value) => Cow::Owned(value.to_string()),
        // Nested too deep for serde_json, or with a lone surrogate in it.
        Err(_) => Cow::Borrowed(raw.get()),
    }
}

fn blocks(json: &str) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow)]
        text: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Vec<Block<'_>>>(json) {
        Ok(blocks) => {
            let texts: Vec<_> = blocks.iter().filter_map(|b| b.text.map(text)).collect();
            Cow::Owned(texts.join("\n"))
        }
        Err(_) => Cow::Borrowed(json),
    }
}

/// Resolves the escapes of a JSON string without its quotes. The string was parsed before, so none of
/// its escapes is incomplete.
fn unescape(inside: &str) -> String {
    let mut text = String::with_capacity(inside.len());
    let mut rest = inside;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let mut escape = rest[at + 1..].chars();
        let letter = escape.next().unwrap_or('\\');
        rest = escape.as_str();
        match letter {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'u' => {
                let (letter, after) = code_point(rest);
                text.push(letter);
                rest = after;
            }
            other => text.push(other),
        }
    }
    text.push_str(rest);
    text
}

/// The character after `\u`, joined from a surrogate pair if it is one, and the rest of the text.
fn code_point(digits: &str) -> (char, &str) {
    let Some((first, rest)) = hexadecimal(digits) else {
        return (char::REPLACEMENT_CHARACTER, digits);
    };
    if let Some(letter) = char::from_u32(first) {
        return (letter, rest);
    }
    // Only surrogates are left: a high one (below DC00) needs a low one right behind it.
    let low = rest.strip_prefix("\\u").and_then(hexadecimal);
    match low {
        Some((low @ 0xDC00..=0xDFFF, rest)) if first < 0xDC00 => {
            let both = 0x1_0000 + ((first - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER), rest)
        }
        Some(_) | None => (char::REPLACEMENT_CHARACTER, rest),
    }
}

fn hexadecimal(digits: &str) -> Option<(u32, &str)> {
    let (four, rest) = digits.split_at_checked(4)?;
    Some((u32::from_str_radix(four, 16).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: &str) {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        assert_eq!(text(raw), expected, "{json}");
        assert_eq!(matches!(text(raw), Cow::Borrowed(_)), !json.contains('\\'), "{json}");
    }

    #[test]
    fn a_text_without_escapes_is_not_copied() {
        check(r#""""#, "");
        check(r#""plain é 🦀""#, "plain é 🦀");
        check("null", "");
        check(r#"{"a": 1}"#, r#"{"a": 1}"#);
        check("17", "17");
    }

    #[test]
    fn every_escape_sequence_is_decoded() {
        check(r#""a\n\t\r\b\f\"\\\/z""#, "a\n\t\r\u{8}\u{c}\"\\/z");
        check(r#""\u00e9\u0041""#, "éA");
        check(r#""\ud83e\udd80!""#, "🦀!");
        check(r#""\\u0041""#, "\\u0041");
    }

    #[test]
    fn a_lone_surrogate_is_replaced_and_what_follows_is_kept() {
        check(r#""a\ud83e""#, "a\u{fffd}");
        check(r#""\ud83eb""#, "\u{fffd}b");
        check(r#""\udd80\ud83e\udd80""#, "\u{fffd}🦀");
        check(r#""\ud83e\u0041""#, "\u{fffd}A");
        check(r#""\ud83e\nb""#, "\u{fffd}\nb");
    }

    #[test]
    fn strings_are_decoded_as_serde_json_decodes_them() {
        for text_of in ["", "a\"b\\c/d", "\u{0}\u{1f}\u{7f}", "é\u{2028}🦀\n", "\\u0041"] {
            let json = serde_json::to_string(text_of).unwrap();
            let raw: &RawValue = serde_json::from_str(&json).unwrap();
            assert_eq!(text(raw), text_of);
        }
    }

    #[test]
    fn content_blocks_become_their_texts() {
        let json = r#"[{"type": "text", "text": "one"}, {"type": "image"}, {"text": "tw\u006f"}]"#;
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        assert_eq!(text(raw), "one\ntwo");
        let raw: &RawValue = serde_json::from_str("[1, 2]").unwrap();
        assert_eq!(text(raw), "[1, 2]");
    }

    #[test]
    fn arguments_are_one_line_in_their_own_order() {
        let one_line = |json: &str| {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            one_line(raw).into_owned()
        };
        assert_eq!(one_line("{\n \"z\": 1,\n \"a\": \"\\u00e9\"\n}"), "{\"z\":1,\"a\":\"é\"}");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(one_line(&deep), deep);
    }
}
