//! A host made of scripts, for tests and benchmarks, with faults on demand. An agent's script is
//! the text of its prompt (see `script`). It runs in this process ([`World`]), or as a process
//! of its own behind a socket (`serve`, `remote`): then it keeps its sessions and a log of
//! every post while daemons are killed around it.

mod remote;
mod script;
pub mod serve;
mod world;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use remote::Remote;
pub use world::World;

use super::{
    AgentOffer, Answer, Error, Host, NewSession, Observation, Opened, Post, Prompt, Toast, Watch,
};
use crate::task::{MessageId, SessionId};

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub enum Scripted {
    Here(World),
    Process(Remote),
}

/// Everything that can be asked of it, as it travels over the socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    Open(NewSession),
    Find { nonce: String },
    Prompt(Prompt),
    Observe { watches: Vec<Watch> },
    Missing { sessions: Vec<SessionId> },
    Transcript { session: SessionId },
    Abort { session: SessionId },
    Post(Post),
    Posted { parent: SessionId, message: MessageId },
    Agents,
    Sessions,
    Answer { session: SessionId, ask: String, answer: Answer },
    Control(Control),
}

/// What a test does to the host behind the daemon's back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Ends a hanging run with this text, as its agent.
    Finish {
        session: SessionId,
        text: String,
    },
    Fail {
        session: SessionId,
        error: String,
    },
    /// The same, without an event.
    FinishSilently {
        session: SessionId,
        text: String,
    },
    /// Somebody in the host aborts it.
    Abort {
        session: SessionId,
    },
    Delete {
        session: SessionId,
    },
    /// Forgets what runs, as a restarted server does. Sessions stay, answers stay unfinished.
    Restart,
    /// The next posts fail, before or after the message was stored.
    FailPosts {
        posts: u32,
        stored: bool,
    },
    /// The next calls to open a session fail.
    FailOpens {
        opens: u32,
    },
    /// Calls fail as if nobody listened, until switched back.
    Unreachable {
        yes: bool,
    },
    /// An event about nothing.
    Ring,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Opened(Opened),
    Found(Option<Opened>),
    Observed(Vec<Observation>),
    Sessions(Vec<SessionId>),
    Text(String),
    YesNo(bool),
    Names(Vec<String>),
}

impl Scripted {
    pub async fn call(&self, call: Call) -> Result<Reply, Error> {
        match self {
            Scripted::Here(world) => world.call(call),
            Scripted::Process(remote) => remote.call(&call).await,
        }
    }

    pub async fn control(&self, control: Control) -> Result<(), Error> {
        self.call(Call::Control(control)).await.map(|_| ())
    }
}

fn confused<T>(reply: Reply) -> Result<T, Error> {
    Err(Error::Refused(format!("unexpected reply {reply:?}")))
}

impl Host for Scripted {
    async fn open(&self, session: NewSession) -> Result<Opened, Error> {
        match self.call(Call::Open(session)).await? {
            Reply::Opened(opened) => Ok(opened),
            other => confused(other),
        }
    }

    async fn find(&self, session: &NewSession) -> Result<Vec<Opened>, Error> {
        match self.call(Call::Find { nonce: session.nonce.clone() }).await? {
            Reply::Found(found) => Ok(found.into_iter().collect()),
            other => confused(other),
        }
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        self.control(Control::Delete { session: session.clone() }).await
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        self.call(Call::Prompt(prompt)).await.map(|_| ())
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        match self.call(Call::Observe { watches }).await? {
            Reply::Observed(observations) => Ok(observations.into_iter().map(Some).collect()),
            other => confused(other),
        }
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        match self.call(Call::Missing { sessions }).await? {
            Reply::Sessions(sessions) => Ok(sessions),
            other => confused(other),
        }
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        match self.call(Call::Transcript { session: session.clone() }).await? {
            Reply::Text(json) => Ok(json),
            other => confused(other),
        }
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        self.call(Call::Abort { session: session.clone() }).await.map(|_| ())
    }

    async fn post(&self, posts: Vec<Post>) -> Result<(), Error> {
        for post in posts {
            self.call(Call::Post(post)).await?;
        }
        Ok(())
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        let call = Call::Posted { parent: parent.clone(), message: message.clone() };
        match self.call(call).await? {
            Reply::YesNo(posted) => Ok(posted),
            other => confused(other),
        }
    }

    async fn agents(
        &self,
        _directory: &str,
        _parent: Option<&SessionId>,
    ) -> Result<Vec<AgentOffer>, Error> {
        let offer = |name| AgentOffer { name, model: None, reads_only: false };
        match self.call(Call::Agents).await? {
            Reply::Names(names) => Ok(names.into_iter().map(offer).collect()),
            other => confused(other),
        }
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        let ask = ask.to_owned();
        self.call(Call::Answer { session: session.clone(), ask, answer }).await.map(|_| ())
    }

    async fn toast(&self, _parent: &SessionId, _toast: Toast) -> Result<(), Error> {
        Ok(())
    }

    async fn listen(&self, wake: &Notify) {
        match self {
            Scripted::Here(world) => world.listen(wake).await,
            Scripted::Process(remote) => remote.listen(wake).await,
        }
    }
}
