//! OpenCode servers as a host: sessions are theirs, children of the parent's session. `client.rs`
//! speaks the protocol, `translate.rs` says what it means, `instance.rs` keeps hold of one server.
//! What is relied upon was observed on real servers; where a reason is one of those observations,
//! the comment says so.

mod bridge;
mod call;
mod client;
mod contract;
mod events;
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

pub use bridge::{Bridge, Line};
pub use instance::Standing;

use self::client::Client;
use self::instance::{Instance, PATIENCE};
use self::named::NO_LOGIN;
use self::transport::Transport;
use super::{Error, Location, Place};
use crate::clock::Clock;
use crate::store::Store;
use crate::task::SessionId;
use crate::task::id::fingerprint;

/// The instance that has no other name.
pub const DEFAULT: &str = "default";

/// How the names of processes begin that came by themselves.
const PLUGIN: &str = "plugin-";

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct OpenCode(Arc<Inner>, Option<String>);

struct Inner {
    store: Store,
    clock: Clock,
    login: Option<Login>,
    instances: Mutex<BTreeMap<String, Arc<Instance>>>,
    /// Held while the address of a server that a caller named is put into the store or erased from it.
    noting: tokio::sync::Mutex<()>,
    /// Where conversations are, as far as it has been found out.
    places: Mutex<HashMap<SessionId, Spot>>,
    /// Another instance is there to be attended to.
    changed: Notify,
    /// An instance that was not can be talked to.
    arrived: Arc<Notify>,
    bridges: Mutex<HashMap<u64, Arc<Bridge>>>,
    /// Bridges by the names of their instances.
    named: Mutex<HashMap<String, Arc<Bridge>>>,
    /// How long an instance may be gone before its runs are lost.
    patience: Duration,
    /// Since when instances have been gone, and when that was last seen.
    gone: Mutex<HashMap<String, (Duration, Duration)>>,
}

/// What servers ask for, unless their address says it.
#[derive(Clone)]
pub struct Login {
    pub name: String,
    pub password: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Spot {
    instance: String,
    directory: String,
}

/// Between two tries to find out who a plugin is.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);

/// After our start, so long the plugins that were there take to come again.
const OTHERS_COME_AGAIN: Duration = Duration::from_secs(10);

/// Between two looks at an instance that is gone.
const LONGEST_UNWATCHED: Duration = Duration::from_secs(90);

/// Places that are remembered; beyond it they are found out again.
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
        if let Some(old) = instances.insert(name.to_owned(), Arc::new(instance)) {
            old.leave();
        }
        self.0.changed.notify_one();
    }

    /// A plugin has come: what it is told travels through the receiver.
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
        tokio::spawn(async move { host.name(named, &directory, &before, &live).await });
        (bridge, lines)
    }

    /// A process is called by where it runs and where it keeps its sessions, so that the next one
    /// there takes its tasks over. Two at the same time are told apart by a number, and one that
    /// comes again after our restart says which it was.
    async fn name(&self, bridge: Arc<Bridge>, directory: &str, before: &str, live: &[String]) {
        let transport = Transport::Bridge(Arc::clone(&bridge));
        let client = Client::new(transport.clone());
        let mut tries = 0;
        let state = loop {
            match client.state_directory(PATIENCE.pause(tries)).await {
                Ok(state) => break state,
                Err(_) if bridge.is_closed() => return,
                // A process that is starting swallows what it is asked: asked again, it answers.
                Err(error) => {
                    let pid = bridge.pid;
                    tracing::warn!(pid, %error, "OpenCode's plugin connected, but does not answer");
                    tokio::time::sleep(BETWEEN_QUESTIONS).await;
                    tries += 1;
                }
            }
        };
        let stem = format!("{PLUGIN}{:08x}", fingerprint(&[&state, directory]));
        let came_before = before.starts_with(&stem);
        // Those that were here before us come again within moments: their names are theirs.
        if !came_before && live.iter().any(|instance| instance.starts_with(&stem)) {
            let left = OTHERS_COME_AGAIN.saturating_sub(self.0.clock.uptime());
            tokio::time::sleep(left).await;
        }
        let mut named = self.0.named.lock();
        if bridge.is_closed() {
            return;
        }
        named.retain(|_, other| !other.is_closed());
        let numbered = |n| if n == 1 { stem.clone() } else { format!("{stem}-{n}") };
        let first = came_before.then(|| before.to_owned());
        let mut names = first.into_iter().chain((1..).map(numbered));
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

    fn places(&self) -> MutexGuard<'_, HashMap<SessionId, Spot>> {
        self.0.places.lock()
    }

    fn instance(&self, name: &str) -> Result<Arc<Instance>, Error> {
        let found = self.instances().get(name).cloned();
        found.ok_or_else(|| self.gone(name))
    }

    fn gone(&self, name: &str) -> Error {
        Error::Unreachable(match name.starts_with(PLUGIN) {
            true => format!("OpenCode (`{name}`) is not running; open it again"),
            false => format!(
                "no OpenCode server `{name}` is known any more; `asyncagents hosts add {name} \
                     URL` says where it is"
            ),
        })
    }

    fn remember(&self, session: &SessionId, instance: &str, directory: &str) {
        let mut places = self.places();
        if places.len() >= MOST_PLACES {
            places.clear();
        }
        let spot = Spot { instance: instance.to_owned(), directory: directory.to_owned() };
        places.insert(session.clone(), spot);
    }

    fn forget_places_of(&self, gone: &[SessionId]) {
        let mut places = self.places();
        gone.iter().for_each(|session| drop(places.remove(session)));
    }

    /// Where a session is, and its directory: as the caller says, or as it is known, or the servers are
    /// asked.
    async fn locate(&self, place: &Place) -> Result<(Arc<Instance>, String), Error> {
        let session = &place.session;
        let last = match &place.location {
            // Only there it may be running.
            Location::Opened { instance, directory } => {
                return Ok((self.instance(instance)?, directory.clone()));
            }
            Location::Conversation { last } => last.clone(),
        };
        let known = self.places().get(session).cloned();
        if let Some(Spot { instance, directory }) = &known
            && let Ok(instance) = self.instance(instance)
            && instance.is_up()
        {
            return Ok((instance, directory.clone()));
        }
        let told = known.map(|spot| spot.instance).or(last);
        let mut all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        if all.is_empty() && told.is_none() {
            return Err(no_server());
        }
        // Several processes may share their sessions. The one that was named is the right one, as
        // long as it is there; a process that has ended has nothing to say.
        let named = told.as_ref().and_then(|name| self.instance(name).ok());
        match named {
            Some(named) if named.is_up() => all = vec![named],
            Some(_) | None => all.retain(|i| i.is_up() || !i.name.starts_with(PLUGIN)),
        }
        let mut silent = told.map(|name| self.gone(&name));
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
                // The one that has it says that it is gone.
                Err(Error::NoSuchSession(_)) if all.len() == 1 => silent = None,
                Err(Error::NoSuchSession(_)) => {}
                Err(error) => silent = Some(error),
            }
        }
        // Only when every server has said so is it nowhere.
        Err(silent.unwrap_or_else(|| Error::NoSuchSession(session.clone())))
    }

    /// Whether an instance has been gone for so long that nothing can be running there.
    fn is_lost(&self, name: &str, up: bool) -> bool {
        let mut gone = self.0.gone.lock();
        if up {
            gone.remove(name);
            return false;
        }
        let now = self.0.clock.uptime();
        let (since, last) = gone.entry(name.to_owned()).or_insert((now, now));
        // Nobody looked in the meantime: it may have been there.
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
            instance.ready().await?;
            return Ok(instance);
        }
        let mut all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        // What one caller named is for that caller.
        all.retain(|instance| !OpenCode::is_handed(&instance.name));
        all.sort_by_key(|instance| instance.name != DEFAULT);
        let mut why = no_server();
        for instance in all {
            match instance.ready().await {
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

/// Where a server is, without the login.
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
        // Whatever it is, there may be a password before the last `@`.
        Ok(_) | Err(_) => address.rsplit_once('@').map_or(address, |(_, rest)| rest).to_owned(),
    }
}
