//! The task manager: carries out requests, reconciles runs with their hosts, and notifies parents.
//!
//! Everything here rests on five rules.
//!
//! *The store is the truth.* A request is a committed change; what must follow from it (a prompt
//! to a child, an abort, a notice to a parent) is written in the same transaction (transactional outbox)
//! or can be derived from the state, so that a daemon killed at any point continues where it was. Slots are
//! not counted, they are the tasks that hold one; a queue is the tasks that wait.
//!
//! *One path to an end.* The reconciler (`reconcile`) is level-triggered: events of hosts and a timer only
//! wake it. It takes no input, observes every active task in a few batched calls, and hands what it sees to
//! a pure verdict (`verdict`). A missed event, a restart and the normal case run the same lines.
//! Writes are optimistic: a verdict on a stale revision loses, and is dropped.
//!
//! *Owed, then sent.* Two workers send from rows that say what is owed: the prompter (`prompt`) to
//! children, the deliverer (`deliver`) to parents. Message ids are minted once and kept in the row: they are
//! the idempotency keys. A notice that may have been sent before (by a daemon that died, or when a response
//! got lost) is looked up in the conversation before it is sent again: at least once on the wire, once in
//! the conversation.
//!
//! *No polling.* Waiting callers sleep on the feed, which is fed by commits.
//!
//! *A component owns what it remembers.* Its lock is its own and not held while a host is called; others
//! ring its bell or call it, and losing its memory costs time, never truth. Only the locks per task and per
//! launch key (`turns`) span calls to hosts. [`Supervisor`] is the verbs on top; what they spawn is joined at
//! shutdown.

mod alerts;
mod asks;
mod caller;
mod calls;
mod cancel;
mod clear;
mod core;
mod deliver;
mod ends;
mod fit;
mod fork;
mod hosts;
mod intent;
mod launch;
mod launches;
mod ledger;
mod list;
mod mailbox;
mod memory;
mod output;
mod prompt;
mod providers;
mod prune;
mod queue;
mod reconcile;
mod recover;
mod resume;
mod retry;
mod send;
mod status;
mod toast;
mod transcript;
mod turns;
mod verdict;
mod wait;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::core::DrainGuard;
pub use crate::host::{AgentOffer, Answer};
pub use crate::notice::Notice;
pub use asks::PermissionRequest;
pub use caller::Caller;
pub use cancel::{CancelOutcome, Target};
pub use clear::ClearOutcome;
pub use fork::{Fork, ForkMethod};
pub use hosts::{Bridge, HostStatus, Line, Server};
pub use launch::Launch;
pub use list::Listing;
pub use mailbox::{LeasedNotice, Mail, Mailbox};
pub use output::Output;
pub use providers::{
    ClientCredentialParts, ClientCredentials, ModelStatus, ProbeDepth, ProviderStatus,
};
pub use queue::{DrainOutcome, SlotCounts};
pub use send::{Delivery, SendOutcome};
pub use status::StoreCheck;
pub use wait::{AwaitedEnds, Need, PermissionDialog, WaitEnd, WaitOutcome};

use self::alerts::Alerter;
use self::asks::OpenAsks;
use self::core::Core;
use self::deliver::Deliverer;
use self::ends::{Ends, Wakes};
use self::fit::SchemaCheck;
use self::launches::Launches;
use self::ledger::Ledger;
use self::mailbox::Mailboxes;
use self::prompt::Prompter;
use self::reconcile::Reconciler;
use self::transcript::Transcripts;
use self::turns::Bell;
use crate::clock::Clock;
use crate::feed::{Events, Feed, TaskEvent};
use crate::host::{self, Host};
use crate::metrics::Metrics;
use crate::notify::Notifier;
use crate::store::{self, Resolution, Store};
pub use crate::store::{
    Direction, Field, Filter, Group, NewCall, QuarantinedTask, QueueLength, Retention, Snapshot,
    Sort, StoredCall, Totals, UnreadableRow, Window,
};
use crate::task::lifecycle::{self, ResumePolicy};
use crate::task::queue::Limits;
use crate::task::{Answered, SessionId, Task, TaskId, launch as arguments, tick_of};

/// Pause before a panicked worker is restarted: one that panics at once must not become a busy loop.
const AFTER_A_PANIC: Duration = Duration::from_secs(1);

/// The verbs, on top of the components. A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Supervisor(Arc<Inner>);

struct Inner {
    core: Core,
    feed: Feed,
    launches: Launches,
    mailboxes: Mailboxes,
    asks: OpenAsks,
    ends: Ends,
    transcripts: Transcripts,
    prompter: Prompter,
    reconciler: Reconciler,
    deliverer: Deliverer,
    alerter: Alerter,
    bells: Bells,
}

/// Wake-ups for the workers, coalesced: they carry no data.
#[derive(Clone, Default)]
struct Bells {
    /// Something may have ended.
    look: Bell,
    /// A child may be owed a prompt, or a slot may be free.
    prompts: Bell,
    /// A parent may be owed a notice.
    notices: Bell,
    /// A transcript may be owed to be kept.
    transcripts: Bell,
    /// A person may be owed a notification.
    alerts: Bell,
}

/// The disk quota is exceeded; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the storage directory holds {} MiB, more than the {} MiB that `storage.max_bytes` allows; \
     `asyncagents prune` makes room, and what runs goes on",
    .used >> 20,
    .most >> 20
)]
pub struct StorageOverrun {
    pub used: u64,
    pub most: u64,
}

/// The hosts by name, and the default for launches that name none.
#[derive(Clone, Default)]
pub struct Hosts {
    pub all: BTreeMap<String, Arc<dyn Host>>,
    pub default: Option<String>,
}

/// What the configuration says, as far as it matters here.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The storage directory, where clients hold their names.
    pub home: PathBuf,
    pub enabled: bool,
    pub limits: Arc<Limits>,
    pub poll_interval: Duration,
    pub max_depth: u32,
    pub fork_method: ForkMethod,
    pub stall: Duration,
    pub stall_repeats: u32,
    pub cancel_stalled: bool,
    pub settle: Duration,
    pub answer_grace: Duration,
    /// How long a host may be unreachable before its runs fail.
    pub gone: Duration,
    pub resumable: ResumePolicy,
    pub asks: Asks,
    /// Time to live of cached transcripts of live tasks.
    pub result_cache: Duration,
    /// Of the text that a task's progress shows.
    pub last_message_characters: usize,
    pub inline_characters: usize,
    pub toasts: bool,
    /// How people are told besides.
    pub notifier: Arc<Notifier>,
    /// What is pruned is what this leaves out.
    pub history: Retention,
    /// How long a task is kept whose end was not read; `None` is until it is read.
    pub keep_unread: Option<Duration>,
}

/// What happens to permissions and questions of children (T15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Wait for a person, for this long at most.
    Park(Option<Duration>),
    Allow,
    Deny,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no task `{0}`; list the tasks to see their ids")]
    NoSuchTask(String),
    #[error("`{reference}` could be any of: {}", .candidates.join(", "))]
    Ambiguous { reference: String, candidates: Vec<String> },
    #[error("there is no batch `{0}`")]
    NoSuchBatch(String),
    #[error("no task group `{0}`; `/v1/task-groups` lists them")]
    NoSuchGroup(String),
    #[error(
        "`{}` was answered already: {} at {} ({})",
        .0.id,
        if .0.allowed { "allowed" } else { "denied" },
        .0.at,
        .0.door.name()
    )]
    AnsweredBefore(Answered),
    #[error("no permission request `{0}` is open; `asyncagents approve` lists those that are")]
    NothingAsked(String),
    #[error(transparent)]
    Refused(#[from] lifecycle::Refused),
    #[error(transparent)]
    Arguments(#[from] arguments::Refused),
    #[error(
        "Agent \"{agent}\" not found. Make sure it's registered. Known agents: {}", .known.join(", ")
    )]
    UnknownAgent { agent: String, known: Vec<String> },
    /// It is there, and must not be used.
    #[error("{0}")]
    AgentRefused(String),
    /// It cannot be used as the daemon is set up.
    #[error("{0}")]
    ModelRefused(String),
    #[error(
        "no host to run agents on: set ASYNCAGENTS_HOST, or `host` in the configuration file \
         (`asyncagents config init` writes a commented one)"
    )]
    NoHost,
    #[error("no host `{name}`; configured: {}", .known.join(", "))]
    UnknownHost { name: String, known: Vec<String> },
    #[error("{0}")]
    BadServer(String),
    #[error(
        "the queue of this parent is full (limit {0}); wait for some of its tasks or cancel some"
    )]
    QueueFull(usize),
    #[error(
        "a background task may not launch tasks of its own (max_depth = {0}); report back and let \
         your parent launch it"
    )]
    TooDeep(u32),
    #[error(
        "task `{0}` was launched by another conversation, which alone may change it; a person can, in \
         a shell: `asyncagents cancel {0}`, `asyncagents resume {0} PROMPT`, `asyncagents send {0} MESSAGE`"
    )]
    NotYours(String),
    #[error(
        "task `{task}` takes no messages any more, its status is {status}; start a new task with \
         asyncagents_task"
    )]
    TakesNoMessages { task: String, status: &'static str },
    #[error(
        "the host `{host}` cannot give a message to an agent at work; wait for the end of task `{task}` and \
         send it then, or cancel the task and start a new one"
    )]
    CannotSteer { task: String, host: String },
    #[error("{0} messages wait for this task already; wait until it has taken them in")]
    TooManyMessages(usize),
    #[error("session of task `{0}` no longer exists; start a new task with asyncagents_task")]
    SessionGone(String),
    #[error("task `{0}` is still being stopped on its host; try again in a moment")]
    StillStopping(String),
    #[error(
        "`fork` needs a conversation, and this caller has none; launch without it and put what the \
         agent needs into the prompt (`asyncagents run --fork SESSION` names a conversation)"
    )]
    NothingToFork,
    #[error(
        "cannot fork session `{session}`: {why}; nothing was launched, try again or launch without \
         `fork`"
    )]
    CannotFork { session: String, why: String },
    #[error(
        "the context of task `{0}` was a copy that its host made, which is not kept; launch it anew from the \
         conversation that it was forked from"
    )]
    ContextNotKept(String),
    #[error(
        "no session `{session}` on any host ({known}), and no task of that id; list the tasks \
         to see theirs"
    )]
    NoSuchConversation { session: String, known: String },
    #[error(transparent)]
    Overfull(#[from] StorageOverrun),
    #[error("background tasks are switched off (`enabled = false` in the configuration file)")]
    Disabled,
    #[error("the daemon is stopping; try again, a new one is started on demand")]
    Stopping,
    #[error("the task kept changing; nothing was done, try again")]
    Contended,
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Makes new ids sort after those in the store, also when the clock was set back while no daemon ran: hosts
/// sort messages by id. To be called before any id is minted.
pub fn seed_ids_from_store(store: &Store, clock: &Clock) -> Result<(), Error> {
    let now = clock.tick();
    let ids = store.history().newest_ids()?;
    let newest = ids.iter().filter_map(|id| tick_of(id, now)).fold(0, u64::max);
    if newest > now {
        tracing::warn!("clock is behind the newest stored id; new ids continue from there");
    }
    clock.go_on_after(newest);
    Ok(())
}

impl Supervisor {
    pub fn new(
        store: Store,
        feed: Feed,
        clock: Clock,
        hosts: Hosts,
        settings: Settings,
    ) -> Supervisor {
        let metrics = Metrics::new();
        feed.watch({
            let metrics = metrics.clone();
            move |change| metrics.note(change)
        });
        let core = Core::new(store, clock, hosts, metrics, settings);
        let bells = Bells::default();
        let Bells { look, prompts, notices, transcripts, alerts } = bells.clone();
        let wakes = Wakes {
            notices: notices.clone(),
            prompts: prompts.clone(),
            transcripts: transcripts.clone(),
            alerts: alerts.clone(),
        };
        let ends = Ends::new(core.clone(), wakes);
        let ledger = Ledger::new(core.clone(), prompts.clone(), notices.clone());
        let fitting = SchemaCheck::new(core.clone(), prompts.clone());
        let mailboxes = Mailboxes::new(core.clone(), notices.clone());
        let asks = OpenAsks::new(core.clone(), look.clone(), alerts.clone());
        let transcripts = Transcripts::new(core.clone(), transcripts);
        Supervisor(Arc::new(Inner {
            launches: Launches::default(),
            alerter: Alerter { core: core.clone(), bell: alerts },
            deliverer: Deliverer::new(core.clone(), mailboxes.clone(), notices),
            prompter: Prompter {
                core: core.clone(),
                ends: ends.clone(),
                ledger: ledger.clone(),
                bell: prompts,
                look: look.clone(),
            },
            reconciler: Reconciler {
                core: core.clone(),
                ends: ends.clone(),
                ledger,
                asks: asks.clone(),
                fitting,
                transcripts: transcripts.clone(),
                bell: look,
            },
            core,
            feed,
            mailboxes,
            asks,
            ends,
            transcripts,
            bells,
        }))
    }

    /// Changes the limits for tasks that start from now on; running ones are not stopped.
    pub fn set_limits(&self, limits: Limits) {
        self.0.core.set_limits(limits);
        // There may be more slots now.
        self.0.bells.prompts.ring();
    }

    /// Runs the workers until [`Supervisor::stop`]: recovery, prompter, reconciler, deliverer and the rest.
    /// Returns when everything that was spawned here has ended.
    pub async fn run(&self) {
        let Inner { prompter, reconciler, deliverer, alerter, transcripts, .. } = &*self.0;
        let mut workers = JoinSet::new();
        workers.spawn(run_restarting("recover", self.clone(), Supervisor::recover));
        workers.spawn(run_restarting("prompter", prompter.clone(), Prompter::run));
        workers.spawn(run_restarting("reconciler", reconciler.clone(), Reconciler::run));
        workers.spawn(run_restarting("deliverer", deliverer.clone(), Deliverer::run));
        workers.spawn(run_restarting("alerter", alerter.clone(), Alerter::run));
        workers.spawn(run_restarting("pruner", self.clone(), Supervisor::pruner));
        workers.spawn(run_restarting("toaster", self.clone(), Supervisor::toaster));
        workers.spawn(run_restarting("transcript archiver", transcripts.clone(), Transcripts::run));
        for host in self.0.core.hosts().all.values() {
            let host = Arc::clone(host);
            let listen = move |supervisor: Supervisor| supervisor.listener(Arc::clone(&host));
            workers.spawn(run_restarting("listener", self.clone(), listen));
        }
        while workers.join_next().await.is_some() {}
        self.0.core.join().await;
    }

    /// Stops the workers. Callers that wait get [`Error::Stopping`].
    pub fn stop(&self) {
        self.0.core.stopping().cancel();
    }

    /// Set while the disk quota is exceeded; launches are refused meanwhile.
    pub fn set_overfull(&self, overfull: Option<StorageOverrun>) {
        self.0.launches.set_overfull(overfull);
    }

    /// Subscribes to the changes from now on.
    pub fn events(&self) -> Events {
        self.0.feed.subscribe()
    }

    /// Everything after this change: first what is kept, then what comes. `None` when not all of it is kept,
    /// or when there is no such change yet.
    pub fn events_after(&self, id: u64) -> Option<(Vec<Arc<TaskEvent>>, Events)> {
        self.0.feed.subscribe_after(id)
    }

    pub fn metrics(&self) -> &Metrics {
        self.0.core.metrics()
    }

    /// Cancelled when the supervisor is to stop.
    pub fn stopping(&self) -> CancellationToken {
        self.0.core.stopping().clone()
    }

    pub fn clock(&self) -> &Clock {
        self.0.core.clock()
    }

    /// Wakes all workers now instead of at the next event.
    pub fn sweep(&self) {
        let Bells { look, prompts, notices, .. } = &self.0.bells;
        [look, prompts, notices].into_iter().for_each(Bell::ring);
    }

    /// The session that a command belongs to, by the command's guard; `None` when it is over.
    pub fn session_of_command(&self, guard: i32) -> Option<SessionId> {
        let recorded = self.0.core.store().processes().all().ok()?;
        recorded.into_iter().find(|process| process.guard_pid == guard).map(|found| found.session)
    }

    pub fn task(&self, id: &TaskId) -> Result<Task, Error> {
        self.0.core.task(id)
    }

    /// The full id, the short id or any unique prefix of the full one (T1).
    pub fn resolve(&self, reference: &str) -> Result<Task, Error> {
        let reference = reference.trim();
        match self.0.core.store().tasks().resolve(reference)? {
            Resolution::One(task) => Ok(*task),
            Resolution::None => Err(Error::NoSuchTask(reference.to_owned())),
            Resolution::Ambiguous { tasks, others } => {
                let named =
                    tasks.iter().map(|task| format!("{} ({})", task.id, task.order.description));
                let others = (others > 0).then(|| format!("and {others} more"));
                let candidates = named.chain(others).collect();
                Err(Error::Ambiguous { reference: reference.to_owned(), candidates })
            }
        }
    }

    async fn listener(self, host: Arc<dyn Host>) {
        tokio::select! {
            () = host.listen(self.0.bells.look.notify()) => {}
            () = self.sweep_on_server_arrival(&*host) => {}
            () = self.0.core.stopping().cancelled() => {}
        }
    }

    /// Work that waited for a server is retried as soon as that is reachable.
    async fn sweep_on_server_arrival(&self, host: &dyn Host) {
        loop {
            match host.servers() {
                Some(servers) => servers.arrival().await,
                None => std::future::pending().await,
            }
            self.sweep();
        }
    }
}

/// Supervises a worker: one that panics is restarted, because it holds nothing that is not in the store.
async fn run_restarting<W: Clone, F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    worker: W,
    work: impl Fn(W) -> F,
) {
    loop {
        // A set of one aborts its task when dropped, unlike a join handle.
        let mut working = JoinSet::from_iter([work(worker.clone())]);
        match working.join_next().await {
            Some(Err(error)) if error.is_panic() => {}
            Some(_) | None => return,
        }
        tracing::error!(worker = name, "supervisor worker panicked; restarting it");
        tokio::time::sleep(AFTER_A_PANIC).await;
    }
}
