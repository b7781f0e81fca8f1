//! OpenCode's side of the host contract: each call is located (`locate`, `choose`), sent to one instance and
//! translated. It has every capability but credentials.
//!
//! OpenCode answers before it has stored anything and accepts what it cannot run, so posts are read back
//! (`keeps`) and prompts are confirmed by the next observation. Opening a session is not idempotent there:
//! after a crash it is found by the nonce in its metadata.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::{Notify, mpsc};

use super::client::Client;
use super::instance::{Instance, by_instance};
use super::transport::{Http, Transport};
use super::{
    Bridge, Line, OpenCode, PLUGIN, ServerHealth, server_url, translate, without_password,
};
use crate::backoff::Backoff;
use crate::host::directory::canonical;
use crate::host::{
    Activity, AgentOffer, Answer, Bridges, ClientCredentials, Error, Forks, Host, HostFuture,
    Location, NewSession, Observation, OpenedSession, Permissions, Place, Post, Prompt, Server,
    Servers, Steering, Toast, Toasts, Vetting, Watch,
};
use crate::store;
use crate::task::{MessageId, SessionId};
use crate::transcript::{Figures, Outcome};

/// Read-back of posts, with exponential back-off: an accepted message is stored after a moment, or after a
/// few seconds when the server is overloaded.
const LONGEST_STORING: Duration = Duration::from_secs(8);
const READ_BACK_PAUSES: Backoff =
    Backoff { first: Duration::from_millis(5), longest: LONGEST_STORING };
const LOOKS_AT_ONCE: usize = 8;

impl Host for OpenCode {
    fn open(&self, session: NewSession) -> HostFuture<'_, OpenedSession> {
        Box::pin(async move {
            let instance = self.choose(session.parent.as_ref()).await?;
            let create = translate::create(&session);
            let client = instance.ready_to_launch().await?;
            let created = client.create(&session.directory, &create).await?;
            self.note_handed(&instance).await;
            Ok(OpenedSession {
                session: SessionId::new(created.id),
                instance: instance.name.clone(),
            })
        })
    }

    fn find(&self, session: NewSession) -> HostFuture<'_, Vec<OpenedSession>> {
        Box::pin(async move {
            match &session.parent {
                Some(parent) => match self.locate(parent).await {
                    Ok((instance, _)) => find_on(&instance, &session).await,
                    // OpenCode deletes children with their parent.
                    Err(Error::NoSuchSession(_)) => Ok(Vec::new()),
                    Err(error) => Err(error),
                },
                None => self.find_anywhere(&session).await,
            }
        })
    }

    fn delete(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let (instance, _) = self.locate(&place).await?;
            let client = instance.ready().await?;
            // Abort first: deleting does not stop a run, which goes on and executes its tools (G9).
            client.abort(&place.session).await?;
            client.delete(&place.session).await
        })
    }

    fn prompt(&self, prompt: Prompt) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let (instance, directory) = self.locate(&prompt.to).await?;
            let (client, session) = (instance.ready().await?, &prompt.to.session);
            // Before it is sent, so that events that overtake the response are not missed.
            instance.expect(session, &prompt.message, &directory);
            client.say(session, &translate::prompt(&prompt)).await
        })
    }

    fn post(&self, posts: Vec<Post>) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let Some(Post { to, .. }) = posts.first() else { return Ok(()) };
            let (instance, _) = self.locate(to).await?;
            let client = instance.ready().await?;
            // A prompt without an agent falls back to the default one (G13), so the parent's last is read.
            let last_words = client.last_words(&to.session).await?;
            // Sent one by one, which keeps their order, and read back concurrently.
            let mut kept = Vec::with_capacity(posts.len());
            for post in &posts {
                client.say(&to.session, &translate::notice(post, &last_words)).await?;
                kept.push(keeps(client, post));
            }
            stream::iter(kept).buffered(LOOKS_AT_ONCE).try_collect().await
        })
    }

    fn posted(&self, to: Place, message: MessageId) -> HostFuture<'_, bool> {
        Box::pin(async move {
            let (instance, _) = self.locate(&to).await?;
            instance.ready().await?.has(&to.session, &message).await
        })
    }

    fn observe(&self, watches: Vec<Watch>) -> HostFuture<'_, Vec<Option<Observation>>> {
        Box::pin(async move {
            let mut seen = vec![None; watches.len()];
            let groups = by_instance(&watches).into_iter();
            let mut looks: FuturesUnordered<_> =
                groups.map(|(name, group)| self.observe_on(name, group)).collect();
            while let Some((places, observed)) = looks.next().await {
                for (place, observation) in places.into_iter().zip(observed) {
                    seen[place] = observation;
                }
            }
            drop(looks);
            Ok(seen)
        })
    }

    fn missing(&self, places: Vec<Place>) -> HostFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let mut groups: HashMap<String, Vec<SessionId>> = HashMap::new();
            let mut missing = Vec::new();
            for place in places {
                match self.locate(&place).await {
                    Ok((instance, _)) => {
                        groups.entry(instance.name.clone()).or_default().push(place.session);
                    }
                    Err(Error::NoSuchSession(_)) => missing.push(place.session),
                    // Unknown is not missing: a server that is down must not cost a parent its tasks.
                    Err(_) => {}
                }
            }
            for (name, sessions) in groups {
                missing.extend(self.instance(&name)?.missing(sessions).await);
            }
            self.forget_places_of(&missing);
            Ok(missing)
        })
    }

    fn has(&self, place: Place) -> HostFuture<'_, bool> {
        Box::pin(async move {
            if self.is_empty() {
                return Ok(false);
            }
            let found = match self.locate(&place).await {
                Ok((instance, _)) => {
                    instance.ready().await?.session(&place.session).await.map(|_| true)
                }
                Err(error) => Err(error),
            };
            match found {
                Err(Error::NoSuchSession(_)) => Ok(false),
                other => other,
            }
        })
    }

    fn transcript(&self, place: Place) -> HostFuture<'_, String> {
        Box::pin(async move {
            let (instance, _) = self.locate(&place).await?;
            instance.ready().await?.transcript(&place.session).await
        })
    }

    fn abort(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(async move {
            if let Location::Opened { instance: name, .. } = &place.location
                && name.starts_with(PLUGIN)
                && !self.instance(name).is_ok_and(|instance| instance.is_up())
                && self.is_lost(name, false)
            {
                // The process has ended, and its runs with it: there is nothing to abort, and an error would
                // keep the abort owed and retried.
                return Ok(());
            }
            let (instance, _) = self.locate(&place).await?;
            instance.ready().await?.abort(&place.session).await
        })
    }

    fn agents(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, Vec<AgentOffer>> {
        Box::pin(async move {
            let directory = self.directory(directory, parent.clone()).await?;
            let instance = self.choose(parent.as_ref()).await?;
            let client = instance.ready_to_launch().await?;
            Ok(translate::agents(client.agents(&directory).await?))
        })
    }

    /// Returned as it was given: OpenCode keeps an instance for each spelling of a directory, and a child
    /// belongs to its parent's. It is only checked to exist.
    fn directory(&self, directory: String, parent: Option<Place>) -> HostFuture<'_, String> {
        Box::pin(async move {
            if self.choose(parent.as_ref()).await?.is_local() {
                canonical(&directory).await?;
            }
            Ok(directory)
        })
    }

    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut attended: HashMap<String, Arc<Instance>> = HashMap::new();
            let mut attending = FuturesUnordered::new();
            loop {
                let now: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
                for instance in now {
                    // By identity and not by name: a replaced instance has the same name and needs a
                    // listener of its own.
                    let known = attended.get(&instance.name);
                    if known.is_some_and(|known| Arc::ptr_eq(known, &instance)) {
                        continue;
                    }
                    attended.insert(instance.name.clone(), Arc::clone(&instance));
                    attending.push(async move { instance.attend(wake).await });
                }
                // Woken by a new instance, or by a listener that ended because its instance was removed.
                tokio::select! {
                    () = self.0.changed.notified() => {}
                    Some(()) = attending.next() => {}
                }
            }
        })
    }

    /// Only for children: locating any other session would need a request.
    fn version(&self, place: &Place) -> Option<u64> {
        match &place.location {
            Location::Opened { instance, .. } => {
                self.instance(instance).ok()?.version(&place.session)
            }
            Location::Conversation { .. } => None,
        }
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }

    fn steering(&self) -> Option<&dyn Steering> {
        Some(self)
    }

    fn permissions(&self) -> Option<&dyn Permissions> {
        Some(self)
    }

    fn vetting(&self) -> Option<&dyn Vetting> {
        Some(self)
    }

    fn toasts(&self) -> Option<&dyn Toasts> {
        Some(self)
    }

    fn servers(&self) -> Option<&dyn Servers> {
        Some(self)
    }

    fn bridges(&self) -> Option<&dyn Bridges> {
        Some(self)
    }
}

impl Forks for OpenCode {
    /// A fork has no parent there, and the rules are not copied (G8): only title, rules and nonce make it
    /// ours. Crash window: a fork that was made and not yet relabelled does not carry the launch's nonce and
    /// cannot be found again.
    fn fork(&self, of: Place, session: NewSession) -> HostFuture<'_, OpenedSession> {
        Box::pin(async move {
            let (instance, _) = self.locate(&of).await?;
            let client = instance.ready().await?;
            let copy = SessionId::new(client.fork(&of.session).await?.id);
            if let Err(error) = client.relabel(&copy, &translate::create(&session)).await {
                // Unlabelled, it would look like a fork the user made.
                let _ = client.delete(&copy).await;
                return Err(error);
            }
            self.note_handed(&instance).await;
            Ok(OpenedSession { session: copy, instance: instance.name.clone() })
        })
    }
}

impl Steering for OpenCode {
    /// A prompt to a busy session is stored at once and taken in at its next step: during tools the very next
    /// request has it, after a text there is one more turn.
    fn steer(&self, message: Prompt) -> HostFuture<'_, ()> {
        self.prompt(message)
    }
}

impl Permissions for OpenCode {
    fn answer(&self, place: Place, ask: String, answer: Answer) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let (instance, directory) = self.locate(&place).await?;
            let client = instance.ready().await?;
            // Questions and permissions have separate routes; the prefix of the id tells them apart.
            if !ask.starts_with("que") {
                return client.permit(&directory, &ask, answer).await;
            }
            let labels = match answer {
                Answer::Deny => None,
                Answer::Allow => {
                    let open = client.questions(&directory).await?;
                    let question = open.iter().find(|question| question.id == ask);
                    let gone = || Error::Refused(format!("no permission request `{ask}` is open"));
                    Some(translate::first_choices(question.ok_or_else(gone)?))
                }
            };
            client.reply(&directory, &ask, labels).await
        })
    }
}

impl Vetting for OpenCode {
    /// No objections: OpenCode decides itself which agents it loads.
    fn objection(&self, _: String, _: String) -> HostFuture<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Refuses names without a provider: the server would silently run another model.
    fn model(&self, wish: Option<String>, _: ClientCredentials) -> HostFuture<'_, Option<String>> {
        Box::pin(async move {
            match wish {
                Some(name) if !name.contains('/') => Err(Error::Refused(format!(
                    "no model `{name}` on OpenCode; name it as `provider/model` (`opencode models` \
                     lists them), or leave it out for the agent's own"
                ))),
                other => Ok(other),
            }
        })
    }
}

impl Toasts for OpenCode {
    fn toast(&self, parent: Place, toast: Toast) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let (instance, directory) = self.locate(&parent).await?;
            instance.ready().await?.toast(&directory, &translate::toast(&toast)).await
        })
    }
}

impl Servers for OpenCode {
    fn put(&self, name: &str, address: &str) -> Result<(), Error> {
        let url = server_url(address)?;
        let login = self.0.login.clone().map(|login| (login.name, login.password));
        let http = Http::new(&url, login).map_err(|error| Error::Refused(error.to_string()))?;
        let shown = without_password(url.as_str().trim_end_matches('/'));
        self.attach(name, shown, Transport::Http(http));
        Ok(())
    }

    fn remove(&self, name: &str) -> bool {
        // Cached locations go with it; they would lead to an instance that is not known.
        let removed = self.instances().remove(name);
        self.places().retain(|_, spot| spot.instance != name);
        removed.inspect(|old| old.leave()).is_some()
    }

    fn known(&self) -> BoxFuture<'_, Vec<Server>> {
        Box::pin(async move {
            let instances: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
            let shown = instances.into_iter().map(|instance| async move {
                Server {
                    health: match instance.health().await {
                        ServerHealth::Up { version } => Ok(version),
                        ServerHealth::Down { why } | ServerHealth::Foreign { why } => Err(why),
                        ServerHealth::Looking => Err("is being looked for".into()),
                    },
                    name: instance.name.clone(),
                    address: instance.address.clone(),
                }
            });
            join_all(shown).await
        })
    }

    fn at(&self, address: &str, needed: &dyn Fn(&str) -> bool) -> Result<Arc<dyn Host>, Error> {
        Ok(Arc::new(self.named_by_caller(address, needed)?))
    }

    fn on(&self, name: &str) -> Result<Arc<dyn Host>, Error> {
        let name = self.instance(name)?.name.clone();
        Ok(Arc::new(OpenCode(Arc::clone(&self.0), Some(name))))
    }

    fn is_named_by_caller(&self, name: &str) -> bool {
        OpenCode::is_handed(name)
    }

    fn forget_unneeded(&self) -> BoxFuture<'_, Result<(), store::Error>> {
        Box::pin(OpenCode::forget_unneeded(self))
    }

    fn arrival(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.arrived.notified())
    }
}

impl Bridges for OpenCode {
    fn bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
        live: Vec<String>,
    ) -> (Arc<Bridge>, mpsc::UnboundedReceiver<Line>) {
        self.attach_bridge(pid, directory, before, live)
    }

    fn bridge_by_id(&self, id: u64) -> Option<Arc<Bridge>> {
        self.bridges().get(&id).cloned()
    }

    fn note_parent(&self, session: &SessionId, instance: &str, directory: &str) -> bool {
        let known = self.places().get(session).is_some_and(|place| place.instance == instance);
        if known || !self.instances().contains_key(instance) {
            return false;
        }
        self.remember(session, instance, directory);
        true
    }

    fn say_goodbye(&self) {
        self.bridges().values().for_each(|bridge| bridge.say(Line::Bye));
    }
}

impl OpenCode {
    async fn observe_on(
        &self,
        name: &str,
        group: Vec<(usize, &Watch)>,
    ) -> (Vec<usize>, Vec<Option<Observation>>) {
        let (places, watches): (Vec<usize>, Vec<&Watch>) = group.into_iter().unzip();
        let instance = self.instance(name);
        let seen = match &instance {
            Ok(instance) => instance.observe(&watches).await,
            Err(_) => vec![None; watches.len()],
        };
        let up = instance.is_ok_and(|instance| instance.is_up());
        match self.is_lost(name, up) {
            true => (places, watches.into_iter().map(|watch| Some(lost(watch))).collect()),
            false => (places, seen),
        }
    }

    /// Searches all servers: it was opened on the first one that answered then, which need not be the first
    /// one now.
    async fn find_anywhere(&self, session: &NewSession) -> Result<Vec<OpenedSession>, Error> {
        let all: Vec<Arc<Instance>> = self.instances().values().cloned().collect();
        let looks = all.iter().map(|instance| find_on(instance, session));
        let (mut found, mut silent) = (Vec::new(), None);
        for looked in join_all(looks).await {
            match looked {
                Ok(opened) => found.extend(opened),
                Err(error) => silent = Some(error),
            }
        }
        match silent {
            // A server that does not answer may have the session, so this is not yet "not found". After
            // `patience` it counts as gone.
            Some(error) if found.is_empty() && self.0.clock.uptime() < self.0.patience => {
                Err(error)
            }
            Some(_) | None => Ok(found),
        }
    }
}

/// Reads back a post until the server has stored it: 204 only means accepted, and what cannot be stored is
/// accepted, too.
async fn keeps(client: &Client, post: &Post) -> Result<(), Error> {
    let began = tokio::time::Instant::now();
    let mut looks = 0;
    while !client.has(&post.to.session, &post.message).await? {
        if began.elapsed() > LONGEST_STORING {
            return Err(Error::Unreachable("it accepted a message and did not keep it".into()));
        }
        tokio::time::sleep(READ_BACK_PAUSES.pause(looks)).await;
        looks += 1;
    }
    Ok(())
}

/// The sessions on one server that carry the nonce.
async fn find_on(instance: &Instance, session: &NewSession) -> Result<Vec<OpenedSession>, Error> {
    let client = instance.ready().await?;
    let mut candidates = match &session.parent {
        Some(parent) => match client.children(&parent.session).await {
            Err(Error::NoSuchSession(_)) => return Ok(Vec::new()),
            other => other?,
        },
        None => Vec::new(),
    };
    // Forks have no parent (G8), so they are searched for by title.
    let stem = session.title.split([' ', ':']).next().unwrap_or_default();
    candidates.extend(client.search(&session.directory, stem).await?);
    // Parent and title only narrow the search; the nonce decides.
    candidates.retain(|candidate| {
        let nonce = candidate.metadata.as_ref().and_then(|data| data.asyncagents.as_ref());
        nonce == Some(&session.nonce)
    });
    let ids: BTreeSet<String> = candidates.into_iter().map(|found| found.id).collect();
    let instance = &instance.name;
    let opened = |id| OpenedSession { session: SessionId::new(id), instance: instance.clone() };
    Ok(ids.into_iter().map(opened).collect())
}

/// T6: interrupted, and it cannot be continued.
fn lost(watch: &Watch) -> Observation {
    let why = "interrupted: its OpenCode process has been gone for too long".to_owned();
    Observation {
        session: watch.session.clone(),
        activity: Activity::Lost(why),
        outcome: Outcome::Unfinished { partial: None },
        open_todos: Vec::new(),
        figures: Figures::default(),
    }
}
