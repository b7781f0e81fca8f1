//! What a forked child inherits: its parent's conversation, from the host's JSON to one text, in
//! stages: the latest compaction, tool results by tiers, the budget; and a preamble that says what
//! was done (F1–F7). Pure. Texts are borrowed from the JSON and looked at only when they are kept.

mod block;
mod budget;
mod compaction;
mod cut;
mod preamble;
mod read;
mod text;
mod tiers;

#[cfg(test)]
mod tests;

pub use budget::MOST_CHARACTERS;
pub use tiers::PerTier;

/// What stands for a conversation in which nothing was said.
const EMPTY: &str = "(nothing was said yet)";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    pub preamble: String,
    pub context: String,
    pub counts: Counts,
}

/// Messages without anything to show (steps, thoughts, markers) are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the whole conversation.
    pub messages: usize,
    /// Those the latest compaction stands for; `None` when there was none.
    pub compacted: Option<usize>,
    /// The oldest ones, dropped to fit the budget.
    pub removed: usize,
    pub kept: usize,
    /// Tool results among the kept messages.
    pub results: PerTier,
    /// Of the context, without the preamble.
    pub characters: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the conversation cannot be read as a list of messages: {0}")]
pub struct Unreadable(#[from] serde_json::Error);

/// `transcript` is a JSON array of messages: OpenCode's (`info`, `parts`) or plain ones (`role`,
/// `content`), with tool results in their calls or in messages of their own.
pub fn inherit(transcript: &str) -> Result<Inheritance, Unreadable> {
    let messages = read::messages(transcript)?;
    let all = shown(&messages);
    let (mut messages, found) = compaction::slice(messages);
    let compacted = found.then(|| all - shown(&messages));
    tiers::assign(&mut messages);
    let kept = budget::keep(&messages);
    let counts = Counts {
        messages: all,
        compacted,
        removed: kept.removed,
        kept: kept.blocks.len(),
        results: kept.results,
        characters: kept.characters,
    };
    let context = if kept.blocks.is_empty() { EMPTY.to_owned() } else { kept.text() };
    Ok(Inheritance { preamble: preamble::compose(&counts), context, counts })
}

fn shown(messages: &[read::Message<'_>]) -> usize {
    messages.iter().filter(|message| !message.parts.is_empty()).count()
}
