//! Renders a message as the child reads it: the role, the texts, and each tool call with its arguments
//! and its result, truncated by its tier.

use super::cut::{self, LONGEST_NOTE, Method};
use super::read::{Call, Message, Part, Role, ToolResult};
use super::text::{one_line, text};

/// OpenCode's own placeholder for a result that it has cleared.
pub(super) const CLEARED: &str = "[Old tool result content cleared]";

const RESULT: &str = "\n[Tool result]\n";
const NO_RESULT: &str = "\n[No tool result]";
const UNKNOWN_RESULT: &str = "\n[Tool result]\n[empty, or in a form that is not understood]";

/// An upper bound for the line about parts that are left out.
const LONGEST_OMISSION: usize = 80;

/// The whole message.
pub(super) fn block(message: &Message<'_>) -> String {
    let mut block = role(message).to_owned();
    for part in &message.parts {
        block.push('\n');
        push_part(&mut block, part, usize::MAX);
    }
    block
}

/// The message in at most `characters` characters: its newest parts that fit, and the part before those
/// cut to what is left.
pub(super) fn block_within(message: &Message<'_>, characters: usize) -> String {
    let mut left = characters.saturating_sub(role(message).len() + LONGEST_OMISSION);
    let mut newest_first: Vec<String> = Vec::new();
    for part in message.parts.iter().rev() {
        let mut whole = String::from("\n");
        push_part(&mut whole, part, usize::MAX);
        let length = whole.chars().count();
        if length > left {
            newest_first.extend(part_within(part, left));
            break;
        }
        left -= length;
        newest_first.push(whole);
    }
    let mut block = role(message).to_owned();
    let omitted = message.parts.len() - newest_first.len();
    if omitted > 0 {
        let noun = if omitted == 1 { "part" } else { "parts" };
        block.push_str(&format!("\n[{omitted} earlier {noun} of this message left out]"));
    }
    block.extend(newest_first.into_iter().rev());
    block
}

/// A part in at most `characters` characters. `None` when not even the name and id of a call fit.
fn part_within(part: &Part<'_>, characters: usize) -> Option<String> {
    let mut cut = String::from("\n");
    let around = match part {
        Part::Text(_) | Part::Unknown(_) => 1,
        Part::Call(call) => {
            let mut head = String::from("\n");
            push_call(&mut head, call);
            head.chars().count() + RESULT.len()
        }
    };
    // The note about the cut counts as well, or the result would exceed the budget.
    let room = characters.checked_sub(around + LONGEST_NOTE)?;
    push_part(&mut cut, part, room);
    Some(cut)
}

/// Appends a part. `most` limits its text or its result, in addition to the tier.
fn push_part(out: &mut String, part: &Part<'_>, most: usize) {
    match part {
        Part::Text(raw) => cut::push(out, &text(raw), most, || Method::HeadAndTail),
        Part::Unknown(kind) => {
            // The kind comes from the host: bounded, and on one line.
            let kind: String = kind.chars().filter(|c| !c.is_control()).take(40).collect();
            let kind = if kind.is_empty() { "unknown" } else { &kind };
            out.push_str(&format!(
                "[A part of the kind `{kind}` cannot be understood and is left out]"
            ));
        }
        Part::Call(call) => {
            push_call(out, call);
            match &call.result {
                None => out.push_str(NO_RESULT),
                Some(ToolResult::Unknown) => out.push_str(UNKNOWN_RESULT),
                Some(ToolResult::Cleared) => {
                    out.push_str(RESULT);
                    out.push_str(CLEARED);
                }
                Some(ToolResult::Content(raw)) => {
                    out.push_str(RESULT);
                    push_result(out, call, &text(raw), most);
                }
            }
        }
    }
}

/// Appends a call. Its name and id are never cut: by them the child can refer to it.
fn push_call(out: &mut String, call: &Call<'_>) {
    let name = if call.name.is_empty() { "unknown" } else { &*call.name };
    out.push_str("[Tool: ");
    out.push_str(name);
    out.push(' ');
    out.push_str(&call.id);
    out.push(']');
    if let Some(arguments) = call.arguments {
        out.push(' ');
        let most = call.tier.argument_characters();
        cut::push(out, &one_line(arguments), most, || Method::Head);
    }
}

fn push_result(out: &mut String, call: &Call<'_>, result: &str, most: usize) {
    let limit = call.tier.result_characters().min(most);
    cut::push(out, result, limit, || cut::method(&call.name, result));
}

fn role(message: &Message<'_>) -> &'static str {
    match message.role {
        Role::User => "[User]",
        Role::Assistant => "[Assistant]",
        Role::Other => "[Other]",
    }
}
