//! State shared by launches: a lock per idempotency key, a cache of the agents each host offers, and whether
//! the disk quota is exceeded. All of it is in memory, and losing it costs a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::turns::{Turn, Turns};
use super::{Error, StorageOverrun};
use crate::host::AgentOffer;

/// Time to live of a cached list of agents.
const AGENT_LIST_TTL: Duration = Duration::from_secs(10);

/// Bound of the cache; beyond it everything is dropped.
const MOST_LISTS: usize = 1_000;

/// A handle; cloning it is cheap.
#[derive(Clone, Default)]
pub(super) struct Launches {
    /// Locks by idempotency key: concurrent launches with the same key open one session.
    keys: Turns,
    agent_lists: Arc<Mutex<HashMap<AgentListKey, CachedAgentList>>>,
    /// Set while the storage directory is larger than it may be.
    overfull: Arc<Mutex<Option<StorageOverrun>>>,
}

/// Cache key: a host, or the server that a caller named, and a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AgentListKey {
    pub(super) host: String,
    pub(super) server: String,
    pub(super) directory: String,
}

struct CachedAgentList {
    all: Vec<AgentOffer>,
    /// Uptime.
    asked_at: Duration,
}

impl Launches {
    /// Waits for the lock of a key, held throughout a launch.
    pub(super) async fn turn(&self, key: &str) -> Turn {
        self.keys.take(key).await
    }

    /// The same for a call that may have no key.
    pub(super) async fn turn_of(&self, key: Option<&str>) -> Option<Turn> {
        match key {
            Some(key) => Some(self.turn(key).await),
            None => None,
        }
    }

    /// `None` while a launch with this key is under way.
    pub(super) fn try_turn(&self, key: &str) -> Option<Turn> {
        self.keys.try_take(key)
    }

    /// The agent of this name, if a fresh list has it. A miss asks the host: the agent may be new.
    pub(super) fn offered(
        &self,
        key: &AgentListKey,
        name: &str,
        uptime: Duration,
    ) -> Option<AgentOffer> {
        let lists = self.agent_lists.lock();
        let list = lists.get(key)?;
        let is_fresh = uptime.saturating_sub(list.asked_at) < AGENT_LIST_TTL;
        list.all.iter().find(|offer| is_fresh && offer.name == name).cloned()
    }

    pub(super) fn note_offers(&self, key: AgentListKey, all: Vec<AgentOffer>, asked_at: Duration) {
        let mut lists = self.agent_lists.lock();
        if lists.len() > MOST_LISTS {
            lists.clear();
        }
        lists.insert(key, CachedAgentList { all, asked_at });
    }

    /// While there is something here, nothing is launched.
    pub(super) fn set_overfull(&self, overfull: Option<StorageOverrun>) {
        *self.overfull.lock() = overfull;
    }

    pub(super) fn check_space(&self) -> Result<(), Error> {
        let overfull = *self.overfull.lock();
        overfull.map_or(Ok(()), |overfull| Err(overfull.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_a_host_offers_are_cached_for_seconds_per_host_and_directory() {
        let launches = Launches::default();
        let key = |directory: &str| AgentListKey {
            host: "scripted".into(),
            server: String::new(),
            directory: directory.into(),
        };
        let offer = AgentOffer { name: "explore".into(), model: None, reads_only: true };
        let second = Duration::from_secs;
        launches.note_offers(key("/a"), vec![offer.clone()], second(1));
        assert_eq!(launches.offered(&key("/a"), "explore", second(10)), Some(offer));
        assert_eq!(launches.offered(&key("/a"), "explore", second(11)), None, "it is too old");
        assert_eq!(launches.offered(&key("/a"), "general", second(2)), None);
        assert_eq!(launches.offered(&key("/b"), "explore", second(2)), None);
    }

    #[test]
    fn nothing_is_launched_while_the_storage_directory_is_over_its_limit() {
        let launches = Launches::default();
        assert!(launches.check_space().is_ok());
        let overfull = StorageOverrun { used: 2 << 20, most: 1 << 20 };
        launches.set_overfull(Some(overfull));
        assert!(matches!(launches.check_space(), Err(Error::Overfull(found)) if found == overfull));
        launches.set_overfull(None);
        assert!(launches.check_space().is_ok());
    }
}
