//! A model server of the OpenAI kind, on a port of its own, that does what prompts tell it to.
//!
//! The lines at the end of the last user message that begin with `@` are answers: the first one to
//! the message itself, the next one to the results of the first one's tool calls, and so on. An
//! answer is made of steps, parted by ` | `:
//!
//! ```text
//! @think let me see | say I will look | call read {"path": "a"} | call grep {"for": "b"}
//! @say it is in a | usage 100 20 5
//! ```
//!
//! `say` and `think` come word by word, the arguments of calls in turns. By itself an answer ends
//! like OpenAI's; otherwise by `finish <reason>`, `cut` (the connection breaks), `end` (it is
//! closed in order), `done` (the usual last line without a reason), `hang`, `garbage`,
//! `error <json>`. `status <code> [<header>=<value> …]` refuses, `once <code> …` only the first
//! time, both with what `say` says. `{authorization}` is the header of that name.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

const NOTHING_LEFT: &str = "say nothing is left to say";
/// Events are sent in bits of this many bytes, so that nobody relies on where they are cut.
const BIT: usize = 13;
const LONG: Duration = Duration::from_secs(30);

/// A handle; it serves until the test's runtime ends.
#[derive(Clone)]
pub struct ModelServer {
    port: u16,
    known: Arc<Known>,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
}

struct Known {
    asked: Mutex<Vec<Asked>>,
    failed_once: Mutex<HashSet<String>>,
    /// How many answers are under way.
    answering: watch::Sender<usize>,
}

impl ModelServer {
    pub async fn start() -> ModelServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let known = Arc::new(Known {
            asked: Mutex::default(),
            failed_once: Mutex::default(),
            answering: watch::Sender::new(0),
        });
        let router = Router::new().fallback(answer).with_state(known.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        ModelServer { port, known }
    }

    /// As in `OPENAI_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// All requests so far, oldest first.
    pub fn asked(&self) -> Vec<Asked> {
        self.known.asked.lock().unwrap().clone()
    }

    /// Waits until this many answers are under way.
    pub async fn until_answering(&self, number: usize) {
        let mut answering = self.known.answering.subscribe();
        let reached = answering.wait_for(|answering| *answering == number);
        tokio::time::timeout(LONG, reached).await.expect("it stays as it is").unwrap();
    }
}

async fn answer(
    State(known): State<Arc<Known>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let authorization =
        headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let line = line(&body);
    let line = line.replace("{authorization}", authorization.as_deref().unwrap_or_default());
    let script = Script::parse(&line, &body);
    known.asked.lock().unwrap().push(Asked { path: uri.path().to_owned(), authorization, body });
    match script.refusal {
        Some(refusal) if !refusal.once || known.failed_once.lock().unwrap().insert(line) => {
            refusal.response(&script.said)
        }
        Some(_) | None => streamed(script.sends, known),
    }
}

/// The answer that is due, by how many there were since the last user message.
fn line(body: &Value) -> String {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let prompt = messages.iter().rposition(|message| message["role"] == "user");
    let (before, since) = messages.split_at(prompt.map_or(0, |prompt| prompt + 1));
    let turn = since.iter().filter(|message| message["role"] == "assistant").count();
    let text = before.last().and_then(|prompt| prompt["content"].as_str()).unwrap_or_default();
    // Prompts that nobody answered stand in front of this one.
    let own = text.rsplit("\n\n").find(|block| block.lines().any(|line| line.starts_with('@')));
    let mut lines = own.unwrap_or_default().lines().filter_map(|line| line.strip_prefix('@'));
    lines.nth(turn).unwrap_or(NOTHING_LEFT).to_owned()
}

enum Send {
    Event(String),
    Break,
    Hang,
}

struct Refusal {
    status: u16,
    headers: Vec<(String, String)>,
    once: bool,
}

impl Refusal {
    fn parse(text: &str, once: bool) -> Refusal {
        let mut words = text.split_whitespace();
        let status = words.next().unwrap().parse().unwrap();
        let headers = words.filter_map(|word| word.split_once('='));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Refusal { status, headers, once }
    }

    fn response(&self, said: &str) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let body = json!({"error": {"message": said, "type": "scripted", "code": null}});
        response.body(Body::from(body.to_string())).unwrap()
    }
}

/// An answer as it will be sent.
#[derive(Default)]
struct Script {
    refusal: Option<Refusal>,
    said: String,
    sends: Vec<Send>,
    /// Names and arguments, not sent yet.
    calls: Vec<(String, String)>,
    calls_before: usize,
    usage: Option<Value>,
}

impl Script {
    fn parse(line: &str, body: &Value) -> Script {
        let calls_before = body["messages"].as_array().map_or(0, Vec::len);
        let mut script = Script { calls_before, ..Script::default() };
        script.delta(json!({"role": "assistant", "content": ""}));
        let mut finish = None;
        for step in line.split(" | ") {
            let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
            match verb {
                "say" => {
                    script.said.push_str(rest);
                    script.words("content", rest);
                }
                "think" => script.words("reasoning_content", rest),
                "call" => {
                    let (name, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
                    script.calls.push((name.to_owned(), arguments.to_owned()));
                }
                "usage" => script.usage = Some(usage(rest)),
                "finish" => finish = Some(rest),
                "status" => script.refusal = Some(Refusal::parse(rest, false)),
                "once" => script.refusal = Some(Refusal::parse(rest, true)),
                "end" => return script.ended([]),
                "done" => return script.ended([event("[DONE]")]),
                "cut" => return script.ended([Send::Break]),
                "hang" => return script.ended([Send::Hang]),
                "garbage" => return script.ended([event("{not json}")]),
                "error" => return script.ended([event(&format!(r#"{{"error": {rest}}}"#))]),
                unknown => panic!("no step is called `{unknown}`"),
            }
        }
        let usual = if script.calls.is_empty() { "stop" } else { "tool_calls" };
        script.send_calls();
        script.choice(json!({}), json!(finish.unwrap_or(usual)));
        let wanted = body["stream_options"]["include_usage"] == true;
        if let Some(usage) = script.usage.take().filter(|_| wanted) {
            script.sends.push(chunk(json!([]), usage));
        }
        script.ended([event("[DONE]")])
    }

    fn ended<const N: usize>(mut self, last: [Send; N]) -> Script {
        self.send_calls();
        self.sends.extend(last);
        self
    }

    fn words(&mut self, field: &str, text: &str) {
        for word in text.split_inclusive(' ') {
            self.delta(json!({ field: word }));
        }
    }

    /// First who is called, then a few letters of everybody's arguments at a time.
    fn send_calls(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        for (index, (name, _)) in calls.iter().enumerate() {
            let id = format!("call_{}_{index}", self.calls_before);
            let function = json!({"name": name, "arguments": ""});
            let call = json!({"index": index, "id": id, "type": "function", "function": function});
            self.delta(json!({"tool_calls": [call]}));
        }
        let mut left: Vec<Vec<char>> =
            calls.iter().map(|(_, text)| text.chars().collect()).collect();
        while left.iter().any(|letters| !letters.is_empty()) {
            for (index, letters) in left.iter_mut().enumerate() {
                let bit = letters.drain(..letters.len().min(5)).collect::<String>();
                let call = json!({"index": index, "function": {"arguments": bit}});
                self.delta(json!({"tool_calls": [call]}));
            }
        }
    }

    fn delta(&mut self, delta: Value) {
        self.choice(delta, Value::Null);
    }

    fn choice(&mut self, delta: Value, finish: Value) {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        self.sends.push(chunk(json!([choice]), Value::Null));
    }
}

fn usage(numbers: &str) -> Value {
    let numbers = numbers.split_whitespace().map(|number| number.parse().unwrap());
    let numbers = numbers.collect::<Vec<u64>>();
    let reasoning = numbers.get(2).copied().unwrap_or(0);
    json!({
        "prompt_tokens": numbers[0],
        "completion_tokens": numbers[1],
        "total_tokens": numbers[0] + numbers[1],
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
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

fn event(data: &str) -> Send {
    Send::Event(format!("data: {data}\n\n"))
}

fn streamed(sends: Vec<Send>, known: Arc<Known>) -> Response<Body> {
    let under_way = UnderWay::new(known);
    let bits = sends.into_iter().flat_map(|send| match send {
        Send::Event(text) => {
            text.as_bytes().chunks(BIT).map(|bit| Some(Ok(Bytes::copy_from_slice(bit)))).collect()
        }
        Send::Break => vec![Some(Err(io::Error::other("as the script has it")))],
        Send::Hang => vec![None],
    });
    let body = stream::unfold((bits, under_way), async |(mut bits, under_way)| {
        match bits.next()? {
            Some(Ok(bit)) => Some((Ok(bit), (bits, under_way))),
            Some(Err(error)) => {
                // What was sent before gets its chance to leave.
                tokio::task::yield_now().await;
                Some((Err(error), (bits, under_way)))
            }
            None => std::future::pending().await,
        }
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(body)).unwrap()
}

/// Counted from the first byte until the last one is sent, or the caller has gone.
struct UnderWay(Arc<Known>);

impl UnderWay {
    fn new(known: Arc<Known>) -> UnderWay {
        known.answering.send_modify(|answering| *answering += 1);
        UnderWay(known)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.answering.send_modify(|answering| *answering -= 1);
    }
}
