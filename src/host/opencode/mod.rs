//! OpenCode servers as a host: sessions are theirs, children of the parent's session. `client.rs`
//! speaks the protocol, `translate.rs` says what it means, `instance.rs` keeps hold of one server.
//! What is relied upon was observed on real servers; where a reason is one of those observations,
//! the comment says so.

mod bridge;
mod call;
mod client;
mod events;
mod instance;
mod mirror;
mod named;
mod translate;
mod transport;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use parking_lot::{Mutex, MutexGuard};
use reqwest::Url;
use tokio::sync::{Notify, mpsc};

pub use bridge::{Bridge, Line};
pub use instance::Standing;

use self::client::Client;
use self::instance::{Instance, PATIENCE, by_instance};
use self::named::NO_LOGIN;
use self::transport::{Http, Transport};
use super::{
    Activity, AgentOffer, Answer, Error, Handed, Host, NewSession, Observation, Opened, Post,
    Prompt, Toast, Watch,
};
use crate::clock::Clock;
use crate::store::Store;
use crate::task::id::fingerprint;
use crate::task::{MessageId, SessionId};
use crate::transcript::{Figures, Outcome};

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
    /// Where sessions are, as far as it has been found out.
    places: Mutex<HashMap<SessionId, Place>>,
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
struct Place {
    instance: String,
    directory: String,
}

/// A server as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub name: String,
    /// Without its password.
    pub address: String,
    pub standing: Standing,
}

/// Between two tries to find out who a plugin is.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);

/// After our start, so long the plugins that were there take to come again.
const OTHERS_COME_AGAIN: Duration = Duration::from_secs(10);

/// Between two looks at an instance that is gone.
const LONGEST_UNWATCHED: Duration = Duration::from_secs(90);

/// A message that was accepted is in the conversation after a moment, or after a few seconds when
/// the server has much to do.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_STORING: Duration = Duration::from_secs(8);
const LOOKS_AT_ONCE: usize = 8;

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

    /// Adds a server, or says where a known one is now.
    pub fn put(&self, name: &str, address: &str) -> Result<(), Error> {
        let url = server_url(address)?;
        let login = self.0.login.clone().map(|login| (login.name, login.password));
        let http = Http::new(&url, login).map_err(|error| Error::Refused(error.to_string()))?;
        let shown = without_password(url.as_str().trim_end_matches('/'));
        self.attach(name, shown, Transport::Http(http));
        Ok(())
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
    pub fn bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
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
        tokio::spawn(async move { host.name(named, &directory, &before).await });
        (bridge, lines)
    }

    pub fn bridge_by_id(&self, id: u64) -> Option<Arc<Bridge>> {
        self.bridges().get(&id).cloned()
    }

    /// Plugins need not start the daemon again by themselves.
    pub fn say_goodbye(&self) {
        self.bridges().values().for_each(|bridge| bridge.say(Line::Bye));
    }

    /// A process is called by where it runs and where it keeps its sessions, so that the next one
    /// there takes its tasks over. Two at the same time are told apart by a number, and one that
    /// comes again after our restart says which it was.
    async fn name(&self, bridge: Arc<Bridge>, directory: &str, before: &str) {
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
        if !came_before && self.has_live_tasks(&stem) {
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

    fn has_live_tasks(&self, stem: &str) -> bool {
        let live = self.0.store.tasks().live(None).unwrap_or_default();
        live.iter().any(|task| task.origin.host_instance.starts_with(stem))
    }

    /// A caller says which process its conversation belongs to.
    pub fn note_parent(&self, session: &SessionId, instance: &str, directory: &str) {
        let known = self.places().get(session).is_some_and(|place| place.instance == instance);
        if known || !self.instances().contains_key(instance) {
            return;
        }
        self.remember(session, instance, directory);
        // Should it be lost, the processes are asked.
        drop(self.0.store.instances().put_place_of_parent(session, instance.to_owned()));
    }

    fn bridges(&self) -> MutexGuard<'_, HashMap<u64, Arc<Bridge>>> {
        self.0.bridges.lock()
    }

    /// `false` when there is none of that name.
    pub fn remove(&self, name: &str) -> bool {
        let removed = self.instances().remove(name);
        self.places().retain(|_, place| place.instance != name);
        removed.inspect(|old| old.leave()).is_some()
    }

    /// Returns when an instance can be talked to that could not: what waited for it may go on.
    pub async fn arrival(&self) {
        self.0.arrived.notified().await;
    }

    pub fn is_empty(&self) -> bool {
        self.instances().is_empty()
    }

    /// The servers, each once it is clear whether it answers.
    pub async fn known(&self) -> Vec<Known> {
        let instances: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        let shown = instances.into_iter().map(|instance| async move {
            Known {
                standing: instance.standing().await,
                name: instance.name.clone(),
                address: instance.address.clone(),
            }
        });
        join_all(shown).await
    }

    fn instances(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Instance>>> {
        self.0.instances.lock()
    }

    fn places(&self) -> MutexGuard<'_, HashMap<SessionId, Place>> {
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
        let place = Place { instance: instance.to_owned(), directory: directory.to_owned() };
        places.insert(session.clone(), place);
    }

    /// Where a session is: a task's row says it, or it is known, or the servers are asked.
    async fn locate(&self, session: &SessionId) -> Result<(Arc<Instance>, String), Error> {
        // A child is where it was opened, and nowhere else: only there it may be running.
        if let Some(task) = self.0.store.tasks().get(session).ok().flatten() {
            return Ok((self.instance(&task.origin.host_instance)?, task.origin.directory));
        }
        let known = self.places().get(session).cloned();
        if let Some(Place { instance, directory }) = &known
            && let Ok(instance) = self.instance(instance)
            && instance.is_up()
        {
            return Ok((instance, directory.clone()));
        }
        let told = match known {
            Some(place) => Some(place.instance),
            None => self.0.store.instances().place_of_parent(session).ok().flatten(),
        };
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
    async fn choose(&self, parent: Option<&SessionId>) -> Result<Arc<Instance>, Error> {
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

/// Returns when the server has stored what it accepted: it accepts also what it cannot store.
async fn keeps(client: &Client, post: &Post) -> Result<(), Error> {
    let began = tokio::time::Instant::now();
    let mut pause = FIRST_LOOK;
    while !client.has(&post.parent, &post.message).await? {
        if began.elapsed() > LONGEST_STORING {
            return Err(Error::Unreachable("it accepted a message and did not keep it".into()));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Ok(())
}

/// The sessions on one server that carry the nonce.
async fn find_on(instance: &Instance, session: &NewSession) -> Result<Vec<Opened>, Error> {
    let client = instance.ready().await?;
    let mut candidates = match &session.parent {
        Some(parent) => match client.children(parent).await {
            Err(Error::NoSuchSession(_)) => return Ok(Vec::new()),
            other => other?,
        },
        None => Vec::new(),
    };
    // Copies are nobody's children.
    let stem = session.title.split([' ', ':']).next().unwrap_or_default();
    candidates.extend(client.search(&session.directory, stem).await?);
    candidates.retain(|candidate| {
        let nonce = candidate.metadata.as_ref().and_then(|data| data.asyncagents.as_ref());
        nonce == Some(&session.nonce)
    });
    let ids: BTreeSet<String> = candidates.into_iter().map(|found| found.id).collect();
    let instance = &instance.name;
    let opened = |id| Opened { session: SessionId::new(id), instance: instance.clone() };
    Ok(ids.into_iter().map(opened).collect())
}

/// T6: interrupted, and it cannot be continued.
fn lost(watch: &Watch) -> Observation {
    let why = "interrupted: its OpenCode process has been gone for too long".to_owned();
    Observation {
        session: watch.session.clone(),
        activity: Activity::Lost(why),
        outcome: Outcome::Unfinished { partial: None },
        open_todos: Vec::new(),
        figures: Figures::default(),
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

impl Host for OpenCode {
    async fn open(&self, session: NewSession) -> Result<Opened, Error> {
        let instance = self.choose(session.parent.as_ref()).await?;
        let create = translate::create(&session);
        let created = instance.ready().await?.create(&session.directory, &create).await?;
        let id = SessionId::new(created.id);
        self.remember(&id, &instance.name, &session.directory);
        self.note_handed(&instance).await;
        Ok(Opened { session: id, instance: instance.name.clone() })
    }

    fn can_fork(&self) -> bool {
        true
    }

    /// A copy has no parent there (G8), so only its title, rules and nonce make it ours.
    async fn fork(&self, of: &SessionId, session: NewSession) -> Result<Opened, Error> {
        let (instance, directory) = self.locate(of).await?;
        let client = instance.ready().await?;
        let copy = SessionId::new(client.fork(of).await?.id);
        if let Err(error) = client.relabel(&copy, &translate::create(&session)).await {
            let _ = client.delete(&copy).await;
            return Err(error);
        }
        self.remember(&copy, &instance.name, &directory);
        self.note_handed(&instance).await;
        Ok(Opened { session: copy, instance: instance.name.clone() })
    }

    async fn find(&self, session: &NewSession) -> Result<Vec<Opened>, Error> {
        if let Some(parent) = &session.parent {
            return match self.locate(parent).await {
                Ok((instance, _)) => find_on(&instance, session).await,
                // Children go with their parent.
                Err(Error::NoSuchSession(_)) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
        }
        // It was opened on the first one that answered then, which need not be the first one now.
        let all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        let looks = all.iter().map(|instance| find_on(instance, session));
        let (mut found, mut silent) = (Vec::new(), None);
        for looked in join_all(looks).await {
            match looked {
                Ok(opened) => found.extend(opened),
                Err(error) => silent = Some(error),
            }
        }
        match silent {
            // One that does not answer may have it; after a while it counts as gone.
            Some(error) if found.is_empty() && self.0.clock.uptime() < self.0.patience => {
                Err(error)
            }
            Some(_) | None => Ok(found),
        }
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        let (instance, _) = self.locate(session).await?;
        let client = instance.ready().await?;
        // A deleted session works on until somebody stops it (G9).
        client.abort(session).await?;
        client.delete(session).await
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        let (instance, directory) = self.locate(&prompt.session).await?;
        let client = instance.ready().await?;
        instance.expect(&prompt.session, &prompt.message, &directory);
        client.say(&prompt.session, &translate::prompt(&prompt)).await
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        let mut seen = vec![None; watches.len()];
        let groups = by_instance(&watches);
        let mut looks: FuturesUnordered<_> = groups
            .into_iter()
            .map(|(name, group)| async move {
                let (places, watches): (Vec<usize>, Vec<&Watch>) = group.into_iter().unzip();
                let instance = self.instance(name);
                let seen = match &instance {
                    Ok(instance) => instance.observe(&watches).await,
                    Err(_) => vec![None; watches.len()],
                };
                let up = instance.is_ok_and(|instance| instance.is_up());
                match self.is_lost(name, up) {
                    true => (places, watches.into_iter().map(|w| Some(lost(w))).collect()),
                    false => (places, seen),
                }
            })
            .collect();
        while let Some((places, observed)) = looks.next().await {
            for (place, observation) in places.into_iter().zip(observed) {
                seen[place] = observation;
            }
        }
        drop(looks);
        Ok(seen)
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        let mut groups: HashMap<String, Vec<SessionId>> = HashMap::new();
        let mut missing = Vec::new();
        for session in sessions {
            match self.locate(&session).await {
                Ok((instance, _)) => {
                    groups.entry(instance.name.clone()).or_default().push(session);
                }
                Err(Error::NoSuchSession(_)) => missing.push(session),
                Err(_) => {}
            }
        }
        for (name, sessions) in groups {
            missing.extend(self.instance(&name)?.missing(sessions).await);
        }
        let mut places = self.places();
        missing.iter().for_each(|session| drop(places.remove(session)));
        Ok(missing)
    }

    async fn has(&self, session: &SessionId) -> Result<bool, Error> {
        if self.is_empty() {
            return Ok(false);
        }
        let found = match self.locate(session).await {
            Ok((instance, _)) => instance.ready().await?.session(session).await.map(|_| true),
            Err(error) => Err(error),
        };
        match found {
            Err(Error::NoSuchSession(_)) => Ok(false),
            other => other,
        }
    }

    /// Of a task: where others are would have to be asked for.
    fn version(&self, session: &SessionId) -> Option<u64> {
        let name = self.0.store.tasks().get(session).ok().flatten()?.origin.host_instance;
        self.instance(&name).ok()?.version(session)
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        let (instance, _) = self.locate(session).await?;
        instance.ready().await?.transcript(session).await
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        let task = self.0.store.tasks().get(session).ok().flatten();
        if let Some(name) = task.map(|task| task.origin.host_instance)
            && name.starts_with(PLUGIN)
            && !self.instance(&name).is_ok_and(|instance| instance.is_up())
            && self.is_lost(&name, false)
        {
            // With the process, everything in it has stopped.
            return Ok(());
        }
        let (instance, _) = self.locate(session).await?;
        instance.ready().await?.abort(session).await
    }

    async fn post(&self, posts: Vec<Post>) -> Result<(), Error> {
        let Some(Post { parent, .. }) = posts.first() else { return Ok(()) };
        let (instance, _) = self.locate(parent).await?;
        let client = instance.ready().await?;
        let last_words = client.last_words(parent).await?;
        let mut kept = Vec::with_capacity(posts.len());
        for post in &posts {
            client.say(parent, &translate::notice(post, &last_words)).await?;
            kept.push(keeps(client, post));
        }
        stream::iter(kept).buffered(LOOKS_AT_ONCE).try_collect().await
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        let (instance, _) = self.locate(parent).await?;
        instance.ready().await?.has(parent, message).await
    }

    /// Servers name models `provider/model` and would run a name without a provider on another one.
    async fn model(&self, wish: Option<String>, _: Handed) -> Result<Option<String>, Error> {
        match wish {
            Some(name) if !name.contains('/') => Err(Error::Refused(format!(
                "no model `{name}` on OpenCode; name it as `provider/model` (`opencode models` lists \
                 them), or leave it out for the agent's own"
            ))),
            other => Ok(other),
        }
    }

    async fn agents(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<Vec<AgentOffer>, Error> {
        let instance = self.choose(parent).await?;
        Ok(translate::agents(instance.ready().await?.agents(directory).await?))
    }

    /// As it was given: OpenCode keeps an instance for each spelling of a directory, and a child
    /// belongs to its parent's.
    async fn directory(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<String, Error> {
        if self.choose(parent).await?.is_local() {
            super::directory::canonical(directory).await?;
        }
        Ok(directory.to_owned())
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        let (instance, directory) = self.locate(session).await?;
        let client = instance.ready().await?;
        if !ask.starts_with("que") {
            return client.permit(&directory, ask, answer).await;
        }
        let labels = match answer {
            Answer::Deny => None,
            Answer::Allow => {
                let open = client.questions(&directory).await?;
                let question = open.iter().find(|question| question.id == ask);
                let gone = || Error::Refused(format!("nothing is asked as `{ask}`"));
                Some(translate::first_choices(question.ok_or_else(gone)?))
            }
        };
        client.reply(&directory, ask, labels).await
    }

    async fn toast(&self, parent: &SessionId, toast: Toast) -> Result<(), Error> {
        let (instance, directory) = self.locate(parent).await?;
        instance.ready().await?.toast(&directory, &translate::toast(&toast)).await
    }

    async fn listen(&self, wake: &Notify) {
        let mut attended: HashMap<String, Arc<Instance>> = HashMap::new();
        let mut attending = FuturesUnordered::new();
        loop {
            let now: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
            for instance in now {
                let known = attended.get(&instance.name);
                if known.is_some_and(|known| Arc::ptr_eq(known, &instance)) {
                    continue;
                }
                attended.insert(instance.name.clone(), Arc::clone(&instance));
                attending.push(async move { instance.attend(wake).await });
            }
            tokio::select! {
                () = self.0.changed.notified() => {}
                Some(()) = attending.next() => {}
            }
        }
    }
}
