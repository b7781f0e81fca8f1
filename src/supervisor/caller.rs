//! The caller of a verb: the parent of what it launches, with what the daemon has to know of its client.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::ClientCredentials;
use crate::task::{SHELL, SessionId};

/// Who calls, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pub session: SessionId,
    pub message: String,
    pub agent: String,
    pub directory: String,
    /// Where the caller's conversation lives; [`MAILBOX`](crate::task::MAILBOX) when it has none.
    pub host: String,
    /// The server of the child's host that the child has to be opened on: for a retry, that of the first task.
    #[serde(default)]
    pub instance: Option<String>,
    /// `NODE_ENV=development` at the caller.
    pub development: bool,
    /// Every launch is a batch of its own unless it names one, as from the shell.
    pub lone_batches: bool,
    /// Prefix of the names of earlier callers whose unread notices this one inherits, once they are gone.
    #[serde(default)]
    pub heir_of: String,
    /// Shares its parent id with unrelated clients, and is shown nothing of that parent (T18).
    #[serde(default)]
    pub anonymous: bool,
    /// The client's own timeout: calls that take longer are cut off.
    #[serde(default)]
    pub longest_wait: Option<Duration>,
    /// Credentials from its environment. Never stored: a launch that the next daemon finishes has none.
    #[serde(skip)]
    pub handed: ClientCredentials,
}

impl Caller {
    /// The user's own shell, which sees and may change everything.
    pub fn is_shell(&self) -> bool {
        self.session.as_str() == SHELL
    }
}
