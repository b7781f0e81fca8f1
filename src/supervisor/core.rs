//! Shared dependencies of the supervisor's components: store, hosts, clock, settings, and a tracker for
//! what they spawn. Its only mutable state is the limits in force, which can be changed at run time.
//!
//! Two kinds of spawned work: what must complete (`spawn`) is waited for at shutdown, what may be dropped
//! (`spawn_until_stop`) is cancelled.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::turns::Bell;
use super::{Caller, Error, Hosts, Settings};
use crate::clock::Clock;
use crate::host::{ClientCredentials, Host, Location, MeteredHost, Place};
use crate::metrics::Metrics;
use crate::store::Store;
use crate::task::queue::Limits;
use crate::task::{SessionId, Task, TaskId};

/// Shutdown waits this long for work under way. What is cut off then is owed on disk.
const LONGEST_JOIN: Duration = Duration::from_secs(5);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Core(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Clock,
    /// Wrapped for metrics.
    hosts: Hosts,
    metrics: Metrics,
    settings: Settings,
    /// Those of the settings, until they are changed at run time.
    limits: RwLock<Arc<Limits>>,
    /// How many callers drain the queue.
    drains: AtomicUsize,
    stopping: CancellationToken,
    spawned: TaskTracker,
}

/// Keeps tasks from starting, until it is dropped.
pub struct DrainGuard {
    core: Core,
    wake: Bell,
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.core.0.drains.fetch_sub(1, Ordering::SeqCst);
        self.wake.ring();
    }
}

impl Core {
    pub(super) fn new(
        store: Store,
        clock: Clock,
        hosts: Hosts,
        metrics: Metrics,
        settings: Settings,
    ) -> Core {
        let metered = |(name, host): (String, Arc<dyn Host>)| {
            let metered = MeteredHost::new(name.clone(), host, metrics.clone());
            (name, Arc::new(metered) as Arc<dyn Host>)
        };
        let Hosts { all, default } = hosts;
        let hosts = Hosts { all: all.into_iter().map(metered).collect(), default };
        Core(Arc::new(Inner {
            limits: RwLock::new(settings.limits.clone()),
            drains: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
            spawned: TaskTracker::new(),
            store,
            clock,
            hosts,
            metrics,
            settings,
        }))
    }

    pub(super) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(super) fn hosts(&self) -> &Hosts {
        &self.0.hosts
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(super) fn limits(&self) -> Arc<Limits> {
        let limits = self.0.limits.read().clone();
        match self.0.drains.load(Ordering::SeqCst) {
            0 => limits,
            _ => Arc::new(Limits { is_draining: true, ..(*limits).clone() }),
        }
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        *self.0.limits.write() = Arc::new(limits);
    }

    /// Nothing starts for as long as the answer is kept. `wake` is rung when tasks may start again.
    pub(super) fn drain(&self, wake: Bell) -> DrainGuard {
        self.0.drains.fetch_add(1, Ordering::SeqCst);
        DrainGuard { core: self.clone(), wake }
    }

    /// Cancelled when the supervisor is to stop.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// For work that must complete although its caller hangs up. Shutdown waits for it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.spawned.spawn(work)
    }

    /// For work that is cancelled when the supervisor stops.
    pub(super) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawned.spawn(self.0.stopping.clone().run_until_cancelled_owned(work));
    }

    /// Waits for everything that was spawned, up to a limit.
    pub(super) async fn join(&self) {
        self.0.spawned.close();
        if tokio::time::timeout(LONGEST_JOIN, self.0.spawned.wait()).await.is_err() {
            let left = self.0.spawned.len();
            tracing::warn!(
                left,
                "work under way did not finish in time; the next daemon recovers it"
            );
        }
    }

    pub(super) fn task(&self, id: &TaskId) -> Result<Task, Error> {
        let found = self.0.store.tasks().get(id)?;
        found.ok_or_else(|| Error::NoSuchTask(id.to_string()))
    }

    pub(super) fn host(&self, name: &str) -> Result<&Arc<dyn Host>, Error> {
        self.0.hosts.all.get(name).ok_or_else(|| Error::UnknownHost {
            name: name.to_owned(),
            known: self.0.hosts.all.keys().cloned().collect(),
        })
    }

    /// The host for a launch: a caller may be bound to a server, or name one of its own in its environment.
    pub(super) fn host_for(&self, name: &str, caller: &Caller) -> Result<Arc<dyn Host>, Error> {
        match (self.host(name)?.servers(), &caller.instance) {
            (Some(servers), Some(instance)) => Ok(self.metered(name, servers.on(instance)?)),
            (Some(_), None) | (None, _) => self.host_named_by(name, &caller.handed),
        }
    }

    /// The host, at the server that a caller's environment names.
    pub(super) fn host_named_by(
        &self,
        name: &str,
        handed: &ClientCredentials,
    ) -> Result<Arc<dyn Host>, Error> {
        let host = self.host(name)?;
        let (Some(servers), Some(address)) = (host.servers(), handed.server()) else {
            return Ok(Arc::clone(host));
        };
        // Lazy: the live tasks are read once, and only when a server has to be evicted.
        let live = OnceCell::new();
        let needed = |name: &str| {
            let live = live.get_or_init(|| self.live_instances());
            live.iter().any(|instance| instance == name)
        };
        Ok(self.metered(name, servers.at(address, &needed)?))
    }

    fn metered(&self, name: &str, there: Arc<dyn Host>) -> Arc<dyn Host> {
        Arc::new(MeteredHost::new(name.to_owned(), there, self.0.metrics.clone()))
    }

    /// The address of a session, which may be a task's or any conversation. A failed read yields an address
    /// without a hint; the host searches then.
    pub(super) fn place(&self, session: &SessionId) -> Place {
        if let Ok(Some(task)) = self.0.store.tasks().get(session) {
            return Place::from(&task);
        }
        let last = self.0.store.instances().place_of_parent(session).ok().flatten();
        Place { session: session.clone(), location: Location::Conversation { last } }
    }

    /// The instances on which tasks are live.
    pub(super) fn live_instances(&self) -> Vec<String> {
        let live = self.0.store.tasks().live(None).unwrap_or_default();
        live.into_iter().map(|task| task.origin.host_instance).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::supervisor::{Asks, ForkMethod, Retention};
    use crate::task::lifecycle::ResumePolicy;

    /// One without hosts, on a store of its own.
    pub(in crate::supervisor) fn bare() -> (Core, TempDir) {
        let home = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&home.path().join("store.db"), |_| {}).unwrap();
        let second = Duration::from_secs(1);
        let settings = Settings {
            home: home.path().to_owned(),
            enabled: true,
            limits: Arc::new(Limits {
                active: None,
                active_per_parent: 1,
                blocking_per_parent: 1,
                active_per_model: Default::default(),
                queued_per_parent: 1,
                is_draining: false,
            }),
            poll_interval: second,
            max_depth: 1,
            fork_method: ForkMethod::Context,
            stall: second,
            stall_repeats: 1,
            cancel_stalled: false,
            settle: second,
            answer_grace: second,
            gone: second,
            resumable: ResumePolicy::Completed,
            asks: Asks::Park(None),
            result_cache: second,
            last_message_characters: 1,
            inline_characters: 1,
            toasts: false,
            notifier: Arc::default(),
            history: Retention { tasks: None, age: None },
            keep_unread: None,
        };
        let core = Core::new(store, Clock::system(), Hosts::default(), Metrics::new(), settings);
        (core, home)
    }

    #[tokio::test(start_paused = true)]
    async fn spawned_work_is_joined_or_dropped_when_the_supervisor_stops() {
        let (core, _home) = bare();
        let finished = core.spawn(async {
            tokio::time::sleep(LONGEST_JOIN / 2).await;
            "finished"
        });
        core.spawn_until_stop(std::future::pending());
        core.stopping().cancel();
        core.join().await;
        assert!(core.0.spawned.is_empty());
        assert_eq!(finished.await.unwrap(), "finished");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_is_not_joined_for_ever() {
        let (core, _home) = bare();
        core.spawn(std::future::pending::<()>());
        core.stopping().cancel();
        core.join().await;
        assert_eq!(core.0.spawned.len(), 1);
    }
}
