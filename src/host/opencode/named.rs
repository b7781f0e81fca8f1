//! Servers that callers name in their environment (`ASYNCAGENTS_OPENCODE_URL`): a bounded registry keyed by
//! address. Each has its own login, kept in memory only, and is never shown the login configured for other
//! servers. The address, without the login, is stored so that the next daemon finds the tasks there.
//!
//! Storing and forgetting an address race with launches; the async lock `noting` makes each
//! check-then-write atomic. It is held across store writes only, never while a server is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::Url;

use super::instance::Instance;
use super::transport::{Http, Transport};
use super::{OpenCode, place, server_url};
use crate::host::Error;
use crate::store;
use crate::task::id::fingerprint;

/// Prefix of their generated names.
const HANDED: &str = "handed-";

/// Each costs an event stream, so their number is limited.
const MOST_HANDED: usize = 32;

/// The fingerprint of a server without a login.
pub(super) const NO_LOGIN: u32 = 0;

impl OpenCode {
    /// A handle that opens sessions on the server at this address, and on no other. Attaches it if it is not
    /// known, or again if its login has changed and it does not answer with the old one.
    pub(super) fn named_by_caller(
        &self,
        address: &str,
        needed: &dyn Fn(&str) -> bool,
    ) -> Result<OpenCode, Error> {
        let url = server_url(address)?;
        let (place, login) = (place(&url), login(&url));
        let name = format!("{HANDED}{:08x}", fingerprint(&[&place]));
        // Held until it is attached: two concurrent launches must not replace each other's instance.
        let mut instances = self.instances();
        let is_there = |instance: &&Arc<Instance>| {
            Url::parse(&instance.address).is_ok_and(|known| self::place(&known) == place)
        };
        // A configured server at the same address is used as it is, with its own login.
        let known = instances.values().find(is_there).map(|known| known.name.clone());
        let is_outdated = instances.get(&name).is_some_and(|known| outdated(known, login));
        if known.is_none() {
            self.make_room(&mut instances, needed)?;
        }
        if known.is_none() || is_outdated {
            let http = Http::new(&url, None);
            let http = http.map_err(|error| Error::Refused(error.to_string()))?;
            self.attach_in(&mut instances, (&name, place), login, Transport::Http(http));
        }
        let name = known.unwrap_or(name);
        drop(instances);
        Ok(OpenCode(Arc::clone(&self.0), Some(name)))
    }

    /// Restores a server that a caller named to the previous daemon, for its tasks that are still live. The
    /// login is lost; a caller may bring it again.
    pub fn put_again(&self, name: &str, address: &str) -> Result<(), Error> {
        let url = server_url(address)?;
        let http = Http::new(&url, None).map_err(|error| Error::Refused(error.to_string()))?;
        let mut instances = self.instances();
        self.attach_in(&mut instances, (name, place(&url)), NO_LOGIN, Transport::Http(http));
        Ok(())
    }

    /// Whether a caller named it in its environment.
    pub fn is_handed(name: &str) -> bool {
        name.starts_with(HANDED)
    }

    /// Stores the address, without a login, so that the next daemon finds the tasks there.
    pub(super) async fn note_handed(&self, instance: &Instance) {
        let (name, address) = (instance.name.clone(), instance.address.clone());
        let is_noted =
            |noted: Vec<(String, String)>| noted.contains(&(name.clone(), address.clone()));
        if !name.starts_with(HANDED) {
            return;
        }
        // Without the lock the row could be seen here and erased by `forget_unneeded` right after.
        let _noting = self.0.noting.lock().await;
        if self.0.store.instances().all().is_ok_and(is_noted) {
            return;
        }
        if let Err(error) = self.0.store.instances().put(name, address).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "server address not stored; its tasks are lost when the daemon stops"
            );
        }
    }

    /// Forgets the addresses of servers that callers named and that no task needs any more. Those that are
    /// attached stay: a launch may be under way there.
    pub async fn forget_unneeded(&self) -> Result<(), store::Error> {
        for name in self.0.store.instances().unneeded(HANDED)? {
            // A launch that attaches it after this check stores the address again in `note_handed`, which
            // waits for this lock.
            let _noting = self.0.noting.lock().await;
            if !self.instances().contains_key(&name) {
                self.0.store.instances().remove(name).await?;
            }
        }
        Ok(())
    }

    /// Evicts a server that is down and has no live task, when the limit is reached.
    fn make_room(
        &self,
        instances: &mut BTreeMap<String, Arc<Instance>>,
        needed: &dyn Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let handed = |name: &str| name.starts_with(HANDED);
        if instances.keys().filter(|name| handed(name)).count() < MOST_HANDED {
            return Ok(());
        }
        let idle = instances.values().find(|instance| {
            handed(&instance.name) && instance.is_down() && !needed(&instance.name)
        });
        let idle = idle.map(|instance| instance.name.clone());
        if let Some(old) = idle.and_then(|name| instances.remove(&name)) {
            old.leave();
            return Ok(());
        }
        Err(Error::Refused(format!(
            "clients have named {MOST_HANDED} OpenCode servers by ASYNCAGENTS_OPENCODE_URL, the most there \
             may be; stop one that no task runs on, or use one of them"
        )))
    }
}

/// Whether to attach it again with this login. One that is down may have been named with a wrong login, or
/// with none by the previous daemon. One whose first health check is under way stays: other calls wait for
/// it.
fn outdated(known: &Instance, login: u32) -> bool {
    known.login != login && !known.is_up() && (known.is_down() || known.login == NO_LOGIN)
}

/// A fingerprint: tells logins apart without keeping them.
fn login(url: &Url) -> u32 {
    match url.password() {
        None if url.username().is_empty() => NO_LOGIN,
        password => fingerprint(&[url.username(), password.unwrap_or_default()]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::poll;

    use super::*;
    use crate::clock::Clock;
    use crate::store::Store;

    #[tokio::test]
    async fn an_address_deleted_during_a_launch_is_stored_again() {
        let home = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&home.path().join("store.db"), |_| {}).unwrap();
        let host = OpenCode::new(store.clone(), Clock::system(), None, Duration::ZERO);
        let at = host.named_by_caller("http://127.0.0.1:9", &|_| false).unwrap();
        let name = at.1.clone().unwrap();
        let row = vec![(name.clone(), "http://127.0.0.1:9".to_owned())];
        let instance = host.instances().get(&name).cloned().unwrap();
        store.instances().put(name.clone(), instance.address.clone()).await.unwrap();

        // The look at what is attached came before the launch, the erasing comes after it.
        let erasing = host.0.noting.lock().await;
        let mut noting = Box::pin(host.note_handed(&instance));
        assert!(poll!(&mut noting).is_pending());
        store.instances().remove(name.clone()).await.unwrap();
        drop(erasing);
        noting.await;
        assert_eq!(store.instances().all().unwrap(), row);

        // The launch comes before the look.
        let detached = host.instances().remove(&name).unwrap();
        let launching = host.0.noting.lock().await;
        let mut forgetting = Box::pin(host.forget_unneeded());
        assert!(poll!(&mut forgetting).is_pending());
        host.instances().insert(name.clone(), detached);
        drop(launching);
        forgetting.await.unwrap();
        assert_eq!(store.instances().all().unwrap(), row);

        host.instances().remove(&name);
        host.forget_unneeded().await.unwrap();
        assert_eq!(store.instances().all().unwrap(), []);
    }
}
