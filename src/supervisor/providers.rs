//! Model providers as a caller finds them, and the credentials that callers hand over from their
//! environment. Those are in memory only; after a restart any call of the same client restores what its
//! tasks lost (T6).

use super::core::Core;
use super::{Caller, Error, Supervisor};
use crate::host::{self, Credentials, Place};
pub use crate::host::{
    ClientCredentialParts, ClientCredentials, ModelStatus, ProbeDepth, ProviderStatus,
};
use crate::task::Task;

impl Supervisor {
    /// The default model of our own agents, and the state of each provider.
    pub async fn providers(
        &self,
        handed: ClientCredentials,
        depth: ProbeDepth,
    ) -> Result<ModelStatus, Error> {
        let keyed = self.0.core.hosts().all.values().find_map(|host| host.credentials());
        Ok(keyed.ok_or(Error::NoHost)?.statuses(handed, depth).await?)
    }

    /// The caller's credentials; a task that launches inherits those of its own launch.
    pub(super) fn handed_to(&self, caller: &Caller) -> Result<ClientCredentials, Error> {
        let parent = self.0.core.store().tasks().get(&caller.session)?;
        let earlier = parent.map(|parent| self.0.core.handed_for(&parent)).unwrap_or_default();
        Ok(caller.handed.over(&earlier))
    }

    /// A caller that resumes a task hands over its credentials again.
    pub async fn renew_handed(&self, task: &Task, handed: &ClientCredentials) -> Result<(), Error> {
        if let Some(credentials) = self.0.core.credentials_of(task) {
            let handed = handed.over(&credentials.handed(&task.id));
            credentials.hand_over(Place::from(task), handed).await?;
        }
        self.0.bells.prompts.ring();
        Ok(())
    }

    /// Restores the credentials that the caller's tasks lost when the daemon was restarted (T6). A task that
    /// still has those of its launch keeps them.
    pub async fn bring(&self, caller: &Caller) -> Result<(), Error> {
        if caller.handed.providers().is_empty() && caller.handed.server().is_none() {
            return Ok(());
        }
        let mut tasks = self.0.core.store().tasks().live(Some(&caller.session))?;
        if !caller.heir_of.is_empty() {
            let of_earlier =
                |task: &Task| task.origin.parent.session.as_str().starts_with(&caller.heir_of);
            tasks.extend(self.0.core.store().slots().parked()?.into_iter().filter(of_earlier));
        }
        for task in tasks {
            let Some(host) = self.0.core.hosts().all.get(&task.origin.host) else { continue };
            // The login of a server that a caller named was lost with the previous daemon: attach it again.
            let instance = &task.origin.host_instance;
            if host.servers().is_some_and(|servers| servers.is_named_by_caller(instance)) {
                self.0.core.host_named_by(&task.origin.host, &caller.handed)?;
            }
            let Some(credentials) = host.credentials() else { continue };
            match credentials.bring(Place::from(&task), caller.handed.clone()).await {
                Ok(true) => self.0.bells.prompts.ring(),
                Ok(false) | Err(host::Error::NoSuchSession(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Core {
    /// What was handed over for a task, as far as it is still in memory.
    pub(super) fn handed_for(&self, task: &Task) -> ClientCredentials {
        let credentials = self.credentials_of(task);
        credentials.map(|credentials| credentials.handed(&task.id)).unwrap_or_default()
    }

    fn credentials_of(&self, task: &Task) -> Option<&dyn Credentials> {
        self.hosts().all.get(&task.origin.host)?.credentials()
    }

    /// Why a task cannot continue until its lost credentials are brought again.
    pub(super) async fn lacks(&self, task: &Task) -> Result<Option<String>, host::Error> {
        match self.credentials_of(task) {
            Some(credentials) => {
                credentials.lacks(Place::from(task), task.order.model.clone()).await
            }
            None => Ok(None),
        }
    }
}
