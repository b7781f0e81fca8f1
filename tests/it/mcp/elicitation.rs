//! Permission requests that the user of an MCP client answers in a form (elicitation).

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use asyncagents::wire::{Answered, CallerView, Door, OutputRequest};
use rmcp::model::{ClientCapabilities, ElicitResult, ElicitationAction};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::user::{BOTH, Generation, LONG, Session, text};
use crate::support::process::{Shell, until};
use crate::support::quoted;

fn with_forms() -> ClientCapabilities {
    ClientCapabilities::builder().enable_elicitation().build()
}

fn with_forms_and_tasks() -> ClientCapabilities {
    ClientCapabilities::builder().enable_elicitation().enable_tasks().build()
}

fn named() -> Shell {
    let mut shell = Shell::with_host_process();
    shell.set("ASYNCAGENTS_PARENT", "me");
    shell
}

fn accepted(answer: &str) -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "answer": answer }))
}

fn errand() -> Value {
    json!({"description": "errand", "prompt": "@ask bash ls -l\n@say done"})
}

/// The answers to the permission requests of the only task.
async fn answers(shell: &Shell) -> Vec<Answered> {
    let task = block_in_place(|| shell.tasks().remove(0));
    let caller = CallerView { session_id: "me".into(), ..CallerView::default() };
    let request = OutputRequest { caller, ..OutputRequest::default() };
    let mut answers = shell.client().output(&task.session_id, &request).await.unwrap().answers;
    let detail = shell.client().task(&task.session_id).await.unwrap();
    assert_eq!(detail.session_id, task.session_id);
    for answer in &mut answers {
        assert!(answer.at >= task.started_at);
        answer.at = task.started_at;
        answer.id = String::new();
    }
    answers
}

async fn form(session: &mut Session) -> String {
    tokio::time::timeout(LONG, session.forms.recv()).await.expect("a form").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_in_a_form_and_recorded_with_who_and_how() {
    let outcomes = [
        ("allow", (quoted("Result", "done"), false)),
        (
            "deny",
            ("task failed: \"stopped because permission was refused: bash: refused\"".into(), true),
        ),
    ];
    for (answer, expected) in outcomes {
        let shell = named();
        let mut session = Session::open(&shell, Generation::Handshake, with_forms()).await;
        session.answers.send(accepted(answer)).unwrap();
        let said = session.answer("Task", errand()).await;
        assert_eq!(said, expected);
        let shown = form(&mut session).await;
        let question = "\"errand\" asks for \"bash ls -l\". Is it allowed to?";
        assert!(shown.starts_with("Task ") && shown.ends_with(question), "{shown}");
        let started = block_in_place(|| shell.tasks().remove(0).started_at);
        let recorded = Answered {
            id: String::new(),
            what: "bash ls -l".into(),
            allowed: answer == "allow",
            door: Door::McpElicitation,
            by: "me".into(),
            at: started,
        };
        assert_eq!(answers(&shell).await, [recorded]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_that_is_declined_leaves_the_request_open_and_the_call_says_what_is_asked() {
    for action in [ElicitationAction::Decline, ElicitationAction::Cancel] {
        let shell = named();
        let mut session = Session::open(&shell, Generation::Handshake, with_forms()).await;
        session.answers.send(ElicitResult::new(action)).unwrap();
        let (said, is_error) = session.answer("Task", errand()).await;
        assert!(is_error && said.starts_with("task needs permission: "), "{said}");
        assert!(said.contains("asks for \"bash ls -l\"\n  `asyncagents approve "), "{said}");
        form(&mut session).await;
        assert_eq!(shell.client().permissions().await.unwrap().permissions.len(), 1);
        // The next call does not ask again, and returns at once as well.
        let waited = session.say("asyncagents_wait", json!({})).await;
        assert!(waited.contains("Everything you wait for needs an answer first"), "{waited}");
        assert!(session.forms.try_recv().is_err());
        assert_eq!(answers(&shell).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_is_withdrawn_when_the_request_is_answered_elsewhere() {
    let shell = named();
    let mut session = Session::open(&shell, Generation::Handshake, with_forms()).await;
    let Session { forms, withdrawn, .. } = &mut session;
    let (mut forms, mut withdrawn) = (
        std::mem::replace(forms, tokio::sync::mpsc::unbounded_channel().1),
        std::mem::replace(withdrawn, tokio::sync::mpsc::unbounded_channel().1),
    );
    let approve = async {
        tokio::time::timeout(LONG, forms.recv()).await.expect("a form");
        let task = block_in_place(|| shell.tasks().remove(0));
        block_in_place(|| shell.say(["approve", &task.short_id]));
    };
    let (said, ()) = tokio::join!(session.answer("Task", errand()), approve);
    assert_eq!(said, (quoted("Result", "done"), false));
    let why = tokio::time::timeout(LONG, withdrawn.recv()).await.expect("withdrawn").unwrap();
    assert_eq!(why, "answered elsewhere, or no longer asked");
    let doors: Vec<Door> = answers(&shell).await.iter().map(|answer| answer.door).collect();
    assert_eq!(doors, [Door::Cli]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_the_user_no_longer_than_the_client_allows() {
    let mut shell = named();
    let file = shell.path("config.toml");
    fs::write(&file, "[mcp]\nlongest_call_seconds = 3\n[task_tool]\ntimeout_seconds = 1\n")
        .unwrap();
    shell.set("ASYNCAGENTS_CONFIG", file);
    let mut session = Session::open(&shell, Generation::Handshake, with_forms()).await;
    let began = std::time::Instant::now();
    let (said, is_error) = session.answer("Task", errand()).await;
    // The time limit of the tool is suspended while the user is being asked.
    let took = began.elapsed();
    assert!(is_error && took > Duration::from_millis(2_500), "{took:?}: {said}");
    assert!(said.starts_with("task execution timeout: "), "{said}");
    form(&mut session).await;
    let why = tokio::time::timeout(LONG, session.withdrawn.recv()).await.expect("withdrawn");
    assert!(why.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_requires_input_until_its_request_is_answered() {
    for generation in BOTH {
        let shell = named();
        let session = Session::open(&shell, generation, with_forms_and_tasks()).await;
        let call = session.begin("Task", errand()).await;
        let asking = session.until(&call, "input_required").await;
        let requests = asking["inputRequests"].as_object().unwrap();
        let (ask, request) = requests.iter().next().unwrap();
        assert_eq!(request["method"], "elicitation/create");
        let schema = &request["params"]["requestedSchema"]["properties"]["answer"];
        assert_eq!(schema["enum"], json!(["allow", "deny"]));
        let response = json!({"action": "accept", "content": {"answer": "allow"}});
        let responses = BTreeMap::from([(ask.clone(), response)]);
        // An answer to an unknown request is ignored.
        session.update(&call, BTreeMap::from([("per_unknown".into(), json!({}))])).await;
        session.update(&call, responses.clone()).await;
        let ended = session.until(&call, "completed").await;
        assert_eq!(text(&ended["result"]), (quoted("Result", "done"), false));
        let recorded = answers(&shell).await;
        assert_eq!((recorded.len(), recorded[0].door), (1, Door::McpElicitation));
        // A late answer is ignored as well.
        session.update(&call, responses).await;
        assert_eq!(session.get(&call).await, ended);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_input_is_declined_says_what_is_asked_also_after_a_restart() {
    let shell = named();
    let session = Session::open(&shell, Generation::Modern, with_forms_and_tasks()).await;
    let call = session.begin("Task", errand()).await;
    let asking = session.until(&call, "input_required").await;
    let ask = asking["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    block_in_place(|| shell.kill_daemon());
    session.until(&call, "input_required").await;
    session.update(&call, BTreeMap::from([(ask, json!({"action": "decline"}))])).await;
    let (said, is_error) = text(&session.until(&call, "completed").await["result"]);
    assert!(is_error && said.starts_with("task needs permission: "), "{said}");
    assert_eq!(shell.client().permissions().await.unwrap().permissions.len(), 1);
    block_in_place(|| {
        let task = shell.tasks().remove(0);
        shell.say(["approve", &task.short_id]);
        until("it has ended", || shell.task(&task.session_id).status.name() == "completed");
    });
    let listed = session.say("asyncagents_list", json!({})).await;
    assert!(listed.contains("done"), "its end is told: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_forms_is_told_what_is_asked() {
    for capabilities in
        [ClientCapabilities::default(), ClientCapabilities::builder().enable_tasks().build()]
    {
        let shell = named();
        let session = Session::open(&shell, Generation::Handshake, capabilities.clone()).await;
        let (said, is_error) = match capabilities.supports_tasks() {
            true => {
                let call = session.begin("Task", errand()).await;
                text(&session.until(&call, "completed").await["result"])
            }
            false => session.answer("Task", errand()).await,
        };
        assert!(is_error && said.starts_with("task needs permission: "), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_can_show_no_form_does_not_decline_the_request_for_those_that_can() {
    let shell = named();
    let session = Session::open(&shell, Generation::Modern, with_forms_and_tasks()).await;
    let order = json!({
        "description": "clean up", "agent": "general", "prompt": "@ask bash rm x\n@say removed",
    });
    session.say("asyncagents_task", order).await;
    let is_asked = || !shell.run(["approve"]).stdout.starts_with("No permission requests");
    block_in_place(|| until("it asks", is_asked));
    let id = block_in_place(|| shell.tasks().remove(0).short_id);
    // A launch returns at once and is no MCP task, so no form can come with it. Many are needed,
    // because only some are still open when the request arrives.
    for _ in 0..20 {
        let order = json!({ "description": "look", "agent": "general", "prompt": "@say seen" });
        session.say("asyncagents_task", order).await;
    }
    let wait = session.begin("asyncagents_wait", json!({ "task_ids": [id] })).await;
    let waiting = session.until(&wait, "input_required").await;
    let requests = waiting["inputRequests"].as_object().unwrap();
    let responses = requests.keys().map(|ask| (ask.clone(), json!(accepted("allow"))));
    session.update(&wait, responses.collect()).await;
    let (said, _) = text(&session.until(&wait, "completed").await["result"]);
    assert!(said.contains("removed"), "{said}");
}
