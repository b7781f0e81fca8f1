//! The embedded host: an agent runtime inside the daemon, with its sessions in our own store. Each message
//! is saved before the next step, so a run that was cut off resumes from its last saved message, as often as
//! needed (checkpointing).
//!
//! A run that cannot start or continue ends (T6): what is *refused* (the workspace, agent or model is gone)
//! ends it at once; what is *unreachable* (a full disk, a hanging file system) is retried with back-off,
//! visibly, and ends it after `gone`; what lacks *credentials* waits for its caller without a limit.
//!
//! Lock order: `runs`, then `suspended`. Neither is held across an await.

mod contract;
mod credentials;
mod files;
mod processes;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Activity, Answer, Ask, ClientCredentials, Error, NewSession, Observation, Watch};
use crate::agent::definition::{self, AgentUnavailable, Definition};
use crate::agent::model::{Models, Price};
use crate::agent::tools::Todo;
use crate::agent::turn::Limits;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::process::{Record, Survivors, Variables};
use crate::sandbox::Sandbox;
use crate::store::{self, Session, Store};
use crate::task::{MessageId, SessionId, Timestamp};
use crate::threads;
use crate::transcript::{self, Figures, Info, Message, Outcome, Part, Role};
use crate::trust::{Trust, TrustStatus};

const INSTANCE: &str = "embedded";
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Embedded(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Clock,
    setup: Setup,
    runs: Mutex<HashMap<SessionId, RunningSession>>,
    /// Suspended runs that are to be resumed. In memory only: after a restart the unfinished runs of live
    /// tasks are resumed at once.
    suspended: Mutex<HashMap<SessionId, SuspendedRun>>,
    /// Credentials that callers handed over for their sessions; nowhere else, and gone with this process.
    handed: Mutex<HashMap<SessionId, ClientCredentials>>,
    events: watch::Sender<u64>,
    stop: CancellationToken,
    /// Everything that is spawned here and the clean-up of commands, so that `stop` can wait for it.
    workers: TaskTracker,
}

/// What the configuration says, as far as it matters here.
#[derive(Clone)]
pub struct Setup {
    /// Where the user's own agents are.
    pub config_dir: PathBuf,
    /// Which workspaces may define agents.
    pub trust: Trust,
    /// How much of what defines agents is read.
    pub bounds: definition::Bounds,
    /// Where long outputs of commands go, in a folder for each session.
    pub overflow: PathBuf,
    /// How much one session may keep there.
    pub output_bytes: u64,
    /// `provider/model` for agents and prompts that name none.
    pub default_model: String,
    pub models: Models,
    /// By `provider/model`.
    pub prices: BTreeMap<String, Price>,
    pub limits: Limits,
    /// How long something a run needs may be out of reach before the run ends.
    pub gone: Duration,
    /// The program that becomes a guard for a command: this one.
    pub guard: PathBuf,
    /// All that commands get of an environment.
    pub environment: Variables,
    /// The lease of commands: their guard kills them when the daemon has not renewed it for this long.
    pub command_lease: Duration,
    /// What is around commands.
    pub sandbox: Sandbox,
    /// Where sessions keep their private `/tmp` and home, in a folder for each session.
    pub scratch: PathBuf,
    /// How long such a folder stays after the session's last run.
    pub scratch_age: Option<Duration>,
    /// Looks up the state of a session's task.
    pub task_lookup: TaskLookup,
    /// Kills what is left of a command whose guard could not; tests have one that fails.
    pub sweep: fn(&Record) -> Result<(), Survivors>,
}

/// Looks up the state of a session's task.
pub type TaskLookup = Arc<dyn Fn(&SessionId) -> Result<TaskPresence, store::Error> + Send + Sync>;

/// The state of a session's task, as far as a host that reads no tasks has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskPresence {
    /// There is no such task: a conversation, or a launch under way.
    Absent,
    Live,
    /// Parked: it lost its credentials and holds no slot.
    Parked,
    Ended,
}

/// A session at work.
struct RunningSession {
    /// Tells this run from a later one of the same session.
    generation: u64,
    cancel: CancellationToken,
    activity: Activity,
    figures: Figures,
    asks: Vec<(Ask, Option<oneshot::Sender<Answer>>)>,
}

/// A run that is suspended because something it needs is out of reach.
#[derive(Clone, Debug)]
struct SuspendedRun {
    why: String,
    /// Uptime when this began, and when it is tried again.
    first: Duration,
    until: Duration,
    tries: u32,
    figures: Figures,
    /// It waits for lost credentials, not for a back-off to pass.
    lacks: bool,
}

impl Embedded {
    /// Starts the host and resumes every session that was at work when the last daemon stopped or crashed.
    pub fn start(store: Store, clock: Clock, setup: Setup) -> Result<Embedded, store::Error> {
        let host = Embedded(Arc::new(Inner {
            store,
            clock,
            setup,
            runs: Mutex::default(),
            suspended: Mutex::default(),
            handed: Mutex::default(),
            events: watch::Sender::new(0),
            stop: CancellationToken::new(),
            workers: TaskTracker::new(),
        }));
        // Read before anything runs: later the list would include commands of this daemon.
        let mut leftovers = host.0.store.processes().all()?;
        for session in host.0.store.sessions().running()? {
            // The task may have been cancelled or failed in the store before the crash, and its session not
            // yet: the task decides.
            match (host.0.setup.task_lookup)(&session)? {
                // It holds no slot. Observed again when it gets one, it is resumed then.
                TaskPresence::Parked => {}
                // Not awaited: should it fail, the next start finds the same state.
                TaskPresence::Ended => {
                    let (settling, session) = (host.clone(), session.clone());
                    host.spawn(async move { drop(settling.settle_aborted(&session).await) });
                }
                TaskPresence::Live | TaskPresence::Absent => {
                    // Its run kills its own leftovers before it continues, and waits for that.
                    leftovers.retain(|process| process.session != session);
                    host.work(&session);
                }
            }
        }
        host.clear_processes_in_background(leftovers);
        host.sweep_files_in_background();
        Ok(host)
    }

    /// Suspends every run at its last saved message, and returns when nothing runs any more: no run, no
    /// sweep, and no command that still has to be killed. The caller bounds the wait.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.workers.close();
        self.0.workers.wait().await;
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.workers.spawn(work);
    }

    /// The agents that can be used in a directory.
    fn definitions(&self, directory: &str) -> BTreeMap<String, Definition> {
        let Setup { config_dir, trust, bounds, .. } = &self.0.setup;
        let workspace = trust.look(Path::new(directory));
        if let TrustStatus::Unknown(error) = &workspace.status {
            tracing::warn!(%error, "trust list unreadable; agents of workspaces are not used");
        }
        definition::load(&definition::folders(config_dir, &workspace), *bounds).agents
    }

    /// One of them.
    fn definition(&self, directory: &str, name: &str) -> Result<Definition, AgentUnavailable> {
        let Setup { config_dir, trust, bounds, .. } = &self.0.setup;
        definition::find(config_dir, trust, *bounds, Path::new(directory), name)
    }

    fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let found = self.0.store.sessions().get(id).map_err(broken)?;
        found.ok_or_else(|| Error::NoSuchSession(id.clone()))
    }

    /// The messages after a position, and the position of the last of them (a cursor).
    fn messages(&self, id: &SessionId, after: i64) -> Result<(Vec<Message>, i64), Error> {
        let store::Messages { bodies, last } =
            self.0.store.sessions().messages(id, after).map_err(|error| match error {
                store::Error::Unreadable { .. } => {
                    Error::Refused(format!("a message of `{id}` cannot be read"))
                }
                other => broken(other),
            })?;
        let unreadable = |_| Error::Refused(format!("a message of `{id}` cannot be read"));
        // Parsed one by one, so that text and values of a long conversation are not in memory together.
        let read = |body: String| serde_json::from_str(&body).map_err(unreadable);
        Ok((bodies.into_iter().map(read).collect::<Result<_, _>>()?, last))
    }

    /// Runs this on a blocking thread, with a time limit: a hanging file system counts as unreachable.
    async fn in_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Embedded) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let host = self.clone();
        let done = threads::within(threads::LIMIT, move || work(&host)).await;
        done.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
    }

    fn blank(&self, new: NewSession, handed: BTreeMap<String, Timestamp>) -> Session {
        Session {
            handed,
            id: self.0.clock.session_id(),
            parent: new.parent.map(|parent| parent.session),
            nonce: new.nonce,
            title: new.title,
            directory: new.directory,
            agent: new.agent,
            deny: new.deny,
            model: String::new(),
            running: false,
            said: 0,
            created_at: self.0.clock.now(),
        }
    }

    fn suspended(&self) -> MutexGuard<'_, HashMap<SessionId, SuspendedRun>> {
        self.0.suspended.lock()
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, RunningSession>> {
        self.0.runs.lock()
    }

    fn ring(&self) {
        self.0.events.send_modify(|events| *events += 1);
    }

    /// Appends a user message to a session and starts a run for it if `work` is set. The message id is the
    /// idempotency key: one that is stored already starts nothing.
    async fn say(
        &self,
        session: &SessionId,
        id: &MessageId,
        parts: Vec<Part>,
        model: String,
        work: bool,
    ) -> Result<(), Error> {
        let now = self.0.clock.now().as_millis();
        let info = Info::blank(id.to_string(), session.to_string(), Role::User, now);
        let message = Message { info, parts };
        let body = serde_json::to_string(&message).expect("a message is JSON");
        let said = self.0.store.sessions().say(session, id.to_string(), body, model, work);
        // `false`: a message of this id is stored already, and this is a retry.
        if said.await.map_err(broken)? && work {
            self.work(session);
        }
        Ok(())
    }

    /// A session at work, or `None` if it is not.
    fn at_work(&self, session: &SessionId) -> Option<Observation> {
        let runs = self.runs();
        let running = runs.get(session)?;
        let asks: Vec<Ask> = running.asks.iter().map(|(ask, _)| ask.clone()).collect();
        let activity = match asks.is_empty() {
            true => running.activity.clone(),
            false => Activity::Blocked(asks),
        };
        Some(Observation {
            session: session.clone(),
            activity,
            outcome: Outcome::Unanswered,
            open_todos: Vec::new(),
            figures: running.figures.clone(),
        })
    }

    /// A session that is not at work. Reads the whole conversation, so it belongs on a blocking thread.
    fn at_rest(&self, watch: Watch) -> Result<Observation, Error> {
        let gone = || Observation {
            session: watch.session.clone(),
            activity: Activity::Gone,
            outcome: Outcome::PromptMissing,
            open_todos: Vec::new(),
            figures: Figures::default(),
        };
        let Some(session) = self.0.store.sessions().get(&watch.session).map_err(broken)? else {
            return Ok(gone());
        };
        if session.running {
            return Ok(self.resume_suspended(watch, &session));
        }
        let (messages, _) = self.messages(&watch.session, 0)?;
        Ok(Observation {
            outcome: transcript::outcome(&messages, watch.prompt.as_str(), None),
            figures: figures(&watch.session, &messages),
            open_todos: self.open_todos(&watch.session)?,
            activity: Activity::Idle,
            session: watch.session,
        })
    }

    /// Resumes a suspended run once its back-off is over or its credentials are back.
    fn resume_suspended(&self, watch: Watch, session: &Session) -> Observation {
        let suspended = self.suspended().get(&watch.session).cloned();
        let lacking = suspended.as_ref().filter(|suspended| suspended.lacks);
        let lacking = lacking.and_then(|_| self.lacking(session, &session.model));
        let due =
            suspended.as_ref().is_none_or(|suspended| self.0.clock.uptime() >= suspended.until);
        // Observing is what resumes. The reconciler observes every active task at each sweep, so suspended
        // runs need no timer of their own.
        if due && lacking.is_none() {
            self.work(&watch.session);
        }
        let (activity, figures) = match suspended {
            Some(suspended) if suspended.lacks => {
                (lacking.map_or(Activity::Waiting, Activity::Lacking), suspended.figures)
            }
            Some(suspended) => (Activity::Retrying(suspended.why), suspended.figures),
            None => (Activity::Waiting, Figures::default()),
        };
        Observation {
            session: watch.session,
            activity,
            outcome: Outcome::Unanswered,
            open_todos: Vec::new(),
            figures,
        }
    }

    /// Stops a session that is at work, or that is suspended.
    async fn halt(&self, session: &SessionId) -> Result<(), Error> {
        // A running one settles itself: its task sees the cancellation and saves the aborted state.
        if let Some(running) = self.runs().get(session) {
            running.cancel.cancel();
            return Ok(());
        }
        let waits =
            self.0.store.sessions().get(session).map_err(broken)?.is_some_and(|s| s.running);
        if waits { self.settle_aborted(session).await } else { Ok(()) }
    }

    fn todos(&self, session: &SessionId) -> Result<Vec<Todo>, Error> {
        let saved = self.0.store.sessions().todos(session).map_err(broken)?;
        Ok(serde_json::from_str(&saved).unwrap_or_default())
    }

    fn open_todos(&self, session: &SessionId) -> Result<Vec<String>, Error> {
        let todos = self.todos(session)?.into_iter();
        Ok(todos.filter(|todo| todo.status.is_open()).map(|todo| todo.content).collect())
    }
}

/// Figures of the session's own work: a fork starts with copied messages, which are not counted again.
fn figures(session: &SessionId, messages: &[Message]) -> Figures {
    let own = messages.iter().position(|message| message.info.session == session.as_str());
    transcript::figures(&messages[own.unwrap_or(messages.len())..])
}

fn broken(error: store::Error) -> Error {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "task store failed in the embedded host; runs retry, other calls fail"
    );
    Error::Unreachable(error.to_string())
}
