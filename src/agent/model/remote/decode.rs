//! What OpenAI-compatible servers stream, as pieces of an answer. Nothing a server sends is believed
//! to be small or sensible: unknown fields are passed over without being kept, calls are counted,
//! and what is held back until the end (arguments) is bounded.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::failure::Teller;
use crate::agent::model::{Call, Error, Piece};
use crate::transcript::{Finish, Message, Part, Tokens};

/// Nobody means more than this by one answer.
const MOST_CALLS: usize = 1_000;
/// Values in arguments. One takes two bytes on the wire and thirty in memory.
const MOST_VALUES: usize = 100_000;
/// They are kept within messages, and JSON that is 128 deep cannot be read back.
const DEEPEST: usize = 64;
/// Nobody pays for more tokens than this, whatever a server says.
const MOST_TOKENS: f64 = 1e12;

/// An answer as far as it has come.
pub(super) struct Decoder {
    teller: Teller,
    /// Of all arguments together.
    most: usize,
    held: usize,
    calls: Vec<CallSoFar>,
    usage: Option<Tokens>,
    finish: Option<String>,
}

#[derive(Default)]
struct CallSoFar {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

/// What one event says.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Pieces(Vec<Piece>),
    /// The server says that this was all.
    Done,
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
    /// Of servers that do not stream.
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

/// Counts are numbers, sometimes null and sometimes nonsense.
#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<f64>,
    #[serde(default)]
    completion_tokens: Option<f64>,
    #[serde(default)]
    completion_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    reasoning_tokens: Option<f64>,
}

/// Mistral's models send their content as a list of these.
#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
}

impl Decoder {
    pub(super) fn new(teller: Teller, most: usize) -> Decoder {
        let (calls, usage, finish) = (Vec::new(), None, None);
        Decoder { teller, most, held: 0, calls, usage, finish }
    }

    /// How much of it is held back until its end.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The model has said why it stopped: whatever happens now, the answer is whole.
    pub(super) fn has_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub(super) fn event(&mut self, data: &[u8]) -> Result<Heard, Error> {
        let data = std::str::from_utf8(data).map_err(|_| Teller::unreadable())?.trim();
        if data == "[DONE]" {
            return Ok(Heard::Done);
        }
        if data.is_empty() {
            return Ok(Heard::Pieces(Vec::new()));
        }
        // Types are read from lists, too; no server means that.
        if !data.starts_with('{') {
            return Err(Teller::unreadable());
        }
        let chunk: Chunk<'_> =
            serde_json::from_str(data).map_err(|error| match error.is_eof() {
                true => Error::Truncated,
                false => Teller::unreadable(),
            })?;
        if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
            let body = serde_json::from_str(error.get()).unwrap_or(Value::Null);
            return Err(self.teller.tell_reported(&body));
        }
        if let Some(usage) = chunk.usage {
            self.usage = usage.tokens().or(self.usage);
        }
        let choice = chunk.choices.and_then(|choices| choices.into_iter().next());
        let Some(choice) = choice else { return Ok(Heard::Pieces(Vec::new())) };
        let mut pieces = Vec::new();
        if let Some(delta) = choice.delta.or(choice.message) {
            let thoughts = [delta.reasoning_content, delta.reasoning];
            let thought = thoughts.into_iter().flatten().find_map(text);
            pieces.extend(thought.map(Piece::Thought));
            push_content(&mut pieces, delta.content);
            for call in delta.tool_calls.unwrap_or_default() {
                self.add_call(call)?;
            }
        }
        if let Some(reason) = choice.finish_reason.and_then(text) {
            self.finish = Some(reason);
        }
        Ok(Heard::Pieces(pieces))
    }

    /// A call comes in bits. They belong together by their index, or by their id where a server gives
    /// every call of an answer the same index, or follow each other.
    fn add_call(&mut self, delta: CallDelta<'_>) -> Result<(), Error> {
        let id = delta.id.and_then(text).unwrap_or_default();
        let function = delta.function.unwrap_or_default();
        let name = function.name.and_then(text).unwrap_or_default();
        // A text that is JSON; some servers send the JSON itself.
        let arguments = match function.arguments.map(RawValue::get) {
            None | Some("null") => String::new(),
            Some(raw) if raw.starts_with('"') => serde_json::from_str(raw).unwrap_or_default(),
            Some(raw) => raw.to_owned(),
        };
        self.held += id.len() + name.len() + arguments.len();
        if self.held > self.most {
            return Err(Error::TooLong(self.most));
        }
        let is_another = |call: &CallSoFar| match (id.is_empty(), call.id.is_empty()) {
            (false, false) => id != call.id,
            // Whole calls without ids that all have the same index.
            (true, true) => {
                let is_whole = || serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok();
                !name.is_empty() && !call.name.is_empty() && is_whole()
            }
            (true, false) | (false, true) => false,
        };
        let found = match delta.index {
            Some(_) => self.calls.iter().rposition(|call| call.index == delta.index),
            None if !id.is_empty() => self.calls.iter().rposition(|call| call.id == id),
            None if !name.is_empty() => None,
            None => self.calls.len().checked_sub(1),
        };
        let found = found.filter(|at| !is_another(&self.calls[*at]));
        let call = match found {
            Some(at) => &mut self.calls[at],
            None if self.calls.len() >= MOST_CALLS => {
                let told = format!("the model made more than {MOST_CALLS} calls in one answer");
                return Err(Error::Unusable(told));
            }
            None => {
                self.calls.push(CallSoFar { index: delta.index, ..CallSoFar::default() });
                self.calls.last_mut().expect("one was just added")
            }
        };
        if call.id.is_empty() {
            call.id = id;
        }
        if call.name.is_empty() {
            call.name = name;
        }
        call.arguments.push_str(&arguments);
        Ok(())
    }

    /// What the end of a stream still brings: calls, usage and why it ended.
    pub(super) fn ending(self, messages: &[Message]) -> Result<Vec<Piece>, Error> {
        let Some(reason) = self.finish else { return Err(Error::Truncated) };
        let finish = finish(&reason);
        let calls = name_apart(self.calls, messages, &finish);
        let finish = match finish {
            Finish::ToolCalls if calls.is_empty() => {
                let told = "the model server announced tool calls and sent none that can be read";
                return Err(Error::Unusable(told.to_owned()));
            }
            Finish::Stop | Finish::ToolCalls if calls.is_empty() => Finish::Stop,
            Finish::Stop | Finish::ToolCalls => Finish::ToolCalls,
            other @ (Finish::Length | Finish::ContentFilter | Finish::Other(_)) => other,
        };
        let calls = calls.into_iter().map(Piece::Call);
        let usage = self.usage.map(Piece::Usage);
        Ok(calls.chain(usage).chain([Piece::End(finish)]).collect())
    }
}

/// The words of the servers that speak this protocol.
fn finish(word: &str) -> Finish {
    match word {
        "stop" | "stop_sequence" | "end_turn" | "eos" => Finish::Stop,
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => Finish::ToolCalls,
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" | "content-filter" | "safety" | "SAFETY" => Finish::ContentFilter,
        other => Finish::Other(other.to_owned()),
    }
}

/// A text that is not empty; anything else is passed over.
fn text(raw: &RawValue) -> Option<String> {
    let is_text = raw.get().starts_with('"');
    let text = is_text.then(|| serde_json::from_str::<String>(raw.get()).ok()).flatten();
    text.filter(|text| !text.is_empty())
}

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
    /// Providers count thoughts as output; we count them apart.
    fn tokens(&self) -> Option<Tokens> {
        let count = |tokens: Option<f64>| tokens.unwrap_or(0.0).clamp(0.0, MOST_TOKENS) as u64;
        if self.prompt_tokens.is_none() && self.completion_tokens.is_none() {
            return None;
        }
        let details = self.completion_tokens_details.as_ref();
        let reasoning = count(details.and_then(|details| details.reasoning_tokens));
        Some(Tokens {
            input: count(self.prompt_tokens),
            output: count(self.completion_tokens).saturating_sub(reasoning),
            reasoning,
        })
    }
}

/// Gives every call an id of its own: some servers send none, or count anew in every answer.
fn name_apart(calls: Vec<CallSoFar>, messages: &[Message], finish: &Finish) -> Vec<Call> {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let mut taken: HashSet<String> = parts
        .filter_map(|part| match part {
            Part::Tool { call, .. } => Some(call.clone()),
            Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => {
                None
            }
        })
        .collect();
    let calls = calls.into_iter().map(|call| {
        let wish = if call.id.is_empty() { "call".to_owned() } else { call.id };
        let mut id = wish.clone();
        let mut number = 2;
        while !taken.insert(id.clone()) {
            id = format!("{wish}_{number}");
            number += 1;
        }
        // Cut off right after its name, a call is not one without arguments.
        let is_cut = *finish == Finish::Length && call.arguments.trim().is_empty();
        let arguments = if is_cut { Value::String(String::new()) } else { parsed(call.arguments) };
        Call { id, name: call.name, arguments }
    });
    calls.collect()
}

/// Arguments that are not JSON stay the text they are. None at all are none.
fn parsed(arguments: String) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    let (values, depth) = measure(&arguments);
    if values > MOST_VALUES || depth > DEEPEST {
        return Value::String(arguments);
    }
    serde_json::from_str(&arguments).unwrap_or(Value::String(arguments))
}

/// How many values there are at least, and how deep, without making them.
fn measure(json: &str) -> (usize, usize) {
    let (mut values, mut in_text, mut escaped) = (1, false, false);
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in json.bytes() {
        match (byte, in_text) {
            _ if std::mem::take(&mut escaped) => {}
            (b'\\', true) => escaped = true,
            (b'"', _) => in_text = !in_text,
            (b',', false) => values += 1,
            (b'[' | b'{', false) => {
                values += 1;
                depth += 1;
                deepest = deepest.max(depth);
            }
            (b']' | b'}', false) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (values, deepest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::Url;

    use super::*;

    fn decoder(most: usize) -> Decoder {
        let url = Url::parse("http://127.0.0.1:1/v1/").unwrap();
        Decoder::new(Teller::new(&url, "none", Duration::from_secs(1)), most)
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
    fn the_bits_of_calls_find_together_however_a_server_numbers_them() {
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
        // Id and name again with every bit, and numbers that do not begin at nought.
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
    fn arguments_are_bounded_in_bytes_calls_and_values() {
        let mut long = decoder(20);
        let bit_of = |text: &str| bit(json!(0), Value::Null, Value::Null, json!(text));
        assert!(long.event(&bit_of(&"x".repeat(20))).is_ok());
        assert_eq!(long.event(&bit_of("x")), Err(Error::TooLong(20)));
        let mut many = decoder(1 << 20);
        let call = |n: usize| bit(json!(n), json!(format!("c{n}")), json!("bash"), json!("{}"));
        for n in 0..MOST_CALLS {
            assert!(many.event(&call(n)).is_ok());
        }
        let told = format!("the model made more than {MOST_CALLS} calls in one answer");
        assert_eq!(many.event(&call(MOST_CALLS)), Err(Error::Unusable(told)));
        let bomb = format!("[{}0]", "0,".repeat(MOST_VALUES));
        assert_eq!(parsed(bomb.clone()), Value::String(bomb));
        for (depth, is_text) in [(64, false), (65, true), (126, true)] {
            let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(parsed(deep).is_string(), is_text, "{depth}");
        }
        let text = json!({"text": ",[{\\\"".repeat(MOST_VALUES)});
        assert_eq!(parsed(text.to_string()), text);
    }

    #[test]
    fn fields_of_the_wrong_kind_are_passed_over() {
        let odd = json!({"content": 7, "reasoning": {"a": []}, "tool_calls": null, "new": [1, 2]});
        assert_eq!(decoder(9).event(&delta(odd)), Ok(Heard::Pieces(vec![])));
        let usage = b"{\"choices\": [], \"usage\": {\"prompt_tokens\": null}}";
        assert_eq!(decoder(9).event(usage), Ok(Heard::Pieces(vec![])));
        for garbage in ["{\"choices\": 7}", "[]", "nonsense", "{\"choices\": [{\"delta\": \"x\"}]}"]
        {
            assert_eq!(
                decoder(9).event(garbage.as_bytes()),
                Err(Teller::unreadable()),
                "{garbage}"
            );
        }
        assert_eq!(decoder(9).event(b"{\"choices\": [{\"del"), Err(Error::Truncated));
        assert_eq!(decoder(9).event(&[b'"', 0xff, b'"']), Err(Teller::unreadable()));
    }

    #[test]
    fn content_in_parts_is_read_too() {
        let thinking = json!({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]});
        let content = json!([thinking, {"type": "text", "text": "so"}]);
        let pieces = vec![Piece::Thought("hm".into()), Piece::Text("so".into())];
        assert_eq!(
            decoder(9).event(&delta(json!({"content": content}))),
            Ok(Heard::Pieces(pieces))
        );
    }
}
