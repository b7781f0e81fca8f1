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
        let cancelled = self.cancel(caller, Target::All).await?.tasks.len();
        let cleared =
            self.0.core.store().tasks().clear(&caller.session, self.0.core.clock().now()).await?;
        Ok(ClearOutcome { cancelled, cleared })
    }
}
