//! A scripted model server on its own port: prompts contain its answers. The request path selects
//! the wire format: OpenAI's chat and responses, Anthropic's messages, or Gemini.
//!
//! The lines at the end of the last user message that start with `@` are answers: the first one to
//! the message itself, the next one to the results of its tool calls, and so on. An answer consists
//! of steps, separated by ` | `:
//!
//! ```text
//! @think let me see | say I will look | call read {"path": "a"} | call grep {"for": "b"}
//! @say it is in a | usage 100 20 5
//! ```
//!
//! `usage` has the tokens of the whole prompt, the output, the reasoning in it, and what was read
//! from and written to the cache. `say` and `think` are streamed word by word, the arguments of
//! calls interleaved where the format allows it. `sign` adds a signature, and `hide` is reasoning
//! that is not shown. By default an answer ends as usual in its format; otherwise with `finish
//! <reason>`, `cut` (the connection breaks), `end` (it is closed cleanly), `done` (the usual last
//! line without a finish reason), `hang`, `garbage`, `error <json>`. `head <header>=<value> …` adds
//! response headers. `wait <ms>` pauses; before the first content, the response has not begun.
//! `meet <n>` is a barrier: the answer is sent once n of these have been requested. `status <code>
//! [<header>=<value> …]` refuses, `once <code> …` only the first time, both with the text of `say`;
//! `overflow` refuses a conversation as too long. `{authorization}` is replaced by the received
//! key, from whichever header. `call space.tool` calls a tool in a namespace, as Codex has them.
//!
//! A list of models (`…/models`) is sent to any client with a key, and is not recorded as a
//! request.
//!
//! OpenCode sends its session in a header. Its requests for titles and summaries get built-in
//! answers, and after a summary the script continues where it was.

mod anthropic;
mod chat;
mod gemini;
mod responses;
mod script;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::script::{Ending, Script, Step, Usage, bits_of, words};

const NOTHING_LEFT: &str = "say nothing is left to say";
/// OpenCode's prompts: to continue after a summary, for a summary, and for a title.
const GO_ON: &str = "Continue if you have next steps";
const FOR_SUMMARY: &str = "anchored summary";
const FOR_TITLE: &str = "title generator";
/// Events are sent in fragments of this many bytes, so that no decoder can rely on where they are
/// split.
const BIT: usize = 13;
const LONG: Duration = Duration::from_secs(30);

/// A handle; the server runs until the test's runtime ends.
#[derive(Clone)]
pub struct ModelServer {
    port: u16,
    known: Arc<ServerState>,
}

/// A request as it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    pub at: Instant,
    pub path: String,
    pub query: String,
    /// The key, from whichever header.
    pub authorization: Option<String>,
    /// OpenCode's session.
    pub session: Option<String>,
    /// The parent of OpenCode's session.
    pub parent_session: Option<String>,
    pub body: Value,
}

/// What a request is for.
enum Purpose {
    Chat,
    GoOn,
    Summary,
    Title,
}

struct ServerState {
    asked: Mutex<Vec<RecordedRequest>>,
    failed_once: Mutex<HashSet<String>>,
    /// By session: the answers of the last prompt, and how many were sent.
    scripts: Mutex<HashMap<String, (Vec<String>, usize)>>,
    /// The number of answers in flight.
    answering: watch::Sender<usize>,
    models: Mutex<ModelNames>,
    /// How many answers with `meet` were requested.
    meeting: watch::Sender<usize>,
}

/// The list of models and its page size.
struct ModelNames {
    names: Vec<String>,
    page: usize,
}

impl ModelServer {
    pub async fn start() -> ModelServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let known = Arc::new(ServerState {
            asked: Mutex::default(),
            failed_once: Mutex::default(),
            scripts: Mutex::default(),
            answering: watch::Sender::new(0),
            models: Mutex::new(ModelNames {
                names: vec!["scripted".to_owned(), "other".to_owned()],
                page: usize::MAX,
            }),
            meeting: watch::Sender::new(0),
        });
        let router = Router::new().fallback(answer).with_state(known.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        ModelServer { port, known }
    }

    /// The value of `OPENAI_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.origin())
    }

    /// The value of `ANTHROPIC_BASE_URL` and `GEMINI_BASE_URL`.
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the list of models: `number` of them, called `model-1` and so on, `page` per page.
    pub fn has_models(&self, number: usize, page: usize) {
        let names = (1..=number).map(|number| format!("model-{number}")).collect();
        *self.known.models.lock().unwrap() = ModelNames { names, page };
    }

    /// All requests so far, oldest first.
    pub fn asked(&self) -> Vec<RecordedRequest> {
        self.known.asked.lock().unwrap().clone()
    }

    /// The requests of an OpenCode session, without those for titles and summaries.
    pub fn asked_by(&self, session: &str) -> Vec<RecordedRequest> {
        let mut asked = self.asked();
        asked.retain(|asked| asked.session.as_deref() == Some(session));
        asked.retain(|asked| matches!(asked.purpose(), Purpose::Chat | Purpose::GoOn));
        asked
    }

    /// Waits until this many answers are in flight.
    pub async fn until_answering(&self, number: usize) {
        let mut answering = self.known.answering.subscribe();
        let reached = answering.wait_for(|answering| *answering == number);
        tokio::time::timeout(LONG, reached).await.expect("it stays as it is").unwrap();
    }
}

/// The wire format of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Chat,
    Responses,
    Anthropic,
    Gemini,
}

/// A message of a request, in any format. Results of calls have the role `tool`.
#[derive(Clone, Debug, PartialEq)]
struct RequestMessage {
    role: &'static str,
    text: String,
}

impl RequestMessage {
    fn new(role: &'static str, text: impl Into<String>) -> RequestMessage {
        RequestMessage { role, text: text.into() }
    }
}

impl Format {
    fn of(path: &str) -> Format {
        match path {
            _ if path.ends_with("/messages") => Format::Anthropic,
            _ if path.ends_with("/responses") => Format::Responses,
            _ if path.ends_with(":streamGenerateContent") => Format::Gemini,
            _ => Format::Chat,
        }
    }

    fn said(self, body: &Value) -> Vec<RequestMessage> {
        match self {
            Format::Chat => chat::said(body),
            Format::Responses => responses::said(body),
            Format::Anthropic => anthropic::said(body),
            Format::Gemini => gemini::said(body),
        }
    }

    fn render(self, script: &Script, asked: &RecordedRequest) -> Vec<Send> {
        match self {
            Format::Chat => chat::render(script, asked),
            Format::Responses => responses::render(script, asked),
            Format::Anthropic => anthropic::render(script, asked),
            Format::Gemini => gemini::render(script, asked),
        }
    }
}

impl RecordedRequest {
    fn format(&self) -> Format {
        Format::of(&self.path)
    }

    /// All messages, with the system prompt first.
    fn said(&self) -> Vec<RequestMessage> {
        self.format().said(&self.body)
    }

    /// The texts of all messages with this role, oldest first.
    pub fn texts(&self, role: &str) -> Vec<String> {
        let said = self.said().into_iter().filter(|said| said.role == role);
        said.map(|said| said.text).collect()
    }

    /// The prefix of the call ids, unique per answer.
    fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.said().len())
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
    State(known): State<Arc<ServerState>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let key = ["authorization", "x-api-key", "x-goog-api-key"].into_iter().find_map(header);
    let asked = RecordedRequest {
        at: Instant::now(),
        path: uri.path().to_owned(),
        query: uri.query().unwrap_or_default().to_owned(),
        authorization: key,
        session: header("x-session-id"),
        parent_session: header("x-parent-session-id"),
        body,
    };
    if asked.path.ends_with("/models") {
        return listed(&known, &asked, &headers);
    }
    let line = due(&known, &asked);
    let line = line.replace("{authorization}", asked.authorization.as_deref().unwrap_or_default());
    let script = Script::parse(&line);
    known.asked.lock().unwrap().push(asked.clone());
    if let Some(number) = script.meets {
        known.meeting.send_modify(|meeting| *meeting += 1);
        let _ = known.meeting.subscribe().wait_for(|meeting| *meeting >= number).await;
    }
    match &script.refusal {
        Some(refusal) if !refusal.once || known.failed_once.lock().unwrap().insert(line) => {
            refusal.response(&script.said, asked.format())
        }
        Some(_) | None => {
            let sends = asked.format().render(&script, &asked);
            streamed(sends, &script.headers, known).await
        }
    }
}

/// The list of models for clients with a key, paged where the format has pages.
fn listed(known: &ServerState, asked: &RecordedRequest, headers: &HeaderMap) -> Response<Body> {
    let key = asked.authorization.as_deref().unwrap_or_default();
    let (status, body) = match key.trim_start_matches("Bearer ") {
        "" | "none" => (401, json!({"error": {"message": "a key is needed"}})),
        _ => (200, list_page(&known.models.lock().unwrap(), asked, headers)),
    };
    Response::builder().status(status).body(body.to_string().into()).unwrap()
}

fn list_page(models: &ModelNames, asked: &RecordedRequest, headers: &HeaderMap) -> Value {
    let ModelNames { names, page } = models;
    let query = |name: &str| {
        let mut pairs = asked.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let rest = |from: usize| names[from..].iter().take(*page);
    if headers.contains_key("x-goog-api-key") {
        let from = query("pageToken").map_or(0, |token| token.parse().unwrap());
        let models: Vec<Value> =
            rest(from).map(|name| json!({"name": format!("models/{name}")})).collect();
        let next = from + models.len();
        let token = if next < names.len() { next.to_string() } else { String::new() };
        return json!({"models": models, "nextPageToken": token});
    }
    let id = |name: &String| json!({"id": name});
    if headers.contains_key("x-api-key") {
        let after = query("after_id").map(|id| names.iter().position(|name| name == id).unwrap());
        let from = after.map_or(0, |after| after + 1);
        let last = rest(from).next_back();
        let has_more = last != names.last();
        return json!({"data": rest(from).map(id).collect::<Vec<_>>(), "has_more": has_more, "last_id": last});
    }
    json!({"data": names.iter().map(id).collect::<Vec<_>>()})
}

fn due(known: &ServerState, asked: &RecordedRequest) -> String {
    let session = asked.session.clone().unwrap_or_default();
    let mut scripts = known.scripts.lock().unwrap();
    match asked.purpose() {
        Purpose::Title => return "say a title".to_owned(),
        Purpose::Summary => return "say a summary of what was said | usage 500 20".to_owned(),
        Purpose::Chat => _ = scripts.insert(session.clone(), script(&asked.said())),
        Purpose::GoOn => {}
    }
    let Some((lines, turn)) = scripts.get_mut(&session) else { return NOTHING_LEFT.to_owned() };
    *turn += 1;
    lines.get(*turn - 1).map_or(NOTHING_LEFT, String::as_str).to_owned()
}

/// The answers of the last prompt, and how many were sent since.
fn script(said: &[RequestMessage]) -> (Vec<String>, usize) {
    let prompt = said.iter().rposition(|said| said.role == "user");
    let (before, since) = said.split_at(prompt.map_or(0, |prompt| prompt + 1));
    let turn = since.iter().filter(|said| said.role == "assistant").count();
    let text = before.last().map_or("", |said| said.text.as_str());
    // Unanswered prompts are merged in front of this one.
    let own = text.rsplit("\n\n").find(|block| block.lines().any(|line| line.starts_with('@')));
    let lines = own.unwrap_or_default().lines().filter_map(|line| line.strip_prefix('@'));
    (lines.map(str::to_owned).collect(), turn)
}

/// A content is a text or a list of texts.
fn text_of(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let texts: Vec<_> = list(content).iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
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

/// Parses headers written `name=value`.
fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let pairs = words.filter_map(|word| word.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Refusal {
    fn parse(text: &str, once: bool) -> Refusal {
        let mut words = text.split_whitespace();
        let status = words.next().unwrap().parse().unwrap();
        Refusal { status, headers: pairs(words), code: None, once }
    }

    fn response(&self, said: &str, format: Format) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let error = match format {
            Format::Gemini => json!({"message": said, "code": self.status, "status": "SCRIPTED"}),
            Format::Chat | Format::Responses | Format::Anthropic => {
                json!({"message": said, "type": "scripted", "code": self.code})
            }
        };
        let body = json!({"type": "error", "error": error});
        response.body(Body::from(body.to_string())).unwrap()
    }
}

/// A named server-sent event, as most formats use it.
fn named(name: &str, data: &Value) -> Send {
    Send::Event(format!("event: {name}\ndata: {data}\n\n"))
}

fn event(data: &str) -> Send {
    Send::Event(format!("data: {data}\n\n"))
}

async fn streamed(
    sends: Vec<Send>,
    headers: &[(String, String)],
    known: Arc<ServerState>,
) -> Response<Body> {
    let under_way = InFlightAnswer::new(known);
    let mut bits = sends.into_iter().flat_map(bits).peekable();
    // Before an answer begins, not even its response headers are sent.
    while let Some(pause) = bits.next_if(|bit| matches!(bit, Bit::Wait(_) | Bit::Hang)) {
        pause.wait().await;
    }
    let body = stream::unfold((bits, under_way), async |(mut bits, under_way)| {
        loop {
            let sent = match bits.next()? {
                Bit::Bytes(bytes) => Ok(bytes),
                Bit::Break => {
                    // Let the buffered events be sent before the connection breaks.
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
    let mut response = Response::builder().header("content-type", "text/event-stream");
    for (name, value) in headers {
        response = response.header(name, value);
    }
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

/// Counts an answer from its first byte until the last one is sent or the client disconnects.
struct InFlightAnswer(Arc<ServerState>);

impl InFlightAnswer {
    fn new(known: Arc<ServerState>) -> InFlightAnswer {
        known.answering.send_modify(|answering| *answering += 1);
        InFlightAnswer(known)
    }
}

impl Drop for InFlightAnswer {
    fn drop(&mut self) {
        self.0.answering.send_modify(|answering| *answering -= 1);
    }
}
