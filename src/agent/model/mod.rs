//! Models behind one small interface: a request in, a stream of pieces out. [`Models`] is the registry:
//! it resolves names, decides whose key is used, and keeps an LRU cache of connections per provider, one
//! for each key and address. A key is read when a connection is opened; a connection whose key was
//! refused is opened again, because the key may have been replaced.

mod alias;
mod offline;
mod price;
pub mod provider;
mod provider_status;
pub mod remote;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use self::provider::{Key, KeyOrigin, Provider, ProviderAccess, Sources};
use self::remote::Remote;
use crate::agent::tools::Spec;
use crate::transcript::{Message, Seal, Tokens};

pub use self::price::Price;
pub use self::provider_status::{ProbeDepth, ProviderStatus, ProviderStatuses};
pub use crate::transcript::Finish;

/// A request to a model: everything it is to see, oldest message first.
#[derive(Clone, Debug)]
pub struct Request {
    /// The name within its provider, as in `openai/<this>`.
    pub model: String,
    pub system: String,
    pub messages: Vec<Message>,
    pub tools: Vec<Spec>,
}

/// One piece of a streamed answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Thought(String),
    /// Belongs to the thought before it, or to the call after it.
    Seal(Seal),
    /// A complete call; models may make several in one answer.
    Call(Call),
    Usage(Tokens),
    /// What the answer cost in dollars, where the server says so itself.
    Cost(f64),
    /// The last piece of a complete answer. A stream that ends without it was cut off.
    End(Finish),
}

/// A tool call that the model asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// No setting is sent; the model's own default applies.
    Default,
    Low,
    Medium,
    High,
}

/// Why a model gave no answer, or only a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The provider or its settings cannot be used as they are.
    #[error("{0}")]
    Unusable(String),
    /// The credential store cannot be read now. Says nothing about a key that was found there before.
    #[error("{0}")]
    KeysUnreadable(String),
    /// The run's credentials came with a call and are lost (a restart); it waits until they are brought
    /// again.
    #[error("{0}")]
    Lost(String),
    #[error("the daemon has no key for `{provider}`: {way_out}")]
    NoKey { provider: String, way_out: String },
    #[error("model server refused ({status}): {message}")]
    Refused { status: u16, message: String },
    /// Worth a retry, after `retry_after` if the server asked for that.
    #[error("model server cannot answer now: {message}")]
    Busy { message: String, retry_after: Option<Duration> },
    #[error("model server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the model's answer broke off before its end")]
    Truncated,
    #[error("the model said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error(
        "the model's answer is longer than {0} bytes (`agent.answer_bytes`); what came before is kept"
    )]
    TooLong(usize),
}

impl Error {
    /// Whether the same request may succeed later: rate limits, server errors and network trouble.
    pub fn is_worth_a_retry(&self) -> bool {
        match self {
            Error::Busy { .. } | Error::Unreachable(_) | Error::Truncated | Error::Silent(_) => {
                true
            }
            Error::Unusable(_)
            | Error::KeysUnreadable(_)
            | Error::Lost(_)
            | Error::NoKey { .. }
            | Error::Refused { .. }
            | Error::TooLong(_) => false,
        }
    }
}

/// Where the pieces go. A dropped receiver cancels the request.
pub type Sink = mpsc::Sender<Piece>;

/// The built-in model that needs no server and no key.
pub const OFFLINE: &str = "offline/explorer";

/// A model that requests can be sent to.
#[derive(Clone)]
pub enum Model {
    /// `offline/explorer`
    Offline,
    /// `provider/model`
    Remote(Arc<Remote>),
}

/// The registry of all providers. Clones share the connections.
#[derive(Clone)]
pub struct Models {
    silence: Duration,
    answer_bytes: usize,
    providers: Arc<BTreeMap<String, KnownProvider>>,
    kept: StoredKeys,
    aliases: Arc<BTreeMap<String, String>>,
    effort: Effort,
}

/// Looks up the key that `asyncagents auth set` stored for a provider, as it is now; an error says why the
/// store cannot be read.
pub type StoredKeys = Arc<dyn Fn(&str) -> Result<StoredKey, String> + Send + Sync>;

/// A key from the credential store; [`Key::None`] when there is none.
#[derive(Clone, Default)]
pub struct StoredKey {
    pub key: Key,
    /// When any key was last set or removed, in milliseconds since 1970.
    pub changed_at: i64,
}

/// A provider with its cached connections.
struct KnownProvider {
    sources: Sources,
    /// An LRU cache, most recently used last: one for each key and address, which are few.
    connections: Mutex<Vec<Arc<Connection>>>,
}

/// A connection to a provider with one key and address.
struct Connection {
    provider: Provider,
    state: Mutex<ConnectionState>,
}

/// The capacity of the cache, per provider.
const MOST_CONNECTIONS: usize = 16;

/// A connection is opened when it is first needed: that reads the key and the system's certificates. A
/// failure is normally not cached, so that a repaired key works at once. But if opening was slow (a key
/// command that hangs), the error is remembered for a while: callers wait for the lock on blocking
/// threads, of which there are few, and each would repeat the slow attempt.
#[derive(Default)]
enum ConnectionState {
    #[default]
    Unopened,
    Open(Arc<Remote>),
    Failed(Error, Instant),
}

/// An attempt that took this long is slow.
const SLOW: Duration = Duration::from_secs(1);
/// How long the error of a slow attempt is remembered.
const REMEMBERED: Duration = Duration::from_secs(30);

impl Models {
    /// A request fails when the server sends nothing for as long as `silence`, or an answer longer than
    /// `answer_bytes`.
    pub fn new(
        providers: impl IntoIterator<Item = Sources>,
        silence: Duration,
        answer_bytes: usize,
    ) -> Models {
        let known = |sources: Sources| {
            (sources.name.clone(), KnownProvider { sources, connections: Mutex::default() })
        };
        Models {
            silence,
            answer_bytes,
            providers: Arc::new(providers.into_iter().map(known).collect()),
            // No credential store; `with_stored_keys` sets the real one. Tests have none.
            kept: Arc::new(|_| Ok(StoredKey::default())),
            aliases: Arc::default(),
            effort: Effort::Default,
        }
    }

    /// With a credential store. It is asked at every use, so that a new key takes effect at once.
    pub fn with_stored_keys(self, kept: StoredKeys) -> Models {
        Models { kept, ..self }
    }

    /// With a reasoning effort for all models.
    pub fn with_effort(self, effort: Effort) -> Models {
        Models { effort, ..self }
    }

    /// With the user's own aliases.
    pub fn with_aliases(self, aliases: BTreeMap<String, String>) -> Models {
        Models { aliases: Arc::new(aliases), ..self }
    }

    /// A name as `provider/model`; `None` when its provider cannot be told.
    pub fn resolve(&self, name: &str) -> Option<String> {
        alias::resolve(name, &self.aliases)
    }

    /// The model `name` (`provider/model`). `call` is what the caller's environment says about providers.
    /// Blocking: it may read a key from a file or a command.
    pub fn find(
        &self,
        name: &str,
        call: &BTreeMap<String, ProviderAccess>,
    ) -> Result<Model, Error> {
        if name == OFFLINE {
            return Ok(Model::Offline);
        }
        let (provider, model) = name.split_once('/').unwrap_or_default();
        let known = self.providers.get(provider).filter(|_| !model.is_empty());
        let known = known.ok_or_else(|| self.unknown(name))?;
        let none = ProviderAccess::default();
        // Chosen at each request and not once per run: a key that was set meanwhile takes effect with the next
        // step.
        let chosen = self.choose(&known.sources, call.get(provider).unwrap_or(&none))?;
        self.connect(&known.connection(chosen)).map(Model::Remote)
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<String> =
            self.providers.keys().map(|name| format!("`{name}/<model>`")).collect();
        Error::Unusable(format!(
            "the daemon knows no model `{name}`; there are `{OFFLINE}`, {}, and more under `[providers.NAME]` in the \
             configuration",
            names.join(", ")
        ))
    }

    fn choose(&self, sources: &Sources, call: &ProviderAccess) -> Result<Provider, Error> {
        let kept = (self.kept)(&sources.name).map_err(Error::KeysUnreadable)?;
        sources.choose(call, kept.key)
    }

    /// Whether the key or address from this caller's environment is what would be used.
    pub fn uses_call(&self, provider: &str, call: &ProviderAccess) -> bool {
        let known = self.providers.get(provider);
        let chosen = known.and_then(|known| self.choose(&known.sources, call).ok());
        chosen.is_some_and(|chosen| chosen.origin == KeyOrigin::Call)
    }

    /// The model for a run whose own key or address came with a call at `since` and is lost. Only a key
    /// that was stored after that is meant for it; what is configured, or in the daemon's environment, may
    /// be somebody else's account. `None` when there is no such key.
    pub fn find_stored(&self, name: &str, since: i64) -> Result<Option<Model>, Error> {
        let (provider, _) = name.split_once('/').unwrap_or_default();
        let known = self.providers.get(provider).ok_or_else(|| self.unknown(name))?;
        let kept = (self.kept)(provider).map_err(Error::KeysUnreadable)?;
        // A key that was stored before the call is not meant for this run: its caller brought another one.
        if !kept.key.is_given() || kept.changed_at < since {
            return Ok(None);
        }
        // Without the daemon's environment, which is not this caller's.
        let sources = Sources { daemon: ProviderAccess::default(), ..known.sources.clone() };
        let chosen = sources.choose(&ProviderAccess::default(), kept.key)?;
        self.connect(&known.connection(chosen)).map(|remote| Some(Model::Remote(remote)))
    }

    /// Opens a connection, or returns the open one. Holds its lock meanwhile, so that many runs that
    /// start at once run a key command once.
    fn connect(&self, connection: &Connection) -> Result<Arc<Remote>, Error> {
        let mut state = connection.state.lock();
        match &*state {
            // A stale connection (its key was refused) is opened again, with the key as it is now.
            ConnectionState::Open(remote) if !remote.is_stale() => return Ok(remote.clone()),
            ConnectionState::Failed(error, at) if at.elapsed() < REMEMBERED => {
                return Err(error.clone());
            }
            ConnectionState::Open(_) | ConnectionState::Failed(..) | ConnectionState::Unopened => {}
        }
        let began = Instant::now();
        match Remote::new(&connection.provider, self.silence) {
            Ok(remote) => {
                let remote = Arc::new(remote.bounded(self.answer_bytes).thinking(self.effort));
                *state = ConnectionState::Open(remote.clone());
                Ok(remote)
            }
            Err(error) => {
                let is_slow = began.elapsed() >= SLOW;
                *state = if is_slow {
                    ConnectionState::Failed(error.clone(), Instant::now())
                } else {
                    ConnectionState::Unopened
                };
                Err(error)
            }
        }
    }
}

impl KnownProvider {
    /// The cached connection for this key and address, or a new one, as the most recently used.
    fn connection(&self, provider: Provider) -> Arc<Connection> {
        let mut connections = self.connections.lock();
        let made = connections.iter().position(|connection| connection.provider == provider);
        let connection = match made {
            Some(place) => connections.remove(place),
            None => Arc::new(Connection { provider, state: Mutex::default() }),
        };
        // Evicts the least recently used; runs that still use it keep it alive by their own `Arc`.
        if connections.len() == MOST_CONNECTIONS {
            connections.remove(0);
        }
        connections.push(Arc::clone(&connection));
        connection
    }
}

impl Model {
    /// Streams an answer into `sink`; its last piece is [`Piece::End`].
    pub async fn answer(&self, request: Request, sink: Sink) -> Result<(), Error> {
        match self {
            Model::Offline => {
                for piece in offline::answer(&request) {
                    if sink.send(piece).await.is_err() {
                        break;
                    }
                }
                Ok(())
            }
            Model::Remote(remote) => remote.answer(request, sink).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_command_that_failed_slowly_is_not_run_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let tries = folder.path().join("tries");
        let command = format!("echo x >> '{}'; sleep 1; exit 1", tries.display());
        let section = ProviderAccess { key: Key::Command(command, Arc::default()), base_url: None };
        let sources = Sources { section, ..Sources::named("openai") };
        let models = Models::new([sources], Duration::from_secs(1), 1_000);
        let call = BTreeMap::new();
        let first = models.find("openai/any", &call).err().unwrap();
        assert_eq!(models.find("openai/any", &call).err(), Some(first));
        assert_eq!(std::fs::read_to_string(tries).unwrap(), "x\n");
    }
}
