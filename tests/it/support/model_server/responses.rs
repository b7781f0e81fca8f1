//! OpenAI's Responses API.

use serde_json::{Value, json};

use super::{
    Ending, RecordedRequest, RequestMessage, Script, Send, Step, bits_of, list, named, text_of,
    words,
};

pub(super) fn said(body: &Value) -> Vec<RequestMessage> {
    let mut said = Vec::new();
    if let Some(system) = body["instructions"].as_str() {
        said.push(RequestMessage::new("system", system));
    }
    for item in list(&body["input"]) {
        let text = || text_of(&item["content"]);
        match (item["type"].as_str(), item["role"].as_str()) {
            (Some("function_call_output"), _) => {
                said.push(RequestMessage::new("tool", text_of(&item["output"])));
            }
            // Several items form one answer.
            (Some("function_call" | "reasoning"), _) | (_, Some("assistant")) => {
                match said.last_mut() {
                    Some(last) if last.role == "assistant" => last.text.push_str(&text()),
                    Some(_) | None => said.push(RequestMessage::new("assistant", text())),
                }
            }
            (_, Some("system" | "developer")) => said.push(RequestMessage::new("system", text())),
            (_, _) => said.push(RequestMessage::new("user", text())),
        }
    }
    said
}

/// The output items of an answer, numbered in order.
struct Items {
    sends: Vec<Send>,
    output: Vec<Value>,
}

impl Items {
    fn event(&mut self, mut data: Value) {
        data["sequence_number"] = json!(self.sends.len());
        self.sends.push(named(data["type"].as_str().unwrap(), &data));
    }

    fn added(&mut self, item: Value) {
        let index = self.output.len();
        let kind = "response.output_item.added";
        self.event(json!({"type": kind, "output_index": index, "item": item}));
    }

    fn delta(&mut self, kind: &str, delta: &str) {
        let index = self.output.len();
        self.event(json!({
            "type": kind, "output_index": index, "item_id": format!("item_{index}"), "delta": delta,
        }));
    }

    fn done(&mut self, item: Value) {
        let index = self.output.len();
        self.event(json!({
            "type": "response.output_item.done", "output_index": index, "item": item,
        }));
        self.output.push(item);
    }
}

pub(super) fn render(script: &Script, asked: &RecordedRequest) -> Vec<Send> {
    let mut items = Items { sends: Vec::new(), output: Vec::new() };
    let mut begins = script.begins();
    let mut thought: Option<String> = None;
    let mut calls = 0;
    for step in &script.steps {
        if let Step::Wait(time) = step {
            items.sends.push(Send::Wait(*time));
            continue;
        }
        if std::mem::take(&mut begins) {
            begin(&mut items);
        }
        match step {
            Step::Say(text) => say(&mut items, text),
            Step::Think(text) => {
                items.added(json!({"type": "reasoning", "summary": []}));
                for word in words(text) {
                    items.delta("response.reasoning_summary_text.delta", word);
                }
                thought = Some(text.clone());
            }
            Step::Sign(data) | Step::Hide(data) => {
                let summary =
                    thought.take().map(|text| json!({"type": "summary_text", "text": text}));
                let summary: Vec<Value> = summary.into_iter().collect();
                items.done(json!({
                    "type": "reasoning", "id": "rs_scripted", "summary": summary,
                    "encrypted_content": data,
                }));
            }
            Step::Call { name, arguments } => {
                let id = asked.call_id(calls);
                calls += 1;
                let item = |arguments: &str| function_call(&id, name, arguments);
                items.added(item(""));
                for bit in bits_of(arguments) {
                    items.delta("response.function_call_arguments.delta", &bit);
                }
                items.done(item(arguments));
            }
            Step::Wait(_) => {}
        }
    }
    if begins {
        begin(&mut items);
    }
    end(items, script)
}

/// Codex puts the tools of a server into a namespace, written before a dot here.
fn function_call(id: &str, name: &str, arguments: &str) -> Value {
    let mut call = json!({
        "type": "function_call", "id": format!("fc_{id}"), "call_id": id,
        "name": name, "arguments": arguments,
    });
    if let Some((namespace, name)) = name.split_once('.') {
        call["namespace"] = json!(namespace);
        call["name"] = json!(name);
    }
    call
}

fn begin(items: &mut Items) {
    let response = json!({"id": "resp_scripted", "status": "in_progress", "output": []});
    items.event(json!({"type": "response.created", "response": response}));
}

fn say(items: &mut Items, text: &str) {
    items.added(json!({"type": "message", "role": "assistant", "content": []}));
    for word in words(text) {
        items.delta("response.output_text.delta", word);
    }
    let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
    items.done(json!({"type": "message", "role": "assistant", "content": content}));
}

fn end(mut items: Items, script: &Script) -> Vec<Send> {
    if script.finish("", "").is_some() {
        let reason = match &script.ending {
            Ending::Finish(reason) => json!({ "reason": reason }),
            _ => Value::Null,
        };
        let status = if reason.is_null() { "completed" } else { "incomplete" };
        let usage = script.usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cache_read},
                "output_tokens": usage.output,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.output,
            })
        });
        let response = json!({
            "id": "resp_scripted", "status": status, "incomplete_details": reason, "error": null,
            "output": items.output, "usage": usage,
        });
        items.event(json!({"type": format!("response.{status}"), "response": response}));
    }
    let failed = |error: &str| {
        let error: Value = serde_json::from_str(error).unwrap();
        let response = json!({"id": "resp_scripted", "status": "failed", "error": error});
        named("response.failed", &json!({"type": "response.failed", "response": response}))
    };
    items.sends.extend(script.odd_end(failed));
    items.sends
}
