//! A supervisor on a real store with the scripted host in the same process. The supervisor can be
//! restarted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::feed::{EventKind, Feed, TaskEvent};
use asyncagents::host::scripted::{Control, Scripted, World as Host};
use asyncagents::host::{Host as _, NewSession, Post};
use asyncagents::store::{ChangeKind, Store};
use asyncagents::supervisor::{
    Asks, Caller, ClientCredentials, Error, Fork, ForkMethod, Hosts, Launch, Need, Retention,
    Settings, Supervisor, WaitEnd,
};
use asyncagents::task::Order;
use asyncagents::task::launch::TaskSpec;
use asyncagents::task::lifecycle::ResumePolicy;
use asyncagents::task::queue::Limits;
use asyncagents::task::{SessionId, Status, Task, TaskId};
use asyncagents::tools::{self, Call, Toolbox};
use asyncagents::wire::ToolAnswer;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Long enough for a busy machine; nothing waits this long unless something is wrong.
pub const LONG: Duration = Duration::from_secs(30);

pub struct World {
    pub host: Host,
    pub supervisor: Supervisor,
    pub store: Store,
    pub clock: Clock,
    settings: Settings,
    working: JoinHandle<()>,
    dir: TempDir,
}

/// The defaults, with a sweep short enough for tests.
pub fn settings() -> Settings {
    Settings {
        home: std::path::PathBuf::new(),
        enabled: true,
        limits: Arc::new(Limits {
            active: None,
            active_per_parent: 10,
            blocking_per_parent: 3,
            active_per_model: BTreeMap::new(),
            queued_per_parent: 1_000,
            is_draining: false,
        }),
        poll_interval: Duration::from_millis(50),
        max_depth: 1,
        fork_method: ForkMethod::Context,
        stall: Duration::from_secs(600),
        stall_repeats: 20,
        cancel_stalled: false,
        settle: Duration::from_millis(150),
        answer_grace: Duration::from_secs(5),
        gone: Duration::from_secs(600),
        resumable: ResumePolicy::Completed,
        asks: Asks::Park(None),
        result_cache: Duration::from_secs(300),
        last_message_characters: 2_000,
        inline_characters: 8_000,
        toasts: true,
        notifier: Arc::default(),
        history: Retention::default(),
        keep_unread: None,
    }
}

pub fn caller(session: &SessionId) -> Caller {
    Caller {
        session: session.clone(),
        message: "msg_parent".into(),
        agent: "build".into(),
        directory: "/project".into(),
        host: "scripted".into(),
        instance: None,
        development: false,
        lone_batches: false,
        heir_of: String::new(),
        anonymous: false,
        longest_wait: None,
        handed: ClientCredentials::default(),
    }
}

pub fn order(prompt: &str) -> Order {
    Order {
        description: "look around".into(),
        prompt: prompt.into(),
        agent: "explore".into(),
        ..Order::default()
    }
}

impl World {
    pub async fn start() -> World {
        World::with(settings()).await
    }

    pub async fn with(settings: Settings) -> World {
        World::at(settings, Clock::system()).await
    }

    pub async fn at(settings: Settings, clock: Clock) -> World {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(clock.clone());
        let (supervisor, store, working) = begin(dir.path(), &settings, &clock, |_| hosts(&host));
        World { host, supervisor, store, clock, settings, working, dir }
    }

    /// Restarts the daemon's part; the host keeps running.
    pub async fn restart(&mut self) {
        self.kill();
        self.revive();
    }

    /// Stops everything at once, without a shutdown.
    pub fn kill(&mut self) {
        self.working.abort();
        self.supervisor.stop();
        self.store.close();
    }

    /// Kills the daemon and opens its store without one, to write what a crash leaves behind. With a
    /// daemon on it, recovery could settle that before the test has arranged the rest.
    pub fn crash(&mut self) {
        self.kill();
        (self.store, _) = Store::open(&self.dir.path().join("asyncagents.db"), |_| {}).unwrap();
    }

    pub fn revive(&mut self) {
        self.revive_with(hosts(&self.host));
    }

    pub fn revive_with(&mut self, hosts: Hosts) {
        self.store.close();
        (self.supervisor, self.store, self.working) =
            begin(self.dir.path(), &self.settings, &self.clock, |_| hosts);
    }

    pub async fn parent(&self) -> SessionId {
        let session = NewSession {
            parent: None,
            title: "a conversation".into(),
            nonce: self.clock.nonce(),
            directory: "/project".into(),
            agent: "build".into(),
            deny: Vec::new(),
            handed: Default::default(),
        };
        Scripted::Here(self.host.clone()).open(session).await.unwrap().session
    }

    pub async fn launch(&self, parent: &SessionId, prompt: &str) -> Task {
        self.try_launch(parent, order(prompt)).await.unwrap()
    }

    pub async fn try_launch(
        &self,
        parent: &SessionId,
        wanted: impl Into<TaskSpec>,
    ) -> Result<Task, Error> {
        let launch = Launch { wanted: wanted.into(), fork: Fork::No, key: None };
        self.supervisor.launch(caller(parent), launch).await
    }

    pub async fn control(&self, control: Control) {
        Scripted::Here(self.host.clone()).control(control).await.unwrap();
    }

    /// Ends a hanging run, once it has begun.
    pub async fn finish(&self, task: &Task, text: &str) {
        self.until("it works", || self.host.is_busy(&task.id)).await;
        let (session, text) = (task.id.clone(), text.to_owned());
        self.control(Control::Finish { session, text }).await;
    }

    /// Waits for the end of the task and returns it.
    pub async fn ended(&self, task: &Task) -> Task {
        let waited =
            self.supervisor.wait(std::slice::from_ref(&task.id), Need::All, LONG).await.unwrap();
        assert!(waited.end == WaitEnd::Enough, "{:?}", waited.tasks);
        waited.tasks.into_iter().next().unwrap()
    }

    pub async fn end_of(&self, parent: &SessionId, prompt: &str) -> Task {
        let task = self.launch(parent, prompt).await;
        self.ended(&task).await
    }

    /// The answer of a tool.
    pub async fn tool(&self, caller: &Caller, name: &str, arguments: Value) -> ToolAnswer {
        self.tool_of(&Toolbox::default(), caller, name, arguments).await
    }

    pub async fn tool_of(
        &self,
        toolbox: &Toolbox,
        caller: &Caller,
        name: &str,
        arguments: Value,
    ) -> ToolAnswer {
        let (name, caller) = (name.to_owned(), caller.clone());
        let call = Call { name, caller, arguments, key: None, acknowledges: false };
        tools::call(&self.supervisor, toolbox, call).await.unwrap()
    }

    pub fn task(&self, id: &TaskId) -> Task {
        self.supervisor.task(id).unwrap()
    }

    pub fn status(&self, task: &Task) -> Status {
        self.task(&task.id).status()
    }

    /// Waits for the condition, checked after every change.
    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let started = std::time::Instant::now();
        while !condition() {
            assert!(started.elapsed() < LONG, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A parent's posts, once there are this many.
    pub async fn posts(&self, parent: &SessionId, n: usize) -> Vec<Post> {
        let posts = || -> Vec<Post> {
            self.host.posts().into_iter().filter(|post| post.to.session == *parent).collect()
        };
        self.until("a parent is told", || posts().len() >= n).await;
        posts()
    }
}

fn hosts(host: &Host) -> Hosts {
    let mut all: BTreeMap<String, Arc<dyn asyncagents::host::Host>> = BTreeMap::new();
    all.insert("scripted".into(), Arc::new(Scripted::Here(host.clone())));
    Hosts { all, default: Some("scripted".into()) }
}

/// Starts a supervisor on the store in this directory.
pub fn begin(
    dir: &Path,
    settings: &Settings,
    clock: &Clock,
    hosts: impl FnOnce(&Store) -> Hosts,
) -> (Supervisor, Store, JoinHandle<()>) {
    let feed = Feed::new();
    let publish = {
        let feed = feed.clone();
        move |committed: asyncagents::store::CommittedChange| {
            let kind = match committed.what {
                ChangeKind::Created => EventKind::Created,
                ChangeKind::Updated => EventKind::Updated,
                ChangeKind::Ended => EventKind::of_end(committed.task.status()),
            };
            feed.publish(TaskEvent::new(committed.id, kind, committed.task));
        }
    };
    let (store, _) = Store::open(&dir.join("asyncagents.db"), publish).unwrap();
    let hosts = hosts(&store);
    let supervisor = Supervisor::new(store.clone(), feed, clock.clone(), hosts, settings.clone());
    let working = tokio::spawn({
        let supervisor = supervisor.clone();
        async move { supervisor.run().await }
    });
    (supervisor, store, working)
}

impl Drop for World {
    fn drop(&mut self) {
        self.supervisor.stop();
        self.working.abort();
    }
}
