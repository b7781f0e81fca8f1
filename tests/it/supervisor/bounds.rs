//! Everything that others control is bounded where it is shown and where it is stored (T19); what a
//! person or a policy refuses stays refused (T15).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::supervisor::{Asks, Settings};
use asyncagents::task::{Phase, State, Timestamp};
use asyncagents::wire::{GroupView, PageView, TaskView};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::process::{Shell, until};
use crate::support::web::Site;
use crate::support::{ModelServer, World, settings};

struct Fixture {
    shell: Shell,
    server: ModelServer,
    project: PathBuf,
}

impl Fixture {
    async fn build(settings: &str) -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
        shell.set("OPENAI_BASE_URL", server.base_url());
        let config = shell.path("config.toml");
        fs::write(&config, settings).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", config);
        let project = shell.path("project");
        fs::create_dir(&project).unwrap();
        for name in ["outside", "outside-too", "third"] {
            fs::write(shell.path(name), "not yours\n").unwrap();
        }
        Fixture { shell, server, project }
    }

    fn launch(&self, prompt: &str) -> String {
        let run = self.shell.run_in(&self.project, ["run", prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.trim().to_owned()
    }

    fn end(&self, id: &str) -> (String, String, String) {
        let waited = self.shell.run(["wait", "--timeout", "60", id]);
        assert_ne!(waited.code, 124, "{waited:?}");
        let task = self.task(id);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("result"), text("error"))
    }

    fn task(&self, id: &str) -> Value {
        self.shell.json(["output", id, "--json"])
    }

    fn asks(&self, number: usize) {
        until("it asks", || {
            let open = self.shell.say(["approve"]);
            open.matches("outside").count() + open.matches("third").count() >= number
        });
    }
}

const THREE_ASK: &str = "@call read {\"path\": \"../outside\"} | call read {\"path\": \"../outside-too\"} \
    | call read {\"path\": \"../third\"}\n@say the agent went on";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusing_one_of_several_calls_ends_the_run_as_refused() {
    let place = Fixture::build("").await;
    block_in_place(|| {
        let id = place.launch(THREE_ASK);
        place.asks(3);
        let asked = place.shell.say(["approve"]);
        let first = asked.split_whitespace().find(|word| word.starts_with("per_")).unwrap();
        assert_eq!(place.shell.run(["deny", first]).code, 0);
        let (status, result, error) = place.end(&id);
        assert_eq!((status.as_str(), result.as_str()), ("error", ""));
        assert!(error.starts_with("stopped because permission was refused: read "), "{error}");
    });
    assert_eq!(place.server.asked().len(), 1, "the model was not asked to go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_denies_ends_a_run_with_several_requests_too() {
    let place = Fixture::build("[permissions]\npolicy = \"deny\"\n").await;
    block_in_place(|| {
        let id = place.launch(THREE_ASK);
        let (status, _, error) = place.end(&id);
        assert_eq!(status, "error");
        assert!(error.starts_with("stopped because permission was refused: read "), "{error}");
    });
    assert_eq!(place.server.asked().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ambiguous_approval_answers_no_request() {
    let place = Fixture::build("").await;
    block_in_place(|| {
        let prompt = "@call read {\"path\": \"../outside\"}\n@say found";
        let ids = [place.launch(prompt), place.launch(prompt)];
        place.asks(2);
        let refused = place.shell.run(["approve", "ses_"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        // The phase is written after the request is listed, so poll for it. A task whose request
        // had been answered would run to its end instead.
        until("both are still blocked", || {
            ids.iter().all(|id| place.task(id)["progress"]["phase"] == "blocked")
        });
        let full = place.task(&ids[0])["sessionID"].as_str().unwrap().to_owned();
        assert_eq!(place.shell.run(["approve", &full[..full.len() - 1]]).code, 0);
        assert_eq!(place.end(&ids[0]).0, "completed");
        assert_eq!(place.task(&ids[1])["progress"]["phase"], "blocked");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_request_has_the_same_id_after_a_restart() {
    let place = Fixture::build("").await;
    block_in_place(|| {
        let id = place.launch("@call read {\"path\": \"../outside\"}\n@say found");
        let name = || {
            let asked = place.shell.say(["approve"]);
            asked.split_whitespace().find(|word| word.starts_with("per_")).map(str::to_owned)
        };
        until("it asks", || name().is_some());
        let before = name();
        place.shell.kill_daemon();
        // The model's address came with the launch and is not stored; a caller that waits passes it
        // again.
        place.shell.run(["wait", "--timeout", "1", &id]);
        until("it asks again", || name().is_some());
        assert_eq!(name(), before);
        assert_eq!(place.shell.run(["approve", &id]).code, 0);
        let found = ("completed".to_owned(), "found".to_owned(), String::new());
        assert_eq!(place.end(&id), found);
    });
}

#[tokio::test]
async fn the_time_a_request_is_parked_goes_on_across_restarts() {
    let clock = Clock::manual(Timestamp::from_millis(1_790_000_000_000));
    let park = Asks::Park(Some(Duration::from_secs(100)));
    let settings = Settings { asks: park, ..settings() };
    let mut world = World::at(settings, clock.clone()).await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@ask bash ls\n@say found").await;
    world.until("it asks", || !world.supervisor.asks().is_empty()).await;
    let since = world.supervisor.asks()[0].since;
    clock.advance(Duration::from_secs(60));
    // The time of the request is not committed by itself; it is written with the next commit.
    let other = world.launch(&parent, "@say done").await;
    world.ended(&other).await;
    world.restart().await;
    world.until("it asks", || !world.supervisor.asks().is_empty()).await;
    assert_eq!(world.supervisor.asks()[0].since, since);
    clock.advance(Duration::from_secs(41));
    world.supervisor.sweep();
    world.until("it is answered", || world.supervisor.asks().is_empty()).await;
    // A refusal counts only after it has been observed for a while.
    clock.advance(Duration::from_secs(1));
    let error = "stopped because permission was refused: bash: refused".to_owned();
    assert_eq!(world.ended(&task).await.state, State::Failed { error, result: None });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_stored_in_mid_run_is_seen_before_the_next_step() {
    let place = Fixture::build("").await;
    block_in_place(|| {
        let wait = "while [ ! -e go ]; do sleep 0.01; done";
        let prompt = format!("@call bash {}\n@say it was told", json!({"command": wait}));
        let parent = place.launch(&prompt);
        until("the command runs", || place.task(&parent)["progress"]["phase"] == "tool");
        // Written to the database directly, so that no wake-up reaches the run: only its next step
        // can find the message.
        let session = place.task(&parent)["sessionID"].as_str().unwrap().to_owned();
        let db = rusqlite::Connection::open(place.shell.database()).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        let body = json!({
            "info": {"id": "msg_said", "sessionID": session, "role": "user", "time": {"created": 1}},
            "parts": [{"type": "text", "id": "", "text": "by the way"}],
        });
        let say = "INSERT INTO message (session, id, body) VALUES (?1, 'msg_said', ?2)";
        db.execute(say, (&session, body.to_string())).unwrap();
        drop(db);
        fs::write(place.project.join("go"), "").unwrap();
        assert_eq!(place.end(&parent).0, "completed");
    });
    let last = place.server.asked().pop().unwrap();
    assert!(last.texts("user").iter().any(|text| text.contains("by the way")), "{:?}", last.body);
}

#[test]
fn long_results_are_cut_in_lists_and_events_and_whole_by_themselves() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let mut events = site.events("");
    let text = "ä".repeat(8_001);
    let task = shell.launch_to_the_end(&format!("@say {text}"));
    let cut = "ä".repeat(8_000);
    let is_cut =
        |task: &TaskView| (task.result.as_deref(), task.result_truncated) == (Some(&cut), true);
    assert!(is_cut(&task), "as `list` shows it");
    let page: PageView = site.read("/v1/tasks");
    assert!(is_cut(&page.tasks[0]));
    let whole: TaskView = site.read(&format!("/v1/tasks/{}", task.session_id));
    assert_eq!((whole.result.as_deref(), whole.result_truncated), (Some(text.as_str()), false));
    assert_eq!(shell.json(["output", &task.session_id, "--json"])["result"], text);
    assert!(is_cut(&events.until("task.completed").task()));
    // A result of exactly the limit is not truncated anywhere.
    let short = shell.launch_to_the_end(&format!("@say {cut}"));
    assert_eq!((short.result.as_deref(), short.result_truncated), (Some(cut.as_str()), false));
}

/// The result in a view, and whether it is truncated.
fn shown(task: &TaskView) -> (&str, bool) {
    (task.result.as_deref().unwrap_or_default(), task.result_truncated)
}

#[test]
fn a_result_in_lists_and_events_is_cut_to_the_configured_length() {
    let mut shell = Shell::with_host_process();
    let config = shell.path("config.toml");
    fs::write(&config, "[api]\nresult_characters = 5\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &config);
    let site = Site::start(&shell);
    let mut events = site.events("");
    let task = shell.launch_to_the_end("@say ä long answer");
    let id = task.session_id.as_str();
    let listed = |shell: &Shell, site: &Site| {
        let page: PageView = site.read("/v1/tasks");
        let [task] = &page.tasks[..] else { panic!("{page:?}") };
        let snapshot = site.events("").until("snapshot").data["tasks"][0].clone();
        assert_eq!(serde_json::to_value(task).unwrap(), snapshot);
        let group: GroupView = site.read(&format!("/v1/task-groups/{}", task.batch_id));
        assert_eq!(group.tasks.as_slice(), std::slice::from_ref(task));
        assert_eq!(shell.tasks(), page.tasks, "`list --json`");
        let (text, cut) = shown(task);
        assert_eq!(shown(&site.task(id)), ("ä long answer", false), "the task by itself");
        (text.to_owned(), cut)
    };
    assert_eq!(listed(&shell, &site), ("ä lon".to_owned(), true));
    assert_eq!(shown(&events.until("task.completed").task()), ("ä lon", true));
    // The truncated copy stored with the end has the old length; it must not be shown under a new
    // limit.
    for (configured, expected) in [(7, ("ä long ", true)), (13, ("ä long answer", false))] {
        fs::write(&config, format!("[api]\nresult_characters = {configured}\n")).unwrap();
        shell.say(["daemon", "restart"]);
        let (text, cut) = listed(&shell, &Site::of(&shell));
        assert_eq!((text.as_str(), cut), expected);
    }
    // While a resumed task runs, its previous result is read from its rows and not from the stored
    // view.
    fs::write(&config, "[api]\nresult_characters = 3\n").unwrap();
    shell.say(["daemon", "restart"]);
    shell.say(["resume", id, "@hang"]);
    until("it is at work", || shell.task(id).progress.phase == Phase::Waiting);
    assert_eq!(listed(&shell, &Site::of(&shell)), ("ä l".to_owned(), true));
}

#[test]
fn the_last_message_is_cut_to_the_configured_length_and_the_result_is_not() {
    let mut shell = Shell::new();
    let config = shell.path("config.toml");
    fs::write(&config, "[supervisor]\nlast_message_characters = 6\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &config);
    let mut events = Site::start(&shell).events("");
    let task = shell.launch_to_the_end("@say a löng answer");
    assert_eq!(task.progress.last_message.as_deref(), Some("…nswer"));
    assert_eq!(events.until("task.completed").task(), task);
    assert_eq!(shown(&task), ("a löng answer", false));
}

#[test]
fn clients_of_the_port_leave_descriptors_for_the_socket() {
    let mut shell = Shell::new();
    let program = env!("CARGO_BIN_EXE_asyncagents");
    let limited = shell.path("limited");
    fs::write(&limited, format!("ulimit -Sn 64\nulimit -Hn 200\nexec {program} serve\n")).unwrap();
    shell.set("PATH", "/usr/bin:/bin");
    let serve = shell.command(["serve"]);
    let mut daemon = std::process::Command::new("bash");
    daemon.arg(&limited).env_clear();
    daemon.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    daemon.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut daemon = daemon.spawn().unwrap();
    until("the daemon answers", || shell.health().is_some());
    let site = Site::of(&shell);
    // The maximum number of streams: half of the limit is reserved, and a quarter of the rest.
    let streams: Vec<_> = (0..75).map(|_| site.events("")).collect();
    assert_eq!(site.get("/v1/events").status, 503);
    let mut more: Vec<_> = (0..100).map(|_| site.connect()).collect();
    let task = shell.launch_to_the_end("@say served");
    assert_eq!(task.result.as_deref(), Some("served"));
    more.clear();
    drop(streams);
    assert_eq!(shell.run(["daemon", "stop"]).code, 0);
    daemon.wait().unwrap();
}
