//! Where agents run: the contract every host keeps. Adapters translate; they decide nothing and
//! keep no task state.

mod directory;
pub mod embedded;
mod handed;
pub mod metered;
pub mod opencode;
pub mod scripted;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::handed::{Handed, Parts as HandedParts};
pub use crate::agent::model::{Look, Standing as ProviderStanding};
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
    pub session: SessionId,
    pub message: MessageId,
    pub text: String,
    pub agent: String,
    pub model: Option<String>,
}

/// Something said to a conversation: a notice to a parent, or to a child what it inherits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Post {
    /// The conversation it is said to.
    pub parent: SessionId,
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

/// What a host can do. Calls return when the host has accepted, not when an agent has answered.
pub trait Host {
    /// A host of our own opens one session per nonce, however often it is asked.
    fn open(&self, session: NewSession) -> impl Future<Output = Result<Opened, Error>> + Send;
    /// Whether the host can copy a session.
    fn can_fork(&self) -> bool {
        false
    }
    /// Whether its transcripts are in our own store, for as long as their tasks.
    fn keeps_transcripts(&self) -> bool {
        false
    }
    /// Opens a session that begins as a copy of another one, with everything said there. Like
    /// [`Host::open`] otherwise; only for hosts that can.
    fn fork(
        &self,
        of: &SessionId,
        session: NewSession,
    ) -> impl Future<Output = Result<Opened, Error>> + Send {
        let _ = (of, session);
        async { Err(Error::Refused("this host cannot copy a session".to_owned())) }
    }
    /// The session that was opened like this, found by its nonce, if there is one.
    fn find(&self, session: &NewSession)
    -> impl Future<Output = Result<Vec<Opened>, Error>> + Send;
    fn delete(&self, session: &SessionId) -> impl Future<Output = Result<(), Error>> + Send;
    fn prompt(&self, prompt: Prompt) -> impl Future<Output = Result<(), Error>> + Send;
    /// One observation per watch, in the same order; `None` where it cannot be told now.
    fn observe(
        &self,
        watches: Vec<Watch>,
    ) -> impl Future<Output = Result<Vec<Option<Observation>>, Error>> + Send;
    /// Which of these sessions are known to exist no longer.
    fn missing(
        &self,
        sessions: Vec<SessionId>,
    ) -> impl Future<Output = Result<Vec<SessionId>, Error>> + Send;
    /// Whether this session is here, for certain.
    fn has(&self, session: &SessionId) -> impl Future<Output = Result<bool, Error>> + Send
    where
        Self: Sync,
    {
        async { Ok(self.missing(vec![session.clone()]).await?.is_empty()) }
    }
    /// Another number whenever something is heard of the session, so that what was read under this one
    /// is still true. `None` where nothing is heard, or not surely.
    fn version(&self, session: &SessionId) -> Option<u64> {
        let _ = session;
        None
    }
    /// The host's own messages, as a JSON array.
    fn transcript(&self, session: &SessionId)
    -> impl Future<Output = Result<String, Error>> + Send;
    fn abort(&self, session: &SessionId) -> impl Future<Output = Result<(), Error>> + Send;
    /// Says these to one conversation, in this order, and returns when they are in it. After an
    /// error any of them may be.
    fn post(&self, posts: Vec<Post>) -> impl Future<Output = Result<(), Error>> + Send;
    /// Whether a message with this id is already in the conversation.
    fn posted(
        &self,
        parent: &SessionId,
        message: &MessageId,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
    /// Why an agent is not to be used in this directory although it is defined there; `None` when
    /// there is nothing to say against it. Asked at every launch and resume.
    fn objection(
        &self,
        directory: &str,
        agent: &str,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        let _ = (directory, agent);
        async { Ok(None) }
    }
    /// The model a task will run on that wishes for this one, or for none, in full. Refused, with the
    /// way out, when it cannot be used. Asked at every launch.
    fn model(
        &self,
        wish: Option<String>,
        handed: Handed,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        let _ = handed;
        async { Ok(wish) }
    }
    /// What a caller hands over for a session that is there, instead of what was handed over before.
    fn hand_over(
        &self,
        session: &SessionId,
        handed: Handed,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (session, handed);
        async { Ok(()) }
    }
    /// Of what a caller has, the session gets what came with an earlier call and is lost, and nothing else.
    /// `true` when that was something.
    fn bring(
        &self,
        session: &SessionId,
        handed: &Handed,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (session, handed);
        async { Ok(false) }
    }
    /// Why a session cannot go on with this model before somebody brings what it lost.
    fn lacks(
        &self,
        session: &SessionId,
        model: Option<String>,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        let _ = (session, model);
        async { Ok(None) }
    }
    /// What was handed over for this session, as far as it is still there.
    fn handed(&self, session: &SessionId) -> Handed {
        let _ = session;
        Handed::default()
    }
    /// The agents a child of this parent could be, in this directory.
    fn agents(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> impl Future<Output = Result<Vec<AgentOffer>, Error>> + Send;
    /// The directory a child of this parent is to work in, as the host knows it. Where the host is on
    /// this machine one that does not exist is refused.
    fn directory(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> impl Future<Output = Result<String, Error>> + Send {
        let (directory, _) = (directory.to_owned(), parent);
        async { Ok(directory) }
    }
    fn answer(
        &self,
        session: &SessionId,
        ask: &str,
        answer: Answer,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Shown where a person can see it; a host without a screen does nothing.
    fn toast(
        &self,
        parent: &SessionId,
        toast: Toast,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Rings `wake` whenever something may have changed. Ends only when the host is dropped.
    fn listen(&self, wake: &Notify) -> impl Future<Output = ()> + Send;
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

/// The hosts there are. The set is closed, so callers hold this and nothing is boxed.
#[derive(Clone)]
pub enum AnyHost {
    Scripted(scripted::Scripted),
    Embedded(embedded::Embedded),
    OpenCode(opencode::OpenCode),
}

impl Host for AnyHost {
    async fn open(&self, session: NewSession) -> Result<Opened, Error> {
        match self {
            AnyHost::Scripted(host) => host.open(session).await,
            AnyHost::Embedded(host) => host.open(session).await,
            AnyHost::OpenCode(host) => host.open(session).await,
        }
    }

    fn can_fork(&self) -> bool {
        match self {
            AnyHost::Scripted(host) => host.can_fork(),
            AnyHost::Embedded(host) => host.can_fork(),
            AnyHost::OpenCode(host) => host.can_fork(),
        }
    }

    fn keeps_transcripts(&self) -> bool {
        match self {
            AnyHost::Scripted(host) => host.keeps_transcripts(),
            AnyHost::Embedded(host) => host.keeps_transcripts(),
            AnyHost::OpenCode(host) => host.keeps_transcripts(),
        }
    }

    async fn fork(&self, of: &SessionId, session: NewSession) -> Result<Opened, Error> {
        match self {
            AnyHost::Scripted(host) => host.fork(of, session).await,
            AnyHost::Embedded(host) => host.fork(of, session).await,
            AnyHost::OpenCode(host) => host.fork(of, session).await,
        }
    }

    async fn find(&self, session: &NewSession) -> Result<Vec<Opened>, Error> {
        match self {
            AnyHost::Scripted(host) => host.find(session).await,
            AnyHost::Embedded(host) => host.find(session).await,
            AnyHost::OpenCode(host) => host.find(session).await,
        }
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.delete(session).await,
            AnyHost::Embedded(host) => host.delete(session).await,
            AnyHost::OpenCode(host) => host.delete(session).await,
        }
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.prompt(prompt).await,
            AnyHost::Embedded(host) => host.prompt(prompt).await,
            AnyHost::OpenCode(host) => host.prompt(prompt).await,
        }
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        match self {
            AnyHost::Scripted(host) => host.observe(watches).await,
            AnyHost::Embedded(host) => host.observe(watches).await,
            AnyHost::OpenCode(host) => host.observe(watches).await,
        }
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        match self {
            AnyHost::Scripted(host) => host.missing(sessions).await,
            AnyHost::Embedded(host) => host.missing(sessions).await,
            AnyHost::OpenCode(host) => host.missing(sessions).await,
        }
    }

    async fn has(&self, session: &SessionId) -> Result<bool, Error> {
        match self {
            AnyHost::Scripted(host) => host.has(session).await,
            AnyHost::Embedded(host) => host.has(session).await,
            AnyHost::OpenCode(host) => host.has(session).await,
        }
    }

    fn version(&self, session: &SessionId) -> Option<u64> {
        match self {
            AnyHost::Scripted(host) => host.version(session),
            AnyHost::Embedded(host) => host.version(session),
            AnyHost::OpenCode(host) => host.version(session),
        }
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        match self {
            AnyHost::Scripted(host) => host.transcript(session).await,
            AnyHost::Embedded(host) => host.transcript(session).await,
            AnyHost::OpenCode(host) => host.transcript(session).await,
        }
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.abort(session).await,
            AnyHost::Embedded(host) => host.abort(session).await,
            AnyHost::OpenCode(host) => host.abort(session).await,
        }
    }

    async fn post(&self, posts: Vec<Post>) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.post(posts).await,
            AnyHost::Embedded(host) => host.post(posts).await,
            AnyHost::OpenCode(host) => host.post(posts).await,
        }
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        match self {
            AnyHost::Scripted(host) => host.posted(parent, message).await,
            AnyHost::Embedded(host) => host.posted(parent, message).await,
            AnyHost::OpenCode(host) => host.posted(parent, message).await,
        }
    }

    async fn objection(&self, directory: &str, agent: &str) -> Result<Option<String>, Error> {
        match self {
            AnyHost::Scripted(host) => host.objection(directory, agent).await,
            AnyHost::Embedded(host) => host.objection(directory, agent).await,
            AnyHost::OpenCode(host) => host.objection(directory, agent).await,
        }
    }

    async fn model(&self, wish: Option<String>, handed: Handed) -> Result<Option<String>, Error> {
        match self {
            AnyHost::Scripted(host) => host.model(wish, handed).await,
            AnyHost::Embedded(host) => host.model(wish, handed).await,
            AnyHost::OpenCode(host) => host.model(wish, handed).await,
        }
    }

    async fn hand_over(&self, session: &SessionId, handed: Handed) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.hand_over(session, handed).await,
            AnyHost::Embedded(host) => host.hand_over(session, handed).await,
            AnyHost::OpenCode(host) => host.hand_over(session, handed).await,
        }
    }

    async fn bring(&self, session: &SessionId, handed: &Handed) -> Result<bool, Error> {
        match self {
            AnyHost::Scripted(host) => host.bring(session, handed).await,
            AnyHost::Embedded(host) => host.bring(session, handed).await,
            AnyHost::OpenCode(host) => host.bring(session, handed).await,
        }
    }

    async fn lacks(
        &self,
        session: &SessionId,
        model: Option<String>,
    ) -> Result<Option<String>, Error> {
        match self {
            AnyHost::Scripted(host) => host.lacks(session, model).await,
            AnyHost::Embedded(host) => host.lacks(session, model).await,
            AnyHost::OpenCode(host) => host.lacks(session, model).await,
        }
    }

    fn handed(&self, session: &SessionId) -> Handed {
        match self {
            AnyHost::Scripted(host) => host.handed(session),
            AnyHost::Embedded(host) => host.handed(session),
            AnyHost::OpenCode(host) => host.handed(session),
        }
    }

    async fn agents(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<Vec<AgentOffer>, Error> {
        match self {
            AnyHost::Scripted(host) => host.agents(directory, parent).await,
            AnyHost::Embedded(host) => host.agents(directory, parent).await,
            AnyHost::OpenCode(host) => host.agents(directory, parent).await,
        }
    }

    async fn directory(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<String, Error> {
        match self {
            AnyHost::Scripted(host) => host.directory(directory, parent).await,
            AnyHost::Embedded(host) => host.directory(directory, parent).await,
            AnyHost::OpenCode(host) => host.directory(directory, parent).await,
        }
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.answer(session, ask, answer).await,
            AnyHost::Embedded(host) => host.answer(session, ask, answer).await,
            AnyHost::OpenCode(host) => host.answer(session, ask, answer).await,
        }
    }

    async fn toast(&self, parent: &SessionId, toast: Toast) -> Result<(), Error> {
        match self {
            AnyHost::Scripted(host) => host.toast(parent, toast).await,
            AnyHost::Embedded(host) => host.toast(parent, toast).await,
            AnyHost::OpenCode(host) => host.toast(parent, toast).await,
        }
    }

    async fn listen(&self, wake: &Notify) {
        match self {
            AnyHost::Scripted(host) => host.listen(wake).await,
            AnyHost::Embedded(host) => host.listen(wake).await,
            AnyHost::OpenCode(host) => host.listen(wake).await,
        }
    }
}
