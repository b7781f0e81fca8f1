//! Deferred tool calls, as far as they are stored: tools wait for their answers (`tools/calls.rs`), the store keeps
//! them. A call is settled once its outcome is written; its client acknowledges the outcome together with the notices
//! in it.

use std::time::Duration;

use super::{Error, NewCall, StoredCall, Supervisor};
use crate::task::Receipt;

impl Supervisor {
    /// Stores a call that begins to wait; the one with the same key, if there is one.
    pub async fn begin_call(&self, new: NewCall) -> Result<StoredCall, Error> {
        Ok(self.0.core.store().calls().begin(new).await?)
    }

    pub fn stored_call(&self, id: &str) -> Result<Option<StoredCall>, Error> {
        Ok(self.0.core.store().calls().get(id)?)
    }

    pub fn call_with_key(&self, key: &str) -> Result<Option<StoredCall>, Error> {
        Ok(self.0.core.store().calls().by_key(key)?)
    }

    /// Those that something is left to be done for, oldest first.
    pub fn open_calls(&self) -> Result<Vec<StoredCall>, Error> {
        Ok(self.0.core.store().calls().open()?)
    }

    /// Writes the outcome, unless it was cancelled.
    pub async fn settle_call(&self, id: &str, outcome: String) -> Result<(), Error> {
        let now = self.0.core.clock().now();
        Ok(self.0.core.store().calls().settle(id.to_owned(), outcome, now).await?)
    }

    /// Marks it as cancelled; `false` when it was over before.
    pub async fn cancel_call(&self, id: &str) -> Result<bool, Error> {
        Ok(self.0.core.store().calls().cancel(id.to_owned()).await?)
    }

    /// What a cancelled call launched has been stopped.
    pub async fn call_was_cancelled(&self, id: &str) -> Result<(), Error> {
        let now = self.0.core.clock().now();
        Ok(self.0.core.store().calls().cancelled(id.to_owned(), now).await?)
    }

    /// Keeps the permission requests that the client's user did not want to answer.
    pub async fn decline_asks(&self, id: &str, asks: Vec<String>) -> Result<(), Error> {
        Ok(self.0.core.store().calls().decline(id.to_owned(), asks).await?)
    }

    /// Acknowledges answers of deferred calls, and notices, in one transaction.
    pub async fn was_received(&self, receipt: Receipt, calls: Vec<String>) -> Result<(), Error> {
        self.0.mailboxes.was_received(receipt, calls).await
    }

    /// Leases the notices of an answer again, which is about to be given once more. `false` when one of them has
    /// reached the client by other means.
    pub fn lease_again(&self, receipt: &Receipt) -> Result<bool, Error> {
        self.0.mailboxes.lease_again(receipt)
    }

    /// Deletes calls that were settled longer ago than `age`, and of each parent all but the newest `most_per_parent`.
    /// Ages count from the newest change in the store, as for the history.
    pub async fn prune_calls(&self, age: Duration, most_per_parent: i64) -> Result<(), Error> {
        let store = self.0.core.store();
        // The earlier of both: a clock that is a week ahead by mistake would delete all answers.
        let now = self.0.core.clock().now().min(store.history().last_activity()?);
        let before = now.minus(age);
        let pruned = store.calls().prune(before, most_per_parent).await?;
        if pruned > 0 {
            tracing::info!(calls = pruned, "deferred calls pruned");
        }
        Ok(())
    }
}
