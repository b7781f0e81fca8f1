//! Truncation of long texts. Lengths are counted in characters (Unicode scalar values), so no cut can
//! split one and panic; a grapheme made of several characters may still be cut in two.

/// The first `most` characters.
pub fn head(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// The last `most` characters.
pub fn tail(text: &str, most: usize) -> &str {
    match most.checked_sub(1) {
        Some(before) => text.char_indices().nth_back(before).map_or(text, |(at, _)| &text[at..]),
        None => "",
    }
}

/// The first `most` characters, followed by `…` if anything was cut off.
pub fn clip(text: &str, most: usize) -> String {
    let head = head(text, most);
    if head.len() == text.len() { text.to_owned() } else { format!("{head}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cut_splits_a_character() {
        for (most, first, clipped, last) in [
            (0, "", "…", ""),
            (1, "ä", "ä…", "€"),
            (2, "ä🙂", "ä🙂…", "🙂€"),
            (3, "ä🙂€", "ä🙂€", "ä🙂€"),
            (4, "ä🙂€", "ä🙂€", "ä🙂€"),
        ] {
            let text = "ä🙂€";
            assert_eq!(
                (head(text, most), clip(text, most).as_str(), tail(text, most)),
                (first, clipped, last)
            );
        }
    }
}
