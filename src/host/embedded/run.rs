//! One session at work: the agent's loop with our disk, our rules and our tools around it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Embedded, Running, broken};
use crate::agent::definition::{Action, Definition, EXTERNAL_DIRECTORY, Source};
use crate::agent::drive::{Doing, Leave, Permit, Stopped, Surroundings, drive};
use crate::agent::model::{self, Call, Model, Price, Request};
use crate::agent::tools::{self, Context, Spec, Todos, Workspace};
use crate::agent::turn::{self, Effect, Event, Mint, Purpose, Turn};
use crate::clock::Clock;
use crate::host::{Activity, Answer, Ask, Error};
use crate::process::Survivors;
use crate::store::Session;
use crate::task::SessionId;
use crate::transcript::{Figures, Message, Role};

/// How often a text that is being written is shown anew.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

const SETTING: &str = "You work in the background for another agent, in a session of your own. \
    Nobody reads along and nobody answers questions: find out what you need with your tools. Your \
    last message is your whole answer, so put everything into it: what you found or did, with files \
    and lines.";

/// Everything one run needs.
struct Surrounded {
    host: Embedded,
    session: Session,
    agent: Definition,
    model: String,
    workspace: Workspace,
    todos: Todos,
    shown_at: Mutex<Duration>,
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

/// Takes the session off the list of those at work, also after a panic.
struct AtWork {
    host: Embedded,
    session: SessionId,
    /// Of the entry that is ours; a later one stays.
    generation: u64,
}

impl Drop for AtWork {
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
    /// Sets a session to work, unless it is at it.
    pub(super) fn work(&self, session: &SessionId) {
        let mut runs = self.runs();
        if let Some(running) = runs.get_mut(session) {
            running.again = true;
            return;
        }
        let cancel = CancellationToken::new();
        let generation = self.0.clock.tick();
        let running = Running {
            generation,
            cancel: cancel.clone(),
            activity: Activity::Waiting,
            figures: Figures::default(),
            asks: Vec::new(),
            again: false,
        };
        runs.insert(session.clone(), running);
        drop(runs);
        let at_work = AtWork { host: self.clone(), session: session.clone(), generation };
        tokio::spawn(async move {
            if let Err(error) = at_work.host.work_off(&at_work.session, cancel).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(session = %at_work.session, error, "a run was left");
                let uptime = at_work.host.0.clock.uptime();
                at_work.host.left().insert(at_work.session.clone(), uptime);
            }
            drop(at_work);
        });
        self.ring();
    }

    /// Runs until there is nothing left to answer.
    async fn work_off(&self, id: &SessionId, cancel: CancellationToken) -> Result<(), Stopped> {
        loop {
            let failed = |error: Error| Stopped(error.to_string());
            let session = self.session(id).map_err(failed)?;
            let messages = self.messages(id).map_err(failed)?;
            let (surrounded, model, price) = self.surround(session).map_err(failed)?;
            let agent = surrounded.agent.name.clone();
            let limits = self.0.setup.limits;
            let stamps = Stamps(self.0.clock.clone());
            let turn = Turn::new(id.as_str(), &agent, messages, limits, stamps).priced(price);
            let (cancel, stop) = (cancel.clone(), self.0.stop.clone());
            match self.clear_processes(id).await.map_err(failed)? {
                Ok(()) => drive(turn, model, Arc::new(surrounded), cancel, stop).await?,
                Err(survivors) => surrounded.give_up(turn, &survivors).await?,
            }
            self.0.store.session_rests(id).await.map_err(|error| failed(broken(error)))?;
            let mut runs = self.runs();
            match runs.get_mut(id) {
                Some(running) if running.again && !running.cancel.is_cancelled() => {
                    running.again = false;
                }
                // Said after the abort: a run of its own.
                Some(running) if running.again => {
                    runs.remove(id);
                    drop(runs);
                    self.work(id);
                    return Ok(());
                }
                // Under the lock, so that nobody can say something in between.
                Some(_) => {
                    runs.remove(id);
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    fn surround(&self, session: Session) -> Result<(Surrounded, Model, Option<Price>), Error> {
        let refused = |why: String| Error::Refused(why);
        let mut definitions = self.definitions(&session.directory);
        let agent = definitions.remove(&session.agent);
        let agent =
            agent.ok_or_else(|| refused(format!("no agent `{}` any more", session.agent)))?;
        let name = self.model_name(&session.model, &agent);
        let model = self.0.setup.models.find(&name).map_err(|error| refused(error.to_string()))?;
        let price = match model {
            Model::Offline => Some(Price::FREE),
            Model::Remote(_) => self.0.setup.prices.get(&name).copied(),
        };
        let workspace = Workspace::open(Path::new(&session.directory));
        let workspace = workspace.map_err(|error| refused(error.to_string()))?;
        let todos = Todos::new(self.todos(&session.id)?);
        let surrounded = Surrounded {
            host: self.clone(),
            model: name.split_once('/').map_or(name.clone(), |(_, model)| model.to_owned()),
            session,
            agent,
            workspace,
            todos,
            shown_at: Mutex::new(Duration::ZERO),
        };
        Ok((surrounded, model, price))
    }
}

impl Surrounded {
    fn specs(&self) -> Vec<Spec> {
        let specs = tools::specs().into_iter();
        specs.filter(|spec| self.may_use(spec.name)).collect()
    }

    fn may_use(&self, tool: &str) -> bool {
        self.agent.may_use(tool) && !self.session.deny.iter().any(|denied| denied == tool)
    }

    /// Ends a run in an error rather than let it work beside a command of its past.
    async fn give_up(&self, mut turn: Turn<Stamps>, survivors: &Survivors) -> Result<(), Stopped> {
        let why = format!("a command of an earlier run is still there: {survivors}, then resume");
        // Calls that were cut off are told so first.
        let mut effects = turn.on(Event::Begin);
        effects.extend(turn.on(Event::ModelFailed(model::Error::Unusable(why))));
        for effect in effects {
            if let Effect::Save(message) = effect {
                self.save(&message).await?;
            }
        }
        Ok(())
    }

    fn context(&self, call: &Call, leave: Leave, cancel: CancellationToken) -> Context {
        Context {
            workspace: self.workspace.clone(),
            todos: self.todos.clone(),
            overflow: self.host.0.setup.overflow.clone(),
            cancel,
            may_leave: leave,
            launcher: self.host.launcher(&self.session.id, &call.id),
        }
    }

    /// A file that came with the workspace cannot open the way out of it: somebody else is asked.
    fn action_outside(&self, path: &str) -> Action {
        let action = self.agent.action(EXTERNAL_DIRECTORY, path);
        match &self.agent.source {
            Source::File(file) if file.starts_with(self.workspace.root()) => {
                action.max(Action::Ask)
            }
            Source::File(_) | Source::BuiltIn => action,
        }
    }

    /// Waits for somebody to answer; the policy answers in the end if nobody does.
    async fn ask(&self, what: String) -> Answer {
        let id = format!("per_{}", self.host.0.clock.nonce());
        let (answering, answer) = oneshot::channel();
        let ask = Ask { id: id.clone(), what };
        match self.host.runs().get_mut(&self.session.id) {
            Some(running) => running.asks.push((ask, Some(answering))),
            None => return Answer::Deny,
        }
        self.host.ring();
        let answer = answer.await.unwrap_or(Answer::Deny);
        if let Some(running) = self.host.runs().get_mut(&self.session.id) {
            running.asks.retain(|(ask, _)| ask.id != id);
        }
        self.host.ring();
        answer
    }
}

impl Surroundings for Surrounded {
    async fn save(&self, message: &Message) -> Result<(), Stopped> {
        let body = serde_json::to_string(message).expect("a message is JSON");
        let id = message.info.id.clone();
        let saved = self.host.0.store.save_message(&self.session.id, id, body);
        saved.await.map_err(|error| Stopped(broken(error).to_string()))
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
            messages: turn::visible(messages).to_vec(),
            tools,
        }
    }

    async fn permit(&self, call: &Call) -> Permit {
        if !self.may_use(&call.name) {
            let names: Vec<&str> = self.specs().iter().map(|spec| spec.name).collect();
            let why = format!("no tool `{}` here; there are: {}", call.name, names.join(", "));
            return Permit::Forbidden(why);
        }
        let context = self.context(call, None, CancellationToken::new());
        let subject = tools::subject(&call.name, &call.arguments, &context);
        let outside = tools::leaves(&call.name, &call.arguments, &context);
        let what = format!("{} {subject}", call.name);
        let mut action = self.agent.action(&call.name, &subject);
        if outside.is_some() {
            action = action.max(self.action_outside(&subject));
        }
        match action {
            Action::Allow => Permit::Yes(outside),
            Action::Deny => Permit::Forbidden(format!("a rule forbids {what}")),
            Action::Ask => match self.ask(what.clone()).await {
                Answer::Allow => Permit::Yes(outside),
                Answer::Deny => Permit::Refused(format!("{what} was refused")),
            },
        }
    }

    async fn run_tool(
        &self,
        call: &Call,
        leave: Leave,
        cancel: CancellationToken,
    ) -> Result<String, String> {
        let context = self.context(call, leave, cancel);
        let output = tools::run(&call.name, &call.arguments, &context).await;
        if call.name == "todo" {
            let todos = serde_json::to_string(&self.todos.all()).expect("todos are JSON");
            let saved = self.host.0.store.save_todos(&self.session.id, todos).await;
            saved.map_err(|error| error.to_string())?;
        }
        output.map(|output| output.text).map_err(|error| error.to_string())
    }

    fn show(&self, doing: Doing, messages: &[Message], writing: Option<&Message>) {
        let uptime = self.host.0.clock.uptime();
        let mut shown_at = self.shown_at.lock().unwrap_or_else(PoisonError::into_inner);
        let streaming = doing == Doing::Streaming;
        if streaming && uptime.saturating_sub(*shown_at) < BETWEEN_LOOKS {
            return;
        }
        *shown_at = uptime;
        drop(shown_at);
        let mut figures = super::figures(&self.session.id, messages);
        if let Some(text) = writing.map(Message::text).filter(|text| !text.is_empty()) {
            figures.last_message = Some(text);
        }
        let activity = match doing {
            Doing::Asking => Activity::Waiting,
            Doing::Streaming => Activity::Streaming,
            Doing::Tools => Activity::Tool,
            Doing::Retrying(why) => Activity::Retrying(why),
        };
        if let Some(running) = self.host.runs().get_mut(&self.session.id) {
            running.activity = activity;
            running.figures = figures;
        }
        debug_assert!(messages.first().is_none_or(|first| first.info.role == Role::User));
        self.host.ring();
    }
}
