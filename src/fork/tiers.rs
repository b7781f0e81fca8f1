//! The second stage: tiers by age. The older a tool result is, the less of it is kept (F3). Only the
//! tier is assigned here; the cut happens when a message is rendered.

use super::read::{Message, Part, Tier};

/// How many of the newest results are kept whole.
const WHOLE: usize = 5;
/// How many after those are kept long.
const LONG: usize = 10;

/// How many results are in each tier, newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerTier {
    pub whole: usize,
    pub long: usize,
    pub short: usize,
}

impl Tier {
    /// The tier of a result with this many newer ones.
    fn of(newer: usize) -> Tier {
        match newer {
            n if n < WHOLE => Tier::Whole,
            n if n < WHOLE + LONG => Tier::Long,
            _ => Tier::Short,
        }
    }

    pub(super) const fn result_characters(self) -> usize {
        match self {
            Tier::Whole => usize::MAX,
            Tier::Long => 3_000,
            Tier::Short => 500,
        }
    }

    pub(super) const fn argument_characters(self) -> usize {
        match self {
            Tier::Whole => 500,
            Tier::Long => 200,
            Tier::Short => 100,
        }
    }
}

impl PerTier {
    pub(super) fn add(&mut self, tier: Tier) {
        match tier {
            Tier::Whole => self.whole += 1,
            Tier::Long => self.long += 1,
            Tier::Short => self.short += 1,
        }
    }
}

/// Assigns a tier to every call. One without a result gets the tier that the next older result has, and
/// does not count.
pub(super) fn assign(messages: &mut [Message<'_>]) {
    let mut newer = 0;
    for part in messages.iter_mut().rev().flat_map(|message| message.parts.iter_mut().rev()) {
        let Part::Call(call) = part else { continue };
        call.tier = Tier::of(newer);
        // Counted after it was used: the newest result has no newer one.
        newer += usize::from(call.result.is_some());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::read;
    use super::*;

    /// The tiers of all calls, newest first.
    fn tiers(transcript: Value) -> Vec<Tier> {
        let transcript = transcript.to_string();
        let mut messages = read::messages(&transcript).unwrap();
        assign(&mut messages);
        let parts = messages.iter().rev().flat_map(|message| message.parts.iter().rev());
        let tier = |part: &Part<'_>| match part {
            Part::Call(call) => Some(call.tier),
            Part::Text(_) | Part::Unknown(_) => None,
        };
        parts.filter_map(tier).collect()
    }

    fn call(state: Value) -> Value {
        json!({"type": "tool", "callID": "c", "tool": "read", "state": state})
    }

    fn expected(whole: usize, long: usize, short: usize) -> Vec<Tier> {
        let tiers = [(Tier::Whole, whole), (Tier::Long, long), (Tier::Short, short)];
        tiers.into_iter().flat_map(|(tier, n)| std::iter::repeat_n(tier, n)).collect()
    }

    #[test]
    fn the_newest_five_results_stay_whole_the_next_ten_are_cut_long_and_the_rest_short() {
        for (results, whole, long, short) in [
            (0, 0, 0, 0),
            (1, 1, 0, 0),
            (4, 4, 0, 0),
            (5, 5, 0, 0),
            (6, 5, 1, 0),
            (14, 5, 9, 0),
            (15, 5, 10, 0),
            (16, 5, 10, 1),
            (100, 5, 10, 85),
        ] {
            let parts = vec![call(json!({"output": "x"})); results];
            let in_one = json!([{"info": {"role": "assistant"}, "parts": parts}]);
            assert_eq!(tiers(in_one), expected(whole, long, short), "{results}");
            let apart: Vec<Value> = parts
                .iter()
                .map(|part| json!({"info": {"role": "assistant"}, "parts": [part]}))
                .collect();
            assert_eq!(tiers(json!(apart)), expected(whole, long, short), "{results}");
            let pairs: Vec<Value> = (0..results)
                .flat_map(|n| {
                    let call = json!({"type": "tool_use", "id": n.to_string(), "name": "read"});
                    let result = json!({"type": "tool_result", "tool_use_id": n.to_string()});
                    [
                        json!({"role": "assistant", "content": [call]}),
                        json!({"role": "user", "content": [result]}),
                    ]
                })
                .collect();
            assert_eq!(tiers(json!(pairs)), expected(whole, long, short), "{results}");
        }
    }

    #[test]
    fn errors_and_cleared_results_count_and_calls_without_results_do_not() {
        let mut parts = vec![
            call(json!({"output": "x", "time": {"compacted": 1}})),
            call(json!({"status": "running", "input": {}})),
            call(json!({"error": "no"})),
            call(json!({"output": "x"})),
            call(json!({"output": "x"})),
            call(json!({"status": "pending"})),
            call(json!({"output": ""})),
        ];
        let message = |parts: &[Value]| json!([{"info": {"role": "assistant"}, "parts": parts}]);
        assert_eq!(tiers(message(&parts)), expected(7, 0, 0));
        parts.insert(0, call(json!({"output": "x"})));
        parts.insert(0, call(json!({"status": "running"})));
        assert_eq!(tiers(message(&parts)), expected(7, 2, 0));
    }
}
