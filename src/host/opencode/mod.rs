//! Adapter for OpenCode servers: sessions are theirs, children of the parent's session. `client.rs` speaks
//! the protocol, `translate.rs` maps it to our types, `instance.rs` keeps the connection to one server,
//! `mirror.rs` caches what its events say, `bridge.rs` reaches processes that listen on no port.
//!
//! What is relied upon was observed on real servers (1.18). Comments refer to these observations:
//!
//! - G1: a starting server accepts connections and never answers what came through them.
//! - G3: `/session/status` lists only sessions that are not idle, and a new run only after a moment.
//! - G4: idle events come twice on errors and aborts, the first before the message is complete, and one of
//!   the previous run may come after the next prompt. Only the messages say how a run ended.
//! - G5: `session.error` need not be terminal: a context overflow is compacted, and the run continues.
//! - G6: a bad agent or model is accepted, and then reported by an error event alone.
//! - G8: a fork has no parent and no rules; G9: deleting does not stop a run; G10: abort always succeeds.
//! - G11: the `tools` of a prompt replace the session's rules; G13: the agent is not remembered.
//! - G15: a part is updated several times; G16: large synchronous responses never end.
//! - G17: unknown routes answer 200 with a web page; G19: a restart leaves runs unfinished, without an event;
//!   G20: the parent of a new session is not validated.
//!
//! The locks on the maps below are released before a server is asked. Remembered locations (`places`) are a
//! cache; when in doubt all servers are asked again.

mod bridge;
mod call;
mod client;
mod contract;
mod events;
mod generation;
mod instance;
mod mirror;
mod named;
mod translate;
mod transport;
mod types;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use reqwest::Url;
use tokio::sync::{Notify, mpsc};

pub use bridge::{Bridge, Bridges, Line};
pub use generation::{SUPPORTED, Support};
pub use instance::ServerHealth;

use self::client::Client;
use self::instance::{HEALTH_TIMEOUTS, Instance};
use self::named::NO_LOGIN;
use self::transport::Transport;
use super::{Error, Location, Place};
use crate::clock::Clock;
use crate::store::Store;
use crate::task::SessionId;
use crate::task::id::fingerprint;

/// The name of the instance that was configured without one.
pub const DEFAULT: &str = "default";

/// Prefix of the names of processes that connected through the plugin.
const PLUGIN: &str = "plugin-";

/// A handle; cloning it is cheap. One with a name opens sessions on that instance only.
#[derive(Clone)]
pub struct OpenCode(Arc<Inner>, Option<String>);

struct Inner {
    store: Store,
    clock: Clock,
    login: Option<Login>,
    instances: Mutex<BTreeMap<String, Arc<Instance>>>,
    /// Serialises storing and erasing the addresses of servers that callers named.
    noting: tokio::sync::Mutex<()>,
    /// Cache: where conversations are.
    places: Mutex<HashMap<SessionId, LastPlace>>,
    /// An instance was added that needs a listener.
    changed: Notify,
    /// An instance became reachable.
    arrived: Arc<Notify>,
    bridges: Mutex<HashMap<u64, Arc<Bridge>>>,
    /// Bridges by the names of their instances.
    named: Mutex<HashMap<String, Arc<Bridge>>>,
    /// How long an instance may be gone before its runs are lost.
    patience: Duration,
    /// Since when instances have been unreachable, and when that was last checked (uptimes).
    gone: Mutex<HashMap<String, (Duration, Duration)>>,
}

/// The login for servers whose address has none.
#[derive(Clone)]
pub struct Login {
    pub name: String,
    pub password: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LastPlace {
    instance: String,
    directory: String,
}

/// Pause between attempts to ask a plugin's process who it is.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);

/// How long after our start plugins of the previous daemon may take to reconnect.
const RECONNECT_GRACE: Duration = Duration::from_secs(10);

/// The longest gap between two checks of an unreachable instance that still counts as one outage.
const LONGEST_UNWATCHED: Duration = Duration::from_secs(90);

/// Bound of the location cache; beyond it everything is located again.
const MOST_PLACES: usize = 20_000;

impl OpenCode {
    pub fn new(store: Store, clock: Clock, login: Option<Login>, patience: Duration) -> OpenCode {
        let inner = Arc::new(Inner {
            store,
            clock,
            login,
            instances: Mutex::default(),
            noting: tokio::sync::Mutex::default(),
            places: Mutex::default(),
            changed: Notify::new(),
            arrived: Arc::default(),
            bridges: Mutex::default(),
            named: Mutex::default(),
            patience,
            gone: Mutex::default(),
        });
        OpenCode(inner, None)
    }

    fn attach(&self, name: &str, address: String, transport: Transport) {
        self.attach_in(&mut self.instances(), (name, address), NO_LOGIN, transport);
    }

    fn attach_in(
        &self,
        instances: &mut BTreeMap<String, Arc<Instance>>,
        (name, address): (&str, String),
        login: u32,
        transport: Transport,
    ) {
        let client = Client::new(transport);
        let (clock, arrived) = (self.0.clock.clone(), Arc::clone(&self.0.arrived));
        let mut instance = Instance::new(name.to_owned(), address, client, clock, arrived);
        instance.login = login;
        // A replaced instance ends its listener; `listen` starts one for the new instance.
        if let Some(old) = instances.insert(name.to_owned(), Arc::new(instance)) {
            old.leave();
        }
        self.0.changed.notify_one();
    }

    /// A plugin has connected; the receiver yields what to send to it. Naming goes on in the background,
    /// because the process may not answer yet.
    fn attach_bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
        live: Vec<String>,
    ) -> (Arc<Bridge>, mpsc::UnboundedReceiver<Line>) {
        let id = self.0.clock.tick();
        let (bridge, lines) = Bridge::new(id, pid);
        let bridge = Arc::new(bridge);
        let mut bridges = self.bridges();
        bridges.retain(|_, bridge| !bridge.is_closed());
        bridges.insert(id, Arc::clone(&bridge));
        drop(bridges);
        let (host, named) = (self.clone(), Arc::clone(&bridge));
        let (directory, before) = (directory.to_owned(), before.to_owned());
        // Detached, and cancelled with the bridge. The daemon closes every bridge when it stops.
        tokio::spawn(async move {
            let bridge = Arc::clone(&named);
            bridge.until_closed(host.name(named, &directory, &before, &live)).await;
        });
        (bridge, lines)
    }

    /// Assigns the instance name. It is derived from the working and the state directory, so that the next
    /// process there takes over the tasks of the last one. Two at the same time are told apart by a number,
    /// and one that reconnects after our restart says which it was.
    async fn name(&self, bridge: Arc<Bridge>, directory: &str, before: &str, live: &[String]) {
        let transport = Transport::Bridge(Arc::clone(&bridge));
        let client = Client::new(transport.clone());
        let mut tries = 0;
        let state = loop {
            match client.state_directory(HEALTH_TIMEOUTS.pause(tries)).await {
                Ok(state) => break state,
                Err(_) if bridge.is_closed() => return,
                // A starting process swallows requests (G1): asked again, it answers.
                Err(error) => {
                    let pid = bridge.pid;
                    tracing::warn!(
                        pid,
                        %error,
                        "OpenCode plugin connected but its process does not answer; retrying"
                    );
                    tokio::time::sleep(BETWEEN_QUESTIONS).await;
                    tries += 1;
                }
            }
        };
        let stem = format!("{PLUGIN}{:08x}", fingerprint(&[&state, directory]));
        let came_before = before.starts_with(&stem);
        // Processes with live tasks reconnect within moments of our restart. A newcomer waits, lest it take
        // the name of one of them and its tasks with it.
        if !came_before && live.iter().any(|instance| instance.starts_with(&stem)) {
            let left = RECONNECT_GRACE.saturating_sub(self.0.clock.uptime());
            tokio::time::sleep(left).await;
        }
        // Held until it is attached, so that two plugins at once do not get the same name.
        let mut named = self.0.named.lock();
        if bridge.is_closed() {
            return;
        }
        named.retain(|_, other| !other.is_closed());
        let numbered = |n| if n == 1 { stem.clone() } else { format!("{stem}-{n}") };
        let first = came_before.then(|| before.to_owned());
        let mut names = first.into_iter().chain((1..).map(numbered));
        // The same process may hold several bridges in turn: after a reconnect it gets its name back.
        let free = |name: &String| named.get(name).is_none_or(|other| other.pid == bridge.pid);
        let name = names.find(free).unwrap_or(stem.clone());
        named.insert(name.clone(), Arc::clone(&bridge));
        self.attach(&name, format!("plugin in process {}", bridge.pid), transport);
        drop(named);
        bridge.say(Line::Name(name));
    }

    fn bridges(&self) -> MutexGuard<'_, HashMap<u64, Arc<Bridge>>> {
        self.0.bridges.lock()
    }

    fn is_empty(&self) -> bool {
        self.instances().is_empty()
    }

    fn instances(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Instance>>> {
        self.0.instances.lock()
    }

    fn places(&self) -> MutexGuard<'_, HashMap<SessionId, LastPlace>> {
        self.0.places.lock()
    }

    fn instance(&self, name: &str) -> Result<Arc<Instance>, Error> {
        let found = self.instances().get(name).cloned();
        found.ok_or_else(|| self.gone(name))
    }

    fn gone(&self, name: &str) -> Error {
        let unknown = format!("the address of OpenCode server `{name}` is no longer known");
        Error::Unreachable(if name.starts_with(PLUGIN) {
            format!("OpenCode (`{name}`) is not running; open it again")
        } else if OpenCode::is_handed(name) {
            format!("{unknown}; set ASYNCAGENTS_OPENCODE_URL to it and try again")
        } else {
            format!("{unknown}; `asyncagents hosts add {name} URL` sets it")
        })
    }

    fn remember(&self, session: &SessionId, instance: &str, directory: &str) {
        let mut places = self.places();
        if places.len() >= MOST_PLACES {
            places.clear();
        }
        let spot = LastPlace { instance: instance.to_owned(), directory: directory.to_owned() };
        places.insert(session.clone(), spot);
    }

    fn forget_places_of(&self, gone: &[SessionId]) {
        let mut places = self.places();
        gone.iter().for_each(|session| drop(places.remove(session)));
    }

    /// Finds the instance and directory of a session: as the address says, else from the cache, else by
    /// asking the servers.
    async fn locate(&self, place: &Place) -> Result<(Arc<Instance>, String), Error> {
        let session = &place.session;
        let last = match &place.location {
            // A child runs only where it was opened: another process that shares its sessions knows nothing
            // of the run.
            Location::Opened { instance, directory } => {
                return Ok((self.instance(instance)?, directory.clone()));
            }
            Location::Conversation { last } => last.clone(),
        };
        // A cached location counts only while its instance is up: another process may have the conversation
        // open by now.
        let known = self.places().get(session).cloned();
        if let Some(LastPlace { instance, directory }) = &known
            && let Ok(instance) = self.instance(instance)
            && instance.is_up()
        {
            return Ok((instance, directory.clone()));
        }
        let last_instance = known.map(|spot| spot.instance).or(last);
        let mut all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        if all.is_empty() && last_instance.is_none() {
            return Err(no_server());
        }
        // Several processes may share their sessions, so more than one could answer. The reported one is
        // right while it is up; a plugin process that has ended is not asked.
        let named = last_instance.as_ref().and_then(|name| self.instance(name).ok());
        match named {
            Some(named) if named.is_up() => all = vec![named],
            Some(_) | None => all.retain(|i| i.is_up() || !i.name.starts_with(PLUGIN)),
        }
        let mut silent = last_instance.map(|name| self.gone(&name));
        let asked = all.iter().map(|instance| async move {
            let found = instance.ready().await?.session(session).await?;
            Ok((Arc::clone(instance), found.directory))
        });
        for answer in join_all(asked).await {
            match answer {
                Ok((instance, directory)) => {
                    self.remember(session, &instance.name, &directory);
                    return Ok((instance, directory));
                }
                // The only one that could have it says that it is gone.
                Err(Error::NoSuchSession(_)) if all.len() == 1 => silent = None,
                Err(Error::NoSuchSession(_)) => {}
                Err(error) => silent = Some(error),
            }
        }
        // Not found only when every server said so: one that is silent may have it, and "not found" would
        // end tasks and drop notices.
        Err(silent.unwrap_or_else(|| Error::NoSuchSession(session.clone())))
    }

    /// Whether an instance has been unreachable for longer than `patience`.
    fn is_lost(&self, name: &str, up: bool) -> bool {
        let mut gone = self.0.gone.lock();
        if up {
            gone.remove(name);
            return false;
        }
        let now = self.0.clock.uptime();
        let (since, last) = gone.entry(name.to_owned()).or_insert((now, now));
        // It was not checked in between (no task was watched there): it may have been up, so the outage starts
        // anew.
        if now.saturating_sub(*last) > LONGEST_UNWATCHED {
            *since = now;
        }
        *last = now;
        now.saturating_sub(*since) >= self.0.patience
    }

    /// Where a child is opened: with its parent, else on the first server that answers.
    async fn choose(&self, parent: Option<&Place>) -> Result<Arc<Instance>, Error> {
        if let Some(parent) = parent {
            return Ok(self.locate(parent).await?.0);
        }
        if let Some(named) = &self.1 {
            let instance = self.instance(named)?;
            instance.ready_to_launch().await?;
            return Ok(instance);
        }
        let mut all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        // A server that one caller named is not used for others.
        all.retain(|instance| !OpenCode::is_handed(&instance.name));
        // The default first, then by name.
        all.sort_by_key(|instance| instance.name != DEFAULT);
        let mut why = no_server();
        for instance in all {
            match instance.ready_to_launch().await {
                Ok(_) => return Ok(instance),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

fn no_server() -> Error {
    Error::Unreachable(
        "the daemon knows no OpenCode server; set ASYNCAGENTS_OPENCODE_URL where you launch, or \
         `asyncagents hosts add NAME URL`"
            .into(),
    )
}

fn server_url(address: &str) -> Result<Url, Error> {
    let url = Url::parse(address).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| {
        Error::Refused(format!(
            "`{}` is no address of a server; give one like http://127.0.0.1:4096",
            without_password(address)
        ))
    })
}

/// The address of a server without the login.
fn place(url: &Url) -> String {
    let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
    place.trim_end_matches('/').to_owned()
}

fn without_password(address: &str) -> String {
    match Url::parse(address) {
        Ok(mut url) if url.password().is_some() && url.has_host() => {
            let _ = url.set_password(Some("…"));
            url.as_str().replace("%E2%80%A6", "…").trim_end_matches('/').to_owned()
        }
        Ok(url) if url.has_host() => address.to_owned(),
        // Not a URL, but there may be a password before the last `@`.
        Ok(_) | Err(_) => address.rsplit_once('@').map_or(address, |(_, rest)| rest).to_owned(),
    }
}
