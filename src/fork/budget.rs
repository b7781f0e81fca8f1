//! The third stage: a budget of characters; the oldest messages over it are dropped (F5). It renders from
//! the newest message backwards and stops at the budget, so the dropped part, which may be most of a
//! long conversation, is never rendered.

use super::block::{block, block_within};
use super::read::{Message, Part};
use super::tiers::PerTier;

/// The budget of a context. Up to here nothing is dropped, so the specification's lower bound (nothing
/// may be dropped up to 120,000) needs no rule of its own.
pub const MOST_CHARACTERS: usize = 200_000;

/// A message that is larger than the whole budget is cut to what is left of it, if at least this much is.
const WORTH_CUTTING: usize = 1_000;

const BETWEEN: &str = "\n\n";

/// The messages that fit.
#[derive(Default)]
pub(super) struct Selection {
    /// Newest first.
    pub(super) blocks: Vec<String>,
    /// Their length, with the separators.
    pub(super) characters: usize,
    pub(super) results: PerTier,
    /// How many messages were dropped.
    pub(super) removed: usize,
}

/// Selects the newest messages that fit.
pub(super) fn select(messages: &[Message<'_>]) -> Selection {
    let mut kept = Selection::default();
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
        // The first message that does not fit ends the selection, even if an older one would fit: what
        // is dropped is always the oldest part, without gaps.
        kept.removed = newest_first.clone().count();
        // A message that would not fit even into an empty budget is cut instead: dropped, one such
        // message as the newest would leave nothing at all.
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

impl Selection {
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
