//! Where agents run: the contract every host keeps. Adapters translate; they decide nothing and
//! keep no task state.

mod capabilities;
mod directory;
pub mod embedded;
mod handed;
mod metered;
pub mod opencode;
pub mod scripted;

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::capabilities::{
    Bridges, Credentials, Forks, Permissions, Server, Servers, Toasts, Vetting,
};
pub use self::handed::{Handed, Parts as HandedParts};
pub use self::metered::Metered;
pub use self::opencode::{Bridge, Line};
pub use crate::agent::model::{Look, Standing as ProviderStanding};
use crate::task::{MessageId, SessionId, Task};
use crate::transcript::{Figures, Outcome};

/// A session and where it is. The supervisor reads that off its rows, so that adapters need none of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub session: SessionId,
    pub location: Location,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// A child: on the server or process where it was opened, and nowhere else.
    Opened { instance: String, directory: String },
    /// A conversation: where its caller last said it was, if one did. Several processes may share it.
    Conversation { last: Option<String> },
}

impl Place {
    /// Of a session that we opened.
    pub fn of_child(opened: &Opened, directory: &str) -> Place {
        let Opened { session, instance } = opened.clone();
        Place { session, location: Location::Opened { instance, directory: directory.to_owned() } }
    }

    /// Of a session that nobody has said anything about.
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
    /// Kept in the session, so that an orphan can be found again.
    pub nonce: String,
    pub directory: String,
    pub agent: String,
    /// Tools the child may never use, also after a resume.
    pub deny: Vec<String>,
    /// What the caller handed over for it: kept in memory, for as long as that lasts.
    #[serde(skip)]
    pub handed: Handed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    pub session: SessionId,
    /// Which server or process of the host it was.
    pub instance: String,
}

/// A prompt with a known message id does not run twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub to: Place,
    pub message: MessageId,
    pub text: String,
    pub agent: String,
    pub model: Option<String>,
}

/// Something said to a conversation: a notice to a parent, or to a child what it inherits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Post {
    /// The conversation it is said to.
    pub to: Place,
    pub message: MessageId,
    pub visible: String,
    pub hidden: String,
    pub agent: String,
    /// Whether it is to be answered.
    pub wake: bool,
}

/// A run to be looked at: its session and the message that started it.
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
    /// The model is asked and has not said anything yet.
    Waiting,
    Streaming,
    Tool,
    /// The host tries again by itself, for this reason.
    Retrying(String),
    /// Waits for an answer of a person or a policy.
    Blocked(Vec<Ask>),
    /// The session was deleted.
    Gone,
    /// It cannot go on before somebody brings the credentials that came with a call and are lost.
    Lacking(String),
    /// Its host has been away for so long that nothing can come of it any more, for this reason.
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

/// A few words on the screen of whoever sits in front of the host. Nobody relies on them.
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
    #[error("host cannot be reached: {0}")]
    Unreachable(String),
    #[error("session `{0}` does not exist on its host")]
    NoSuchSession(SessionId),
    #[error("host refused: {0}")]
    Refused(String),
    /// What came with a call is lost; somebody may bring it again.
    #[error("{0}")]
    NoCredentials(String),
}

/// What a call to a host resolves to.
pub type Pending<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// What every host can do, as `Arc<dyn Host>`; what only some can is asked for by its name and may be
/// `None`. Calls return when the host has accepted, not when an agent has answered, and are told where the
/// session is that they are about.
pub trait Host: Send + Sync {
    /// A host of our own opens one session per nonce, however often it is asked.
    fn open(&self, session: NewSession) -> Pending<'_, Opened>;
    /// The session that was opened like this, found by its nonce, if there is one.
    fn find(&self, session: NewSession) -> Pending<'_, Vec<Opened>>;
    fn delete(&self, place: Place) -> Pending<'_, ()>;
    fn prompt(&self, prompt: Prompt) -> Pending<'_, ()>;
    /// Says these to one conversation, in this order, and returns when they are in it. After an
    /// error any of them may be.
    fn post(&self, posts: Vec<Post>) -> Pending<'_, ()>;
    /// Whether a message with this id is already in the conversation.
    fn posted(&self, to: Place, message: MessageId) -> Pending<'_, bool>;
    /// One observation per watch, in the same order; `None` where it cannot be told now.
    fn observe(&self, watches: Vec<Watch>) -> Pending<'_, Vec<Option<Observation>>>;
    /// Which of these sessions are known to exist no longer.
    fn missing(&self, places: Vec<Place>) -> Pending<'_, Vec<SessionId>>;
    /// Whether this session is here, for certain.
    fn has(&self, place: Place) -> Pending<'_, bool> {
        Box::pin(async move { Ok(self.missing(vec![place]).await?.is_empty()) })
    }
    /// The host's own messages, as a JSON array.
    fn transcript(&self, place: Place) -> Pending<'_, String>;
    fn abort(&self, place: Place) -> Pending<'_, ()>;
    /// The agents a child of this parent could be, in this directory.
    fn agents(&self, directory: String, parent: Option<Place>) -> Pending<'_, Vec<AgentOffer>>;
    /// The directory a child of this parent is to work in, as the host knows it. Where the host is on
    /// this machine one that does not exist is refused.
    fn directory(&self, directory: String, parent: Option<Place>) -> Pending<'_, String> {
        let _ = parent;
        Box::pin(async { Ok(directory) })
    }
    /// Rings `wake` whenever something may have changed. Ends only when the host is dropped.
    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()>;
    /// Another number whenever something is heard of the session, so that what was read under this one
    /// is still true. `None` where nothing is heard, or not surely.
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

/// Models as somebody who launches finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStanding {
    /// What agents run on that name none.
    pub model: String,
    /// Why that cannot be used.
    pub problem: Option<String>,
    pub providers: Vec<ProviderStanding>,
}

/// An agent that a child can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOffer {
    pub name: String,
    /// What its definition names, as `provider/model`; `None` when it names none.
    pub model: Option<String>,
    /// It is certain that it changes nothing.
    pub reads_only: bool,
}
