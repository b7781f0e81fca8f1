//! The providers of models as they are for a caller, and what callers hand over of their environment.

use super::{Caller, Error, Supervisor};
use crate::host::metered::Metered;
use crate::host::opencode::OpenCode;
use crate::host::{self, AnyHost, Host};
pub use crate::host::{Handed, HandedParts, Look, ModelStanding, ProviderStanding};
use crate::task::Task;

impl Supervisor {
    /// What agents of ours run on that name no model, and what there is to say about each provider.
    pub async fn providers(&self, handed: Handed, look: Look) -> Result<ModelStanding, Error> {
        let embedded = self.0.hosts.all.values().find_map(|host| match host {
            AnyHost::Embedded(host) => Some(host),
            AnyHost::Scripted(_) | AnyHost::OpenCode(_) => None,
        });
        Ok(embedded.ok_or(Error::NoHost)?.standings(handed, look).await?)
    }

    /// What the caller handed over; a task that launches has what was handed over with its own launch.
    pub(super) fn handed_to(&self, caller: &Caller) -> Result<Handed, Error> {
        let parent = self.0.store.tasks().get(&caller.session)?;
        let host = parent.and_then(|parent| self.0.metered.get(&parent.origin.host));
        let earlier = host.map(|host| host.handed(&caller.session)).unwrap_or_default();
        Ok(caller.handed.over(&earlier))
    }

    /// A caller that goes on with a task brings what its environment says.
    pub async fn renew_handed(&self, task: &Task, handed: &Handed) -> Result<(), Error> {
        if let Some(host) = self.0.metered.get(&task.origin.host) {
            host.hand_over(&task.id, handed.over(&host.handed(&task.id))).await?;
        }
        self.0.prompts.notify_one();
        Ok(())
    }

    /// Any call of a client brings what its tasks lost when the daemon was restarted (T6). A task that has
    /// what it was launched with keeps that.
    pub async fn bring(&self, caller: &Caller) -> Result<(), Error> {
        if caller.handed.providers().is_empty() && caller.handed.opencode().is_none() {
            return Ok(());
        }
        let mut tasks = self.0.store.tasks().live(Some(&caller.session))?;
        if !caller.heir_of.is_empty() {
            let of_earlier =
                |task: &Task| task.origin.parent.session.as_str().starts_with(&caller.heir_of);
            tasks.extend(self.0.store.slots().parked()?.into_iter().filter(of_earlier));
        }
        for task in tasks {
            let Some(host) = self.0.metered.get(&task.origin.host) else { continue };
            // The daemon before this one had the login of its server.
            if OpenCode::is_handed(&task.origin.host_instance) {
                self.host_for(&task.origin.host, &caller.handed)?;
            }
            match host.bring(&task.id, &caller.handed).await {
                Ok(true) => self.0.prompts.notify_one(),
                Ok(false) | Err(host::Error::NoSuchSession(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Puts back into the queue what has again what it lacked. `true` while others still wait for theirs.
    pub(super) async fn unpark(&self) -> Result<bool, Error> {
        let mut others = false;
        for task in self.0.store.slots().parked()? {
            let lacks = match self.host(&task.origin.host) {
                Ok(host) => host.lacks(&task.id, task.order.model.clone()).await,
                // With a slot it is found out what that means for it.
                Err(_) => Ok(None),
            };
            match lacks {
                Ok(None) | Err(host::Error::NoSuchSession(_)) => {
                    self.0.store.slots().unpark(&task, self.0.clock.now()).await?;
                }
                Ok(Some(_)) | Err(_) => others = true,
            }
        }
        Ok(others)
    }

    /// The host for a launch: a caller may know a server that nobody else has named.
    pub(super) fn host_for(&self, name: &str, handed: &Handed) -> Result<Metered, Error> {
        let host = self.host(name)?;
        match (host.host(), handed.opencode()) {
            (AnyHost::OpenCode(opencode), Some(address)) => {
                Ok(host.over(AnyHost::OpenCode(opencode.at(address)?)))
            }
            (AnyHost::OpenCode(_) | AnyHost::Embedded(_) | AnyHost::Scripted(_), _) => {
                Ok(host.clone())
            }
        }
    }
}
