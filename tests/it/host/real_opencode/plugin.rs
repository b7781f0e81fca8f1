//! Our plugin in a real OpenCode, installed by our own command, where the model calls its tools.
//! The daemon is the built program, started by the plugin, and reaches the server only through the
//! plugin.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::ModelServer;
use crate::support::real_opencode::{RealOpenCode, Setup};
use crate::support::talk::Talk;

const LONG: Duration = Duration::from_secs(120);

#[derive(Clone)]
struct Fixture {
    model: Arc<ModelServer>,
    server: Arc<RealOpenCode>,
    talk: Talk,
}

impl Fixture {
    async fn build(setup: Setup) -> Fixture {
        let model = ModelServer::start().await;
        let server = RealOpenCode::with(&model, Setup { plugin: true, ..setup }).await;
        let talk = server.talk();
        Fixture { model: Arc::new(model), server: Arc::new(server), talk }
    }

    /// The results of these tool calls by a session's model, in order. The session has to be idle:
    /// OpenCode can leave a prompt unanswered that arrives while the last answer to the previous
    /// one begins.
    async fn call(&self, session: &str, calls: &[(&str, Value)]) -> Vec<String> {
        self.idle(session).await;
        let before = self.answers(session).await.len();
        let calls: Vec<String> = calls.iter().map(|(tool, a)| format!("call {tool} {a}")).collect();
        self.talk.prompt(session, &format!("go\n@{}\n@say called", calls.join(" | "))).await;
        self.until("the tools have answered", async |place: &Fixture| {
            place.answers(session).await.len() == before + calls.len()
        })
        .await;
        self.answers(session).await.split_off(before)
    }

    async fn answers(&self, session: &str) -> Vec<String> {
        let mut answers = Vec::new();
        for message in self.talk.messages(session).await {
            for part in message["parts"].as_array().into_iter().flatten() {
                let state = &part["state"];
                let text = state["output"].as_str().or(state["error"].as_str());
                let ours =
                    part["tool"].as_str().is_some_and(|tool| tool.starts_with("asyncagents"));
                answers.extend(text.filter(|_| ours).map(str::to_owned));
            }
        }
        answers
    }

    async fn notices(&self, session: &str, n: usize) -> Vec<String> {
        let notices = async |place: &Fixture| -> Vec<String> {
            let messages = place.talk.messages(session).await.into_iter();
            let notices = messages.filter(|message| message["parts"][1]["synthetic"] == true);
            notices.map(|notice| notice["parts"][0]["text"].as_str().unwrap().to_owned()).collect()
        };
        self.until("it is told", async |place: &Fixture| notices(place).await.len() >= n).await;
        notices(self).await
    }

    async fn until(&self, what: &str, holds: impl AsyncFn(&Fixture) -> bool) {
        let started = Instant::now();
        while !holds(self).await {
            let log = self.server.log();
            assert!(started.elapsed() < LONG, "waited in vain until {what}\n{log}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn idle(&self, session: &str) {
        self.until("it is idle", async |place: &Fixture| {
            place.talk.get("/session/status").await.get(session).is_none()
        })
        .await;
    }
}

/// The id in the response to a launch.
fn id(answer: &str) -> String {
    let line = answer.lines().find_map(|line| line.strip_prefix("Task ID: "));
    line.unwrap_or_else(|| panic!("{answer}")).split_whitespace().next().unwrap().to_owned()
}

fn task(description: &str, prompt: &str) -> (&'static str, Value) {
    let arguments = json!({"description": description, "prompt": prompt, "agent": "general"});
    ("asyncagents_task", arguments)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_launches_three_tasks_is_notified_lists_fetches_resumes_cancels_and_clears() {
    let place = Fixture::build(Setup { password: Some("sesame".into()), ..Setup::default() }).await;
    let parent = place.talk.session(&json!({"title": "parent"})).await;
    let three = ["one", "two", "three"].map(|name| task(name, &format!("@say found {name}")));
    let launched = place.call(&parent, &three).await;
    let ids: Vec<String> = launched.iter().map(|answer| id(answer)).collect();
    let told = place.notices(&parent, 3).await;
    assert_eq!(told.len(), 3, "{told:?}");
    place.idle(&parent).await;

    let listed = place.call(&parent, &[("asyncagents_list", json!({}))]).await.remove(0);
    assert!(listed.starts_with("3 tasks: 0 running, 3 completed"), "{listed}");
    let output = json!({"task_id": ids[1], "block": true});
    let output = place.call(&parent, &[("asyncagents_output", output)]).await.remove(0);
    assert!(output.ends_with("\nfound two\n~~~"), "{output}");
    let again = json!({"resume": ids[0], "prompt": "more\n@say more of one"});
    place.call(&parent, &[("asyncagents_task", again)]).await;
    assert!(place.notices(&parent, 4).await[3].contains("Resume #1"), "{told:?}");
    place.idle(&parent).await;

    let children = place.talk.get(&format!("/session/{parent}/children")).await;
    for child in children.as_array().unwrap() {
        for asked in place.model.asked_by(child["id"].as_str().unwrap()) {
            let tools = asked.body["tools"].to_string();
            assert!(!tools.contains("asyncagents_"), "also after a resume: {tools}");
        }
    }

    let hanging = place.call(&parent, &[task("hang", "@hang")]).await;
    let cancel = json!({"task_id": id(&hanging[0])});
    let cancelled = place.call(&parent, &[("asyncagents_cancel", cancel)]).await.remove(0);
    assert!(cancelled.to_lowercase().contains("cancelled"), "{cancelled}");
    let cleared = place.call(&parent, &[("asyncagents_clear", json!({}))]).await.remove(0);
    assert!(!cleared.is_empty());
    let listed = place.call(&parent, &[("asyncagents_list", json!({}))]).await.remove(0);
    assert_eq!(listed, "No background tasks found");
    let hosts = place.server.program(&["hosts"]);
    assert!(hosts.contains("plugin in process"), "{hosts}");
    let doctor = place.server.program(&["doctor"]);
    assert!(doctor.contains("OpenCode plugin: "), "{doctor}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_directories_work_at_once_and_survive_a_killed_and_restarted_daemon() {
    let place = Fixture::build(Setup::default()).await;
    let other = place.server.project().with_file_name("other");
    std::fs::create_dir(&other).unwrap();
    let here = place.talk.session(&json!({"title": "here"})).await;
    let there = format!("/session?directory={}", other.display());
    let there = place.talk.post(&there, &json!({"title": "there"})).await;
    let there = there["id"].as_str().unwrap().to_owned();
    let slow = json!({"command": "sleep 6; pwd", "description": "where"});
    let prompt = format!("@call bash {slow}\n@say done");
    place.call(&here, &[task("here", &prompt)]).await;
    place.call(&there, &[task("there", &prompt)]).await;

    kill_daemon(&place.server);
    for session in [&here, &there] {
        let told = place.notices(session, 1).await;
        assert_eq!(told.len(), 1, "{told:?}");
    }
    let directories = async |session: &str| {
        let children = place.talk.get(&format!("/session/{session}/children")).await;
        children[0]["directory"].as_str().unwrap().to_owned()
    };
    assert_eq!(directories(&here).await, place.server.project().display().to_string());
    assert_eq!(directories(&there).await, other.display().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_are_kept_apart_and_a_reloaded_plugin_goes_on() {
    let place = Fixture::build(Setup::default()).await;
    let process = place.server.another().await;
    let other = Fixture { talk: process.talk.clone(), ..place.clone() };
    let here = place.talk.session(&json!({"title": "here"})).await;
    let there = other.talk.session(&json!({"title": "there"})).await;
    let slow = json!({"command": "sleep 2", "description": "wait"});
    let prompt = format!("@call bash {slow}\n@say done");
    place.call(&here, &[task("here", &prompt)]).await;
    other.call(&there, &[task("there", &prompt)]).await;
    assert_eq!(place.notices(&here, 1).await.len(), 1);
    assert_eq!(other.notices(&there, 1).await.len(), 1);
    let instances = || {
        let listed = serde_json::from_str::<Vec<Value>>(&place.server.program(&["list", "--json"]));
        let instances = listed.unwrap().into_iter().map(|task| task["hostInstance"].to_string());
        instances.collect::<std::collections::BTreeSet<String>>()
    };
    assert_eq!(instances().len(), 2, "each child runs where its parent does: {:?}", instances());

    // OpenCode unloads the directory, and loads it again with its plugins.
    place.idle(&here).await;
    place.talk.post("/instance/dispose", &json!({})).await;
    place.call(&here, &[task("again", "@say still here")]).await;
    assert_eq!(place.notices(&here, 2).await.len(), 2);
    assert_eq!(instances().len(), 2, "it is who it was: {:?}", instances());
    let hosts = place.server.program(&["hosts"]);
    assert_eq!(hosts.matches("plugin in process").count(), 2, "{hosts}");

    // The runs of the other process are lost with it; this one is not affected.
    other.call(&there, &[task("cut off", "@hang")]).await;
    drop(process);
    place.call(&here, &[task("later", "@say here as ever")]).await;
    assert_eq!(place.notices(&here, 3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tui_without_a_port_launches_shows_the_notice_and_has_the_result() {
    let model = ModelServer::start().await;
    let setup = Setup { plugin: true, stopped: true, ..Setup::default() };
    let server = RealOpenCode::with(&model, setup).await;
    let terminal = Terminal::start(&server.command_line("opencode"), &server.project());
    terminal.until("it is ready", |screen| screen.contains("Ask anything")).await;
    let arguments = json!({"description": "peek", "prompt": "@say blue is the answer",
        "agent": "general"});
    terminal.write(&format!("go\n@call asyncagents_task {arguments}\n@say launched"));
    terminal.until("it is told", |screen| screen.contains("Agent \"peek\" finished")).await;
    let listed = serde_json::from_str::<Value>(&server.program(&["list", "--json"])).unwrap();
    assert_eq!(listed[0]["status"], "completed", "{listed}");
    assert_eq!(listed[0]["result"], "blue is the answer");
    let parent = listed[0]["parentSessionID"].as_str().unwrap().to_owned();
    let started = Instant::now();
    let woken = || {
        let asked = model.asked_by(&parent);
        asked.iter().any(|asked| asked.body.to_string().contains("blue is the answer"))
    };
    while !woken() {
        assert!(started.elapsed() < LONG, "its model does not see the result");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let slow = json!({"command": "sleep 5", "description": "wait"});
    let prompt = format!("@call bash {slow}\n@say still here");
    let arguments = json!({"description": "later", "prompt": prompt, "agent": "general"});
    terminal.write(&format!("go\n@call asyncagents_task {arguments}\n@say launched"));
    let running = || server.program(&["list", "--json"]).contains("\"later\"");
    while !running() {
        assert!(started.elapsed() < LONG, "it is not launched");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    kill_daemon(&server);
    terminal.until("it is told", |screen| screen.contains("Agent \"later\" finished")).await;
}

/// Only the plugin can start it again.
fn kill_daemon(server: &RealOpenCode) {
    let status = server.program(&["daemon", "status", "--json"]);
    let pid = serde_json::from_str::<Value>(&status).unwrap()["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
}

/// A tmux session on a tmux server of its own.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(program: &str, directory: &std::path::Path) -> Terminal {
        let name = directory.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let terminal = Terminal { socket: format!("asyncagents{name}") };
        let directory = directory.to_str().unwrap();
        let arguments = ["-c", directory, "-x", "140", "-y", "45", program];
        terminal.tmux(&[&["new-session", "-d", "-s", "it"], &arguments[..]].concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(arguments).output();
        let output = output.expect("tests/tools/install-tmux.sh installs tmux");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Pasted, because typing `@` opens a menu.
    fn write(&self, text: &str) {
        self.tmux(&["set-buffer", text]);
        self.tmux(&["paste-buffer", "-p", "-t", "it"]);
        self.tmux(&["send-keys", "-t", "it", "Enter"]);
    }

    async fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let started = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p", "-t", "it"]);
            if holds(&screen) {
                return;
            }
            assert!(started.elapsed() < LONG, "waited in vain until {what}:\n{screen}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}
