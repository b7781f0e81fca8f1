//! An answer as far as it has come, whatever format it comes in. Nothing a server sends is believed to
//! be small or sensible: calls are counted, and what is held back until the end (arguments,
//! signatures) is bounded.

use std::collections::HashSet;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::failure::Teller;
use crate::agent::model::{Call, Error, Piece};
use crate::transcript::{Finish, Message, Part, Seal, SealKind, Tokens};

/// Nobody means more than this by one answer.
const MOST_CALLS: usize = 1_000;
/// Values in arguments. One takes two bytes on the wire and thirty in memory.
const MOST_VALUES: usize = 100_000;

/// Of a finish reason that nobody knows.
const LONGEST_WORD: usize = 100;
/// They are kept within messages, and JSON that is 128 deep cannot be read back.
const DEEPEST: usize = 64;
/// Nobody pays for more tokens than this, whatever a server says.
const MOST_TOKENS: f64 = 1e12;

pub(super) struct Draft {
    teller: Teller,
    /// The `provider/model` that answers.
    by: String,
    /// Of everything that is held together.
    most: usize,
    held: usize,
    calls: Vec<CallSoFar>,
    retry_after: Option<Duration>,
    pub(super) usage: Option<Tokens>,
    /// The model has said why it stopped: whatever happens now, the answer is whole.
    pub(super) finish: Option<Finish>,
}

/// A bit of a call. Bits belong together by their index, or by their id where a server gives every
/// call of an answer the same index, or follow each other.
#[derive(Default)]
pub(super) struct CallBit {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    /// What the provider wants to see again with this call.
    pub(super) signature: String,
}

type CallSoFar = CallBit;

impl Draft {
    pub(super) fn new(teller: Teller, by: &str, most: usize) -> Draft {
        Draft {
            teller,
            by: by.to_owned(),
            most,
            held: 0,
            calls: Vec::new(),
            retry_after: None,
            usage: None,
            finish: None,
        }
    }

    /// How long to wait before another try, as the head of the response has it.
    pub(super) fn set_retry_after(&mut self, pause: Option<Duration>) {
        self.retry_after = pause;
    }

    /// How much of it is held back until its end.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        self.held += bytes;
        if self.held > self.most { Err(Error::TooLong(self.most)) } else { Ok(()) }
    }

    /// An error that a server reports in the middle of its answer.
    pub(super) fn reported(&self, error: &RawValue) -> Error {
        let is_small = error.get().len() <= super::REFUSAL_BYTES;
        let body = is_small.then(|| serde_json::from_str(error.get()).ok()).flatten();
        let body = body.unwrap_or(Value::Null);
        self.teller.tell_reported(&body, self.retry_after)
    }

    pub(super) fn seal(&self, kind: SealKind, data: String) -> Piece {
        Piece::Seal(Seal { by: self.by.clone(), kind, data })
    }

    pub(super) fn add_call(&mut self, bit: CallBit) -> Result<(), Error> {
        let CallBit { index, id, name, arguments, signature } = bit;
        self.hold(id.len() + name.len() + arguments.len() + signature.len())?;
        let is_another = |call: &CallSoFar| match (id.is_empty(), call.id.is_empty()) {
            (false, false) => id != call.id,
            // Whole calls without ids that all have the same index.
            (true, true) => {
                let is_whole = || serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok();
                !name.is_empty() && !call.name.is_empty() && is_whole()
            }
            (true, false) | (false, true) => false,
        };
        let found = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
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
                self.calls.push(CallSoFar { index, ..CallSoFar::default() });
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
        call.signature.push_str(&signature);
        Ok(())
    }

    /// Whether the call with this index has arguments already.
    pub(super) fn has_arguments(&self, index: u64) -> bool {
        let call = self.calls.iter().rfind(|call| call.index == Some(index));
        call.is_some_and(|call| !call.arguments.is_empty())
    }

    /// What the end of a stream still brings: calls, usage and why it ended.
    pub(super) fn ending(self, messages: &[Message]) -> Result<Vec<Piece>, Error> {
        let Some(finish) = self.finish else { return Err(Error::Truncated) };
        let finish = match finish {
            Finish::ToolCalls if self.calls.is_empty() => {
                let told = "the model server announced tool calls and sent none that can be read";
                return Err(Error::Unusable(told.to_owned()));
            }
            Finish::Stop | Finish::ToolCalls if self.calls.is_empty() => Finish::Stop,
            Finish::Stop | Finish::ToolCalls => Finish::ToolCalls,
            other @ (Finish::Length | Finish::ContentFilter) => other,
            Finish::Other(word) => Finish::Other(word.chars().take(LONGEST_WORD).collect()),
        };
        let mut pieces = Vec::new();
        for (call, signature) in name_apart(self.calls, messages, &finish) {
            if !signature.is_empty() {
                let seal = Seal { by: self.by.clone(), kind: SealKind::Signature, data: signature };
                pieces.push(Piece::Seal(seal));
            }
            pieces.push(Piece::Call(call));
        }
        pieces.extend(self.usage.map(Piece::Usage));
        pieces.push(Piece::End(finish));
        Ok(pieces)
    }
}

/// A text that is not empty; anything else is passed over.
pub(super) fn text(raw: &RawValue) -> Option<String> {
    let is_text = raw.get().starts_with('"');
    let text = is_text.then(|| serde_json::from_str::<String>(raw.get()).ok()).flatten();
    text.filter(|text| !text.is_empty())
}

/// Counts are numbers, sometimes null and sometimes nonsense.
pub(super) fn count(tokens: Option<f64>) -> u64 {
    tokens.unwrap_or(0.0).clamp(0.0, MOST_TOKENS) as u64
}

/// Gives every call an id of its own: some servers send none, or count anew in every answer.
fn name_apart(calls: Vec<CallSoFar>, messages: &[Message], finish: &Finish) -> Vec<(Call, String)> {
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
        (Call { id, name: call.name, arguments }, call.signature)
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
pub(super) fn measure(json: &str) -> (usize, usize) {
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
    use reqwest::Url;

    use super::*;

    fn draft(most: usize) -> Draft {
        let url = Url::parse("http://127.0.0.1:1/v1/").unwrap();
        let teller = Teller::new(&url, "OPENAI_BASE_URL", "none", Duration::from_secs(1));
        Draft::new(teller, "openai/test", most)
    }

    fn bit(index: u64, id: &str, arguments: &str) -> CallBit {
        let (id, arguments) = (id.to_owned(), arguments.to_owned());
        CallBit { index: Some(index), id, arguments, ..CallBit::default() }
    }

    #[test]
    fn arguments_are_bounded_in_bytes_calls_and_values() {
        let mut long = draft(20);
        assert_eq!(long.add_call(bit(0, "", &"x".repeat(20))), Ok(()));
        assert_eq!(long.add_call(bit(0, "", "x")), Err(Error::TooLong(20)));
        let mut many = draft(1 << 20);
        for n in 0..MOST_CALLS as u64 {
            assert_eq!(many.add_call(bit(n, &format!("c{n}"), "{}")), Ok(()));
        }
        let told = format!("the model made more than {MOST_CALLS} calls in one answer");
        assert_eq!(many.add_call(bit(u64::MAX, "c", "{}")), Err(Error::Unusable(told)));
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
    fn a_signature_comes_right_before_its_call() {
        let mut draft = draft(100);
        let signed = CallBit { signature: "s".into(), name: "read".into(), ..CallBit::default() };
        draft.add_call(signed).unwrap();
        draft.add_call(CallBit { name: "grep".into(), ..CallBit::default() }).unwrap();
        draft.finish = Some(Finish::Stop);
        let call = |id: &str, name: &str| {
            Piece::Call(Call { id: id.into(), name: name.into(), arguments: json!({}) })
        };
        let seal =
            Seal { by: "openai/test".into(), kind: SealKind::Signature, data: "s".to_owned() };
        let expected = vec![
            Piece::Seal(seal),
            call("call", "read"),
            call("call_2", "grep"),
            Piece::End(Finish::ToolCalls),
        ];
        assert_eq!(draft.ending(&[]), Ok(expected));
    }
}
