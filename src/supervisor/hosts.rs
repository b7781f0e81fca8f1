//! Host and server administration: listing, adding and removing servers, plugin bridges, and where callers'
//! conversations are. Added servers are stored, so that the next daemon knows them, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Error, Supervisor};
use crate::host::{self, Bridges, Servers};
pub use crate::host::{Bridge, Line};
use crate::task::SessionId;

/// A host as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStatus {
    pub name: String,
    /// Used by launches that name none.
    pub is_default: bool,
    pub active: usize,
    /// Its sessions are on servers, which can be added.
    pub has_servers: bool,
    pub servers: Vec<Server>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub name: String,
    pub address: String,
    /// `Ok` with its version, `Err` with the reason why it cannot be used.
    pub health: Result<String, String>,
    pub active: usize,
}

impl Supervisor {
    pub async fn hosts(&self) -> Result<Vec<HostStatus>, Error> {
        let mut active: BTreeMap<(String, String), usize> = BTreeMap::new();
        for task in self.0.core.store().tasks().live(None)? {
            *active.entry((task.origin.host, task.origin.host_instance)).or_default() += 1;
        }
        let on = |host: &str| -> usize {
            active.iter().filter(|((name, _), _)| name == host).map(|(_, n)| n).sum()
        };
        let server = |host: &str, known: host::Server| {
            let host::Server { name, address, health } = known;
            let active = active.get(&(host.to_owned(), name.clone())).copied().unwrap_or(0);
            Server { name, address, health, active }
        };
        let mut hosts = Vec::new();
        for (name, host) in &self.0.core.hosts().all {
            let known = match host.servers() {
                Some(servers) => servers.known().await,
                None => Vec::new(),
            };
            hosts.push(HostStatus {
                name: name.clone(),
                is_default: self.0.core.hosts().default.as_ref() == Some(name),
                active: on(name),
                has_servers: host.servers().is_some(),
                servers: known.into_iter().map(|known| server(name, known)).collect(),
            });
        }
        Ok(hosts)
    }

    /// Adds an OpenCode server, or changes the address of a known one, and stores it.
    pub async fn add_server(&self, name: &str, address: &str) -> Result<(), Error> {
        let name = name.trim();
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(Error::BadServer(
                "a server's name is made of letters, digits, `-`, `_` and `.`".into(),
            ));
        }
        // Attached first, which validates the address; only then stored.
        self.servers()?.1.put(name, address.trim()).map_err(bad_address)?;
        self.0.core.store().instances().put(name.to_owned(), address.trim().to_owned()).await?;
        self.sweep();
        Ok(())
    }

    pub async fn remove_server(&self, name: &str) -> Result<(), Error> {
        let (host, servers) = self.servers()?;
        let live = self.0.core.store().tasks().live(None)?.into_iter();
        let live =
            live.filter(|task| task.origin.host == host && task.origin.host_instance == name);
        match live.count() {
            0 => {}
            n => {
                let tasks = if n == 1 { "1 task".into() } else { format!("{n} tasks") };
                return Err(Error::BadServer(format!(
                    "{tasks} still run on `{name}`; wait for them or cancel them first"
                )));
            }
        }
        if !self.0.core.store().instances().all()?.iter().any(|(known, _)| known == name) {
            return Err(Error::BadServer(format!(
                "no server `{name}` was added; those of the configuration file are removed there"
            )));
        }
        self.0.core.store().instances().remove(name.to_owned()).await?;
        servers.remove(name);
        Ok(())
    }

    /// A plugin in an OpenCode process has connected.
    pub fn bridge(
        &self,
        pid: u32,
        directory: &str,
        before: &str,
    ) -> Result<(Arc<Bridge>, mpsc::UnboundedReceiver<Line>), Error> {
        Ok(self.bridges()?.bridge(pid, directory, before, self.0.core.live_instances()))
    }

    pub fn bridge_by_id(&self, id: u64) -> Result<Option<Arc<Bridge>>, Error> {
        Ok(self.bridges()?.bridge_by_id(id))
    }

    /// Records where a caller's conversation is. A hint, so the write is not awaited.
    pub fn note_place(&self, host: &str, instance: &str, session: &str, directory: &str) {
        let session = SessionId::new(session);
        if let Some(bridges) = self.0.core.hosts().all.get(host).and_then(|host| host.bridges())
            && !instance.is_empty()
            && bridges.note_parent(&session, instance, directory)
        {
            // Should the write be lost, all processes are asked.
            drop(
                self.0.core.store().instances().put_place_of_parent(&session, instance.to_owned()),
            );
        }
    }

    /// The daemon stops on purpose: plugins are told, so that they do not start it again.
    pub fn say_goodbye(&self) {
        if let Ok(bridges) = self.bridges() {
            bridges.say_goodbye();
        }
    }

    /// The host whose servers come and go, with its name.
    fn servers(&self) -> Result<(&str, &dyn Servers), Error> {
        let mut all = self.0.core.hosts().all.iter();
        let found = all.find_map(|(name, host)| Some((name.as_str(), host.servers()?)));
        found.ok_or(Error::NoHost)
    }

    fn bridges(&self) -> Result<&dyn Bridges, Error> {
        let found = self.0.core.hosts().all.values().find_map(|host| host.bridges());
        found.ok_or(Error::NoHost)
    }
}

fn bad_address(error: host::Error) -> Error {
    match error {
        host::Error::Refused(why) => Error::BadServer(why),
        other => Error::Host(other),
    }
}
