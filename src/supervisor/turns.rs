//! Concurrency primitives of the supervisor: mutexes by key, and coalescing wake-ups ("bells") between
//! components. The keyed mutexes are async and may be held while a host is called; a bell carries no data,
//! so its owner always reads the store to find out what to do.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

/// Async mutexes by key. Unused ones are dropped from the map.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

/// The guard of a key: unlocks when dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Turns {
    pub(super) async fn take(&self, key: &str) -> Turn {
        self.lock(key).lock_owned().await
    }

    /// `None` when it is locked.
    pub(super) fn try_take(&self, key: &str) -> Option<Turn> {
        self.lock(key).try_lock_owned().ok()
    }

    fn lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock();
        // Only the map's own reference is left: no holder and no waiter. Counted under the map's lock,
        // through which every new reference is made.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(key.to_owned()).or_default())
    }
}

/// Wakes the component that owns it. A ring before that one sleeps is not lost, and several count as one.
#[derive(Clone, Default)]
pub(super) struct Bell(Arc<Notify>);

impl Bell {
    pub(super) fn ring(&self) {
        self.0.notify_one();
    }

    pub(super) async fn rung(&self) {
        self.0.notified().await;
    }

    /// For hosts, which ring it themselves.
    pub(super) fn notify(&self) -> &Notify {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_one_holder_at_a_time_and_is_forgotten_afterwards() {
        let turns = Turns::default();
        let held = turns.take("one").await;
        assert!(turns.try_take("one").is_none());
        assert!(turns.try_take("other").is_some());
        drop(held);
        assert!(turns.try_take("one").is_some());
        drop(turns.lock("another"));
        assert_eq!(turns.0.lock().keys().collect::<Vec<_>>(), ["another"]);
    }

    #[tokio::test]
    async fn a_wake_up_before_anybody_waits_is_not_lost() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        bell.rung().await;
        assert!(futures_util::poll!(Box::pin(bell.rung())).is_pending(), "two rings are one");
    }
}
