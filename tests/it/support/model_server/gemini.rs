//! Gemini's `streamGenerateContent`.

use serde_json::{Value, json};

use super::{
    RecordedRequest, RequestMessage, Script, Send, Step, Usage, event, list, text_of, words,
};

pub(super) fn said(body: &Value) -> Vec<RequestMessage> {
    let mut said = Vec::new();
    if !body["systemInstruction"].is_null() {
        said.push(RequestMessage::new("system", text_of(&body["systemInstruction"]["parts"])));
    }
    for content in list(&body["contents"]) {
        let parts = &content["parts"];
        if content["role"] == "model" {
            said.push(RequestMessage::new("assistant", text_of(parts)));
            continue;
        }
        let results = list(parts).iter().filter(|part| !part["functionResponse"].is_null());
        said.extend(results.map(|part| {
            RequestMessage::new("tool", part["functionResponse"]["response"].to_string())
        }));
        let text = text_of(parts);
        if !text.is_empty() {
            said.push(RequestMessage::new("user", text));
        }
    }
    said
}

pub(super) fn render(script: &Script, _asked: &RecordedRequest) -> Vec<Send> {
    let mut sends = Vec::new();
    let mut signature = Value::Null;
    for step in &script.steps {
        match step {
            Step::Say(text) => sends.extend(words(text).map(|word| part(json!({ "text": word })))),
            Step::Think(text) => {
                let thought = |word| part(json!({"text": word, "thought": true}));
                sends.extend(words(text).map(thought));
            }
            Step::Sign(data) | Step::Hide(data) => signature = json!(data),
            // Calls are sent whole and without an id. Invalid JSON cannot be represented here.
            Step::Call { name, arguments } => {
                let arguments = serde_json::from_str(arguments).unwrap_or(json!({}));
                let mut call = json!({"functionCall": {"name": name, "args": arguments}});
                if !signature.is_null() {
                    call["thoughtSignature"] = signature.take();
                }
                sends.push(part(call));
            }
            Step::Wait(time) => sends.push(Send::Wait(*time)),
        }
    }
    if let Some(reason) = script.finish("STOP", "STOP") {
        let mut last = json!({"candidates": [
            {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": reason, "index": 0},
        ]});
        if let Some(usage) = script.usage {
            last["usageMetadata"] = counts(usage);
        }
        sends.push(event(&last.to_string()));
    }
    // The format has no start event, so an answer that has begun needs at least one event.
    if script.begins() && sends.is_empty() {
        sends.push(event(r#"{"candidates": [], "modelVersion": "scripted"}"#));
    }
    sends.extend(script.odd_end(|error| event(&format!(r#"{{"error": {error}}}"#))));
    sends
}

fn part(part: Value) -> Send {
    let content = json!({"role": "model", "parts": [part]});
    event(&json!({"candidates": [{"content": content, "index": 0}]}).to_string())
}

fn counts(usage: Usage) -> Value {
    json!({
        "promptTokenCount": usage.prompt,
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.prompt + usage.output,
    })
}
