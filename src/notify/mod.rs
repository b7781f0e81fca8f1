//! Notifying people of ends and permission requests outside of a conversation (N5): a notification of the
//! desktop, a signed webhook, a command. Each is one attempt with a time limit; what is owed and when to try
//! again is the supervisor's.

mod desktop;
mod hook;
mod webhook;

use std::fmt;
use std::time::Duration;

pub use desktop::Desktop;
pub use hook::Hook;
pub use webhook::{Secret, Webhook};

use crate::task::Timestamp;
use crate::task::alert::Channel;

/// Why an attempt failed. No text of the receiver, and neither address nor secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this channel is not configured")]
    NotConfigured,
    #[error("`{0}` cannot be started")]
    NotStarted(&'static str, #[source] std::io::Error),
    #[error("`{0}` failed ({1})")]
    Failed(&'static str, std::process::ExitStatus),
    #[error("`{0}` took longer than {1} s")]
    TooSlow(&'static str, u64),
    #[error("the body of the notification cannot be read")]
    Unreadable(#[source] serde_json::Error),
    #[error("the secret of the webhook cannot be read: {0}")]
    NoSecret(String),
    #[error("the webhook cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    #[error(
        "the webhook answered {0}; only a status of success counts, and redirects are not followed"
    )]
    Refused(u16),
}

impl Error {
    /// Whether any other notification would fail in the same way now. A webhook's other refusals, and a command that
    /// fails, may be about this one alone.
    pub fn is_of_the_channel(&self) -> bool {
        match self {
            Error::NotConfigured
            | Error::NotStarted(..)
            | Error::TooSlow(..)
            | Error::NoSecret(_)
            | Error::Unreachable(_) => true,
            Error::Refused(status) => matches!(status, 401 | 403 | 404 | 408 | 429 | 500..),
            Error::Failed(..) | Error::Unreadable(_) => false,
        }
    }
}

/// The channels that are configured.
#[derive(Default)]
pub struct Notifier {
    pub desktop: Option<Desktop>,
    pub webhook: Option<Webhook>,
    pub hook: Option<Hook>,
    /// What could not be delivered for this long is given up.
    pub give_up: Duration,
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.channels()).finish()
    }
}

impl Notifier {
    pub fn channels(&self) -> Vec<Channel> {
        let is_there = |channel: &Channel| match channel {
            Channel::Desktop => self.desktop.is_some(),
            Channel::Webhook => self.webhook.is_some(),
            Channel::Command => self.hook.is_some(),
        };
        Channel::ALL.into_iter().filter(is_there).collect()
    }

    /// One attempt. `id` is the receiver's idempotency key, `body` the JSON.
    pub async fn send(
        &self,
        channel: Channel,
        id: &str,
        body: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        match (channel, &self.desktop, &self.webhook, &self.hook) {
            (Channel::Desktop, Some(desktop), _, _) => desktop.show(body).await,
            (Channel::Webhook, _, Some(webhook), _) => webhook.post(id, body, now).await,
            (Channel::Command, _, _, Some(hook)) => hook.run(body).await,
            (_, _, _, _) => Err(Error::NotConfigured),
        }
    }
}
