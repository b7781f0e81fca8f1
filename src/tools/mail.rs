//! A parent that is no conversation hears of ends at the start of its next answer (N7).

use super::output::INLINE;
use crate::supervisor::{Caller, Letter, Mail, Supervisor};
use crate::task::{Receipt, Task};

/// So many characters fit into one answer, its own text included.
const MOST_SHOWN: usize = 3 * INLINE;

/// What an answer begins with.
#[derive(Default)]
pub(super) struct Opening {
    pub(super) text: Option<String>,
    /// The notices in it.
    pub(super) receipt: Receipt,
}

/// What is new, before an answer of this text.
pub(super) async fn opening(supervisor: &Supervisor, caller: &Caller, answer: &str) -> Opening {
    let Mail { letters, left } = supervisor.hand_out_mail(caller).unwrap_or_else(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "cannot read a mailbox");
        Mail::default()
    });
    if letters.is_empty() {
        return Opening::default();
    }
    let most = supervisor.inline_characters();
    let mut room = MOST_SHOWN.saturating_sub(answer.chars().count());
    let (mut texts, mut shown) = (Vec::new(), Vec::new());
    for letter in &letters {
        let length = letter.result_characters();
        let inline = match room.checked_sub(length.min(most)) {
            Some(rest) => {
                room = rest;
                most
            }
            None => 0,
        };
        texts.push(letter.text(inline));
        shown.extend((length <= inline).then_some(letter));
    }
    if left > 0 {
        texts.push(format!("… and {left} more, which come with your next calls."));
    }
    note_retrieval(supervisor, &shown).await;
    let receipt = letters.iter().map(|letter| letter.id).collect();
    Opening { text: Some(texts.join("\n\n")), receipt }
}

/// A result that was told whole is not shown again by a wait.
async fn note_retrieval(supervisor: &Supervisor, shown: &[&Letter]) {
    let tasks = shown.iter().filter_map(|letter| supervisor.task(&letter.task).ok());
    let tasks: Vec<Task> = tasks.collect();
    if let Err(error) = supervisor.retrieved(&tasks.iter().collect::<Vec<_>>()).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "retrieval of results not noted; a wait may show them again");
    }
}
