//! Reads the host's JSON into the messages that a child inherits, zero-copy: texts stay `RawValue`s
//! borrowed from the document, so what a later stage drops is never unescaped or copied. A first pass
//! reads everything strictly; if any part has an unexpected shape, a second one reads part by part and
//! replaces those it cannot read, so that one odd part does not cost the whole conversation.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Kinds of parts that a child has no use for: thoughts, files, and the host's own bookkeeping. They are
/// dropped silently; kinds that are not listed leave a note.
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

/// A message with the parts that are inherited.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) role: Role,
    /// The user or the host asked for a compaction here.
    pub(super) is_marker: bool,
    /// The summary of a compaction that succeeded.
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
    /// A part of a kind we do not know; the child is told that it is left out.
    Unknown(Cow<'a, str>),
}

/// A tool call with its result: the two are one unit and are kept or dropped together (F6).
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Empty when only the result is there.
    pub(super) name: Cow<'a, str>,
    pub(super) id: Cow<'a, str>,
    pub(super) arguments: Option<&'a RawValue>,
    pub(super) result: Option<ToolResult<'a>>,
    pub(super) tier: Tier,
}

/// How much of a result, and of its call's arguments, is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// The newest results.
    Whole,
    /// The next ones.
    Long,
    /// The rest.
    Short,
}

/// The result of a tool call.
#[derive(Debug)]
pub(super) enum ToolResult<'a> {
    /// The host has cleared it to save room: its own model is only shown that there was one.
    Cleared,
    /// There is a result, but nothing in it that we understand.
    Unknown,
    Content(&'a RawValue),
}

/// Reads a whole transcript.
pub(super) fn messages(transcript: &str) -> Result<Vec<Message<'_>>, serde_json::Error> {
    let raw: Vec<RawMessage<'_>> = match serde_json::from_str(transcript) {
        Ok(raw) => raw,
        Err(error) => one_by_one(transcript).ok_or(error)?,
    };
    let mut messages = raw.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    join_results(&mut messages);
    Ok(messages)
}

/// The fallback: reads every message and part by itself. Slower, so it only runs when the strict reading
/// failed.
fn one_by_one(transcript: &str) -> Option<Vec<RawMessage<'_>>> {
    let messages: Vec<&RawValue> = serde_json::from_str(transcript).ok()?;
    messages.into_iter().map(|raw| read_loosely(raw.get())).collect()
}

/// `None` for a value that is no message at all.
fn read_loosely(message: &str) -> Option<RawMessage<'_>> {
    if let Ok(raw) = serde_json::from_str(message) {
        return Some(raw);
    }
    Some(serde_json::from_str::<LooseMessage<'_>>(message).ok()?.read())
}

fn message(raw: RawMessage<'_>) -> Result<Message<'_>, serde_json::Error> {
    let RawMessage { info, role, parts, content } = raw;
    let mut parts = parts;
    if let Some(content) = content {
        // The plain shape: a string, or a list of parts like OpenCode's.
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
    // On user messages `summary` is an object, so only the literal `true` counts.
    let is_summary = info.summary.is_some_and(|summary| summary.get() == "true");
    Ok(Message {
        role,
        is_marker: role == Role::User && parts.compaction,
        is_summary: role == Role::Assistant && is_summary && info.error.is_none(),
        parts: parts.kept,
    })
}

/// Moves results that came in a message of their own into their calls. A result without a call stays
/// where it is.
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
            // A call takes one result: ids may be used again by a later call.
            let Some((asked_at, asked)) = open.remove(&call.id) else { continue };
            let result = call.result.take();
            if let Part::Call(asked) = &mut messages[asked_at].parts[asked] {
                asked.result = result;
            }
        }
        // What is left of a result that was moved is an empty shell.
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

/// A message as hosts write it, in either of the two shapes.
#[derive(Deserialize)]
#[serde(expecting = "a message")]
struct RawMessage<'a> {
    #[serde(borrow, default)]
    info: Info<'a>,
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    parts: Parts<'a>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// The same with its parts unread, for the fallback.
#[derive(Deserialize)]
struct LooseMessage<'a> {
    #[serde(borrow, default)]
    info: Info<'a>,
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    parts: Vec<&'a RawValue>,
}

impl<'a> LooseMessage<'a> {
    fn read(self) -> RawMessage<'a> {
        let mut parts = Parts::default();
        for raw in self.parts {
            match serde_json::from_str(raw.get()) {
                Ok(part) => parts.add(part),
                Err(_) => parts.kept.push(Part::Unknown(Cow::Borrowed(""))),
            }
        }
        RawMessage { info: self.info, role: self.role, parts, content: None }
    }
}

#[derive(Default, Deserialize)]
struct Info<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    /// `true` on the summary of a compaction; on user messages hosts put other things here.
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The parts that are inherited; others are dropped while they are read.
#[derive(Default)]
struct Parts<'a> {
    kept: Vec<Part<'a>>,
    compaction: bool,
}

impl<'a> Parts<'a> {
    fn add(&mut self, raw: RawPart<'a>) {
        match &*raw.kind {
            "text" if !raw.ignored => self.kept.extend(raw.text.and_then(text)),
            "compaction" => self.compaction = true,
            "tool" => self.kept.push(Part::Call(opencode_call(raw))),
            "tool_use" => self.kept.push(Part::Call(Call {
                name: named(raw.name),
                id: raw.id,
                arguments: raw.input,
                result: None,
                tier: Tier::Whole,
            })),
            "tool_result" => self.kept.push(Part::Call(Call {
                name: Cow::Borrowed(""),
                id: raw.tool_use_id,
                arguments: None,
                // Some hosts put the result's text into `text`, as in a text part.
                result: Some(
                    raw.content.or(raw.text).map_or(ToolResult::Unknown, ToolResult::Content),
                ),
                tier: Tier::Whole,
            })),
            known if NOT_INHERITED.contains(&known) => {}
            _ => self.kept.push(Part::Unknown(raw.kind)),
        }
    }

    fn extend(&mut self, other: Parts<'a>) {
        self.kept.extend(other.kept);
        self.compaction |= other.compaction;
    }
}

fn opencode_call(raw: RawPart<'_>) -> Call<'_> {
    let State { input, output, error, time } = raw.state.unwrap_or_default();
    // Cleared results still have their text in the host's store; the child sees what the parent sees.
    let result = match time.compacted {
        Some(_) => Some(ToolResult::Cleared),
        None => output.or(error).map(ToolResult::Content),
    };
    let name = named(raw.tool);
    Call { name, id: raw.call, arguments: input, result, tier: Tier::Whole }
}

fn named(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.is_empty() { Cow::Borrowed("unknown") } else { name }
}

/// The fields of all kinds of parts in one struct. An internally tagged enum would be the natural type,
/// but serde buffers those and would copy every text.
#[derive(Deserialize)]
struct RawPart<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    /// Shown to users and not to the model.
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
    /// Set when the host has cleared the result for its own model.
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

            fn visit_seq<A: SeqAccess<'de>>(self, mut raw: A) -> Result<Parts<'de>, A::Error> {
                let mut parts = Parts::default();
                while let Some(part) = raw.next_element()? {
                    parts.add(part);
                }
                // A long conversation has many messages of one part each; `Vec` would keep room for four.
                parts.kept.shrink_to_fit();
                Ok(parts)
            }
        }

        from.deserialize_seq(Reader)
    }
}
