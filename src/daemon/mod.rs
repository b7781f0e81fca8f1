//! The daemon: one per storage directory, held by a lock file. [`run`] is the composition root: it opens the store,
//! connects the hosts, starts the supervisor, serves the control socket and the status port, and takes everything
//! apart again in the reverse order. Starting one on demand is in [`start`].
//!
//! Every step of the shutdown is bounded in time: a request, a host or a file system that hangs must not keep the
//! daemon from leaving. What is cut off is on disk and is continued by the next daemon, as after a crash.

mod descriptors;
mod handover;
mod home;
mod hosts;
mod line_ends;
mod log;
mod notify;
mod peer;
mod peers;
mod reload;
mod rescue;
mod space;
pub mod start;
mod status;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use axum::routing::MethodRouter;
use futures_util::future::BoxFuture;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use handover::hand_over;
pub use home::{AlreadyRunning, Home, make_private};
pub use hosts::{definition_bounds, sandbox};
pub use log::init as init_log;
pub use reload::ReloadTargets;
pub use rescue::{back_up, repair};

use descriptors::Room;
use status::Listener;
use watch::Watch;

use crate::clock::Clock;
use crate::config::{self, Settings};
use crate::feed::{EventKind, Feed, TaskEvent};
pub use crate::http::LARGEST_BODY;
use crate::http::{self, Api, ApiState, PageTokens, Peer, SnapshotCache, Streams, Warnings};
use crate::metrics::Metrics;
use crate::notify::Notifier;
use crate::process::Socket;
pub use crate::store::RepairReport;
use crate::store::{ChangeKind, CommittedChange, Store};
use crate::supervisor::{self, Asks, Retention, Supervisor};
use crate::task::alert::Channel;
use crate::task::lifecycle::ResumePolicy;
use crate::task::queue::Limits;
use crate::task::view::Brief;
use crate::tools::{self, Blocking, Calls, Toolbox};

/// The concurrency limit of long reads (searches, counts), if there are as many processors.
const LONG_READS: usize = 4;

/// The grace period: how long accepted requests, and then the workers, may take to finish once the daemon stops.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

/// The MCP server at `/mcp` of the port. It is made by the layer above, which knows that protocol.
pub struct McpEndpoint {
    pub route: MethodRouter,
    /// Ends its sessions, once all requests are served.
    pub close: BoxFuture<'static, ()>,
}

/// Serves until `shutdown` resolves or a client asks it to stop; then finishes what it accepted.
///
/// `mcp` makes the MCP server of the port, from the metrics and what says that the daemon stops.
/// `on_ready` is called once the socket is bound and the status port answers. An error means that the daemon could
/// not start, or lost its socket; the lock goes with `home`.
pub async fn run(
    settings: &Settings,
    home: Home,
    reloadable: ReloadTargets,
    mcp: impl FnOnce(&Settings, Metrics, CancellationToken) -> McpEndpoint,
    on_ready: impl FnOnce() + Send,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let room = Room::make(settings.config.api.max_streams);
    let clock = Clock::system();
    let feed = Feed::new();
    let warnings = Warnings::default();
    let notifier = notify::notifier(settings)?;
    let store = open_store(&home, feed.clone(), &settings.config.api, notifier.channels())?;
    if let Err(error) = supervisor::seed_ids_from_store(&store, &clock) {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "newest ids are unreadable; new ids start from the clock");
    }
    let hosts::HostSet { hosts, embedded, sandbox } =
        hosts::connect(settings, &home, &store, &clock)?;
    // The probe of the sandbox runs a program, so it is made in the background; the first command would have to
    // wait for it otherwise.
    let noted = warnings.clone();
    let probing = tokio::task::spawn_blocking(move || noted.put("sandbox", sandbox.warnings()));
    let supervisor = Supervisor::new(
        store.clone(),
        feed,
        clock.clone(),
        hosts,
        supervisor_settings(&settings.config, &settings.home, notifier),
    );
    let configuration = reload::Watch::new(settings, reloadable, supervisor.clone());
    let watch = watch(settings, &home, &supervisor, &store, &warnings);
    let toolbox = Arc::new(toolbox(&settings.config));
    let calls = Calls::new(supervisor.clone(), toolbox.clone());
    let api = Api::from(ApiState {
        supervisor: supervisor.clone(),
        toolbox,
        calls: calls.clone(),
        warnings: warnings.clone(),
        stop: CancellationToken::new(),
        restarts: Arc::default(),
        restart_needed: Arc::new(configuration.clone()),
        streams: streams(&settings.config.api, room),
        snapshots: SnapshotCache::default(),
        long_reads: Arc::new(Semaphore::new(long_reads())),
        document: Arc::new(http::document()),
        pages: PageTokens::new(clock.clone()),
    });

    // We hold the lock, so a `server.json` that is there was left by a daemon that died.
    home.withdraw();
    let status = match settings.config.api.enabled {
        true => {
            let pages = api.pages.clone();
            Some(Listener::bind(&settings.config.api, room, &home, &clock, pages).await?)
        }
        false => None,
    };
    // The socket is bound before the supervisor starts: a client that finds it may connect and wait in the backlog.
    let listener = home.bind()?;
    let working = tokio::spawn({
        let supervisor = supervisor.clone();
        async move { supervisor.run().await }
    });
    let calling = tokio::spawn(calls.run());
    let reading = match status {
        Some(status) => {
            let mcp = mcp(settings, supervisor.metrics().clone(), supervisor.stopping());
            let reading = open_for_reading(status, mcp.route, &home, &api, &clock).await?;
            Some((reading, mcp.close))
        }
        None => None,
    };
    let reloading = tokio::spawn(configuration.run(supervisor.stopping()));
    if home.was_left_in_a_hurry() {
        check_in_background(store.clone());
    }
    let watching = tokio::spawn(watch.run(api.stop.clone()));
    tracing::info!(home = %home.path().display(), pid = std::process::id(), "daemon ready");
    on_ready();

    let asked_to_stop = farewell(home.path().to_owned(), home.place(), api.clone(), shutdown);
    serve(listener, api, asked_to_stop).await?;
    if let Some((reading, close_mcp)) = reading {
        let _ = reading.await;
        let _ = tokio::time::timeout(LONGEST_FAREWELL, close_mcp).await;
        home.withdraw();
    }
    // Aborted and not awaited to its end: it may be blocked by a file system that hangs.
    watching.abort();
    let workers = async { tokio::join!(working, calling, reloading, watching, probing) };
    let _ = tokio::time::timeout(LONGEST_FAREWELL, workers).await;
    // Runs of our own agents are cut off at their last saved message; the next daemon continues them.
    let _ = tokio::time::timeout(LONGEST_FAREWELL, embedded.stop()).await;
    // The store last, when all writers have stopped: it commits what is queued and joins the writer thread. The lock
    // is released after it, so that the next daemon never opens a store that is still being written.
    tokio::task::spawn_blocking(move || store.close()).await.context("closing the task store")?;
    home.leave();
    tracing::info!("daemon stopped");
    Ok(())
}

/// Resolves when the daemon is to stop and clients were told. The order matters: the mark first, then the goodbye on
/// event streams, then the supervisor.
async fn farewell(
    home: PathBuf,
    place: home::LockIdentity,
    api: Api,
    shutdown: impl Future<Output = ()> + Send,
) {
    tokio::select! {
        () = shutdown => {}
        () = api.stop.cancelled() => {}
    }
    let restarts = api.restarts.load(Ordering::SeqCst);
    tracing::info!(restarts, "daemon stopping; requests under way may finish");
    // Before clients are told: one that waits for a task looks for the mark, and starts a daemon without it.
    if !restarts && place.is_ours() {
        home::mark_stopped(&home);
    }
    // Event streams end, with the word that it is on purpose, for clients that would start the daemon again.
    api.supervisor.say_goodbye();
    api.stop.cancel();
    // Blocking calls are answered now, so that their requests finish within the grace period.
    api.supervisor.stop();
}

/// The watchdog of the storage directory. It has already looked once, so that the first response carries the
/// warnings there are.
fn watch(
    settings: &Settings,
    home: &Home,
    supervisor: &Supervisor,
    store: &Store,
    warnings: &Warnings,
) -> Watch {
    let watch = Watch {
        supervisor: supervisor.clone(),
        store: store.clone(),
        home: home.path().to_owned(),
        place: home.place(),
        storage: settings.config.storage.clone(),
        warnings: warnings.clone(),
    };
    watch.look();
    watch
}

fn long_reads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().min(LONG_READS))
}

/// Serves the status API, and announces it in `server.json` once it answers: a program that finds the file must not
/// be refused. Ends when the supervisor stops.
async fn open_for_reading(
    listener: Listener,
    mcp: MethodRouter,
    home: &Home,
    api: &Api,
    clock: &Clock,
) -> anyhow::Result<JoinHandle<()>> {
    let server = listener.server(clock);
    if listener.policy.asks_who_reads() && !Socket::can_be_told() {
        let warning = "this system does not report which user opened a TCP connection, so the \
                       status API requires the token; `api.readers = \"anyone\"` lets every user \
                       of this machine read";
        api.warnings.put("readers", vec![warning.to_owned()]);
    }
    let router = http::status(api.clone(), listener.policy.clone(), mcp);
    let serving = tokio::spawn(listener.serve(router, api.supervisor.stopping()));
    status::until_it_answers(&server).await?;
    home.announce(&server)?;
    tracing::info!(url = server.url, "status API listening");
    Ok(serving)
}

/// Graceful shutdown of the control socket: accepts until told to stop, then lets accepted requests finish, for a
/// bounded time.
async fn serve(
    listener: UnixListener,
    api: Api,
    asked_to_stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let stopping = CancellationToken::new();
    let stop = stopping.clone();
    let control = http::control(api).into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(listener, control).with_graceful_shutdown(async move {
        asked_to_stop.await;
        stop.cancel();
    });
    tokio::select! {
        served = async { serving.await } => served.context("serving the socket"),
        () = async {
            stopping.cancelled().await;
            tokio::time::sleep(LONGEST_FAREWELL).await;
        } => {
            let seconds = LONGEST_FAREWELL.as_secs();
            tracing::warn!(seconds, "requests did not finish in time; their connections are closed");
            Ok(())
        }
    }
}

/// Opens the store, connects it to the feed of events, and quarantines live tasks that cannot be decoded, before the
/// supervisor meets them.
fn open_store(
    home: &Home,
    feed: Feed,
    config: &config::Api,
    channels: Vec<Channel>,
) -> anyhow::Result<Store> {
    let publish = move |committed: CommittedChange| {
        let kind = match committed.what {
            ChangeKind::Created => EventKind::Created,
            ChangeKind::Updated => EventKind::Updated,
            ChangeKind::Ended => EventKind::of_end(committed.task.status()),
        };
        feed.publish(TaskEvent::new(committed.id, kind, committed.task));
    };
    let brief = Brief { result_characters: config.result_characters };
    let (store, _) = Store::open_with(&home.database(), brief, publish)?;
    // From here on, every end is owed to those who want to be told: first of all those of tasks in quarantine.
    drop(store.alerts().set_channels(channels));
    // Not fatal: a store that cannot be written reports so with every command, and can still be read.
    if let Err(error) = store.integrity().quarantine_live() {
        let error = &error as &dyn std::error::Error;
        tracing::error!(
            error,
            "live tasks not checked at start; an unreadable one is quarantined when first read"
        );
    }
    Ok(store)
}

/// After an unclean stop, an integrity check of the whole file in the background. What it finds sets the latch that
/// makes the store read-only, and is logged there. Not awaited: it only reads, and with a long history a stop would
/// wait for minutes.
fn check_in_background(store: Store) {
    tokio::task::spawn_blocking(move || match store.integrity().check() {
        Ok(problems) if problems.is_empty() => tracing::info!("task store passed its check"),
        Ok(_) => {}
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "task store check failed; damage may be undetected");
        }
    });
}

/// The limits of admission control, which can be changed while the daemon runs; 0 for all tasks means none.
fn limits(config: &config::Config) -> Limits {
    let config::Limits { active, active_per_parent, queued_per_parent, active_per_model } =
        &config.limits;
    let per_model = active_per_model.iter();
    Limits {
        active: (*active > 0).then_some(*active as usize),
        active_per_parent: *active_per_parent as usize,
        blocking_per_parent: config.task_tool.active_per_parent as usize,
        active_per_model: per_model.map(|(name, n)| (name.clone(), *n as usize)).collect(),
        queued_per_parent: *queued_per_parent as usize,
        is_draining: false,
    }
}

fn supervisor_settings(
    config: &config::Config,
    home: &Path,
    notifier: Notifier,
) -> crate::supervisor::Settings {
    let config::Config { supervisor, resume, fork, permissions, notices, history, .. } = config;
    crate::supervisor::Settings {
        home: home.to_owned(),
        enabled: config.enabled,
        limits: Arc::new(limits(config)),
        poll_interval: supervisor.poll_interval,
        max_depth: supervisor.max_depth,
        fork_method: fork.method,
        stall: supervisor.stall,
        stall_repeats: supervisor.stall_repeats,
        cancel_stalled: supervisor.cancel_stalled,
        settle: supervisor.settle,
        answer_grace: supervisor.answer_grace,
        gone: supervisor.gone,
        resumable: match resume.any_status {
            true => ResumePolicy::AnyEnded,
            false => ResumePolicy::Completed,
        },
        asks: match permissions.policy {
            config::Policy::Park => Asks::Park(permissions.park),
            config::Policy::Allow => Asks::Allow,
            config::Policy::Deny => Asks::Deny,
        },
        result_cache: supervisor.result_cache,
        last_message_characters: supervisor.last_message_characters,
        inline_characters: notices.inline_characters,
        toasts: notices.toasts,
        notifier: Arc::new(notifier),
        history: Retention { tasks: history.max_tasks, age: history.max_age },
        keep_unread: history.unread,
    }
}

fn streams(config: &config::Api, room: Room) -> Streams {
    Streams {
        heartbeat: config.heartbeat,
        snapshot_tasks: config.snapshot_tasks,
        most: room.streams,
    }
}

/// What clients of MCP are told about the tools of a daemon with this configuration.
pub fn mcp_instructions(config: &config::Config) -> String {
    tools::instructions(&toolbox(config))
}

fn toolbox(config: &config::Config) -> Toolbox {
    let config::Config { tools, task_tool, .. } = config;
    Toolbox {
        aliases: tools.aliases.iter().copied().collect(),
        blocking: Blocking {
            offered: task_tool.offered,
            timeout: task_tool.timeout,
            on_timeout: task_tool.on_timeout,
            agent: task_tool.agent.clone(),
            cache: task_tool.cache_ttl,
        },
    }
}
