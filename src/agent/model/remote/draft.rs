//! The draft: an answer under assembly, in any wire format. Text and thoughts are passed on as they come;
//! tool calls arrive in fragments and are held back until the stream ends, because servers interleave
//! them and disagree on how fragments are matched. Nothing a server sends is trusted to be small or
//! sensible: calls are counted, and the bytes, values and depth of what is held back are bounded.

use std::collections::HashSet;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::failure::ErrorMapper;
use crate::agent::model::{Call, Error, Piece};
use crate::text::head;
use crate::transcript::{Finish, Message, Part, Seal, SealKind, Tokens};

/// More calls than this in one answer are an error.
const MOST_CALLS: usize = 1_000;
/// Values in the arguments of a call. One takes two bytes on the wire and thirty in memory.
const MOST_VALUES: usize = 100_000;

/// How many characters of an unknown finish reason are kept.
const LONGEST_WORD: usize = 100;
/// Nesting of arguments. They are stored inside messages, and serde_json cannot read back JSON that is
/// 128 levels deep.
const DEEPEST: usize = 64;
/// A larger token count is nonsense; the limit keeps sums from overflowing.
const MOST_TOKENS: f64 = 1e12;

/// An answer under assembly.
pub(super) struct Draft {
    errors: ErrorMapper,
    /// The `provider/model` that answers.
    by: String,
    /// The most bytes that may be held back.
    most: usize,
    /// The bytes that are held back: arguments, names, ids, signatures.
    held: usize,
    calls: Vec<PartialCall>,
    retry_after: Option<Duration>,
    pub(super) usage: Option<Tokens>,
    pub(super) cost: Option<f64>,
    /// Set once the model has said why it stopped: whatever happens after that, the answer is complete.
    pub(super) finish: Option<Finish>,
}

/// A fragment of a call. Fragments are matched by index; by id where a server gives every call of an
/// answer the same index; and else each belongs to the call before it.
#[derive(Default)]
pub(super) struct CallFragment {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    /// What the provider must get back with this call.
    pub(super) signature: String,
}

/// The fragments of one call so far, joined.
type PartialCall = CallFragment;

impl Draft {
    pub(super) fn new(errors: ErrorMapper, by: &str, most: usize) -> Draft {
        Draft {
            errors,
            by: by.to_owned(),
            most,
            held: 0,
            calls: Vec::new(),
            retry_after: None,
            usage: None,
            cost: None,
            finish: None,
        }
    }

    /// The pause before a retry, from the response headers. An error inside the stream has none itself.
    pub(super) fn set_retry_after(&mut self, pause: Option<Duration>) {
        self.retry_after = pause;
    }

    /// How many bytes are held back until the end.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Counts bytes that are held back; an error once there are too many.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        self.held += bytes;
        if self.held > self.most { Err(Error::TooLong(self.most)) } else { Ok(()) }
    }

    /// An error that a server reports in the middle of its answer.
    pub(super) fn reported(&self, error: &RawValue) -> Error {
        // Only a small body is parsed; a huge one is told as a server error without a message.
        let is_small = error.get().len() <= super::REFUSAL_BYTES;
        let body = is_small.then(|| serde_json::from_str(error.get()).ok()).flatten();
        let body = body.unwrap_or(Value::Null);
        self.errors.in_stream(&body, self.retry_after)
    }

    pub(super) fn seal(&self, kind: SealKind, data: String) -> Piece {
        Piece::Seal(Seal { by: self.by.clone(), kind, data })
    }

    /// Adds a fragment to its call, or starts a new one.
    pub(super) fn add_call(&mut self, bit: CallFragment) -> Result<(), Error> {
        let CallFragment { index, id, name, arguments, signature } = bit;
        self.hold(id.len() + name.len() + arguments.len() + signature.len())?;
        // Some servers send index 0 for every call of an answer, so the same index does not mean the same
        // call.
        let is_another = |call: &PartialCall| match (id.is_empty(), call.id.is_empty()) {
            (false, false) => id != call.id,
            // Without ids: a fragment with a name starts another call if the arguments so far are complete.
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
                let message = format!("the model made more than {MOST_CALLS} calls in one answer");
                return Err(Error::Unusable(message));
            }
            None => {
                self.calls.push(PartialCall { index, ..PartialCall::default() });
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

    /// Whether fragments of arguments have come for the call with this index.
    pub(super) fn has_arguments(&self, index: u64) -> bool {
        let call = self.calls.iter().rfind(|call| call.index == Some(index));
        call.is_some_and(|call| !call.arguments.is_empty())
    }

    /// The pieces that the end of a stream brings: calls, usage and the finish reason. `messages` is the
    /// conversation so far, whose call ids are taken.
    pub(super) fn ending(self, messages: &[Message]) -> Result<Vec<Piece>, Error> {
        // The stream broke off: its calls may be incomplete, and running half of a command is worse than
        // asking again.
        let Some(finish) = self.finish else { return Err(Error::Truncated) };
        let finish = match finish {
            Finish::ToolCalls if self.calls.is_empty() => {
                let message =
                    "the model server announced tool calls and sent none that can be read";
                return Err(Error::Unusable(message.to_owned()));
            }
            // Some servers say `stop` although there are calls: what is there counts, not the word.
            Finish::Stop | Finish::ToolCalls if self.calls.is_empty() => Finish::Stop,
            Finish::Stop | Finish::ToolCalls => Finish::ToolCalls,
            other @ (Finish::Length | Finish::ContentFilter) => other,
            Finish::Other(word) => Finish::Other(head(&word, LONGEST_WORD).to_owned()),
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
        pieces.extend(self.cost.map(Piece::Cost));
        pieces.push(Piece::End(finish));
        Ok(pieces)
    }
}

/// A non-empty string; `None` for anything else. Servers send null, or another type, where a string is
/// documented.
pub(super) fn text(raw: &RawValue) -> Option<String> {
    let is_text = raw.get().starts_with('"');
    let text = is_text.then(|| serde_json::from_str::<String>(raw.get()).ok()).flatten();
    text.filter(|text| !text.is_empty())
}

/// A token count. Servers send numbers, sometimes null, sometimes negative or fractional ones.
pub(super) fn count(tokens: Option<f64>) -> u64 {
    tokens.unwrap_or(0.0).clamp(0.0, MOST_TOKENS) as u64
}

/// Makes the ids of calls unique in the conversation: some servers send none, or start over in every
/// answer (`name:0`), and a result would be matched to the wrong call.
fn name_apart(
    calls: Vec<PartialCall>,
    messages: &[Message],
    finish: &Finish,
) -> Vec<(Call, String)> {
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
        // A call that was cut off right after its name must not pass for one without arguments and run:
        // a string is no object, and `Turn` makes no such call.
        let is_cut = *finish == Finish::Length && call.arguments.trim().is_empty();
        let arguments = if is_cut { Value::String(String::new()) } else { parsed(call.arguments) };
        (Call { id, name: call.name, arguments }, call.signature)
    });
    calls.collect()
}

/// Arguments as JSON. Those that are not valid, or too large or deep to be kept, stay a string; no
/// arguments are an empty object.
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

/// A lower bound for the number of values in some JSON, and its depth, without allocating them.
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
        let errors = ErrorMapper::new(&url, "OPENAI_BASE_URL", "none", Duration::from_secs(1));
        Draft::new(errors, "openai/test", most)
    }

    fn bit(index: u64, id: &str, arguments: &str) -> CallFragment {
        let (id, arguments) = (id.to_owned(), arguments.to_owned());
        CallFragment { index: Some(index), id, arguments, ..CallFragment::default() }
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
        let message = format!("the model made more than {MOST_CALLS} calls in one answer");
        assert_eq!(many.add_call(bit(u64::MAX, "c", "{}")), Err(Error::Unusable(message)));
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
        let signed =
            CallFragment { signature: "s".into(), name: "read".into(), ..CallFragment::default() };
        draft.add_call(signed).unwrap();
        draft.add_call(CallFragment { name: "grep".into(), ..CallFragment::default() }).unwrap();
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
