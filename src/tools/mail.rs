//! Piggy-backed notices: a parent that is no conversation gets its unread notices at the start of its next tool
//! answer, whatever it called (N7).
//!
//! Results are inlined while the whole answer stays within [`MOST_SHOWN`] characters; a notice beyond that
//! comes without its result and names the tool that shows it. Notices are handed out, not marked as read: that
//! is done with the receipt, when the answer has arrived.

use super::INLINE;
use crate::supervisor::{Caller, LeasedNotice, Mail, Supervisor};
use crate::task::{Receipt, Task};

/// How many characters one answer may have, its own text included.
const MOST_SHOWN: usize = 3 * INLINE;

/// What an answer begins with.
#[derive(Default)]
pub(super) struct MailPreamble {
    pub(super) text: Option<String>,
    /// The notices in it.
    pub(super) receipt: Receipt,
}

/// The unread notices of the caller, in front of an answer of this text. An error only delays them: the answer
/// itself is what was asked for.
pub(super) async fn preamble(
    supervisor: &Supervisor,
    caller: &Caller,
    answer: &str,
) -> MailPreamble {
    let Mail { notices, left } = supervisor.hand_out_mail(caller).unwrap_or_else(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            parent = %caller.session,
            "mailbox read failed; its notices come with a later call"
        );
        Mail::default()
    });
    if notices.is_empty() {
        return MailPreamble::default();
    }
    let most = supervisor.inline_characters();
    let mut room = MOST_SHOWN.saturating_sub(answer.chars().count());
    let (mut texts, mut shown) = (Vec::new(), Vec::new());
    for notice in &notices {
        let length = notice.result_characters();
        // A result is inlined up to `most` characters, or not at all when those do not fit; later and shorter
        // ones may still do.
        let inline = match room.checked_sub(length.min(most)) {
            Some(rest) => {
                room = rest;
                most
            }
            None => 0,
        };
        texts.push(notice.text(inline));
        shown.extend((length <= inline).then_some(notice));
    }
    if left > 0 {
        texts.push(format!("… and {left} more, which come with your next calls."));
    }
    note_retrieval(supervisor, caller, &shown).await;
    let receipt = notices.iter().map(|notice| notice.id).collect();
    MailPreamble { text: Some(texts.join("\n\n")), receipt }
}

/// Marks the results that were shown whole as retrieved, so that the next wait does not repeat them.
async fn note_retrieval(supervisor: &Supervisor, caller: &Caller, shown: &[&LeasedNotice]) {
    let tasks = shown.iter().filter_map(|notice| supervisor.task(&notice.task).ok());
    let tasks: Vec<Task> = tasks.collect();
    if let Err(error) = supervisor.retrieved(&tasks.iter().collect::<Vec<_>>()).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            parent = %caller.session,
            error,
            "results not marked as retrieved; a wait may show them again"
        );
    }
}
