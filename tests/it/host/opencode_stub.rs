//! The stub OpenCode server compared with recordings of a real one: the same scenario produces the
//! same events in the same order, with the same shapes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::OpenCode;
use crate::support::talk::{EventRecorder, Talk, labels, shape};

const BASH: &str = r#"call bash {"command": "echo hello", "description": "run it"}"#;

/// A recording.
fn sample(name: &str) -> Value {
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/samples/opencode");
    serde_json::from_slice(&fs::read(Path::new(samples).join(name)).unwrap()).unwrap()
}

async fn server() -> (OpenCode, Talk, EventRecorder) {
    let server = OpenCode::start().await;
    let talk = Talk::to(server.url());
    let ears = talk.listen().await;
    (server, talk, ears)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Types and properties; how a text was split into deltas does not matter.
fn shapes(events: &[Value]) -> Vec<Value> {
    let of = |event: &Value| json!([event["type"], shape(&event["properties"])]);
    let mut shapes: Vec<Value> = events.iter().map(of).collect();
    shapes.dedup_by(|next, last| next == last && next[0] == "message.part.delta");
    shapes
}

#[track_caller]
fn same_events(ours: &[Value], recorded: &[Value]) {
    pretty(&labels(ours), &labels(recorded));
    for (ours, recorded) in shapes(ours).iter().zip(shapes(recorded)) {
        pretty(ours, &recorded);
    }
}

#[track_caller]
fn same_shape(ours: &Value, recorded: &Value) {
    pretty(&shape(ours), &shape(recorded));
}

#[track_caller]
fn pretty<T: serde::Serialize + ?Sized>(ours: &T, recorded: &T) {
    let text = |value| serde_json::to_string_pretty(value).unwrap();
    let (ours, recorded) = (text(ours), text(recorded));
    let differs = ours.lines().zip(recorded.lines()).find(|(ours, recorded)| ours != recorded);
    assert_eq!(differs, None, "\nours: {ours}\nrecorded: {recorded}");
    assert_eq!(ours.lines().count(), recorded.lines().count(), "{ours}\nrecorded: {recorded}");
}

/// Compares the labels of events with a recording, without totals and diffs, which arrive
/// asynchronously.
#[track_caller]
fn same_words(ours: &[Value], recorded: &Value) {
    let background = ["session.updated", "session.diff", "session.created"];
    let ours = labels(ours).into_iter().filter(|label| !background.contains(&label.as_str()));
    let with_details =
        ["session.status", "session.error", "message.updated", "message.part.updated"];
    let word = |words: &Value| {
        let words = words.as_str().unwrap();
        let first = words.split(' ').next().unwrap();
        (if with_details.contains(&first) { words } else { first }).to_owned()
    };
    let mut recorded: Vec<String> = array(recorded).iter().map(word).collect();
    recorded.retain(|label| !background.contains(&label.as_str()));
    recorded.dedup_by(|next, last| next == last && next == "message.part.delta");
    pretty(&ours.collect::<Vec<_>>(), &recorded);
}

#[tokio::test]
async fn a_run_with_a_tool_is_as_recorded() {
    let (_server, talk, ears) = server().await;
    let parent = talk.session(&json!({"title": "Parent"})).await;
    let wish = json!({
        "parentID": parent, "title": "Background: probe", "metadata": {"taskId": "bg_1"},
    });
    let child = talk.post("/session?directory=/proj", &wish).await;
    same_shape(&child, &sample("session.create.child.json"));
    let id = child["id"].as_str().unwrap();
    let prompt = json!({
        "agent": "general",
        "tools": {"task": false, "background_task": false, "webfetch": false},
        "parts": [{"type": "text", "text": format!("@{BASH}\n@say it says hello")}],
    });
    talk.post(&format!("/session/{id}/prompt_async"), &prompt).await;
    ears.until("all is said", |ears| ears.of_type(id, "session.diff").len() == 3).await;
    same_events(&ears.events(id), array(&sample("events.run-with-tool.json")));
    let messages = talk.get(&format!("/session/{id}/message")).await;
    same_shape(&messages, &sample("session.messages.json"));
    let after = talk.get(&format!("/session/{id}")).await;
    same_shape(&after, &sample("session.get.after.json"));
    let all = ears.all();
    same_shape(&json!(all[all.len() - 3..]), &sample("global-event.sample.json"));
}

#[tokio::test]
async fn a_refused_run_is_as_recorded() {
    let (server, talk, ears) = server().await;
    server.pause_between_idles(Duration::from_millis(200));
    let id = talk.session(&json!({"title": "FAIL 400"})).await;
    talk.prompt(&id, "@status 400 | say fake rejection").await;
    ears.until_idle(&id, 1).await;
    let unfinished = talk.messages(&id).await.remove(1);
    assert!(unfinished["info"].get("error").is_none(), "{unfinished}");
    assert!(unfinished["info"]["time"].get("completed").is_none(), "{unfinished}");
    ears.until_idle(&id, 2).await;
    let recorded = sample("fail-400.json");
    same_events(&ears.events(&id), array(&recorded["events"]));
    same_shape(&json!(talk.messages(&id).await), &recorded["messages"]);
}

#[tokio::test]
async fn retries_and_their_end_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "FAIL 500"})).await;
    talk.prompt(&id, "@status 500 retry-after-ms=5 | say fake backend exploded").await;
    ears.until_idle(&id, 2).await;
    same_words(&ears.events(&id), &sample("behaviours.json")["FAIL 500.events"]);
    let retries = ears.of_type(&id, "session.status");
    let is_retry = |event: &&Value| event["properties"]["status"]["type"] == "retry";
    let attempts = retries.iter().filter(is_retry);
    let attempts: Vec<_> =
        attempts.map(|event| &event["properties"]["status"]["attempt"]).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn an_abort_between_retries_is_as_recorded() {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "FAIL 500"})).await;
    talk.prompt(&id, "@status 500 | say fake backend exploded").await;
    let retrying = |ears: &EventRecorder| {
        labels(&ears.events(&id)).ends_with(&["session.status retry".into()])
    };
    ears.until("it waits to try again", retrying).await;
    let recorded = sample("fail-500-retry.json");
    let until_retry = ears.events(&id);
    same_events(&until_retry, &array(&recorded)[..until_retry.len()]);
    let status = talk.get("/session/status").await;
    assert_eq!(status[&id]["type"], "retry");
    talk.post(&format!("/session/{id}/abort"), &json!({})).await;
    ears.until_idle(&id, 1).await;
    let since = &ears.events(&id)[until_retry.len()..];
    same_words(since, &sample("behaviours.json")["fail500.abort"]);
}

/// Aborts a run on this prompt, and compares the events from then on.
async fn abort(prompt: &str, last_words: &str, recorded: &Value) {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "abort"})).await;
    talk.prompt(&id, prompt).await;
    let at_work =
        |ears: &EventRecorder| labels(&ears.events(&id)).ends_with(&[last_words.to_owned()]);
    let begun = |ears: &EventRecorder| !ears.of_type(&id, "session.diff").is_empty();
    ears.until(last_words, |ears| begun(ears) && at_work(ears)).await;
    let before = ears.events(&id).len();
    talk.post(&format!("/session/{id}/abort"), &json!({})).await;
    ears.until_idle(&id, 2).await;
    same_events(&ears.events(&id)[before..], array(&recorded["events"]));
    same_shape(&talk.messages(&id).await[1], &recorded["last"]);
}

#[tokio::test]
async fn aborts_are_as_recorded() {
    let sleep = r#"@call bash {"command": "sleep 30; echo never", "description": "sleep"}"#;
    let running = "message.part.updated tool:bash/running";
    abort(sleep, running, &sample("abort-tool.json")).await;
    abort("@say drip drip | hang", "message.part.delta", &sample("abort-llm.json")).await;
    let asked = "session.status busy";
    abort("@hang", asked, &sample("abort-beforefirstbyte.json")).await;
}

#[tokio::test]
async fn an_abort_without_a_run_is_no_error() {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({})).await;
    for id in [id.as_str(), "ses_doesnotexist"] {
        assert_eq!(talk.post(&format!("/session/{id}/abort"), &json!({})).await, json!(true));
    }
    assert_eq!(labels(&ears.events(&id)), ["session.created"]);
}

#[tokio::test]
async fn compactions_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "compact"})).await;
    talk.prompt(&id, "@say first").await;
    ears.until_idle(&id, 1).await;
    talk.prompt(&id, &format!("@{BASH} | usage 250000 10\n@say going on")).await;
    ears.until_idle(&id, 2).await;
    let messages = talk.messages(&id).await;
    same_shape(&json!(messages), &sample("compaction.auto.messages.json"));
    assert_eq!(messages[7]["parts"][1]["text"], "going on");

    let id = talk.session(&json!({"title": "overflow"})).await;
    talk.prompt(&id, "@overflow\n@say going on").await;
    ears.until_idle(&id, 1).await;
    let recorded = sample("behaviours.json");
    same_words(&ears.events(&id), &recorded["overflow.events"]);
    let error = ears.of_type(&id, "session.error");
    same_events(&error, array(&recorded["overflow.error"]));
    assert_eq!(talk.messages(&id).await[5]["parts"][1]["text"], "going on");
}

#[tokio::test]
async fn permissions_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let rule = json!({"permission": "bash", "pattern": "*", "action": "ask"});
    let wish = json!({"title": "perm", "permission": [rule]});
    let id = talk.session(&wish).await;
    talk.prompt(&id, &format!("@{BASH}\n@say fine")).await;
    let asked = ears.until_event(&id, "permission.asked").await;
    same_shape(&asked, &sample("event.permission.asked.json"));
    let pending = talk.get("/permission").await;
    assert_eq!(pending, json!([asked["properties"]]));
    ears.until("the tool waits", |ears| {
        labels(&ears.events(&id)).ends_with(&["message.part.updated tool:bash/running".into()])
    })
    .await;
    let part = talk.messages(&id).await[1]["parts"][1].clone();
    same_shape(&json!([part]), &sample("behaviours.json")["perm.waiting"]);
    assert_eq!(talk.get("/session/status").await[&id]["type"], "busy");
    let before = ears.events(&id).len();
    let reply = |word: &str| json!({"reply": word});
    let request = asked["properties"]["id"].as_str().unwrap();
    talk.post(&format!("/permission/{request}/reply"), &reply("once")).await;
    ears.until_idle(&id, 1).await;
    let since = ears.events(&id)[before..].to_vec();
    same_shape(&since[0], &sample("event.permission.replied.json"));
    same_words(&since, &sample("behaviours.json")["perm.events"]);

    let id = talk.session(&wish).await;
    talk.prompt(&id, &format!("@{BASH}\n@say never")).await;
    let asked = ears.until_event(&id, "permission.asked").await;
    let request = asked["properties"]["id"].as_str().unwrap();
    ears.until("the tool waits", |ears| ears.events(&id).len() == 14).await;
    talk.post(&format!("/permission/{request}/reply"), &reply("reject")).await;
    ears.until_idle(&id, 1).await;
    let recorded = sample("behaviours.json");
    same_words(&ears.events(&id), &recorded["perm.reject.events"]);
    same_shape(&talk.messages(&id).await[1], &recorded["perm.reject.last"][0]);
}

#[tokio::test]
async fn questions_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "question"})).await;
    let ask = r#"@call question {"questions": [{"question": "Which?", "header": "Pick", "options": [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]}]}"#;
    talk.prompt(&id, &format!("{ask}\n@say thanks")).await;
    let asked = ears.until_event(&id, "question.asked").await;
    same_shape(&asked, &sample("event.question.asked.json"));
    let request = asked["properties"]["id"].as_str().unwrap();
    talk.post(&format!("/question/{request}/reply"), &json!({"answers": [["A"]]})).await;
    ears.until_idle(&id, 1).await;
    assert_eq!(talk.messages(&id).await[2]["info"]["finish"], "stop");
    assert_eq!(talk.get("/question").await, json!([]));
}

#[tokio::test]
async fn todos_toasts_and_deletions_are_as_recorded() {
    let (server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "todo"})).await;
    let todo = |content: &str| json!({"content": content, "status": "pending", "priority": "low"});
    let todos = json!({"todos": [todo("first"), todo("second"), todo("third")]});
    talk.prompt(&id, &format!("@call todowrite {todos}\n@say noted")).await;
    let updated = ears.until_event(&id, "todo.updated").await;
    same_shape(&updated, &sample("event.todo.updated.json"));
    let kept = talk.get(&format!("/session/{id}/todo")).await;
    same_shape(&kept, &sample("todo.get.json"));
    ears.until_idle(&id, 1).await;

    let recorded = sample("event.tui.toast.show.json");
    talk.post("/tui/show-toast", &recorded["properties"]).await;
    let shown =
        |ears: &EventRecorder| ears.all().last().unwrap()["payload"]["type"] == "tui.toast.show";
    ears.until("the toast is shown", shown).await;
    same_shape(&ears.all().last().unwrap()["payload"], &recorded);
    assert_eq!(server.toasts(), [recorded["properties"].clone()]);

    let parent = talk.session(&json!({"title": "delparent"})).await;
    let child = talk.session(&json!({"title": "delchild", "parentID": parent})).await;
    let grandchild = talk.session(&json!({"title": "delgrand", "parentID": child})).await;
    talk.prompt(&child, "@hang").await;
    server.until_busy(&child).await;
    talk.delete(&format!("/session/{parent}")).await;
    let deleted = |ears: &EventRecorder| !ears.of_type(&parent, "session.deleted").is_empty();
    ears.until("all are deleted", deleted).await;
    let payloads = ears.all().into_iter().map(|mut event| event["payload"].take());
    let deletions: Vec<_> = payloads.filter(|event| event["type"] == "session.deleted").collect();
    let ids: Vec<_> = deletions.iter().map(|event| &event["properties"]["sessionID"]).collect();
    assert_eq!(ids, [&grandchild, &child, &parent]);
    for (ours, recorded) in deletions.iter().zip(array(&sample("event.session.deleted.json"))) {
        same_shape(ours, recorded);
    }
}

#[tokio::test]
async fn prompts_for_unknown_agents_and_models_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let recorded = sample("errors.json");
    let id = talk.session(&json!({"title": "errors"})).await;
    let parts = json!([{"type": "text", "text": "x"}]);
    let prompt = json!({"agent": "nope-agent", "parts": parts});
    talk.post(&format!("/session/{id}/prompt_async"), &prompt).await;
    ears.until("both errors", |ears| ears.of_type(&id, "session.error").len() == 2).await;
    same_events(&ears.events(&id), array(&recorded["badagent"]));
    assert_eq!(talk.messages(&id).await.len(), 0);
    let before = ears.events(&id).len();
    let model = json!({"providerID": "scripted", "modelID": "zzz"});
    let prompt = json!({"agent": "build", "model": model, "parts": parts});
    talk.post(&format!("/session/{id}/prompt_async"), &prompt).await;
    ears.until("both errors", |ears| ears.of_type(&id, "session.error").len() == 4).await;
    same_events(&ears.events(&id)[before..], array(&recorded["badmodel"]));
}

#[tokio::test]
async fn prompts_to_a_busy_session_share_one_answer_as_recorded() {
    let (server, talk, ears) = server().await;
    let id = talk.session(&json!({"title": "busy"})).await;
    talk.prompt(&id, "@hang").await;
    ears.until("the model is asked", |ears| ears.of_type(&id, "session.diff").len() == 1).await;
    talk.prompt(&id, "second while busy").await;
    server.until("the second is stored", |server| server.messages(&id).len() == 3).await;
    let third = json!({"noReply": true, "parts": [{"type": "text", "text": "third"}]});
    talk.post(&format!("/session/{id}/prompt_async"), &third).await;
    server.until("the third is stored", |server| server.messages(&id).len() == 4).await;
    server.finish(&id, "first");
    ears.until_idle(&id, 1).await;
    same_words(&ears.events(&id), &sample("behaviours.json")["busy.events"]);
    let messages = talk.messages(&id).await;
    assert_eq!(messages[4]["info"]["parentID"], messages[3]["info"]["id"]);
    assert_eq!(server.given(&id)[1], ["second while busy", "third"]);
}

#[tokio::test]
async fn messages_without_a_reply_and_forks_are_as_recorded() {
    let (_server, talk, ears) = server().await;
    let recorded = sample("behaviours.json");
    let id = talk.session(&json!({"title": "noreply"})).await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let mut parts = [text("visible"), text("hidden"), text("not for the model")];
    (parts[1]["synthetic"], parts[2]["ignored"]) = (json!(true), json!(true));
    let prompt = json!({"agent": "build", "noReply": true, "parts": parts});
    talk.post(&format!("/session/{id}/prompt_async"), &prompt).await;
    ears.until("it is stored", |ears| ears.of_type(&id, "session.updated").len() == 2).await;
    same_words(&ears.events(&id), &recorded["noreply.events"]);
    same_shape(&talk.messages(&id).await[0], &sample("noreply.response.json"));

    let id = talk.session(&json!({"title": "forkme", "metadata": {"k": 1}})).await;
    talk.prompt(&id, &format!("@{BASH}\n@say hello it says")).await;
    ears.until_idle(&id, 1).await;
    talk.prompt(&id, "and then").await;
    ears.until_idle(&id, 2).await;
    let fork = talk.post(&format!("/session/{id}/fork"), &json!({})).await;
    same_shape(&fork, &sample("fork.response.json"));
    assert_eq!(fork["title"], "forkme (fork #1)");
    let fork = fork["id"].as_str().unwrap();
    ears.until("it is copied", |ears| ears.of_type(fork, "message.part.updated").len() == 11).await;
    same_words(&ears.events(fork), &recorded["fork.events"]);
    let (original, copy) = (talk.messages(&id).await, talk.messages(fork).await);
    same_shape(&json!(copy), &json!(original));
    assert_eq!(copy[1]["info"]["parentID"], copy[0]["info"]["id"]);
    assert_ne!(copy[0]["info"]["id"], original[0]["info"]["id"]);
    let second = json!({"messageID": original[3]["info"]["id"]});
    let part = talk.post(&format!("/session/{id}/fork"), &second).await;
    assert_eq!(talk.messages(part["id"].as_str().unwrap()).await.len(), 3);
    assert_eq!(talk.get(&format!("/session/{id}/children")).await, json!([]));
}
