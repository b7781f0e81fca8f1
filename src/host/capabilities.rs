//! Optional host capabilities, one trait each: native forks, steering, permissions, vetting, credentials, toasts,
//! servers; plugin bridges, which only OpenCode has, are in `opencode/bridge.rs`. The supervisor asks a host for a
//! capability (`host.forks()`) and never for its kind, so a new host implements what it has and nothing else. A host
//! without one returns `None`, and the caller falls back or refuses with a reason.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{
    Answer, ClientCredentials, Error, Host, HostFuture, ModelStatus, NewSession, OpenedSession,
    Place, ProbeDepth, Prompt, Toast,
};
use crate::store;
use crate::task::SessionId;

/// Native forks: the host copies a session itself, and nothing is truncated on the way.
pub trait Forks: Send + Sync {
    /// Opens a session that starts as a copy of another one, with its whole conversation. Like
    /// [`Host::open`] otherwise, including the nonce.
    fn fork(&self, of: Place, session: NewSession) -> HostFuture<'_, OpenedSession>;
}

/// Steering (T21): a session that is at work takes messages.
pub trait Steering: Send + Sync {
    /// Says something to a session. An agent at work sees it before its next step; one that is idle goes on
    /// with it. Like [`Host::prompt`] otherwise, including the message id as the idempotency key.
    fn steer(&self, message: Prompt) -> HostFuture<'_, ()>;
}

/// Permission requests: agents that ask before they do something.
pub trait Permissions: Send + Sync {
    /// Answers one open request. Refused when no such request is open (any more).
    fn answer(&self, place: Place, ask: String, answer: Answer) -> HostFuture<'_, ()>;
}

/// Validation of a launch before anything of it exists, so that a refusal leaves nothing to clean up.
pub trait Vetting: Send + Sync {
    /// Why an agent must not be used in this directory although it is defined there; `None` when
    /// there is no objection. Asked at every launch and resume.
    fn objection(&self, directory: String, agent: String) -> HostFuture<'_, Option<String>>;
    /// Resolves the requested model (or the default, when none is requested) to its full name. Refused,
    /// with the way out, when it cannot be used. Asked at every launch.
    fn model(
        &self,
        wish: Option<String>,
        handed: ClientCredentials,
    ) -> HostFuture<'_, Option<String>>;
}

/// Provider credentials per session, which callers may hand over with a call. They are kept in memory
/// only, so a restart of the daemon loses them and a caller has to bring them again.
pub trait Credentials: Send + Sync {
    /// The default model, and the state of each provider.
    fn statuses(&self, handed: ClientCredentials, depth: ProbeDepth)
    -> HostFuture<'_, ModelStatus>;
    /// Replaces what was handed over for an existing session.
    fn hand_over(&self, place: Place, handed: ClientCredentials) -> HostFuture<'_, ()>;
    /// Restores lost credentials: the session gets those that came with an earlier call and are lost, and
    /// no others of the caller's. `true` when there were any.
    fn bring(&self, place: Place, handed: ClientCredentials) -> HostFuture<'_, bool>;
    /// Why a session cannot continue with this model until its lost credentials are brought again.
    fn lacks(&self, place: Place, model: Option<String>) -> HostFuture<'_, Option<String>>;
    /// What was handed over for this session, as far as it is still in memory.
    fn handed(&self, session: &SessionId) -> ClientCredentials;
}

/// Toasts: short messages on the user's screen. Best effort; nothing depends on one being seen.
pub trait Toasts: Send + Sync {
    fn toast(&self, parent: Place, toast: Toast) -> HostFuture<'_, ()>;
}

/// A registry of servers that come and go while the daemon runs.
pub trait Servers: Send + Sync {
    /// Adds a server, or changes the address of a known one.
    fn put(&self, name: &str, address: &str) -> Result<(), Error>;
    /// `false` when there is none of that name.
    fn remove(&self, name: &str) -> bool;
    /// All servers with their state, each as soon as its first health check has an answer.
    fn known(&self) -> BoxFuture<'_, Vec<Server>>;
    /// A handle that opens sessions on the server at this address, and on no other. The number of such
    /// servers is limited: when it is reached, one that is down and not `needed` is evicted.
    fn at(&self, address: &str, needed: &dyn Fn(&str) -> bool) -> Result<Arc<dyn Host>, Error>;
    /// The same, on the server of this name. One that is not known any more is refused with the way out.
    fn on(&self, name: &str) -> Result<Arc<dyn Host>, Error>;
    /// Whether a caller named it in its environment.
    fn is_named_by_caller(&self, name: &str) -> bool;
    /// Forgets the addresses that callers named and that no task needs any more.
    fn forget_unneeded(&self) -> BoxFuture<'_, Result<(), store::Error>>;
    /// Returns when a server becomes reachable: work that waited for it can be retried at once.
    fn arrival(&self) -> BoxFuture<'_, ()>;
}

/// A server as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    /// Without its password.
    pub address: String,
    /// `Ok` with its version, `Err` with the reason why it cannot be used.
    pub health: Result<String, String>,
}
