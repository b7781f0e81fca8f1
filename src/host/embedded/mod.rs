//! The embedded host: agents of our own, run inside the daemon, with their sessions in our
//! database. A run that was cut off goes on from its last saved message, as often as needed.

mod processes;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Activity, Answer, Ask, Error, Host, NewSession, Observation, Opened, Post, Prompt, Toast, Watch,
};
use crate::agent::definition::{self, Definition};
use crate::agent::model::{self, Models, Price};
use crate::agent::tools::Todo;
use crate::agent::turn::Limits;
use crate::clock::Clock;
use crate::process::{Record, Survivors};
use crate::store::{self, Session, Store};
use crate::task::{MessageId, SessionId};
use crate::transcript::{self, Figures, Info, Message, Outcome, Part, Role, Time};

const INSTANCE: &str = "embedded";
const BEFORE_TAKING_UP: Duration = Duration::from_secs(2);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Embedded(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Clock,
    setup: Setup,
    runs: Mutex<HashMap<SessionId, Running>>,
    /// Runs that were left in the middle, and the uptime when.
    left: Mutex<HashMap<SessionId, Duration>>,
    events: watch::Sender<u64>,
    stop: CancellationToken,
}

/// What the configuration says, as far as it matters here.
#[derive(Clone)]
pub struct Setup {
    /// Where the user's own agents are.
    pub config_dir: PathBuf,
    /// Where the rest of long outputs goes.
    pub overflow: PathBuf,
    /// `provider/model` for agents and prompts that name none.
    pub default_model: String,
    pub models: Models,
    /// By `provider/model`.
    pub prices: BTreeMap<String, Price>,
    pub limits: Limits,
    /// The program that becomes a guard for a command: this one.
    pub guard: PathBuf,
    /// Commands end when they have not heard of the daemon for so long.
    pub command_lease: Duration,
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
    /// Something was said while it worked.
    again: bool,
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
            events: watch::Sender::new(0),
            stop: CancellationToken::new(),
        }));
        // Before anything runs: later there are commands of this daemon among them.
        let mut leftovers = host.0.store.processes()?;
        for session in host.0.store.running_sessions()? {
            // What was stopped before its session heard of it is not taken up again.
            let over = host.0.store.task(&session)?.is_some_and(|task| !task.is_live());
            if over {
                // Nobody waits for this; the next start would find the same.
                drop(host.0.store.session_rests(&session));
            } else {
                leftovers.retain(|process| process.session != session);
                host.work(&session);
            }
        }
        host.clear_processes_in_background(leftovers);
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
        let folders = definition::folders(&self.0.setup.config_dir, Path::new(directory));
        definition::load(&folders).agents
    }

    fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let found = self.0.store.session(id).map_err(broken)?;
        found.ok_or_else(|| Error::NoSuchSession(id.clone()))
    }

    fn messages(&self, id: &SessionId) -> Result<Vec<Message>, Error> {
        let bodies = self.0.store.messages(id).map_err(broken)?;
        let unreadable = |_| Error::Refused(format!("a message of `{id}` cannot be read"));
        bodies.iter().map(|body| serde_json::from_str(body).map_err(unreadable)).collect()
    }

    fn blank(&self, new: NewSession) -> Session {
        Session {
            id: self.0.clock.session_id(),
            parent: new.parent,
            nonce: new.nonce,
            title: new.title,
            directory: new.directory,
            agent: new.agent,
            deny: new.deny,
            model: String::new(),
            running: false,
            created_at: self.0.clock.now(),
        }
    }

    fn left(&self) -> MutexGuard<'_, HashMap<SessionId, Duration>> {
        self.0.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, Running>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
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
        let message = Message {
            info: Info {
                id: id.to_string(),
                session: session.to_string(),
                role: Role::User,
                time: Time { created: self.0.clock.now().as_millis(), completed: None },
                parent: None,
                agent: None,
                cost: None,
                tokens: None,
                finish: None,
                error: None,
                summary: None,
            },
            parts,
        };
        let body = serde_json::to_string(&message).expect("a message is JSON");
        let said = self.0.store.say(session, id.to_string(), body, model, work);
        if said.await.map_err(broken)? && work {
            self.work(session);
        }
        Ok(())
    }

    fn observation(&self, watch: Watch) -> Result<Observation, Error> {
        if let Some(running) = self.runs().get(&watch.session) {
            let asks: Vec<Ask> = running.asks.iter().map(|(ask, _)| ask.clone()).collect();
            let activity = match asks.is_empty() {
                true => running.activity.clone(),
                false => Activity::Blocked(asks),
            };
            return Ok(Observation {
                session: watch.session,
                activity,
                outcome: Outcome::Unanswered,
                open_todos: Vec::new(),
                figures: running.figures.clone(),
            });
        }
        let gone = || Observation {
            session: watch.session.clone(),
            activity: Activity::Gone,
            outcome: Outcome::PromptMissing,
            open_todos: Vec::new(),
            figures: Figures::default(),
        };
        let Some(session) = self.0.store.session(&watch.session).map_err(broken)? else {
            return Ok(gone());
        };
        if session.running {
            return Ok(self.take_up_again(watch));
        }
        let messages = self.messages(&watch.session)?;
        Ok(Observation {
            outcome: transcript::outcome(&messages, watch.prompt.as_str(), None),
            figures: figures(&watch.session, &messages),
            open_todos: self.open_todos(&watch.session)?,
            activity: Activity::Idle,
            session: watch.session,
        })
    }

    /// A run that was left in the middle goes on, after a moment: what stopped it may be over.
    fn take_up_again(&self, watch: Watch) -> Observation {
        let since = self.left().get(&watch.session).copied().unwrap_or_default();
        if self.0.clock.uptime().saturating_sub(since) >= BEFORE_TAKING_UP {
            self.left().remove(&watch.session);
            self.work(&watch.session);
        }
        Observation {
            session: watch.session,
            activity: Activity::Waiting,
            outcome: Outcome::Unanswered,
            open_todos: Vec::new(),
            figures: Figures::default(),
        }
    }

    fn todos(&self, session: &SessionId) -> Result<Vec<Todo>, Error> {
        let saved = self.0.store.todos(session).map_err(broken)?;
        Ok(serde_json::from_str(&saved).unwrap_or_default())
    }

    fn open_todos(&self, session: &SessionId) -> Result<Vec<String>, Error> {
        let todos = self.todos(session)?.into_iter();
        Ok(todos.filter(|todo| todo.status.is_open()).map(|todo| todo.content).collect())
    }

    /// The model a session is to use: the prompt's, the agent's, the configured one.
    fn model_name(&self, prompt: &str, agent: &Definition) -> String {
        let named = [Some(prompt), agent.model.as_deref(), Some(&self.0.setup.default_model)];
        let named = named.into_iter().flatten().find(|name| !name.is_empty());
        named.unwrap_or(model::OFFLINE).to_owned()
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
        let id = self.0.store.open_session(self.blank(new)).await.map_err(broken)?;
        Ok(Opened { session: id, instance: INSTANCE.into() })
    }

    fn can_fork(&self) -> bool {
        true
    }

    async fn fork(&self, of: &SessionId, new: NewSession) -> Result<Opened, Error> {
        self.session(of)?;
        let copy = self.0.store.copy_session(self.blank(new), of);
        Ok(Opened { session: copy.await.map_err(broken)?, instance: INSTANCE.into() })
    }

    async fn find(&self, session: &NewSession) -> Result<Option<Opened>, Error> {
        let found = self.0.store.session_by_nonce(&session.nonce).map_err(broken)?;
        Ok(found.map(|session| Opened { session: session.id, instance: INSTANCE.into() }))
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        self.abort(session).await?;
        self.0.store.delete_session(session).await.map_err(broken)
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        let session = self.session(&prompt.session)?;
        let definitions = self.definitions(&session.directory);
        let agent = definitions.get(&prompt.agent).ok_or_else(|| {
            Error::Refused(format!(
                "Agent \"{}\" not found. Make sure it's registered.",
                prompt.agent
            ))
        })?;
        let model = self.model_name(prompt.model.as_deref().unwrap_or_default(), agent);
        self.0.setup.models.find(&model).map_err(|error| Error::Refused(error.to_string()))?;
        let parts =
            vec![Part::Text { id: prompt.message.part(0), text: prompt.text, synthetic: false }];
        self.say(&prompt.session, &prompt.message, parts, model, true).await
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        let look = |watch: Watch| match self.observation(watch.clone()) {
            // One that cannot be read must not hide the others.
            Err(Error::Refused(error)) => Ok(Observation {
                session: watch.session,
                activity: Activity::Idle,
                outcome: Outcome::Failed { error, partial: None },
                open_todos: Vec::new(),
                figures: Figures::default(),
            }),
            other => other,
        };
        watches.into_iter().map(|watch| look(watch).map(Some)).collect()
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        let mut missing = Vec::new();
        for id in sessions {
            if self.0.store.session(&id).map_err(broken)?.is_none() {
                missing.push(id);
            }
        }
        Ok(missing)
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        self.session(session)?;
        self.0.store.transcript(session).map_err(broken)
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        if let Some(running) = self.runs().get(session) {
            running.cancel.cancel();
        }
        Ok(())
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
        self.0.store.has_message(parent, message.as_str()).map_err(broken)
    }

    async fn agents(
        &self,
        directory: &str,
        _parent: Option<&SessionId>,
    ) -> Result<Vec<String>, Error> {
        let host = self.clone();
        let directory = directory.to_owned();
        let load = tokio::task::spawn_blocking(move || host.definitions(&directory));
        let definitions = load.await.map_err(|error| Error::Unreachable(error.to_string()))?;
        Ok(definitions.into_keys().collect())
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
