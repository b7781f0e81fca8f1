//! Refusals of tools, as the text that the caller gets: what is wrong, and what to do instead. Texts of the
//! supervisor are the same as over HTTP; a refusal that quotes an argument is escaped into one line and bounded.

use super::{Answer, INLINE};
use crate::quote;
use crate::supervisor;
use crate::task::Receipt;
use crate::text::clip;

/// Why a tool did not do what it was asked.
#[derive(Debug)]
pub(super) enum Refusal {
    Arguments(String),
    /// The outcome of a blocking `Task` that has no result, worded as a whole; with the notices that the text
    /// makes superfluous.
    Outcome(String, Receipt),
    Supervisor(supervisor::Error),
}

impl Refusal {
    pub(super) fn answer(self) -> Answer {
        match self {
            Refusal::Outcome(text, receipt) => Answer { receipt, ..Answer::from(text) },
            other => quote::line(&other.text()).into(),
        }
    }

    fn text(self) -> String {
        match self {
            Refusal::Arguments(text) => format!("Error: {text}"),
            Refusal::Outcome(text, _) => text,
            // Its text is the specification's, word for word, without a prefix.
            Refusal::Supervisor(error @ supervisor::Error::UnknownAgent { .. }) => {
                error.to_string()
            }
            Refusal::Supervisor(error @ supervisor::Error::Store(_)) => {
                let source = &error as &dyn std::error::Error;
                tracing::error!(
                    error = source,
                    "tool call failed; its caller was told of the error"
                );
                format!("Error: {error}")
            }
            Refusal::Supervisor(error) => format!("Error: {error}"),
        }
    }
}

impl From<supervisor::Error> for Refusal {
    fn from(error: supervisor::Error) -> Refusal {
        Refusal::Supervisor(error)
    }
}

/// A refusal may quote an argument, which may be of any length.
pub(super) fn bounded(text: &str) -> String {
    clip(text, INLINE)
}
