//! Why a tool does not do what it is asked, as the text that its caller gets.

use super::Answer;
use super::output::INLINE;
use crate::quote;
use crate::supervisor;
use crate::task::Receipt;
use crate::text::clip;

/// Why a tool could not do what it was asked.
#[derive(Debug)]
pub(super) enum Refusal {
    Arguments(String),
    /// In words that callers know, with the notices that go with them.
    Said(String, Receipt),
    Supervisor(supervisor::Error),
}

impl Refusal {
    pub(super) fn answer(self) -> Answer {
        match self {
            Refusal::Said(text, receipt) => Answer { text, receipt },
            other => quote::line(&other.text()).into(),
        }
    }

    fn text(self) -> String {
        match self {
            Refusal::Arguments(text) => format!("Error: {text}"),
            Refusal::Said(text, _) => text,
            Refusal::Supervisor(error @ supervisor::Error::UnknownAgent { .. }) => {
                error.to_string()
            }
            Refusal::Supervisor(error @ supervisor::Error::Store(_)) => {
                let source = &error as &dyn std::error::Error;
                tracing::error!(error = source, "a tool call failed");
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

/// A refusal may quote what came, and that may be of any length.
pub(super) fn bounded(text: &str) -> String {
    clip(text, INLINE)
}
