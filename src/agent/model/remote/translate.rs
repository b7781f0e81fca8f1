//! Our requests as bodies of OpenAI's chat completions. Pure. Whatever a transcript holds, the chat is
//! one that servers take: every call has its answer right behind it.

use serde_json::{Value, json};

use crate::agent::model::Request;
use crate::agent::tools::Spec;
use crate::transcript::{CallStatus, Message, Part, Role, ToolState};

/// OpenAI refuses a whole chat for one longer name.
const NAME_CHARACTERS: usize = 64;

pub(super) fn body(request: &Request) -> Value {
    let mut chat = Vec::new();
    if !request.system.is_empty() {
        chat.push(json!({"role": "system", "content": request.system}));
    }
    for message in since_summary(&request.messages) {
        match message.info.role {
            Role::Assistant if !message.is_summary() => push_answer(&mut chat, message),
            Role::Assistant | Role::User => push_text(&mut chat, "user", message.text()),
        }
    }
    let mut body = json!({
        "model": request.model,
        "messages": chat,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    body
}

/// A summary stands for everything before it.
fn since_summary(messages: &[Message]) -> &[Message] {
    let start = messages.iter().rposition(Message::is_summary).unwrap_or(0);
    &messages[start..]
}

/// Templates of local models insist on turns, so neighbours of one role become one message.
fn push_text(chat: &mut Vec<Value>, role: &str, text: String) {
    if text.is_empty() {
        return;
    }
    match chat.last_mut() {
        Some(last) if last["role"] == role && last.get("tool_calls").is_none() => {
            if let Some(Value::String(content)) = last.get_mut("content") {
                content.push_str("\n\n");
                content.push_str(&text);
            }
        }
        Some(_) | None => chat.push(json!({"role": role, "content": text})),
    }
}

fn push_answer(chat: &mut Vec<Value>, message: &Message) {
    let mut calls: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for part in &message.parts {
        let (call, tool, state) = match part {
            Part::Tool { call, tool, state } => (call, tool, state),
            Part::Text { .. } | Part::Reasoning { .. } | Part::Compaction { .. } | Part::Other => {
                continue;
            }
        };
        let answer = json!({"role": "tool", "tool_call_id": call, "content": result(state)});
        // Hosts may write a call down again with every change; the newest one counts.
        match results.iter_mut().find(|result| result["tool_call_id"] == call.as_str()) {
            Some(result) => *result = answer,
            None => {
                results.push(answer);
                let arguments = arguments(&state.input).to_string();
                let function = json!({"name": sendable(tool), "arguments": arguments});
                calls.push(json!({"id": call, "type": "function", "function": function}));
            }
        }
    }
    let text = message.text();
    if calls.is_empty() {
        return push_text(chat, "assistant", text);
    }
    chat.push(json!({"role": "assistant", "content": text, "tool_calls": calls}));
    chat.extend(results);
}

fn result(state: &ToolState) -> &str {
    match state.status {
        CallStatus::Completed => state.output.as_deref().unwrap_or_default(),
        CallStatus::Error => state.error.as_deref().unwrap_or("failed"),
        CallStatus::Pending | CallStatus::Running | CallStatus::Other(_) => "interrupted",
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

fn tool(spec: &Spec) -> Value {
    let Spec { name, description, schema } = spec;
    json!({"type": "function", "function": {
        "name": name, "description": description, "parameters": schema, "strict": false,
    }})
}
