//! One at a time for each key, and the bells by which components wake each other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

/// Locks by key. Those that nobody holds are forgotten.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

/// Held while it is somebody's turn.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Turns {
    pub(super) async fn take(&self, key: &str) -> Turn {
        self.lock(key).lock_owned().await
    }

    /// `None` when it is somebody else's.
    pub(super) fn try_take(&self, key: &str) -> Option<Turn> {
        self.lock(key).try_lock_owned().ok()
    }

    fn lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(key.to_owned()).or_default())
    }
}

/// Wakes the component that owns it; rings before that one sleeps are not lost, and count as one.
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
    async fn a_key_is_one_holders_at_a_time_and_forgotten_afterwards() {
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
    async fn a_ring_before_anybody_sleeps_is_heard() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        bell.rung().await;
        assert!(futures_util::poll!(Box::pin(bell.rung())).is_pending(), "two rings are one");
    }
}
