//! Models and their credentials: where keys and addresses come from, to whom they are sent, and the errors
//! without them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::UNIX_EPOCH;

use asyncagents::task::{Phase, Progress};
use asyncagents::wire::{AccessView, HandOverView, TaskView, ToolLine};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::canary::{self, CANARY};
use crate::support::process::{CommandOutcome, RunningCommand, Shell, launch_request, until};
use crate::support::terminal::Terminal;
use crate::support::web::Site;
use crate::support::{ModelServer, OpenCode};

const MODEL: &str = "openai/scripted";

/// A user with a project, and a model server that is not configured yet.
struct Fixture {
    shell: Shell,
    server: ModelServer,
    project: PathBuf,
}

impl Fixture {
    async fn build() -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", MODEL);
        let project = shell.path("project");
        fs::create_dir(&project).unwrap();
        Fixture { shell, server, project }
    }

    fn configure(&mut self, text: &str) {
        let file = self.shell.path("config.toml");
        fs::write(&file, text).unwrap();
        self.shell.set("ASYNCAGENTS_CONFIG", file);
    }

    /// Sets the address and the key of the server in the environment of the shell.
    fn set_key(&mut self, key: &str) {
        self.shell.set("OPENAI_BASE_URL", self.server.origin());
        self.shell.set("OPENAI_API_KEY", key);
    }

    /// Runs a daemon in the foreground, which keeps the whole environment of this shell. One that a command
    /// starts does not.
    fn serve(&self) -> RunningCommand {
        let serve = self.shell.start(["serve"]);
        until("it serves", || self.shell.health().is_some());
        serve
    }

    fn unset_key(&mut self) {
        self.shell.unset("OPENAI_BASE_URL");
        self.shell.unset("OPENAI_API_KEY");
    }

    /// `auth list`: names, where keys come from, addresses and problems.
    fn listed(&self) -> Value {
        self.shell.json(["auth", "list", "--json"])
    }

    fn run(&self, prompt: &str) -> CommandOutcome {
        self.shell.run_in(&self.project, ["run", prompt])
    }

    /// Status, result and error of a task, once it has ended.
    fn end(&self, id: &str) -> (String, String, String) {
        let waited = self.shell.run(["wait", "--timeout", "60", id]);
        assert_ne!(waited.code, 124, "{waited:?}");
        let task: Value = self.shell.json(["output", id, "--json"]);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("result"), text("error"))
    }

    /// Launches a task and returns the key that the server received.
    fn key_received(&self) -> String {
        let run = self.run("@say fine");
        assert_eq!(run.code, 0, "{run:?}");
        let fine = ("completed".to_owned(), "fine".to_owned(), String::new());
        assert_eq!(self.end(run.stdout.trim()), fine);
        self.last_key()
    }

    fn last_key(&self) -> String {
        let shown = self.server.asked().pop().unwrap().authorization.unwrap();
        shown.trim_start_matches("Bearer ").to_owned()
    }

    /// The error of a refused launch, which leaves no task.
    fn refusal(&self) -> String {
        let before = self.shell.tasks().len();
        let run = self.run("@say fine");
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
        assert_eq!(self.shell.tasks().len(), before);
        run.stderr
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_the_environment_is_not_sent_to_an_address_of_the_configuration() {
    let mut place = Fixture::build().await;
    place.shell.set("OPENAI_API_KEY", "sk-of-the-environment");
    fs::write(place.shell.path("key"), "sk-of-the-file\n").unwrap();
    let origin = place.server.origin();
    let section = format!("[providers.openai]\nbase_url = '{origin}'\n");
    place.configure(&format!("{section}key_file = 'key'\n"));
    block_in_place(|| {
        assert_eq!(place.key_received(), "sk-of-the-file");
        place.configure(&section);
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        let told = place.refusal();
        assert!(told.contains("and an address from the configuration file"), "{told}");
        place.shell.unset("OPENAI_API_KEY");
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        assert_eq!(place.key_received(), "none");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_set_keeps_a_key_for_its_owner_and_the_running_daemon_uses_it_at_once() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\n"));
    let file = place.shell.home().join("auth.json");
    block_in_place(|| {
        assert_eq!(place.key_received(), "none");
        let set = |arguments: &[&str], input: &str| {
            let arguments = ["auth", "set"].iter().chain(arguments);
            let set = place.shell.run_with_input(arguments, input.as_bytes());
            assert_eq!((set.code, set.stderr.as_str()), (0, ""), "{set:?}");
            set.stdout
        };
        let told = set(&["openai"], "sk-first\n");
        let expected = format!(
            "stored the key of `openai` in {}; launches use it from now on\n",
            file.display()
        );
        assert_eq!(told, expected);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(place.key_received(), "sk-first");
        let entry =
            |key: &str| json!([{"name": "openai", "key": key, "address": format!("{origin}/v1")}]);
        assert_eq!(place.listed(), entry("file (asyncagents auth)"));
        set(&["openai"], "sk-second");
        assert_eq!(place.key_received(), "sk-second");
        set(&["openai", "--command", "echo sk-printed"], "");
        assert_eq!(place.key_received(), "sk-printed");
        assert_eq!(place.listed(), entry("command (asyncagents auth)"));
        assert_eq!(place.shell.say(["auth", "remove", "openai"]), "removed the key of `openai`\n");
        assert_eq!(place.key_received(), "none");
        let again = place.shell.run(["auth", "remove", "openai"]);
        assert_eq!(again.code, 1, "{again:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_server_refused_is_read_again_from_its_file() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\nkey_file = 'key'\n"));
    fs::write(place.shell.path("key"), "sk-old").unwrap();
    block_in_place(|| {
        assert_eq!(place.key_received(), "sk-old");
        fs::write(place.shell.path("key"), "sk-new").unwrap();
        assert_eq!(place.key_received(), "sk-old", "it is read once");
        let run = place.run("@status 401 | say expired");
        assert_eq!(place.end(run.stdout.trim()).0, "error");
        assert_eq!(place.key_received(), "sk-new");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_key_is_refused_goes_on_with_the_one_that_has_replaced_it() {
    for refusal in ["401 | say expired", "403 | say revoked", "400 | say API key not valid."] {
        let mut place = Fixture::build().await;
        let origin = place.server.origin();
        place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\nkey_file = 'key'\n"));
        fs::write(place.shell.path("key"), "sk-old").unwrap();
        block_in_place(|| {
            assert_eq!(place.key_received(), "sk-old");
            fs::write(place.shell.path("key"), "sk-new").unwrap();
            let run = place.run(&format!("@once {refusal}"));
            assert_eq!(place.end(run.stdout.trim()).0, "completed", "{refusal}");
            assert_eq!(place.last_key(), "sk-new", "{refusal}");
            // When reading the key again gives the same one, the request is not repeated.
            let before = place.server.asked().len();
            let run = place.run(&format!("@once {refusal} again"));
            assert_eq!(place.end(run.stdout.trim()).0, "error", "{refusal}");
            assert_eq!(place.server.asked().len(), before + 1, "{refusal}");
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_typed_on_a_terminal_is_not_shown() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let mut command = place.shell.command(["auth", "set", "anthropic"]);
        let mut terminal = Terminal::start(&mut command, None);
        terminal.until_shows("Key of anthropic (it is not shown): ");
        terminal.type_keys("sk-typed\n");
        let (code, shown) = terminal.wait();
        assert_eq!(code, 0, "{shown}");
        assert!(!shown.contains("sk-typed"), "{shown}");
        let kept = fs::read_to_string(place.shell.home().join("auth.json")).unwrap();
        let expected = json!({"providers": {"anthropic": {"key": "sk-typed"}}});
        assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), expected);
        let unknown = place.shell.run_with_input(["auth", "set", "nobody"], b"sk-1");
        assert_eq!(unknown.code, 1);
        assert!(
            unknown.stderr.starts_with("error: no provider `nobody`; there are anthropic, gemini,")
        );
        assert!(!unknown.stderr.contains("sk-1"), "{unknown:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_list_says_where_each_key_comes_from_and_never_the_key() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    fs::write(place.shell.path("work.key"), "sk-secret-1").unwrap();
    place.configure(&format!(
        "[providers.work]\nbase_url = '{origin}'\nkey_file = 'work.key'\n\
         [providers.shell]\nbase_url = '{origin}'\nkey_command = 'echo sk-secret-2'\n"
    ));
    place.shell.set("ANTHROPIC_API_KEY", "sk-secret-3");
    block_in_place(|| {
        let _serve = place.serve();
        place.shell.unset("ANTHROPIC_API_KEY");
        place.shell.set("OPENROUTER_API_KEY", "sk-secret-4");
        let set = place.shell.run_with_input(["auth", "set", "gemini"], b"sk-secret-5");
        assert_eq!(set.code, 0, "{set:?}");
        let file = format!("file ({})", place.shell.path("work.key").display());
        let row = |name: &str, key: &str, address: &str| json!({"name": name, "key": key, "address": address});
        let expected = json!([
            row("anthropic", "environment of the daemon", "https://api.anthropic.com/v1"),
            row("gemini", "file (asyncagents auth)", "https://generativelanguage.googleapis.com/v1beta"),
            {"name": "openai", "address": "https://api.openai.com/v1"},
            row("openrouter", "handed over by the client", "https://openrouter.ai/api/v1"),
            row("shell", "command (configuration)", &format!("{origin}/v1")),
            row("work", &file, &format!("{origin}/v1")),
        ]);
        assert_eq!(place.listed(), expected);
        let shown = place.shell.say(["auth", "list"]);
        assert!(
            shown.contains("openrouter  handed over by the client") && !shown.contains("sk-secret")
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_environment_applies_to_its_launches_whoever_started_the_daemon() {
    let mut place = Fixture::build().await;
    block_in_place(|| {
        place.set_key("sk-of-who-started-it");
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        for key in ["sk-of-one", "sk-of-another"] {
            place.set_key(key);
            assert_eq!(place.key_received(), key);
        }
        // A caller without these variables does not get those of the shell that started the daemon.
        place.unset_key();
        assert!(place.refusal().starts_with("error: the daemon has no key for `openai`: run"));
        place.shell.unset("ASYNCAGENTS_MODEL");
        let run = place.run("hello");
        assert_eq!(place.end(run.stdout.trim()).0, "completed");
        let task = place.shell.json(["output", run.stdout.trim(), "--json"]);
        assert_eq!(task["model"], "offline/explorer");
        // A daemon in the foreground keeps its environment, on purpose: its user started it with these
        // keys.
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        place.shell.set("ASYNCAGENTS_MODEL", MODEL);
        place.set_key("sk-of-who-serves");
        let _serve = place.serve();
        place.unset_key();
        assert_eq!(place.key_received(), "sk-of-who-serves");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mcp_client_hands_over_its_environment_with_its_launches() {
    let mut place = Fixture::build().await;
    block_in_place(|| {
        place.shell.unset("ASYNCAGENTS_MODEL");
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        place.shell.set("ASYNCAGENTS_MODEL", MODEL);
        place.set_key("sk-of-the-client");
        let mut command = place.shell.command(["mcp"]);
        command.current_dir(&place.project).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().unwrap();
        let mut input = client.stdin.take().unwrap();
        let mut answers = BufReader::new(client.stdout.take().unwrap()).lines();
        let info = json!({"name": "test", "version": "1"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        let launch = json!({"description": "d", "prompt": "@say fine", "agent": "general"});
        let call = json!({"name": "asyncagents_task", "arguments": launch});
        let mut ask = |request: Value, answered: bool| {
            writeln!(input, "{request}").unwrap();
            answered.then(|| answers.next().unwrap().unwrap())
        };
        ask(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}), true);
        ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), false);
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call});
        let told = ask(call, true).unwrap();
        assert!(told.contains("Background task launched"), "{told}");
        drop(input);
        client.wait().unwrap();
        let task = place.shell.tasks().remove(0);
        assert_eq!(place.end(&task.session_id).1, "fine");
        assert_eq!(place.last_key(), "sk-of-the-client");
    });
}

/// As the OpenCode plugin does it: the program reads the environment of OpenCode's process, and the plugin sends what
/// it printed with each call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plugin_is_told_what_to_hand_over_with_its_launches_and_nobody_else_is() {
    let mut place = Fixture::build().await;
    let started = block_in_place(|| {
        place.shell.unset("ASYNCAGENTS_MODEL");
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        place.shell.set("ASYNCAGENTS_MODEL", MODEL);
        place.shell.set("ASYNCAGENTS_OPENCODE_URL", "http://127.0.0.1:1");
        place.set_key("sk-of-opencode");
        assert_eq!(place.shell.json(["daemon", "start", "--json"])["handOver"], Value::Null);
        place.shell.json(["daemon", "start", "--json", "--hand-over"])
    });
    let openai = json!({"key": "sk-of-opencode", "baseUrl": place.server.origin()});
    let providers = json!({"openai": openai, "openai-responses": openai});
    let expected = json!({"model": MODEL, "providers": providers});
    assert_eq!(started["handOver"], expected);
    let caller = json!({
        "sessionID": "ses_parent", "directory": place.project, "handOver": started["handOver"],
    });
    let arguments = json!({"description": "d", "prompt": "@say fine", "agent": "general"});
    let request = json!({"caller": caller, "arguments": arguments, "key": "k"});
    let request = serde_json::from_value(request).unwrap();
    let client = place.shell.client();
    let answer = client.call_tool("asyncagents_task", &request).await.unwrap().next().await;
    assert!(matches!(answer, Ok(ToolLine::Answer(ref answer)) if !answer.is_error), "{answer:?}");
    block_in_place(|| {
        let task = place.shell.tasks().remove(0);
        assert_eq!(place.end(&task.session_id).1, "fine");
        assert_eq!(place.last_key(), "sk-of-opencode");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_has_the_key_of_its_launch_until_the_daemon_ends_and_then_the_callers() {
    let mut place = Fixture::build().await;
    block_in_place(|| {
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        place.set_key("sk-of-the-launch");
        let id = place.run("@say one").stdout.trim().to_owned();
        assert_eq!(place.end(&id).1, "one");
        place.unset_key();
        let resume = || place.shell.run(["resume", &id, "@say two"]);
        assert_eq!(resume().code, 0);
        assert_eq!(
            (place.end(&id).1.as_str(), place.last_key().as_str()),
            ("two", "sk-of-the-launch")
        );
        assert_eq!(place.shell.run(["daemon", "restart"]).code, 0);
        let refused = resume();
        assert_eq!(refused.code, 1, "{refused:?}");
        assert_eq!(refused.stderr, format!("error: {CREDENTIALS_LOST}\n"));
    });
    place.set_key("sk-of-the-resume");
    block_in_place(|| {
        let resumed = place.shell.run(["resume", &place.shell.tasks()[0].session_id, "@say three"]);
        assert_eq!(resumed.code, 0, "{resumed:?}");
        let id = resumed.stdout.trim();
        assert_eq!(
            (place.end(id).1.as_str(), place.last_key().as_str()),
            ("three", "sk-of-the-resume")
        );
    });
}

/// The server is busy at the first request and answers the second. During the pause of 30 s between them the
/// daemon is killed, so that the run has to be continued.
const SECOND_TIME: &str = "@once 503 retry-after=30 | say fine";

const CREDENTIALS_LOST: &str = "the credentials of `openai` came with the call and are lost, as when the daemon is restarted; call \
     again from where it was launched, with `openai` in the environment, or run `asyncagents auth set openai`";

impl Fixture {
    /// Launches with a key in the environment and kills the daemon, which had the key in memory only. The shell
    /// has no key afterwards.
    fn lose_credentials(&mut self) -> String {
        // Another prompt each time: the server refuses each `@once` line only once.
        let pause = (30 + self.server.asked().len()).to_string();
        self.lose_credentials_of(&SECOND_TIME.replace("30", &pause))
    }

    fn lose_credentials_of(&mut self, prompt: &str) -> String {
        self.set_key("sk-of-the-launch");
        let before = self.server.asked().len();
        let run = self.run(prompt);
        assert_eq!(run.code, 0, "{run:?}");
        until("the model is asked", || self.server.asked().len() > before);
        self.shell.kill_daemon();
        self.unset_key();
        run.stdout.trim().to_owned()
    }

    fn until_it_waits_for_credentials(&self, id: &str) {
        until("it waits for its credentials", || {
            let named =
                |task: &TaskView| [&task.short_id, &task.session_id].contains(&&id.to_owned());
            let task = self.shell.tasks().into_iter().find(named).unwrap();
            let Progress { phase, detail, .. } = task.progress;
            phase == Phase::Queued && detail.as_deref() == Some(CREDENTIALS_LOST)
        });
    }

    fn check_completes(&self, id: &str) {
        assert_eq!(self.end(id), ("completed".to_owned(), "fine".to_owned(), String::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lost_the_credentials_of_its_call_waits_for_them_and_never_uses_those_of_others()
{
    let mut place = Fixture::build().await;
    let others = ModelServer::start().await;
    let section = format!("base_url = '{}'\nkey_file = 'key'\n", others.origin());
    fs::write(place.shell.path("key"), "sk-of-others").unwrap();
    place.configure(&format!("[limits]\nactive_per_parent = 1\n[providers.openai]\n{section}"));
    block_in_place(|| {
        let id = place.lose_credentials();
        place.until_it_waits_for_credentials(&id);
        // Its slot is free: a task of the same parent runs meanwhile, with the configured key.
        let run = place.run("@say fine");
        place.check_completes(run.stdout.trim());
        assert_eq!(others.asked().len(), 1);
        place.until_it_waits_for_credentials(&id);
        let refused = place.shell.run(["resume", &id, "@say two"]);
        assert_eq!(refused.code, 1, "it is live: {refused:?}");
        // The next daemon waits for them as well.
        assert_eq!(place.shell.run(["daemon", "restart"]).code, 0);
        place.until_it_waits_for_credentials(&id);
        // The client that launched it comes back.
        place.set_key("sk-of-the-launch");
        place.check_completes(&id);
        assert_eq!(place.last_key(), "sk-of-the-launch");
        assert_eq!(others.asked().len(), 1, "{:?}", others.asked());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lost_its_credentials_goes_on_after_auth_set_and_can_be_cancelled() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\n"));
    block_in_place(|| {
        // A key stored before the launch is not used for it: the launch came with another one.
        let set = place.shell.run_with_input(["auth", "set", "openai"], b"sk-kept-before");
        assert_eq!(set.code, 0, "{set:?}");
        let other = place.lose_credentials();
        place.until_it_waits_for_credentials(&other);
        assert_eq!(place.shell.run(["cancel", &other]).code, 0);
        assert_eq!(place.end(&other).0, "cancelled");
        let id = place.lose_credentials();
        place.until_it_waits_for_credentials(&id);
        let set = place.shell.run_with_input(["auth", "set", "openai"], b"sk-kept-since");
        assert_eq!(set.code, 0, "{set:?}");
        place.check_completes(&id);
        assert_eq!(place.last_key(), "sk-kept-since");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_set_or_removed_in_mid_run_applies_from_the_next_request_on() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\n"));
    block_in_place(|| {
        let set = |key: &str| {
            let set = place.shell.run_with_input(["auth", "set", "openai"], key.as_bytes());
            assert_eq!(set.code, 0, "{set:?}");
        };
        // The agent waits between its requests until the test has changed the key.
        let wait = |file: &str| {
            let line = format!("while [ ! -e {file} ]; do sleep 0.01; done");
            format!("@call bash {}\n", json!({"command": line}))
        };
        set("sk-first");
        let run = place.run(&format!("{}{}@say fine", wait("one"), wait("two")));
        let asked = |times: usize| {
            until("the model is asked", || place.server.asked().len() == times);
        };
        asked(1);
        set("sk-second");
        fs::write(place.project.join("one"), "").unwrap();
        asked(2);
        let removed = place.shell.run(["auth", "remove", "openai"]);
        assert_eq!(removed.code, 0, "{removed:?}");
        fs::write(place.project.join("two"), "").unwrap();
        let fine = ("completed".to_owned(), "fine".to_owned(), String::new());
        assert_eq!(place.end(run.stdout.trim()), fine);
        let shown = place.server.asked().into_iter().map(|asked| asked.authorization.unwrap());
        let expected = ["Bearer sk-first", "Bearer sk-second", "Bearer none"];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_went_on_with_a_stored_key_waits_again_when_it_is_removed() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\n"));
    block_in_place(|| {
        let wait = json!({"command": "while [ ! -e one ]; do sleep 0.01; done"});
        let prompt = format!("@once 503 retry-after=30 | call bash {wait}\n@say fine");
        let id = place.lose_credentials_of(&prompt);
        place.until_it_waits_for_credentials(&id);
        let set = |key: &str| {
            let set = place.shell.run_with_input(["auth", "set", "openai"], key.as_bytes());
            assert_eq!(set.code, 0, "{set:?}");
        };
        set("sk-second");
        until("the model is asked", || place.server.asked().len() == 2);
        assert_eq!(place.shell.run(["auth", "remove", "openai"]).code, 0);
        fs::write(place.project.join("one"), "").unwrap();
        place.until_it_waits_for_credentials(&id);
        set("sk-third");
        place.check_completes(&id);
        let shown = place.server.asked().into_iter().map(|asked| asked.authorization.unwrap());
        let expected = ["Bearer sk-of-the-launch", "Bearer sk-second", "Bearer sk-third"];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_with_its_key_while_the_stored_keys_cannot_be_read() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    place.configure(&format!("[providers.openai]\nbase_url = '{origin}'\n"));
    block_in_place(|| {
        let set = place.shell.run_with_input(["auth", "set", "openai"], b"sk-first");
        assert_eq!(set.code, 0, "{set:?}");
        let wait = json!({"command": "while [ ! -e one ]; do sleep 0.01; done"});
        let run = place.run(&format!("@call bash {wait}\n@say fine"));
        until("the model is asked", || place.server.asked().len() == 1);
        let keys = place.shell.home().join("auth.json");
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(place.project.join("one"), "").unwrap();
        place.check_completes(run.stdout.trim());
        let shown = place.server.asked().into_iter().map(|asked| asked.authorization.unwrap());
        assert_eq!(shown.collect::<Vec<_>>(), ["Bearer sk-first", "Bearer sk-first"]);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_directories_of_a_run_that_waits_for_its_credentials_stay_however_old_they_are() {
    let mut place = Fixture::build().await;
    block_in_place(|| {
        place.set_key("sk-of-the-launch");
        let [pruned, ended] = ["@say fine", "@say fine"].map(|prompt| {
            let run = place.run(prompt);
            place.check_completes(run.stdout.trim());
            run.stdout.trim().to_owned()
        });
        let waiting = place.lose_credentials();
        place.until_it_waits_for_credentials(&waiting);
        let tasks = place.shell.tasks();
        let folder = |id: &str| {
            let task = tasks.iter().find(|task| task.short_id == id).unwrap();
            place.shell.home().join("scratch").join(&task.session_id)
        };
        let left_by_a_crash = place.shell.home().join("scratch/stale-ses_1");
        let [waiting, ended, pruned] = [waiting, ended, pruned].map(|id| folder(&id));
        for folder in [&waiting, &ended, &pruned, &left_by_a_crash] {
            fs::create_dir_all(folder.join("tmp")).unwrap();
            fs::File::open(folder).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        // Pruning tasks starts the cleanup of old directories.
        assert_eq!(place.shell.say(["prune", "--keep", "1"]), "Removed 1 task.\n");
        until("the others are gone", || {
            [&ended, &pruned, &left_by_a_crash].iter().all(|folder| !folder.exists())
        });
        assert!(waiting.join("tmp").exists());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_repeated_with_the_same_idempotency_key_restores_lost_credentials() {
    let place = Fixture::build().await;
    let access = AccessView { key: "sk-of-the-launch".into(), base_url: place.server.origin() };
    let hand_over = HandOverView {
        model: MODEL.into(),
        providers: [("openai".to_owned(), access)].into(),
        ..HandOverView::default()
    };
    let mut request = launch_request(SECOND_TIME);
    request.caller.hand_over = hand_over;
    request.caller.directory = place.project.display().to_string();
    request.key = Some("the-same".into());
    block_in_place(|| assert_eq!(place.shell.run(["daemon", "start"]).code, 0));
    let task = place.shell.client().launch(&request).await.unwrap();
    block_in_place(|| {
        until("the model is asked", || !place.server.asked().is_empty());
        place.shell.kill_daemon();
        place.until_it_waits_for_credentials(&task.session_id);
    });
    let again = place.shell.client().launch(&request).await.unwrap();
    assert_eq!(again.session_id, task.session_id);
    block_in_place(|| place.check_completes(&task.session_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_a_key_is_refused_at_launch_because_the_daemon_has_none() {
    let place = Fixture::build().await;
    block_in_place(|| {
        let told = "error: the daemon has no key for `openai`: run `asyncagents auth set openai`, or set \
                    `OPENAI_API_KEY` where you launch, or `OPENAI_BASE_URL` to a server that needs none\n";
        assert_eq!(place.refusal(), told);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opencode_server_of_the_callers_environment_is_used_for_its_launches_alone() {
    let mut place = Fixture::build().await;
    let (one, other) = (OpenCode::start().await, OpenCode::start_with_password("swordfish").await);
    place.shell.unset("ASYNCAGENTS_MODEL");
    block_in_place(|| {
        assert_eq!(place.shell.run(["daemon", "start"]).code, 0);
        let run = ["run", "--host", "opencode", "--agent", "general", "@say fine"];
        let refused = place.shell.run_in(&place.project, run);
        assert_eq!(refused.code, 1, "{refused:?}");
        let told =
            "the daemon knows no OpenCode server; set ASYNCAGENTS_OPENCODE_URL where you launch";
        assert!(refused.stderr.contains(told), "{refused:?}");
        for (server, password) in [(&one, None), (&other, Some("swordfish"))] {
            place.shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
            place.shell.unset("OPENCODE_SERVER_PASSWORD");
            if let Some(password) = password {
                place.shell.set("OPENCODE_SERVER_PASSWORD", password);
            }
            let run = place.run("@say fine");
            assert_eq!(run.code, 0, "{run:?}");
            assert_eq!(place.end(run.stdout.trim()).1, "fine");
            assert_eq!(server.sessions().len(), 1);
        }
        place.shell.unset("ASYNCAGENTS_OPENCODE_URL");
        // Callers that name no server do not get another caller's.
        assert_eq!(place.shell.run_in(&place.project, run).code, 1);
        assert!(!place.shell.say(["hosts"]).contains("swordfish"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_commands_nor_the_daemon_inherit_tokens_of_the_session_that_started_it() {
    let mut place = Fixture::build().await;
    place.configure("[agent]\nenvironment = ['CORP_*']\n");
    place.set_key("sk-of-the-starter");
    for (name, value) in [
        ("CLAUDE_CODE_SESSION_ID", "token-1"),
        ("CLAUDE_CODE_MESSAGING_TOKEN", "token-2"),
        ("GITHUB_TOKEN", "token-3"),
        ("CORP_ROOT", "/corp"),
        ("LANG", "C.UTF-8"),
        // Set here as the sandbox sets it, so that the list is the same without one.
        ("TMPDIR", "/tmp"),
    ] {
        place.shell.set(name, value);
    }
    block_in_place(|| {
        let call = json!({"command": "env|cut -d= -f1|sort|xargs"});
        let run = place.run(&format!("@call bash {call}\n@say done"));
        assert_eq!(place.end(run.stdout.trim()).1, "done", "{run:?}");
        let names = place.server.asked().pop().unwrap().texts("tool").remove(0);
        let expected = "ASYNCAGENTS_GUARD CORP_ROOT GIT_PAGER GIT_TERMINAL_PROMPT HOME LANG PAGER \
                        PATH PWD SHLVL TERM TMPDIR _\n(exit code 0)";
        assert_eq!(names, expected);
        let environment = format!("/proc/{}/environ", place.shell.pid());
        let environment = String::from_utf8(fs::read(environment).unwrap()).unwrap();
        assert!(!environment.contains("sk-of-the-starter"), "it is the client's");
        assert!(!environment.contains("token-"), "{environment}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_checks_model_key_and_address_as_the_daemon_has_them() {
    let mut place = Fixture::build().await;
    let base_url = place.server.base_url();
    place.configure(&format!(
        "[providers.work]\nbase_url = '{base_url}'\nkey_command = 'echo sk-work'\n\
         [providers.broken]\nbase_url = '{base_url}'\nkey_file = 'nowhere'\n"
    ));
    let broken = format!(
        "✗ provider broken: the key file `{}` cannot be read: No such file or directory (os error 2); \
         see `providers.broken.key_file`",
        place.shell.path("nowhere").display()
    );
    block_in_place(|| {
        let check = |shell: &Shell, arguments: &[&str], code: i32, expected: &[&str]| {
            let doctor = shell.run(["doctor"].iter().chain(arguments));
            let about = |line: &&str| line.contains(" model") || line.contains(" provider ");
            let lines: Vec<&str> = doctor.stdout.lines().filter(about).collect();
            assert_eq!((lines.as_slice(), doctor.code), (expected, code), "{doctor:?}");
        };
        let work = format!("✓ provider work at {base_url}, key: command (configuration)");
        let no_key = "the daemon has no key for `openai`: run `asyncagents auth set openai`, or set \
                      `OPENAI_API_KEY` where you launch, or `OPENAI_BASE_URL` to a server that needs none";
        let wrong = format!("✗ model: openai/scripted: {no_key}");
        let _first = place.serve();
        check(&place.shell, &[], 1, &[&wrong, &broken, &work]);
        let all = fs::read_to_string(place.shell.path("config.toml")).unwrap();
        place.configure(all.split("[providers.broken]").next().unwrap());
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        let _second = place.serve();
        place.set_key("sk-of-the-shell");
        let only_here = format!(
            "! model: openai/scripted, which only clients with a key of their own can use, such as this \
             shell: {no_key}"
        );
        let shell = [
            "✓ model of this shell: openai/scripted".to_owned(),
            format!(
                "✓ provider of this shell openai at {base_url}, key: handed over by the client, answers \
                 with 2 models"
            ),
        ];
        let online = format!("{work}, answers with 2 models");
        check(&place.shell, &["--online"], 0, &[&only_here, &online, &shell[0], &shell[1]]);
        place.unset_key();
        place.shell.set("ASYNCAGENTS_MODEL", "work/absent");
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        let _third = place.serve();
        let absent = "! model: work/absent is not in its provider's list of models";
        check(&place.shell, &["--online"], 0, &[absent, &online]);
        place.shell.unset("ASYNCAGENTS_MODEL");
        assert_eq!(place.shell.run(["daemon", "restart"]).code, 0);
        let none = "– model: none is set, so agents use offline/explorer, a rule-based search (set \
                    ASYNCAGENTS_MODEL, or `model` in the configuration file)";
        check(&place.shell, &[], 0, &[none, &work]);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_reads_all_pages_of_a_list_of_models_and_no_more_than_twenty() {
    let mut place = Fixture::build().await;
    let origin = place.server.origin();
    let section = |name: &str, kind: &str| {
        format!(
            "[providers.{name}]\nkind = '{kind}'\nbase_url = '{origin}'\nkey_command = 'echo sk-1'\n"
        )
    };
    let sections = [section("a", "anthropic"), section("g", "gemini"), section("o", "openai")];
    place.configure(&sections.concat());
    place.shell.set("ASYNCAGENTS_MODEL", "a/model-25");
    block_in_place(|| {
        let _serve = place.serve();
        let check = |number: usize, page: usize, expected: [&str; 4]| {
            place.server.has_models(number, page);
            let doctor = place.shell.run(["doctor", "--online"]);
            let about = |line: &&str| line.contains(" model: ") || line.contains(" provider ");
            let lines = doctor.stdout.lines().filter(about);
            let lines: Vec<String> = lines.map(|line| line.replace(&origin, "–")).collect();
            assert_eq!(lines, expected, "{doctor:?}");
        };
        let rest = "key: command (configuration), answers with";
        let all = |number: &str| {
            let of = |name: &str, version: &str| {
                format!("✓ provider {name} at –/{version}, {rest} {number} models")
            };
            [of("a", "v1"), of("g", "v1beta"), of("o", "v1")]
        };
        let [a, g, o] = all("26");
        check(26, 7, ["✓ model: a/model-25", &a, &g, &o]);
        let [a, g, o] = all("24");
        let absent = "! model: a/model-25 is not in its provider's list of models";
        check(24, 7, [absent, &a, &g, &o]);
        // The model may be on a page that was not read, so it is not reported as absent.
        let [a, g, _] = all("more than 20");
        let [_, _, o] = all("30");
        check(30, 1, ["✓ model: a/model-25", &a, &g, &o]);
    });
}

/// Ways in which a server can fail and repeat the key it received.
const FAILURES: [&str; 9] = [
    "@status 401 | say wrong key: {authorization}",
    "@status 400 | say bad request with {authorization}",
    "@status 500 | say {authorization}",
    "@status 302 location=/{authorization} | say elsewhere",
    r#"@say half | error {"message": "{authorization}", "code": 400}"#,
    r#"@say half | error {"message": "{authorization}", "code": 500}"#,
    "@say half | cut",
    "@garbage",
    r#"@call bash {"command": "env; cat /proc/$PPID/environ|tr '\\0' ' '"}"#,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_in_no_file_log_or_output_whatever_goes_wrong() {
    for keep in ["handed over", "environment of the daemon", "auth file"] {
        let mut place = Fixture::build().await;
        let origin = place.server.origin();
        let section = format!("[providers.openai]\nbase_url = '{origin}'\n");
        let quick = "[agent]\nmodel_retries = 0\nsilence_seconds = 2\n";
        place.configure(&if keep == "auth file" {
            format!("{quick}{section}")
        } else {
            quick.into()
        });
        place.shell.set("ASYNCAGENTS_LOG", "trace");
        block_in_place(|| {
            let mut told = Vec::new();
            if keep == "environment of the daemon" {
                place.set_key(CANARY);
            }
            let _serve = place.serve();
            place.unset_key();
            if keep == "handed over" {
                place.set_key(CANARY);
            }
            if keep == "auth file" {
                let key = CANARY.as_bytes();
                told.push(place.shell.run_with_input(["auth", "set", "openai"], key));
            }
            for prompt in FAILURES {
                let run =
                    place.shell.run_in(&place.project, ["run", "--budget-seconds", "20", prompt]);
                let id = run.stdout.trim().to_owned();
                assert_eq!(run.code, 0, "{run:?}");
                told.push(place.shell.run(["wait", &id]));
                told.push(place.shell.run(["output", &id, "--json"]));
                told.push(place.shell.run(["output", &id]));
                told.push(place.shell.run(["fork-preview", &id]));
                let shown = place.last_key();
                assert!(shown.contains(CANARY), "{keep}: {shown}");
            }
            for command in ["list", "hosts", "auth list", "doctor --online", "daemon status"] {
                told.push(place.shell.run(command.split(' ')));
            }
            let leaky: Vec<&CommandOutcome> = told
                .iter()
                .filter(|told| {
                    canary::is_in(told.stdout.as_bytes()) || canary::is_in(told.stderr.as_bytes())
                })
                .collect();
            assert_eq!(leaky, [] as [&CommandOutcome; 0], "{keep}");
            let site = Site::of(&place.shell);
            for task in place.shell.tasks() {
                for path in ["", "/logs", "/messages?include_tool_results=true"] {
                    let answer = site.get(&format!("/v1/tasks/{}{path}", task.session_id));
                    assert!(!canary::is_in(answer.body.as_bytes()), "{keep}: {path}");
                }
            }
            let snapshot = site.events("").next().unwrap();
            assert!(!canary::is_in(format!("{snapshot:?}").as_bytes()), "{keep}");
            assert!(place.shell.log().contains("TRACE"), "the most detailed level is on");
            assert_eq!(canary::leaks(place.shell.home()), [] as [PathBuf; 0], "{keep}");
            assert_eq!(canary::leaks(&place.project), [] as [PathBuf; 0], "{keep}");
            let leak = place.project.join("leak");
            fs::write(&leak, format!("x{CANARY}x")).unwrap();
            assert_eq!(canary::leaks(&place.project), [leak], "the search works");
        });
    }
}
