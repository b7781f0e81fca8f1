//! The first stage: everything before the summary of the latest compaction is left out (F2), because the
//! summary stands for it. A compaction is a marker (a user message) and a summary (an assistant message)
//! after it; one that failed or was cut off has no summary and does not count.

use super::read::Message;

/// Keeps everything from the summary of the latest compaction on, and returns whether there was one.
pub(super) fn slice(mut messages: Vec<Message<'_>>) -> (Vec<Message<'_>>, bool) {
    let mut summary = None;
    // Backwards: the first marker with a summary somewhere after it decides. `summary` ends up as the
    // earliest one after that marker.
    for (at, message) in messages.iter().enumerate().rev() {
        if message.is_summary {
            summary = Some(at);
        }
        if let Some(summary) = summary.filter(|_| message.is_marker) {
            messages.drain(..summary);
            return (messages, true);
        }
    }
    (messages, false)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::read;
    use super::*;

    /// `m` is a marker, `s` a summary, `f` a summary that failed; the others are just messages.
    fn message(word: &str) -> Value {
        let text = json!([{"type": "text", "text": word}]);
        match word.chars().next() {
            Some('m') => json!({"info": {"role": "user"}, "parts": [{"type": "compaction"}]}),
            Some('s') => json!({"info": {"role": "assistant", "summary": true}, "parts": text}),
            Some('f') => json!({
                "info": {"role": "assistant", "summary": true, "error": {"name": "APIError"}},
                "parts": text
            }),
            Some(_) | None => {
                json!({"info": {"role": "user", "summary": {"diffs": []}}, "parts": text})
            }
        }
    }

    fn check(words: &str, kept: &str, expected: bool) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let json = Value::from_iter(words.iter().map(|word| message(word))).to_string();
        let (messages, found) = slice(read::messages(&json).unwrap());
        let first = words.len() - messages.len();
        assert_eq!((words[first..].join(" ").as_str(), found), (kept, expected), "{words:?}");
    }

    #[test]
    fn without_a_compaction_everything_is_kept() {
        check("", "", false);
        check("a", "a", false);
        check("a b c", "a b c", false);
    }

    #[test]
    fn the_latest_compaction_decides_and_its_summary_is_kept() {
        check("m s", "s", true);
        check("a b m s c d", "s c d", true);
        check("a m1 s1 b m2 s2 c", "s2 c", true);
        check("a m b s c", "s c", true);
        check("a m1 m2 s c", "s c", true);
        check("a m s1 s2 c", "s1 s2 c", true);
    }

    #[test]
    fn a_marker_without_a_summary_is_no_compaction() {
        check("a m", "a m", false);
        check("a m b", "a m b", false);
        check("a m1 s1 b m2 c", "s1 b m2 c", true);
        check("a m f b", "a m f b", false);
        check("a m1 s1 b m2 f c", "s1 b m2 f c", true);
    }

    #[test]
    fn a_summary_without_a_marker_is_no_compaction() {
        check("a s b", "a s b", false);
        check("s a m", "s a m", false);
    }

    #[test]
    fn a_marker_is_a_user_message_and_a_summary_an_assistant_message() {
        let check = |marker: &str, summary: &str, expected: bool| {
            let json = json!([
                {"info": {"role": marker}, "parts": [{"type": "compaction", "auto": true}]},
                {"info": {"role": summary, "summary": true}, "parts": []},
            ]);
            let (_, found) = slice(read::messages(&json.to_string()).unwrap());
            assert_eq!(found, expected, "{marker} {summary}");
        };
        check("user", "assistant", true);
        check("assistant", "assistant", false);
        check("user", "user", false);
    }
}
