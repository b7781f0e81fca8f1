//! Forking: what a child inherits is read before anything of the child exists (F8), and handed to
//! it, without a reply, before its first prompt (F7).

use serde::{Deserialize, Serialize};

use super::{Caller, Error, Supervisor};
use crate::fork::{self, Inheritance};
use crate::host::metered::Metered;
use crate::host::{self, Host, Post};
use crate::task::{MAILBOX, SessionId, Task};

/// Whose conversation a new task begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fork {
    /// Nobody's: it sees its prompt and nothing else.
    No,
    /// The caller's own.
    Caller,
    /// A task's, by any form of its id, or that of a session on any host.
    Session(String),
}

/// How a child gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkMethod {
    /// As a text, cut to what is worth its price.
    Context,
    /// As a copy that the host makes, where it can; else as a text.
    Native,
}

/// What a child will begin with, as it is kept in the launch's intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Inherits {
    Context { preamble: String, context: String },
    CopyOf(SessionId),
}

/// A conversation and the host it lives on.
struct Conversation {
    host: String,
    session: SessionId,
}

impl Supervisor {
    /// What a child would inherit if it were forked now.
    pub async fn fork_preview(&self, session: &str) -> Result<Inheritance, Error> {
        let conversation = self.find_conversation(session).await?;
        self.read_conversation(conversation).await
    }

    pub(super) async fn inherit(
        &self,
        fork: Fork,
        caller: &Caller,
        host: &str,
    ) -> Result<Option<Inherits>, Error> {
        let conversation = match fork {
            Fork::No => return Ok(None),
            Fork::Caller if caller.host == MAILBOX => return Err(Error::NothingToFork),
            Fork::Caller => {
                Conversation { host: caller.host.clone(), session: caller.session.clone() }
            }
            Fork::Session(session) => self.find_conversation(&session).await?,
        };
        let native = self.0.settings.fork_method == ForkMethod::Native;
        if native && conversation.host == host && self.host(host)?.can_fork() {
            // Here, because a launch that is refused leaves nothing behind.
            conversation.check(self.host(host)?).await?;
            return Ok(Some(Inherits::CopyOf(conversation.session)));
        }
        let Inheritance { preamble, context, .. } = self.read_conversation(conversation).await?;
        Ok(Some(Inherits::Context { preamble, context }))
    }

    /// Puts the context into the child's session, once, however often this is tried.
    pub(super) async fn hand_over(&self, task: &Task) -> Result<(), Error> {
        let Some(inheritance) = self.0.store.tasks().inheritance(&task.id)? else { return Ok(()) };
        let host = self.host(&task.origin.host)?;
        if host.posted(&task.id, &inheritance.message_id).await? {
            return Ok(());
        }
        let post = Post {
            parent: task.id.clone(),
            message: inheritance.message_id,
            visible: inheritance.preamble,
            hidden: inheritance.context,
            agent: task.order.agent.clone(),
            wake: false,
        };
        Ok(host.post(vec![post]).await?)
    }

    async fn find_conversation(&self, session: &str) -> Result<Conversation, Error> {
        match self.resolve(session) {
            Ok(task) => return Ok(Conversation { host: task.origin.host, session: task.id }),
            Err(Error::NoSuchTask(_)) => {}
            Err(other) => return Err(other),
        }
        let id = SessionId::new(session.trim());
        let mut silent = None;
        for (name, host) in &self.0.metered {
            match host.has(&id).await {
                Ok(true) => return Ok(Conversation { host: name.clone(), session: id }),
                Ok(false) => {}
                Err(error) => silent = Some(error),
            }
        }
        let known = self.0.metered.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(match silent {
            Some(error) => cannot_read(&id, error),
            None => Error::NoSuchConversation { session: id.to_string(), known },
        })
    }

    async fn read_conversation(&self, conversation: Conversation) -> Result<Inheritance, Error> {
        let Conversation { host, session } = conversation;
        let read = self.host(&host)?.transcript(&session).await;
        let transcript = read.map_err(|error| cannot_read(&session, error))?;
        // A long one takes a while.
        let cut = tokio::task::spawn_blocking(move || fork::inherit(&transcript)).await;
        match cut {
            Ok(Ok(inheritance)) => Ok(inheritance),
            Ok(Err(unreadable)) => Err(cannot_read(&session, unreadable)),
            Err(panicked) => Err(cannot_read(&session, panicked)),
        }
    }
}

impl Conversation {
    async fn check(&self, host: &Metered) -> Result<(), Error> {
        let there = host.has(&self.session).await;
        match there.map_err(|error| cannot_read(&self.session, error))? {
            true => Ok(()),
            false => {
                let gone = host::Error::NoSuchSession(self.session.clone());
                Err(cannot_read(&self.session, gone))
            }
        }
    }
}

fn cannot_read(session: &SessionId, why: impl std::fmt::Display) -> Error {
    Error::CannotFork { session: session.to_string(), why: why.to_string() }
}
