//! The host contract: an adapter interface to where agents run (OpenCode, the embedded runtime, a script
//! for tests). Adapters translate; they decide nothing and keep no task state, so that the supervisor can
//! rebuild everything from its store after a crash.
//!
//! Two rules make that work. *Idempotency keys*: a session carries its launch's nonce and a message its id,
//! so a call whose answer was lost can be looked up (`find`, `posted`) or repeated. *Level-triggered*:
//! `listen` only says that something may have changed; the truth is always read with `observe`, so a lost
//! event costs time and never an end.

mod capabilities;
mod client_credentials;
mod directory;
pub mod embedded;
mod metered;
pub mod opencode;
pub mod scripted;

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::capabilities::{
    Credentials, Forks, Permissions, Server, Servers, Steering, Toasts, Vetting,
};
pub use self::client_credentials::{ClientCredentials, Parts as ClientCredentialParts};
pub use self::metered::MeteredHost;
pub use self::opencode::{Bridge, Bridges, Line, SUPPORTED as SUPPORTED_OPENCODE, Support};
pub use crate::agent::model::{ProbeDepth, ProviderStatus};
use crate::task::{MessageId, SessionId, Task};
use crate::transcript::{Figures, Outcome};

/// The address of a session. The supervisor fills it in from its rows, so that adapters read no tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub session: SessionId,
    pub location: Location,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// A child: on the server or process where it was opened, and nowhere else.
    Opened { instance: String, directory: String },
    /// A parent's conversation: where its caller last reported it, if one did. Several processes may share
    /// it, so this is a hint.
    Conversation { last: Option<String> },
}

impl Place {
    /// Of a session that we opened.
    pub fn of_child(opened: &OpenedSession, directory: &str) -> Place {
        let OpenedSession { session, instance } = opened.clone();
        Place { session, location: Location::Opened { instance, directory: directory.to_owned() } }
    }

    /// Of a session whose location is not known; the host has to search.
    pub fn unknown(session: SessionId) -> Place {
        Place { session, location: Location::Conversation { last: None } }
    }
}

impl From<&Task> for Place {
    fn from(task: &Task) -> Place {
        let (instance, directory) =
            (task.origin.host_instance.clone(), task.origin.directory.clone());
        Place { session: task.id.clone(), location: Location::Opened { instance, directory } }
    }
}

/// A child to be opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSession {
    /// The parent's session, when it lives on the same host.
    pub parent: Option<Place>,
    pub title: String,
    /// Idempotency key of the launch, stored in the session: after a crash between creating the session and
    /// recording it, the orphan is found by it ([`Host::find`]).
    pub nonce: String,
    pub directory: String,
    pub agent: String,
    /// Tools the child may never use, also after a resume.
    pub deny: Vec<String>,
    /// Credentials that came with the call: kept in memory, and lost with the process.
    #[serde(skip)]
    pub handed: ClientCredentials,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedSession {
    pub session: SessionId,
    /// Which server or process of the host it was.
    pub instance: String,
}

/// A prompt. Its message id is the idempotency key: sent again, it does not run twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub to: Place,
    pub message: MessageId,
    pub text: String,
    pub agent: String,
    pub model: Option<String>,
}

/// A message to a conversation: a notice to a parent, or inherited context to a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Post {
    /// The conversation it is said to.
    pub to: Place,
    pub message: MessageId,
    pub visible: String,
    pub hidden: String,
    pub agent: String,
    /// Whether it starts a turn. `false` only stores it in the conversation.
    pub wake: bool,
}

/// A run to be observed: its session and the message that started it. A session may be resumed, so the
/// session alone does not say which run is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub session: SessionId,
    pub prompt: MessageId,
    /// Where the session was opened.
    pub instance: String,
    pub directory: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub session: SessionId,
    pub activity: Activity,
    /// What the run's part of the transcript says; only meaningful when idle.
    pub outcome: Outcome,
    pub open_todos: Vec<String>,
    pub figures: Figures,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activity {
    Idle,
    /// The model has been asked and has not produced anything yet.
    Waiting,
    Streaming,
    Tool,
    /// The host is backing off before it retries by itself, for this reason.
    Retrying(String),
    /// Waits for a person or a policy to answer these permission requests.
    Blocked(Vec<Ask>),
    /// The session was deleted.
    Gone,
    /// It cannot continue until its credentials, which came with a call and are lost, are brought again.
    Lacking(String),
    /// Its host has been unreachable for longer than the limit, for this reason; the run is given up.
    Lost(String),
}

/// A permission or a question of a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub id: String,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Allow,
    Deny,
}

/// A short message on the host's screen. Best effort: nothing relies on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toast {
    pub title: String,
    pub message: String,
    pub tone: Tone,
    pub shown: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Info,
    Success,
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    /// Transient, and the call may have had its effect: retry with the same nonce or message id.
    #[error("host cannot be reached: {0}")]
    Unreachable(String),
    #[error("session `{0}` does not exist on its host")]
    NoSuchSession(SessionId),
    /// Permanent: the supervisor does not retry it.
    #[error("host refused: {0}")]
    Refused(String),
    /// Credentials that came with a call are lost; not final, since a caller may bring them again.
    #[error("{0}")]
    NoCredentials(String),
}

/// The boxed future of a call to a host, which keeps [`Host`] object-safe.
pub type HostFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// What every host can do, as `Arc<dyn Host>`; optional capabilities are the accessors at the end. Calls
/// return when the host has accepted, not when an agent has answered. They may take as long as a remote
/// server does, so a caller holds no shared lock across one; only the supervisor's locks per task and per
/// launch key (`Turns`) are.
pub trait Host: Send + Sync {
    /// Opens a session. Idempotent by nonce on the embedded host; elsewhere a repeated call may open a
    /// second session, so recovery calls [`Host::find`] first.
    fn open(&self, session: NewSession) -> HostFuture<'_, OpenedSession>;
    /// The sessions that carry this nonce: none, one, or several when a launch was repeated.
    fn find(&self, session: NewSession) -> HostFuture<'_, Vec<OpenedSession>>;
    fn delete(&self, place: Place) -> HostFuture<'_, ()>;
    fn prompt(&self, prompt: Prompt) -> HostFuture<'_, ()>;
    /// Appends these to one conversation, in this order, and returns when they are stored there. After an
    /// error any of them may be: ask [`Host::posted`] before sending one again.
    fn post(&self, posts: Vec<Post>) -> HostFuture<'_, ()>;
    /// Whether a message with this id is already in the conversation.
    fn posted(&self, to: Place, message: MessageId) -> HostFuture<'_, bool>;
    /// One observation per watch, in the same order; `None` where the state is unknown for now.
    fn observe(&self, watches: Vec<Watch>) -> HostFuture<'_, Vec<Option<Observation>>>;
    /// Which of these sessions are known to be deleted. One whose host does not answer is not among them.
    fn missing(&self, places: Vec<Place>) -> HostFuture<'_, Vec<SessionId>>;
    /// Whether this session is here, for certain.
    fn has(&self, place: Place) -> HostFuture<'_, bool> {
        Box::pin(async move { Ok(self.missing(vec![place]).await?.is_empty()) })
    }
    /// The host's own messages, as a JSON array.
    fn transcript(&self, place: Place) -> HostFuture<'_, String>;
    fn abort(&self, place: Place) -> HostFuture<'_, ()>;
    /// The agents a child of this parent could be, in this directory, which is checked as by `directory`.
    fn agents(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, Vec<AgentOffer>>;
    /// The directory a child of this parent is to work in, as the host knows it. Where the host is on
    /// this machine one that does not exist is refused.
    fn directory(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, String> {
        let _ = parent;
        Box::pin(async { Ok(directory) })
    }
    /// Notifies `wake` whenever something may have changed. Ends only when the host is dropped.
    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()>;
    /// Cache validator of a session: changes with every event heard of it, so what was read under the same
    /// version is still valid. `None` where there is no event stream, or none at the moment.
    fn version(&self, place: &Place) -> Option<u64> {
        let _ = place;
        None
    }
    /// Whether its transcripts are in our own store, for as long as their tasks.
    fn keeps_transcripts(&self) -> bool {
        false
    }

    fn forks(&self) -> Option<&dyn Forks> {
        None
    }
    fn steering(&self) -> Option<&dyn Steering> {
        None
    }
    fn permissions(&self) -> Option<&dyn Permissions> {
        None
    }
    fn vetting(&self) -> Option<&dyn Vetting> {
        None
    }
    fn credentials(&self) -> Option<&dyn Credentials> {
        None
    }
    fn toasts(&self) -> Option<&dyn Toasts> {
        None
    }
    fn servers(&self) -> Option<&dyn Servers> {
        None
    }
    fn bridges(&self) -> Option<&dyn Bridges> {
        None
    }
}

/// The models as a caller who launches would find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// The default, for agents that name none.
    pub model: String,
    /// Why that cannot be used.
    pub problem: Option<String>,
    pub providers: Vec<ProviderStatus>,
}

/// An agent that a child can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOffer {
    pub name: String,
    /// What its definition names, as `provider/model`; `None` when it names none.
    pub model: Option<String>,
    /// Set only when it is certain that it has no tool that changes anything.
    pub reads_only: bool,
}
