//! Moments and durations in few columns.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// How long ago something was, in its largest unit: `5s`, `3m`, `2h`, `4d`.
pub(in crate::cli) fn age(since: Duration) -> String {
    match since.as_secs() {
        seconds @ ..MINUTE => format!("{seconds}s"),
        seconds @ MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ HOUR..DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

/// The same in a sentence: `3m ago`, `just now`.
pub(in crate::cli) fn ago(since: Duration) -> String {
    match since.as_secs() {
        0 => "just now".to_owned(),
        _ => format!("{} ago", age(since)),
    }
}

/// A number of tokens: `950`, `12.3k`, `4.1M`.
pub(in crate::cli) fn tokens(n: u64) -> String {
    match n {
        ..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1}k", n as f64 / 1e3),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}

/// Money as hosts report it, with enough digits for a single answer.
pub(in crate::cli) fn cost(cost: f64) -> String {
    if cost < 1.0 { format!("${cost:.4}") } else { format!("${cost:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let check = |seconds, expected: [&str; 2]| {
            let since = Duration::from_secs(seconds);
            assert_eq!([age(since), ago(since)], expected);
        };
        check(0, ["0s", "just now"]);
        check(59, ["59s", "59s ago"]);
        check(60, ["1m", "1m ago"]);
        check(7_199, ["1h", "1h ago"]);
        check(7_200, ["2h", "2h ago"]);
        check(200_000, ["2d", "2d ago"]);
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!([950, 12_345, 4_100_000].map(tokens), ["950", "12.3k", "4.1M"]);
        assert_eq!([0.0123, 2.5].map(cost), ["$0.0123", "$2.50"]);
    }
}
