//! Anthropic's Messages API. Its quirks: thoughts are signed, and an answer with tool calls is refused if
//! it comes back without them; `max_tokens` is required; earlier calls need tool definitions even in a
//! request without tools. Prompt cache breakpoints are set at two places: after the system prompt, which
//! all agents of a kind share, and after the newest message, for the next step.

use std::collections::BTreeSet;

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Answer, AnswerPart, ChatTurn, StreamEvent, conversation, sendable};
use crate::agent::model::remote::draft::{CallFragment, Draft, count, text};
use crate::agent::model::{Error, Piece, Request};
use crate::agent::tools::Spec;
use crate::transcript::{Cache, Finish, SealKind, Tokens};

const VERSION: &str = "2023-06-01";
/// `max_tokens` is required, and refused if it is more than the model can do. Every model since Claude 3.7
/// accepts this one.
const MOST_TOKENS: u64 = 32_000;
/// For older models, by prefix.
const MOST_TOKENS_BEFORE: [(&str, u64); 2] = [("claude-3-5-", 8_192), ("claude-3-", 4_096)];

pub(super) fn url(base: &Url) -> Option<Url> {
    base.join("messages").ok()
}

pub(super) fn headers(key: &str) -> Vec<(HeaderName, String)> {
    vec![
        (HeaderName::from_static("x-api-key"), key.to_owned()),
        (HeaderName::from_static("anthropic-version"), VERSION.to_owned()),
    ]
}

/// The request body.
pub(super) fn body(request: &Request, by: &str) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    for said in conversation(&request.messages, by) {
        match said {
            ChatTurn::User(text) => push(&mut messages, "user", vec![block(&text)]),
            ChatTurn::Answer(answer) => push_answer(&mut messages, &answer),
        }
    }
    if let Some(last) =
        messages.last_mut().and_then(|last| last["content"].as_array_mut()?.last_mut())
    {
        last["cache_control"] = ephemeral();
    }
    let mut body = json!({
        "model": request.model,
        "max_tokens": most_tokens(&request.model),
        "stream": true,
        "messages": &messages,
    });
    if !request.system.is_empty() {
        let mut system = block(&request.system);
        system["cache_control"] = ephemeral();
        body["system"] = json!([system]);
    }
    let tools: Vec<Value> = request.tools.iter().map(tool).collect();
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    } else if let Some(called) = called(&messages) {
        // A conversation with calls in it is refused if no tools are defined, as in a request for a
        // summary. So the called ones are defined, and forbidden.
        body["tools"] = json!(called);
        body["tool_choice"] = json!({"type": "none"});
    }
    body
}

fn tool(spec: &Spec) -> Value {
    let Spec { name, description, schema } = spec;
    json!({"name": name, "description": description, "input_schema": schema})
}

/// A minimal definition for every tool that was called in the conversation.
fn called(messages: &[Value]) -> Option<Vec<Value>> {
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let calls = blocks.filter(|block| block["type"] == "tool_use");
    let names: BTreeSet<&str> = calls.filter_map(|call| call["name"].as_str()).collect();
    let tool = |name| json!({"name": name, "input_schema": {"type": "object"}});
    (!names.is_empty()).then(|| names.into_iter().map(tool).collect())
}

fn most_tokens(model: &str) -> u64 {
    let known = MOST_TOKENS_BEFORE.iter().find(|(name, _)| model.starts_with(name));
    match known {
        Some(_) if model.starts_with("claude-3-7-") => MOST_TOKENS,
        Some((_, most)) => *most,
        None => MOST_TOKENS,
    }
}

fn ephemeral() -> Value {
    json!({"type": "ephemeral"})
}

fn block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Appends blocks, merged into the last message if it has the same role: roles must alternate, and tool
/// results and the user's next words both have the role `user`.
fn push(messages: &mut Vec<Value>, role: &str, blocks: Vec<Value>) {
    let last = messages.last_mut().filter(|last| last["role"] == role);
    match last.and_then(|last| last["content"].as_array_mut()) {
        Some(content) => content.extend(blocks),
        None => messages.push(json!({"role": role, "content": blocks})),
    }
}

/// Appends an answer and the results of its calls. Thoughts are sent back only with calls, where they are
/// required.
fn push_answer(messages: &mut Vec<Value>, answer: &Answer<'_>) {
    let results: Vec<Value> = answer
        .calls()
        .map(|call| {
            let mut result = json!({
                "type": "tool_result", "tool_use_id": sendable(call.id), "content": call.result,
            });
            if call.has_failed {
                result["is_error"] = json!(true);
            }
            result
        })
        .collect();
    if results.is_empty() {
        return push(messages, "assistant", vec![block(&answer.text)]);
    }
    let blocks = answer.parts.iter().map(|part| match part {
        AnswerPart::Text(text) => block(text),
        AnswerPart::Thought(thought, seal) => match seal.kind {
            SealKind::Signature => {
                json!({"type": "thinking", "thinking": thought, "signature": seal.data})
            }
            SealKind::Encrypted => json!({"type": "redacted_thinking", "data": seal.data}),
        },
        AnswerPart::Call(call) => {
            json!({"type": "tool_use", "id": sendable(call.id), "name": call.name, "input": call.input})
        }
    });
    push(messages, "assistant", blocks.collect());
    push(messages, "user", results);
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    message: Option<MessageStart>,
    #[serde(borrow, default)]
    content_block: Option<Block<'a>>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
    /// The contents of `redacted_thinking`.
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow, default)]
    signature: Option<&'a RawValue>,
    #[serde(borrow, default)]
    partial_json: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stop_reason: Option<&'a RawValue>,
}

/// Token counts. Those of a `message_delta` are cumulative, and may leave some out.
#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    input_tokens: Option<f64>,
    #[serde(default)]
    output_tokens: Option<f64>,
    #[serde(default)]
    cache_read_input_tokens: Option<f64>,
    #[serde(default)]
    cache_creation_input_tokens: Option<f64>,
}

/// Decodes one event. `signature` collects the signature of the current thought, which comes after it in
/// fragments of its own.
pub(super) fn event(
    draft: &mut Draft,
    signature: &mut String,
    data: &str,
) -> Result<StreamEvent, Error> {
    let event: Event<'_> = super::parse(data)?;
    let mut pieces = Vec::new();
    let usage = event.usage.or(event.message.and_then(|message| message.usage));
    if let Some(usage) = usage {
        usage.add_to(draft.usage.get_or_insert_default());
    }
    match event.kind.and_then(text).as_deref() {
        Some("content_block_start") => {
            let block = event.content_block;
            pieces
                .extend(block.map(|block| begin(draft, event.index, block)).transpose()?.flatten());
        }
        Some("content_block_delta") => {
            let Some(delta) = event.delta else { return Ok(StreamEvent::Pieces(pieces)) };
            pieces.extend(delta.text.and_then(text).map(Piece::Text));
            pieces.extend(delta.thinking.and_then(text).map(Piece::Thought));
            if let Some(more) = delta.signature.and_then(text) {
                draft.hold(more.len())?;
                signature.push_str(&more);
            }
            if let Some(arguments) = delta.partial_json.and_then(text) {
                draft.add_call(CallFragment {
                    index: event.index,
                    arguments,
                    ..CallFragment::default()
                })?;
            }
        }
        // The signature is complete with its block.
        Some("content_block_stop") if !signature.is_empty() => {
            pieces.push(draft.seal(SealKind::Signature, std::mem::take(signature)));
        }
        Some("message_delta") => {
            let reason = event.delta.and_then(|delta| delta.stop_reason).and_then(text);
            draft.finish = reason.as_deref().map(finish).or(draft.finish.take());
        }
        Some("message_stop") => return Ok(StreamEvent::Done),
        // Some compatible servers leave out the type of an error event.
        Some("error") | None => {
            if let Some(error) = event.error {
                return Err(draft.reported(error));
            }
        }
        Some(_) => {}
    }
    Ok(StreamEvent::Pieces(pieces))
}

/// The start of a content block, which may already have content.
fn begin(draft: &mut Draft, index: Option<u64>, block: Block<'_>) -> Result<Option<Piece>, Error> {
    let piece = match block.kind.and_then(text).as_deref() {
        Some("tool_use") => {
            // Anthropic sends `{}` here and the arguments in fragments; some compatible servers send them
            // whole.
            let input = block.input.map(RawValue::get).filter(|input| *input != "{}");
            draft.add_call(CallFragment {
                index,
                id: block.id.and_then(text).unwrap_or_default(),
                name: block.name.and_then(text).unwrap_or_default(),
                arguments: input.unwrap_or_default().to_owned(),
                signature: String::new(),
            })?;
            None
        }
        Some("redacted_thinking") => {
            block.data.and_then(text).map(|data| draft.seal(SealKind::Encrypted, data))
        }
        Some("thinking") => block.thinking.and_then(text).map(Piece::Thought),
        Some("text") => block.text.and_then(text).map(Piece::Text),
        Some(_) | None => None,
    };
    Ok(piece)
}

fn finish(word: &str) -> Finish {
    match word {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "tool_use" => Finish::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::ContentFilter,
        other => Finish::Other(other.to_owned()),
    }
}

impl Usage {
    fn add_to(&self, tokens: &mut Tokens) {
        let keep = |new: Option<f64>, known: u64| new.map_or(known, |new| count(Some(new)));
        let Cache { read, write } = tokens.cache;
        *tokens = Tokens {
            input: keep(self.input_tokens, tokens.input),
            // Includes thoughts, which Anthropic does not count separately.
            output: keep(self.output_tokens, tokens.output),
            reasoning: 0,
            cache: Cache {
                read: keep(self.cache_read_input_tokens, read),
                write: keep(self.cache_creation_input_tokens, write),
            },
        };
    }
}
