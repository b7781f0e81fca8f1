//! One run of an embedded session: the agent loop (`agent::drive`) with our store, rules and tools around it.
//!
//! At most one run per session: the `runs` map is the lock, a generation number tells a run from the next
//! one of the same session. A run ends by a compare-and-set on the number of messages said to the session
//! (`rest`), so a message that arrives while it finishes is never lost. What cannot continue is suspended
//! (`suspended`) and retried with back-off. A run may be cancelled at any point; then it saves the aborted state,
//! so that a later resume does not continue it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::credentials::FirstModel;
use super::{Embedded, PAUSES, RunningSession, Setup, SuspendedRun, broken};
use crate::agent::definition::{Action, Definition, EXTERNAL_DIRECTORY, Source};
use crate::agent::drive::{Allowance, Permit, RunEnvironment, RunPhase, Suspension, drive};
use crate::agent::model::{self, Call, Model, Price, Request};
use crate::agent::tools::{self, Context, OutputRoom, Spec, Todos, Workspace};
use crate::agent::turn::{self, Effect, Mint, Purpose, Turn};
use crate::clock::Clock;
use crate::host::{Activity, Answer, Ask, Error};
use crate::sandbox::{Grants, SessionSandbox};
use crate::store::Session;
use crate::task::SessionId;
use crate::threads;
use crate::transcript::{Figures, Message, Role, ToolState};

/// Throttle: how often the progress of a streaming answer is published.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

const SETTING: &str = "You work in the background for another agent, in a session of your own. \
    Nobody reads along and nobody answers questions: find out what you need with your tools. Your \
    last message is your whole answer, so put everything into it: what you found or did, with files \
    and lines.";

/// The environment of one run.
struct EmbeddedEnvironment {
    host: Embedded,
    session: Session,
    agent: Definition,
    /// `provider/model`, and the second half of it.
    model_name: String,
    model: String,
    first_model: FirstModel,
    /// Set when the run has to wait for its credentials: why.
    lost: Mutex<Option<String>>,
    workspace: Workspace,
    todos: Todos,
    overflow: PathBuf,
    output_room: OutputRoom,
    session_sandbox: SessionSandbox,
    shown_at: Mutex<Duration>,
    /// Cursor into the conversation: messages up to here are known to the run.
    heard: AtomicI64,
}

/// Ids and times of a session's messages.
struct Stamps(Clock);

impl Mint for Stamps {
    fn message_id(&mut self) -> String {
        self.0.message_id().to_string()
    }

    fn now(&mut self) -> i64 {
        self.0.now().as_millis()
    }
}

/// Guard: removes the session from `runs` when dropped, also after a panic.
struct RunGuard {
    host: Embedded,
    session: SessionId,
    /// Of our own entry: after an abort a later run may have taken the place, and that one stays.
    generation: u64,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut runs = self.host.runs();
        if runs.get(&self.session).is_some_and(|running| running.generation == self.generation) {
            runs.remove(&self.session);
        }
        drop(runs);
        self.host.ring();
    }
}

impl Embedded {
    /// Starts a run for a session, unless one is under way. A message that was said meanwhile is seen by
    /// that run, or by the next one.
    pub(super) fn work(&self, session: &SessionId) {
        let mut runs = self.runs();
        if runs.contains_key(session) {
            return;
        }
        let cancel = CancellationToken::new();
        let generation = self.0.clock.tick();
        // A retry goes on showing why, and what the run had done, until it makes progress.
        let suspended = self.suspended().get(session).cloned();
        let (activity, figures) = match suspended {
            Some(suspended) if suspended.lacks => (Activity::Waiting, suspended.figures),
            Some(suspended) => (Activity::Retrying(suspended.why), suspended.figures),
            None => (Activity::Waiting, Figures::default()),
        };
        let running = RunningSession {
            generation,
            cancel: cancel.clone(),
            activity,
            figures,
            asks: Vec::new(),
        };
        runs.insert(session.clone(), running);
        drop(runs);
        let guard = RunGuard { host: self.clone(), session: session.clone(), generation };
        self.spawn(async move {
            let cancelled = cancel.clone();
            if let Err(Suspension(why)) = guard.host.run_until_idle(&guard.session, cancel).await {
                let host = &guard.host;
                // Cancelled while something was out of reach: nothing to retry, only to save as aborted.
                // When even that fails it is suspended like any other.
                let is_settled =
                    cancelled.is_cancelled() && host.settle_aborted(&guard.session).await.is_ok();
                if !is_settled {
                    host.suspend(&guard.session, why).await;
                }
            }
            let (host, session) = (guard.host.clone(), guard.session.clone());
            drop(guard);
            // Race: a message said after the run had decided to end and before it left `runs` found the
            // session at work and started nothing. Nothing else would.
            let waits = host.session(&session).is_ok_and(|session| session.running);
            if waits && !host.suspended().contains_key(&session) && !host.0.stop.is_cancelled() {
                host.work(&session);
            }
        });
        self.ring();
    }

    /// Suspends a run because something it needs is out of reach: retried with back-off, and given up once
    /// that has lasted for `gone`.
    async fn suspend(&self, session: &SessionId, why: String) {
        let uptime = self.0.clock.uptime();
        let figures = self.runs().get(session).map(|running| running.figures.clone());
        let (tries, first) = {
            let mut suspended = self.suspended();
            // The attempts count on from the last suspension, unless that was for credentials, which has no
            // time limit.
            let earlier = suspended.get(session).filter(|suspended| !suspended.lacks);
            let earlier = earlier.map(|suspended| (suspended.tries, suspended.first));
            let (tries, first) = earlier.unwrap_or((0, uptime));
            let pause = PAUSES.jittered(tries, self.0.clock.random());
            let now = SuspendedRun {
                why: why.clone(),
                first,
                until: uptime + pause,
                tries: tries + 1,
                figures: figures.unwrap_or_default(),
                lacks: false,
            };
            suspended.insert(session.clone(), now);
            (tries, first)
        };
        if self.0.stop.is_cancelled() {
            return;
        }
        tracing::warn!(%session, tries, why, "run suspended; retrying with back-off");
        if uptime.saturating_sub(first) >= self.0.setup.gone {
            let why = format!("interrupted: {why}, for {} s", self.0.setup.gone.as_secs());
            // A full disk does not take this either; then the run stays suspended and is retried.
            if self.end(session, &why).await.is_ok() {
                self.suspended().remove(session);
            }
        }
    }

    /// Suspends a run until its credentials are brought again, however long that takes.
    fn suspend_lacking(&self, session: &SessionId, why: String) {
        tracing::warn!(%session, why, "run suspended; waiting for its credentials");
        let uptime = self.0.clock.uptime();
        let figures = self.runs().get(session).map(|running| running.figures.clone());
        let figures = figures.unwrap_or_default();
        let suspended =
            SuspendedRun { why, first: uptime, until: uptime, tries: 0, figures, lacks: true };
        self.suspended().insert(session.clone(), suspended);
    }

    /// Uptime since which the run has been blocked: from now on, unless that is already noted.
    fn out_of_reach_since(&self, session: &SessionId, why: &str) -> Duration {
        let now = self.0.clock.uptime();
        let figures = self.runs().get(session).map(|running| running.figures.clone());
        let noted = SuspendedRun {
            why: why.to_owned(),
            first: now,
            until: now,
            tries: 0,
            figures: figures.unwrap_or_default(),
            lacks: false,
        };
        self.suspended().entry(session.clone()).or_insert(noted).first
    }

    /// Runs until there is nothing left to answer.
    async fn run_until_idle(
        &self,
        id: &SessionId,
        cancel: CancellationToken,
    ) -> Result<(), Suspension> {
        loop {
            let stopped = |error: Error| Suspension(reason(error));
            let session = match self.session(id) {
                Err(Error::NoSuchSession(_)) => return Ok(()),
                session => session.map_err(stopped)?,
            };
            let said = session.said;
            // Nobody waits for the answers to permission requests of an earlier run.
            if let Some(running) = self.runs().get_mut(id) {
                running.asks.clear();
            }
            let ready = match self.clear_processes(id).await.map_err(stopped)? {
                Ok(()) => match self.read(id).await {
                    Ok((messages, last)) => {
                        let files =
                            self.in_thread(move |host| host.build_environment(session, last)).await;
                        files.map(|environment| (environment, messages))
                    }
                    Err(error) => Err(error),
                },
                // Better to end than to work beside a command of an earlier run.
                Err(survivors) => Err(Error::Refused(format!(
                    "a command of an earlier run is still there: {survivors}, then resume"
                ))),
            };
            match ready {
                Ok(((environment, price), messages)) => {
                    let agent = environment.agent.name.clone();
                    let (limits, stamps) = (self.0.setup.limits, Stamps(self.0.clock.clone()));
                    let turn = Turn::new(id.as_str(), &agent, messages, limits, stamps);
                    let (turn, environment) = (turn.priced(price), Arc::new(environment));
                    let (run, stop) = (Arc::clone(&environment), self.0.stop.clone());
                    let driven = drive(turn, run, cancel.clone(), stop).await;
                    // An abort wins over lost credentials: what is cancelled must not wait for them.
                    let is_suspended = driven.is_err() && !cancel.is_cancelled();
                    if let Some(why) = environment.lost.lock().take().filter(|_| is_suspended) {
                        self.suspend_lacking(id, why);
                        return Ok(());
                    }
                    driven?;
                }
                Err(Error::Unreachable(why)) => return Err(Suspension(why)),
                Err(Error::NoSuchSession(_)) => return Ok(()),
                Err(Error::NoCredentials(why)) => {
                    self.suspend_lacking(id, why);
                    return Ok(());
                }
                Err(Error::Refused(why)) => {
                    self.end(id, &format!("interrupted: {why}")).await.map_err(stopped)?;
                }
            }
            // Compare-and-set on `said`, which was read before the conversation: fails when something was
            // said meanwhile, and then there is more to answer.
            let rests = self.0.store.sessions().rest(id, said).await;
            let rests = rests.map_err(|error| stopped(broken(error)))?;
            self.suspended().remove(id);
            if rests {
                return Ok(());
            }
            // A resume may follow an abort at once. Its message belongs to a run of its own, with a fresh
            // cancellation token: this one would cancel it, too.
            if cancel.is_cancelled() {
                self.runs().remove(id);
                self.work(id);
                return Ok(());
            }
        }
    }

    /// Ends the run with an error message in the conversation, where every observer finds it.
    async fn end(&self, id: &SessionId, why: &str) -> Result<(), Error> {
        self.settle(id, |turn| turn.interrupt(why)).await
    }

    /// The same for a run that was aborted: a later resume does not continue it.
    pub(super) async fn settle_aborted(&self, id: &SessionId) -> Result<(), Error> {
        self.settle(id, Turn::abort).await
    }

    async fn settle(
        &self,
        id: &SessionId,
        settle: impl FnOnce(&mut Turn<Stamps>) -> Vec<Effect>,
    ) -> Result<(), Error> {
        let session = self.session(id)?;
        let messages = match self.read(id).await {
            Ok((messages, _)) => messages,
            // A damaged conversation cannot be appended to; observers see the damage itself.
            Err(Error::Refused(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        if !messages.is_empty() {
            let stamps = Stamps(self.0.clock.clone());
            let mut turn =
                Turn::new(id.as_str(), &session.agent, messages, self.0.setup.limits, stamps);
            for effect in settle(&mut turn) {
                if let Effect::Save(message) = effect
                    && let Some(message) = turn.message(&message)
                {
                    self.save(id, message).await?;
                }
            }
        }
        self.0.store.sessions().rest(id, session.said).await.map_err(broken)?;
        Ok(())
    }

    async fn save(&self, session: &SessionId, message: &Message) -> Result<(), Error> {
        let body = threads::in_place(|| serde_json::to_string(message));
        let body = body.expect("a message is JSON");
        let saved = self.0.store.sessions().save_message(session, message.info.id.clone(), body);
        saved.await.map_err(broken)
    }

    /// The whole conversation, which may be long. It is on our own disk, so there is no time limit.
    async fn read(&self, id: &SessionId) -> Result<(Vec<Message>, i64), Error> {
        let (host, id) = (self.clone(), id.clone());
        let read = threads::run_blocking(move || host.messages(&id, 0)).await;
        read.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
    }

    /// Builds the environment of a run whose cursor is at `last`. Reads files, so it belongs on a blocking
    /// thread.
    fn build_environment(&self, session: Session, last: i64) -> Result<RunSetup, Error> {
        let refused = |why: String| Error::Refused(why);
        let agent = self.definition(&session.directory, &session.agent);
        let agent = agent.map_err(|missing| refused(missing.to_string()))?;
        let name = self.model_name(&session.model, &agent);
        let first_model = self.first_model(&session, &name)?;
        let bare = name.split_once('/').map_or(name.as_str(), |(_, model)| model).to_owned();
        let price = match &first_model.model {
            Model::Offline => Some(Price::FREE),
            Model::Remote(remote) => {
                self.0.setup.prices.get(&name).copied().or_else(|| remote.price(&bare))
            }
        };
        let directory = &session.directory;
        let workspace = Workspace::open(Path::new(directory));
        // A workspace that is gone or closed to us ends the run; any other error may pass and is retried.
        let workspace = workspace.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
                refused(format!("its workspace `{directory}` is gone: {error}"))
            }
            _ => Error::Unreachable(format!("its workspace `{directory}`: {error}")),
        })?;
        let todos = Todos::new(self.todos(&session.id)?);
        let overflow = self.0.setup.overflow.join(session.id.as_str());
        let environment = EmbeddedEnvironment {
            host: self.clone(),
            output_room: OutputRoom::left(self.0.setup.output_bytes, &overflow),
            overflow,
            session_sandbox: self.session_sandbox(&session, &agent),
            model_name: name,
            model: bare,
            first_model,
            lost: Mutex::new(None),
            session,
            agent,
            workspace,
            todos,
            shown_at: Mutex::new(Duration::ZERO),
            heard: AtomicI64::new(last),
        };
        Ok((environment, price))
    }

    /// The sandbox as this session has it.
    fn session_sandbox(&self, session: &Session, agent: &Definition) -> SessionSandbox {
        let Setup { sandbox, scratch, trust, .. } = &self.0.setup;
        let workspace = trust.look(Path::new(&session.directory));
        let from_workspace = match &agent.source {
            Source::File(file) => file.starts_with(&workspace.path),
            Source::BuiltIn => false,
        };
        SessionSandbox {
            sandbox: sandbox.clone(),
            scratch: scratch.join(session.id.as_str()),
            grants: Grants { from_workspace, ..agent.grants.clone() },
            trusted: workspace.is_trusted(),
        }
    }
}

type RunSetup = (EmbeddedEnvironment, Option<Price>);

impl EmbeddedEnvironment {
    fn specs(&self) -> Vec<Spec> {
        let specs = tools::specs().into_iter();
        specs.filter(|spec| self.may_use(spec.name)).collect()
    }

    fn may_use(&self, tool: &str) -> bool {
        self.agent.may_use(tool) && !self.session.deny.iter().any(|denied| denied == tool)
    }

    fn context(&self, call: &Call, allowance: Allowance, cancel: CancellationToken) -> Context {
        Context {
            workspace: self.workspace.clone(),
            todos: self.todos.clone(),
            overflow: self.overflow.clone(),
            output_room: self.output_room.clone(),
            cancel,
            may_leave: allowance,
            launcher: self.host.launcher(&self.session.id, &call.id),
            session_sandbox: self.session_sandbox.clone(),
        }
    }

    /// An agent file inside the workspace cannot grant access outside it: at least a person or policy is
    /// asked. Whoever can write the workspace could otherwise write itself a permission.
    fn action_outside(&self, path: &str) -> Action {
        let action = self.agent.action(EXTERNAL_DIRECTORY, path);
        match &self.agent.source {
            Source::File(file) if file.starts_with(self.workspace.root()) => {
                action.max(Action::Ask)
            }
            Source::File(_) | Source::BuiltIn => action,
        }
    }

    /// Waits for an answer to a permission request; the supervisor's policy answers in the end if nobody
    /// does. The id is derived from the call, so the same call asks under the same id after a restart and
    /// its waiting time goes on.
    async fn ask(&self, call: &Call, what: String) -> Answer {
        let id = ask_id(&self.session.id, &call.id);
        let (answering, answer) = oneshot::channel();
        let ask = Ask { id: id.clone(), what };
        match self.host.runs().get_mut(&self.session.id) {
            Some(running) => running.asks.push((ask, Some(answering))),
            // The run is over, so nobody could answer.
            None => return Answer::Deny,
        }
        self.host.ring();
        // The sender is dropped with the run's entry or its requests; then no answer can come.
        let answer = answer.await.unwrap_or(Answer::Deny);
        if let Some(running) = self.host.runs().get_mut(&self.session.id) {
            running.asks.retain(|(ask, _)| ask.id != id);
        }
        self.host.ring();
        answer
    }
}

impl EmbeddedEnvironment {
    /// Writes with retries and back-off. What a model said was paid for: while the disk is full it is kept
    /// in memory, instead of being suspended and asked for again.
    async fn insist<W: Future<Output = Result<(), Error>>>(
        &self,
        write: impl Fn() -> W,
    ) -> Result<(), Suspension> {
        let clock = &self.host.0.clock;
        for tries in 0.. {
            let Err(error) = write().await else {
                // Success ends the outage: the next failure starts a new time limit.
                self.host.suspended().remove(&self.session.id);
                return Ok(());
            };
            let why = reason(error);
            // The outage is noted from the first failure on: when this gives up, `leave` finds that the time
            // limit has passed and does not grant it again.
            let since = self.host.out_of_reach_since(&self.session.id, &why);
            if clock.uptime().saturating_sub(since) >= self.host.0.setup.gone {
                return Err(Suspension(why));
            }
            let cancel = match self.host.runs().get_mut(&self.session.id) {
                Some(running) => {
                    running.activity = Activity::Retrying(why.clone());
                    running.cancel.clone()
                }
                None => return Err(Suspension(why)),
            };
            self.host.ring();
            tokio::select! {
                () = clock.sleep(PAUSES.jittered(tries, clock.random())) => {}
                () = cancel.cancelled() => return Err(Suspension(why)),
                () = self.host.0.stop.cancelled() => return Err(Suspension(why)),
            }
        }
        Ok(())
    }
}

/// The reason alone: "host cannot be reached" would mislead where the host is the daemon itself.
fn reason(error: Error) -> String {
    match error {
        Error::Unreachable(why) => why,
        refused @ (Error::Refused(_) | Error::NoSuchSession(_) | Error::NoCredentials(_)) => {
            refused.to_string()
        }
    }
}

/// The id of a permission request. Call ids come from the model and are unique only in their session; the
/// hash gives people one form to read and type.
fn ask_id(session: &SessionId, call: &str) -> String {
    let half = |which: u8| {
        let mut hasher = DefaultHasher::new();
        (which, session.as_str(), call).hash(&mut hasher);
        hasher.finish()
    };
    format!("per_{:016x}{:016x}", half(0), half(1))
}

impl RunEnvironment for EmbeddedEnvironment {
    async fn model(&self) -> Result<Model, model::Error> {
        let model = self.host.model_now(&self.session, &self.model_name, &self.first_model).await;
        if let Err(model::Error::Lost(why)) = &model {
            *self.lost.lock() = Some(why.clone());
        }
        model
    }

    async fn save(&self, message: &Message) -> Result<(), Suspension> {
        self.insist(|| self.host.save(&self.session.id, message)).await
    }

    async fn save_call(
        &self,
        message: &str,
        part: usize,
        state: &ToolState,
    ) -> Result<(), Suspension> {
        let store = &self.host.0.store;
        let save = || async {
            let state = serde_json::to_string(state).expect("a state is JSON");
            let saved =
                store.sessions().save_call(&self.session.id, message.to_owned(), part, state).await;
            saved.map_err(broken)
        };
        self.insist(save).await
    }

    async fn hear(&self) -> Result<Vec<Message>, Suspension> {
        let after = self.heard.load(Ordering::Relaxed);
        // Includes the run's own last answer, which may be long: parsed on another thread.
        let (host, session) = (self.host.clone(), self.session.id.clone());
        let heard = threads::run_blocking(move || host.messages(&session, after)).await;
        let heard = heard.map_err(|stuck| Suspension(stuck.to_string()))?;
        let (mut messages, last) = heard.map_err(|error| Suspension(reason(error)))?;
        self.heard.store(last, Ordering::Relaxed);
        // The run knows its own answers already.
        messages.retain(|message| message.info.role == Role::User);
        Ok(messages)
    }

    fn request(&self, messages: &[Message], purpose: Purpose) -> Request {
        let tools = match purpose {
            Purpose::Answer => self.specs(),
            Purpose::Summary => Vec::new(),
        };
        Request {
            model: self.model.clone(),
            system: format!(
                "{}\n\n{SETTING}\n\nYour working directory is {}.",
                self.agent.prompt, self.session.directory
            ),
            messages: threads::in_place(|| turn::visible(messages).to_vec()),
            tools,
        }
    }

    async fn permit(&self, call: &Call) -> Permit {
        if !self.may_use(&call.name) {
            let names: Vec<&str> = self.specs().iter().map(|spec| spec.name).collect();
            let why = format!("no tool `{}` here; there are: {}", call.name, names.join(", "));
            return Permit::Forbidden(why);
        }
        // Resolving the paths of a call touches the file system: on a blocking thread, and when that hangs
        // the call is forbidden rather than allowed unchecked.
        let context = self.context(call, None, CancellationToken::new());
        let made = call.clone();
        let looked = threads::within(threads::LIMIT, move || {
            let subject = tools::subject(&made.name, &made.arguments, &context);
            (subject, tools::leaves(&made.name, &made.arguments, &context))
        });
        let (subject, outside) = match looked.await {
            Ok(looked) => looked,
            Err(stuck) => return Permit::Forbidden(stuck.to_string()),
        };
        let mut what = format!("{} {subject}", call.name);
        let mut action = self.agent.action(&call.name, &subject);
        if outside.is_some() && call.name == "bash" {
            // No rule allows leaving the sandbox: each such command is asked for.
            what = format!("bash outside the sandbox: {subject}");
            action = action.max(Action::Ask);
        } else if outside.as_ref().is_some_and(|what| what.starts_with(tools::CREDENTIALS)) {
            what = format!("{what}, which holds credentials");
            action = action.max(Action::Ask);
        } else if outside.is_some() {
            action = action.max(self.action_outside(&subject));
        }
        match action {
            Action::Allow => Permit::Yes(outside),
            Action::Deny => Permit::Forbidden(format!("a rule forbids {what}")),
            Action::Ask => match self.ask(call, what.clone()).await {
                Answer::Allow => Permit::Yes(outside),
                Answer::Deny => Permit::Refused(what),
            },
        }
    }

    async fn run_tool(
        &self,
        call: &Call,
        allowance: Allowance,
        cancel: CancellationToken,
    ) -> Result<String, String> {
        let context = self.context(call, allowance, cancel);
        let output = tools::run(&call.name, &call.arguments, &context).await;
        if call.name == "todo" {
            let todos = serde_json::to_string(&self.todos.all()).expect("todos are JSON");
            let saved = self.host.0.store.sessions().save_todos(&self.session.id, todos).await;
            saved.map_err(|error| error.to_string())?;
        }
        output.map(|output| output.text).map_err(|error| error.to_string())
    }

    fn show(&self, phase: RunPhase, messages: &[Message]) {
        let uptime = self.host.0.clock.uptime();
        let mut shown_at = self.shown_at.lock();
        // Only streaming is throttled: a model sends many small pieces, and every ring wakes the reconciler.
        let streaming = phase == RunPhase::Streaming;
        if streaming && uptime.saturating_sub(*shown_at) < PROGRESS_INTERVAL {
            return;
        }
        *shown_at = uptime;
        drop(shown_at);
        let figures = super::figures(&self.session.id, messages);
        let activity = match phase {
            RunPhase::Asking => Activity::Waiting,
            RunPhase::Streaming => Activity::Streaming,
            RunPhase::Tools => Activity::Tool,
            RunPhase::Retrying(why) => Activity::Retrying(why),
        };
        if let Some(running) = self.host.runs().get_mut(&self.session.id) {
            running.activity = activity;
            running.figures = figures;
        }
        debug_assert!(messages.first().is_none_or(|first| first.info.role == Role::User));
        self.host.ring();
    }
}
