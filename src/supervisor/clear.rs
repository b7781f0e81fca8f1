//! Clearing a caller's list (O3): its live tasks are cancelled, then all of its tasks are hidden from its
//! list. They stay in the history until they are pruned.

use super::cancel::Target;
use super::{Caller, Error, Supervisor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearOutcome {
    pub cancelled: usize,
    pub cleared: usize,
}

impl Supervisor {
    pub async fn clear(&self, caller: &Caller) -> Result<ClearOutcome, Error> {
        self.clear_once(caller, None).await
    }

    /// The same under the caller's idempotency key: a repeat counts what the first call has done.
    pub async fn clear_once(
        &self,
        caller: &Caller,
        key: Option<String>,
    ) -> Result<ClearOutcome, Error> {
        // Not the cancel's own turn, which is taken below.
        let turn = key.as_ref().map(|key| format!("clear {key}"));
        let _turn = self.0.launches.turn_of(turn.as_deref()).await;
        let store = self.0.core.store();
        let before = store.keyed_changes().so_far(key.as_deref())?.cleared() as usize;
        let cancelled = self.cancel_once(caller, Target::All, key.clone()).await?.tasks.len();
        let now = self.0.core.clock().now();
        let cleared = before + store.tasks().clear(&caller.session, key, now).await?;
        Ok(ClearOutcome { cancelled, cleared })
    }
}
