//! OpenAI's Responses API, used without state (`store: false`): every request has the whole conversation,
//! with the model's own thoughts as encrypted items that only it can read.

use reqwest::Url;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Answer, AnswerPart, ChatTurn, StreamEvent, conversation, sendable};
use crate::agent::model::remote::draft::{CallFragment, Draft, count, text};
use crate::agent::model::{Error, Piece, Request};
use crate::agent::tools::Spec;
use crate::transcript::{Cache, Finish, SealKind, Tokens};

pub(super) fn url(base: &Url) -> Option<Url> {
    base.join("responses").ok()
}

/// The request body.
pub(super) fn body(request: &Request, by: &str) -> Value {
    let mut input = Vec::new();
    for said in conversation(&request.messages, by) {
        match said {
            ChatTurn::User(text) => input.push(message("user", "input_text", &text)),
            ChatTurn::Answer(answer) => push_answer(&mut input, &answer),
        }
    }
    // `store: false`: nothing is kept at the provider, so the whole conversation is sent every time. The
    // alternative, `previous_response_id`, would tie a run to a server that may forget it.
    let mut body = json!({
        "model": request.model,
        "input": input,
        "stream": true,
        "store": false,
    });
    if !request.system.is_empty() {
        body["instructions"] = json!(request.system);
    }
    // Without this the thoughts are kept at the provider only, and with `store: false` nowhere: the model would
    // start every step without what it thought before.
    if thinks(&request.model) {
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    body
}

/// Whether it is a reasoning model. Others refuse a request for encrypted thoughts.
fn thinks(model: &str) -> bool {
    let families = ["o1", "o3", "o4", "gpt-5", "gpt-6", "gpt-oss", "codex"];
    families.iter().any(|family| model.starts_with(family)) && !model.contains("-chat")
}

fn message(role: &str, kind: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
}

/// Appends an answer, and the results of its calls after it.
fn push_answer(input: &mut Vec<Value>, answer: &Answer<'_>) {
    // Thoughts go back only with the calls that they led to; no API asks for the others.
    if answer.calls().next().is_none() {
        return input.push(message("assistant", "output_text", &answer.text));
    }
    for part in &answer.parts {
        input.push(match part {
            AnswerPart::Text(text) => message("assistant", "output_text", text),
            AnswerPart::Thought(thought, seal) => {
                let said = json!({"type": "summary_text", "text": thought});
                let summary = if thought.is_empty() { json!([]) } else { json!([said]) };
                json!({"type": "reasoning", "summary": summary, "encrypted_content": seal.data})
            }
            AnswerPart::Call(call) => json!({
                "type": "function_call",
                "call_id": sendable(call.id),
                "name": call.name,
                "arguments": call.input.to_string(),
            }),
        });
    }
    // After all calls of the answer, not each behind its own: the model made them in parallel.
    input.extend(answer.calls().map(|call| {
        json!({"type": "function_call_output", "call_id": sendable(call.id), "output": call.result})
    }));
}

fn tool(spec: &Spec) -> Value {
    let Spec { name, description, schema } = spec;
    json!({
        "type": "function", "name": name, "description": description, "parameters": schema,
        // Strict mode refuses schemas with optional properties, which ours have.
        "strict": false,
    })
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(default)]
    output_index: Option<u64>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    item: Option<Item<'a>>,
    #[serde(borrow, default)]
    response: Option<Response<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    call_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    encrypted_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    incomplete_details: Option<IncompleteDetails<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct IncompleteDetails<'a> {
    #[serde(borrow, default)]
    reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    input_tokens: Option<f64>,
    #[serde(default)]
    input_tokens_details: Option<InputDetails>,
    #[serde(default)]
    output_tokens: Option<f64>,
    #[serde(default)]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: Option<f64>,
}

#[derive(Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: Option<f64>,
}

/// Decodes one event.
pub(super) fn event(draft: &mut Draft, data: &str) -> Result<StreamEvent, Error> {
    let event: Event<'_> = super::parse(data)?;
    let delta = || event.delta.and_then(text);
    let mut pieces = Vec::new();
    let kind = event.kind.and_then(text).unwrap_or_default();
    match kind.as_str() {
        // A refusal is streamed under a name of its own; it is the answer all the same.
        "response.output_text.delta" | "response.refusal.delta" => {
            pieces.extend(delta().map(Piece::Text));
        }
        "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
            pieces.extend(delta().map(Piece::Thought));
        }
        "response.function_call_arguments.delta" => {
            if let Some(arguments) = delta() {
                let index = event.output_index;
                draft.add_call(CallFragment { index, arguments, ..CallFragment::default() })?;
            }
        }
        "response.output_item.added" => {
            if let Some(item) = event.item {
                begin(draft, event.output_index, &item)?;
            }
        }
        "response.output_item.done" => {
            if let Some(item) = event.item {
                pieces.extend(end(draft, event.output_index, &item)?);
            }
        }
        "response.completed" | "response.incomplete" | "response.failed" => {
            return close(draft, &kind, event.response);
        }
        "error" => return Err(report(draft, event.error, data)),
        // Unknown events are skipped: providers add kinds. An error is one whatever event it comes with.
        _ => {
            if let Some(error) = event.error.filter(|error| error.get() != "null") {
                return Err(draft.reported(error));
            }
        }
    }
    Ok(StreamEvent::Pieces(pieces))
}

fn is_call(item: &Item<'_>) -> bool {
    item.kind.and_then(text).as_deref() == Some("function_call")
}

fn begin(draft: &mut Draft, index: Option<u64>, item: &Item<'_>) -> Result<(), Error> {
    if !is_call(item) {
        return Ok(());
    }
    let id = item.call_id.and_then(text).unwrap_or_default();
    let name = item.name.and_then(text).unwrap_or_default();
    draft.add_call(CallFragment { index, id, name, ..CallFragment::default() })
}

/// The end of an item, which repeats it as a whole. Its arguments are used only if no fragments came
/// before, as with some servers.
fn end(draft: &mut Draft, index: Option<u64>, item: &Item<'_>) -> Result<Option<Piece>, Error> {
    if is_call(item) && !index.is_some_and(|index| draft.has_arguments(index)) {
        begin(draft, index, item)?;
        let arguments = item.arguments.and_then(text).unwrap_or_default();
        draft.add_call(CallFragment { index, arguments, ..CallFragment::default() })?;
    }
    let encrypted = item.encrypted_content.and_then(text);
    Ok(encrypted.map(|data| draft.seal(SealKind::Encrypted, data)))
}

/// The end of the response, with its status and usage.
fn close(
    draft: &mut Draft,
    kind: &str,
    response: Option<Response<'_>>,
) -> Result<StreamEvent, Error> {
    let Some(response) = response else { return Ok(StreamEvent::Pieces(Vec::new())) };
    if let Some(error) = response.error.filter(|error| error.get() != "null") {
        return Err(draft.reported(error));
    }
    draft.usage = response.usage.map(|usage| usage.tokens()).or(draft.usage);
    let reason = response.incomplete_details.and_then(|details| details.reason).and_then(text);
    draft.finish = Some(match reason.as_deref() {
        // Failed without an error: nothing is known but that the answer is incomplete.
        None if kind == "response.failed" => return Err(Error::Truncated),
        None if kind == "response.incomplete" => Finish::Length,
        None => Finish::Stop,
        Some("max_output_tokens") => Finish::Length,
        Some("content_filter") => Finish::ContentFilter,
        Some(other) => Finish::Other(other.to_owned()),
    });
    Ok(StreamEvent::Done)
}

/// The error of an `error` event, which is the event itself or a field of it.
fn report(draft: &Draft, within: Option<&RawValue>, data: &str) -> Error {
    let whole = serde_json::from_str::<&RawValue>(data).ok();
    match within.filter(|error| error.get() != "null").or(whole) {
        Some(error) => draft.reported(error),
        None => Error::Truncated,
    }
}

impl Usage {
    /// OpenAI counts thoughts as output and cached tokens as input; we count them separately.
    fn tokens(&self) -> Tokens {
        let details = self.output_tokens_details.as_ref();
        let reasoning = count(details.and_then(|details| details.reasoning_tokens));
        let details = self.input_tokens_details.as_ref();
        let input = count(self.input_tokens);
        let read = count(details.and_then(|details| details.cached_tokens)).min(input);
        Tokens {
            input: input - read,
            output: count(self.output_tokens).saturating_sub(reasoning),
            reasoning,
            cache: Cache { read, write: 0 },
        }
    }
}
