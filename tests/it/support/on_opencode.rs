//! A supervisor on a real store whose agents run on stub OpenCode servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::Servers;
use asyncagents::host::opencode::{Login, OpenCode as Host};
use asyncagents::store::Store;
use asyncagents::supervisor::{
    Caller, Error, Fork, Hosts, Launch, Need, Settings, Supervisor, WaitEnd,
};
use asyncagents::task::Order;
use asyncagents::task::{Phase, Progress, SessionId, Task};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::opencode::OpenCode;
use super::world::{LONG, begin, order, settings};

pub struct OnOpenCode {
    pub server: OpenCode,
    pub host: Host,
    pub supervisor: Supervisor,
    pub store: Store,
    working: JoinHandle<()>,
    settings: Settings,
    servers: Vec<(String, String)>,
    login: Option<Login>,
    patience: Duration,
    dir: TempDir,
}

impl OnOpenCode {
    pub async fn start() -> OnOpenCode {
        OnOpenCode::with(settings(), OpenCode::start().await).await
    }

    pub async fn with(settings: Settings, server: OpenCode) -> OnOpenCode {
        let servers = vec![("default".to_owned(), server.url())];
        OnOpenCode::build(settings, server, servers, None, LONG).await
    }

    pub async fn build(
        settings: Settings,
        server: OpenCode,
        servers: Vec<(String, String)>,
        login: Option<Login>,
        patience: Duration,
    ) -> OnOpenCode {
        let dir = tempfile::tempdir().unwrap();
        let (host, supervisor, store, working) =
            connect(&dir, &settings, &servers, &login, patience);
        OnOpenCode {
            server,
            host,
            supervisor,
            store,
            working,
            settings,
            servers,
            login,
            patience,
            dir,
        }
    }

    /// Restarts the daemon's part; the servers keep running.
    pub fn restart(&mut self) {
        self.working.abort();
        self.supervisor.stop();
        self.store.close();
        (self.host, self.supervisor, self.store, self.working) =
            connect(&self.dir, &self.settings, &self.servers, &self.login, self.patience);
    }

    pub async fn launch(&self, parent: &str, prompt: &str) -> Task {
        self.try_launch(parent, general(prompt)).await.unwrap()
    }

    pub async fn try_launch(&self, parent: &str, order: Order) -> Result<Task, Error> {
        let launch = Launch { wanted: order.into(), fork: Fork::No, key: None };
        self.supervisor.launch(caller(parent), launch).await
    }

    pub async fn ended(&self, task: &Task) -> Task {
        let ids = std::slice::from_ref(&task.id);
        let waited = self.supervisor.wait(ids, Need::All, LONG).await.unwrap();
        assert!(waited.end == WaitEnd::Enough, "{:?}", waited.tasks);
        waited.tasks.into_iter().next().unwrap()
    }

    pub async fn end_of(&self, parent: &str, prompt: &str) -> Task {
        let task = self.launch(parent, prompt).await;
        self.ended(&task).await
    }

    /// Waits until it runs and the daemon has recorded the prompt as accepted: an unrecorded prompt
    /// would be sent again.
    pub async fn at_work(&self, task: &Task) {
        let seen = |server: &OpenCode| {
            !server.is_idle(task.id.as_str()) && self.progress(task).phase != Phase::Starting
        };
        self.server.until("it is seen at work", seen).await;
    }

    pub fn progress(&self, task: &Task) -> Progress {
        self.supervisor.task(&task.id).unwrap().progress
    }

    /// The first lines of a parent's notices, once there are this many.
    pub async fn notices(&self, parent: &str, n: usize) -> Vec<String> {
        self.server.until("a parent is told", |server| visible(server, parent).len() >= n).await;
        visible(&self.server, parent)
    }
}

/// The visible text of the notices in a conversation.
pub fn visible(server: &OpenCode, parent: &str) -> Vec<String> {
    let notice = |message: Value| {
        let hidden = message["parts"][1]["synthetic"] == true;
        let text = message["parts"][0]["text"].as_str();
        text.filter(|_| hidden).map(str::to_owned)
    };
    server.messages(parent).into_iter().filter_map(notice).collect()
}

pub fn general(prompt: &str) -> Order {
    Order { agent: "general".into(), ..order(prompt) }
}

pub fn caller(parent: &str) -> Caller {
    let directory = super::opencode::DIRECTORY.to_owned();
    let caller = super::world::caller(&SessionId::new(parent));
    Caller { host: "opencode".into(), directory, ..caller }
}

pub fn connect(
    dir: &TempDir,
    settings: &Settings,
    servers: &[(String, String)],
    login: &Option<Login>,
    patience: Duration,
) -> (Host, Supervisor, Store, JoinHandle<()>) {
    let clock = Clock::system();
    let mut made = None;
    let hosts = |store: &Store| {
        let host = Host::new(store.clone(), clock.clone(), login.clone(), patience);
        for (name, url) in servers {
            host.put(name, url).unwrap();
        }
        made = Some(host.clone());
        let mut all: BTreeMap<String, Arc<dyn asyncagents::host::Host>> = BTreeMap::new();
        all.insert("opencode".to_owned(), Arc::new(host));
        Hosts { all, default: Some("opencode".into()) }
    };
    let (supervisor, store, working) = begin(dir.path(), settings, &clock, hosts);
    (made.unwrap(), supervisor, store, working)
}

impl Drop for OnOpenCode {
    fn drop(&mut self) {
        self.supervisor.stop();
        self.working.abort();
    }
}
