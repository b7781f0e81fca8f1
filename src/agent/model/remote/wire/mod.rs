//! Wire formats: how a request is written in each, and what its events say. Pure. Transport, bounds
//! and failures are shared; a format is one file here.
//!
//! Whatever a transcript holds, what is sent is a conversation that servers take: turns alternate, and
//! every call has its answer right behind it.

mod anthropic;
mod effort;
mod gemini;
mod openai;
mod responses;

use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::draft::Draft;
use super::failure::Teller;
use crate::agent::model::provider::Wire;
use crate::agent::model::{Effort, Error, Piece, Request};
use crate::transcript::{CallStatus, Message, Part, Role, Seal, ToolState};

/// Every format refuses a whole conversation for one longer name or id.
const NAME_CHARACTERS: usize = 64;

/// What one event says.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Pieces(Vec<Piece>),
    /// The server says that this was all.
    Done,
}

/// Reads the events of one answer.
pub(super) struct Decoder {
    draft: Draft,
    wire: Wire,
    /// Of a format whose thoughts are followed by their signature.
    signature: String,
}

impl Wire {
    pub(super) fn url(self, base: &Url, model: &str) -> Option<Url> {
        match self {
            Wire::OpenAi => openai::url(base),
            Wire::Responses => responses::url(base),
            Wire::Anthropic => anthropic::url(base),
            Wire::Gemini => gemini::url(base, model),
        }
    }

    pub(super) fn headers(self, key: &str) -> Vec<(HeaderName, String)> {
        match self {
            Wire::OpenAi | Wire::Responses => openai::headers(key),
            Wire::Anthropic => anthropic::headers(key),
            Wire::Gemini => gemini::headers(key),
        }
    }

    /// `by` is the `provider/model` that is asked: it gets the seals back that it made.
    pub(super) fn body(self, request: &Request, by: &str, effort: Option<Effort>) -> Value {
        let mut body = match self {
            Wire::OpenAi => openai::body(request),
            Wire::Responses => responses::body(request, by),
            Wire::Anthropic => anthropic::body(request, by),
            Wire::Gemini => gemini::body(request, by),
        };
        if let Some(effort) = effort {
            effort::set(self, &mut body, &request.model, effort);
        }
        body
    }
}

impl Decoder {
    pub(super) fn new(wire: Wire, teller: Teller, by: &str, most: usize) -> Decoder {
        Decoder { draft: Draft::new(teller, by, most), wire, signature: String::new() }
    }

    pub(super) fn set_retry_after(&mut self, pause: Option<Duration>) {
        self.draft.set_retry_after(pause);
    }

    /// How much of the answer is held back until its end.
    pub(super) fn held(&self) -> usize {
        self.draft.held()
    }

    pub(super) fn has_finished(&self) -> bool {
        self.draft.finish.is_some()
    }

    pub(super) fn event(&mut self, data: &[u8]) -> Result<Heard, Error> {
        let data = std::str::from_utf8(data).map_err(|_| Teller::unreadable())?.trim();
        if data == "[DONE]" {
            return Ok(Heard::Done);
        }
        if data.is_empty() {
            return Ok(Heard::Pieces(Vec::new()));
        }
        match self.wire {
            Wire::OpenAi => openai::event(&mut self.draft, data),
            Wire::Responses => responses::event(&mut self.draft, data),
            Wire::Anthropic => anthropic::event(&mut self.draft, &mut self.signature, data),
            Wire::Gemini => gemini::event(&mut self.draft, data),
        }
    }

    /// What the end of a stream still brings: calls, usage and why it ended.
    pub(super) fn ending(self, messages: &[Message]) -> Result<Vec<Piece>, Error> {
        self.draft.ending(messages)
    }
}

/// Values in one event; an answer has a few, and a call's arguments may have more.
const MOST_IN_EVENT: usize = 200_000;

fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, Error> {
    // Types are read from lists, too; no server means that.
    if !data.starts_with('{') {
        return Err(Teller::unreadable());
    }
    // Small values in a list take many times their bytes: they are counted before they are made.
    if super::draft::measure(data).0 > MOST_IN_EVENT {
        return Err(Teller::unreadable());
    }
    serde_json::from_str(data).map_err(|error| match error.is_eof() {
        true => Error::Truncated,
        false => Teller::unreadable(),
    })
}

/// One turn of a conversation.
enum Said<'a> {
    User(String),
    Answer(Answer<'a>),
}

struct Answer<'a> {
    text: String,
    /// The same and everything else, in order.
    parts: Vec<AnswerPart<'a>>,
}

enum AnswerPart<'a> {
    Text(&'a str),
    /// A thought, and a seal of the model that is asked.
    Thought(&'a str, &'a Seal),
    Call(SaidCall<'a>),
}

/// A call and its result.
struct SaidCall<'a> {
    id: &'a str,
    name: String,
    /// An object.
    input: Value,
    result: &'a str,
    has_failed: bool,
}

impl<'a> Answer<'a> {
    fn calls(&self) -> impl Iterator<Item = &SaidCall<'a>> {
        self.parts.iter().filter_map(|part| match part {
            AnswerPart::Call(call) => Some(call),
            AnswerPart::Text(_) | AnswerPart::Thought(..) => None,
        })
    }
}

/// Templates of local models insist on turns, so neighbours of one role become one.
fn conversation<'a>(messages: &'a [Message], by: &str) -> Vec<Said<'a>> {
    let mut turns: Vec<Said<'a>> = Vec::new();
    for message in since_summary(messages) {
        let text = message.text();
        if message.info.role == Role::User || message.is_summary() {
            match turns.last_mut() {
                _ if text.trim().is_empty() => {}
                Some(Said::User(before)) => append(before, &text),
                Some(Said::Answer(_)) | None => turns.push(Said::User(text)),
            }
            continue;
        }
        let answer = Answer { text, parts: answer_parts(message, by) };
        let has_calls = answer.calls().next().is_some();
        match turns.last_mut() {
            _ if !has_calls && answer.text.trim().is_empty() => {}
            Some(Said::Answer(before)) if !has_calls && before.calls().next().is_none() => {
                append(&mut before.text, &answer.text);
                before.parts.extend(answer.parts);
            }
            Some(_) | None => turns.push(Said::Answer(answer)),
        }
    }
    turns
}

/// A summary stands for everything before it.
fn since_summary(messages: &[Message]) -> &[Message] {
    let start = messages.iter().rposition(Message::is_summary).unwrap_or(0);
    &messages[start..]
}

fn append(text: &mut String, more: &str) {
    text.push_str("\n\n");
    text.push_str(more);
}

fn answer_parts<'a>(message: &'a Message, by: &str) -> Vec<AnswerPart<'a>> {
    let mut parts: Vec<AnswerPart<'a>> = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text { text, .. } if !text.trim().is_empty() => {
                parts.push(AnswerPart::Text(text));
            }
            Part::Reasoning { text, seal: Some(seal) } if seal.by == by => {
                parts.push(AnswerPart::Thought(text, seal));
            }
            Part::Tool { call, tool, state } => {
                let said = SaidCall {
                    id: call,
                    name: sendable(tool),
                    input: object(&state.input),
                    result: result(state),
                    has_failed: state.status != CallStatus::Completed,
                };
                // Hosts may write a call down again with every change; the newest one counts.
                let earlier = parts.iter_mut().find_map(|part| match part {
                    AnswerPart::Call(earlier) if earlier.id == said.id => Some(earlier),
                    AnswerPart::Call(_) | AnswerPart::Text(_) | AnswerPart::Thought(..) => None,
                });
                match earlier {
                    Some(earlier) => {
                        (earlier.result, earlier.has_failed) = (said.result, said.has_failed);
                    }
                    None => parts.push(AnswerPart::Call(said)),
                }
            }
            Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => {}
        }
    }
    parts
}

fn result(state: &ToolState) -> &str {
    match state.status {
        CallStatus::Completed => state.output.as_deref().unwrap_or_default(),
        CallStatus::Error => state.error.as_deref().unwrap_or("failed"),
        CallStatus::Pending | CallStatus::Running | CallStatus::Other(_) => "interrupted",
    }
}

/// Models call tools that do not exist, and ids come from other servers; they must not spoil the conversation for ever.
fn sendable(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let letters = name.chars().map(|letter| if fits(letter) { letter } else { '_' });
    let name = letters.take(NAME_CHARACTERS).collect::<String>();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Servers read arguments back and expect an object.
fn object(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        Value::Null => json!({}),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            json!({ "malformed": input })
        }
    }
}
