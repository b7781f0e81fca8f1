//! In-memory state of the scripted host: its sessions and the fake agents that work in them. It imitates
//! what real hosts do, including what is awkward: prompts to a busy session are merged, an idle session may
//! not have finished, an event may be lost. A generation number per session stops a script that was
//! aborted, replaced or forgotten: its next edit finds another generation and ends it.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::{Notify, watch};

use super::script::{self, Step};
use super::{Call, Control, Reply};
use crate::clock::Clock;
use crate::host::{
    Activity, Answer, Ask, Error, NewSession, Observation, OpenedSession, Post, Prompt, Watch,
};
use crate::task::{MessageId, SessionId};
use crate::transcript::{
    self, CallStatus, Failure, FailureName, Finish, Info, Message, Part, Role, Tokens, ToolState,
};

const AGENTS: [&str; 5] = ["build", "explore", "general", "librarian", "oracle"];

/// The gap between two idles of one end, in which the answer is still unfinished (G4).
const BETWEEN_TWO_IDLES: Duration = Duration::from_millis(15);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    clock: Clock,
    events: watch::Sender<u64>,
    answered: Notify,
    log: Option<Mutex<std::fs::File>>,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<SessionId, Session>,
    posts: Vec<Post>,
    restarts: u32,
    fail_posts: u32,
    store_failed_posts: bool,
    fail_opens: u32,
    unreachable: bool,
    takes_no_messages: bool,
}

struct Session {
    nonce: String,
    title: String,
    deny: Vec<String>,
    messages: Vec<Message>,
    todos: Vec<(String, bool)>,
    activity: Activity,
    ask: Option<(Ask, Option<Answer>)>,
    /// Incremented to stop the script that runs here.
    generation: u64,
    /// Prompts that came while the session was busy; they are answered together, as OpenCode does.
    pending: Vec<Step>,
    /// Answers to prompts that have no script, in this order.
    later: VecDeque<String>,
    idle_twice: bool,
    lose_event: bool,
    panics: bool,
}

impl World {
    pub fn new(clock: Clock) -> World {
        World::logging(clock, None)
    }

    /// Writes a line for every post, in the order in which they came, with its microsecond.
    pub fn logging(clock: Clock, log: Option<std::fs::File>) -> World {
        World(Arc::new(Inner {
            state: Mutex::default(),
            clock,
            events: watch::Sender::new(0),
            answered: Notify::new(),
            log: log.map(Mutex::new),
        }))
    }

    /// Everything that was posted, in order.
    pub fn posts(&self) -> Vec<Post> {
        self.state().posts.clone()
    }

    /// The texts of all prompts a session was given.
    pub fn prompts(&self, session: &SessionId) -> Vec<String> {
        let state = self.state();
        let messages = state.sessions.get(session).map(|session| session.messages.as_slice());
        let messages = messages.unwrap_or_default().iter();
        messages.filter(|m| m.info.role == Role::User).map(Message::text).collect()
    }

    pub fn is_busy(&self, session: &SessionId) -> bool {
        let state = self.state();
        state.sessions.get(session).is_some_and(|session| session.activity != Activity::Idle)
    }

    pub(super) fn takes_messages(&self) -> bool {
        !self.state().takes_no_messages
    }

    pub fn denied(&self, session: &SessionId) -> Vec<String> {
        self.state().sessions.get(session).map(|s| s.deny.clone()).unwrap_or_default()
    }

    pub fn title(&self, session: &SessionId) -> String {
        self.state().sessions.get(session).map(|s| s.title.clone()).unwrap_or_default()
    }

    pub fn sessions(&self) -> Vec<SessionId> {
        self.state().sessions.keys().cloned().collect()
    }

    pub(super) fn events(&self) -> watch::Receiver<u64> {
        self.0.events.subscribe()
    }

    pub(super) async fn listen(&self, wake: &Notify) {
        let mut events = self.events();
        while events.changed().await.is_ok() {
            wake.notify_one();
        }
    }

    pub(super) fn call(&self, call: Call) -> Result<Reply, Error> {
        if self.state().unreachable && !matches!(call, Call::Control(_)) {
            return Err(Error::Unreachable("switched off by its script".into()));
        }
        match call {
            Call::Open(session) => self.open(session).map(Reply::Opened),
            Call::Find { nonce } => Ok(Reply::Found(self.find(&nonce))),
            Call::Prompt(prompt) => self.prompt(prompt).map(|()| Reply::Done),
            Call::Observe { watches } => Ok(Reply::Observed(self.observe(watches))),
            Call::Missing { mut sessions } => {
                let state = self.state();
                sessions.retain(|session| !state.sessions.contains_key(session));
                Ok(Reply::Sessions(sessions))
            }
            Call::Transcript { session } => {
                let state = self.state();
                let found = state.sessions.get(&session);
                let session = found.ok_or(Error::NoSuchSession(session))?;
                Ok(Reply::Text(json!(session.messages).to_string()))
            }
            Call::Abort { session } => {
                self.abort(&session);
                Ok(Reply::Done)
            }
            Call::Post(post) => self.post(post).map(|()| Reply::Done),
            Call::Posted { session, message } => {
                let state = self.state();
                let found = state.sessions.get(&session);
                let session = found.ok_or(Error::NoSuchSession(session))?;
                Ok(Reply::YesNo(session.has(message.as_str())))
            }
            Call::Sessions => Ok(Reply::Sessions(self.sessions())),
            Call::Agents => Ok(Reply::Names(AGENTS.map(str::to_owned).to_vec())),
            Call::Answer { session, ask, answer } => {
                self.answer(&session, &ask, answer).map(|()| Reply::Done)
            }
            Call::Control(control) => {
                self.control(control);
                Ok(Reply::Done)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    fn now(&self) -> i64 {
        self.0.clock.now().as_millis()
    }

    fn ring(&self) {
        self.0.events.send_modify(|events| *events += 1);
    }

    fn open(&self, new: NewSession) -> Result<OpenedSession, Error> {
        let mut state = self.state();
        if state.fail_opens > 0 {
            state.fail_opens -= 1;
            return Err(Error::Unreachable("opening failed by its script".into()));
        }
        // Idempotent by nonce.
        let known = state.sessions.iter().find(|(_, session)| session.nonce == new.nonce);
        let session = known.map_or_else(|| self.0.clock.session_id(), |(id, _)| id.clone());
        let instance = format!("scripted-{}", state.restarts);
        state.sessions.entry(session.clone()).or_insert_with(|| Session::new(new));
        Ok(OpenedSession { session, instance })
    }

    fn find(&self, nonce: &str) -> Vec<OpenedSession> {
        let state = self.state();
        let instance = format!("scripted-{}", state.restarts);
        let found = state.sessions.iter().filter(|(_, session)| session.nonce == nonce);
        let opened =
            |id: &SessionId| OpenedSession { session: id.clone(), instance: instance.clone() };
        found.map(|(id, _)| opened(id)).collect()
    }

    fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        let now = self.now();
        let mut state = self.state();
        let found = state.sessions.get_mut(&prompt.to.session);
        let session = found.ok_or_else(|| Error::NoSuchSession(prompt.to.session.clone()))?;
        // A message id that is known does not run again.
        if session.has(prompt.message.as_str()) {
            return Ok(());
        }
        session.messages.push(user_message(
            &prompt.message,
            now,
            vec![Part::Text {
                id: prompt.message.part(0),
                text: prompt.text.clone(),
                synthetic: false,
            }],
        ));
        session.todos.retain(|(_, once)| !once);
        let mut steps = script::parse(&prompt.text);
        let has_script = prompt.text.lines().any(|line| line.trim().starts_with('@'));
        if !has_script && let Some(text) = session.later.pop_front() {
            steps = vec![Step::Say(text)];
        }
        session.panics |= steps.contains(&Step::Panic);
        if session.activity != Activity::Idle {
            session.pending.extend(steps);
            return Ok(());
        }
        session.activity = Activity::Waiting;
        session.generation += 1;
        let generation = session.generation;
        drop(state);
        // Detached, as the agents of a real host are: it ends with its script, or when another generation begins.
        tokio::spawn(self.clone().perform(prompt.to.session, generation, steps));
        self.ring();
        Ok(())
    }

    fn observe(&self, watches: Vec<Watch>) -> Vec<Observation> {
        let state = self.state();
        let observation = |watch: Watch| match state.sessions.get(&watch.session) {
            Some(session) => session.observation(watch),
            None => Observation {
                session: watch.session,
                activity: Activity::Gone,
                outcome: transcript::Outcome::PromptMissing,
                open_todos: Vec::new(),
                figures: transcript::Figures::default(),
            },
        };
        watches.into_iter().map(observation).collect()
    }

    fn abort(&self, id: &SessionId) {
        let now = self.now();
        let mut state = self.state();
        if let Some(session) = state.sessions.get_mut(id)
            && session.activity != Activity::Idle
        {
            // The script finds another generation at its next step, and ends.
            session.generation += 1;
            session.fail(now, FailureName::Aborted, "aborted");
            session.rest();
        }
        drop(state);
        self.ring();
    }

    fn post(&self, post: Post) -> Result<(), Error> {
        let (now, at) = (self.now(), self.0.clock.micros());
        let mut state = self.state();
        let fails = state.fail_posts > 0;
        if fails {
            state.fail_posts -= 1;
            if !state.store_failed_posts {
                return Err(Error::Unreachable("post failed by its script".into()));
            }
        }
        let found = state.sessions.get_mut(&post.to.session);
        let session = found.ok_or_else(|| Error::NoSuchSession(post.to.session.clone()))?;
        let again = session.has(post.message.as_str());
        if !again {
            let part = |n, text: &str, synthetic| Part::Text {
                id: post.message.part(n),
                text: text.to_owned(),
                synthetic,
            };
            let parts = vec![part(0, &post.visible, false), part(1, &post.hidden, true)];
            session.messages.push(user_message(&post.message, now, parts));
        }
        if let Some(log) = &self.0.log {
            let line = format!("{}\n", json!({ "again": again, "at": at, "post": post }));
            let mut log = log.lock();
            // In one write: a test that reads along never sees half a line.
            let written = log.write_all(line.as_bytes());
            written.map_err(|error| Error::Refused(error.to_string()))?;
        } else {
            state.posts.push(post);
        }
        if fails { Err(Error::Unreachable("answer lost by its script".into())) } else { Ok(()) }
    }

    fn answer(&self, id: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        let mut state = self.state();
        let session = state.sessions.get_mut(id).ok_or_else(|| Error::NoSuchSession(id.clone()))?;
        match &mut session.ask {
            Some((asked, given)) if asked.id == ask => *given = Some(answer),
            Some(_) | None => {
                return Err(Error::Refused(format!("no permission request `{ask}` is open")));
            }
        }
        drop(state);
        self.0.answered.notify_waiters();
        Ok(())
    }

    fn control(&self, control: Control) {
        let now = self.now();
        let mut state = self.state();
        let mut silent = false;
        match control {
            Control::Finish { session, text } => {
                state.with_busy(&session, |session| session.finish(now, text));
            }
            Control::FinishSilently { session, text } => {
                state.with_busy(&session, |session| session.finish(now, text));
                silent = true;
            }
            Control::Fail { session, error } => {
                state.with_busy(&session, |session| session.fail(now, FailureName::Api, &error));
            }
            Control::Abort { session } => {
                drop(state);
                return self.abort(&session);
            }
            Control::Delete { session } => {
                state.sessions.remove(&session);
            }
            Control::Restart => {
                state.restarts += 1;
                for session in state.sessions.values_mut() {
                    session.generation += 1;
                    session.rest();
                }
            }
            Control::FailPosts { posts, stored } => {
                state.fail_posts = posts;
                state.store_failed_posts = stored;
            }
            Control::FailOpens { opens } => state.fail_opens = opens,
            Control::OpenTwin { of } => {
                if let Some(twin) = state.sessions.get(&of).map(Session::twin) {
                    state.sessions.insert(self.0.clock.session_id(), twin);
                }
            }
            Control::Unreachable { yes } => state.unreachable = yes,
            Control::TakeNoMessages => state.takes_no_messages = true,
            Control::Ring => {}
        }
        drop(state);
        if !silent {
            self.ring();
        }
    }

    /// Runs a script until it ends or its generation does.
    async fn perform(self, id: SessionId, generation: u64, steps: Vec<Step>) {
        let mut steps = steps;
        while !steps.is_empty() {
            for step in steps {
                if self.step(&id, generation, step).await.is_none() {
                    return;
                }
            }
            // Prompts that came in the meantime are answered together.
            let pending = self.edit(&id, generation, |s, _| std::mem::take(&mut s.pending));
            steps = pending.unwrap_or_default();
        }
        let lost = self.edit(&id, generation, |session, _| {
            session.rest();
            std::mem::take(&mut session.lose_event)
        });
        if lost == Some(false) {
            self.ring();
        }
    }

    /// `None` when the script is over: aborted, ended by a step, or its session is gone.
    async fn step(&self, id: &SessionId, generation: u64, step: Step) -> Option<()> {
        let edit = |change: &dyn Fn(&mut Session, i64)| self.edit(id, generation, change);
        match step {
            Step::Think(pause) => {
                tokio::time::sleep(pause).await;
                edit(&|_, _| {})
            }
            Step::Tool { name, input, takes, output } => {
                let call = self.0.clock.nonce();
                self.edit(id, generation, |session, now| {
                    session.activity = Activity::Tool;
                    session.begin_call(now, call, name, input);
                })?;
                self.ring();
                tokio::time::sleep(takes).await;
                self.edit(id, generation, |session, now| session.end_call(now, Ok(output)))
            }
            Step::Stream { words, pause } => {
                for _ in 0..words {
                    edit(&|session, now| {
                        session.activity = Activity::Streaming;
                        session.add_text(now, "word ");
                    })?;
                    self.ring();
                    tokio::time::sleep(pause).await;
                }
                edit(&|_, _| {})
            }
            Step::Say(text) => {
                if edit(&|_, _| {}).is_some() && self.idle_twice(id, generation) {
                    edit(&|session, now| {
                        session.answer(now);
                        session.activity = Activity::Idle;
                    })?;
                    self.ring();
                    tokio::time::sleep(BETWEEN_TWO_IDLES).await;
                }
                self.edit(id, generation, |session, now| session.close(now, text))
            }
            Step::Fail(error) => {
                edit(&|session, now| session.fail(now, FailureName::Api, &error))?;
                self.ring();
                None
            }
            Step::Retry { takes, why } => {
                edit(&|session, _| session.activity = Activity::Retrying(why.clone()))?;
                self.ring();
                tokio::time::sleep(takes).await;
                edit(&|session, _| session.activity = Activity::Waiting)
            }
            Step::Hang => {
                edit(&|session, now| {
                    session.answer(now);
                })?;
                None
            }
            Step::Ask { tool, what } => self.ask(id, generation, tool, what).await,
            Step::Todo { text, once } => {
                self.edit(id, generation, |session, _| session.todos.push((text, once)))
            }
            Step::Compact => edit(&|session, now| session.compact(now, &self.0.clock)),
            Step::IdleTwice => edit(&|session, _| session.idle_twice = true),
            Step::LoseEvent => edit(&|session, _| session.lose_event = true),
            Step::Abort => {
                self.abort(id);
                None
            }
            Step::Delete => {
                self.control(Control::Delete { session: id.clone() });
                None
            }
            Step::Spend { tokens, cost } => edit(&|session, now| {
                let info = &mut session.answer(now).info;
                info.tokens = Some(Tokens { output: tokens, ..Tokens::default() });
                info.cost = Some(cost);
            }),
            Step::Then(text) => {
                self.edit(id, generation, |session, _| session.later.push_back(text))
            }
            Step::Panic => edit(&|_, _| {}),
        }
    }

    async fn ask(&self, id: &SessionId, generation: u64, tool: String, what: String) -> Option<()> {
        let ask =
            Ask { id: format!("per_{}", self.0.clock.nonce()), what: format!("{tool} {what}") };
        self.edit(id, generation, |session, now| {
            session.begin_call(now, ask.id.clone(), tool, json!(what));
            session.activity = Activity::Blocked(vec![ask.clone()]);
            session.ask = Some((ask, None));
        })?;
        self.ring();
        loop {
            // Registered before the state is read: an answer in between is not missed.
            let answered = self.0.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            let given = self.edit(id, generation, |session, _| {
                session.ask.as_ref().and_then(|(_, given)| *given)
            })?;
            match given {
                None => answered.await,
                Some(Answer::Allow) => {
                    return self.edit(id, generation, |session, now| {
                        session.ask = None;
                        session.activity = Activity::Waiting;
                        session.end_call(now, Ok("ok".to_owned()));
                    });
                }
                Some(Answer::Deny) => {
                    self.edit(id, generation, |session, now| {
                        session.ask = None;
                        session.end_call(now, Err("refused".to_owned()));
                        session.rest();
                    })?;
                    self.ring();
                    return None;
                }
            }
        }
    }

    fn idle_twice(&self, id: &SessionId, generation: u64) -> bool {
        self.edit(id, generation, |session, _| std::mem::take(&mut session.idle_twice))
            .unwrap_or(false)
    }

    /// Changes a session on behalf of a script; `None` when that is not the current one any more.
    fn edit<T>(
        &self,
        id: &SessionId,
        generation: u64,
        change: impl FnOnce(&mut Session, i64) -> T,
    ) -> Option<T> {
        let now = self.now();
        let mut state = self.state();
        let session = state.sessions.get_mut(id).filter(|s| s.generation == generation)?;
        Some(change(session, now))
    }
}

impl State {
    fn with_busy(&mut self, id: &SessionId, change: impl FnOnce(&mut Session)) {
        let session = self.sessions.get_mut(id);
        if let Some(session) = session.filter(|session| session.activity != Activity::Idle) {
            session.generation += 1;
            change(session);
        }
    }
}

impl Session {
    /// Another one, opened by the same request.
    fn twin(&self) -> Session {
        Session::new(NewSession {
            parent: None,
            title: self.title.clone(),
            nonce: self.nonce.clone(),
            directory: String::new(),
            agent: String::new(),
            deny: self.deny.clone(),
            handed: Default::default(),
        })
    }

    fn new(new: NewSession) -> Session {
        Session {
            nonce: new.nonce,
            title: new.title,
            deny: new.deny,
            messages: Vec::new(),
            todos: Vec::new(),
            activity: Activity::Idle,
            ask: None,
            generation: 0,
            pending: Vec::new(),
            later: VecDeque::new(),
            idle_twice: false,
            lose_event: false,
            panics: false,
        }
    }

    fn has(&self, message: &str) -> bool {
        self.messages.iter().any(|known| known.info.id == message)
    }

    fn observation(&self, watch: Watch) -> Observation {
        assert!(!self.panics, "the script asked for a panic");
        Observation {
            outcome: transcript::outcome(&self.messages, watch.prompt.as_str(), None),
            session: watch.session,
            activity: self.activity.clone(),
            open_todos: self.todos.iter().map(|(text, _)| text.clone()).collect(),
            figures: transcript::figures(&self.messages),
        }
    }

    /// The assistant message that is being written.
    fn answer(&mut self, now: i64) -> &mut Message {
        let open = |m: &Message| m.info.role == Role::Assistant && m.info.time.completed.is_none();
        if !self.messages.last().is_some_and(open) {
            let id = format!("msg_answer_{:06}", self.messages.len());
            let mut message = blank(id, Role::Assistant, now, Vec::new());
            message.info.parent = self.messages.last().map(|message| message.info.id.clone());
            self.messages.push(message);
        }
        self.messages.last_mut().expect("one was just pushed")
    }

    fn add_text(&mut self, now: i64, text: &str) {
        let parts = &mut self.answer(now).parts;
        match parts.last_mut() {
            Some(Part::Text { text: said, .. }) => said.push_str(text),
            _ => parts.push(Part::Text { id: String::new(), text: text.into(), synthetic: false }),
        }
    }

    fn begin_call(&mut self, now: i64, call: String, tool: String, input: serde_json::Value) {
        let state = ToolState { status: CallStatus::Running, ..ToolState::pending(input) };
        self.answer(now).parts.push(Part::Tool { call, tool, state });
    }

    fn end_call(&mut self, now: i64, result: Result<String, String>) {
        let message = self.answer(now);
        if let Some(Part::Tool { state, .. }) = message.parts.last_mut() {
            match result {
                Ok(output) => {
                    state.status = CallStatus::Completed;
                    state.output = Some(output);
                }
                Err(error) => state.fail(error),
            }
        }
        message.info.finish = Some(Finish::ToolCalls);
        message.info.time.completed = Some(now);
    }

    /// Closes the answer with a text; the session is still busy.
    fn close(&mut self, now: i64, text: String) {
        let message = self.answer(now);
        message.parts.retain(|part| !matches!(part, Part::Text { .. }));
        message.parts.push(Part::Text { id: String::new(), text, synthetic: false });
        message.info.finish = Some(Finish::Stop);
        message.info.time.completed = Some(now);
    }

    fn finish(&mut self, now: i64, text: String) {
        self.close(now, text);
        self.rest();
    }

    fn fail(&mut self, now: i64, name: FailureName, error: &str) {
        let info = &mut self.answer(now).info;
        info.error = Some(Failure::new(name, error));
        info.time.completed = Some(now);
        self.rest();
    }

    fn rest(&mut self) {
        self.activity = Activity::Idle;
        self.ask = None;
        self.pending.clear();
    }

    fn compact(&mut self, now: i64, clock: &Clock) {
        let marker = vec![Part::Compaction { auto: true }];
        self.messages.push(user_message(&clock.message_id(), now, marker));
        let text = "a summary of what was said".to_owned();
        let said = vec![Part::Text { id: String::new(), text, synthetic: false }];
        let id = format!("msg_answer_{:06}", self.messages.len());
        let mut summary = blank(id, Role::Assistant, now, said);
        summary.info.summary = Some(true.into());
        summary.info.finish = Some(Finish::Stop);
        summary.info.time.completed = Some(now);
        self.messages.push(summary);
        let go_on = vec![Part::Text { id: String::new(), text: "Go on.".into(), synthetic: true }];
        self.messages.push(user_message(&clock.message_id(), now, go_on));
    }
}

fn user_message(id: &MessageId, now: i64, parts: Vec<Part>) -> Message {
    blank(id.as_str().to_owned(), Role::User, now, parts)
}

fn blank(id: String, role: Role, now: i64, parts: Vec<Part>) -> Message {
    Message { info: Info::blank(id, String::new(), role, now), parts }
}
