//! Messages as far as a child inherits them, from the host's JSON. Texts stay where they are: one
//! that is dropped later is never copied.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Parts a child has no use for: thoughts, files, and the host's own bookkeeping.
const NOT_INHERITED: [&str; 17] = [
    "text",
    "reasoning",
    "thinking",
    "redacted_thinking",
    "file",
    "image",
    "document",
    "agent",
    "subtask",
    "step-start",
    "step-finish",
    "snapshot",
    "patch",
    "retry",
    "source",
    "source-url",
    "",
];

#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) role: Role,
    /// A person or the host asked for a compaction here.
    pub(super) is_marker: bool,
    /// What a compaction wrote; one that failed is none.
    pub(super) is_summary: bool,
    pub(super) parts: Vec<Part<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    User,
    Assistant,
    Other,
}

#[derive(Debug)]
pub(super) enum Part<'a> {
    Text(&'a RawValue),
    Call(Call<'a>),
    /// Something we do not know how to read; the child is told that it is missing.
    Unknown(Cow<'a, str>),
}

/// A call and its result are one unit (F6).
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Empty when only the result is there.
    pub(super) name: Cow<'a, str>,
    pub(super) id: Cow<'a, str>,
    pub(super) arguments: Option<&'a RawValue>,
    pub(super) result: Option<Outcome<'a>>,
    pub(super) tier: Tier,
}

/// How much of a result and of its call's arguments is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// The newest results.
    Whole,
    /// The next ones.
    Long,
    /// The rest.
    Short,
}

#[derive(Debug)]
pub(super) enum Outcome<'a> {
    /// The host shows its model no more of it than that there was something.
    Cleared,
    /// There is a result without anything in it, as far as we understand it.
    Unknown,
    Said(&'a RawValue),
}

pub(super) fn messages(transcript: &str) -> Result<Vec<Message<'_>>, serde_json::Error> {
    let heard: Vec<Heard<'_>> = match serde_json::from_str(transcript) {
        Ok(heard) => heard,
        Err(error) => one_by_one(transcript).ok_or(error)?,
    };
    let mut messages = heard.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    join_results(&mut messages);
    Ok(messages)
}

/// A part that cannot be read must not cost the whole conversation: slower, and only when it is
/// needed, each is read by itself.
fn one_by_one(transcript: &str) -> Option<Vec<Heard<'_>>> {
    let messages: Vec<&RawValue> = serde_json::from_str(transcript).ok()?;
    messages.into_iter().map(|raw| heard_loosely(raw.get())).collect()
}

/// `None` for what is no message at all.
fn heard_loosely(message: &str) -> Option<Heard<'_>> {
    if let Ok(heard) = serde_json::from_str(message) {
        return Some(heard);
    }
    Some(serde_json::from_str::<HeardLoosely<'_>>(message).ok()?.read())
}

fn message(heard: Heard<'_>) -> Result<Message<'_>, serde_json::Error> {
    let Heard { info, role, parts, content } = heard;
    let mut parts = parts;
    if let Some(content) = content {
        match content.get().starts_with('[') {
            true => parts.extend(serde_json::from_str(content.get())?),
            false => parts.kept.extend(text(content)),
        }
    }
    let role = match if info.role.is_empty() { &*role } else { &*info.role } {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        _ => Role::Other,
    };
    let is_summary = info.summary.is_some_and(|summary| summary.get() == "true");
    Ok(Message {
        role,
        is_marker: role == Role::User && parts.compaction,
        is_summary: role == Role::Assistant && is_summary && info.error.is_none(),
        parts: parts.kept,
    })
}

/// Results that came in a message of their own go to their calls; those without one stay.
fn join_results<'a>(messages: &mut [Message<'a>]) {
    let mut open: HashMap<Cow<'a, str>, (usize, usize)> = HashMap::new();
    for at in 0..messages.len() {
        for n in 0..messages[at].parts.len() {
            let Part::Call(call) = &mut messages[at].parts[n] else { continue };
            if !call.name.is_empty() {
                if call.result.is_none() {
                    open.insert(call.id.clone(), (at, n));
                }
                continue;
            }
            let Some((asked_at, asked)) = open.remove(&call.id) else { continue };
            let result = call.result.take();
            if let Part::Call(asked) = &mut messages[asked_at].parts[asked] {
                asked.result = result;
            }
        }
        messages[at].parts.retain(|part| match part {
            Part::Text(_) | Part::Unknown(_) => true,
            Part::Call(call) => !call.name.is_empty() || call.result.is_some(),
        });
    }
}

fn text(raw: &RawValue) -> Option<Part<'_>> {
    let empty = matches!(raw.get(), "\"\"" | "null");
    (!empty).then_some(Part::Text(raw))
}

#[derive(Deserialize)]
struct Heard<'a> {
    #[serde(borrow, default)]
    info: Info<'a>,
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    parts: Parts<'a>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// The same with parts that are not looked into yet.
#[derive(Deserialize)]
struct HeardLoosely<'a> {
    #[serde(borrow, default)]
    info: Info<'a>,
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    parts: Vec<&'a RawValue>,
}

impl<'a> HeardLoosely<'a> {
    fn read(self) -> Heard<'a> {
        let mut parts = Parts::default();
        for raw in self.parts {
            match serde_json::from_str(raw.get()) {
                Ok(part) => parts.add(part),
                Err(_) => parts.kept.push(Part::Unknown(Cow::Borrowed(""))),
            }
        }
        Heard { info: self.info, role: self.role, parts, content: None }
    }
}

#[derive(Default, Deserialize)]
struct Info<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    /// `true`, or on user messages something else.
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The parts that matter; the others are gone as soon as they are read.
#[derive(Default)]
struct Parts<'a> {
    kept: Vec<Part<'a>>,
    compaction: bool,
}

impl<'a> Parts<'a> {
    fn add(&mut self, heard: HeardPart<'a>) {
        match &*heard.kind {
            "text" if !heard.ignored => self.kept.extend(heard.text.and_then(text)),
            "compaction" => self.compaction = true,
            "tool" => self.kept.push(Part::Call(opencode_call(heard))),
            "tool_use" => self.kept.push(Part::Call(Call {
                name: named(heard.name),
                id: heard.id,
                arguments: heard.input,
                result: None,
                tier: Tier::Whole,
            })),
            "tool_result" => self.kept.push(Part::Call(Call {
                name: Cow::Borrowed(""),
                id: heard.tool_use_id,
                arguments: None,
                // Some write the result's text as they write a text.
                result: Some(heard.content.or(heard.text).map_or(Outcome::Unknown, Outcome::Said)),
                tier: Tier::Whole,
            })),
            known if NOT_INHERITED.contains(&known) => {}
            _ => self.kept.push(Part::Unknown(heard.kind)),
        }
    }

    fn extend(&mut self, other: Parts<'a>) {
        self.kept.extend(other.kept);
        self.compaction |= other.compaction;
    }
}

fn opencode_call(heard: HeardPart<'_>) -> Call<'_> {
    let State { input, output, error, time } = heard.state.unwrap_or_default();
    let result = match time.compacted {
        Some(_) => Some(Outcome::Cleared),
        None => output.or(error).map(Outcome::Said),
    };
    let name = named(heard.tool);
    Call { name, id: heard.call, arguments: input, result, tier: Tier::Whole }
}

fn named(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.is_empty() { Cow::Borrowed("unknown") } else { name }
}

/// Every kind of part in one: a `match` on `type` while reading would have all of it copied.
#[derive(Deserialize)]
struct HeardPart<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    /// Shown to people and not to the model.
    #[serde(default)]
    ignored: bool,
    #[serde(rename = "callID", borrow, default)]
    call: Cow<'a, str>,
    #[serde(borrow, default)]
    tool: Cow<'a, str>,
    #[serde(borrow)]
    state: Option<State<'a>>,
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_use_id: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct State<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    time: Times<'a>,
}

#[derive(Default, Deserialize)]
struct Times<'a> {
    /// When the host stopped showing the result to its model.
    #[serde(borrow)]
    compacted: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Parts<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parts<'a>, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Parts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of parts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut heard: A) -> Result<Parts<'de>, A::Error> {
                let mut parts = Parts::default();
                while let Some(part) = heard.next_element()? {
                    parts.add(part);
                }
                parts.kept.shrink_to_fit();
                Ok(parts)
            }
        }

        from.deserialize_seq(Reader)
    }
}
