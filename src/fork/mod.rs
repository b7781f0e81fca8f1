//! Context forking: the parent's conversation, from the host's JSON to one text for the child. A pipeline
//! of three stages: slice at the latest compaction, truncate tool results by age, drop the oldest
//! messages over budget; and a preamble that says what was done (F1–F7). Pure. A conversation may have
//! 100 MB, so texts stay borrowed from the JSON and are unescaped only when they are kept. Only a
//! document that is no list of messages is an error; a part that cannot be read is replaced by a note.

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

/// Stands for a conversation without messages.
const EMPTY: &str = "(nothing was said yet)";

/// What a forked child is given of its parent's conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    pub preamble: String,
    pub context: String,
    pub counts: Counts,
}

/// What the pipeline did, in numbers. Messages with nothing to show (steps, thoughts, compaction
/// markers) are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the whole conversation.
    pub messages: usize,
    /// Those that the latest compaction summarizes; `None` without a compaction.
    pub compacted: Option<usize>,
    /// The oldest ones, dropped to fit into the budget.
    pub removed: usize,
    pub kept: usize,
    /// Tool results in the kept messages.
    pub results: PerTier,
    /// Length of the context, without the preamble.
    pub characters: usize,
}

/// The document is not a JSON array of messages.
#[derive(Debug, thiserror::Error)]
#[error("the conversation cannot be read as a list of messages: {0}")]
pub struct Error(serde_json::Error);

/// By hand, because `#[from]` makes it the source as well: a log that prints the chain would have it twice.
impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error(error)
    }
}

/// Runs the pipeline. `transcript` is a JSON array of messages: OpenCode's (`info`, `parts`) or plain
/// ones (`role`, `content`), with tool results inside their calls or in messages of their own.
pub fn inherit(transcript: &str) -> Result<Inheritance, Error> {
    let messages = read::messages(transcript)?;
    let all = shown(&messages);
    let (mut messages, found) = compaction::slice(messages);
    let compacted = found.then(|| all - shown(&messages));
    // Tiers before the budget: a cut result takes less of it, so more messages fit.
    tiers::assign(&mut messages);
    let kept = budget::select(&messages);
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

/// How many messages have anything to show.
fn shown(messages: &[read::Message<'_>]) -> usize {
    messages.iter().filter(|message| !message.parts.is_empty()).count()
}
