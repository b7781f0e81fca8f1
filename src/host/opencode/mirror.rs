//! What an instance is known to be doing: the sessions that are watched, as far as its event
//! stream and the last looks have told. Losing it costs a look, never truth: an end is only ever
//! read from the server itself.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;

use super::translate::{Event, News, Open};
use super::types::{Status, Statuses};
use crate::host::{Activity, Ask, Watch};
use crate::task::{MessageId, SessionId};
use crate::transcript::{self, Figures, Info, Message, Outcome, Part, Role, ToolState};

/// A session that was prompted a moment ago is kept although nobody watches it yet.
const SOON_WATCHED: Duration = Duration::from_secs(60);

/// What was read of an idle session is read again after this long, should an event have been lost:
/// an end can wait to be taken note of, what looks unfinished has to be looked at again.
const END_IS_FRESH: Duration = Duration::from_millis(900);
const REST_IS_FRESH: Duration = Duration::from_millis(20);

/// An error that stands alone for so long is the run's: the last one of an earlier run comes late.
const ERROR_STANDS: Duration = Duration::from_secs(1);

/// Longer arguments of tools are kept as a fingerprint.
const LONGEST_INPUT: usize = 200;

pub(super) struct Mirror {
    /// Whether the event stream is there.
    listening: bool,
    /// Counts what is heard.
    news: u64,
    watched: HashMap<SessionId, Watched>,
    asks: HashMap<String, Vec<Open>>,
    /// Directories where something was asked or answered since it was looked at.
    asked: BTreeSet<String>,
}

struct Watched {
    /// The number of what was heard last.
    version: u64,
    prompt: MessageId,
    directory: String,
    /// Uptime until which it is kept unwatched.
    until: Duration,
    state: State,
    /// Counts what may have been an end, so that a look knows whether it was overtaken.
    suspicions: u64,
    looked_at: u64,
    /// What has been said, without the outputs of tools.
    messages: Vec<Message>,
    seeded: bool,
    figures: Option<Figures>,
    doing: Activity,
    /// What the server said went wrong, and when.
    failed: Option<(String, Duration)>,
    read: Option<(Idle, Duration, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Unknown,
    Busy,
    Retrying(String),
    Idle,
}

/// An idle session, as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Idle {
    pub(super) outcome: Outcome,
    pub(super) open_todos: Vec<String>,
    pub(super) figures: Figures,
}

/// What has to be asked before a session can be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// Its conversation, for what it has done so far.
    Seed,
    /// Its conversation and its todos: it is idle. The number goes with the answer.
    Read(u64),
}

/// What an event is worth to whoever waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    No,
    /// Something moved; it can wait a little.
    Later,
    Now,
}

impl Mirror {
    /// What is heard is counted from `first` on.
    pub(super) fn new(first: u64) -> Mirror {
        Mirror {
            listening: false,
            news: first,
            watched: HashMap::new(),
            asks: HashMap::new(),
            asked: BTreeSet::new(),
        }
    }

    /// The event stream has begun: what was missed before is not known.
    pub(super) fn listen(&mut self) {
        self.doubt();
        self.listening = true;
    }

    pub(super) fn stop_listening(&mut self) {
        self.listening = false;
    }

    /// Another number with everything that is heard of a watched session.
    pub(super) fn version(&self, session: &SessionId) -> Option<u64> {
        self.watched.get(session).filter(|_| self.listening).map(|watched| watched.version)
    }

    /// Before a prompt is sent: what is heard about it from now on counts.
    pub(super) fn expect(
        &mut self,
        session: &SessionId,
        prompt: &MessageId,
        directory: &str,
        now: Duration,
    ) {
        self.news += 1;
        let watched = self.watched.entry(session.clone());
        let watched = watched.or_insert_with(|| Watched::new(prompt, directory));
        watched.version = self.news;
        watched.prompt_is(prompt);
        watched.until = now + SOON_WATCHED;
        watched.suspect();
    }

    /// Keeps these and forgets the others.
    pub(super) fn watch(&mut self, watches: &[&Watch], now: Duration) {
        let kept: std::collections::HashSet<&SessionId> =
            watches.iter().map(|watch| &watch.session).collect();
        self.watched.retain(|id, watched| kept.contains(id) || watched.until > now);
        for watch in watches {
            let watched = self.watched.entry(watch.session.clone()).or_insert_with(|| {
                self.news += 1;
                let watched = Watched::new(&watch.prompt, &watch.directory);
                Watched { version: self.news, ..watched }
            });
            watched.prompt_is(&watch.prompt);
        }
    }

    /// The stream was interrupted: nothing that was heard is sure any more.
    pub(super) fn doubt(&mut self) {
        self.news += 1;
        for watched in self.watched.values_mut() {
            watched.version = self.news;
            watched.seeded = false;
            watched.suspect();
            self.asked.insert(watched.directory.clone());
        }
    }

    pub(super) fn hear(&mut self, event: Event, now: Duration) -> Wake {
        let Event { session, directory, news } = event;
        let mut watched = self.watched.get_mut(&SessionId::new(session));
        if let Some(watched) = &mut watched {
            self.news += 1;
            watched.version = self.news;
        }
        if news == News::Asked {
            self.asked.extend(directory);
            return Wake::Now;
        }
        watched.map_or(Wake::No, |watched| watched.hear(news, now))
    }

    /// Directories whose status has to be looked at before their sessions can be told of.
    pub(super) fn suspicious(&self, now: Duration) -> BTreeSet<String> {
        let doubtful = self.watched.values().filter(|watched| watched.is_suspicious(now));
        doubtful.map(|watched| watched.directory.clone()).collect()
    }

    pub(super) fn directories(&self) -> BTreeSet<String> {
        self.watched.values().map(|watched| watched.directory.clone()).collect()
    }

    /// Directories where something was asked or answered.
    pub(super) fn take_asked(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.asked)
    }

    pub(super) fn look_for_asks_again(&mut self, directory: &str) {
        self.asked.insert(directory.to_owned());
    }

    /// Of each watched session in this directory, as of before its status is asked for.
    pub(super) fn suspicions(&self, directory: &str) -> HashMap<SessionId, u64> {
        let there = self.watched.iter().filter(|(_, watched)| watched.directory == directory);
        there.map(|(id, watched)| (id.clone(), watched.suspicions)).collect()
    }

    pub(super) fn note_statuses(&mut self, before: &HashMap<SessionId, u64>, statuses: &Statuses) {
        for (id, suspicions) in before {
            let Some(watched) = self.watched.get_mut(id) else { continue };
            watched.looked_at = watched.looked_at.max(*suspicions);
            watched.state = match statuses.get(id.as_str()) {
                None | Some(Status::Idle) => State::Idle,
                Some(Status::Busy | Status::Other) => State::Busy,
                Some(Status::Retry { message }) => State::Retrying(message.clone()),
            };
        }
    }

    pub(super) fn note_asks(&mut self, directory: &str, asks: HashMap<String, Vec<Open>>) {
        let there = self.watched.iter().filter(|(_, watched)| watched.directory == directory);
        let there: Vec<String> = there.map(|(id, _)| id.to_string()).collect();
        self.asks.retain(|session, _| {
            !there.contains(session) && self.watched.contains_key(&SessionId::new(session.clone()))
        });
        self.asks.extend(asks.into_iter().filter(|(session, _)| there.contains(session)));
    }

    /// `checked` are the directories whose status was looked at just now: without that, what is
    /// read might be the middle of a run.
    pub(super) fn need(
        &self,
        session: &SessionId,
        checked: &BTreeSet<String>,
        now: Duration,
    ) -> Need {
        let Some(watched) = self.watched.get(session) else { return Need::Nothing };
        match watched.state {
            State::Unknown => Need::Nothing,
            State::Busy | State::Retrying(_) if watched.seeded => Need::Nothing,
            State::Busy | State::Retrying(_) => Need::Seed,
            State::Idle if !checked.contains(&watched.directory) => Need::Nothing,
            State::Idle if watched.is_read(now) => Need::Nothing,
            State::Idle => Need::Read(watched.suspicions),
        }
    }

    pub(super) fn note_seed(&mut self, session: &SessionId, messages: Vec<Message>) {
        if let Some(watched) = self.watched.get_mut(session) {
            watched.messages = messages.into_iter().map(bare).collect();
            watched.seeded = true;
            watched.figures = None;
        }
    }

    pub(super) fn note_read(
        &mut self,
        session: &SessionId,
        messages: &[Message],
        open_todos: Vec<String>,
        at: (Duration, u64),
    ) {
        let Some(watched) = self.watched.get_mut(session) else { return };
        let outcome = transcript::outcome(messages, watched.prompt.as_str(), None);
        // Nothing came of the prompt, and the server said why, but not in the conversation.
        let outcome = match (outcome, &watched.failed) {
            (Outcome::PromptMissing | Outcome::Unanswered, Some((error, when)))
                if at.0.saturating_sub(*when) >= ERROR_STANDS =>
            {
                Outcome::Failed { error: error.clone(), partial: None }
            }
            (outcome, _) => outcome,
        };
        let figures = transcript::figures(messages);
        watched.read = Some((Idle { outcome, open_todos, figures }, at.0, at.1));
    }

    /// What a session does, and what was read of it when it is idle. `None`: not known now.
    /// An idle session is told of as it was read in the look that began then: an older reading may
    /// have been overtaken.
    pub(super) fn tell(
        &mut self,
        session: &SessionId,
        began: Duration,
    ) -> Option<(Activity, Idle)> {
        let watched = self.watched.get_mut(session)?;
        let open = self.asks.get(session.as_str()).map_or(&[] as &[Open], Vec::as_slice);
        // What an aborted run had asked stays in the server's list.
        let open = open.iter().filter(|open| !watched.has_answered(open));
        let asks = Some(open.map(|open| open.ask.clone()).collect::<Vec<Ask>>());
        let asks = asks.filter(|asks| !asks.is_empty());
        let activity = match (&watched.state, asks) {
            (State::Unknown, _) => return None,
            (State::Idle, _) => {
                let fresh = watched.is_read(began);
                let (idle, at, _) = watched.read.clone()?;
                return (fresh || at >= began).then_some((Activity::Idle, idle));
            }
            (State::Busy | State::Retrying(_), Some(asks)) => Activity::Blocked(asks),
            (State::Retrying(why), None) => Activity::Retrying(why.clone()),
            (State::Busy, None) => watched.doing.clone(),
        };
        let figures = match &watched.figures {
            Some(figures) => figures.clone(),
            None => {
                let figures = transcript::figures(&watched.messages);
                watched.figures.insert(figures).clone()
            }
        };
        // What a busy session will have said in the end is not known.
        let outcome = Outcome::Unfinished { partial: None };
        Some((activity, Idle { outcome, open_todos: Vec::new(), figures }))
    }
}

impl Watched {
    fn new(prompt: &MessageId, directory: &str) -> Watched {
        Watched {
            version: 0,
            prompt: prompt.clone(),
            directory: directory.to_owned(),
            until: Duration::ZERO,
            state: State::Unknown,
            suspicions: 1,
            looked_at: 0,
            messages: Vec::new(),
            seeded: false,
            figures: None,
            doing: Activity::Waiting,
            failed: None,
            read: None,
        }
    }

    /// A later prompt is a run of its own: what was read before does not answer it.
    fn prompt_is(&mut self, prompt: &MessageId) {
        if self.prompt != *prompt {
            self.prompt = prompt.clone();
            self.failed = None;
            self.read = None;
            self.suspect();
        }
    }

    fn suspect(&mut self) {
        self.suspicions += 1;
    }

    fn is_suspicious(&self, now: Duration) -> bool {
        match self.state {
            State::Unknown => true,
            State::Busy | State::Retrying(_) => self.looked_at < self.suspicions,
            State::Idle => self.looked_at < self.suspicions || !self.is_read(now),
        }
    }

    fn is_read(&self, now: Duration) -> bool {
        self.read.as_ref().is_some_and(|(idle, at, suspicions)| {
            let fresh = match idle.outcome {
                Outcome::Answered { .. } | Outcome::Failed { .. } => END_IS_FRESH,
                Outcome::Aborted
                | Outcome::PromptMissing
                | Outcome::Unanswered
                | Outcome::Unfinished { .. }
                | Outcome::Refused { .. } => REST_IS_FRESH,
            };
            *suspicions == self.suspicions && now.saturating_sub(*at) < fresh
        })
    }

    fn hear(&mut self, news: News, now: Duration) -> Wake {
        match news {
            News::Suspect => {
                self.suspect();
                Wake::Now
            }
            // One that works on is listed as working for a while all the same: it has to be read.
            News::Deleted => {
                self.seeded = false;
                self.suspect();
                Wake::Now
            }
            News::Failed(error) => {
                self.failed = Some((error, now));
                self.suspect();
                Wake::Now
            }
            News::Busy(status) => {
                let state = match status {
                    Status::Retry { message } => State::Retrying(message),
                    Status::Busy | Status::Other | Status::Idle => State::Busy,
                };
                // Late news of an earlier state would hide an end: after an idle only a look counts.
                if self.state == State::Idle {
                    self.suspect();
                    return Wake::Now;
                }
                let changed = self.state != state;
                self.failed = None;
                self.state = state;
                if changed { Wake::Now } else { Wake::No }
            }
            News::Message(info) => {
                self.figures = None;
                self.message(info);
                Wake::Later
            }
            News::Part { message, part } => {
                self.figures = None;
                self.part(message, part);
                Wake::Later
            }
            News::Delta { message, part, text } => {
                self.figures = None;
                self.doing = Activity::Streaming;
                self.grow(&message, &part, &text);
                Wake::Later
            }
            News::Asked | News::Other => Wake::No,
        }
    }

    /// Whether the call that asks is known to be over.
    fn has_answered(&self, open: &Open) -> bool {
        let Some(asking) = &open.call else { return false };
        let parts = self.messages.iter().rev().flat_map(|message| &message.parts);
        let state = parts.filter_map(|part| match part {
            Part::Tool { call, state, .. } if call == asking => Some(&state.status),
            Part::Tool { .. }
            | Part::Text { .. }
            | Part::Reasoning { .. }
            | Part::Compaction { .. }
            | Part::Other => None,
        });
        state.take(1).any(|status| !status.is_open())
    }

    fn message(&mut self, info: Info) {
        match self.messages.iter_mut().rev().find(|message| message.info.id == info.id) {
            Some(message) => message.info = info,
            None => {
                if info.role == Role::Assistant {
                    self.doing = Activity::Waiting;
                }
                self.messages.push(Message { info, parts: Vec::new() });
            }
        }
    }

    fn part(&mut self, message: String, part: Part) {
        match &part {
            Part::Tool { state, .. } if state.status.is_open() => self.doing = Activity::Tool,
            Part::Tool { .. } => self.doing = Activity::Waiting,
            Part::Text { .. } | Part::Reasoning { .. } => self.doing = Activity::Streaming,
            Part::Compaction { .. } | Part::Other => {}
        }
        let parts = &mut self.entry(message).parts;
        let same = |kept: &&mut Part| match (&**kept, &part) {
            (Part::Tool { call: kept, .. }, Part::Tool { call, .. }) => kept == call,
            (Part::Text { id: kept, .. }, Part::Text { id, .. }) => kept == id,
            (
                Part::Text { .. }
                | Part::Reasoning { .. }
                | Part::Tool { .. }
                | Part::Compaction { .. }
                | Part::Other,
                _,
            ) => false,
        };
        match (parts.iter_mut().rev().find(same), part) {
            (Some(kept), part) => *kept = bare_part(part),
            (None, part @ (Part::Text { .. } | Part::Tool { .. })) => parts.push(bare_part(part)),
            // Nothing of these is counted.
            (None, Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other) => {}
        }
    }

    fn grow(&mut self, message: &str, part: &str, more: &str) {
        let found = self.messages.iter_mut().rev().find(|known| known.info.id == message);
        let parts = found.into_iter().flat_map(|message| &mut message.parts);
        for kept in parts {
            if let Part::Text { id, text, .. } = kept
                && id == part
            {
                text.push_str(more);
            }
        }
    }

    /// The message with this id; what it is will be heard later.
    fn entry(&mut self, id: String) -> &mut Message {
        let known = self.messages.iter().rposition(|message| message.info.id == id);
        let known = known.unwrap_or_else(|| {
            self.messages.push(Message { info: unheard(id), parts: Vec::new() });
            self.messages.len() - 1
        });
        &mut self.messages[known]
    }
}

/// Parts of the user's messages are heard too, but those come after their message.
fn unheard(id: String) -> Info {
    Info::blank(id, String::new(), Role::Assistant, 0)
}

fn bare(message: Message) -> Message {
    let parts = message.parts.into_iter().map(bare_part).collect();
    Message { info: message.info, parts }
}

/// What is counted of a part: outputs are not.
fn bare_part(part: Part) -> Part {
    match part {
        Part::Tool { call, tool, state } => {
            let input = fingerprint(state.input);
            let state = ToolState { status: state.status, input, output: None, error: None };
            Part::Tool { call, tool, state }
        }
        other @ (Part::Text { .. }
        | Part::Reasoning { .. }
        | Part::Compaction { .. }
        | Part::Other) => other,
    }
}

/// As good for comparing, and short.
fn fingerprint(input: Value) -> Value {
    let text = input.to_string();
    if text.len() <= LONGEST_INPUT {
        return input;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Value::from(hasher.finish())
}
