//! The time limit of a tool call that waits: what the caller asks for, within what its client allows. Clients
//! cut off calls that take too long, and then the model sees an error instead of what has ended so far.

use std::time::Duration;

use super::waiter::FOREVER;
use super::{Audience, NameSet, Refusal, audience};
use crate::supervisor::Caller;
use crate::task::time::say;

/// The bounds of `timeout` in seconds, and its default.
pub(super) const SHORTEST: f64 = 1.0;
pub(super) const LONGEST: f64 = 600.0;
pub(super) const USUAL: f64 = 60.0;

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimit {
    pub(super) most: Duration,
    /// The caller asked for more, and its client would cut the call off before.
    is_cut: bool,
}

impl WaitLimit {
    /// As long as is asked for, unless the client would cut the call off before.
    pub(super) fn of(
        caller: &Caller,
        timeout: Option<f64>,
        usual: f64,
    ) -> Result<WaitLimit, Refusal> {
        // Noted only for a timeout that was asked for: a default that is cut needs none.
        let wanted = checked(timeout.unwrap_or(usual))?;
        let most = caller.longest_wait.map_or(wanted, |most| wanted.min(most));
        Ok(WaitLimit { most, is_cut: timeout.is_some() && most < wanted })
    }

    /// Of a deferred call, which blocks no caller: it has no limit but one that is asked for.
    pub(super) fn of_deferred(timeout: Option<f64>) -> Result<WaitLimit, Refusal> {
        let most = timeout.map_or(Ok(FOREVER), checked)?;
        Ok(WaitLimit { most, is_cut: false })
    }

    /// The text of an answer whose time was up before the end.
    pub(super) fn is_over(self, caller: &Caller, names: NameSet, tool: &str) -> String {
        let after = format!("Timed out after {} of waiting", say(self.most));
        let cut = match self.is_cut {
            true => " (`timeout` was cut to that: calls of this client may not take longer)",
            false => "",
        };
        match audience(caller) {
            Audience::Conversation => {
                format!("{after}. The task goes on; you will get a message when it ends.")
            }
            Audience::Mcp => format!(
                "{after}{cut}. Nothing is lost, what runs goes on: call {} again with the same \
                 arguments to go on waiting, or do something else meanwhile.",
                names.say(tool)
            ),
        }
    }
}

fn checked(seconds: f64) -> Result<Duration, Refusal> {
    if !(SHORTEST..=LONGEST).contains(&seconds) {
        let text = "`timeout` must be between 1 second and 10 minutes";
        return Err(Refusal::Arguments(text.to_owned()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
