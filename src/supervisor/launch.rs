//! Launches, as a saga (T5): write an intent, open a session on the host, write the task and drop the intent
//! in one transaction, return the id. The prompt is sent by the prompter once there is a slot.
//!
//! The nonce is the idempotency key throughout: of the intent, of the session and of the task. Crash
//! windows: before the session exists, `recover` drops the intent; after, it finds the session by its nonce
//! and adopts it. A launch that failed for its caller is marked abandoned, so that recovery deletes the
//! session instead of running a task that nobody knows of.

use std::time::Duration;

use super::fork::Inherits;
use super::intent::LaunchIntent;
use super::launches::AgentListKey;
use super::{Caller, Error, Fork, Supervisor};
use crate::host::{self, AgentOffer, ClientCredentials, NewSession, OpenedSession, Place};
use crate::store::{Inheritance, Intent, IntentOutcome, NewTask, Placement};
use crate::task::launch::TaskSpec;
use crate::task::{BatchId, LaunchMode, MAILBOX, Order, Origin, Parent, SessionId, Task, TaskId};

/// Names by which models know our agents from other programs.
const SYNONYMS: [(&str, &str); 1] = [("general-purpose", "general")];

#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub wanted: TaskSpec,
    pub fork: Fork,
    /// Idempotency key: a caller that lost its connection may repeat the call and gets the same task.
    pub key: Option<String>,
}

impl Supervisor {
    pub async fn launch(&self, caller: Caller, launch: Launch) -> Result<Task, Error> {
        self.launch_linked(caller, launch, None).await
    }

    /// A launch that may repeat an earlier task.
    pub(super) async fn launch_linked(
        &self,
        caller: Caller,
        launch: Launch,
        retry_of: Option<TaskId>,
    ) -> Result<Task, Error> {
        let Launch { wanted, fork, key } = launch;
        let TaskSpec { order, batch, host: wish } = wanted;
        if !self.0.core.settings().enabled {
            return Err(Error::Disabled);
        }
        let nonce = key.unwrap_or_else(|| self.0.core.clock().nonce());
        // Held until the task is written: a repeated call with the same key waits here and finds the task.
        let turn = self.0.launches.turn(&nonce).await;
        // A retry after a crash: what the previous daemon started under this key is finished or undone first.
        let is_settled = match self.0.core.store().intents().get(&nonce)? {
            Some(intent) => self.settle(intent).await?,
            None => true,
        };
        // Credentials that the previous daemon held in memory are lost; this call has them.
        self.bring(&caller).await?;
        // Before every check that could refuse: a repeated call succeeds although a limit has been reached
        // since.
        if let Some(task) = self.0.core.store().tasks().by_nonce(&nonce)? {
            return Ok(task);
        }
        self.0.launches.check_space()?;
        let depth = self.depth(&caller.session)?;
        let caller = Caller { handed: self.handed_to(&caller)?, ..caller };
        let host = self.choose_host(wish.as_ref(), &caller)?;
        let directory = self.directory(&host, &caller).await?;
        let caller = Caller { directory, ..caller };
        let offer = self.check_agent(&host, &order.agent, &caller).await?;
        // Resolution now and stored: limits per model count the model it will run on (T11).
        let model = self.check_model(&host, order.model.or(offer.model), &caller.handed).await?;
        let order = Order { model, agent: offer.name, ..order };
        let inherits = self.inherit(fork, &caller, &host).await?;

        let at = self.0.core.clock().now();
        let wanted = TaskSpec { order, batch, host: wish };
        let abandoned = false;
        let launch =
            LaunchIntent { caller, wanted, host, depth, at, inherits, retry_of, abandoned };
        // From here on detached: dropping the caller's future must not cut the saga in two.
        let supervisor = self.clone();
        let rest = self.0.core.spawn(async move {
            supervisor.intend(&nonce, &launch).await?;
            let (host, session) = (launch.host.clone(), supervisor.session_for(&launch, &nonce));
            let launched = supervisor.open_and_insert(nonce, launch).await;
            if let (Ok(task), false) = (&launched, is_settled) {
                supervisor.delete_late_twins(host, session, task.id.clone());
            }
            drop(turn);
            launched
        });
        rest.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))
    }

    /// Result cache: the task of an identical order of the same parent, if it is recent enough (O6).
    pub async fn earlier(
        &self,
        caller: &Caller,
        order: &Order,
        not_older: Duration,
    ) -> Result<Option<Task>, Error> {
        let since = self.0.core.clock().now().minus(not_older);
        let host = self.choose_host(None, caller)?;
        let directory = self.directory(&host, caller).await?;
        let there = Caller { directory, ..caller.clone() };
        let Ok(offer) = self.check_agent(&host, &order.agent, &there).await else {
            // A miss; the launch that follows reports the error.
            return Ok(None);
        };
        let wish = order.model.clone().or(offer.model);
        let model = self.check_model(&host, wish, &caller.handed).await;
        let Ok(model) = model else { return Ok(None) };
        let order = Order { model, agent: offer.name, ..order.clone() };
        Ok(self.0.core.store().tasks().earlier(
            &caller.session,
            (&host, &there.directory),
            &order,
            since,
        )?)
    }

    /// Turns a blocking task into a background task: nobody waits for its end any more, and its parent gets a
    /// notice.
    pub async fn move_to_background(&self, id: &TaskId) -> Result<(), Error> {
        self.0.core.store().tasks().move_to_background(id).await?;
        // It frees a place among the blocking tasks of its parent.
        self.0.bells.prompts.ring();
        Ok(())
    }

    /// The same after the caller has hung up, so that an error can only be logged.
    pub fn move_to_background_after_hangup(&self, id: &TaskId) {
        let (supervisor, id) = (self.clone(), id.clone());
        self.0.core.spawn(async move {
            let live = supervisor.task(&id).is_ok_and(|task| task.is_live());
            if live && let Err(error) = supervisor.move_to_background(&id).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    task = %id,
                    error,
                    "task not moved to the background; it still counts as blocking"
                );
            }
        });
    }

    /// The task that was launched with this key, if there is one. A launch that is under way is
    /// waited for.
    pub async fn launched_with(&self, key: &str) -> Result<Option<Task>, Error> {
        let _turn = self.0.launches.turn(key).await;
        if let Some(intent) = self.0.core.store().intents().get(key)? {
            self.settle(intent).await?;
        }
        Ok(self.0.core.store().tasks().by_nonce(key)?)
    }

    async fn intend(&self, nonce: &str, launch: &LaunchIntent) -> Result<(), Error> {
        let intent = Intent {
            nonce: nonce.to_owned(),
            host: launch.host.clone(),
            parent_session: launch.caller.session.clone(),
            created_at: launch.at,
            launch: serde_json::to_string(launch).expect("a launch is JSON"),
        };
        let limits = self.0.core.limits();
        let Order { model, mode, .. } = launch.wanted.order.clone();
        match self.0.core.store().intents().intend(intent, model, mode, limits.clone()).await? {
            IntentOutcome::Yes => Ok(()),
            IntentOutcome::QueueFull => Err(Error::QueueFull(limits.queued_per_parent)),
        }
    }

    async fn open_and_insert(&self, nonce: String, launch: LaunchIntent) -> Result<Task, Error> {
        let host = self.0.core.host_for(&launch.host, &launch.caller)?;
        let session = self.session_for(&launch, &nonce);
        let opened = match (&launch.inherits, host.forks()) {
            (Some(Inherits::CopyOf(of)), Some(forks)) => {
                forks.fork(self.0.core.place(of), session).await
            }
            (Some(Inherits::CopyOf(_)), None) => {
                Err(host::Error::Refused("this host cannot copy a session".to_owned()))
            }
            (Some(Inherits::Context { .. }) | None, _) => host.open(session).await,
        };
        match opened {
            Ok(opened) => {
                let place = Place::of_child(&opened, &launch.caller.directory);
                let completed = self.complete(nonce.clone(), launch, opened).await;
                if completed.is_err() {
                    // The caller gets an error, so the launch must not be adopted later. A full disk may not
                    // take the mark, so the session is deleted as well; without one nothing is adopted.
                    let _ = host.delete(place).await;
                    let _ = self.0.core.store().intents().abandon(nonce).await;
                }
                completed
            }
            Err(error) => {
                // The response may have been lost and the session exist: recovery finds and deletes it.
                self.0.core.store().intents().abandon(nonce).await?;
                Err(error.into())
            }
        }
    }

    /// The session exists: writes the task and drops the intent. Also the second half of an adoption.
    pub(super) async fn complete(
        &self,
        nonce: String,
        launch: LaunchIntent,
        opened: OpenedSession,
    ) -> Result<Task, Error> {
        let LaunchIntent { caller, wanted, host, depth, at, inherits, retry_of, abandoned: _ } =
            launch;
        let TaskSpec { order, batch, host: _ } = wanted;
        let clock = self.0.core.clock();
        let is_forked = inherits.is_some();
        // Minted before the prompt's id: hosts sort messages by id.
        let inheritance = inherits.and_then(|inherits| match inherits {
            Inherits::Context { preamble, context } => {
                Some(Inheritance { message_id: clock.message_id(), preamble, context })
            }
            Inherits::CopyOf(_) => None,
        });
        let placement = match batch {
            Some(name) => Placement::Named(BatchId::new(name)),
            // A batch of its own: its progress is not mixed with that of others.
            None if caller.lone_batches || order.mode == LaunchMode::Blocking => {
                Placement::Named(clock.batch_id())
            }
            None => Placement::CurrentOr(clock.batch_id()),
        };
        let is_conversation = caller.host != MAILBOX;
        let new = NewTask {
            id: opened.session,
            short_ids: (0..8).map(|_| clock.short_id()).collect(),
            nonce,
            origin: Origin {
                parent: Parent {
                    session: caller.session,
                    message: if is_conversation { caller.message } else { String::new() },
                    agent: caller.agent,
                    host: caller.host,
                },
                host,
                host_instance: opened.instance,
                directory: caller.directory,
                depth,
                is_forked,
                retry_of,
            },
            order,
            placement,
            inheritance,
            development: caller.development,
            message_id: clock.message_id(),
            at,
        };
        let task = self.0.core.store().tasks().insert(new, self.0.core.limits()).await?;
        tracing::info!(task = %task.id, parent = %task.origin.parent.session, "task launched");
        // Also when it was queued: a slot may have become free since.
        self.0.bells.prompts.ring();
        Ok(task)
    }

    /// The session that a launch opens.
    pub(super) fn session_for(&self, launch: &LaunchIntent, nonce: &str) -> NewSession {
        launch.session(nonce, self.0.core.place(&launch.caller.session))
    }

    /// The caller's conversation, if it is on that host.
    fn parent_on(&self, host: &str, caller: &Caller) -> Option<Place> {
        (caller.host == host).then(|| self.0.core.place(&caller.session))
    }

    /// How deep a child of this session would be; refused when that is too deep (T12).
    fn depth(&self, parent: &SessionId) -> Result<u32, Error> {
        let depth =
            self.0.core.store().tasks().get(parent)?.map_or(1, |task| task.origin.depth + 1);
        let most = self.0.core.settings().max_depth;
        if depth > most { Err(Error::TooDeep(most)) } else { Ok(depth) }
    }

    /// The one that is asked for, else the caller's own, else the default.
    fn choose_host(&self, wish: Option<&String>, caller: &Caller) -> Result<String, Error> {
        let hosts = self.0.core.hosts();
        // A parent on an unknown host could never be notified.
        if caller.host != MAILBOX {
            self.0.core.host(&caller.host)?;
        }
        if let Some(name) = wish {
            return self.0.core.host(name).map(|_| name.clone());
        }
        if hosts.all.contains_key(&caller.host) {
            return Ok(caller.host.clone());
        }
        if let Some(name) = caller.handed.host() {
            return self.0.core.host(name).map(|_| name.to_owned());
        }
        hosts.default.clone().ok_or(Error::NoHost)
    }

    /// Asks the host's vetting. Never cached: when trust is revoked, that holds at once.
    pub(super) async fn check_objection(
        &self,
        host: &str,
        directory: &str,
        agent: &str,
    ) -> Result<(), Error> {
        let Some(vetting) = self.0.core.host(host)?.vetting() else { return Ok(()) };
        match vetting.objection(directory.to_owned(), agent.to_owned()).await? {
            Some(why) => Err(Error::AgentRefused(why)),
            None => Ok(()),
        }
    }

    /// The model's full name on the host; for a task that names none, the caller's default.
    pub(super) async fn check_model(
        &self,
        host: &str,
        wish: Option<String>,
        handed: &ClientCredentials,
    ) -> Result<Option<String>, Error> {
        let wish = wish.or_else(|| handed.model().map(str::to_owned));
        let Some(vetting) = self.0.core.host(host)?.vetting() else { return Ok(wish) };
        match vetting.model(wish, handed.clone()).await {
            Err(host::Error::Refused(why)) => Err(Error::ModelRefused(why)),
            other => Ok(other?),
        }
    }

    /// Where the child is to work.
    async fn directory(&self, host: &str, caller: &Caller) -> Result<String, Error> {
        let there = self.0.core.host_for(host, caller)?;
        Ok(there.directory(caller.directory.clone(), self.parent_on(host, caller)).await?)
    }

    /// The agent as the host offers it.
    async fn check_agent(
        &self,
        host: &str,
        agent: &str,
        caller: &Caller,
    ) -> Result<AgentOffer, Error> {
        self.check_objection(host, &caller.directory, agent).await?;
        let key = agent_list_key(host, caller);
        if let Some(offer) = self.0.launches.offered(&key, agent, self.0.core.clock().uptime()) {
            return Ok(offer);
        }
        let offers = self.offers(host, caller).await?;
        let Some(offer) = meant(&offers, agent).cloned() else {
            let known = offers.into_iter().map(|offer| offer.name).collect();
            return Err(Error::UnknownAgent { agent: agent.to_owned(), known });
        };
        if offer.name != agent {
            self.check_objection(host, &caller.directory, &offer.name).await?;
        }
        Ok(offer)
    }

    /// The agents that this caller could launch, on the host it would get.
    pub async fn agents(&self, caller: &Caller) -> Result<Vec<AgentOffer>, Error> {
        let host = self.choose_host(None, caller)?;
        self.offers(&host, caller).await
    }

    /// What the host offers now.
    async fn offers(&self, host: &str, caller: &Caller) -> Result<Vec<AgentOffer>, Error> {
        let asked_at = self.0.core.clock().uptime();
        let there = self.0.core.host_for(host, caller)?;
        let parent = self.parent_on(host, caller);
        let offers = there.agents(caller.directory.clone(), parent).await?;
        self.0.launches.note_offers(agent_list_key(host, caller), offers.clone(), asked_at);
        Ok(offers)
    }
}

/// The cache key of the list of agents that a caller is offered.
fn agent_list_key(host: &str, caller: &Caller) -> AgentListKey {
    let server = caller.instance.as_deref().or(caller.handed.server());
    let server = server.unwrap_or_default().to_owned();
    AgentListKey { host: host.to_owned(), server, directory: caller.directory.clone() }
}

/// The agent of this name, else the only one whose name differs in case only, else by its synonym.
fn meant<'a>(offers: &'a [AgentOffer], name: &str) -> Option<&'a AgentOffer> {
    if let Some(offer) = offers.iter().find(|offer| offer.name == name) {
        return Some(offer);
    }
    let like = |name: &str| {
        let mut alike = offers.iter().filter(|offer| offer.name.eq_ignore_ascii_case(name));
        alike.next().filter(|_| alike.next().is_none())
    };
    let synonym = SYNONYMS.iter().find(|(synonym, _)| synonym.eq_ignore_ascii_case(name));
    like(name).or_else(|| synonym.and_then(|(_, name)| like(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_count_in_any_case_and_by_known_synonyms() {
        let offers = |names: &[&str]| -> Vec<AgentOffer> {
            let offer =
                |name: &&str| AgentOffer { name: (*name).into(), model: None, reads_only: false };
            names.iter().map(offer).collect()
        };
        let check = |names: &[&str], name: &str, expected: Option<&str>| {
            let offers = offers(names);
            assert_eq!(meant(&offers, name).map(|offer| offer.name.as_str()), expected, "{name}");
        };
        let usual = ["explore", "general", "Reviewer"];
        check(&usual, "explore", Some("explore"));
        check(&usual, "Explore", Some("explore"));
        check(&usual, "reviewer", Some("Reviewer"));
        check(&usual, "general-purpose", Some("general"));
        check(&usual, "General-Purpose", Some("general"));
        check(&usual, "explorer", None);
        check(&["general-purpose", "general"], "general-purpose", Some("general-purpose"));
        check(&["Review", "review"], "review", Some("review"));
        check(&["Review", "review"], "REVIEW", None);
    }
}
