//! Models, behind one small interface: a request in, pieces of an answer out.

mod alias;
mod offline;
mod price;
pub mod provider;
pub mod remote;
mod standing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use self::provider::{Access, Key, Place, Provider, Sources};
use self::remote::Remote;
use crate::agent::tools::Spec;
use crate::transcript::{Message, Seal, Tokens};

pub use self::price::Price;
pub use self::standing::{Look, Standing, Standings};
pub use crate::transcript::Finish;

/// What a model is asked. `messages` is what it is to see, oldest first.
#[derive(Clone, Debug)]
pub struct Request {
    /// The name within its provider, as in `openai/<this>`.
    pub model: String,
    pub system: String,
    pub messages: Vec<Message>,
    pub tools: Vec<Spec>,
}

/// A part of an answer, as it comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Thought(String),
    /// Belongs to the thought before it, or to the call behind it.
    Seal(Seal),
    /// A whole call; models may make several in one answer.
    Call(Call),
    Usage(Tokens),
    /// The last piece of a whole answer.
    End(Finish),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    Low,
    Medium,
    High,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Unusable(String),
    /// Whether a key is kept cannot be told now, which says nothing about one that was found before.
    #[error("{0}")]
    KeysUnreadable(String),
    /// The run is to wait for somebody who brings its credentials again.
    #[error("{0}")]
    Lost(String),
    #[error("the daemon has no key for `{provider}`: {way_out}")]
    NoKey { provider: String, way_out: String },
    #[error("model server refused ({status}): {message}")]
    Refused { status: u16, message: String },
    /// Worth trying again, after this long if the server said so.
    #[error("model server is not able to answer now: {message}")]
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

/// Where the pieces go. A receiver that is gone means: stop.
pub type Sink = mpsc::Sender<Piece>;

/// The model that needs nothing.
pub const OFFLINE: &str = "offline/explorer";

/// A model that can be asked.
#[derive(Clone)]
pub enum Model {
    /// `offline/explorer`
    Offline,
    /// `provider/model`
    Remote(Arc<Remote>),
}

/// All models that can be reached, by their names.
#[derive(Clone)]
pub struct Models {
    silence: Duration,
    answer_bytes: usize,
    providers: Arc<BTreeMap<String, Known>>,
    kept: KeptKeys,
    aliases: Arc<BTreeMap<String, String>>,
    effort: Option<Effort>,
}

/// The key that was set for a provider by command, as it is now; an error says why it cannot be told.
pub type KeptKeys = Arc<dyn Fn(&str) -> Result<KeptKey, String> + Send + Sync>;

#[derive(Clone, Default)]
pub struct KeptKey {
    pub key: Key,
    /// When a key was last set or removed, in milliseconds.
    pub changed_at: i64,
}

struct Known {
    sources: Sources,
    /// The last used last: one for each key and address, which are few.
    connections: Mutex<Vec<Arc<Connection>>>,
}

struct Connection {
    provider: Provider,
    made: Mutex<Made>,
}

/// Of one provider; those that were used longest ago are made again when they are needed.
const MOST_CONNECTIONS: usize = 16;

/// Made when it is first needed: it reads the key and the system's certificates. A provider that cannot be
/// used is tried anew each time, unless that takes long: then those who wait for the lock, each on one of
/// the few threads that may block, are told the same.
#[derive(Default)]
enum Made {
    #[default]
    NotYet,
    Yes(Arc<Remote>),
    Failed(Error, Instant),
}

const SLOW: Duration = Duration::from_secs(1);
const REMEMBERED: Duration = Duration::from_secs(30);

impl Models {
    /// A server that says nothing for as long as `silence` is given up, and so is an answer that is
    /// longer than this.
    pub fn new(
        providers: impl IntoIterator<Item = Sources>,
        silence: Duration,
        answer_bytes: usize,
    ) -> Models {
        let known = |sources: Sources| {
            (sources.name.clone(), Known { sources, connections: Mutex::default() })
        };
        Models {
            silence,
            answer_bytes,
            providers: Arc::new(providers.into_iter().map(known).collect()),
            kept: Arc::new(|_| Ok(KeptKey::default())),
            aliases: Arc::default(),
            effort: None,
        }
    }

    /// With keys that are kept elsewhere. They are looked up at every use, so that a new one holds at once.
    pub fn with_kept_keys(self, kept: KeptKeys) -> Models {
        Models { kept, ..self }
    }

    /// With how much they are to think, where that is said.
    pub fn with_effort(self, effort: Option<Effort>) -> Models {
        Models { effort, ..self }
    }

    /// With short names of the user's own.
    pub fn with_aliases(self, aliases: BTreeMap<String, String>) -> Models {
        Models { aliases: Arc::new(aliases), ..self }
    }

    /// A name in full; `None` when nobody knows whose model it is.
    pub fn resolve(&self, name: &str) -> Option<String> {
        alias::resolve(name, &self.aliases)
    }

    /// `name` is `provider/model`; `call` is what the caller's environment says of providers. Call it on a
    /// thread that may block: a key may have to be read.
    pub fn find(&self, name: &str, call: &BTreeMap<String, Access>) -> Result<Model, Error> {
        if name == OFFLINE {
            return Ok(Model::Offline);
        }
        let (provider, model) = name.split_once('/').unwrap_or_default();
        let known = self.providers.get(provider).filter(|_| !model.is_empty());
        let known = known.ok_or_else(|| self.unknown(name))?;
        let none = Access::default();
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

    fn choose(&self, sources: &Sources, call: &Access) -> Result<Provider, Error> {
        let kept = (self.kept)(&sources.name).map_err(Error::KeysUnreadable)?;
        sources.choose(call, kept.key)
    }

    /// Whether what this caller says of a provider is what would be used.
    pub fn uses_call(&self, provider: &str, call: &Access) -> bool {
        let known = self.providers.get(provider);
        let chosen = known.and_then(|known| self.choose(&known.sources, call).ok());
        chosen.is_some_and(|chosen| chosen.place == Place::Call)
    }

    /// For somebody whose own key or address came with a call at `since` and is lost: a key that was set by
    /// command after that is meant for it, what others have configured or started us with is not. `None`
    /// when there is no such key.
    pub fn find_kept(&self, name: &str, since: i64) -> Result<Option<Model>, Error> {
        let (provider, _) = name.split_once('/').unwrap_or_default();
        let known = self.providers.get(provider).ok_or_else(|| self.unknown(name))?;
        let kept = (self.kept)(provider).map_err(Error::KeysUnreadable)?;
        if !kept.key.is_given() || kept.changed_at < since {
            return Ok(None);
        }
        let sources = Sources { daemon: Access::default(), ..known.sources.clone() };
        let chosen = sources.choose(&Access::default(), kept.key)?;
        self.connect(&known.connection(chosen)).map(|remote| Some(Model::Remote(remote)))
    }

    fn connect(&self, connection: &Connection) -> Result<Arc<Remote>, Error> {
        let mut made = connection.made.lock();
        match &*made {
            Made::Yes(remote) if !remote.is_stale() => return Ok(remote.clone()),
            Made::Failed(error, at) if at.elapsed() < REMEMBERED => return Err(error.clone()),
            Made::Yes(_) | Made::Failed(..) | Made::NotYet => {}
        }
        let began = Instant::now();
        match Remote::new(&connection.provider, self.silence) {
            Ok(remote) => {
                let remote = Arc::new(remote.bounded(self.answer_bytes).thinking(self.effort));
                *made = Made::Yes(remote.clone());
                Ok(remote)
            }
            Err(error) => {
                let is_slow = began.elapsed() >= SLOW;
                *made = if is_slow {
                    Made::Failed(error.clone(), Instant::now())
                } else {
                    Made::NotYet
                };
                Err(error)
            }
        }
    }
}

impl Known {
    fn connection(&self, provider: Provider) -> Arc<Connection> {
        let mut connections = self.connections.lock();
        let made = connections.iter().position(|connection| connection.provider == provider);
        let connection = match made {
            Some(place) => connections.remove(place),
            None => Arc::new(Connection { provider, made: Mutex::default() }),
        };
        if connections.len() == MOST_CONNECTIONS {
            connections.remove(0);
        }
        connections.push(Arc::clone(&connection));
        connection
    }
}

impl Model {
    /// Sends the pieces of an answer as they come; the last one is its end.
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
    fn a_key_that_takes_long_and_is_not_there_is_not_waited_for_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let tries = folder.path().join("tries");
        let command = format!("echo x >> '{}'; sleep 1; exit 1", tries.display());
        let section = Access { key: Key::Command(command, Arc::default()), base_url: None };
        let sources = Sources { section, ..Sources::named("openai") };
        let models = Models::new([sources], Duration::from_secs(1), 1_000);
        let call = BTreeMap::new();
        let first = models.find("openai/any", &call).err().unwrap();
        assert_eq!(models.find("openai/any", &call).err(), Some(first));
        assert_eq!(std::fs::read_to_string(tries).unwrap(), "x\n");
    }
}
