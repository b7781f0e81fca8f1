//! Where agents run: the contract every host keeps. Adapters translate; they decide nothing and
//! keep no task state.

pub mod embedded;
pub mod metered;
pub mod scripted;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::task::{MessageId, SessionId};
use crate::transcript::{Figures, Outcome};

/// A child to be opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSession {
    /// The parent's session, when it lives on the same host.
    pub parent: Option<SessionId>,
    pub title: String,
    /// Kept in the session, so that an orphan can be found again.
    pub nonce: String,
    pub directory: String,
    pub agent: String,
    /// Tools the child may never use, also after a resume.
    pub deny: Vec<String>,
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
    pub session: SessionId,
    pub message: MessageId,
    pub text: String,
    pub agent: String,
    pub model: Option<String>,
}

/// A notice on its way to a parent's conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Post {
    pub parent: SessionId,
    pub message: MessageId,
    pub visible: String,
    pub hidden: String,
    pub agent: String,
    /// Whether the parent is to answer it.
    pub wake: bool,
}

/// A run to be looked at: its session and the message that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub session: SessionId,
    pub prompt: MessageId,
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    #[error("host cannot be reached: {0}")]
    Unreachable(String),
    #[error("session `{0}` does not exist on its host")]
    NoSuchSession(SessionId),
    #[error("host refused: {0}")]
    Refused(String),
}

/// What a host can do. Calls return when the host has accepted, not when an agent has answered.
pub trait Host {
    /// A host of our own opens one session per nonce, however often it is asked.
    fn open(&self, session: NewSession) -> impl Future<Output = Result<Opened, Error>> + Send;
    /// The session that carries this nonce, if there is one.
    fn find(&self, nonce: &str) -> impl Future<Output = Result<Option<Opened>, Error>> + Send;
    fn delete(&self, session: &SessionId) -> impl Future<Output = Result<(), Error>> + Send;
    fn prompt(&self, prompt: Prompt) -> impl Future<Output = Result<(), Error>> + Send;
    /// One observation per watch, in the same order.
    fn observe(
        &self,
        watches: Vec<Watch>,
    ) -> impl Future<Output = Result<Vec<Observation>, Error>> + Send;
    /// Which of these sessions no longer exist.
    fn missing(
        &self,
        sessions: Vec<SessionId>,
    ) -> impl Future<Output = Result<Vec<SessionId>, Error>> + Send;
    /// The host's own messages, as a JSON array.
    fn transcript(&self, session: &SessionId)
    -> impl Future<Output = Result<String, Error>> + Send;
    fn abort(&self, session: &SessionId) -> impl Future<Output = Result<(), Error>> + Send;
    fn post(&self, post: Post) -> impl Future<Output = Result<(), Error>> + Send;
    /// Whether a message with this id is already in the conversation.
    fn posted(
        &self,
        parent: &SessionId,
        message: &MessageId,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
    fn agents(&self, directory: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    fn answer(
        &self,
        session: &SessionId,
        ask: &str,
        answer: Answer,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Rings `wake` whenever something may have changed. Ends only when the host is dropped.
    fn listen(&self, wake: &Notify) -> impl Future<Output = ()> + Send;
}

/// The hosts there are. The set is closed, so callers hold this and nothing is boxed.
#[derive(Clone)]
pub enum AnyHost {
    Scripted(scripted::Scripted),
    Embedded(embedded::Embedded),
}

impl Host for AnyHost {
    async fn open(&self, session: NewSession) -> Result<Opened, Error> {
        match self {
            AnyHost::Scripted(host) => host.open(session).await,
            AnyHost::Embedded(host) => host.open(session).await,
        }
    }

    async fn find(&self, nonce: &str) -> Result<Option<Opened>, Error> {
        match self {
            AnyHost::Scripted(host) => host.find(nonce).await,
            AnyHost::Embedded(host) => host.find(nonce).await,
        }
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.delete(session).await,
            AnyHost::Embedded(host) => host.delete(session).await,
        }
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.prompt(prompt).await,
            AnyHost::Embedded(host) => host.prompt(prompt).await,
        }
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Observation>, Error> {
        match self {
            AnyHost::Scripted(host) => host.observe(watches).await,
            AnyHost::Embedded(host) => host.observe(watches).await,
        }
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        match self {
            AnyHost::Scripted(host) => host.missing(sessions).await,
            AnyHost::Embedded(host) => host.missing(sessions).await,
        }
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        match self {
            AnyHost::Scripted(host) => host.transcript(session).await,
            AnyHost::Embedded(host) => host.transcript(session).await,
        }
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.abort(session).await,
            AnyHost::Embedded(host) => host.abort(session).await,
        }
    }

    async fn post(&self, post: Post) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.post(post).await,
            AnyHost::Embedded(host) => host.post(post).await,
        }
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        match self {
            AnyHost::Scripted(host) => host.posted(parent, message).await,
            AnyHost::Embedded(host) => host.posted(parent, message).await,
        }
    }

    async fn agents(&self, directory: &str) -> Result<Vec<String>, Error> {
        match self {
            AnyHost::Scripted(host) => host.agents(directory).await,
            AnyHost::Embedded(host) => host.agents(directory).await,
        }
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.answer(session, ask, answer).await,
            AnyHost::Embedded(host) => host.answer(session, ask, answer).await,
        }
    }

    async fn listen(&self, wake: &Notify) {
        match self {
            AnyHost::Scripted(host) => host.listen(wake).await,
            AnyHost::Embedded(host) => host.listen(wake).await,
        }
    }
}
