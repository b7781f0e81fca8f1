//! A fake host for tests and benchmarks, with fault injection. An agent's script is the text of its prompt
//! (see `script`). It runs in this process ([`World`]), or as a process of its own behind a socket (`serve`,
//! `remote`): then it keeps its sessions and a log of every post while daemons are killed around it, and a
//! test can assert exactly-once delivery across crashes.

mod remote;
mod script;
pub mod serve;
mod world;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use remote::Remote;
pub use world::World;

use super::{
    AgentOffer, Answer, Error, Host, HostFuture, NewSession, Observation, OpenedSession,
    Permissions, Place, Post, Prompt, Steering, Watch,
};
use crate::task::{MessageId, SessionId};

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub enum Scripted {
    Here(World),
    Process(Remote),
}

/// Every request to the fake, as it travels over the socket.
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
    Posted { session: SessionId, message: MessageId },
    Agents,
    Sessions,
    Answer { session: SessionId, ask: String, answer: Answer },
    Control(Control),
}

/// Fault injection: what a test does to the host behind the daemon's back.
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
    /// The same, without an event: the reconciler's timer has to find it.
    FinishSilently {
        session: SessionId,
        text: String,
    },
    /// A user of the host aborts it.
    Abort {
        session: SessionId,
    },
    Delete {
        session: SessionId,
    },
    /// Forgets what runs, as a restarted server does (G19). Sessions stay, answers stay unfinished.
    Restart,
    /// The next posts fail, before or after the message was stored: a lost request or a lost response.
    FailPosts {
        posts: u32,
        stored: bool,
    },
    /// The next calls to open a session fail.
    FailOpens {
        opens: u32,
    },
    /// A request of an earlier daemon arrives late: a second session with the nonce of this one.
    OpenTwin {
        of: SessionId,
    },
    /// All calls fail as unreachable, until switched back.
    Unreachable {
        yes: bool,
    },
    /// Like a host without steering, when it is in this process.
    TakeNoMessages,
    /// A spurious event.
    Ring,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Opened(OpenedSession),
    Found(Vec<OpenedSession>),
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

/// A reply of the wrong kind: daemon and fake are of different versions.
fn confused<T>(reply: Reply) -> Result<T, Error> {
    Err(Error::Refused(format!("unexpected reply {reply:?}")))
}

impl Host for Scripted {
    fn open(&self, session: NewSession) -> HostFuture<'_, OpenedSession> {
        Box::pin(async move {
            match self.call(Call::Open(session)).await? {
                Reply::Opened(opened) => Ok(opened),
                other => confused(other),
            }
        })
    }

    fn find(&self, session: NewSession) -> HostFuture<'_, Vec<OpenedSession>> {
        Box::pin(async move {
            match self.call(Call::Find { nonce: session.nonce }).await? {
                Reply::Found(found) => Ok(found),
                other => confused(other),
            }
        })
    }

    fn delete(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(self.control(Control::Delete { session: place.session }))
    }

    fn prompt(&self, prompt: Prompt) -> HostFuture<'_, ()> {
        Box::pin(async move { self.call(Call::Prompt(prompt)).await.map(|_| ()) })
    }

    fn post(&self, posts: Vec<Post>) -> HostFuture<'_, ()> {
        Box::pin(async move {
            // One by one, so that a fault can hit in the middle of a batch.
            for post in posts {
                self.call(Call::Post(post)).await?;
            }
            Ok(())
        })
    }

    fn posted(&self, to: Place, message: MessageId) -> HostFuture<'_, bool> {
        Box::pin(async move {
            match self.call(Call::Posted { session: to.session, message }).await? {
                Reply::YesNo(posted) => Ok(posted),
                other => confused(other),
            }
        })
    }

    fn observe(&self, watches: Vec<Watch>) -> HostFuture<'_, Vec<Option<Observation>>> {
        Box::pin(async move {
            match self.call(Call::Observe { watches }).await? {
                Reply::Observed(observations) => Ok(observations.into_iter().map(Some).collect()),
                other => confused(other),
            }
        })
    }

    fn missing(&self, places: Vec<Place>) -> HostFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let sessions = places.into_iter().map(|place| place.session).collect();
            match self.call(Call::Missing { sessions }).await? {
                Reply::Sessions(sessions) => Ok(sessions),
                other => confused(other),
            }
        })
    }

    fn transcript(&self, place: Place) -> HostFuture<'_, String> {
        Box::pin(async move {
            match self.call(Call::Transcript { session: place.session }).await? {
                Reply::Text(json) => Ok(json),
                other => confused(other),
            }
        })
    }

    fn abort(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(async move { self.call(Call::Abort { session: place.session }).await.map(|_| ()) })
    }

    fn agents(&self, _: String, _: Option<Place>) -> HostFuture<'_, Vec<AgentOffer>> {
        Box::pin(async move {
            let offer = |name| AgentOffer { name, model: None, reads_only: false };
            match self.call(Call::Agents).await? {
                Reply::Names(names) => Ok(names.into_iter().map(offer).collect()),
                other => confused(other),
            }
        })
    }

    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()> {
        match self {
            Scripted::Here(world) => Box::pin(world.listen(wake)),
            Scripted::Process(remote) => Box::pin(remote.listen(wake)),
        }
    }

    fn steering(&self) -> Option<&dyn Steering> {
        match self {
            Scripted::Here(world) if !world.takes_messages() => None,
            Scripted::Here(_) | Scripted::Process(_) => Some(self),
        }
    }

    fn permissions(&self) -> Option<&dyn Permissions> {
        Some(self)
    }
}

impl Steering for Scripted {
    fn steer(&self, message: Prompt) -> HostFuture<'_, ()> {
        self.prompt(message)
    }
}

impl Permissions for Scripted {
    fn answer(&self, place: Place, ask: String, answer: Answer) -> HostFuture<'_, ()> {
        let call = Call::Answer { session: place.session, ask, answer };
        Box::pin(async move { self.call(call).await.map(|_| ()) })
    }
}
