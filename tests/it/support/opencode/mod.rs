//! A stub OpenCode server in the test process: the routes, messages and events of version 1.18.33
//! as recorded (`samples/opencode`; `opencode_stub.rs` compares them). Prompts are scripts
//! (`script.rs`); tests inject the faults.
//!
//! ```text
//! let server = OpenCode::start().await;
//! let parent = server.parent("/tmp").await;
//! server.lose_events(0.3, 7);
//! server.restart_on_new_port().await;
//! assert_eq!(server.calls("GET /session/status"), 2);
//! ```

mod compaction;
mod hub;
mod ids;
mod prompt;
mod routes;
mod runs;
mod script;
mod tools;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use asyncagents::net;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::hub::Faults;
use self::world::{Continuation, World};

/// The working directory of the server.
pub const DIRECTORY: &str = "/tmp";
/// The models of the provider `scripted`; the first one is the default.
pub const MODELS: [&str; 2] = ["first", "second"];
const AGENTS: &str = include_str!("../../samples/opencode/agents.json");
const PATIENCE: Duration = Duration::from_secs(30);

/// A handle; clones share the server.
#[derive(Clone)]
pub struct OpenCode(Arc<Server>);

/// A recorded POST, for instance to `/session/{id}/prompt_async`.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedPost {
    pub path: String,
    pub body: Value,
}

/// The new input of one model request: visible and synthetic texts.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInput {
    pub session: String,
    pub texts: Vec<String>,
}

/// An injected fault of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The request is refused without an effect.
    Status(u16),
    /// The connection is cut before the request has an effect.
    Cut,
    /// The request is executed, and the connection is cut instead of a response.
    AnswerLost,
    /// The request is executed, and the response never arrives.
    AnswerHangs,
}

struct Server {
    world: Mutex<World>,
    knobs: Mutex<Knobs>,
    calls: Mutex<BTreeMap<String, usize>>,
    faults: Mutex<Vec<(String, Fault, usize)>>,
    life: Mutex<Life>,
}

/// One process lifetime, from a start to the next stop.
#[derive(Clone)]
struct Life {
    port: u16,
    over: CancellationToken,
}

#[derive(Clone)]
struct Knobs {
    password: Option<String>,
    /// The delays from the 204 to the stored message, and from there to the busy status.
    gaps: (Duration, Duration),
    between_idles: Duration,
    heartbeat: Duration,
    /// The delay from `server.connected` to the first event that is delivered.
    deaf: Duration,
    delay: Duration,
    black_hole: bool,
    refusing: Option<u16>,
}

impl OpenCode {
    pub async fn start() -> OpenCode {
        OpenCode::with_password(None).await
    }

    /// With HTTP Basic authentication for the user `opencode`.
    pub async fn start_with_password(password: &str) -> OpenCode {
        OpenCode::with_password(Some(password.to_owned())).await
    }

    async fn with_password(password: Option<String>) -> OpenCode {
        let agents = serde_json::from_str(AGENTS).unwrap();
        let knobs = Knobs {
            password,
            gaps: (Duration::from_millis(2), Duration::from_millis(2)),
            between_idles: Duration::from_millis(5),
            heartbeat: Duration::from_secs(10),
            deaf: Duration::ZERO,
            delay: Duration::ZERO,
            black_hole: false,
            refusing: None,
        };
        let server = OpenCode(Arc::new(Server {
            world: Mutex::new(World::new(agents)),
            knobs: Mutex::new(knobs),
            calls: Mutex::default(),
            faults: Mutex::default(),
            life: Mutex::new(Life { port: 0, over: CancellationToken::new() }),
        }));
        server.serve(0).await;
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    pub fn port(&self) -> u16 {
        self.0.life().port
    }

    // Stopping and restarting.

    /// Like a kill: runs are lost, unfinished answers stay unfinished, and no event is sent.
    pub fn stop(&self) {
        self.0.life().over.cancel();
        self.0.world().forget();
    }

    /// Restarts on the same port.
    pub async fn start_again(&self) {
        self.serve(self.port()).await;
    }

    pub async fn restart(&self) {
        self.stop();
        self.start_again().await;
    }

    pub async fn restart_on_new_port(&self) {
        self.stop();
        self.serve(0).await;
    }

    async fn serve(&self, port: u16) {
        let started = Instant::now();
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", port)).await {
                Ok(listener) => break listener,
                // The old socket is released only when its task has ended.
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let port = listener.local_addr().unwrap().port();
        let over = CancellationToken::new();
        *self.0.life.lock().unwrap() = Life { port, over: over.clone() };
        let router = routes::router(self.0.clone(), over);
        self.0.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        let server = self.0.clone();
        self.0.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                server.world().hub.release();
            }
        });
    }

    // Actions of a user in the TUI.

    /// A user's conversation with one answered prompt.
    pub async fn parent(&self, directory: &str) -> String {
        let body = json!({"title": "a conversation"});
        let session = self.post(&format!("/session?directory={directory}"), &body).await;
        let id = session["id"].as_str().unwrap().to_owned();
        self.prompt(&id, "hello\n@say good morning").await;
        self.until("the parent is idle", |server| {
            server.is_idle(&id) && server.messages(&id).len() == 2
        })
        .await;
        id
    }

    /// The user types into a session.
    pub async fn prompt(&self, session: &str, text: &str) {
        let body = json!({"agent": "build", "parts": [{"type": "text", "text": text}]});
        self.post(&format!("/session/{session}/prompt_async"), &body).await;
    }

    /// The user presses escape.
    pub async fn abort(&self, session: &str) {
        self.post(&format!("/session/{session}/abort"), &json!({})).await;
    }

    pub fn delete(&self, session: &str) {
        self.0.world().delete(session);
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let client = net::plain().build().unwrap();
        let mut request = client.post(format!("{}{path}", self.url())).json(body);
        if let Some(password) = self.0.knobs().password {
            request = request.basic_auth("opencode", Some(password));
        }
        let response = request.send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {response:?}");
        response.json().await.unwrap_or_default()
    }

    // How a hanging model continues.

    /// The model says this and finishes.
    pub fn finish(&self, session: &str, text: &str) {
        self.tell(session, Continuation::Finish(text.to_owned()));
    }

    /// The model server refuses.
    pub fn fail(&self, session: &str, status: u16, message: &str) {
        self.tell(session, Continuation::Fail { status, message: message.to_owned() });
    }

    fn tell(&self, session: &str, told: Continuation) {
        let world = self.0.world();
        let running = world.runs.get(session).expect("nobody works on this session");
        assert!(running.told.send(told).is_ok(), "it listens as long as it is known");
    }

    // Configuration.

    /// The tool needs a permission unless a rule of the session says otherwise.
    pub fn ask_for(&self, tool: &str) {
        let rule = json!({"permission": tool, "pattern": "*", "action": "ask"});
        self.0.world().rules.push(rule);
    }

    /// `mode` is primary, subagent or all.
    pub fn add_agent(&self, name: &str, mode: &str) {
        let agent = json!({"name": name, "mode": mode, "permission": [], "options": {}});
        self.0.world().agents.push(agent);
    }

    /// An answer that used more tokens triggers a compaction.
    pub fn limit_context(&self, tokens: u64) {
        self.0.world().context_limit = tokens;
    }

    /// Sets the delays from the 204 to the stored message, and from there to the busy status.
    pub fn be_slow_to_start(&self, stored_after: Duration, busy_after: Duration) {
        self.0.change(|knobs| knobs.gaps = (stored_after, busy_after));
    }

    /// Sets the delay between the two idle events of a failure.
    pub fn pause_between_idles(&self, pause: Duration) {
        self.0.change(|knobs| knobs.between_idles = pause);
    }

    pub fn beat_every(&self, heartbeat: Duration) {
        self.0.change(|knobs| knobs.heartbeat = heartbeat);
    }

    /// A real server reports a stream as connected up to 100 ms before it delivers events.
    pub fn connect_late(&self, deaf: Duration) {
        self.0.change(|knobs| knobs.deaf = deaf);
    }

    // Faults.

    /// Loses this share of the events.
    pub fn lose_events(&self, share: f64, seed: u64) {
        self.0.world().hub.set_faults(Faults { lose: share, ..Faults::default() }, seed);
    }

    /// Loses, duplicates and reorders events, each with this probability.
    pub fn shake_events(&self, share: f64, seed: u64) {
        let faults = Faults { lose: share, duplicate: share, reorder: share };
        self.0.world().hub.set_faults(faults, seed);
    }

    pub fn duplicate_events(&self, share: f64, seed: u64) {
        self.0.world().hub.set_faults(Faults { duplicate: share, ..Faults::default() }, seed);
    }

    pub fn reorder_events(&self, share: f64, seed: u64) {
        self.0.world().hub.set_faults(Faults { reorder: share, ..Faults::default() }, seed);
    }

    /// Loses the next event of this type, for instance `session.idle`.
    pub fn lose_next(&self, kind: &str) {
        self.0.world().hub.lose_next(kind);
    }

    /// Closes the open event streams; new ones can be opened at once.
    pub fn close_streams(&self) {
        self.0.world().hub.close();
    }

    /// Silences the open event streams, which only a time-out can detect.
    pub fn mute_streams(&self) {
        self.0.world().hub.mute(true);
    }

    pub fn unmute_streams(&self) {
        self.0.world().hub.mute(false);
    }

    /// Delays every response.
    pub fn delay(&self, delay: Duration) {
        self.0.change(|knobs| knobs.delay = delay);
    }

    /// Accepts connections and never responds to their requests, not even later.
    pub fn swallow_requests(&self) {
        self.0.change(|knobs| knobs.black_hole = true);
    }

    /// Refuses every request with this status.
    pub fn refuse_with(&self, status: u16) {
        self.0.change(|knobs| knobs.refusing = Some(status));
    }

    /// Stops delaying, swallowing and refusing requests.
    pub fn behave(&self) {
        self.0.change(|knobs| {
            (knobs.delay, knobs.black_hole, knobs.refusing) = (Duration::ZERO, false, None);
        });
        self.0.faults.lock().unwrap().clear();
    }

    /// The next `times` requests on a route fail like this. Routes are written `POST
    /// /session/{id}/prompt_async`.
    pub fn spoil(&self, route: &str, fault: Fault, times: usize) {
        self.0.faults.lock().unwrap().push((route.to_owned(), fault, times));
    }

    // Observations.

    /// The number of requests on a route, including refused ones.
    pub fn calls(&self, route: &str) -> usize {
        self.0.calls.lock().unwrap().get(route).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> BTreeMap<String, usize> {
        self.0.calls.lock().unwrap().clone()
    }

    /// Everything posted to a route of a session, for instance `prompt_async`, oldest first.
    pub fn posts(&self, session: &str, route: &str) -> Vec<Value> {
        let path = format!("/session/{session}/{route}");
        let world = self.0.world();
        let posts = world.posts.iter().filter(|post| post.path == path);
        posts.map(|post| post.body.clone()).collect()
    }

    /// The number of posts; cheap enough to poll.
    pub fn count_posts(&self, session: &str, route: &str) -> usize {
        let path = format!("/session/{session}/{route}");
        self.0.world().posts.iter().filter(|post| post.path == path).count()
    }

    /// The inputs of the model in a session, one entry per request.
    pub fn given(&self, session: &str) -> Vec<Vec<String>> {
        let world = self.0.world();
        let given = world.given.iter().filter(|given| given.session == session);
        given.map(|given| given.texts.clone()).collect()
    }

    pub fn session(&self, id: &str) -> Option<Value> {
        self.0.world().session(id).ok().map(|session| session.info.clone())
    }

    pub fn sessions(&self) -> Vec<Value> {
        self.0.world().sessions.iter().map(|session| session.info.clone()).collect()
    }

    pub fn children(&self, parent: &str) -> Vec<Value> {
        self.0.world().children(parent)
    }

    /// The messages as `GET /session/{id}/message` returns them.
    pub fn messages(&self, session: &str) -> Vec<Value> {
        let world = self.0.world();
        let messages = world.session(session).map(|session| session.messages.as_slice());
        messages.unwrap_or_default().iter().map(world::Message::json).collect()
    }

    pub fn is_idle(&self, session: &str) -> bool {
        let world = self.0.world();
        !world.statuses.contains_key(session) && !world.runs.contains_key(session)
    }

    /// Waits until it is busy.
    pub async fn until_busy(&self, session: &str) {
        self.until("a session is busy", |server| server.0.world().statuses.contains_key(session))
            .await;
    }

    /// Open permission requests and questions, including those of lost runs.
    pub fn asks(&self) -> Vec<Value> {
        self.0.world().asks.iter().map(|ask| ask.request.clone()).collect()
    }

    pub fn toasts(&self) -> Vec<Value> {
        self.0.world().toasts.clone()
    }

    /// All events of a session, whether delivered or not, without the duplicate records.
    pub fn events(&self, session: &str) -> Vec<Value> {
        let world = self.0.world();
        let payloads = world.hub.happened.iter().map(|event| &event["payload"]);
        let of = payloads.filter(|payload| payload["properties"]["sessionID"] == session);
        of.cloned().collect()
    }

    /// How many event streams are open.
    pub fn listeners(&self) -> usize {
        self.0.world().hub.listeners()
    }

    /// Waits until the condition holds.
    pub async fn until(&self, what: &str, condition: impl Fn(&OpenCode) -> bool) {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Server {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn knobs(&self) -> Knobs {
        self.knobs.lock().unwrap().clone()
    }

    fn change(&self, change: impl FnOnce(&mut Knobs)) {
        change(&mut self.knobs.lock().unwrap());
    }

    fn life(&self) -> Life {
        self.life.lock().unwrap().clone()
    }

    /// Spawns work that is aborted when this lifetime of the server ends.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let over = self.life().over;
        tokio::spawn(async move { over.run_until_cancelled_owned(work).await });
    }
}
