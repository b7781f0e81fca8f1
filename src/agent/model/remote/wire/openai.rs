//! OpenAI's Chat Completions API, in the dialects of the many servers that speak it (OpenRouter, Ollama,
//! Mistral, vLLM, …): several names for thoughts and finish reasons, arguments as a string or as JSON,
//! content as a string or as a list. Unknown fields are ignored.

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Answer, ChatTurn, StreamEvent, conversation};
use crate::agent::model::remote::draft::{CallFragment, Draft, count, text};
use crate::agent::model::{Error, Piece, Request};
use crate::agent::tools::Spec;
use crate::transcript::{Cache, Finish, Tokens};

pub(super) fn url(base: &Url) -> Option<Url> {
    base.join("chat/completions").ok()
}

pub(super) fn headers(key: &str) -> Vec<(HeaderName, String)> {
    vec![(AUTHORIZATION, format!("Bearer {key}"))]
}

/// The request body. Thoughts are never sent back: this format has no place for them.
pub(super) fn body(request: &Request) -> Value {
    let mut chat = Vec::new();
    if !request.system.is_empty() {
        chat.push(json!({"role": "system", "content": request.system}));
    }
    for said in conversation(&request.messages, "") {
        match said {
            ChatTurn::User(text) => chat.push(json!({"role": "user", "content": text})),
            ChatTurn::Answer(answer) => push_answer(&mut chat, &answer),
        }
    }
    // Usage comes in a last chunk without choices, and only if it is asked for.
    let mut body = json!({
        "model": request.model,
        "messages": chat,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    // Left out when there are none: some servers refuse an empty list.
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    body
}

fn push_answer(chat: &mut Vec<Value>, answer: &Answer<'_>) {
    let calls: Vec<Value> = answer
        .calls()
        .map(|call| {
            let function = json!({"name": call.name, "arguments": call.input.to_string()});
            json!({"id": call.id, "type": "function", "function": function})
        })
        .collect();
    if calls.is_empty() {
        return chat.push(json!({"role": "assistant", "content": answer.text}));
    }
    chat.push(json!({"role": "assistant", "content": answer.text, "tool_calls": calls}));
    chat.extend(
        answer
            .calls()
            .map(|call| json!({"role": "tool", "tool_call_id": call.id, "content": call.result})),
    );
}

fn tool(spec: &Spec) -> Value {
    let Spec { name, description, schema } = spec;
    json!({"type": "function", "function": {
        "name": name, "description": description, "parameters": schema, "strict": false,
    }})
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    /// From servers that do not stream.
    #[serde(borrow, default)]
    message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Default, Deserialize)]
struct FunctionDelta<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<f64>,
    #[serde(default)]
    completion_tokens: Option<f64>,
    #[serde(default)]
    completion_tokens_details: Option<Details>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    /// A number from OpenRouter; other servers have other things there.
    #[serde(default)]
    cost: Value,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<f64>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    reasoning_tokens: Option<f64>,
}

/// Mistral sends content as a list of these.
#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
}

/// Decodes one chunk.
pub(super) fn event(draft: &mut Draft, data: &str) -> Result<StreamEvent, Error> {
    let chunk: Chunk<'_> = super::parse(data)?;
    if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
        return Err(draft.reported(error));
    }
    // Some servers send it with every chunk, and an empty one at the end: the last that says something counts.
    if let Some(usage) = chunk.usage {
        draft.usage = usage.tokens().or(draft.usage);
        // OpenRouter knows which provider answered and what that charged.
        draft.cost = usage.cost.as_f64().filter(|cost| *cost >= 0.0).or(draft.cost);
    }
    // Only one answer is asked for, so a second choice is never ours.
    let choice = chunk.choices.and_then(|choices| choices.into_iter().next());
    let Some(choice) = choice else { return Ok(StreamEvent::Pieces(Vec::new())) };
    let mut pieces = Vec::new();
    if let Some(delta) = choice.delta.or(choice.message) {
        let thoughts = [delta.reasoning_content, delta.reasoning];
        // Two names for the same thing; only one counts, should a server send both.
        let thought = thoughts.into_iter().flatten().find_map(text);
        pieces.extend(thought.map(Piece::Thought));
        push_content(&mut pieces, delta.content);
        for call in delta.tool_calls.unwrap_or_default() {
            draft.add_call(call.bit())?;
        }
    }
    if let Some(reason) = choice.finish_reason.and_then(text) {
        draft.finish = Some(finish(&reason));
    }
    Ok(StreamEvent::Pieces(pieces))
}

impl CallDelta<'_> {
    fn bit(self) -> CallFragment {
        let function = self.function.unwrap_or_default();
        // A string that contains JSON; some servers send the JSON itself.
        let arguments = match function.arguments.map(RawValue::get) {
            None | Some("null") => String::new(),
            Some(raw) if raw.starts_with('"') => serde_json::from_str(raw).unwrap_or_default(),
            Some(raw) => raw.to_owned(),
        };
        CallFragment {
            index: self.index,
            id: self.id.and_then(text).unwrap_or_default(),
            name: function.name.and_then(text).unwrap_or_default(),
            arguments,
            signature: String::new(),
        }
    }
}

/// The finish reasons of the servers that speak this protocol.
fn finish(word: &str) -> Finish {
    // Compatible servers pass on the words of the provider behind them, such as Anthropic's, Gemini's or
    // Mistral's.
    match word {
        "stop" | "stop_sequence" | "end_turn" | "eos" => Finish::Stop,
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => Finish::ToolCalls,
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" | "content-filter" | "safety" | "SAFETY" => Finish::ContentFilter,
        other => Finish::Other(other.to_owned()),
    }
}

/// Adds content, which is a string or a list of parts with text and thoughts.
fn push_content(pieces: &mut Vec<Piece>, content: Option<&RawValue>) {
    let Some(content) = content else { return };
    if !content.get().starts_with('[') {
        pieces.extend(text(content).map(Piece::Text));
        return;
    }
    for part in serde_json::from_str::<Vec<ContentPart<'_>>>(content.get()).unwrap_or_default() {
        pieces.extend(part.text.and_then(text).map(Piece::Text));
        let thinking = part.thinking.map(|raw| match text(raw) {
            Some(thought) => thought,
            None => {
                let inner = serde_json::from_str::<Vec<ContentPart<'_>>>(raw.get());
                let inner = inner.unwrap_or_default().into_iter();
                inner.filter_map(|part| part.text.and_then(text)).collect()
            }
        });
        pieces.extend(thinking.filter(|thought| !thought.is_empty()).map(Piece::Thought));
    }
}

impl Usage {
    /// OpenAI counts thoughts as output and cached tokens as input; we count them separately. `None` for a
    /// usage without counts, which must not replace one that had some.
    fn tokens(&self) -> Option<Tokens> {
        if self.prompt_tokens.is_none() && self.completion_tokens.is_none() {
            return None;
        }
        let details = self.completion_tokens_details.as_ref();
        let reasoning = count(details.and_then(|details| details.reasoning_tokens));
        let details = self.prompt_tokens_details.as_ref();
        let read = count(details.and_then(|details| details.cached_tokens));
        let prompt = count(self.prompt_tokens);
        let read = read.min(prompt);
        Some(Tokens {
            input: prompt - read,
            output: count(self.completion_tokens).saturating_sub(reasoning),
            reasoning,
            cache: Cache { read, write: 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Decoder, Wire};
    use super::*;
    use crate::agent::model::Call;
    use crate::agent::model::remote::failure::ErrorMapper;

    fn decoder(most: usize) -> Decoder {
        let url = Url::parse("http://127.0.0.1:1/v1/").unwrap();
        let errors = ErrorMapper::new(&url, "OPENAI_BASE_URL", "none", Duration::from_secs(1));
        Decoder::new(Wire::OpenAi, errors, "openai/test", most)
    }

    fn delta(delta: Value) -> Vec<u8> {
        json!({"choices": [{"delta": delta, "finish_reason": null}]}).to_string().into_bytes()
    }

    fn finished(reason: &str) -> Vec<u8> {
        json!({"choices": [{"delta": {}, "finish_reason": reason}]}).to_string().into_bytes()
    }

    fn bit(index: Value, id: Value, name: Value, arguments: Value) -> Vec<u8> {
        let function = json!({"name": name, "arguments": arguments});
        delta(json!({"tool_calls": [{"index": index, "id": id, "function": function}]}))
    }

    /// The calls of an answer that came in these bits.
    fn check_calls(bits: &[Vec<u8>], expected: &[(&str, &str, Value)]) {
        let mut decoder = decoder(1_000);
        for bit in bits {
            decoder.event(bit).unwrap();
        }
        decoder.event(&finished("tool_calls")).unwrap();
        let piece = |(id, name, arguments): &(&str, &str, Value)| {
            let (id, name) = ((*id).to_owned(), (*name).to_owned());
            Piece::Call(Call { id, name, arguments: arguments.clone() })
        };
        let expected = expected.iter().map(piece).chain([Piece::End(Finish::ToolCalls)]);
        assert_eq!(decoder.ending(&[]).unwrap(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn fragments_of_tool_calls_are_joined_however_a_server_numbers_them() {
        let none = Value::Null;
        let (a, b) = (json!({"c": "a"}), json!({"c": "b"}));
        let expected = [("x", "bash", a.clone()), ("y", "bash", b.clone())];
        // As OpenAI does, in turns.
        let first = bit(json!(0), json!("x"), json!("bash"), json!("{\"c\":"));
        let second = bit(json!(1), json!("y"), json!("bash"), json!("{\"c\":"));
        let (end_a, end_b) = (json!("\"a\"}"), json!("\"b\"}"));
        let more =
            |index: u64, end: &Value| bit(json!(index), none.clone(), none.clone(), end.clone());
        check_calls(&[first, second, more(0, &end_a), more(1, &end_b)], &expected);
        // Whole calls that all have the same number, or none.
        for index in [json!(0), Value::Null] {
            let whole = |id: &str, arguments: &Value| {
                bit(index.clone(), json!(id), json!("bash"), json!(arguments.to_string()))
            };
            check_calls(&[whole("x", &a), whole("y", &b)], &expected);
        }
        // Id and name repeated in every fragment, and indexes that do not begin at zero.
        let again = |end: &str| bit(json!(7), json!("x"), json!("bash"), json!(end));
        check_calls(&[again("{\"c\":"), again("\"a\"}")], &expected[..1]);
        // A number that is far off costs nothing.
        let far = bit(json!(u64::MAX), json!("x"), json!("bash"), json!(a.to_string()));
        check_calls(&[far], &expected[..1]);
    }

    #[test]
    fn calls_without_an_id_of_their_own_get_one() {
        let bit_of = |index: u64, id: &str, arguments: &str| {
            bit(json!(index), json!(id), json!("bash"), json!(arguments))
        };
        let calls = [bit_of(0, "", "{\"c\":1}"), bit_of(1, "", ""), bit_of(2, "a", "{c")];
        let expected = [
            ("call", "bash", json!({"c": 1})),
            ("call_2", "bash", json!({})),
            ("a", "bash", json!("{c")),
        ];
        check_calls(&calls, &expected);
    }

    #[test]
    fn fields_of_the_wrong_type_are_ignored() {
        let odd = json!({"content": 7, "reasoning": {"a": []}, "tool_calls": null, "new": [1, 2]});
        assert_eq!(decoder(9).event(&delta(odd)), Ok(StreamEvent::Pieces(vec![])));
        let usage = b"{\"choices\": [], \"usage\": {\"prompt_tokens\": null}}";
        assert_eq!(decoder(9).event(usage), Ok(StreamEvent::Pieces(vec![])));
        for garbage in ["{\"choices\": 7}", "[]", "nonsense", "{\"choices\": [{\"delta\": \"x\"}]}"]
        {
            assert_eq!(
                decoder(9).event(garbage.as_bytes()),
                Err(ErrorMapper::unreadable()),
                "{garbage}"
            );
        }
        assert_eq!(decoder(9).event(b"{\"choices\": [{\"del"), Err(Error::Truncated));
        assert_eq!(decoder(9).event(&[b'"', 0xff, b'"']), Err(ErrorMapper::unreadable()));
    }

    #[test]
    fn a_cost_that_the_server_reports_comes_with_the_end() {
        let others = [json!(-1), json!(null), json!("0.25"), json!({"total_cost": 0.25})];
        let others = others.into_iter().map(|reported| (reported, None));
        for (reported, expected) in others.chain([(json!(0.25), Some(0.25))]) {
            let mut decoder = decoder(9);
            let usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "cost": reported});
            let chunk = json!({"choices": [], "usage": usage}).to_string();
            decoder.event(&finished("stop")).unwrap();
            decoder.event(chunk.as_bytes()).unwrap();
            let costs = decoder.ending(&[]).unwrap().into_iter().filter_map(|piece| match piece {
                Piece::Cost(cost) => Some(cost),
                _ => None,
            });
            assert_eq!(costs.collect::<Vec<f64>>(), Vec::from_iter(expected), "{reported}");
        }
    }

    #[test]
    fn content_in_parts_is_read_too() {
        let thinking = json!({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]});
        let content = json!([thinking, {"type": "text", "text": "so"}]);
        let pieces = vec![Piece::Thought("hm".into()), Piece::Text("so".into())];
        assert_eq!(
            decoder(9).event(&delta(json!({"content": content}))),
            Ok(StreamEvent::Pieces(pieces))
        );
    }
}
