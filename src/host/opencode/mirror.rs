//! Cache of the state of an instance's watched sessions, fed by its event stream and by polling. Losing it
//! costs a request, never truth: an end is only ever read from the server itself.
//!
//! OpenCode's events are hints. `session.idle` comes twice on errors and aborts, the first time before the
//! message is complete, and one of the previous run may arrive after the next prompt (G4); `session.error`
//! need not be terminal (G5). So an event that may mean an end only raises the session's *suspicion* count.
//! A status poll answers the suspicions that were counted before it was sent; later ones need another.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;

use super::translate::{Event, OpenRequest, SessionChange};
use super::types::{Status, Statuses};
use crate::host::{Activity, Ask, Watch};
use crate::task::{MessageId, SessionId};
use crate::transcript::{self, Figures, Info, Message, Outcome, Part, Role, ToolState};

/// A session that was prompted a moment ago is cached although the reconciler does not watch it yet.
const SOON_WATCHED: Duration = Duration::from_secs(60);

/// Time to live of what was read of an idle session, in case an event was lost. Long for an end, which does
/// not change any more; short for what looks unfinished, which may be the gap between two idles.
const END_TTL: Duration = Duration::from_millis(900);
const UNFINISHED_TTL: Duration = Duration::from_millis(20);

/// An error event without a message in the conversation is attributed to the run after this long: the last
/// one of the previous run may arrive late.
const ERROR_GRACE: Duration = Duration::from_secs(1);

/// Longer tool arguments are cached as a hash; they are only compared.
const LONGEST_INPUT: usize = 200;

pub(super) struct Mirror {
    /// Whether the event stream is connected.
    listening: bool,
    /// The last version given out; counts events.
    last_version: u64,
    watched: HashMap<SessionId, WatchedSession>,
    asks: HashMap<String, Vec<OpenRequest>>,
    /// Directories whose permission requests changed since they were polled.
    asked: BTreeSet<String>,
}

struct WatchedSession {
    /// Cache validator: the number of the last event.
    version: u64,
    prompt: MessageId,
    directory: String,
    /// Uptime until which it is kept although unwatched.
    until: Duration,
    state: State,
    /// Counts events that may mean an end, so that a poll knows whether it was overtaken by one.
    suspicions: u64,
    /// The suspicions that the last poll has answered.
    looked_at: u64,
    /// The conversation without tool outputs, for the figures.
    messages: Vec<Message>,
    /// Whether `messages` is complete: read once, and kept current by the stream since.
    seeded: bool,
    figures: Option<Figures>,
    doing: Activity,
    /// The last error event, and when it came.
    failed: Option<(String, Duration)>,
    /// What was read when it was idle, at which uptime, and the suspicions counted by then.
    read: Option<(IdleSession, Duration, u64)>,
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
pub(super) struct IdleSession {
    pub(super) outcome: Outcome,
    pub(super) open_todos: Vec<String>,
    pub(super) figures: Figures,
}

/// What has to be requested before a session's state is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// Its conversation: it is busy, and the figures need what came before the stream.
    Seed,
    /// Its conversation and its todos: it is idle. The suspicions go with the answer.
    Read(u64),
}

/// How soon an event has to wake the reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    No,
    /// Progress only: debounced.
    Later,
    Now,
}

impl Mirror {
    /// Versions count from `first` on.
    pub(super) fn new(first: u64) -> Mirror {
        Mirror {
            listening: false,
            last_version: first,
            watched: HashMap::new(),
            asks: HashMap::new(),
            asked: BTreeSet::new(),
        }
    }

    /// The event stream is connected. Events before it were missed.
    pub(super) fn listen(&mut self) {
        self.doubt();
        self.listening = true;
    }

    pub(super) fn stop_listening(&mut self) {
        self.listening = false;
    }

    /// The cache validator of a watched session; `None` while there is no stream.
    pub(super) fn version(&self, session: &SessionId) -> Option<u64> {
        self.watched.get(session).filter(|_| self.listening).map(|watched| watched.version)
    }

    /// Before a prompt is sent: events about it count from now on.
    pub(super) fn expect(
        &mut self,
        session: &SessionId,
        prompt: &MessageId,
        directory: &str,
        now: Duration,
    ) {
        self.last_version += 1;
        let watched = self.watched.entry(session.clone());
        let watched = watched.or_insert_with(|| WatchedSession::new(prompt, directory));
        watched.version = self.last_version;
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
                self.last_version += 1;
                let watched = WatchedSession::new(&watch.prompt, &watch.directory);
                WatchedSession { version: self.last_version, ..watched }
            });
            watched.prompt_is(&watch.prompt);
        }
    }

    /// The stream was interrupted: the whole cache is stale, and every session has to be polled.
    pub(super) fn doubt(&mut self) {
        self.last_version += 1;
        for watched in self.watched.values_mut() {
            watched.version = self.last_version;
            watched.seeded = false;
            watched.suspect();
            self.asked.insert(watched.directory.clone());
        }
    }

    /// Takes in an event. Every event of a watched session changes its version, also one of an unknown kind:
    /// what was cached under the old version may be stale.
    pub(super) fn hear(&mut self, event: Event, now: Duration) -> Wake {
        let Event { session, directory, change } = event;
        let mut watched = self.watched.get_mut(&SessionId::new(session));
        if let Some(watched) = &mut watched {
            self.last_version += 1;
            watched.version = self.last_version;
        }
        if change == SessionChange::Asked {
            self.asked.extend(directory);
            return Wake::Now;
        }
        watched.map_or(Wake::No, |watched| watched.hear(change, now))
    }

    /// Directories whose status has to be polled before the state of their sessions is known.
    pub(super) fn suspicious(&self, now: Duration) -> BTreeSet<String> {
        let doubtful = self.watched.values().filter(|watched| watched.is_suspicious(now));
        doubtful.map(|watched| watched.directory.clone()).collect()
    }

    pub(super) fn directories(&self) -> BTreeSet<String> {
        self.watched.values().map(|watched| watched.directory.clone()).collect()
    }

    /// Directories whose permission requests have to be polled.
    pub(super) fn take_asked(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.asked)
    }

    pub(super) fn look_for_asks_again(&mut self, directory: &str) {
        self.asked.insert(directory.to_owned());
    }

    /// The suspicions of each watched session in this directory, taken before its status is requested.
    pub(super) fn suspicions(&self, directory: &str) -> HashMap<SessionId, u64> {
        let there = self.watched.iter().filter(|(_, watched)| watched.directory == directory);
        there.map(|(id, watched)| (id.clone(), watched.suspicions)).collect()
    }

    pub(super) fn note_statuses(&mut self, before: &HashMap<SessionId, u64>, statuses: &Statuses) {
        for (id, suspicions) in before {
            let Some(watched) = self.watched.get_mut(id) else { continue };
            // Only what was suspected before the request is answered by it; polls may overtake each other.
            watched.looked_at = watched.looked_at.max(*suspicions);
            watched.state = match statuses.get(id.as_str()) {
                // The list has only sessions that are not idle (G3).
                None | Some(Status::Idle) => State::Idle,
                Some(Status::Busy | Status::Other) => State::Busy,
                Some(Status::Retry { message }) => State::Retrying(message.clone()),
            };
        }
    }

    pub(super) fn note_asks(&mut self, directory: &str, asks: HashMap<String, Vec<OpenRequest>>) {
        let there = self.watched.iter().filter(|(_, watched)| watched.directory == directory);
        let there: Vec<String> = there.map(|(id, _)| id.to_string()).collect();
        self.asks.retain(|session, _| {
            !there.contains(session) && self.watched.contains_key(&SessionId::new(session.clone()))
        });
        self.asks.extend(asks.into_iter().filter(|(session, _)| there.contains(session)));
    }

    /// `checked` are the directories whose status was polled just now: without that, what is read might be
    /// the middle of a run.
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
        // A bad agent or model leaves no answer in the conversation, only an error event (G6).
        let outcome = match (outcome, &watched.failed) {
            (Outcome::PromptMissing | Outcome::Unanswered, Some((error, when)))
                if at.0.saturating_sub(*when) >= ERROR_GRACE =>
            {
                Outcome::Failed { error: error.clone(), partial: None }
            }
            (outcome, _) => outcome,
        };
        let figures = transcript::figures(messages);
        watched.read = Some((IdleSession { outcome, open_todos, figures }, at.0, at.1));
    }

    /// What a session does, and what was read of it when it is idle. `None`: not known now. Of an idle
    /// session only a reading counts that is fresh or belongs to the look that began at `began`: an older
    /// one may have been overtaken by another run.
    pub(super) fn tell(
        &mut self,
        session: &SessionId,
        began: Duration,
    ) -> Option<(Activity, IdleSession)> {
        let watched = self.watched.get_mut(session)?;
        let open = self.asks.get(session.as_str()).map_or(&[] as &[OpenRequest], Vec::as_slice);
        // The server keeps listing the requests of an aborted run: those whose call is over are dropped.
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
        // The outcome of a busy session is not known yet; callers ignore it.
        let outcome = Outcome::Unfinished { partial: None };
        Some((activity, IdleSession { outcome, open_todos: Vec::new(), figures }))
    }
}

impl WatchedSession {
    fn new(prompt: &MessageId, directory: &str) -> WatchedSession {
        WatchedSession {
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

    /// A later prompt is a run of its own: what was read for the earlier one is dropped.
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
                Outcome::Answered { .. } | Outcome::Failed { .. } => END_TTL,
                Outcome::Aborted
                | Outcome::PromptMissing
                | Outcome::Unanswered
                | Outcome::Unfinished { .. }
                | Outcome::Refused { .. } => UNFINISHED_TTL,
            };
            *suspicions == self.suspicions && now.saturating_sub(*at) < fresh
        })
    }

    fn hear(&mut self, change: SessionChange, now: Duration) -> Wake {
        match change {
            SessionChange::Suspect => {
                self.suspect();
                Wake::Now
            }
            // A deleted session that was running stays listed as busy while its loop goes on (G9). Reading
            // it (`Need::Seed`) answers 404, and that proves the deletion.
            SessionChange::Deleted => {
                self.seeded = false;
                self.suspect();
                Wake::Now
            }
            SessionChange::Failed(error) => {
                self.failed = Some((error, now));
                self.suspect();
                Wake::Now
            }
            SessionChange::Busy(status) => {
                let state = match status {
                    Status::Retry { message } => State::Retrying(message),
                    Status::Busy | Status::Other | Status::Idle => State::Busy,
                };
                // A late busy event of the finished run would hide its end: once idle, only a poll may say
                // busy again.
                if self.state == State::Idle {
                    self.suspect();
                    return Wake::Now;
                }
                let changed = self.state != state;
                self.failed = None;
                self.state = state;
                if changed { Wake::Now } else { Wake::No }
            }
            SessionChange::Message(info) => {
                self.figures = None;
                self.message(info);
                Wake::Later
            }
            SessionChange::Part { message, part } => {
                self.figures = None;
                self.part(message, part);
                Wake::Later
            }
            SessionChange::Delta { message, part, text } => {
                self.figures = None;
                self.doing = Activity::Streaming;
                self.grow(&message, &part, &text);
                Wake::Later
            }
            SessionChange::Asked | SessionChange::Other => Wake::No,
        }
    }

    /// Whether the call that asks is known to be over.
    fn has_answered(&self, open: &OpenRequest) -> bool {
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
            // They do not contribute to the figures.
            // Updates come several times per part (G15); those above replace, these are not stored.
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

    /// The message with this id. A part may arrive before its message; a placeholder is filled in later.
    fn entry(&mut self, id: String) -> &mut Message {
        let known = self.messages.iter().rposition(|message| message.info.id == id);
        let known = known.unwrap_or_else(|| {
            self.messages.push(Message { info: unheard(id), parts: Vec::new() });
            self.messages.len() - 1
        });
        &mut self.messages[known]
    }
}

/// A placeholder: of the assistant, because the parts of user messages come after their message.
fn unheard(id: String) -> Info {
    Info::blank(id, String::new(), Role::Assistant, 0)
}

fn bare(message: Message) -> Message {
    let parts = message.parts.into_iter().map(bare_part).collect();
    Message { info: message.info, parts }
}

/// A part without its output, which may be megabytes and does not contribute to the figures.
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

/// A hash in place of long arguments: as good for comparing, and short.
fn fingerprint(input: Value) -> Value {
    let text = input.to_string();
    if text.len() <= LONGEST_INPUT {
        return input;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Value::from(hasher.finish())
}
