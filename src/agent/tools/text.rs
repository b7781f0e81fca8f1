//! Bytes and counts as text for the model.

/// Bytes as UTF-8, invalid ones replaced. Without NUL, which not every consumer can handle.
pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}")
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
    fn any_bytes_become_text() {
        assert_eq!(lossy(b"a\xff\0\xe2\x82\xac"), "a\u{fffd}\u{fffd}€");
    }
}
