//! Wire formats: encoding a request and decoding the events of an answer, one file per format. Pure;
//! transport, bounds and failures are shared.
//!
//! Whatever a transcript contains, what is sent is a conversation that servers accept: turns alternate,
//! every call is followed by its result, and names and ids have allowed characters. A transcript that was
//! refused once would otherwise be refused for ever.

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
use super::failure::ErrorMapper;
use crate::agent::model::provider::Wire;
use crate::agent::model::{Effort, Error, Piece, Request};
use crate::transcript::{CallStatus, Message, Part, Role, Seal, ToolState};

/// The longest name or id that every format accepts; one longer name makes the whole request fail.
const NAME_CHARACTERS: usize = 64;

/// What one event brings.
#[derive(Debug, PartialEq)]
pub(super) enum StreamEvent {
    Pieces(Vec<Piece>),
    /// The end of the answer.
    Done,
}

/// Decodes the events of one answer.
pub(super) struct Decoder {
    draft: Draft,
    wire: Wire,
    /// The signature of the current thought, for formats that send it after the thought (Anthropic).
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

    /// The request body. `by` is the `provider/model` that the request is for: it gets back its own seals
    /// and no others, which it would refuse.
    pub(super) fn body(self, request: &Request, by: &str, effort: Effort) -> Value {
        let mut body = match self {
            Wire::OpenAi => openai::body(request),
            Wire::Responses => responses::body(request, by),
            Wire::Anthropic => anthropic::body(request, by),
            Wire::Gemini => gemini::body(request, by),
        };
        effort::set(self, &mut body, &request.model, effort);
        body
    }
}

impl Decoder {
    pub(super) fn new(wire: Wire, errors: ErrorMapper, by: &str, most: usize) -> Decoder {
        Decoder { draft: Draft::new(errors, by, most), wire, signature: String::new() }
    }

    pub(super) fn set_retry_after(&mut self, pause: Option<Duration>) {
        self.draft.set_retry_after(pause);
    }

    /// How many bytes of the answer are held back until its end.
    pub(super) fn held(&self) -> usize {
        self.draft.held()
    }

    /// Whether the finish reason has come, and the answer is complete.
    pub(super) fn has_finished(&self) -> bool {
        self.draft.finish.is_some()
    }

    /// Decodes the data of one event.
    pub(super) fn event(&mut self, data: &[u8]) -> Result<StreamEvent, Error> {
        let data = std::str::from_utf8(data).map_err(|_| ErrorMapper::unreadable())?.trim();
        if data == "[DONE]" {
            return Ok(StreamEvent::Done);
        }
        if data.is_empty() {
            return Ok(StreamEvent::Pieces(Vec::new()));
        }
        match self.wire {
            Wire::OpenAi => openai::event(&mut self.draft, data),
            Wire::Responses => responses::event(&mut self.draft, data),
            Wire::Anthropic => anthropic::event(&mut self.draft, &mut self.signature, data),
            Wire::Gemini => gemini::event(&mut self.draft, data),
        }
    }

    /// The pieces that the end of a stream brings: calls, usage and the finish reason.
    pub(super) fn ending(self, messages: &[Message]) -> Result<Vec<Piece>, Error> {
        self.draft.ending(messages)
    }
}

/// The most JSON values in one event. Usually there are a few; the arguments of a call may have many.
const MOST_IN_EVENT: usize = 200_000;

/// Parses an event, which must be an object.
fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, Error> {
    // serde also reads structs from arrays, by position; no server means that.
    if !data.starts_with('{') {
        return Err(ErrorMapper::unreadable());
    }
    // Small values take many times their bytes in memory, so they are counted before they are allocated.
    if super::draft::measure(data).0 > MOST_IN_EVENT {
        return Err(ErrorMapper::unreadable());
    }
    // An event that ends in the middle was cut off with the stream, and is worth a retry.
    serde_json::from_str(data).map_err(|error| match error.is_eof() {
        true => Error::Truncated,
        false => ErrorMapper::unreadable(),
    })
}

/// One turn of the conversation as it is sent.
enum ChatTurn<'a> {
    User(String),
    Answer(Answer<'a>),
}

/// An answer of the model.
struct Answer<'a> {
    /// All its text.
    text: String,
    /// The same text and everything else, in order.
    parts: Vec<AnswerPart<'a>>,
}

enum AnswerPart<'a> {
    Text(&'a str),
    /// A thought with its seal, made by the model that the request is for.
    Thought(&'a str, &'a Seal),
    Call(CallWithResult<'a>),
}

/// A call and its result.
struct CallWithResult<'a> {
    id: &'a str,
    name: String,
    /// The arguments, always an object.
    input: Value,
    result: &'a str,
    has_failed: bool,
}

impl<'a> Answer<'a> {
    fn calls(&self) -> impl Iterator<Item = &CallWithResult<'a>> {
        self.parts.iter().filter_map(|part| match part {
            AnswerPart::Call(call) => Some(call),
            AnswerPart::Text(_) | AnswerPart::Thought(..) => None,
        })
    }
}

/// The messages as alternating turns: neighbours of one role are merged, because the chat templates of
/// local models insist on alternation. A summary counts as the user's words.
fn conversation<'a>(messages: &'a [Message], by: &str) -> Vec<ChatTurn<'a>> {
    let mut turns: Vec<ChatTurn<'a>> = Vec::new();
    for message in since_summary(messages) {
        let text = message.text();
        if message.info.role == Role::User || message.is_summary() {
            match turns.last_mut() {
                _ if text.trim().is_empty() => {}
                Some(ChatTurn::User(before)) => append(before, &text),
                Some(ChatTurn::Answer(_)) | None => turns.push(ChatTurn::User(text)),
            }
            continue;
        }
        let answer = Answer { text, parts: answer_parts(message, by) };
        let has_calls = answer.calls().next().is_some();
        match turns.last_mut() {
            _ if !has_calls && answer.text.trim().is_empty() => {}
            // Not merged with calls: their results have to come right after the answer that made them.
            Some(ChatTurn::Answer(before)) if !has_calls && before.calls().next().is_none() => {
                append(&mut before.text, &answer.text);
                before.parts.extend(answer.parts);
            }
            Some(_) | None => turns.push(ChatTurn::Answer(answer)),
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

/// The parts of an answer that are sent. Thoughts of other models are left out.
fn answer_parts<'a>(message: &'a Message, by: &str) -> Vec<AnswerPart<'a>> {
    let mut parts: Vec<AnswerPart<'a>> = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text { text, .. } if !text.trim().is_empty() => {
                parts.push(AnswerPart::Text(text));
            }
            // A thought without a seal of this model cannot be sent back: providers refuse unsigned ones.
            Part::Reasoning { text, seal: Some(seal) } if seal.by == by => {
                parts.push(AnswerPart::Thought(text, seal));
            }
            Part::Tool { call, tool, state } => {
                let said = CallWithResult {
                    id: call,
                    name: sendable(tool),
                    input: object(&state.input),
                    result: result(state),
                    has_failed: state.status != CallStatus::Completed,
                };
                // Some hosts append a call again with every change of its state; the newest one counts.
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

/// The result that the model is shown. A call without one counts as interrupted: servers refuse a call
/// without a result.
fn result(state: &ToolState) -> &str {
    match state.status {
        CallStatus::Completed => state.output.as_deref().unwrap_or_default(),
        CallStatus::Error => state.error.as_deref().unwrap_or("failed"),
        CallStatus::Pending | CallStatus::Running | CallStatus::Other(_) => "interrupted",
    }
}

/// A name or id with allowed characters only. Models call tools that do not exist, under any name, and ids
/// come from other servers; in the transcript they would make every later request fail.
fn sendable(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let letters = name.chars().map(|letter| if fits(letter) { letter } else { '_' });
    let name = letters.take(NAME_CHARACTERS).collect::<String>();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Arguments as an object, which servers insist on.
fn object(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        Value::Null => json!({}),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            json!({ "malformed": input })
        }
    }
}
