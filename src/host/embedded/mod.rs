//! The embedded host: agents of our own, run inside the daemon, with their sessions in our
//! database. A run that was cut off goes on from its last saved message, as often as needed.
//!
//! A run that cannot begin or go on ends (T6): what is *refused* (no workspace, agent or model any
//! more) ends it at once, what is *unreachable* (a disk that takes nothing, a file system that does
//! not answer) is tried again with back-off, visibly, and ends it after `gone`.

mod credentials;
mod files;
mod processes;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Activity, AgentOffer, Answer, Ask, Error, Handed, Host, NewSession, Observation, Opened, Post,
    Prompt, Toast, Watch,
};
use crate::agent::definition::{self, Definition, Missing};
use crate::agent::model::{Models, Price};
use crate::agent::tools::Todo;
use crate::agent::turn::Limits;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::process::{Record, Survivors, Variables};
use crate::sandbox::Sandbox;
use crate::store::{self, Session, Store};
use crate::task::{MessageId, SessionId, Slot, Timestamp};
use crate::threads;
use crate::transcript::{self, Figures, Info, Message, Outcome, Part, Role};
use crate::trust::{Standing, Trust};

const INSTANCE: &str = "embedded";
const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Embedded(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Clock,
    setup: Setup,
    runs: Mutex<HashMap<SessionId, Running>>,
    /// Runs that were left in the middle and are to be taken up again.
    left: Mutex<HashMap<SessionId, Left>>,
    /// What callers handed over for their sessions; nowhere else, and gone with this process.
    handed: Mutex<HashMap<SessionId, Handed>>,
    events: watch::Sender<u64>,
    stop: CancellationToken,
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
    /// Commands end when they have not heard of the daemon for so long.
    pub command_lease: Duration,
    /// What is around commands.
    pub sandbox: Sandbox,
    /// Where sessions keep their private `/tmp` and home, in a folder for each session.
    pub scratch: PathBuf,
    /// How long such a folder stays after the session's last run.
    pub scratch_age: Option<Duration>,
    /// Kills what is left of a command whose guard could not; tests have one that fails.
    pub sweep: fn(&Record) -> Result<(), Survivors>,
}

/// A session at work.
struct Running {
    generation: u64,
    cancel: CancellationToken,
    activity: Activity,
    figures: Figures,
    asks: Vec<(Ask, Option<oneshot::Sender<Answer>>)>,
}

/// A run that was left where it was, because something it needs is out of reach.
#[derive(Clone, Debug)]
struct Left {
    why: String,
    /// Uptime when this began, and when it is tried again.
    first: Duration,
    until: Duration,
    tries: u32,
    figures: Figures,
    /// It waits for credentials that somebody has to bring.
    lacks: bool,
}

impl Embedded {
    /// Goes on with every session that was at work when the last daemon stopped.
    pub fn start(store: Store, clock: Clock, setup: Setup) -> Result<Embedded, store::Error> {
        let host = Embedded(Arc::new(Inner {
            store,
            clock,
            setup,
            runs: Mutex::default(),
            left: Mutex::default(),
            handed: Mutex::default(),
            events: watch::Sender::new(0),
            stop: CancellationToken::new(),
        }));
        // Before anything runs: later there are commands of this daemon among them.
        let mut leftovers = host.0.store.processes().all()?;
        for session in host.0.store.sessions().running()? {
            // What was stopped before its session heard of it is not taken up again.
            let task = host.0.store.tasks().get(&session)?;
            let over = task.as_ref().is_some_and(|task| !task.is_live());
            if task.is_some_and(|task| task.slot == Slot::Parked) {
                // It has no slot; with the next one it is looked at, and taken up again.
            } else if over {
                // Nobody waits for this; the next start would find the same.
                let (host, session) = (host.clone(), session.clone());
                tokio::spawn(async move { host.settle_aborted(&session).await });
            } else {
                leftovers.retain(|process| process.session != session);
                host.work(&session);
            }
        }
        host.clear_processes_in_background(leftovers);
        host.sweep_files_in_background();
        Ok(host)
    }

    /// Leaves every run where it is, and returns when nothing runs any more.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        let mut events = self.0.events.subscribe();
        while !self.runs().is_empty() {
            if events.changed().await.is_err() {
                return;
            }
        }
    }

    /// The agents that can be used in a directory.
    fn definitions(&self, directory: &str) -> BTreeMap<String, Definition> {
        let Setup { config_dir, trust, bounds, .. } = &self.0.setup;
        let workspace = trust.look(Path::new(directory));
        if let Standing::Unknown(error) = &workspace.standing {
            tracing::warn!(%error, "trust list unreadable; agents of workspaces are not used");
        }
        definition::load(&definition::folders(config_dir, &workspace), *bounds).agents
    }

    /// One of them.
    fn definition(&self, directory: &str, name: &str) -> Result<Definition, Missing> {
        let Setup { config_dir, trust, bounds, .. } = &self.0.setup;
        definition::find(config_dir, trust, *bounds, Path::new(directory), name)
    }

    fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let found = self.0.store.sessions().get(id).map_err(broken)?;
        found.ok_or_else(|| Error::NoSuchSession(id.clone()))
    }

    /// What was said after a point, and the point up to which that is all.
    fn messages(&self, id: &SessionId, after: i64) -> Result<(Vec<Message>, i64), Error> {
        let store::Messages { bodies, last } =
            self.0.store.sessions().messages(id, after).map_err(|error| match error {
                store::Error::Unreadable { .. } => {
                    Error::Refused(format!("a message of `{id}` cannot be read"))
                }
                other => broken(other),
            })?;
        let unreadable = |_| Error::Refused(format!("a message of `{id}` cannot be read"));
        // One by one: both forms of a long conversation need not be there at the same time.
        let read = |body: String| serde_json::from_str(&body).map_err(unreadable);
        Ok((bodies.into_iter().map(read).collect::<Result<_, _>>()?, last))
    }

    /// Runs this on a thread that may block; a file system that does not answer is out of reach.
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
            parent: new.parent,
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

    fn left(&self) -> MutexGuard<'_, HashMap<SessionId, Left>> {
        self.0.left.lock()
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, Running>> {
        self.0.runs.lock()
    }

    fn ring(&self) {
        self.0.events.send_modify(|events| *events += 1);
    }

    /// Saves what is said to a session; whether the session is to work on it is up to the caller.
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

    /// A session that is not at work. Reads the whole conversation.
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
            return Ok(self.take_up_again(watch, &session));
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

    /// A run that was left in the middle goes on when its pause is over.
    fn take_up_again(&self, watch: Watch, session: &Session) -> Observation {
        let left = self.left().get(&watch.session).cloned();
        let lacking = left.as_ref().filter(|left| left.lacks);
        let lacking = lacking.and_then(|_| self.lacking(session, &session.model));
        let due = left.as_ref().is_none_or(|left| self.0.clock.uptime() >= left.until);
        if due && lacking.is_none() {
            self.work(&watch.session);
        }
        let (activity, figures) = match left {
            Some(left) if left.lacks => {
                (lacking.map_or(Activity::Waiting, Activity::Lacking), left.figures)
            }
            Some(left) => (Activity::Retrying(left.why), left.figures),
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

    fn todos(&self, session: &SessionId) -> Result<Vec<Todo>, Error> {
        let saved = self.0.store.sessions().todos(session).map_err(broken)?;
        Ok(serde_json::from_str(&saved).unwrap_or_default())
    }

    fn open_todos(&self, session: &SessionId) -> Result<Vec<String>, Error> {
        let todos = self.todos(session)?.into_iter();
        Ok(todos.filter(|todo| todo.status.is_open()).map(|todo| todo.content).collect())
    }
}

/// Of what the session did itself: messages it began with as a copy are another one's work.
fn figures(session: &SessionId, messages: &[Message]) -> Figures {
    let own = messages.iter().position(|message| message.info.session == session.as_str());
    transcript::figures(&messages[own.unwrap_or(messages.len())..])
}

fn broken(error: store::Error) -> Error {
    tracing::error!(error = &error as &dyn std::error::Error, "the embedded host's store failed");
    Error::Unreachable(error.to_string())
}

impl Host for Embedded {
    async fn open(&self, new: NewSession) -> Result<Opened, Error> {
        let (handed, noted) = self.noted(&new).await?;
        let id = self.0.store.sessions().open(self.blank(new, noted)).await.map_err(broken)?;
        self.keep_handed(&id, handed);
        Ok(Opened { session: id, instance: INSTANCE.into() })
    }

    fn can_fork(&self) -> bool {
        true
    }

    fn keeps_transcripts(&self) -> bool {
        true
    }

    async fn fork(&self, of: &SessionId, new: NewSession) -> Result<Opened, Error> {
        self.session(of)?;
        let (handed, noted) = self.noted(&new).await?;
        let copy = self.0.store.sessions().copy(self.blank(new, noted), of);
        let id = copy.await.map_err(broken)?;
        self.keep_handed(&id, handed);
        Ok(Opened { session: id, instance: INSTANCE.into() })
    }

    async fn find(&self, session: &NewSession) -> Result<Vec<Opened>, Error> {
        let found = self.0.store.sessions().by_nonce(&session.nonce).map_err(broken)?;
        let opened = |session: Session| Opened { session: session.id, instance: INSTANCE.into() };
        Ok(found.into_iter().map(opened).collect())
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        self.abort(session).await?;
        self.forget_handed(session);
        self.0.store.sessions().delete(session).await.map_err(broken)
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        let session = self.session(&prompt.session)?;
        let (agent, model) = (prompt.agent, prompt.model.unwrap_or_default());
        let find = move |host: &Embedded| {
            let agent = host.definition(&session.directory, &agent);
            let agent = agent.map_err(|missing| Error::Refused(missing.to_string()))?;
            let model = host.model_name(&model, &agent);
            host.find_model(&session, &model)?;
            Ok(model)
        };
        let model = self.in_thread(find).await?;
        let parts =
            vec![Part::Text { id: prompt.message.part(0), text: prompt.text, synthetic: false }];
        self.say(&prompt.session, &prompt.message, parts, model, true).await
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        // One that cannot be read must not hide the others.
        let look = |host: &Embedded, watch: Watch| match host.at_rest(watch.clone()) {
            Err(Error::Refused(error)) => Ok(Observation {
                session: watch.session,
                activity: Activity::Idle,
                outcome: Outcome::Failed { error, partial: None },
                open_todos: Vec::new(),
                figures: Figures::default(),
            }),
            other => other,
        };
        let at_work = watches.iter().map(|watch| self.at_work(&watch.session));
        let at_work: Vec<Option<Observation>> = at_work.collect();
        if at_work.iter().all(Option::is_some) {
            return Ok(at_work);
        }
        // Conversations can be long, and others are to be served meanwhile. `work` needs a runtime.
        let (host, runtime) = (self.clone(), tokio::runtime::Handle::current());
        let looked = threads::apart(move || {
            let _inside = runtime.enter();
            let each = watches.into_iter().zip(at_work);
            let look = |(watch, seen)| match seen {
                Some(seen) => Ok(Some(seen)),
                None => look(&host, watch).map(Some),
            };
            let looked: Vec<Result<Option<Observation>, Error>> = each.map(look).collect();
            // One that cannot be looked at is no word about the others.
            match looked.iter().any(Result::is_ok) {
                true => Ok(looked.into_iter().map(|seen| seen.unwrap_or(None)).collect()),
                false => looked.into_iter().collect(),
            }
        });
        looked.await.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        let mut missing = Vec::new();
        for id in sessions {
            if self.0.store.sessions().get(&id).map_err(broken)?.is_none() {
                missing.push(id);
            }
        }
        Ok(missing)
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        self.session(session)?;
        let (host, session) = (self.clone(), session.clone());
        let read =
            threads::apart(move || host.0.store.sessions().transcript(&session).map_err(broken));
        read.await.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        if let Some(running) = self.runs().get(session) {
            running.cancel.cancel();
            return Ok(());
        }
        // It may wait to be taken up again.
        let waits =
            self.0.store.sessions().get(session).map_err(broken)?.is_some_and(|s| s.running);
        if waits { self.settle_aborted(session).await } else { Ok(()) }
    }

    async fn post(&self, posts: Vec<Post>) -> Result<(), Error> {
        for Post { parent, message, visible, hidden, wake, agent: _ } in posts {
            let model = self.session(&parent)?.model;
            let part = |n, text, synthetic| Part::Text { id: message.part(n), text, synthetic };
            let parts = vec![part(0, visible, false), part(1, hidden, true)];
            self.say(&parent, &message, parts, model, wake).await?;
        }
        Ok(())
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        self.session(parent)?;
        self.0.store.sessions().has_message(parent, message.as_str()).map_err(broken)
    }

    async fn objection(&self, directory: &str, agent: &str) -> Result<Option<String>, Error> {
        let (directory, agent) = (directory.to_owned(), agent.to_owned());
        let find = move |host: &Embedded| match host.definition(&directory, &agent) {
            Err(untrusted @ Missing::Untrusted { .. }) => Ok(Some(untrusted.to_string())),
            Ok(_) | Err(Missing::Unknown(_)) => Ok(None),
        };
        self.in_thread(find).await
    }

    async fn hand_over(&self, session: &SessionId, handed: Handed) -> Result<(), Error> {
        self.renew(session, handed).await
    }

    async fn bring(&self, session: &SessionId, handed: &Handed) -> Result<bool, Error> {
        let handed = self.lost(&self.session(session)?, handed);
        let is_something = !handed.providers().is_empty();
        if is_something {
            self.renew(session, handed.over(&self.kept_handed(session))).await?;
        }
        Ok(is_something)
    }

    async fn lacks(
        &self,
        session: &SessionId,
        model: Option<String>,
    ) -> Result<Option<String>, Error> {
        let session = self.session(session)?;
        let look = move |host: &Embedded| {
            Ok(host.lacking(&session, model.as_deref().unwrap_or(&session.model)))
        };
        self.in_thread(look).await
    }

    fn handed(&self, session: &SessionId) -> Handed {
        self.kept_handed(session)
    }

    async fn model(&self, wish: Option<String>, handed: Handed) -> Result<Option<String>, Error> {
        let find = move |host: &Embedded| {
            let models = &host.0.setup.models;
            let name = wish.unwrap_or_else(|| host.default_model());
            let name = models.resolve(&name).unwrap_or(name);
            let found = models.find(&name, handed.providers());
            found.map_err(|error| Error::Refused(error.to_string()))?;
            Ok(Some(name))
        };
        self.in_thread(find).await
    }

    async fn agents(
        &self,
        directory: &str,
        _parent: Option<&SessionId>,
    ) -> Result<Vec<AgentOffer>, Error> {
        let directory = directory.to_owned();
        let load = move |host: &Embedded| {
            let offer = |(name, agent): (String, Definition)| {
                let model = host.model_in_file(&agent);
                AgentOffer { name, model, reads_only: agent.reads_only() }
            };
            Ok(host.definitions(&directory).into_iter().map(offer).collect())
        };
        self.in_thread(load).await
    }

    async fn directory(
        &self,
        directory: &str,
        _parent: Option<&SessionId>,
    ) -> Result<String, Error> {
        super::directory::canonical(directory).await
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        let unasked = || Error::Refused(format!("nothing is asked as `{ask}`"));
        let mut runs = self.runs();
        let running = runs.get_mut(session).ok_or_else(unasked)?;
        let asked = running.asks.iter_mut().find(|(asked, _)| asked.id == ask);
        let answering = asked.and_then(|(_, answering)| answering.take()).ok_or_else(unasked)?;
        let _ = answering.send(answer);
        Ok(())
    }

    async fn toast(&self, _parent: &SessionId, _toast: Toast) -> Result<(), Error> {
        Ok(())
    }

    async fn listen(&self, wake: &Notify) {
        let mut events = self.0.events.subscribe();
        while events.changed().await.is_ok() {
            wake.notify_one();
        }
    }
}
