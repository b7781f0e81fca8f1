//! Tasks on a real OpenCode server, from the launch to the notice that the parent's model is given.

use std::time::{Duration, Instant};

use asyncagents::host::opencode::Login;
use asyncagents::store::Store;
use asyncagents::supervisor::{
    Answer, Delivery, Error, Fork, Launch, Need, Settings, Supervisor, Target, WaitEnd,
};
use asyncagents::task::Order;
use asyncagents::task::{Answerer, Phase, Status, Task};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::support::on_opencode::{caller, connect, general};
use crate::support::real_opencode::{RealOpenCode, Setup};
use crate::support::talk::Talk;
use crate::support::{ModelServer, settings};

/// Enough for a cold server on a busy machine.
const LONG: Duration = Duration::from_secs(120);

struct Fixture {
    model: ModelServer,
    server: RealOpenCode,
    talk: Talk,
    supervisor: Supervisor,
    store: Store,
    working: JoinHandle<()>,
    settings: Settings,
    dir: TempDir,
}

impl Fixture {
    async fn build(setup: Setup) -> Fixture {
        let model = ModelServer::start().await;
        let server = RealOpenCode::with(&model, setup).await;
        let talk = server.talk();
        let settings = Settings {
            poll_interval: Duration::from_millis(500),
            settle: Duration::from_secs(2),
            answer_grace: Duration::from_secs(30),
            ..settings()
        };
        let dir = tempfile::tempdir().unwrap();
        let (supervisor, store, working) = begin(&dir, &settings, &server);
        Fixture { model, server, talk, supervisor, store, working, settings, dir }
    }

    async fn start() -> Fixture {
        Fixture::build(Setup::default()).await
    }

    /// A conversation with an answered prompt.
    async fn parent(&self) -> String {
        let parent = self.talk.session(&json!({"title": "a conversation"})).await;
        self.talk.prompt(&parent, "hello\n@say good morning").await;
        self.until("the parent has answered", async |place: &Fixture| {
            let messages = place.talk.messages(&parent).await;
            messages.last().is_some_and(|last| last["info"]["finish"] == "stop")
        })
        .await;
        parent
    }

    async fn launch(&self, parent: &str, prompt: &str) -> Task {
        self.try_launch(parent, general(prompt)).await.unwrap()
    }

    async fn try_launch(&self, parent: &str, order: Order) -> Result<Task, Error> {
        let directory = self.server.project().display().to_string();
        let caller = asyncagents::supervisor::Caller { directory, ..caller(parent) };
        self.supervisor
            .launch(caller, Launch { wanted: order.into(), fork: Fork::No, key: None })
            .await
    }

    async fn ended(&self, task: &Task) -> Task {
        let ids = std::slice::from_ref(&task.id);
        let waited = self.supervisor.wait(ids, Need::All, LONG).await.unwrap();
        assert!(waited.end == WaitEnd::Enough, "{:?}\n{}", waited.tasks, self.server.log());
        waited.tasks.into_iter().next().unwrap()
    }

    fn now(&self, task: &Task) -> Task {
        self.supervisor.task(&task.id).unwrap()
    }

    /// The notices in a conversation, once there are this many.
    async fn notices(&self, parent: &str, n: usize) -> Vec<Value> {
        let notices = async |place: &Fixture| -> Vec<Value> {
            let mut messages = place.talk.messages(parent).await;
            messages.retain(|message| message["parts"][1]["synthetic"] == true);
            messages
        };
        self.until("a parent is told", async |place: &Fixture| notices(place).await.len() >= n)
            .await;
        notices(self).await
    }

    async fn until(&self, what: &str, holds: impl AsyncFn(&Fixture) -> bool) {
        let started = Instant::now();
        while !holds(self).await {
            assert!(started.elapsed() < LONG, "waited in vain until {what}\n{}", self.server.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until_asked(&self, task: &Task, times: usize) {
        let asked = async |place: &Fixture| place.model.asked_by(task.id.as_str()).len() >= times;
        self.until("its model is asked", asked).await;
    }

    /// Kills the daemon's supervisor and starts another one.
    fn restart(&mut self) {
        self.working.abort();
        self.supervisor.stop();
        self.store.close();
        (self.supervisor, self.store, self.working) =
            begin(&self.dir, &self.settings, &self.server);
    }
}

fn begin(
    dir: &TempDir,
    settings: &Settings,
    server: &RealOpenCode,
) -> (Supervisor, Store, JoinHandle<()>) {
    let servers = [("default".to_owned(), server.url())];
    let login: Option<Login> =
        server.password().map(|password| Login { name: "opencode".into(), password });
    let (_, supervisor, store, working) = connect(dir, settings, &servers, &login, LONG);
    (supervisor, store, working)
}

fn end(task: &Task) -> (Status, &str, &str) {
    (task.status(), task.state.result().unwrap_or(""), task.state.error().unwrap_or(""))
}

fn bash(command: &str) -> String {
    format!("call bash {}", json!({"command": command, "description": "run it"}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_children_run_tools_and_the_parents_model_is_woken_with_results_and_hints() {
    let place = Fixture::start().await;
    let parent = place.parent().await;
    let mut tasks = Vec::new();
    for n in 0..3 {
        let prompt = format!("@{}\n@say found {n} | usage 100 20", bash("echo hello"));
        tasks.push(place.launch(&parent, &prompt).await);
    }
    for (n, task) in tasks.iter().enumerate() {
        let ended = place.ended(task).await;
        assert_eq!(end(&ended), (Status::Completed, format!("found {n}").as_str(), ""));
        assert_eq!(ended.progress.tool_calls, 1);
        assert!(ended.progress.tokens.is_some_and(|tokens| tokens >= 120), "{ended:?}");
        assert!(ended.progress.cost.is_some(), "{ended:?}");
        let asked = place.model.asked_by(task.id.as_str());
        assert!(asked.iter().all(|asked| asked.parent_session.as_ref() == Some(&parent)));
        assert_eq!(asked[1].texts("tool"), ["hello\n"]);
        let tools = asked[0].body["tools"].to_string();
        assert!(!tools.contains("\"task\"") && !tools.contains("\"question\""), "{tools}");
    }
    let notices = place.notices(&parent, 3).await;
    assert_eq!(notices.len(), 3, "each is told once");
    assert!(notices.iter().all(|notice| notice["info"]["agent"] == "build"), "{notices:?}");
    place
        .until("all of it was answered", async |place: &Fixture| {
            let messages = place.talk.messages(&parent).await;
            messages.last().is_some_and(|last| last["info"]["finish"] == "stop")
        })
        .await;
    let asked = place.model.asked_by(&parent);
    let given = asked.last().unwrap().body["messages"].to_string();
    for (n, task) in tasks.iter().enumerate() {
        assert!(
            given.contains(&format!("Result of task {}, quoted from the agent", task.short_id)),
            "{given}"
        );
        assert!(given.contains(&format!("found {n}")), "{given}");
    }
    assert!(given.contains("Task Progress: 3/3") && given.contains("All 3 tasks finished."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_a_running_child_is_seen_before_its_next_step_and_once() {
    let mut place = Fixture::start().await;
    let parent = place.parent().await;
    let go = place.server.project().join("go");
    let wait = bash("while [ ! -e go ]; do sleep 0.1; done; echo went");
    let task = place.launch(&parent, &format!("look\n@{wait}\n@say first")).await;
    place.until_asked(&task, 1).await;
    let sent =
        place.supervisor.send(&task.id, "also this\n@say second".into(), None).await.unwrap();
    assert_eq!(sent.delivery, Delivery::Steered);
    // The message is acknowledged, so it has to survive the daemon.
    place.restart();
    let said = async |place: &Fixture| {
        let messages = place.talk.messages(task.id.as_str()).await;
        let said = |message: &&Value| message["info"]["role"] == "user";
        messages.iter().filter(said).count()
    };
    place.until("it was said", async |place: &Fixture| said(place).await == 2).await;
    std::fs::write(&go, "").unwrap();
    let ended = place.ended(&task).await;
    assert_eq!(end(&ended), (Status::Completed, "second", ""));
    assert_eq!(ended.run, 0);
    let asked = place.model.asked_by(task.id.as_str());
    assert_eq!(asked.len(), 2);
    assert!(asked[1].body.to_string().contains("also this"), "{:?}", asked[1]);
    assert_eq!(said(&place).await, 2);
    assert_eq!(place.notices(&parent, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_child_knows_what_was_said_and_has_no_more_tools_than_before() {
    let place = Fixture::start().await;
    let parent = place.parent().await;
    let task = place.launch(&parent, "the secret is blue\n@say noted").await;
    place.ended(&task).await;
    place.notices(&parent, 1).await;
    let resumed = place.supervisor.resume(&task.id, "and?\n@say it was blue".into()).await.unwrap();
    let ended = place.ended(&resumed).await;
    assert_eq!(end(&ended), (Status::Completed, "it was blue", ""));
    let asked = place.model.asked_by(task.id.as_str());
    let last = asked.last().unwrap().body.to_string();
    assert!(last.contains("the secret is blue"), "{last}");
    assert!(!last.contains("\"name\":\"task\""), "{last}");
    assert_eq!(place.notices(&parent, 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_cancelled_while_its_tool_runs_stops_and_the_caller_is_not_woken() {
    let place = Fixture::start().await;
    let parent = place.parent().await;
    let task = place.launch(&parent, &format!("@{}\n@say never", bash("sleep 600"))).await;
    let in_a_tool = async |place: &Fixture| place.now(&task).progress.phase == Phase::Tool;
    place.until("its tool runs", in_a_tool).await;
    place.supervisor.cancel(&caller(&parent), Target::Task(task.id.clone())).await.unwrap();
    assert_eq!(place.ended(&task).await.status(), Status::Cancelled);
    place
        .until("it is idle", async |place: &Fixture| {
            place.talk.get("/session/status").await == json!({})
        })
        .await;
    place.notices(&parent, 1).await;
    assert_eq!(place.model.asked_by(&parent).len(), 1, "nobody was woken");
    assert_eq!(place.model.asked_by(task.id.as_str()).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn todos_retries_failures_and_unknown_agents_are_handled() {
    let place = Fixture::start().await;
    let parent = place.parent().await;
    let todo = |status: &str| json!({"todos": [{"content": "look again", "status": status, "priority": "high"}]});
    let prompt = format!("@call todowrite {}\n@say half", todo("pending"));
    let task = place.ended(&place.launch(&parent, &prompt).await).await;
    assert_eq!(task.status(), Status::Completed, "{task:?}");
    let asked = place.model.asked_by(task.id.as_str());
    let last = asked.last().unwrap().body["messages"].to_string();
    assert!(last.contains("Some of your todos are still open"), "{last}");
    let notices = place.notices(&parent, 1).await;
    assert!(notices[0]["parts"][1]["text"].to_string().contains("look again"), "{notices:?}");

    let retried = "@once 500 retry-after-ms=400 | say found";
    let task = place.ended(&place.launch(&parent, retried).await).await;
    assert_eq!(end(&task), (Status::Completed, "found", ""));
    let failing = place.launch(&parent, "@status 500 retry-after-ms=300 | say on fire").await;
    let retrying = async |place: &Fixture| {
        let progress = place.now(&failing).progress;
        progress.phase == Phase::Retrying && progress.detail.is_some()
    };
    place.until("it is retried", retrying).await;
    let task = place.ended(&failing).await;
    assert_eq!(task.status(), Status::Error);
    assert!(task.state.error().unwrap().contains("on fire"), "{task:?}");
    let refused = place.ended(&place.launch(&parent, "@status 400 | say no").await).await;
    assert_eq!((refused.status(), refused.state.error()), (Status::Error, Some("no")));

    let order = Order { agent: "nobody".into(), ..general("look") };
    let error = place.try_launch(&parent, order).await.unwrap_err().to_string();
    assert!(error.starts_with("Agent \"nobody\" not found. Make sure it's registered."), "{error}");
    assert_eq!(place.notices(&parent, 4).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_is_asked_for_approved_and_denied() {
    let config = json!({"permission": {"*": "allow", "bash": "ask"}});
    let place = Fixture::build(Setup { config, ..Setup::default() }).await;
    let parent = place.parent().await;
    for (answer, status) in [(Answer::Allow, Status::Completed), (Answer::Deny, Status::Error)] {
        let task = place.launch(&parent, &format!("@{}\n@say done", bash("echo asked"))).await;
        let blocked = async |place: &Fixture| place.now(&task).progress.phase == Phase::Blocked;
        place.until("it asks", blocked).await;
        let asked = place.supervisor.asks();
        assert_eq!(asked[0].ask.what, "bash echo asked");
        place.supervisor.answer(task.id.as_str(), answer, Answerer::default()).await.unwrap();
        let task = place.ended(&task).await;
        assert_eq!(task.status(), status, "{task:?}");
        if status == Status::Error {
            let error = task.state.error().unwrap();
            assert!(error.starts_with("stopped because permission was refused: bash: "), "{error}");
        }
    }
    assert_eq!(place.notices(&parent, 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_is_compacted_in_mid_run_ends_with_its_real_answer() {
    let place = Fixture::build(Setup { context: Some(20_000), ..Setup::default() }).await;
    let parent = place.parent().await;
    let prompt = format!("@{} | usage 30000 10\n@say after all", bash("echo big"));
    let task = place.ended(&place.launch(&parent, &prompt).await).await;
    assert_eq!(task.status(), Status::Completed, "{task:?}");
    let messages = place.talk.messages(task.id.as_str()).await;
    assert!(messages.iter().any(|message| message["info"]["summary"] == true), "{messages:?}");
    let last = messages.iter().rfind(|message| message["info"]["summary"] != true).unwrap();
    let parts = last["parts"].as_array().unwrap();
    let text = parts.iter().find_map(|part| part["text"].as_str());
    assert_eq!(task.state.result(), text);
    assert_eq!(place.notices(&parent, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_and_restarted_in_mid_run_is_continued_once() {
    let mut place =
        Fixture::build(Setup { password: Some("sesame".into()), ..Setup::default() }).await;
    let parent = place.parent().await;
    let task = place.launch(&parent, "@hang\n@say never").await;
    place.until_asked(&task, 1).await;
    place.server.kill();
    place.server.start_again().await;
    let ended = place.ended(&task).await;
    assert_eq!(ended.status(), Status::Completed, "{ended:?}");
    let asked = place.model.asked_by(task.id.as_str());
    let last = asked.last().unwrap().body["messages"].to_string();
    assert!(last.contains("Your work was interrupted by a restart"), "{last}");
    assert_eq!(place.notices(&parent, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_in_mid_run_goes_on_and_a_deleted_parent_cancels() {
    let mut place = Fixture::start().await;
    let parent = place.parent().await;
    let task = place.launch(&parent, &format!("@{}\n@say done", bash("sleep 4; echo x"))).await;
    place.until_asked(&task, 1).await;
    place.restart();
    assert_eq!(end(&place.ended(&task).await), (Status::Completed, "done", ""));
    assert_eq!(place.notices(&parent, 1).await.len(), 1);
    assert_eq!(place.model.asked_by(task.id.as_str()).len(), 2, "it was prompted once");

    let task = place.launch(&parent, "@hang").await;
    place.until_asked(&task, 1).await;
    place.talk.delete(&format!("/session/{parent}")).await;
    let ended = place.ended(&task).await;
    assert_eq!(ended.status(), Status::Cancelled, "{ended:?}");
    let error = ended.state.error().unwrap();
    assert!(["Parent session deleted", "Session deleted"].contains(&error), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forked_child_begins_with_its_parents_conversation_after_the_last_compaction() {
    let mut place = Fixture::start().await;
    let parent = place.parent().await;
    let idle = async |place: &Fixture| place.talk.get("/session/status").await == json!({});
    let calls = |from: usize, to: usize| -> String {
        (from..to).map(|n| format!("@{}\n", bash(&format!("echo result-{n}-")))).collect()
    };
    place.talk.prompt(&parent, &format!("old news\n{}@say old answer", calls(0, 2))).await;
    let said = async |place: &Fixture, text: &str| {
        let messages = place.talk.messages(&parent).await;
        messages.iter().any(|message| message["parts"][1]["text"] == text)
    };
    place.until("it has answered", async |place: &Fixture| said(place, "old answer").await).await;
    let model = json!({"providerID": "scripted", "modelID": "first"});
    place.talk.post(&format!("/session/{parent}/summarize"), &model).await;
    place
        .until("it is compacted", async |place: &Fixture| {
            let messages = place.talk.messages(&parent).await;
            messages.iter().any(|message| {
                message["info"]["summary"] == true && message["info"]["finish"] == "stop"
            })
        })
        .await;
    place.until("it is idle", idle).await;
    place.talk.prompt(&parent, &format!("new news\n{}@say new answer", calls(10, 32))).await;
    place.until("it has answered", async |place: &Fixture| said(place, "new answer").await).await;
    place.until("it is idle", idle).await;

    // Launch both before the first one ends: its notice would become part of the second one's
    // context.
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let order = general("go on\n@wait 4000 | say done");
        let launch = Launch { wanted: order.into(), fork: Fork::Caller, key: None };
        let directory = place.server.project().display().to_string();
        let caller = asyncagents::supervisor::Caller { directory, ..caller(&parent) };
        tasks.push(place.supervisor.launch(caller, launch).await.unwrap());
    }
    let mut given = Vec::new();
    for task in tasks {
        assert!(task.origin.is_forked);
        let title = place.talk.get(&format!("/session/{}", task.id)).await["title"].clone();
        assert_eq!(title, "Background (forked): look around");
        assert_eq!(end(&place.ended(&task).await), (Status::Completed, "done", ""));
        let asked = place.model.asked_by(task.id.as_str());
        assert_eq!(asked.len(), 1, "what it inherits is not answered");
        given.push(asked[0].texts("user"));
    }
    assert_eq!(given[0], given[1], "siblings inherit the same, byte for byte");
    let inherited = given[0].join("\n");
    for kept in ["new news", "new answer", "[Tool: bash ", "result-31-", "result-10-"] {
        assert!(inherited.contains(kept), "{kept} is missing:\n{inherited}");
    }
    for gone in ["old news", "old answer", "result-0-"] {
        assert!(!inherited.contains(gone), "{gone} is from before the compaction:\n{inherited}");
    }
    let context = inherited.find("new news").unwrap();
    assert!(inherited.rfind("go on").unwrap() > context, "the prompt comes last");

    place.settings.fork_method = asyncagents::supervisor::ForkMethod::Native;
    place.restart();
    let launch =
        Launch { wanted: general("and natively\n@say so").into(), fork: Fork::Caller, key: None };
    let directory = place.server.project().display().to_string();
    let caller = asyncagents::supervisor::Caller { directory, ..caller(&parent) };
    let task = place.supervisor.launch(caller, launch).await.unwrap();
    assert_eq!(end(&place.ended(&task).await), (Status::Completed, "so", ""));
    let asked = place.model.asked_by(task.id.as_str());
    let tools = asked.last().unwrap().body["tools"].to_string();
    assert!(!tools.contains("\"name\":\"task\""), "its rules hold for a copy, too: {tools}");
    assert!(asked.last().unwrap().body["messages"].to_string().contains("new answer"));
}
