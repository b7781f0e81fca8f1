//! How long a call of a tool waits: what is asked for, within what the caller's side allows.

use std::time::Duration;

use super::{Audience, Names, Refusal, audience};
use crate::supervisor::Caller;
use crate::task::time::say;

/// Of a wait, in seconds.
pub(super) const SHORTEST: f64 = 1.0;
pub(super) const LONGEST: f64 = 600.0;
pub(super) const USUAL: f64 = 60.0;

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) most: Duration,
    /// More was asked for, and the client would cut the call off before.
    is_cut: bool,
}

impl Patience {
    /// As long as is asked for, unless the call would be cut off before.
    pub(super) fn of(
        caller: &Caller,
        timeout: Option<f64>,
        usual: f64,
    ) -> Result<Patience, Refusal> {
        let seconds = timeout.unwrap_or(usual);
        if !(SHORTEST..=LONGEST).contains(&seconds) {
            let text = "`timeout` must be between 1 second and 10 minutes";
            return Err(Refusal::Arguments(text.to_owned()));
        }
        let wanted = Duration::from_secs_f64(seconds);
        let most = caller.longest_wait.map_or(wanted, |most| wanted.min(most));
        Ok(Patience { most, is_cut: timeout.is_some() && most < wanted })
    }

    /// What is said when the time was up before the end.
    pub(super) fn is_over(self, caller: &Caller, names: Names, tool: &str) -> String {
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
