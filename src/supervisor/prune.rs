//! Retention: prunes the history on request, and every hour as far as the settings limit it (D3). Only ended
//! tasks are deleted. A prune that is cut off by a shutdown continues the next time.

use std::time::Duration;

use super::{Error, Retention, Supervisor};
use crate::task::Timestamp;

const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);

impl Supervisor {
    /// Deletes the ended tasks that `keep` leaves out and returns how many. What is left when the daemon
    /// stops is left for the next time.
    pub async fn prune(&self, keep: &Retention) -> Result<u64, Error> {
        self.prune_once(keep, None).await
    }

    /// The same under the caller's idempotency key: a repeat counts what the first call has deleted.
    pub async fn prune_once(&self, keep: &Retention, key: Option<String>) -> Result<u64, Error> {
        let _turn = self.0.launches.turn_of(key.as_deref()).await;
        let before = self.0.core.store().keyed_changes().so_far(key.as_deref())?.pruned();
        let now = self.0.core.clock().now();
        Ok(before + self.prune_at(keep, key.as_deref(), now).await?)
    }

    async fn prune_at(
        &self,
        keep: &Retention,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let unread = self.0.core.settings().keep_unread;
        let pruned = tokio::select! {
            pruned = self.0.core.store().history().prune(keep, unread, key, now) => pruned?,
            () = self.0.core.stopping().cancelled() => return Err(Error::Stopping),
        };
        if pruned > 0 {
            tracing::info!(tasks = pruned, "history pruned");
        }
        self.forget_servers().await;
        Ok(pruned)
    }

    /// Forgets the addresses of servers that callers named, after the last task that needs them.
    async fn forget_servers(&self) {
        for servers in self.0.core.hosts().all.values().filter_map(|host| host.servers()) {
            if let Err(error) = servers.forget_unneeded().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "addresses of unused servers not deleted; retrying at the next pruning"
                );
            }
        }
    }

    /// Automatic pruning does not trust the wall clock alone: one that was set forward (a dead battery, a
    /// wrong date) would delete the whole history. Ages count from the newest change in the store.
    async fn prune_by_itself(&self, keep: &Retention) -> Result<u64, Error> {
        let now = self.0.core.clock().now().min(self.0.core.store().history().last_activity()?);
        self.prune_at(keep, None, now).await
    }

    /// The worker: at the start and then every hour; ends at once when the history is not limited.
    pub(super) async fn pruner(self) {
        let keep = self.0.core.settings().history;
        self.forget_servers().await;
        while !keep.is_everything() {
            match self.prune_by_itself(&keep).await {
                Ok(_) => {}
                Err(Error::Stopping) => return,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "history not pruned; retrying in an hour");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(PRUNE_INTERVAL) => {}
                () = self.0.core.stopping().cancelled() => return,
            }
        }
    }
}
