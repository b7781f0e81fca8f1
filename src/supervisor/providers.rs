//! The providers of models as they are for a caller, and what callers hand over of their environment.

use super::{Caller, Error, Supervisor};
use crate::host::metered::Metered;
use crate::host::{AnyHost, Host};
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
        let parent = self.0.store.task(&caller.session)?;
        let host = parent.and_then(|parent| self.0.metered.get(&parent.host));
        let earlier = host.map(|host| host.handed(&caller.session)).unwrap_or_default();
        Ok(caller.handed.over(&earlier))
    }

    /// A caller that goes on with a task brings what its environment says.
    pub fn renew_handed(&self, task: &Task, handed: &Handed) {
        if let Some(host) = self.0.metered.get(&task.host) {
            host.hand_over(&task.id, handed.over(&host.handed(&task.id)));
        }
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
