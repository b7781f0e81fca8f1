//! The third stage: what is too much is dropped, oldest first (F5). It works from the newest message
//! backwards, so that nobody looks at what is dropped.

use super::block::{block, block_within};
use super::read::{Message, Part};
use super::tiers::PerTier;

/// The most a context has. Up to here nothing is dropped, so the lower bound of 120,000 up to which
/// nothing may be dropped needs no rule of its own.
pub const MOST_CHARACTERS: usize = 200_000;

/// An oversize message is cut to what is left of the budget, if that is at least so much.
const WORTH_CUTTING: usize = 1_000;

const BETWEEN: &str = "\n\n";

#[derive(Default)]
pub(super) struct Kept {
    /// Newest first.
    pub(super) blocks: Vec<String>,
    /// With what stands between them.
    pub(super) characters: usize,
    pub(super) results: PerTier,
    /// How many messages were dropped.
    pub(super) removed: usize,
}

pub(super) fn keep(messages: &[Message<'_>]) -> Kept {
    let mut kept = Kept::default();
    let mut newest_first = messages.iter().rev().filter(|message| !message.parts.is_empty());
    while let Some(message) = newest_first.next() {
        let whole = block(message);
        let between = if kept.blocks.is_empty() { 0 } else { BETWEEN.len() };
        let left = MOST_CHARACTERS - kept.characters;
        let length = whole.chars().count();
        if between + length <= left {
            kept.add(message, whole, between + length);
            continue;
        }
        kept.removed = newest_first.clone().count();
        if length > MOST_CHARACTERS && left >= WORTH_CUTTING {
            let cut = block_within(message, left - between);
            let length = cut.chars().count();
            kept.add(message, cut, between + length);
        } else {
            kept.removed += 1;
        }
        break;
    }
    kept
}

impl Kept {
    fn add(&mut self, message: &Message<'_>, block: String, characters: usize) {
        for part in &message.parts {
            match part {
                Part::Call(call) if call.result.is_some() => self.results.add(call.tier),
                Part::Call(_) | Part::Text(_) | Part::Unknown(_) => {}
            }
        }
        self.blocks.push(block);
        self.characters += characters;
    }

    /// Oldest first.
    pub(super) fn text(&self) -> String {
        let oldest_first: Vec<&str> = self.blocks.iter().rev().map(String::as_str).collect();
        oldest_first.join(BETWEEN)
    }
}
