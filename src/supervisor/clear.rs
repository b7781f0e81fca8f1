//! Clearing: the caller's live tasks are stopped and all of its tasks leave its list (O3).

use super::cancel::Target;
use super::{Caller, Error, Supervisor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    pub cancelled: usize,
    pub cleared: usize,
}

impl Supervisor {
    pub async fn clear(&self, caller: &Caller) -> Result<Cleared, Error> {
        let cancelled = self.cancel(caller, Target::All).await?.tasks.len();
        let cleared =
            self.0.core.store().tasks().clear(&caller.session, self.0.core.clock().now()).await?;
        Ok(Cleared { cancelled, cleared })
    }
}
