//! What only some hosts can do. The supervisor asks a host for a capability, never for its kind.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::opencode::{Bridge, Line};
use super::{
    Answer, Error, Handed, Host, Look, ModelStanding, NewSession, Opened, Pending, Place, Toast,
};
use crate::store;
use crate::task::SessionId;

/// Copies of sessions.
pub trait Forks: Send + Sync {
    /// Opens a session that begins as a copy of another one, with everything said there. Like
    /// [`Host::open`] otherwise.
    fn fork(&self, of: Place, session: NewSession) -> Pending<'_, Opened>;
}

/// Agents that ask before they do something.
pub trait Permissions: Send + Sync {
    fn answer(&self, place: Place, ask: String, answer: Answer) -> Pending<'_, ()>;
}

/// A word on what is launched before anything of it exists.
pub trait Vetting: Send + Sync {
    /// Why an agent is not to be used in this directory although it is defined there; `None` when
    /// there is nothing to say against it. Asked at every launch and resume.
    fn objection(&self, directory: String, agent: String) -> Pending<'_, Option<String>>;
    /// The model a task will run on that wishes for this one, or for none, in full. Refused, with the
    /// way out, when it cannot be used. Asked at every launch.
    fn model(&self, wish: Option<String>, handed: Handed) -> Pending<'_, Option<String>>;
}

/// Sessions that reach models with keys, which callers may hand over.
pub trait Credentials: Send + Sync {
    /// What agents run on that name no model, and what there is to say about each provider.
    fn standings(&self, handed: Handed, look: Look) -> Pending<'_, ModelStanding>;
    /// What a caller hands over for a session that is there, instead of what was handed over before.
    fn hand_over(&self, place: Place, handed: Handed) -> Pending<'_, ()>;
    /// Of what a caller has, the session gets what came with an earlier call and is lost, and nothing else.
    /// `true` when that was something.
    fn bring(&self, place: Place, handed: Handed) -> Pending<'_, bool>;
    /// Why a session cannot go on with this model before somebody brings what it lost.
    fn lacks(&self, place: Place, model: Option<String>) -> Pending<'_, Option<String>>;
    /// What was handed over for this session, as far as it is still there.
    fn handed(&self, session: &SessionId) -> Handed;
}

/// A screen that somebody sits in front of.
pub trait Toasts: Send + Sync {
    fn toast(&self, parent: Place, toast: Toast) -> Pending<'_, ()>;
}

/// Servers that come and go while the daemon runs.
pub trait Servers: Send + Sync {
    /// Adds a server, or says where a known one is now.
    fn put(&self, name: &str, address: &str) -> Result<(), Error>;
    /// `false` when there is none of that name.
    fn remove(&self, name: &str) -> bool;
    /// Each once it is clear whether it answers.
    fn known(&self) -> BoxFuture<'_, Vec<Server>>;
    /// A handle for launches of somebody who named this address: on that server, and on no other. When there
    /// is no room for one more, one that is not `needed` goes.
    fn at(&self, address: &str, needed: &dyn Fn(&str) -> bool) -> Result<Arc<dyn Host>, Error>;
    /// Whether a caller named it in its environment.
    fn is_named_by_caller(&self, name: &str) -> bool;
    /// Forgets the addresses that callers named and that no task needs any more.
    fn forget_unneeded(&self) -> BoxFuture<'_, Result<(), store::Error>>;
    /// Returns when one can be talked to that could not: what waited for it may go on.
    fn arrival(&self) -> BoxFuture<'_, ()>;
}

/// A server as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    /// Without its password.
    pub address: String,
    /// `Ok` with its version, `Err` with the reason why it cannot be used.
    pub standing: Result<String, String>,
}

/// Processes that are reached through a plugin in them.
pub trait Bridges: Send + Sync {
    /// A plugin has come: what it is told travels through the receiver. `live` are the instances that have
    /// live tasks.
    fn bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
        live: Vec<String>,
    ) -> (Arc<Bridge>, mpsc::UnboundedReceiver<Line>);
    fn bridge_by_id(&self, id: u64) -> Option<Arc<Bridge>>;
    /// A caller says which process its conversation belongs to. `true` when that is news.
    fn note_parent(&self, session: &SessionId, instance: &str, directory: &str) -> bool;
    /// Plugins need not start the daemon again by themselves.
    fn say_goodbye(&self);
}
