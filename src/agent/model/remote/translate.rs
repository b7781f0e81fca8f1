//! Our requests as chats, and the ends of chats as our pieces. Pure. Whatever a transcript holds,
//! the chat is one that servers take: every call has its answer right behind it.

use std::collections::HashSet;

use genai::chat::{
    ChatMessage, ChatRequest, ChatRole, MessageContent, StopReason, StreamEnd, Tool, ToolCall,
    ToolResponse, Usage,
};
use serde_json::{Value, json};

use crate::agent::model::{Call, Error, Finish, Piece, Request};
use crate::agent::tools::Spec;
use crate::transcript::{Message, Part, Role, Tokens, ToolState};

/// OpenAI refuses a whole chat for one longer name.
const NAME_CHARACTERS: usize = 64;

pub(super) fn chat(request: &Request) -> ChatRequest {
    let mut chat = Vec::new();
    for message in since_summary(&request.messages) {
        match message.info.role {
            Role::Assistant if !is_summary(message) => push_answer(&mut chat, message),
            Role::Assistant | Role::User => push_text(&mut chat, ChatRole::User, message.text()),
        }
    }
    let mut chat = ChatRequest::new(chat);
    if !request.system.is_empty() {
        chat = chat.with_system(&request.system);
    }
    if !request.tools.is_empty() {
        chat = chat.with_tools(request.tools.iter().map(tool));
    }
    chat
}

/// What the end of a stream still brings: calls, usage and why it ended.
pub(super) fn ending(end: StreamEnd, messages: &[Message]) -> Result<Vec<Piece>, Error> {
    let Some(reason) = end.captured_stop_reason else {
        return Err(Error::Truncated);
    };
    let calls = end.captured_content.map(MessageContent::into_tool_calls).unwrap_or_default();
    let mut calls = name_apart(without_echoes(calls), messages);
    let finish = match reason {
        StopReason::Completed(_) | StopReason::StopSequence(_) if calls.is_empty() => Finish::Stop,
        StopReason::Completed(_) | StopReason::StopSequence(_) => Finish::ToolCalls,
        StopReason::ToolCall(_) if calls.is_empty() => {
            return Err(Error::Unusable(
                "the model server announced tool calls and sent none that can be read".to_owned(),
            ));
        }
        StopReason::ToolCall(_) => Finish::ToolCalls,
        StopReason::MaxTokens(_) => {
            // The last call was cut with the rest.
            calls.retain(|call| call.arguments.is_object());
            Finish::Length
        }
        StopReason::ContentFilter(word) | StopReason::Other(word) => Finish::Other(word),
    };
    let calls = calls.into_iter().map(Piece::Call);
    let usage = end.captured_usage.map(|usage| Piece::Usage(tokens(&usage)));
    Ok(calls.chain(usage).chain([Piece::End(finish)]).collect())
}

fn is_summary(message: &Message) -> bool {
    message.info.summary == Some(Value::Bool(true))
}

/// A summary stands for everything before it.
fn since_summary(messages: &[Message]) -> &[Message] {
    let start = messages.iter().rposition(is_summary).unwrap_or(0);
    &messages[start..]
}

/// Templates of local models insist on turns, so neighbours of one role become one message.
fn push_text(chat: &mut Vec<ChatMessage>, role: ChatRole, text: String) {
    if text.is_empty() {
        return;
    }
    match chat.last_mut() {
        Some(last) if last.role == role && last.content.is_text_only() => last.content.push(text),
        Some(_) | None => chat.push(ChatMessage::new(role, text)),
    }
}

fn push_answer(chat: &mut Vec<ChatMessage>, message: &Message) {
    let mut calls: Vec<ToolCall> = Vec::new();
    let mut results: Vec<ToolResponse> = Vec::new();
    for part in &message.parts {
        let (call, tool, state) = match part {
            Part::Tool { call, tool, state } => (call, tool, state),
            Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => {
                continue;
            }
        };
        let response = ToolResponse::new(call, result(state));
        // Hosts may write a call down again with every change; the newest one counts.
        match results.iter_mut().find(|result| result.call_id == *call) {
            Some(result) => *result = response,
            None => {
                results.push(response);
                calls.push(ToolCall {
                    call_id: call.clone(),
                    fn_name: sendable(tool),
                    fn_arguments: arguments(&state.input),
                    thought_signatures: None,
                });
            }
        }
    }
    if calls.is_empty() {
        return push_text(chat, ChatRole::Assistant, message.text());
    }
    let mut content = MessageContent::from_tool_calls(calls);
    let text = message.text();
    if !text.is_empty() {
        content.prepend(text);
    }
    chat.push(ChatMessage::assistant(content));
    chat.push(ChatMessage::from(results));
}

fn result(state: &ToolState) -> &str {
    match state.status.as_str() {
        "completed" => state.output.as_deref().unwrap_or_default(),
        "error" => state.error.as_deref().unwrap_or("failed"),
        _ => "interrupted",
    }
}

/// Models call tools that do not exist; their names must not spoil the chat for ever.
fn sendable(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let letters = name.chars().map(|letter| if fits(letter) { letter } else { '_' });
    let name = letters.take(NAME_CHARACTERS).collect::<String>();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Many servers read arguments back and expect an object.
fn arguments(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        Value::Null => json!({}),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            json!({ "malformed": input })
        }
    }
}

fn tool(spec: &Spec) -> Tool {
    Tool::new(spec.name).with_description(spec.description).with_schema(spec.schema.clone())
}

/// Where a server does not count from nought, `genai` fills the gap with the beginning of a call
/// that follows whole.
fn without_echoes(mut calls: Vec<ToolCall>) -> Vec<ToolCall> {
    let mut whole: Vec<ToolCall> = Vec::new();
    while let Some(call) = calls.pop() {
        let is_echo = whole.iter().any(|later| {
            (&later.call_id, &later.fn_name) == (&call.call_id, &call.fn_name)
                && (later.fn_arguments == call.fn_arguments || call.fn_arguments.is_string())
        });
        if !is_echo {
            whole.push(call);
        }
    }
    whole.reverse();
    whole
}

/// Gives every call an id of its own: some servers send none, or count anew in every answer.
fn name_apart(calls: Vec<ToolCall>, messages: &[Message]) -> Vec<Call> {
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
        let wish = if call.call_id.is_empty() { "call".to_owned() } else { call.call_id };
        let mut id = wish.clone();
        let mut number = 2;
        while !taken.insert(id.clone()) {
            id = format!("{wish}_{number}");
            number += 1;
        }
        Call { id, name: call.fn_name, arguments: parsed(call.fn_arguments) }
    });
    calls.collect()
}

/// Arguments that are not JSON stay the text they are. None at all are none.
fn parsed(arguments: Value) -> Value {
    match arguments {
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::Null => json!({}),
        Value::String(_)
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => arguments,
    }
}

/// Providers count thoughts as output; we count them apart.
fn tokens(usage: &Usage) -> Tokens {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| tokens.try_into().ok()).unwrap_or(0);
    let details = usage.completion_tokens_details.as_ref();
    let reasoning: u64 = count(details.and_then(|details| details.reasoning_tokens));
    let output: u64 = count(usage.completion_tokens);
    Tokens {
        input: count(usage.prompt_tokens),
        output: output.saturating_sub(reasoning),
        reasoning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: Value) -> ToolCall {
        let (call_id, fn_name) = (id.to_owned(), "bash".to_owned());
        ToolCall { call_id, fn_name, fn_arguments: arguments, thought_signatures: None }
    }

    /// The ids and arguments of the calls in an answer with these.
    fn check(calls: Vec<ToolCall>, expected: &[(&str, Value)]) {
        let end = StreamEnd {
            captured_stop_reason: Some(StopReason::ToolCall("tool_calls".to_owned())),
            captured_content: Some(MessageContent::from_tool_calls(calls)),
            ..StreamEnd::default()
        };
        let piece = |(id, arguments): &(&str, Value)| {
            let (id, name) = ((*id).to_owned(), "bash".to_owned());
            Piece::Call(Call { id, name, arguments: arguments.clone() })
        };
        let expected = expected.iter().map(piece).chain([Piece::End(Finish::ToolCalls)]);
        assert_eq!(ending(end, &[]).unwrap(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_call_that_genai_doubled_is_made_once() {
        let make = || json!({"command": "make"});
        check(vec![call("a", json!("")), call("a", make())], &[("a", make())]);
        check(vec![call("a", json!("{\"com")), call("a", make())], &[("a", make())]);
        check(vec![call("a", make()), call("a", make())], &[("a", make())]);
    }

    #[test]
    fn calls_without_an_id_of_their_own_get_one() {
        let (make, test) = (json!({"command": "make"}), json!({"command": "test"}));
        let calls = vec![call("", make.clone()), call("", test.clone())];
        check(calls, &[("call", make.clone()), ("call_2", test.clone())]);
        let calls = vec![call("a", make.clone()), call("a", test.clone()), call("b", json!(""))];
        check(calls, &[("a", make), ("a_2", test), ("b", json!({}))]);
    }
}
