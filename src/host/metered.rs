//! Metrics decorator for hosts: counts and times every call. The supervisor holds each host wrapped in
//! this, so adapters know nothing of metrics. Passed through unmeasured: `version`, which returns at once,
//! `listen`, which never does, and the capabilities credentials, servers and bridges.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    AgentOffer, Answer, Bridges, ClientCredentials, Credentials, Error, Forks, Host, HostFuture,
    NewSession, Observation, OpenedSession, Permissions, Place, Post, Prompt, Servers, Steering,
    Toast, Toasts, Vetting, Watch,
};
use crate::metrics::{Metrics, Outcome};
use crate::task::{MessageId, SessionId};

pub struct MeteredHost {
    name: String,
    host: Arc<dyn Host>,
    metrics: Metrics,
}

impl MeteredHost {
    pub fn new(name: String, host: Arc<dyn Host>, metrics: Metrics) -> MeteredHost {
        MeteredHost { name, host, metrics }
    }

    fn count<'a, T: 'a>(
        &'a self,
        call: &'static str,
        answer: HostFuture<'a, T>,
    ) -> HostFuture<'a, T> {
        Box::pin(async move {
            // Counted when it resolves: a call whose caller hangs up is dropped, and not counted.
            let began = Instant::now();
            let answer = answer.await;
            let outcome = if answer.is_ok() { Outcome::Ok } else { Outcome::Failed };
            self.metrics.host_called(&self.name, call, began.elapsed(), outcome);
            answer
        })
    }

    /// The same for a capability. The accessors below only hand out `self` when the host has it, so the
    /// refusal is never seen.
    fn count_with<'a, C: ?Sized, T: Send + 'a>(
        &'a self,
        call: &'static str,
        capability: Option<&'a C>,
        ask: impl FnOnce(&'a C) -> HostFuture<'a, T>,
    ) -> HostFuture<'a, T> {
        let cannot =
            || std::future::ready(Err(Error::Refused(format!("this host has no `{call}`"))));
        self.count(call, capability.map_or_else(|| Box::pin(cannot()) as HostFuture<'a, T>, ask))
    }
}

impl Host for MeteredHost {
    fn open(&self, session: NewSession) -> HostFuture<'_, OpenedSession> {
        self.count("open", self.host.open(session))
    }

    fn find(&self, session: NewSession) -> HostFuture<'_, Vec<OpenedSession>> {
        self.count("find", self.host.find(session))
    }

    fn delete(&self, place: Place) -> HostFuture<'_, ()> {
        self.count("delete", self.host.delete(place))
    }

    fn prompt(&self, prompt: Prompt) -> HostFuture<'_, ()> {
        self.count("prompt", self.host.prompt(prompt))
    }

    fn post(&self, posts: Vec<Post>) -> HostFuture<'_, ()> {
        self.count("post", self.host.post(posts))
    }

    fn posted(&self, to: Place, message: MessageId) -> HostFuture<'_, bool> {
        self.count("posted", self.host.posted(to, message))
    }

    fn observe(&self, watches: Vec<Watch>) -> HostFuture<'_, Vec<Option<Observation>>> {
        self.count("observe", self.host.observe(watches))
    }

    fn missing(&self, places: Vec<Place>) -> HostFuture<'_, Vec<SessionId>> {
        self.count("missing", self.host.missing(places))
    }

    fn has(&self, place: Place) -> HostFuture<'_, bool> {
        self.count("has", self.host.has(place))
    }

    fn transcript(&self, place: Place) -> HostFuture<'_, String> {
        self.count("transcript", self.host.transcript(place))
    }

    fn abort(&self, place: Place) -> HostFuture<'_, ()> {
        self.count("abort", self.host.abort(place))
    }

    fn agents(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, Vec<AgentOffer>> {
        self.count("agents", self.host.agents(directory, parent))
    }

    fn directory(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, String> {
        self.count("directory", self.host.directory(directory, parent))
    }

    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()> {
        self.host.listen(wake)
    }

    fn version(&self, place: &Place) -> Option<u64> {
        self.host.version(place)
    }

    fn keeps_transcripts(&self) -> bool {
        self.host.keeps_transcripts()
    }

    fn forks(&self) -> Option<&dyn Forks> {
        self.host.forks().map(|_| self as &dyn Forks)
    }

    fn steering(&self) -> Option<&dyn Steering> {
        self.host.steering().map(|_| self as &dyn Steering)
    }

    fn permissions(&self) -> Option<&dyn Permissions> {
        self.host.permissions().map(|_| self as &dyn Permissions)
    }

    fn vetting(&self) -> Option<&dyn Vetting> {
        self.host.vetting().map(|_| self as &dyn Vetting)
    }

    fn credentials(&self) -> Option<&dyn Credentials> {
        self.host.credentials()
    }

    fn toasts(&self) -> Option<&dyn Toasts> {
        self.host.toasts().map(|_| self as &dyn Toasts)
    }

    fn servers(&self) -> Option<&dyn Servers> {
        self.host.servers()
    }

    fn bridges(&self) -> Option<&dyn Bridges> {
        self.host.bridges()
    }
}

impl Forks for MeteredHost {
    fn fork(&self, of: Place, session: NewSession) -> HostFuture<'_, OpenedSession> {
        self.count_with("fork", self.host.forks(), |forks| forks.fork(of, session))
    }
}

impl Steering for MeteredHost {
    fn steer(&self, message: Prompt) -> HostFuture<'_, ()> {
        self.count_with("steer", self.host.steering(), |host| host.steer(message))
    }
}

impl Permissions for MeteredHost {
    fn answer(&self, place: Place, ask: String, answer: Answer) -> HostFuture<'_, ()> {
        self.count_with("answer", self.host.permissions(), |host| host.answer(place, ask, answer))
    }
}

impl Vetting for MeteredHost {
    fn objection(&self, directory: String, agent: String) -> HostFuture<'_, Option<String>> {
        self.count_with("objection", self.host.vetting(), |host| host.objection(directory, agent))
    }

    fn model(
        &self,
        wish: Option<String>,
        handed: ClientCredentials,
    ) -> HostFuture<'_, Option<String>> {
        self.count_with("model", self.host.vetting(), |host| host.model(wish, handed))
    }
}

impl Toasts for MeteredHost {
    fn toast(&self, parent: Place, toast: Toast) -> HostFuture<'_, ()> {
        self.count_with("toast", self.host.toasts(), |host| host.toast(parent, toast))
    }
}
