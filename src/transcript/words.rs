//! The vocabulary of hosts (statuses, finish reasons, error names) as enums. Hosts are other people's
//! programs and add values with their releases, so each enum has an `Other` that keeps an unknown value
//! as it came: reading and writing a message loses nothing.

use serde::{Deserialize, Serialize};

/// How far a tool call has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum CallStatus {
    /// Not started: it is safe to run it.
    Pending,
    /// Started: after a crash it may have been done in part, so it is not run again.
    Running,
    Completed,
    Error,
    Other(String),
}

/// Why a model stopped writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Finish {
    Stop,
    /// It waits for the results of its tool calls.
    ToolCalls,
    /// The output limit was reached: the end is missing.
    Length,
    /// The provider withheld the answer or a part of it.
    ContentFilter,
    /// The host's or the provider's own value.
    Other(String),
}

/// The kind of an error that ended a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FailureName {
    Aborted,
    /// The model or its server failed for good.
    Api,
    TurnLimit,
    /// A permission or question was refused, and the run ended with it.
    Refused,
    /// The answer is incomplete: cut off, filtered or longer than allowed.
    CutOff,
    /// The run cannot go on: its workspace, its agent or its model is gone.
    Interrupted,
    Other(String),
}

impl CallStatus {
    pub fn name(&self) -> &str {
        match self {
            CallStatus::Pending => "pending",
            CallStatus::Running => "running",
            CallStatus::Completed => "completed",
            CallStatus::Error => "error",
            CallStatus::Other(word) => word,
        }
    }

    /// The call has no result yet. An unknown status counts as a result: otherwise a run could wait for
    /// it for ever.
    pub fn is_open(&self) -> bool {
        match self {
            CallStatus::Pending | CallStatus::Running => true,
            CallStatus::Completed | CallStatus::Error | CallStatus::Other(_) => false,
        }
    }
}

impl Finish {
    fn name(&self) -> &str {
        match self {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool-calls",
            Finish::Length => "length",
            Finish::ContentFilter => "content-filter",
            Finish::Other(word) => word,
        }
    }
}

impl FailureName {
    pub fn name(&self) -> &str {
        match self {
            // OpenCode's names where it has one. They are stored in transcripts, so they must not change.
            FailureName::Aborted => "MessageAbortedError",
            FailureName::Api => "APIError",
            FailureName::TurnLimit => "TurnLimitError",
            FailureName::Refused => "PermissionRefusedError",
            FailureName::CutOff => "AnswerCutOffError",
            FailureName::Interrupted => "InterruptedError",
            FailureName::Other(word) => word,
        }
    }
}

impl From<String> for CallStatus {
    fn from(word: String) -> CallStatus {
        match word.as_str() {
            "pending" => CallStatus::Pending,
            "running" => CallStatus::Running,
            "completed" => CallStatus::Completed,
            "error" => CallStatus::Error,
            _ => CallStatus::Other(word),
        }
    }
}

impl From<String> for Finish {
    fn from(word: String) -> Finish {
        match word.as_str() {
            "stop" => Finish::Stop,
            // Both spellings: hosts write a dash, providers an underscore.
            "tool-calls" | "tool_calls" => Finish::ToolCalls,
            "length" => Finish::Length,
            "content-filter" | "content_filter" => Finish::ContentFilter,
            _ => Finish::Other(word),
        }
    }
}

impl From<String> for FailureName {
    fn from(word: String) -> FailureName {
        match word.as_str() {
            "MessageAbortedError" => FailureName::Aborted,
            "APIError" => FailureName::Api,
            "TurnLimitError" => FailureName::TurnLimit,
            "PermissionRefusedError" => FailureName::Refused,
            "AnswerCutOffError" => FailureName::CutOff,
            "InterruptedError" => FailureName::Interrupted,
            _ => FailureName::Other(word),
        }
    }
}

impl From<CallStatus> for String {
    fn from(status: CallStatus) -> String {
        status.name().to_owned()
    }
}

impl From<Finish> for String {
    fn from(finish: Finish) -> String {
        finish.name().to_owned()
    }
}

impl From<FailureName> for String {
    fn from(name: FailureName) -> String {
        name.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word comes back as it was written, known or not.
    fn check<T: From<String> + Into<String>>(words: &[&str], is_other: impl Fn(&T) -> bool) {
        for word in words {
            let read = T::from((*word).to_owned());
            assert_eq!(is_other(&read), *word == "new-word", "{word}");
            assert_eq!(read.into(), *word);
        }
    }

    #[test]
    fn an_unknown_value_is_kept_as_it_is() {
        check::<CallStatus>(&["pending", "running", "completed", "error", "new-word"], |status| {
            matches!(status, CallStatus::Other(_))
        });
        let finishes = ["stop", "tool-calls", "length", "content-filter", "new-word"];
        check::<Finish>(&finishes, |finish| matches!(finish, Finish::Other(_)));
        let names = [
            "MessageAbortedError",
            "APIError",
            "TurnLimitError",
            "PermissionRefusedError",
            "AnswerCutOffError",
            "InterruptedError",
            "new-word",
        ];
        check::<FailureName>(&names, |name| matches!(name, FailureName::Other(_)));
    }
}
