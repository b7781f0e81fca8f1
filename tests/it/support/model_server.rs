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
//! `error <json>`. `wait <ms>` pauses; before anything is said, the answer has not begun.
//! `status <code> [<header>=<value> …]` refuses, `once <code> …` only the first time, both with
//! what `say` says; `overflow` refuses a conversation as too long. `{authorization}` is the header
//! of that name.
//!
//! A session of OpenCode says who it is. Its requests for titles and summaries are answered by
//! themselves, and after a summary the script goes on where it was.

use std::collections::{HashMap, HashSet};
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
/// What OpenCode's model is told after a summary, and how it is asked for one and for a title.
const GO_ON: &str = "Continue if you have next steps";
const FOR_SUMMARY: &str = "anchored summary";
const FOR_TITLE: &str = "title generator";
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
    /// Of OpenCode: the session that asks.
    pub session: Option<String>,
    /// Of OpenCode: whose child it is.
    pub parent_session: Option<String>,
    pub body: Value,
}

/// What an answer is wanted for.
enum Purpose {
    Chat,
    GoOn,
    Summary,
    Title,
}

struct Known {
    asked: Mutex<Vec<Asked>>,
    failed_once: Mutex<HashSet<String>>,
    /// By session: the answers of the last prompt, and how many were given.
    scripts: Mutex<HashMap<String, (Vec<String>, usize)>>,
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
            scripts: Mutex::default(),
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

    /// What a session of OpenCode asked, but for titles and summaries.
    pub fn asked_by(&self, session: &str) -> Vec<Asked> {
        let mut asked = self.asked();
        asked.retain(|asked| asked.session.as_deref() == Some(session));
        asked.retain(|asked| matches!(asked.purpose(), Purpose::Chat | Purpose::GoOn));
        asked
    }

    /// Waits until this many answers are under way.
    pub async fn until_answering(&self, number: usize) {
        let mut answering = self.known.answering.subscribe();
        let reached = answering.wait_for(|answering| *answering == number);
        tokio::time::timeout(LONG, reached).await.expect("it stays as it is").unwrap();
    }
}

impl Asked {
    /// The texts of all messages with this role, oldest first.
    pub fn texts(&self, role: &str) -> Vec<String> {
        let messages = self.body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        messages.iter().filter(|message| message["role"] == role).map(text_of).collect()
    }

    fn purpose(&self) -> Purpose {
        let last = self.texts("user").pop().unwrap_or_default();
        let has_tools = self.body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        if self.texts("system").iter().any(|text| text.contains(FOR_TITLE)) {
            Purpose::Title
        } else if !has_tools && last.contains(FOR_SUMMARY) {
            Purpose::Summary
        } else if last.contains(GO_ON) {
            Purpose::GoOn
        } else {
            Purpose::Chat
        }
    }
}

async fn answer(
    State(known): State<Arc<Known>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let asked = Asked {
        path: uri.path().to_owned(),
        authorization: header("authorization"),
        session: header("x-session-id"),
        parent_session: header("x-parent-session-id"),
        body,
    };
    let line = due(&known, &asked);
    let line = line.replace("{authorization}", asked.authorization.as_deref().unwrap_or_default());
    let script = Script::parse(&line, &asked.body);
    known.asked.lock().unwrap().push(asked);
    match script.refusal {
        Some(refusal) if !refusal.once || known.failed_once.lock().unwrap().insert(line) => {
            refusal.response(&script.said)
        }
        Some(_) | None => streamed(script.sends, known).await,
    }
}

fn due(known: &Known, asked: &Asked) -> String {
    let session = asked.session.clone().unwrap_or_default();
    let mut scripts = known.scripts.lock().unwrap();
    match asked.purpose() {
        Purpose::Title => return "say a title".to_owned(),
        Purpose::Summary => return "say a summary of what was said | usage 500 20".to_owned(),
        Purpose::Chat => _ = scripts.insert(session.clone(), script(&asked.body)),
        Purpose::GoOn => {}
    }
    let Some((lines, turn)) = scripts.get_mut(&session) else { return NOTHING_LEFT.to_owned() };
    *turn += 1;
    lines.get(*turn - 1).map_or(NOTHING_LEFT, String::as_str).to_owned()
}

/// The answers of the last prompt, and how many were given since.
fn script(body: &Value) -> (Vec<String>, usize) {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let prompt = messages.iter().rposition(|message| message["role"] == "user");
    let (before, since) = messages.split_at(prompt.map_or(0, |prompt| prompt + 1));
    let turn = since.iter().filter(|message| message["role"] == "assistant").count();
    let text = before.last().map(text_of).unwrap_or_default();
    // Prompts that nobody answered stand in front of this one.
    let own = text.rsplit("\n\n").find(|block| block.lines().any(|line| line.starts_with('@')));
    let lines = own.unwrap_or_default().lines().filter_map(|line| line.strip_prefix('@'));
    (lines.map(str::to_owned).collect(), turn)
}

/// A content is a text or a list of them.
fn text_of(message: &Value) -> String {
    let content = &message["content"];
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

enum Send {
    Event(String),
    Wait(Duration),
    Break,
    Hang,
}

struct Refusal {
    status: u16,
    headers: Vec<(String, String)>,
    code: Option<&'static str>,
    once: bool,
}

impl Refusal {
    fn parse(text: &str, once: bool) -> Refusal {
        let mut words = text.split_whitespace();
        let status = words.next().unwrap().parse().unwrap();
        let headers = words.filter_map(|word| word.split_once('='));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Refusal { status, headers, code: None, once }
    }

    fn response(&self, said: &str) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let body = json!({"error": {"message": said, "type": "scripted", "code": self.code}});
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
                "wait" => {
                    script.sends.push(Send::Wait(Duration::from_millis(rest.parse().unwrap())));
                }
                "usage" => script.usage = Some(usage(rest)),
                "finish" => finish = Some(rest),
                "status" => script.refusal = Some(Refusal::parse(rest, false)),
                "once" => script.refusal = Some(Refusal::parse(rest, true)),
                "overflow" => {
                    let code = Some("context_length_exceeded");
                    script.refusal = Some(Refusal { code, ..Refusal::parse("400", false) });
                    script.said = "This model's maximum context length is 1000 tokens.".to_owned();
                }
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
        if !last.iter().any(|send| matches!(send, Send::Hang)) {
            self.begin();
        }
        self.sends.extend(last);
        self
    }

    /// The first event of an answer says whose it is.
    fn begin(&mut self) {
        if !self.sends.iter().any(|send| matches!(send, Send::Event(_))) {
            let delta = json!({"role": "assistant", "content": ""});
            let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
            self.sends.push(chunk(json!([choice]), Value::Null));
        }
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
        self.begin();
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

async fn streamed(sends: Vec<Send>, known: Arc<Known>) -> Response<Body> {
    let under_way = UnderWay::new(known);
    let mut bits = sends.into_iter().flat_map(bits).peekable();
    // Until an answer has begun, not even its head is sent.
    while let Some(pause) = bits.next_if(|bit| matches!(bit, Bit::Wait(_) | Bit::Hang)) {
        pause.wait().await;
    }
    let body = stream::unfold((bits, under_way), async |(mut bits, under_way)| {
        loop {
            let sent = match bits.next()? {
                Bit::Bytes(bytes) => Ok(bytes),
                Bit::Break => {
                    // What was sent before gets its chance to leave.
                    tokio::task::yield_now().await;
                    Err(io::Error::other("as the script has it"))
                }
                pause @ (Bit::Wait(_) | Bit::Hang) => {
                    pause.wait().await;
                    continue;
                }
            };
            return Some((sent, (bits, under_way)));
        }
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(body)).unwrap()
}

enum Bit {
    Bytes(Bytes),
    Wait(Duration),
    Break,
    Hang,
}

impl Bit {
    async fn wait(self) {
        match self {
            Bit::Wait(time) => tokio::time::sleep(time).await,
            Bit::Hang => std::future::pending().await,
            Bit::Bytes(_) | Bit::Break => {}
        }
    }
}

fn bits(send: Send) -> Vec<Bit> {
    match send {
        Send::Event(text) => {
            let bits = text.as_bytes().chunks(BIT);
            bits.map(|bit| Bit::Bytes(Bytes::copy_from_slice(bit))).collect()
        }
        Send::Wait(time) => vec![Bit::Wait(time)],
        Send::Break => vec![Bit::Break],
        Send::Hang => vec![Bit::Hang],
    }
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
