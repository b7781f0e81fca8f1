//! Anthropic's Messages API.

use serde_json::{Value, json};

use super::{
    RecordedRequest, RequestMessage, Script, Send, Step, Usage, bits_of, list, named, text_of,
    words,
};

/// Claude Code adds this to the result when its model has searched for a tool.
const LOADED: &str = "Tool loaded.";

pub(super) fn said(body: &Value) -> Vec<RequestMessage> {
    let mut said = Vec::new();
    if !body["system"].is_null() {
        said.push(RequestMessage::new("system", text_of(&body["system"])));
    }
    for message in list(&body["messages"]) {
        let content = &message["content"];
        if message["role"] == "assistant" {
            said.push(RequestMessage::new("assistant", text_of(content)));
            continue;
        }
        // Claude Code sends changes during a conversation as system messages.
        if message["role"] == "system" {
            said.push(RequestMessage::new("system", text_of(content)));
            continue;
        }
        let results = list(content).iter().filter(|block| block["type"] == "tool_result");
        said.extend(results.map(|result| RequestMessage::new("tool", text_of(&result["content"]))));
        let text = text_of(content);
        if !text.is_empty() && text != LOADED {
            said.push(RequestMessage::new("user", text));
        }
    }
    said
}

/// The content blocks of an answer, numbered in order.
struct Blocks {
    sends: Vec<Send>,
    index: usize,
    open: Option<&'static str>,
}

impl Blocks {
    fn begin(&mut self, kind: &'static str, block: Value) {
        self.close();
        let index = self.index;
        self.event(json!({"type": "content_block_start", "index": index, "content_block": block}));
        self.open = Some(kind);
    }

    fn delta(&mut self, delta: Value) {
        let index = self.index;
        self.event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    fn close(&mut self) {
        if self.open.take().is_some() {
            self.event(json!({"type": "content_block_stop", "index": self.index}));
            self.index += 1;
        }
    }

    fn event(&mut self, data: Value) {
        self.sends.push(named(data["type"].as_str().unwrap(), &data));
    }
}

pub(super) fn render(script: &Script, asked: &RecordedRequest) -> Vec<Send> {
    let mut blocks = Blocks { sends: Vec::new(), index: 0, open: None };
    let waits = script.steps.iter().take_while(|step| matches!(step, Step::Wait(_)));
    blocks.sends.extend(waits.filter_map(waiting));
    if script.begins() {
        begin(&mut blocks, script, asked);
    }
    let mut calls = 0;
    for step in script.steps.iter().skip_while(|step| matches!(step, Step::Wait(_))) {
        match step {
            Step::Say(text) => {
                blocks.begin("text", json!({"type": "text", "text": ""}));
                for word in words(text) {
                    blocks.delta(json!({"type": "text_delta", "text": word}));
                }
            }
            Step::Think(text) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                blocks.begin("thinking", block);
                for word in words(text) {
                    blocks.delta(json!({"type": "thinking_delta", "thinking": word}));
                }
            }
            Step::Sign(data) if blocks.open == Some("thinking") => {
                blocks.delta(json!({"type": "signature_delta", "signature": data}));
            }
            Step::Sign(_) => {}
            Step::Hide(data) => {
                blocks.begin("hidden", json!({"type": "redacted_thinking", "data": data}));
            }
            Step::Call { name, arguments } => {
                let id = asked.call_id(calls);
                calls += 1;
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                blocks.begin("call", block);
                for bit in bits_of(arguments) {
                    blocks.delta(json!({"type": "input_json_delta", "partial_json": bit}));
                }
            }
            Step::Wait(_) => blocks.sends.extend(waiting(step)),
        }
    }
    if let Some(reason) = script.finish("end_turn", "tool_use") {
        blocks.close();
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        let usage = script
            .usage
            .map_or(json!({"output_tokens": 1}), |usage| json!({"output_tokens": usage.output}));
        blocks.event(json!({"type": "message_delta", "delta": delta, "usage": usage}));
        blocks.event(json!({"type": "message_stop"}));
    }
    let error = |error: &str| {
        let error: Value = serde_json::from_str(error).unwrap();
        named("error", &json!({"type": "error", "error": error}))
    };
    blocks.sends.extend(script.odd_end(error));
    blocks.sends
}

fn waiting(step: &Step) -> Option<Send> {
    match step {
        Step::Wait(time) => Some(Send::Wait(*time)),
        Step::Say(_) | Step::Think(_) | Step::Sign(_) | Step::Hide(_) | Step::Call { .. } => None,
    }
}

fn begin(blocks: &mut Blocks, script: &Script, asked: &RecordedRequest) {
    let none = Usage { prompt: 0, output: 0, reasoning: 0, cache_read: 0, cache_write: 0 };
    let usage = script.usage.unwrap_or(none);
    // Claude Code merges answers that have the same id.
    let id = format!("msg_{}", asked.said().len());
    let message = json!({
        "id": id, "type": "message", "role": "assistant", "model": "scripted",
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {
            "input_tokens": usage.prompt - usage.cache_read - usage.cache_write,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": 1,
        },
    });
    blocks.event(json!({"type": "message_start", "message": message}));
    blocks.event(json!({"type": "ping"}));
}
