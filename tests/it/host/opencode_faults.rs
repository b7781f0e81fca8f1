//! Faults of the stub OpenCode server: those a test injects, and those that real servers have.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::talk::{EventRecorder, Talk, labels};
use crate::support::{Fault, OpenCode};

const SHORT: Duration = Duration::from_millis(300);
const PROMPT: &str = "POST /session/{id}/prompt_async";

async fn server() -> (OpenCode, Talk) {
    let server = OpenCode::start().await;
    let talk = Talk::to(server.url());
    (server, talk)
}

fn prompt(message: &str, part: &str, text: &str) -> Value {
    let part = json!({"id": part, "type": "text", "text": text});
    json!({"agent": "build", "messageID": message, "parts": [part]})
}

/// A request with a short time-out; its status, if there is a response.
async fn try_get(url: String) -> Option<u16> {
    let client = asyncagents::net::plain().timeout(SHORT).build().unwrap();
    Some(client.get(url).send().await.ok()?.status().as_u16())
}

#[tokio::test]
async fn a_parent_session_takes_notices() {
    let (server, talk) = server().await;
    let parent = server.parent("/tmp").await;
    let parts = json!([
        {"type": "text", "text": "visible"},
        {"type": "text", "text": "hint", "synthetic": true},
        {"type": "text", "text": "nothing", "ignored": true},
    ]);
    let body = json!({"agent": "build", "parts": parts});
    talk.post(&format!("/session/{parent}/prompt_async"), &body).await;
    server.until("it answers", |server| server.messages(&parent).len() == 4).await;
    assert_eq!(server.given(&parent)[1], ["visible", "hint"]);
    assert_eq!(server.posts(&parent, "prompt_async")[1], body);
    assert_eq!(server.calls(PROMPT), 2);
}

#[tokio::test]
async fn a_restart_keeps_sessions_and_forgets_runs() {
    let (server, talk) = server().await;
    let ears = talk.listen().await;
    let id = talk.session(&json!({"title": "cut off"})).await;
    talk.prompt(&id, r#"@call bash {"command": "sleep 60"}"#).await;
    ears.until("it sleeps", |ears| ears.of_type(&id, "message.part.updated").len() > 3).await;
    let old = server.url();
    server.restart_on_new_port().await;
    assert_ne!(server.url(), old);
    ears.until("the stream is broken", EventRecorder::is_over).await;
    assert_eq!(try_get(format!("{old}/global/health")).await, None);
    let talk = Talk::to(server.url());
    assert_eq!(talk.get("/session/status").await, json!({}));
    let messages = talk.messages(&id).await;
    assert_eq!(messages[1]["parts"][1]["state"]["status"], "running");
    assert!(messages[1]["info"]["time"].get("completed").is_none());
    let port = server.port();
    server.restart().await;
    assert_eq!(server.port(), port);
    let ears = talk.listen().await;
    talk.prompt(&id, "@say here I am again").await;
    ears.until_idle(&id, 1).await;
    assert_eq!(talk.messages(&id).await[3]["parts"][1]["text"], "here I am again");
}

#[tokio::test]
async fn a_prompt_is_stored_with_a_delay() {
    let (server, talk) = server().await;
    let gap = Duration::from_millis(150);
    server.be_slow_to_start(gap, gap);
    let id = talk.session(&json!({"title": "slow"})).await;
    talk.prompt(&id, "@hang").await;
    assert_eq!(talk.messages(&id).await.len(), 0);
    server.until("it is stored", |server| server.messages(&id).len() == 1).await;
    assert_eq!(talk.get("/session/status").await, json!({}));
    server.until_busy(&id).await;
    let elsewhere = talk.get("/session/status?directory=/elsewhere").await;
    assert_eq!(elsewhere, json!({}));
    assert_eq!(talk.get("/session/status").await, json!({&id: {"type": "busy"}}));
}

#[tokio::test]
async fn a_repeated_prompt_runs_again_only_when_its_answer_has_no_end() {
    let (_server, talk) = server().await;
    let ears = talk.listen().await;
    let id = talk.session(&json!({"title": "repeat"})).await;
    let path = format!("/session/{id}/prompt_async");
    talk.post(&path, &prompt("msg_1", "prt_1", "@say one")).await;
    ears.until_idle(&id, 1).await;
    ears.until("all is said", |ears| ears.of_type(&id, "session.diff").len() == 2).await;
    let before = ears.events(&id).len();
    talk.post(&path, &prompt("msg_1", "prt_1", "@say two")).await;
    ears.until_idle(&id, 2).await;
    let again = labels(&ears.events(&id)[before..]);
    let expected = [
        "message.updated user",
        "message.part.updated text",
        "session.updated",
        "session.status busy",
        "session.status idle",
        "session.idle",
    ];
    assert_eq!(again, expected);
    let messages = talk.messages(&id).await;
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0]["parts"].as_array().unwrap().len(), 1);
    assert_eq!(messages[0]["parts"][0]["text"], "@say two");

    talk.post(&path, &prompt("msg_0", "prt_0", "@status 400 | say no")).await;
    ears.until_idle(&id, 4).await;
    talk.post(&path, &prompt("msg_0", "prt_0", "@say now it works")).await;
    ears.until_idle(&id, 5).await;
    let messages = talk.messages(&id).await;
    assert_eq!(messages.len(), 5);
    assert_eq!(messages[4]["parts"][1]["text"], "now it works");
}

#[tokio::test]
async fn events_are_dropped_doubled_and_reordered_on_command() {
    let run = async |order: &dyn Fn(&OpenCode)| {
        let (server, talk) = server().await;
        order(&server);
        let ears = talk.listen().await;
        let id = talk.session(&json!({"title": "shaken"})).await;
        talk.prompt(&id, "@say one two three four").await;
        server.until("it is done", |server| server.messages(&id).len() == 2).await;
        server.until("it is idle", |server| server.is_idle(&id)).await;
        // Events are sent in order, so all others have arrived when this last one has.
        let events = server.events(&id);
        server.lose_events(0.0, 0);
        talk.post("/tui/show-toast", &json!({"message": "end"})).await;
        let is_over = |ears: &EventRecorder| {
            ears.all().iter().any(|event| event["payload"]["type"] == "tui.toast.show")
        };
        ears.until("the end event is received", is_over).await;
        (labels(&events), labels(&ears.events(&id)))
    };
    let (happened, heard) = run(&|_| {}).await;
    assert_eq!(happened, heard);
    let (happened, heard) = run(&|server| server.lose_events(0.5, 3)).await;
    assert!(heard.len() < happened.len(), "{heard:?}");
    let (happened, heard) = run(&|server| server.duplicate_events(0.5, 3)).await;
    assert!(heard.len() > happened.len(), "{heard:?}");
    let (mut happened, mut heard) = run(&|server| server.reorder_events(0.5, 3)).await;
    assert_ne!(happened, heard);
    happened.sort();
    heard.sort();
    happened.dedup();
    heard.dedup();
    assert_eq!(happened, heard);
    let (happened, heard) = run(&|server| server.lose_next("session.idle")).await;
    let without_idle: Vec<_> =
        happened.into_iter().filter(|label| label != "session.idle").collect();
    assert_eq!(without_idle, heard);
}

#[tokio::test]
async fn streams_send_heartbeats_fall_silent_and_close() {
    let (server, talk) = server().await;
    server.beat_every(Duration::from_millis(10));
    let ears = talk.listen().await;
    assert_eq!(server.listeners(), 1);
    let beats = |ears: &EventRecorder| {
        let beats = ears.all().into_iter().map(|event| event["payload"]["type"].clone());
        beats.filter(|kind| kind == "server.heartbeat").count()
    };
    ears.until("heartbeats arrive", |ears| beats(ears) >= 2).await;
    server.mute_streams();
    let silent = beats(&ears);
    // Six heartbeat intervals: the absence of an event cannot be polled for.
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(beats(&ears) <= silent + 1);
    server.unmute_streams();
    ears.until("heartbeats arrive again", |ears| beats(ears) >= silent + 3).await;
    server.close_streams();
    ears.until("it is closed", EventRecorder::is_over).await;
    server.connect_late(Duration::from_secs(60));
    let ears = talk.listen().await;
    let id = talk.session(&json!({"title": "unheard"})).await;
    ears.until("heartbeats still arrive", |ears| beats(ears) >= 2).await;
    assert_eq!(server.events(&id).len(), 1);
    assert_eq!(ears.events(&id).len(), 0);
}

#[tokio::test]
async fn requests_are_swallowed_delayed_refused_and_cut_off() {
    let (server, talk) = server().await;
    let health = format!("{}/global/health", server.url());
    server.swallow_requests();
    assert_eq!(try_get(health.clone()).await, None);
    server.behave();
    assert_eq!(try_get(health.clone()).await, Some(200));
    server.refuse_with(503);
    assert_eq!(try_get(health.clone()).await, Some(503));
    server.behave();
    server.delay(Duration::from_millis(50));
    let started = Instant::now();
    assert_eq!(try_get(health.clone()).await, Some(200));
    assert!(started.elapsed() >= Duration::from_millis(50));
    server.behave();
    assert_eq!(server.calls("GET /global/health"), 4);
    server.spoil("GET /global/health", Fault::Cut, 1);
    assert_eq!(try_get(health.clone()).await, None);
    assert_eq!(try_get(health.clone()).await, Some(200));
    server.stop();
    assert_eq!(try_get(health.clone()).await, None);
    server.start_again().await;
    assert_eq!(try_get(health).await, Some(200));

    let id = talk.session(&json!({"title": "spoiled"})).await;
    let path = format!("/session/{id}/prompt_async");
    let post = async || {
        let client = asyncagents::net::plain().timeout(SHORT).build().unwrap();
        let request = client.post(format!("{}{path}", server.url()));
        let request = request.json(&prompt("msg_1", "prt_1", "@say done"));
        request.send().await.ok().map(|response| response.status().as_u16())
    };
    server.spoil(PROMPT, Fault::Status(500), 1);
    server.spoil(PROMPT, Fault::AnswerLost, 1);
    assert_eq!(post().await, Some(500));
    assert_eq!(server.messages(&id).len(), 0);
    assert_eq!(post().await, None);
    server.until("it was carried out", |server| server.messages(&id).len() == 2).await;
    server.spoil(PROMPT, Fault::AnswerHangs, 1);
    assert_eq!(post().await, None);
    assert_eq!(server.calls(PROMPT), 3);
    assert_eq!(server.posts(&id, "prompt_async").len(), 2);
}

#[tokio::test]
async fn every_route_requires_the_password() {
    let server = OpenCode::start_with_password("open sesame").await;
    assert_eq!(try_get(format!("{}/global/health", server.url())).await, Some(401));
    assert_eq!(try_get(format!("{}/global/event", server.url())).await, Some(401));
    let wrong = Talk::with_password(server.url(), "open wheat");
    assert_eq!(wrong.call(Method::GET, "/session", None).await.0, 401);
    let right = Talk::with_password(server.url(), "open sesame");
    assert_eq!(right.get("/global/health").await["version"], "1.18.33");
    server.parent("/tmp").await;
}

#[tokio::test]
async fn missing_sessions_messages_and_routes_have_different_errors() {
    let (server, talk) = server().await;
    let missing = json!({
        "name": "NotFoundError", "data": {"message": "Session not found: ses_nope"},
    });
    for path in ["", "/message", "/todo", "/children"] {
        let answer = talk.call(Method::GET, &format!("/session/ses_nope{path}"), None).await;
        assert_eq!(answer, (404, missing.clone()));
    }
    let body = json!({"parts": []});
    let posted = talk.call(Method::POST, "/session/ses_nope/prompt_async", Some(&body)).await;
    assert_eq!(posted, (404, missing));
    let id = talk.session(&json!({"title": "here"})).await;
    let path = format!("/session/{id}/prompt_async");
    let (status, error) = talk.call(Method::POST, &path, Some(&json!({}))).await;
    assert_eq!((status, &error["name"]), (400, &json!("BadRequest")));
    let (status, error) =
        talk.call(Method::GET, &format!("/session/{id}/message/msg_nope"), None).await;
    assert_eq!(status, 404);
    assert_eq!(error["data"]["message"], "Message not found: msg_nope");
    assert_eq!(talk.call(Method::GET, "/session/nonsense", None).await.0, 500);
    // Unknown routes serve the web page.
    assert_eq!(talk.call(Method::GET, "/nope", None).await, (200, Value::Null));
    let reply = json!({"reply": "once"});
    let (status, error) = talk.call(Method::POST, "/permission/per_nope/reply", Some(&reply)).await;
    assert_eq!((status, &error["_tag"]), (404, &json!("PermissionNotFoundError")));
    assert_eq!(server.sessions().len(), 1);
}

#[tokio::test]
async fn a_permission_request_outlives_the_run_that_made_it() {
    let (server, talk) = server().await;
    server.ask_for("bash");
    let ears = talk.listen().await;
    let id = talk.session(&json!({"title": "ask"})).await;
    talk.prompt(&id, r#"@call bash {"command": "echo x"}"#).await;
    ears.until_event(&id, "permission.asked").await;
    server.abort(&id).await;
    ears.until_idle(&id, 2).await;
    let part = &talk.messages(&id).await[1]["parts"][1];
    assert_eq!(part["state"]["error"], "Tool execution aborted");
    assert_eq!(server.asks().len(), 1);
    let request = server.asks()[0]["id"].as_str().unwrap().to_owned();
    let reply = json!({"reply": "once"});
    assert_eq!(talk.post(&format!("/permission/{request}/reply"), &reply).await, json!(true));
    assert_eq!(server.asks().len(), 0);
}

#[tokio::test]
async fn a_deleted_session_runs_for_a_while() {
    let (server, talk) = server().await;
    let ears = talk.listen().await;
    let id = talk.session(&json!({"title": "deleted"})).await;
    talk.prompt(&id, "@hang").await;
    server.until_busy(&id).await;
    ears.until("the model is asked", |ears| !ears.of_type(&id, "session.diff").is_empty()).await;
    server.delete(&id);
    server.finish(&id, "too late");
    ears.until_idle(&id, 1).await;
    let words = labels(&ears.events(&id));
    let since = words.iter().position(|label| label == "session.deleted").unwrap();
    let expected = [
        "session.deleted",
        "session.status retry",
        "session.error UnknownError",
        "session.status idle",
        "session.idle",
    ];
    assert_eq!(words[since..], expected);
    server.until("it is forgotten", |server| server.is_idle(&id)).await;
}

#[tokio::test]
async fn a_hanging_model_fails_on_command() {
    let (server, talk) = server().await;
    let ears = talk.listen().await;
    let parent = talk.session(&json!({"title": "parent"})).await;
    let id = talk.session(&json!({"title": "child", "parentID": parent})).await;
    talk.prompt(&id, "@say half of it | hang").await;
    server.until_busy(&id).await;
    server.fail(&id, 401, "no key");
    ears.until_idle(&id, 2).await;
    let answer = &server.messages(&id)[1];
    assert_eq!(answer["info"]["error"]["data"]["message"], "no key");
    assert_eq!(answer["parts"][1]["text"], "half of it");
    assert_eq!(server.children(&parent)[0], server.session(&id).unwrap());
    assert_eq!(server.session("ses_nope"), None);
}

#[tokio::test]
async fn agents_and_the_size_of_the_context_are_configured() {
    let (server, talk) = server().await;
    server.add_agent("reviewer", "subagent");
    let agents = talk.get("/agent").await;
    let names = agents.as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap());
    let names: Vec<_> = names.collect();
    let native = ["build", "compaction", "explore", "general", "plan", "summary", "title"];
    assert_eq!(names, [&native[..], &["reviewer"]].concat());
    server.limit_context(100);
    server.shake_events(0.5, 1);
    let id = talk.session(&json!({"title": "small"})).await;
    talk.prompt(&id, "@say short | usage 50 50\n@say unheard").await;
    server.until("it is answered", |server| server.messages(&id).len() == 2).await;
    server.until("it is idle", |server| server.is_idle(&id)).await;
    talk.prompt(&id, "@say long | usage 50 51\n@say on | usage 1 1").await;
    server.until("it is compacted", |server| server.messages(&id).len() == 8).await;
    let calls = server.all_calls();
    assert_eq!(calls.get("GET /agent"), Some(&1));
    assert_eq!(calls.get(PROMPT), Some(&2));
}
