//! Bytes and long texts made fit to be shown. Characters are Unicode scalar values; none is split.

/// As text, whatever it was; without NUL, which not everybody can carry.
pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}")
}

/// The first `most` characters, with a mark if that is not all.
pub(super) fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn first(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

pub(super) fn last(text: &str, most: usize) -> &str {
    match most.checked_sub(1) {
        Some(before) => text.char_indices().rev().nth(before).map_or(text, |(at, _)| &text[at..]),
        None => "",
    }
}

/// `1 file`, `2 files`.
pub(super) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cut_splits_a_character() {
        for (most, head, clipped, tail) in [
            (0, "", "…", ""),
            (1, "ä", "ä…", "€"),
            (2, "ä🙂", "ä🙂…", "🙂€"),
            (3, "ä🙂€", "ä🙂€", "ä🙂€"),
            (4, "ä🙂€", "ä🙂€", "ä🙂€"),
        ] {
            let text = "ä🙂€";
            assert_eq!(
                (first(text, most), clip(text, most).as_str(), last(text, most)),
                (head, clipped, tail)
            );
        }
    }

    #[test]
    fn any_bytes_become_text() {
        assert_eq!(lossy(b"a\xff\0\xe2\x82\xac"), "a\u{fffd}\u{fffd}€");
    }
}
