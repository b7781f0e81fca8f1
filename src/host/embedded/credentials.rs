//! Which model a session runs on and with whose key. What callers handed over for their sessions is kept
//! here, in memory, and is gone with the daemon.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use super::{Embedded, Setup};
use crate::agent::definition::Definition;
use crate::agent::model::{self, Model};
use crate::host::{Error, Handed, Look, ModelStanding};
use crate::task::SessionId;

/// Sessions for which something is remembered; beyond it those that rest are forgotten.
const MOST_HANDED: usize = 10_000;

impl Embedded {
    /// The model a session is to use: the prompt's, the agent's, the configured one.
    pub(super) fn model_name(&self, prompt: &str, agent: &Definition) -> String {
        let models = &self.0.setup.models;
        if !prompt.is_empty() {
            return models.resolve(prompt).unwrap_or_else(|| prompt.to_owned());
        }
        self.model_in_file(agent).unwrap_or_else(|| self.default_model())
    }

    /// Files are written for other programs too: a name that only those know says nothing.
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

    /// The model of a session that is to work now. A key that came with the launch may be gone since.
    pub(super) fn find_model(&self, session: &SessionId, name: &str) -> Result<Model, Error> {
        let found = self.0.setup.models.find(name, self.kept_handed(session).providers());
        found.map_err(|error| {
            let told = match &error {
                model::Error::NoKey { provider, .. } => format!(
                    "the daemon has no key for `{provider}` any more: one that comes with a launch is \
                     lost when the daemon ends, one that was kept may have been removed; run \
                     `asyncagents auth set {provider}`, then launch it again"
                ),
                other => other.to_string(),
            };
            Error::Refused(told)
        })
    }

    /// What agents run on that name no model, and what there is to say about each provider.
    pub async fn standings(&self, handed: Handed, look: Look) -> Result<ModelStanding, Error> {
        let find = move |host: &Embedded| {
            let models = &host.0.setup.models;
            let named = handed.model();
            let model = named.map(|name| models.resolve(name).unwrap_or_else(|| name.to_owned()));
            let model = model.unwrap_or_else(|| host.default_model());
            let provider = model.split_once('/').map_or("", |(provider, _)| provider);
            let problem = match look {
                Look::Glance => None,
                Look::Closely | Look::Online => models.find(&model, handed.providers()).err(),
            };
            let problem = problem.map(|error| error.to_string());
            let standings = models.standings(handed.providers(), provider, look);
            Ok((model, problem, standings))
        };
        let (model, problem, standings) = self.in_thread(find).await?;
        let providers = match look {
            Look::Glance | Look::Closely => standings.told(),
            Look::Online => standings.ask().await,
        };
        Ok(ModelStanding { model, problem, providers })
    }

    pub(super) fn keep_handed(&self, session: &SessionId, handed: Handed) {
        let runs = self.runs();
        let mut all = self.all_handed();
        if all.len() >= MOST_HANDED {
            all.retain(|session, _| runs.contains_key(session));
        }
        all.insert(session.clone(), handed);
    }

    pub(super) fn kept_handed(&self, session: &SessionId) -> Handed {
        self.all_handed().get(session).cloned().unwrap_or_default()
    }

    pub(super) fn forget_handed(&self, session: &SessionId) {
        self.all_handed().remove(session);
    }

    fn all_handed(&self) -> MutexGuard<'_, HashMap<SessionId, Handed>> {
        self.0.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
