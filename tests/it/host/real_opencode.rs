//! A real OpenCode server: that it can be used at all, and that the stub behaves like it. Both are
//! given the same prompts, and must produce the same events and messages.

mod plugin;
mod tasks;

use serde_json::{Value, json};

use crate::support::real_opencode::{RealOpenCode, Setup};
use crate::support::talk::{EventRecorder, Talk, labels, shape};
use crate::support::{ModelServer, OpenCode};

const BASH: &str = r#"call bash {"command": "echo hello", "description": "say hello"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_uses_a_tool_and_its_result_reaches_the_model() {
    let model = ModelServer::start().await;
    let server = RealOpenCode::start(&model).await;
    let talk = server.talk();
    let ears = talk.listen_closely().await;
    let parent = talk.session(&json!({"title": "parent"})).await;
    let child = talk.session(&json!({"title": "child", "parentID": parent})).await;
    let command = json!({"command": "echo hello > out; cat out", "description": "say hello"});
    talk.prompt(&child, &format!("look\n@call bash {command}\n@say done | usage 100 20")).await;
    ears.until_idle(&child, 1).await;
    let asked = model.asked_by(&child);
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|asked| asked.parent_session.as_ref() == Some(&parent)));
    assert_eq!(asked[1].texts("tool"), ["hello\n"]);
    assert_eq!(std::fs::read_to_string(server.project().join("out")).unwrap(), "hello\n");
    let answer = &talk.messages(&child).await[2];
    assert_eq!(answer["parts"][1]["text"], "done");
    assert_eq!(answer["info"]["tokens"]["input"], 100);
    let children = talk.get(&format!("/session/{parent}/children")).await;
    assert_eq!(children[0]["id"], child.as_str());

    let untitled = talk.session(&json!({})).await;
    talk.prompt(&untitled, "hello\n@say hello to you").await;
    let has_title = |ears: &EventRecorder| {
        let updates = ears.of_type(&untitled, "session.updated");
        updates.iter().any(|event| event["properties"]["info"]["title"] == "a title")
    };
    ears.until("it has a title", has_title).await;
    ears.until_idle(&untitled, 1).await;
    assert_eq!(model.asked_by(&untitled).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_comes_back_with_the_sessions_it_stored() {
    let model = ModelServer::start().await;
    let setup = Setup { password: Some("open sesame".into()), ..Setup::default() };
    let mut server = RealOpenCode::with(&model, setup).await;
    let nobody = Talk::to(server.url());
    assert_eq!(nobody.call(reqwest::Method::GET, "/global/health", None).await.0, 401);
    let talk = server.talk();
    let ears = talk.listen_closely().await;
    let id = talk.session(&json!({"title": "cut off"})).await;
    talk.prompt(&id, "@hang").await;
    let asked = |ears: &EventRecorder| !ears.of_type(&id, "session.diff").is_empty();
    ears.until("the model is asked", asked).await;
    let port = server.url();
    server.kill();
    ears.until("the stream is broken", EventRecorder::is_over).await;
    server.start_again().await;
    assert_eq!(server.url(), port);
    assert_eq!(talk.get("/session/status").await, json!({}));
    let messages = talk.messages(&id).await;
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[1]["info"]["time"].get("completed").is_none());
    server.kill();
    server.start_elsewhere().await;
    let talk = server.talk();
    let ears = talk.listen_closely().await;
    talk.prompt(&id, "@say here I am again").await;
    ears.until_idle(&id, 1).await;
    let last = talk.messages(&id).await.pop().unwrap();
    assert_eq!(last["parts"][1]["text"], "here I am again", "{}", server.log());
}

/// The observable outcome of a scenario.
#[derive(Debug, PartialEq)]
struct ScenarioOutcome {
    events: Vec<String>,
    /// Without the contents of errors, whose wording depends on the model server.
    messages: Value,
}

/// A real server and the stub, with a model server for the real one.
struct ServerPair {
    real: RealOpenCode,
    model: ModelServer,
    ours: OpenCode,
}

impl ServerPair {
    async fn start(setup: Setup) -> ServerPair {
        let model = ModelServer::start().await;
        let real = RealOpenCode::with(&model, setup).await;
        ServerPair { real, model, ours: OpenCode::start().await }
    }

    async fn tell_the_same(&self, name: &str, scenario: impl AsyncFn(&Talk, &EventRecorder, &str)) {
        let ours = outcome(&Talk::to(self.ours.url()), &scenario).await;
        let real = outcome(&self.real.talk(), &scenario).await;
        let text =
            |outcome: &ScenarioOutcome| serde_json::to_string_pretty(&outcome.messages).unwrap();
        assert_eq!(ours.events, real.events, "{name}");
        assert_eq!(text(&ours), text(&real), "{name}");
    }
}

async fn outcome(
    talk: &Talk,
    scenario: &impl AsyncFn(&Talk, &EventRecorder, &str),
) -> ScenarioOutcome {
    let ears = talk.listen_closely().await;
    let id = talk.session(&json!({"title": "a story"})).await;
    scenario(talk, &ears, &id).await;
    let mut messages = json!(talk.messages(&id).await);
    for message in messages.as_array_mut().unwrap() {
        if message["info"].get("error").is_some() {
            message["info"]["error"] = message["info"]["error"]["name"].take();
        }
    }
    // Dropped are events whose number depends on timing (part updates, asynchronous totals), and
    // those of the answer: they are serialised when they are sent, so that the first one may
    // contain its end already.
    let mut events = labels(&ears.events(&id));
    let is_deterministic = |label: &String| {
        let tells = !["session.updated", "session.diff"].contains(&label.as_str());
        let is_answer = label.starts_with("message.updated assistant");
        tells && !is_answer && !label.starts_with("message.part.")
    };
    events.retain(is_deterministic);
    events.dedup_by(|next, last| next == last && next == "session.status busy");
    ScenarioOutcome { events, messages: shape(&messages) }
}

fn part_is(ears: &EventRecorder, id: &str, words: &str) -> bool {
    labels(&ears.events(id)).iter().any(|label| label == words)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stub_server_sends_the_same_events() {
    let both = ServerPair::start(Setup::default()).await;
    both.tell_the_same("text", async |talk, ears, id| {
        talk.prompt(id, "@say one two three | usage 10 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("tool", async |talk, ears, id| {
        talk.prompt(id, &format!("@say let me see | {BASH} | usage 10 5\n@say so | usage 20 5"))
            .await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("thought", async |talk, ears, id| {
        talk.prompt(id, "@think well | say yes | usage 10 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("todos", async |talk, ears, id| {
        let todo = json!({"content": "this", "status": "pending", "priority": "low"});
        let todos = json!({"todos": [todo]});
        talk.prompt(id, &format!("@call todowrite {todos} | usage 10 5\n@say so | usage 20 5"))
            .await;
        ears.until_idle(id, 1).await;
        let kept = talk.get(&format!("/session/{id}/todo")).await;
        assert_eq!(kept, json!([todo]));
    })
    .await;
    both.tell_the_same("unknown tool", async |talk, ears, id| {
        talk.prompt(id, "@call nonsense {} | usage 10 5\n@say so | usage 20 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("refusal", async |talk, ears, id| {
        talk.prompt(id, "@status 400 | say no such thing").await;
        ears.until_idle(id, 2).await;
    })
    .await;
    both.tell_the_same("retries", async |talk, ears, id| {
        talk.prompt(id, "@status 500 retry-after-ms=5 | say on fire").await;
        ears.until_idle(id, 2).await;
    })
    .await;
    both.tell_the_same("abort before the first word", async |talk, ears, id| {
        talk.prompt(id, "@hang").await;
        // An abort before the model is asked behaves differently: one idle event and no error.
        let asked = |_: &EventRecorder| {
            !both.model.asked_by(id).is_empty() || !both.ours.given(id).is_empty()
        };
        ears.until("the model is asked", asked).await;
        talk.post(&format!("/session/{id}/abort"), &json!({})).await;
        ears.until_idle(id, 2).await;
    })
    .await;
    both.tell_the_same("abort of a tool", async |talk, ears, id| {
        let sleep = json!({"command": "sleep 60", "description": "sleep"});
        talk.prompt(id, &format!("@call bash {sleep} | usage 10 5")).await;
        let running = "message.part.updated tool:bash/running";
        ears.until(running, |ears| part_is(ears, id, running)).await;
        let has_output = |ears: &EventRecorder| {
            ears.of_type(id, "message.part.updated").iter().any(|event| {
                event["properties"]["part"]["state"]["metadata"].get("output").is_some()
            })
        };
        ears.until("it has begun", has_output).await;
        talk.post(&format!("/session/{id}/abort"), &json!({})).await;
        ears.until_idle(id, 2).await;
    })
    .await;
    assert!(both.model.asked().len() > 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stub_server_sends_the_same_events_for_permissions_and_compaction() {
    let setup = Setup {
        config: json!({"permission": {"bash": "ask"}}),
        context: Some(20_000),
        ..Setup::default()
    };
    let both = ServerPair::start(setup).await;
    both.ours.ask_for("bash");
    both.ours.limit_context(20_000 - 8_192);
    for reply in ["once", "reject"] {
        both.tell_the_same(reply, async |talk, ears, id| {
            talk.prompt(id, &format!("@{BASH} | usage 10 5\n@say so | usage 20 5")).await;
            let asked = ears.until_event(id, "permission.asked").await;
            let running = "message.part.updated tool:bash/running";
            ears.until(running, |ears| part_is(ears, id, running)).await;
            let request = asked["properties"]["id"].as_str().unwrap();
            let path = format!("/permission/{request}/reply");
            talk.post(&path, &json!({"reply": reply})).await;
            ears.until_idle(id, 1).await;
        })
        .await;
    }
    both.tell_the_same("repeat", async |talk, ears, id| {
        let prompt = |text: &str| {
            let part = json!({"id": "prt_1e1031524001bbveXIp76rBwPo", "type": "text", "text": text});
            json!({"agent": "build", "messageID": "msg_1e103151c001dnrgD9npJRtIM4", "parts": [part]})
        };
        let path = format!("/session/{id}/prompt_async");
        talk.post(&path, &prompt("@status 400 | say no")).await;
        ears.until_idle(id, 2).await;
        talk.post(&path, &prompt("@say now | usage 10 5")).await;
        ears.until_idle(id, 3).await;
        talk.post(&path, &prompt("@say never | usage 10 5")).await;
        ears.until_idle(id, 4).await;
        assert_eq!(talk.messages(id).await.len(), 3);
    })
    .await;
    both.tell_the_same("too many tokens", async |talk, ears, id| {
        talk.prompt(id, "@say much | usage 15000 10\n@say on | usage 10 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("too long", async |talk, ears, id| {
        talk.prompt(id, "@overflow\n@say on | usage 10 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
    both.tell_the_same("two at once", async |talk, ears, id| {
        talk.prompt(id, "@wait 700 | say one | usage 10 5").await;
        ears.until("asked", |ears| !ears.of_type(id, "session.diff").is_empty()).await;
        talk.prompt(id, "@say two | usage 10 5").await;
        ears.until_idle(id, 1).await;
    })
    .await;
}
