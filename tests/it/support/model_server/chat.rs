//! OpenAI's Chat Completions API.

use serde_json::{Value, json};

use super::{
    RecordedRequest, RequestMessage, Script, Send, Step, Usage, bits_of, event, list, text_of,
    words,
};

pub(super) fn said(body: &Value) -> Vec<RequestMessage> {
    let messages = list(&body["messages"]).iter().map(|message| {
        let role = match message["role"].as_str() {
            Some("assistant") => "assistant",
            Some("tool") => "tool",
            Some("user") => "user",
            Some(_) | None => "system",
        };
        RequestMessage::new(role, text_of(&message["content"]))
    });
    messages.collect()
}

pub(super) fn render(script: &Script, asked: &RecordedRequest) -> Vec<Send> {
    let mut sends = Vec::new();
    let mut has_begun = false;
    let mut begin = |sends: &mut Vec<Send>| {
        if !std::mem::replace(&mut has_begun, true) {
            sends.push(delta(json!({"role": "assistant", "content": ""})));
        }
    };
    for step in &script.steps {
        let (field, text) = match step {
            Step::Say(text) => ("content", text),
            Step::Think(text) => ("reasoning_content", text),
            Step::Wait(time) => {
                sends.push(Send::Wait(*time));
                continue;
            }
            // Signatures and hidden reasoning do not exist in this format; calls follow at the end,
            // interleaved.
            Step::Sign(_) | Step::Hide(_) | Step::Call { .. } => continue,
        };
        begin(&mut sends);
        sends.extend(words(text).map(|word| delta(json!({ field: word }))));
    }
    if script.begins() {
        begin(&mut sends);
    }
    sends.extend(calls(script, asked));
    if let Some(reason) = script.finish("stop", "tool_calls") {
        sends.push(choice(json!({}), json!(reason)));
        let wanted = asked.body["stream_options"]["include_usage"] == true;
        let usage = script.usage.filter(|_| wanted);
        sends.extend(usage.map(|usage| chunk(json!([]), counts(usage))));
        sends.push(event("[DONE]"));
    }
    sends.extend(script.odd_end(|error| event(&format!(r#"{{"error": {error}}}"#))));
    sends
}

/// The names of all calls first, then their arguments interleaved, a few characters at a time.
fn calls(script: &Script, asked: &RecordedRequest) -> Vec<Send> {
    let calls = script.calls();
    let mut sends: Vec<Send> = Vec::new();
    for (index, (name, _)) in calls.iter().enumerate() {
        let id = asked.call_id(index);
        let function = json!({"name": name, "arguments": ""});
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        sends.push(delta(json!({"tool_calls": [call]})));
    }
    let bits: Vec<Vec<String>> = calls.iter().map(|(_, arguments)| bits_of(arguments)).collect();
    let longest = bits.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..longest {
        for (index, bits) in bits.iter().enumerate() {
            let bit = bits.get(round).map_or("", String::as_str);
            let call = json!({"index": index, "function": {"arguments": bit}});
            sends.push(delta(json!({"tool_calls": [call]})));
        }
    }
    sends
}

fn counts(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

fn delta(delta: Value) -> Send {
    choice(delta, Value::Null)
}

fn choice(delta: Value, finish: Value) -> Send {
    chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), Value::Null)
}

fn chunk(choices: Value, usage: Value) -> Send {
    let chunk = json!({
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
        "choices": choices,
        "usage": usage,
    });
    event(&chunk.to_string())
}
