//! The agent loop as a pure state machine: an event in, effects out. The conversation is its whole state,
//! so after a crash the loop goes on from the last saved message. It touches no model, tool or disk.
//!
//! An answer is in the conversation from the moment the model is asked for it, empty at first. Saving
//! that proves that the store can be written before the answer is paid for, and reserves its place:
//! what is said to the session meanwhile comes after it.
//!
//! What a crash can leave behind: an answer that never came (asked for again in its place), calls that
//! had not started (run now), calls that had (marked as interrupted and never run again, because they may
//! have done a part of their work), and a compaction without a summary (asked for again).

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;

use super::INTERRUPTED;
use super::model::{self, Call, Piece, Price};
use crate::backoff::Backoff;
use crate::transcript::{
    CallStatus, Failure, FailureName, Finish, Info, Message, Part, Role, ToolState,
};

const NOT_RUN: &str = "not run: another call of the same answer was refused, which ended the run";
const NOT_OURS: &str = "not run: this conversation is a copy, and the call was the original's";
const CUT_BY_REFUSAL: &str = "cut off: another call of the same answer was refused, which ended the \
    run; it may have done a part of it";

const COMPACTION_PROMPT: &str = "Sum up this conversation so that somebody else can go on with it: \
    the task, what was done and found (with files and lines), what is left to do.";
const GO_ON: &str = "Go on with the task from this summary.";

/// The longest pause before a retry, even if a server's `Retry-After` asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Without its word on that.
const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(32) };

/// The limits of one run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Answers of the model.
    pub steps: u32,
    /// Failed requests in a row that are retried.
    pub retries: u32,
    /// If the last request had this many tokens, the conversation is compacted before the next.
    pub compact_at: u64,
    /// Bytes of one answer: its text, thoughts and arguments.
    pub answer_bytes: usize,
    /// Calls of one answer that run at the same time.
    pub parallel_calls: usize,
    /// Bytes of a whole conversation; beyond that the run fails.
    pub transcript_bytes: usize,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Start, or resume after a crash: the conversation says what comes next.
    Begin,
    /// The messages that were sent to the session since the last [`Effect::Hear`], possibly none.
    Heard(Vec<Message>),
    /// A piece of the answer.
    Piece(Piece),
    /// The request to the model failed, before or during the answer.
    ModelFailed(model::Error),
    /// The pause before a retry is over.
    Retry,
    /// The call was permitted and is about to run.
    Started {
        call: String,
    },
    /// The call has a result, or an error for the model.
    ToolEnded {
        call: String,
        result: Result<String, String>,
    },
    /// A person refused the call, which ends the run.
    Refused {
        call: String,
        what: String,
    },
    Cancel,
}

/// What the driver has to do about it, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put the message with this id on disk, replacing its earlier state, before anything else.
    Save(String),
    /// The same for the state of one call only: rewriting a message with many calls and long outputs
    /// whenever one of them changes would be quadratic.
    SaveCall { message: String, part: usize },
    /// Fetch messages that were sent to the session, and report them as [`Event::Heard`].
    Hear,
    /// Send the conversation to the model.
    AskModel(Purpose),
    /// Run these calls concurrently. Each ends with an event.
    RunTools(Vec<Call>),
    /// Back off, then report [`Event::Retry`].
    Wait { pause: Duration, why: String },
    /// The run is over; the conversation says how.
    Done,
}

/// What the model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Answer,
    /// A summary of the conversation, without tools (compaction).
    Summary,
}

/// The source of message ids and times, so that the state machine itself is deterministic.
pub trait Mint {
    fn message_id(&mut self) -> String;
    fn now(&mut self) -> i64;
}

/// The state of one run.
pub struct Turn<M> {
    messages: Vec<Message>,
    session: String,
    agent: String,
    limits: Limits,
    price: Option<Price>,
    mint: M,
    steps: u32,
    failures: u32,
    /// The index of the answer that is being streamed. Only its empty beginning is on disk.
    writing: Option<usize>,
    /// The bytes of that answer so far.
    written: usize,
    /// The id of an answer that was asked for before a crash and never came; the next one takes it over.
    abandoned: Option<String>,
    /// Calls that were given to the driver and have no result yet.
    handed_out: HashSet<String>,
    purpose: Purpose,
    over: bool,
}

impl<M: Mint> Turn<M> {
    /// A run over a saved conversation, which ends with a new prompt or wherever a crash left it.
    pub fn new(
        session: &str,
        agent: &str,
        messages: Vec<Message>,
        limits: Limits,
        mint: M,
    ) -> Turn<M> {
        Turn {
            messages: in_order(messages),
            session: session.to_owned(),
            agent: agent.to_owned(),
            limits,
            price: None,
            mint,
            steps: 0,
            failures: 0,
            writing: None,
            written: 0,
            abandoned: None,
            handed_out: HashSet::new(),
            purpose: Purpose::Answer,
            over: false,
        }
    }

    /// With the price of its model, if it is known.
    pub fn priced(self, price: Option<Price>) -> Turn<M> {
        Turn { price, ..self }
    }

    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn message(&self, id: &str) -> Option<&Message> {
        self.messages.iter().rev().find(|message| message.info.id == id)
    }

    /// The messages before the answer that is being streamed: what the model is to answer.
    pub fn asked(&self) -> &[Message] {
        &self.messages[..self.writing.unwrap_or(self.messages.len())]
    }

    /// The transition function. Events that come after the end have no effect.
    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Begin => self.begin(),
            Event::Heard(messages) => self.heard(messages),
            Event::Piece(Piece::End(finish)) => self.close(finish),
            Event::Piece(piece) => self.add(piece),
            Event::ModelFailed(error) => self.model_failed(error),
            Event::Retry => self.ask(),
            Event::Started { call } => self.set_call(&call, |state| {
                state.status = CallStatus::Running;
            }),
            Event::ToolEnded { call, result } => self.tool_ended(&call, result),
            Event::Refused { call, what } => self.refused(&call, &what),
            Event::Cancel => self.cancel(),
        }
    }

    /// Decides from the saved conversation what comes next.
    fn begin(&mut self) -> Vec<Effect> {
        let mut effects = self.give_up_unanswered();
        let session = self.session.clone();
        let Some(last) = self.messages.last() else { return self.done() };
        let (is_user, is_summary) = (last.info.role == Role::User, last.is_summary());
        let answer = self.answer_mut();
        let wants_calls = answer.is_some_and(|answer| {
            answer.info.finish == Some(Finish::ToolCalls) && answer.info.error.is_none()
        });
        // A forked session begins with a copy of another's messages. Open calls in it are the original's
        // and must not be run twice.
        let is_own = self.answer_mut().is_some_and(|answer| answer.info.session == session);
        if wants_calls && is_own {
            effects.extend(self.cut_running());
        } else if wants_calls {
            effects.extend(self.settle_calls(NOT_OURS));
        }
        effects.extend(match (wants_calls, is_user, is_summary) {
            (true, _, _) => self.after_tools(),
            (false, true, _) => self.next_step(),
            (false, false, true) => self.go_on_after_summary(),
            (false, false, false) => self.done(),
        });
        effects
    }

    /// Deals with an answer that was asked for before a crash and never came. If it is the last message,
    /// it is asked for again under the same id; if something was said after it, it is marked as failed.
    fn give_up_unanswered(&mut self) -> Vec<Effect> {
        let now = self.mint.now();
        let last = self.messages.len().saturating_sub(1);
        let Some(at) = self.answer_index() else { return Vec::new() };
        let info = &mut self.messages[at].info;
        // Any of these means that the answer came, or failed for good.
        if info.finish.is_some() || info.error.is_some() || info.time.completed.is_some() {
            return Vec::new();
        }
        if at == last {
            self.abandoned = self.messages.pop().map(|message| message.info.id);
            return Vec::new();
        }
        info.error = Some(Failure::new(FailureName::Interrupted, "interrupted by a restart"));
        info.time.completed = Some(now);
        vec![Effect::Save(info.id.clone())]
    }

    /// Marks calls that were running when the daemon died as interrupted. They may have done a part of
    /// their work, so they are not run again; the model decides.
    fn cut_running(&mut self) -> Vec<Effect> {
        let Some(answer) = self.answer_mut() else { return Vec::new() };
        let id = answer.info.id.clone();
        let mut effects = Vec::new();
        for (part, state) in tool_states(answer) {
            if state.status == CallStatus::Running {
                state.fail(INTERRUPTED);
                effects.push(Effect::SaveCall { message: id.clone(), part });
            }
        }
        effects
    }

    /// Goes on to the next answer, within the limits. New messages are fetched first, so that the answer
    /// sees them.
    fn next_step(&mut self) -> Vec<Effect> {
        if self.steps >= self.limits.steps {
            let why = format!("turn limit reached: {} answers of the model", self.limits.steps);
            return self.fail(FailureName::TurnLimit, &why);
        }
        // Checked before every answer, not before every message: tool outputs add up in between.
        let bytes: usize = self.messages.iter().map(size).sum();
        if bytes > self.limits.transcript_bytes {
            let most = self.limits.transcript_bytes;
            let why = format!(
                "the conversation is longer than {most} bytes (`agent.transcript_bytes`); go on in \
                 a new task"
            );
            return self.fail(FailureName::CutOff, &why);
        }
        vec![Effect::Hear]
    }

    /// Asks for the next answer, or for a summary if the conversation has become too long for the model.
    fn heard(&mut self, messages: Vec<Message>) -> Vec<Effect> {
        for message in messages {
            // Every saved user message is reported, also those that we added ourselves.
            if self.message(&message.info.id).is_none() {
                self.messages.push(message);
            }
        }
        let is_marker = |part: &Part| matches!(part, Part::Compaction { .. });
        let marked = self.messages.last().is_some_and(|last| last.parts.iter().any(is_marker));
        if marked {
            // The compaction was requested before a crash, and its summary never came.
            self.purpose = Purpose::Summary;
        } else if self.last_request_tokens() >= self.limits.compact_at
            && self.purpose == Purpose::Answer
        {
            return self.compact();
        }
        self.ask()
    }

    /// Saves the empty answer, then asks the model. A retry uses the same message.
    fn ask(&mut self) -> Vec<Effect> {
        self.written = 0;
        let at = match self.writing {
            Some(at) => at,
            None => self.push_answer(),
        };
        self.writing = Some(at);
        let id = self.messages[at].info.id.clone();
        vec![Effect::Save(id), Effect::AskModel(self.purpose)]
    }

    /// Starts a compaction: a marker with the request for a summary.
    fn compact(&mut self) -> Vec<Effect> {
        self.purpose = Purpose::Summary;
        let marker = self.user(vec![
            Part::Compaction { auto: true },
            Part::Text { id: String::new(), text: COMPACTION_PROMPT.into(), synthetic: true },
        ]);
        let mut effects = vec![marker];
        effects.extend(self.ask());
        effects
    }

    /// Has the model go on after a compaction, with a prompt of our own.
    fn go_on_after_summary(&mut self) -> Vec<Effect> {
        self.purpose = Purpose::Answer;
        let go_on =
            self.user(vec![Part::Text { id: String::new(), text: GO_ON.into(), synthetic: true }]);
        // Messages may have come while the summary was written.
        vec![go_on, Effect::Hear]
    }

    /// Adds a piece to the answer, as far as it fits. Nothing is saved before the answer is complete.
    fn add(&mut self, piece: Piece) -> Vec<Effect> {
        let (most, price) = (self.limits.answer_bytes, self.price);
        let room = most.saturating_sub(self.written);
        let Some(message) = self.writing.map(|at| &mut self.messages[at]) else {
            return Vec::new();
        };
        let length = match piece {
            Piece::Text(text) => {
                let kept = head(&text, room);
                match message.parts.last_mut() {
                    Some(Part::Text { text: said, .. }) => said.push_str(kept),
                    _ => message.parts.push(Part::Text {
                        id: String::new(),
                        text: kept.to_owned(),
                        synthetic: false,
                    }),
                }
                text.len()
            }
            Piece::Thought(text) => {
                let kept = head(&text, room);
                match message.parts.last_mut() {
                    Some(Part::Reasoning { text: thought, seal: None }) => thought.push_str(kept),
                    _ => message.parts.push(Part::Reasoning { text: kept.to_owned(), seal: None }),
                }
                text.len()
            }
            Piece::Seal(sealed) => {
                let length = sealed.data.len();
                match message.parts.last_mut() {
                    Some(Part::Reasoning { seal: seal @ None, .. }) => *seal = Some(sealed),
                    _ => message
                        .parts
                        .push(Part::Reasoning { text: String::new(), seal: Some(sealed) }),
                }
                length
            }
            Piece::Call(Call { id, name, arguments }) => {
                // Kept whole even beyond the limit: half of the arguments would be another call. The
                // run then fails below, and `fail` drops the call.
                let length = name.len() + json_length(&arguments);
                let state = ToolState::pending(arguments);
                message.parts.push(Part::Tool { call: id, tool: name, state });
                length
            }
            Piece::Usage(tokens) => {
                message.info.tokens = Some(tokens);
                message.info.cost = price.map(|price| price.of(tokens));
                0
            }
            Piece::Cost(cost) => {
                // A price in the configuration is what the user wants it counted by.
                message.info.cost = message.info.cost.or(Some(cost));
                0
            }
            Piece::End(_) => 0,
        };
        self.written += length;
        if self.written > most {
            let why = format!(
                "the model's answer is longer than {most} bytes (`agent.answer_bytes`); what came \
                 before is kept"
            );
            return self.fail(FailureName::CutOff, &why);
        }
        Vec::new()
    }

    /// The answer is complete. If it has calls, they are made, whatever finish reason the provider gave,
    /// except for calls that were cut off (their arguments are not JSON) or filtered.
    fn close(&mut self, finish: Finish) -> Vec<Effect> {
        let Some(at) = self.writing.take() else { return Vec::new() };
        let now = self.mint.now();
        // Retries are counted per answer; a summary counts as a step, too.
        self.failures = 0;
        self.steps += 1;
        let summary = self.purpose == Purpose::Summary;
        let message = &mut self.messages[at];
        let calls = message.tool_states().count();
        let all_whole = message.tool_states().all(|state| state.input.is_object());
        let makes_calls = calls > 0
            && match finish {
                Finish::Stop | Finish::ToolCalls | Finish::Other(_) => true,
                Finish::Length => all_whole,
                Finish::ContentFilter => false,
            };
        // An empty summary would stand for the whole conversation and lose it.
        if summary && message.text().is_empty() {
            self.writing = Some(at);
            return self.fail(
                FailureName::CutOff,
                "the model returned an empty summary of the conversation",
            );
        }
        message.info.finish = Some(match (makes_calls, finish) {
            (true, _) => Finish::ToolCalls,
            (false, Finish::ToolCalls) => Finish::Stop,
            (false, other) => other,
        });
        message.info.time.completed = Some(now);
        message.info.summary = summary.then_some(Value::Bool(true));
        let mut effects = vec![Effect::Save(message.info.id.clone())];
        effects.extend(match (summary, makes_calls) {
            (true, _) => self.go_on_after_summary(),
            (false, true) => self.after_tools(),
            (false, false) => self.done(),
        });
        effects
    }

    /// Retries with exponential back-off (or when the server asks for it), or fails the run.
    fn model_failed(&mut self, error: model::Error) -> Vec<Effect> {
        if error.is_worth_a_retry() && self.failures < self.limits.retries {
            // 0.5 s, 1 s, 2 s, … up to 32 s.
            let pause = match &error {
                model::Error::Busy { retry_after: Some(pause), .. } => (*pause).min(LONGEST_PAUSE),
                _ => PAUSES.pause(self.failures),
            };
            self.failures += 1;
            // The next attempt starts the answer over; half of this one must not stay in front of it.
            if let Some(at) = self.writing {
                self.messages[at].parts.clear();
            }
            return vec![Effect::Wait { pause, why: error.to_string() }];
        }
        let name = match error {
            model::Error::TooLong(_) => FailureName::CutOff,
            model::Error::Unusable(_)
            | model::Error::KeysUnreadable(_)
            | model::Error::Lost(_)
            | model::Error::NoKey { .. }
            | model::Error::Refused { .. }
            | model::Error::Busy { .. }
            | model::Error::Unreachable(_)
            | model::Error::Truncated
            | model::Error::Silent(_) => FailureName::Api,
        };
        self.fail(name, &error.to_string())
    }

    /// Records the result of a call, and goes on when it was the last.
    fn tool_ended(&mut self, call: &str, result: Result<String, String>) -> Vec<Effect> {
        self.handed_out.remove(call);
        let mut effects = self.set_call(call, |state| match result {
            Ok(output) => {
                state.status = CallStatus::Completed;
                state.output = Some(output);
            }
            Err(error) => state.fail(error),
        });
        // Empty for a late result of a call that was settled otherwise.
        if !effects.is_empty() {
            effects.extend(self.after_tools());
        }
        effects
    }

    /// Starts open calls up to the limit of parallel ones; when all have results, goes on to the next
    /// answer.
    fn after_tools(&mut self) -> Vec<Effect> {
        let waiting = self.waiting_calls();
        if waiting.is_empty() {
            return self.next_step();
        }
        // Calls beyond the limit stay pending; each result that comes in makes room for the next.
        let room = self.limits.parallel_calls.saturating_sub(self.handed_out.len());
        let mut calls = waiting;
        calls.retain(|call| !self.handed_out.contains(&call.id));
        calls.truncate(room);
        if calls.is_empty() {
            return Vec::new();
        }
        self.handed_out.extend(calls.iter().map(|call| call.id.clone()));
        vec![Effect::RunTools(calls)]
    }

    /// Ends the run because a person refused a call. All open calls are settled together with the refusal
    /// and saved in one write: otherwise a crash in between would leave open calls, and the run would be
    /// resumed although a person said no.
    fn refused(&mut self, call: &str, what: &str) -> Vec<Effect> {
        let Some(answer) = self.answer_mut() else { return self.done() };
        let is_refused = |id: &str, state: &ToolState| id == call && state.status.is_open();
        // A late refusal of a call that already has a result changes nothing.
        if !tool_calls(answer).any(|(_, id, state)| is_refused(id, state)) {
            return Vec::new();
        }
        for (_, id, state) in tool_calls(answer).filter(|(_, _, state)| state.status.is_open()) {
            if id == call {
                state.fail(format!("refused: {what}"));
            } else if state.status == CallStatus::Running {
                state.fail(CUT_BY_REFUSAL);
            } else {
                state.fail(NOT_RUN);
            }
        }
        answer.info.error = Some(Failure::new(FailureName::Refused, what));
        let id = answer.info.id.clone();
        let mut effects = vec![Effect::Save(id)];
        effects.extend(self.done());
        effects
    }

    fn cancel(&mut self) -> Vec<Effect> {
        self.stop(FailureName::Aborted, "aborted", "aborted")
    }

    /// Ends a run that cannot go on, from outside of the loop.
    pub fn interrupt(&mut self, why: &str) -> Vec<Effect> {
        self.end_from_outside(FailureName::Interrupted, why, INTERRUPTED)
    }

    /// Ends a run that was aborted while it was suspended.
    pub fn abort(&mut self) -> Vec<Effect> {
        self.end_from_outside(FailureName::Aborted, "aborted", "aborted")
    }

    /// Ends the run unless it is already complete: an answer that is there is kept.
    fn end_from_outside(&mut self, name: FailureName, error: &str, of_calls: &str) -> Vec<Effect> {
        let mut effects = self.give_up_unanswered();
        // Complete: the last message is an answer with an error, or with neither open calls nor an
        // announcement of some. A prompt without an answer is not.
        let is_answered = self.messages.last().is_none_or(|last| {
            let open = last.tool_states().any(|state| state.status.is_open());
            let wants_calls = last.info.finish == Some(Finish::ToolCalls);
            last.info.role == Role::Assistant
                && self.abandoned.is_none()
                && (last.info.error.is_some() || !open && !wants_calls)
        });
        if !is_answered {
            effects.extend(self.stop(name, error, of_calls));
        }
        effects
    }

    /// Settles all open calls with the error `of_calls` and ends the run with `error`.
    fn stop(&mut self, name: FailureName, error: &str, of_calls: &str) -> Vec<Effect> {
        let mut effects = self.settle_calls(of_calls);
        effects.extend(self.fail(name, error));
        effects
    }

    /// Gives all open calls this error as their result, in one write.
    fn settle_calls(&mut self, error: &str) -> Vec<Effect> {
        let Some(answer) = self.answer_mut() else { return Vec::new() };
        let mut cut = false;
        let open = tool_states(answer).filter(|(_, state)| state.status.is_open());
        for (_, state) in open {
            state.fail(error);
            cut = true;
        }
        let saved = cut.then(|| Effect::Save(answer.info.id.clone()));
        saved.into_iter().collect()
    }

    /// Ends the run with an error, keeping the text so far. Calls of an incomplete answer are dropped:
    /// they were never made, and must not look as if they could be.
    fn fail(&mut self, name: FailureName, error: &str) -> Vec<Effect> {
        let now = self.mint.now();
        let at = match self.writing.take() {
            Some(at) => at,
            None => self.push_answer(),
        };
        let message = &mut self.messages[at];
        message.parts.retain(|part| !matches!(part, Part::Tool { .. }));
        message.info.error = Some(Failure::new(name, error));
        message.info.time.completed = Some(now);
        let mut effects = vec![Effect::Save(message.info.id.clone())];
        effects.extend(self.done());
        effects
    }

    fn done(&mut self) -> Vec<Effect> {
        self.over = true;
        vec![Effect::Done]
    }

    /// Changes the state of an open call and saves it; no effect if the call already has a result.
    fn set_call(&mut self, call: &str, set: impl FnOnce(&mut ToolState)) -> Vec<Effect> {
        let Some(answer) = self.answer_mut() else { return Vec::new() };
        let message = answer.info.id.clone();
        let found = tool_calls(answer).find(|(_, id, state)| *id == call && state.status.is_open());
        let Some((part, _, state)) = found else { return Vec::new() };
        set(state);
        vec![Effect::SaveCall { message, part }]
    }

    /// The open calls of the newest answer.
    fn waiting_calls(&self) -> Vec<Call> {
        let answer = self.answer_index().map(|at| &self.messages[at]);
        let parts = answer.map(|message| message.parts.as_slice());
        let calls = parts.unwrap_or_default().iter().filter_map(|part| match part {
            Part::Tool { call, tool, state } if state.status.is_open() => {
                Some(Call { id: call.clone(), name: tool.clone(), arguments: state.input.clone() })
            }
            Part::Tool { .. }
            | Part::Text { .. }
            | Part::Reasoning { .. }
            | Part::Compaction { .. }
            | Part::Other => None,
        });
        calls.collect()
    }

    /// The newest answer; user messages may come after it.
    fn answer_index(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.info.role == Role::Assistant)
    }

    fn answer_mut(&mut self) -> Option<&mut Message> {
        self.answer_index().map(|at| &mut self.messages[at])
    }

    /// The size of the conversation in tokens, as the last answer reported it. 0 right after a summary,
    /// whose own tokens are those of the conversation before it.
    fn last_request_tokens(&self) -> u64 {
        match self.answer_index().map(|at| &self.messages[at]) {
            Some(message) if !message.is_summary() => message
                .info
                .tokens
                .map_or(0, |tokens| tokens.prompt().saturating_add(tokens.output)),
            Some(_) | None => 0,
        }
    }

    /// Appends a user message of our own.
    fn user(&mut self, parts: Vec<Part>) -> Effect {
        let mut message = self.blank();
        message.info.role = Role::User;
        message.info.parent = None;
        message.parts = parts;
        let id = message.info.id.clone();
        self.messages.push(message);
        Effect::Save(id)
    }

    /// Appends an empty answer, under the id of one that never came if there is one. Returns its index.
    fn push_answer(&mut self) -> usize {
        let mut answer = self.blank();
        if let Some(id) = self.abandoned.take() {
            answer.info.id = id;
        }
        self.messages.push(answer);
        self.messages.len() - 1
    }

    fn blank(&mut self) -> Message {
        let id = self.mint.message_id();
        let info = Info::blank(id, self.session.clone(), Role::Assistant, self.mint.now());
        let parent = self.messages.last().map(|message| message.info.id.clone());
        let info = Info { parent, agent: Some(self.agent.clone()), ..info };
        Message { info, parts: Vec::new() }
    }
}

/// Restores the logical order of saved messages. An answer names as its parent the last message that it
/// has seen. A user message that was saved between the two (it came in before the answer's place was on
/// disk) is moved behind the answer, because it still has to be answered.
fn in_order(mut messages: Vec<Message>) -> Vec<Message> {
    for at in 1..messages.len() {
        let Info { role: Role::Assistant, parent: Some(parent), .. } = &messages[at].info else {
            continue;
        };
        let known = messages[..at].iter().rposition(|message| message.info.id == *parent);
        let Some(known) = known else { continue };
        let unseen = &messages[known + 1..at];
        if unseen.iter().all(|message| message.info.role == Role::User) {
            messages[known + 1..=at].rotate_right(1);
        }
    }
    messages
}

/// What the model is shown: everything from the newest summary on.
pub fn visible(messages: &[Message]) -> &[Message] {
    let newest = messages.iter().rposition(Message::is_summary).unwrap_or(0);
    &messages[newest..]
}

fn tool_calls(message: &mut Message) -> impl Iterator<Item = (usize, &str, &mut ToolState)> {
    message.parts.iter_mut().enumerate().filter_map(|(at, part)| match part {
        Part::Tool { call, state, .. } => Some((at, call.as_str(), state)),
        Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => None,
    })
}

fn tool_states(message: &mut Message) -> impl Iterator<Item = (usize, &mut ToolState)> {
    tool_calls(message).map(|(at, _, state)| (at, state))
}

/// The longest prefix of at most this many bytes that does not split a character.
fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

fn json_length(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    }
}

/// Roughly what a message takes on disk.
fn size(message: &Message) -> usize {
    let parts = message.parts.iter().map(|part| match part {
        Part::Text { text, .. } => text.len(),
        Part::Reasoning { text, seal } => {
            text.len() + seal.as_ref().map_or(0, |seal| seal.data.len())
        }
        Part::Tool { state, .. } => {
            let texts = [&state.output, &state.error];
            let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
            texts + input_size(&state.input)
        }
        Part::Compaction { .. } | Part::Other => 0,
    });
    parts.sum()
}

fn input_size(input: &Value) -> usize {
    match input {
        Value::String(text) => text.len(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + input_size(value)).sum()
        }
        Value::Array(values) => values.iter().map(input_size).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}
