//! A client of an OpenCode server, real or stub: prompts, and the events that follow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asyncagents::net;
use futures_util::StreamExt as _;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Enough for a cold server on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone)]
pub struct Talk {
    client: Client,
    url: String,
    password: Option<String>,
}

/// All events received so far; the stream is closed when this is dropped.
pub struct EventRecorder {
    heard: Arc<Mutex<Vec<Value>>>,
    listening: JoinHandle<()>,
}

impl Talk {
    pub fn to(url: impl Into<String>) -> Talk {
        let client = net::plain().timeout(PATIENCE).build().unwrap();
        Talk { client, url: url.into(), password: None }
    }

    pub fn with_password(url: impl Into<String>, password: &str) -> Talk {
        Talk { password: Some(password.to_owned()), ..Talk::to(url) }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.password {
            Some(password) => request.basic_auth("opencode", Some(password)),
            None => request,
        }
    }

    /// Status and body, which is null when it is not JSON.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let request = self.request(method, path);
        let request = if let Some(body) = body { request.json(body) } else { request };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let body = response.bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(Method::POST, path, Some(body)).await;
        assert!(status < 300, "{path}: {status} {answer}");
        answer
    }

    pub async fn delete(&self, path: &str) -> Value {
        let (status, body) = self.call(Method::DELETE, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Creates a session; returns its id.
    pub async fn session(&self, wish: &Value) -> String {
        self.post("/session", wish).await["id"].as_str().unwrap().to_owned()
    }

    pub async fn prompt(&self, session: &str, text: &str) {
        let body = json!({"agent": "build", "parts": [{"type": "text", "text": text}]});
        self.post(&format!("/session/{session}/prompt_async"), &body).await;
    }

    pub async fn messages(&self, session: &str) -> Vec<Value> {
        let messages = self.get(&format!("/session/{session}/message")).await;
        serde_json::from_value(messages).unwrap()
    }

    /// Subscribes, and waits until events do arrive: a real server reports a stream as connected
    /// too early.
    pub async fn listen_closely(&self) -> EventRecorder {
        let ears = self.listen().await;
        let toast = json!({"message": "can you hear me?", "variant": "info"});
        let hears = |ears: &EventRecorder| {
            ears.all().iter().any(|event| event["payload"]["type"] == "tui.toast.show")
        };
        let started = Instant::now();
        while !hears(&ears) {
            assert!(started.elapsed() < PATIENCE, "no event is heard");
            self.post("/tui/show-toast", &toast).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ears
    }

    /// Subscribes; events from now on are recorded.
    pub async fn listen(&self) -> EventRecorder {
        // A stream has no end, so the time-out must not apply.
        let request = self.request(Method::GET, "/global/event").timeout(PATIENCE * 100);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        let listening = tokio::spawn(async move {
            let mut stream = response.bytes_stream();
            let mut text = Vec::new();
            while let Some(Ok(bytes)) = stream.next().await {
                text.extend_from_slice(&bytes);
                while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
                    let record: Vec<u8> = text.drain(..end + 2).collect();
                    let data = record.strip_prefix(b"data: ").expect("only data");
                    hearing.lock().unwrap().push(serde_json::from_slice(data).unwrap());
                }
            }
        });
        let ears = EventRecorder { heard, listening };
        ears.until("it is connected", |ears| !ears.all().is_empty()).await;
        ears
    }
}

impl EventRecorder {
    /// With their envelopes.
    pub fn all(&self) -> Vec<Value> {
        self.heard.lock().unwrap().clone()
    }

    /// The events of one session, without the duplicate records.
    pub fn events(&self, session: &str) -> Vec<Value> {
        let all = self.all().into_iter().map(|mut event| event["payload"].take());
        all.filter(|payload| payload["properties"]["sessionID"] == session).collect()
    }

    pub fn of_type(&self, session: &str, kind: &str) -> Vec<Value> {
        self.events(session).into_iter().filter(|event| event["type"] == kind).collect()
    }

    pub fn is_over(&self) -> bool {
        self.listening.is_finished()
    }

    /// Waits until the session was idle this many times in all.
    pub async fn until_idle(&self, session: &str, times: usize) {
        let what = format!("{session} is idle {times} times");
        self.until(&what, |ears| ears.of_type(session, "session.idle").len() >= times).await;
    }

    /// Waits for an event of this type.
    pub async fn until_event(&self, session: &str, kind: &str) -> Value {
        self.until(kind, |ears| !ears.of_type(session, kind).is_empty()).await;
        self.of_type(session, kind).remove(0)
    }

    pub async fn until(&self, what: &str, condition: impl Fn(&EventRecorder) -> bool) {
        let started = Instant::now();
        while !condition(self) {
            let types: Vec<Value> =
                self.all().iter().map(|event| event["payload"]["type"].clone()).collect();
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}: {types:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// A short label of an event: `message.part.updated tool:bash/completed`.
pub fn label(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    let properties = &event["properties"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let details = match kind {
        "session.status" => text(&properties["status"]["type"]),
        "session.error" => text(&properties["error"]["name"]),
        "message.updated" => about_message(&properties["info"]),
        "message.part.updated" if properties["part"]["type"] == "tool" => {
            let part = &properties["part"];
            format!("tool:{}/{}", text(&part["tool"]), text(&part["state"]["status"]))
        }
        "message.part.updated" => text(&properties["part"]["type"]),
        _ => return kind.to_owned(),
    };
    format!("{kind} {details}")
}

fn about_message(info: &Value) -> String {
    let mut words = vec![info["role"].as_str().unwrap_or_default().to_owned()];
    if info["time"].get("completed").is_some() {
        words.push("completed".to_owned());
    }
    if let Some(finish) = info["finish"].as_str() {
        words.push(format!("finish={finish}"));
    }
    if let Some(name) = info["error"]["name"].as_str() {
        words.push(format!("error={name}"));
    }
    words.join(" ")
}

/// The labels of events. How a text was split into deltas does not matter.
pub fn labels(events: &[Value]) -> Vec<String> {
    let mut labels: Vec<String> = events.iter().map(label).collect();
    labels.dedup_by(|next, last| next == last && next == "message.part.delta");
    labels
}

/// Keys, in order, and types, recursively.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("boolean"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(values) => values.iter().map(shape).collect(),
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> =
                map.iter().map(|(name, value)| (name, shape(value))).collect();
            json!(sorted)
        }
    }
}
