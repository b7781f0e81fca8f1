//! Forks: a child starts with the conversation of its parent or of another session. The conversation is read
//! before anything of the child exists, so that a refusal leaves nothing behind (F8), and posted to the
//! child, without waking it, before its first prompt (F7). It is kept in the launch's intent, so a crash in
//! between changes nothing of what the child gets.

use serde::{Deserialize, Serialize};

use super::{Caller, Error, Supervisor};
use crate::fork::{self, Inheritance};
use crate::host::{self, Host, Place};
use crate::store;
use crate::task::{MAILBOX, SessionId, TaskId};

/// Whose conversation a new task starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fork {
    /// No context: it sees its prompt and nothing else.
    No,
    /// The caller's own.
    Caller,
    /// A task's, by any form of its id, or that of a session on any host.
    Session(String),
    /// What this task was given, as it is stored.
    Again(TaskId),
}

/// How the child gets the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkMethod {
    /// As one text, compacted to a budget.
    Context,
    /// As a copy that the host makes, where it can; else as a text.
    Native,
}

/// What a child inherits, as it is kept in the launch's intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Inherits {
    Context { preamble: String, context: String },
    CopyOf(SessionId),
}

/// A conversation and the host it lives on.
struct Conversation {
    host: String,
    place: Place,
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
            Fork::Caller => Conversation {
                host: caller.host.clone(),
                place: self.0.core.place(&caller.session),
            },
            Fork::Session(session) => self.find_conversation(&session).await?,
            Fork::Again(task) => return self.inherit_again(&task).map(Some),
        };
        let native = self.0.core.settings().fork_method == ForkMethod::Native;
        if native && conversation.host == host && self.0.core.host(host)?.forks().is_some() {
            // Checked here, before the intent: a refused launch leaves nothing behind.
            conversation.check(&**self.0.core.host(host)?).await?;
            return Ok(Some(Inherits::CopyOf(conversation.place.session)));
        }
        let Inheritance { preamble, context, .. } = self.read_conversation(conversation).await?;
        Ok(Some(Inherits::Context { preamble, context }))
    }

    /// The context that a task began with. A copy that its host made is not stored, and neither is whose
    /// conversation it was.
    fn inherit_again(&self, id: &TaskId) -> Result<Inherits, Error> {
        match self.0.core.store().tasks().inheritance(id)? {
            Some(store::Inheritance { preamble, context, .. }) => {
                Ok(Inherits::Context { preamble, context })
            }
            None => Err(Error::ContextNotKept(self.task(id)?.short_id.to_string())),
        }
    }

    async fn find_conversation(&self, session: &str) -> Result<Conversation, Error> {
        match self.resolve(session) {
            Ok(task) => {
                let place = Place::from(&task);
                return Ok(Conversation { host: task.origin.host, place });
            }
            Err(Error::NoSuchTask(_)) => {}
            Err(other) => return Err(other),
        }
        let id = SessionId::new(session.trim());
        let place = self.0.core.place(&id);
        let mut silent = None;
        for (name, host) in &self.0.core.hosts().all {
            match host.has(place.clone()).await {
                Ok(true) => return Ok(Conversation { host: name.clone(), place }),
                Ok(false) => {}
                Err(error) => silent = Some(error),
            }
        }
        let known = self.0.core.hosts().all.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(match silent {
            Some(error) => cannot_read(&id, error),
            None => Error::NoSuchConversation { session: id.to_string(), known },
        })
    }

    async fn read_conversation(&self, conversation: Conversation) -> Result<Inheritance, Error> {
        let Conversation { host, place } = conversation;
        let session = place.session.clone();
        let read = self.0.core.host(&host)?.transcript(place).await;
        let transcript = read.map_err(|error| cannot_read(&session, error))?;
        // Compacting a long conversation is CPU work.
        let cut = tokio::task::spawn_blocking(move || fork::inherit(&transcript)).await;
        match cut {
            Ok(Ok(inheritance)) => Ok(inheritance),
            Ok(Err(unreadable)) => Err(cannot_read(&session, unreadable)),
            Err(panicked) => Err(cannot_read(&session, panicked)),
        }
    }
}

impl Conversation {
    async fn check(&self, host: &dyn Host) -> Result<(), Error> {
        let session = &self.place.session;
        let there = host.has(self.place.clone()).await;
        match there.map_err(|error| cannot_read(session, error))? {
            true => Ok(()),
            false => Err(cannot_read(session, host::Error::NoSuchSession(session.clone()))),
        }
    }
}

fn cannot_read(session: &SessionId, why: impl std::fmt::Display) -> Error {
    Error::CannotFork { session: session.to_string(), why: why.to_string() }
}
