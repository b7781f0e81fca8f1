//! The preamble that a forked child reads before its parent's conversation: how it was shortened (F7), so
//! that the child reads a file again instead of trusting a cut result.

use super::{Counts, MOST_CHARACTERS};

pub(super) fn compose(counts: &Counts) -> String {
    let Counts { compacted, removed, results, .. } = counts;
    let compaction = match compacted {
        Some(n) => format!(
            "Compaction found: it begins with the latest summary, which stands for {}.",
            messages(*n)
        ),
        None => "No compaction found.".to_owned(),
    };
    let removed = match removed {
        0 => "No messages removed.".to_owned(),
        n => format!(
            "{} removed, the oldest ones, to fit into {MOST_CHARACTERS} characters.",
            messages(*n)
        ),
    };
    format!(
        "You continue from another conversation. What it said so far follows, as background for the \
         prompt that comes after it.\n\n\
         - {compaction}\n\
         - Tool results, newest first: {whole} whole, {long} cut to 3000 characters, {short} cut to \
         500 characters where they were longer.\n\
         - {removed}\n\
         - Every cut says how much is gone. Read a file again if you need its complete content.",
        whole = results.whole,
        long = results.long,
        short = results.short,
    )
}

fn messages(n: usize) -> String {
    if n == 1 { "1 message".to_owned() } else { format!("{n} messages") }
}

#[cfg(test)]
mod tests {
    use super::super::PerTier;
    use super::*;

    #[test]
    fn the_preamble_says_what_was_done() {
        let nothing = Counts::default();
        let much = Counts {
            messages: 420,
            compacted: Some(1),
            removed: 300,
            kept: 119,
            results: PerTier { whole: 5, long: 10, short: 85 },
            characters: 199_999,
        };
        insta::assert_snapshot!([compose(&nothing), compose(&much)].join("\n\n===\n\n"));
    }
}
