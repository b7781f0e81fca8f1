//! Model and credential resolution for embedded sessions: which model a session runs on, and with whose key.
//! Keys come with the call (this process's memory only) or from `auth set` and the daemon's configuration.
//!
//! The session's row notes which providers were reached by keys of the call, and since when, but never the
//! keys. After a restart that note distinguishes "lost its key" (park and wait for the caller) from "never
//! had one" (refuse). The keys held in memory are bounded: beyond `MOST_HANDED` those of ended tasks go.

use std::collections::{BTreeMap, HashMap};

use parking_lot::MutexGuard;

use super::{Embedded, Setup, TaskPresence, broken};
use crate::agent::definition::Definition;
use crate::agent::model::{self, Model};
use crate::host::{
    ClientCredentials, Credentials, Error, HostFuture, ModelStatus, NewSession, Place, ProbeDepth,
};
use crate::store::Session;
use crate::task::{SessionId, Timestamp};

/// Sessions whose keys are kept in memory; beyond it those of ended tasks are evicted.
const MOST_HANDED: usize = 10_000;
/// Eviction scans all sessions and asks the store about each, so it runs once per this many insertions and
/// not at every one while nearly all of them are live.
const INSERTIONS_PER_EVICTION: usize = 1_000;

/// The providers whose credentials came with a call, and when.
type CredentialTimes = BTreeMap<String, Timestamp>;

/// The model and key a run started with: the fallback while the key store cannot be read.
pub(super) struct FirstModel {
    pub(super) model: Model,
    /// Whether its access came with the call.
    handed: bool,
}

impl Embedded {
    /// The model a session is to use, by precedence: the prompt's, the agent's, the configured default.
    pub(super) fn model_name(&self, prompt: &str, agent: &Definition) -> String {
        let models = &self.0.setup.models;
        if !prompt.is_empty() {
            return models.resolve(prompt).unwrap_or_else(|| prompt.to_owned());
        }
        self.model_in_file(agent).unwrap_or_else(|| self.default_model())
    }

    /// The model an agent file names. The files are shared with other programs, so a name that only those
    /// know is ignored instead of refused.
    pub(super) fn model_in_file(&self, agent: &Definition) -> Option<String> {
        agent.model.as_deref().and_then(|model| self.0.setup.models.resolve(model))
    }

    pub(super) fn default_model(&self) -> String {
        let Setup { models, default_model, .. } = &self.0.setup;
        match default_model.as_str() {
            "" => model::OFFLINE.to_owned(),
            name => models.resolve(name).unwrap_or_else(|| name.to_owned()),
        }
    }

    /// The model for a session that is about to work. Credentials that came with a call may have been lost.
    pub(super) fn find_model(&self, session: &Session, name: &str) -> Result<Model, Error> {
        let models = &self.0.setup.models;
        let handed = self.kept_handed(&session.id);
        let provider = provider_of(name);
        let refused = |error: model::Error| match error {
            model::Error::KeysUnreadable(why) => Error::Unreachable(why),
            other => Error::Refused(removed(other)),
        };
        // Recorded but no longer in memory: the daemon was restarted. A key that `auth set` stored after the call is
        // meant for it and stands in; an older or configured one may be somebody else's account.
        match session.handed.get(provider) {
            Some(since) if !handed.providers().contains_key(provider) => {
                let kept = models.find_stored(name, since.as_millis()).map_err(refused)?;
                kept.ok_or_else(|| Error::NoCredentials(lost(provider)))
            }
            Some(_) | None => models.find(name, handed.providers()).map_err(refused),
        }
    }

    /// The model for a run's next request, resolved each time: a key that `auth set` has replaced or
    /// `auth remove` has revoked is not sent any more, also in the middle of a run.
    pub(super) async fn model_now(
        &self,
        session: &Session,
        name: &str,
        first: &FirstModel,
    ) -> Result<Model, model::Error> {
        let (session, name) = (session.clone(), name.to_owned());
        match self.in_thread(move |host| host.find_model(&session, &name)).await {
            Ok(model) => Ok(model),
            Err(Error::Refused(why)) => Err(model::Error::Unusable(why)),
            // It ran on a key of `auth set` that stood in for its own lost one and has been removed.
            Err(Error::NoCredentials(why)) if !first.handed => Err(model::Error::Lost(why)),
            // No evidence that the key has changed. One that came with the call stays valid while it runs.
            Err(Error::Unreachable(_) | Error::NoSuchSession(_) | Error::NoCredentials(_)) => {
                Ok(first.model.clone())
            }
        }
    }

    /// The model that a run begins with.
    pub(super) fn first_model(&self, session: &Session, name: &str) -> Result<FirstModel, Error> {
        let handed = self.kept_handed(&session.id).providers().contains_key(provider_of(name));
        Ok(FirstModel { model: self.find_model(session, name)?, handed })
    }

    /// Why a session cannot continue with this model until its lost credentials are brought again.
    pub(super) fn lacking(&self, session: &Session, model: &str) -> Option<String> {
        match self.find_model(session, model) {
            Err(Error::NoCredentials(why)) => Some(why),
            // Any other problem is reported when the session is started.
            Ok(_) | Err(Error::Refused(_) | Error::Unreachable(_) | Error::NoSuchSession(_)) => {
                None
            }
        }
    }

    /// Of the caller's credentials, those that the session had and lost.
    pub(super) fn lost(&self, session: &Session, handed: &ClientCredentials) -> ClientCredentials {
        let kept = self.kept_handed(&session.id);
        handed
            .only(|name| session.handed.contains_key(name) && !kept.providers().contains_key(name))
    }

    /// The credentials of a new session (for memory) and the note of them (for the row).
    pub(super) async fn noted(
        &self,
        new: &NewSession,
    ) -> Result<(ClientCredentials, CredentialTimes), Error> {
        let handed = new.handed.clone();
        let noted = self.note(handed.clone(), CredentialTimes::new()).await?;
        Ok((handed, noted))
    }

    /// The same for a session that is there.
    pub(super) async fn renew(
        &self,
        session: &SessionId,
        handed: ClientCredentials,
    ) -> Result<(), Error> {
        let before = self.session(session)?.handed;
        let noted = self.note(handed.clone(), before.clone()).await?;
        // Memory before disk: what is noted and not in memory counts as lost, and a look in between would
        // park the task.
        self.keep_handed(session, handed);
        if noted != before {
            self.0.store.sessions().note_handed(session, &noted).await.map_err(broken)?;
        }
        self.ring();
        Ok(())
    }

    /// Adds the providers that the session reaches with credentials of the call.
    async fn note(
        &self,
        handed: ClientCredentials,
        mut noted: CredentialTimes,
    ) -> Result<CredentialTimes, Error> {
        if handed.providers().is_empty() {
            return Ok(noted);
        }
        let now = self.0.clock.now();
        let look = move |host: &Embedded| {
            for (name, access) in handed.providers() {
                if host.0.setup.models.uses_call(name, access) {
                    noted.insert(name.clone(), now);
                }
            }
            Ok(noted)
        };
        self.in_thread(look).await
    }

    pub(super) fn keep_handed(&self, session: &SessionId, handed: ClientCredentials) {
        let kept = self.all_handed().len();
        if kept >= MOST_HANDED && kept.is_multiple_of(INSERTIONS_PER_EVICTION) {
            self.forget_handed_of_ended();
        }
        self.all_handed().insert(session.clone(), handed);
    }

    /// Evicts the keys of ended tasks. Live and queued tasks keep theirs, however many they are, and so do
    /// launches under way, which have no task yet.
    fn forget_handed_of_ended(&self) {
        let look_up = &self.0.setup.task_lookup;
        let is_over = |id: &SessionId| matches!(look_up(id), Ok(TaskPresence::Ended));
        // Copied: the lock is not held while the store is asked.
        let kept: Vec<SessionId> = self.all_handed().keys().cloned().collect();
        for session in kept.into_iter().filter(is_over) {
            self.forget_handed(&session);
        }
    }

    pub(super) fn kept_handed(&self, session: &SessionId) -> ClientCredentials {
        self.all_handed().get(session).cloned().unwrap_or_default()
    }

    pub(super) fn forget_handed(&self, session: &SessionId) {
        self.all_handed().remove(session);
    }

    fn all_handed(&self) -> MutexGuard<'_, HashMap<SessionId, ClientCredentials>> {
        self.0.handed.lock()
    }
}

impl Credentials for Embedded {
    fn statuses(
        &self,
        handed: ClientCredentials,
        depth: ProbeDepth,
    ) -> HostFuture<'_, ModelStatus> {
        Box::pin(async move {
            let find = move |host: &Embedded| {
                let models = &host.0.setup.models;
                let named = handed.model();
                let model =
                    named.map(|name| models.resolve(name).unwrap_or_else(|| name.to_owned()));
                let model = model.unwrap_or_else(|| host.default_model());
                let provider = model.split_once('/').map_or("", |(provider, _)| provider);
                let problem = match depth {
                    ProbeDepth::Settings => None,
                    ProbeDepth::Keys | ProbeDepth::Online => {
                        models.find(&model, handed.providers()).err()
                    }
                };
                let problem = problem.map(|error| error.to_string());
                let statuses = models.statuses(handed.providers(), provider, depth);
                Ok((model, problem, statuses))
            };
            let (model, problem, statuses) = self.in_thread(find).await?;
            let providers = match depth {
                ProbeDepth::Settings | ProbeDepth::Keys => statuses.into_statuses(),
                ProbeDepth::Online => statuses.ask().await,
            };
            Ok(ModelStatus { model, problem, providers })
        })
    }

    fn hand_over(&self, place: Place, handed: ClientCredentials) -> HostFuture<'_, ()> {
        Box::pin(async move { self.renew(&place.session, handed).await })
    }

    fn bring(&self, place: Place, handed: ClientCredentials) -> HostFuture<'_, bool> {
        Box::pin(async move {
            let session = &place.session;
            let handed = self.lost(&self.session(session)?, &handed);
            let is_something = !handed.providers().is_empty();
            if is_something {
                self.renew(session, handed.over(&self.kept_handed(session))).await?;
            }
            Ok(is_something)
        })
    }

    fn lacks(&self, place: Place, model: Option<String>) -> HostFuture<'_, Option<String>> {
        Box::pin(async move {
            let session = self.session(&place.session)?;
            let look = move |host: &Embedded| {
                Ok(host.lacking(&session, model.as_deref().unwrap_or(&session.model)))
            };
            self.in_thread(look).await
        })
    }

    fn handed(&self, session: &SessionId) -> ClientCredentials {
        self.kept_handed(session)
    }
}

fn provider_of(model: &str) -> &str {
    model.split_once('/').map_or("", |(provider, _)| provider)
}

fn lost(provider: &str) -> String {
    format!(
        "the credentials of `{provider}` came with the call and are lost, as when the daemon is restarted; \
         call again from where it was launched, with `{provider}` in the environment, or run `asyncagents \
         auth set {provider}`"
    )
}

fn removed(error: model::Error) -> String {
    match &error {
        model::Error::NoKey { provider, .. } => format!(
            "the daemon has no key for `{provider}` any more: one that was kept may have been removed; run \
             `asyncagents auth set {provider}`, then launch it again"
        ),
        other => other.to_string(),
    }
}
