//! Tasks on OpenCode servers: every way a run ends there, and every known fault of the servers. The
//! server is the tests' stub (see `opencode_stub`), which produces them on demand.

use std::time::Duration;

use asyncagents::host::opencode::Login;
use asyncagents::host::{Host as _, NewSession, Place, Servers as _};
use asyncagents::supervisor::{Asks, Caller, Error, Fork, ForkMethod, Launch, Settings, Target};
use asyncagents::task::Order;
use asyncagents::task::lifecycle::ResumePolicy;
use asyncagents::task::{Answerer, Phase, SessionId, Status, Task};
use serde_json::json;

use crate::support::on_opencode::{caller, general, visible};
use crate::support::{Fault, OnOpenCode, OpenCode, owes_notices, quoted, settings};

const HERE: &str = "/tmp";

/// Status, result and error.
fn end(task: &Task) -> (Status, &str, &str) {
    (task.status(), task.state.result().unwrap_or(""), task.state.error().unwrap_or(""))
}

/// Checks how a prompt ends, and that its parent gets one notice.
async fn check(world: &OnOpenCode, prompt: &str, expected: (Status, &str, &str)) {
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, prompt).await;
    assert_eq!(end(&task), expected, "{prompt}");
    assert_eq!(world.notices(&parent, 1).await.len(), 1, "{prompt}");
}

const TOOL: &str = "@call bash {\"command\": \"echo hello\"}\n@say found it";

#[tokio::test]
async fn a_child_runs_a_tool_and_its_parent_is_notified_once_and_woken_with_the_result() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, TOOL).await;
    assert_eq!(end(&task), (Status::Completed, "found it", ""));
    let told = world.notices(&parent, 1).await;
    assert!(told[0].starts_with("✓ **Agent \"look around\" finished in "), "{told:?}");
    assert!(told[0].ends_with("Task Progress: 1/1"), "{told:?}");
    let server = &world.server;
    server.until("its model is woken", |server| server.given(&parent).len() == 2).await;
    let given = server.given(&parent).pop().unwrap();
    assert_eq!(given[0], told[0]);
    let result = quoted(&format!("Result of task {}", task.short_id), "found it");
    assert!(given[1].starts_with("All 1 tasks finished.\n"), "{given:?}");
    assert!(given[1].ends_with(&result), "{given:?}");
    assert_eq!(task.progress.tool_calls, 1);
    assert_eq!(task.progress.last_tools, ["bash"]);
}

#[tokio::test]
async fn three_parallel_tasks_are_a_batch_and_each_is_notified_once() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(world.launch(&parent, "@hang").await);
    }
    for task in &tasks {
        world.server.until_busy(task.id.as_str()).await;
        world.server.finish(task.id.as_str(), "done");
        world.ended(task).await;
    }
    let told = world.notices(&parent, 3).await;
    let progress: Vec<&str> = told.iter().filter_map(|text| text.lines().last()).collect();
    assert_eq!(progress, ["Task Progress: 1/3", "Task Progress: 2/3", "Task Progress: 3/3"]);
}

#[tokio::test]
async fn g11_a_child_has_parent_title_nonce_and_rules_which_no_prompt_replaces() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, "@say done").await;
    let session = world.server.session(task.id.as_str()).unwrap();
    let deny = |tool: &str| json!({"permission": tool, "pattern": "*", "action": "deny"});
    let tools =
        ["asyncagents_*", "superagents_*", "background_*", "Task", "task", "question"].map(deny);
    assert_eq!(session["parentID"], parent);
    assert_eq!(session["title"], "Background: look around");
    assert_eq!(session["permission"], json!(tools));
    assert_eq!(session["metadata"]["asyncagents"].as_str().unwrap().len(), 32);
    let resumed = world.supervisor.resume(&task.id, "@say again".into()).await.unwrap();
    assert_eq!(end(&world.ended(&resumed).await), (Status::Completed, "again", ""));
    let session = world.server.session(task.id.as_str()).unwrap();
    assert_eq!(session["permission"], json!(tools), "also after a resume");
    for prompt in world.server.posts(task.id.as_str(), "prompt_async") {
        assert_eq!(prompt["agent"], "general");
        assert_eq!(prompt.get("tools"), None);
        assert!(prompt["messageID"].as_str().unwrap().starts_with("msg_"));
        assert!(prompt["parts"][0]["id"].as_str().unwrap().starts_with("prt_"));
    }
    assert_eq!(world.notices(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn g3_absent_from_the_status_right_after_the_204_is_not_done() {
    let world = OnOpenCode::start().await;
    world.server.be_slow_to_start(Duration::from_millis(300), Duration::from_millis(400));
    check(&world, TOOL, (Status::Completed, "found it", "")).await;
}

#[tokio::test]
async fn g4_every_row_of_the_table_becomes_what_it_means() {
    let world = OnOpenCode::start().await;
    world.server.pause_between_idles(Duration::from_millis(60));
    check(&world, "@say done", (Status::Completed, "done", "")).await;
    let cut_off = (Status::Completed, "cut\n\n[cut off: the model reached its output limit]", "");
    check(&world, "@say cut | finish length", cut_off).await;
    let refused = world.server.parent(HERE).await;
    let task = world.end_of(&refused, "@status 400 | say no").await;
    assert_eq!(task.status(), Status::Error);
    assert!(!task.state.error().unwrap().is_empty());
    assert_eq!(world.notices(&refused, 1).await.len(), 1);
}

/// The number of transcript calls to the host, after showing this transcript.
async fn fetched(world: &OnOpenCode, task: &Task) -> u64 {
    world.supervisor.shown_transcript(task).await.unwrap();
    transcripts_asked(world)
}

fn transcripts_asked(world: &OnOpenCode) -> u64 {
    let metrics = world.supervisor.measured().unwrap();
    let lines = metrics.lines().filter(|line| {
        line.starts_with("asyncagents_host_calls_total") && line.contains("\"transcript\"")
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn a_cached_transcript_is_shown_until_events_of_the_host_invalidate_it() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    let task = world.supervisor.task(&task.id).unwrap();
    // Events of the start still invalidate the cache: poll until they have all arrived.
    let mut before = fetched(&world, &task).await;
    loop {
        let now = fetched(&world, &task).await;
        if now == std::mem::replace(&mut before, now) {
            break;
        }
    }
    // Events may be lost with the stream, so a reconnect has to invalidate the cache.
    world.server.close_streams();
    while fetched(&world, &task).await == before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    world.server.finish(task.id.as_str(), "found it");
    let task = world.ended(&task).await;
    let shown = world.supervisor.shown_transcript(&task).await.unwrap();
    assert!(shown.contains("found it"), "an end is read from the host");
}

#[tokio::test]
async fn a_host_that_fails_to_return_the_transcript_of_a_live_task_is_asked_once() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let new = world.launch(&parent, "@hang").await;
    let resumed = world.end_of(&parent, "@say one").await;
    let is_kept = |_: &OpenCode| {
        let kept = world.store.transcripts().kept(&resumed.id);
        kept.unwrap().is_some()
    };
    world.server.until("its transcript is kept", is_kept).await;
    let resumed = world.supervisor.resume(&resumed.id, "@hang".into()).await.unwrap();
    for task in [&new, &resumed] {
        world.at_work(task).await;
        let is_heard = |_: &OpenCode| world.host.version(&Place::from(task)).is_some();
        world.server.until("its events are received", is_heard).await;
    }
    world.server.spoil("GET /session/{id}/message", Fault::Status(500), usize::MAX);
    let before = transcripts_asked(&world);
    let error = world.supervisor.shown_transcript(&new).await.unwrap_err();
    assert_eq!(transcripts_asked(&world), before + 1, "{error}");
    let shown = world.supervisor.shown_transcript(&resumed).await.unwrap();
    assert!(shown.contains("one"), "what was kept: {shown}");
    assert_eq!(transcripts_asked(&world), before + 2);
}

#[tokio::test]
async fn with_a_cache_time_of_zero_a_transcript_is_always_fetched() {
    let settings = Settings { result_cache: Duration::ZERO, ..settings() };
    let world = OnOpenCode::with(settings, OpenCode::start().await).await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    let task = world.supervisor.task(&task.id).unwrap();
    for n in 1..=3 {
        assert_eq!(fetched(&world, &task).await, n);
    }
}

#[tokio::test]
async fn aborted_by_someone_in_the_host_is_cancelled() {
    let world = OnOpenCode::start().await;
    let hanging = "@hang";
    let in_a_tool = "@call bash {\"command\": \"sleep 600\"}\n@say never";
    let in_a_retry = "@status 500 retry-after-ms=60000";
    for prompt in [hanging, in_a_tool, in_a_retry] {
        let parent = world.server.parent(HERE).await;
        let task = world.launch(&parent, prompt).await;
        world.server.until_busy(task.id.as_str()).await;
        if prompt == in_a_retry {
            let retrying = |_: &OpenCode| world.progress(&task).phase == Phase::Retrying;
            world.server.until("it is retried", retrying).await;
            assert!(world.progress(&task).detail.is_some(), "with the server's message");
        }
        world.server.abort(task.id.as_str()).await;
        let expected = (Status::Cancelled, "", "aborted in the host");
        assert_eq!(end(&world.ended(&task).await), expected, "{prompt}");
        assert_eq!(world.notices(&parent, 1).await.len(), 1);
    }
}

#[tokio::test]
async fn g5_an_overflow_is_no_end_and_the_summary_no_answer() {
    let world = OnOpenCode::start().await;
    let prompt = "@overflow\n@say after the compaction";
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, prompt).await;
    assert_eq!(task.status(), Status::Completed, "{task:?}");
    let messages = world.server.messages(task.id.as_str());
    assert!(messages.iter().any(|message| message["info"]["summary"] == true), "{messages:?}");
    let last = messages.last().unwrap()["parts"].as_array().unwrap();
    let text = last.iter().find_map(|part| part["text"].as_str()).unwrap();
    assert_eq!(task.state.result(), Some(text));
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn g6_an_unknown_agent_is_refused_with_those_that_are_there_and_nothing_is_created() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let order = Order { agent: "nobody".into(), ..general("look") };
    let error = world.try_launch(&parent, order).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Agent \"nobody\" not found. Make sure it's registered. Known agents: build, explore, \
         general, plan"
    );
    assert_eq!(world.server.children(&parent), Vec::<serde_json::Value>::new());
}

#[tokio::test]
async fn g6_an_error_that_only_the_run_reveals_ends_the_task_and_notifies_the_parent() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let order = Order { model: Some("scripted/nosuch".into()), ..general("@say x") };
    let task = world.try_launch(&parent, order).await.unwrap();
    let task = world.ended(&task).await;
    assert_eq!(task.status(), Status::Error);
    assert!(task.state.error().unwrap().contains("Model not found"), "{task:?}");
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_model_without_a_provider_is_refused_at_launch() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let order = Order { model: Some("sonnet".into()), ..general("@say x") };
    let refused = world.try_launch(&parent, order).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no model `sonnet` on OpenCode; name it as `provider/model` (`opencode models` lists them), or \
         leave it out for the agent's own"
    );
    assert_eq!(world.server.children(&parent), Vec::<serde_json::Value>::new());
}

#[tokio::test]
async fn g7_a_failure_that_the_server_retries_is_no_end() {
    let world = OnOpenCode::start().await;
    let prompt = "@once 500 retry-after-ms=50 | say found";
    check(&world, prompt, (Status::Completed, "found", "")).await;
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, "@status 500 retry-after-ms=5 | say on fire").await;
    assert_eq!(task.status(), Status::Error);
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn g8_a_copy_by_the_server_is_nobodys_child_and_gets_our_title_rules_and_nonce() {
    let native = Settings { fork_method: ForkMethod::Native, ..settings() };
    let world = OnOpenCode::with(native, OpenCode::start().await).await;
    let parent = world.server.parent(HERE).await;
    let before = world.server.messages(&parent).len();
    let launch = Launch { wanted: general("@say copied").into(), fork: Fork::Caller, key: None };
    let task = world.supervisor.launch(caller(&parent), launch).await.unwrap();
    assert_eq!(end(&world.ended(&task).await), (Status::Completed, "copied", ""));
    let session = world.server.session(task.id.as_str()).unwrap();
    assert_eq!(session.get("parentID"), None);
    assert_eq!(session["title"], "Background (forked): look around");
    assert_eq!(session["metadata"]["asyncagents"].as_str().unwrap().len(), 32);
    assert_eq!(session["permission"][0]["action"], "deny");
    assert_eq!(world.server.messages(task.id.as_str()).len(), before + 2);
    assert_eq!(world.notices(&parent, 1).await.len(), 1, "the parent is told all the same");
}

#[tokio::test]
async fn g16_every_prompt_is_sent_without_waiting_for_the_answer() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let long = format!("@say done\n{}", "x".repeat(500_000));
    assert_eq!(end(&world.end_of(&parent, &long).await), (Status::Completed, "done", ""));
    world.notices(&parent, 1).await;
    let calls = world.server.all_calls();
    assert!(!calls.contains_key("POST /session/{id}/message"), "{calls:?}");
}

#[tokio::test]
async fn g9_a_deleted_parent_cancels_its_tasks_only_and_their_runs_are_stopped() {
    let world = OnOpenCode::start().await;
    let (parent, other) = (world.server.parent(HERE).await, world.server.parent(HERE).await);
    let task = world.launch(&parent, "@hang").await;
    let spared = world.launch(&other, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    world.server.delete(&parent);
    let ended = world.ended(&task).await;
    assert_eq!(ended.status(), Status::Cancelled);
    let error = ended.state.error().unwrap();
    assert!(["Parent session deleted", "Session deleted"].contains(&error), "{error}");
    let again = world.supervisor.task(&spared.id).unwrap();
    assert!(again.is_live(), "{again:?}");
}

#[tokio::test]
async fn g9_a_deleted_session_is_cancelled() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    world.server.delete(task.id.as_str());
    assert_eq!(end(&world.ended(&task).await), (Status::Cancelled, "", "Session deleted"));
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn g10_a_cancelled_task_is_stopped_on_the_server_and_recorded_without_waking_the_caller() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@call bash {\"command\": \"sleep 600\"}").await;
    world.server.until_busy(task.id.as_str()).await;
    world.supervisor.cancel(&caller(&parent), Target::Task(task.id.clone())).await.unwrap();
    world.server.until("it is idle", |server| server.is_idle(task.id.as_str())).await;
    assert_eq!(world.ended(&task).await.status(), Status::Cancelled);
    world.notices(&parent, 1).await;
    let posted = world.server.posts(&parent, "prompt_async").pop().unwrap();
    assert_eq!(posted["noReply"], true);
    assert_eq!(world.server.given(&parent).len(), 1, "nobody was woken");
}

#[tokio::test]
async fn g12_a_permission_is_parked_shown_and_answered() {
    let world = OnOpenCode::start().await;
    world.server.ask_for("bash");
    for (allow, status) in [(true, Status::Completed), (false, Status::Error)] {
        let parent = world.server.parent(HERE).await;
        let task = world.launch(&parent, TOOL).await;
        let blocked = |_: &OpenCode| world.progress(&task).phase == Phase::Blocked;
        world.server.until("it asks", blocked).await;
        let asked = world.supervisor.asks();
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0].ask.what, "bash echo hello");
        use asyncagents::supervisor::Answer;
        let answer = if allow { Answer::Allow } else { Answer::Deny };
        world.supervisor.answer(task.id.as_str(), answer, Answerer::default()).await.unwrap();
        let task = world.ended(&task).await;
        assert_eq!(task.status(), status, "{task:?}");
        if !allow {
            let error = task.state.error().unwrap();
            assert!(error.starts_with("stopped because permission was refused: bash: "), "{error}");
        }
        assert_eq!(world.notices(&parent, 1).await.len(), 1);
    }
}

#[tokio::test]
async fn t15_a_parked_request_is_denied_after_a_configurable_time_even_if_its_event_is_lost() {
    let server = OpenCode::start().await;
    let settings = Settings { asks: Asks::Park(Some(Duration::from_millis(200))), ..settings() };
    let world = OnOpenCode::with(settings, server).await;
    world.server.ask_for("bash");
    world.server.lose_next("permission.asked");
    let parent = world.server.parent(HERE).await;
    let task = world.end_of(&parent, TOOL).await;
    assert_eq!(task.status(), Status::Error, "{task:?}");
}

#[tokio::test]
async fn g13_the_parents_agent_and_model_are_kept_as_they_are() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let before = world.server.messages(&parent)[0]["info"].clone();
    world.end_of(&parent, "@say done").await;
    world.notices(&parent, 1).await;
    let posted = world.server.posts(&parent, "prompt_async").pop().unwrap();
    assert_eq!(posted["agent"], before["agent"]);
    assert_eq!(posted["model"]["modelID"], before["model"]["modelID"]);
    assert_eq!(posted["model"]["providerID"], before["model"]["providerID"]);
}

#[tokio::test]
async fn g19_a_server_killed_in_mid_run_is_continued_once_then_the_run_is_interrupted() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.at_work(&task).await;
    world.server.restart().await;
    assert_eq!(end(&world.ended(&task).await).0, Status::Completed);
    let prompts = world.server.posts(task.id.as_str(), "prompt_async");
    assert_eq!(prompts.len(), 2, "the prompt, and one to go on");
    assert_eq!(world.notices(&parent, 1).await.len(), 1);

    let task = world.launch(&parent, "@hang").await;
    world.at_work(&task).await;
    world.server.be_slow_to_start(Duration::ZERO, Duration::from_secs(600));
    world.server.restart().await;
    let prompts = |server: &OpenCode| server.posts(task.id.as_str(), "prompt_async").len();
    world.server.until("it is continued", |server| prompts(server) == 2).await;
    world.server.restart().await;
    let expected = "interrupted: the host was restarted again during the run";
    assert_eq!(end(&world.ended(&task).await), (Status::Error, "", expected));
    assert_eq!(world.notices(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn g20_a_parent_that_does_not_exist_fails_the_launch() {
    let world = OnOpenCode::start().await;
    let error = world.try_launch("ses_nobody", general("look")).await.unwrap_err();
    assert!(matches!(error, Error::Host(_)), "{error:?}");
    assert_eq!(world.server.sessions().len(), 0);
}

#[tokio::test]
async fn todos_left_open_get_one_prompt_to_go_on_and_are_named_in_the_notice() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let todos = json!({"todos": [
        {"content": "first", "status": "completed", "priority": "high"},
        {"content": "second", "status": "pending", "priority": "low"},
    ]});
    let task = world.launch(&parent, &format!("@call todowrite {todos}\n@say half")).await;
    let task = world.ended(&task).await;
    assert_eq!(task.status(), Status::Completed);
    assert_eq!(world.server.posts(task.id.as_str(), "prompt_async").len(), 2);
    world.notices(&parent, 1).await;
    let notice = world.server.posts(&parent, "prompt_async").pop().unwrap();
    assert!(notice["parts"][1]["text"].as_str().unwrap().contains("second"), "{notice}");
}

#[tokio::test]
async fn a_run_whose_daemon_was_killed_goes_on_and_is_notified_once() {
    let mut world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.at_work(&task).await;
    world.restart();
    world.server.finish(task.id.as_str(), "done");
    assert_eq!(end(&world.ended(&task).await), (Status::Completed, "done", ""));
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
    assert_eq!(world.server.posts(task.id.as_str(), "prompt_async").len(), 1, "prompted once");
}

#[tokio::test]
async fn a_prompt_typed_into_a_busy_child_is_merged_and_one_answer_ends_both() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang\n@say ours").await;
    world.server.until_busy(task.id.as_str()).await;
    world.server.prompt(task.id.as_str(), "and this\n@say both").await;
    let stored = |server: &OpenCode| {
        let messages = server.messages(task.id.as_str());
        messages.iter().filter(|message| message["info"]["role"] == "user").count() == 2
    };
    world.server.until("it is stored", stored).await;
    world.server.finish(task.id.as_str(), "first");
    let task = world.ended(&task).await;
    assert_eq!(end(&task), (Status::Completed, "both", ""));
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn a_busy_parent_is_notified_once_and_answers_when_it_is_free() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    world.server.prompt(&parent, "work\n@hang").await;
    world.server.until_busy(&parent).await;
    world.end_of(&parent, "@say done").await;
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
    world.server.finish(&parent, "mine");
    world.server.until("it is idle", |server| server.is_idle(&parent)).await;
    assert_eq!(visible(&world.server, &parent).len(), 1);
}

#[tokio::test]
async fn a_notice_whose_answer_got_lost_is_looked_up_before_it_is_sent_again() {
    let world = OnOpenCode::start().await;
    for fault in [Fault::AnswerLost, Fault::Cut, Fault::Status(500)] {
        let parent = world.server.parent(HERE).await;
        let task = world.launch(&parent, "@hang").await;
        world.server.until_busy(task.id.as_str()).await;
        world.server.spoil("POST /session/{id}/prompt_async", fault, 1);
        world.server.finish(task.id.as_str(), "done");
        world.ended(&task).await;
        world.notices(&parent, 1).await;
        let delivered = |_: &OpenCode| !owes_notices(&world.store);
        world.server.until("it counts as delivered", delivered).await;
        let notices: Vec<String> = visible(&world.server, &parent);
        assert_eq!(notices.len(), 1, "{fault:?}: {notices:?}");
    }
}

#[tokio::test]
async fn a_launch_interrupted_by_a_crash_is_found_again_by_its_nonce() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    for parent in [Some(Place::unknown(SessionId::new(parent))), None] {
        let new = NewSession {
            parent,
            title: "Background: look".into(),
            nonce: format!("nonce{}", world.server.sessions().len()),
            directory: HERE.into(),
            agent: "general".into(),
            deny: Vec::new(),
            handed: Default::default(),
        };
        assert_eq!(world.host.find(new.clone()).await.unwrap(), []);
        let opened = world.host.open(new.clone()).await.unwrap();
        assert_eq!(world.host.find(new.clone()).await.unwrap(), std::slice::from_ref(&opened));
        // A launch that was retried opens a second session with the same nonce.
        let twin = world.host.open(new.clone()).await.unwrap();
        let mut both = [opened, twin];
        both.sort_by(|one, other| one.session.cmp(&other.session));
        assert_eq!(world.host.find(new.clone()).await.unwrap(), both);
        for opened in both {
            world.host.delete(Place::of_child(&opened, HERE)).await.unwrap();
        }
        assert_eq!(world.host.find(new.clone()).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_launch_without_a_parent_is_found_again_on_the_server_where_it_was_opened() {
    let (one, other) = (OpenCode::start().await, OpenCode::start().await);
    let servers = |names: &[(&str, &OpenCode)]| {
        let named = names.iter().map(|(name, server)| ((*name).to_owned(), server.url()));
        named.collect::<Vec<_>>()
    };
    let long = Duration::from_secs(30);
    let only = servers(&[("second", &other)]);
    let before = OnOpenCode::build(settings(), other.clone(), only, None, long).await;
    let new = NewSession {
        parent: None,
        title: "Background: look".into(),
        nonce: "nonce".into(),
        directory: HERE.into(),
        agent: "general".into(),
        deny: Vec::new(),
        handed: Default::default(),
    };
    let opened = before.host.open(new.clone()).await.unwrap();
    let both = servers(&[("default", &one), ("second", &other)]);
    let after = OnOpenCode::build(settings(), one, both, None, long).await;
    assert_eq!(after.host.find(new.clone()).await.unwrap(), [opened]);
    // The session may be on the server that does not respond, so the lookup must fail and not
    // report it missing.
    other.stop();
    let why = after.host.find(new.clone()).await;
    assert!(why.is_err(), "{why:?}");
}

#[tokio::test]
async fn a_missing_password_is_named_in_the_error_and_a_given_one_is_used() {
    let server = OpenCode::start_with_password("secret").await;
    let parent = server.parent(HERE).await;
    let servers = vec![("default".to_owned(), server.url())];
    let long = Duration::from_secs(30);
    let locked = OnOpenCode::build(settings(), server.clone(), servers.clone(), None, long).await;
    let error = locked.try_launch(&parent, general("@say x")).await.unwrap_err().to_string();
    assert!(error.contains("OPENCODE_SERVER_PASSWORD"), "{error}");
    let login = Some(Login { name: "opencode".into(), password: "secret".into() });
    let world = OnOpenCode::build(settings(), server.clone(), servers, login, long).await;
    assert_eq!(world.end_of(&parent, "@say x").await.status(), Status::Completed);
    let inside = server.url().replace("http://", "http://opencode:secret@");
    let servers = vec![("default".to_owned(), inside)];
    let world = OnOpenCode::build(settings(), server, servers, None, long).await;
    assert_eq!(world.end_of(&parent, "@say x").await.status(), Status::Completed);
    let shown = &world.host.known().await[0].address;
    assert!(!shown.contains("secret") && shown.contains("…"), "{shown}");
}

#[tokio::test]
async fn g1_a_request_that_a_starting_server_never_answers_does_not_hold_up_the_launch() {
    let server = OpenCode::start().await;
    let parent = server.parent(HERE).await;
    server.swallow_requests();
    let world = OnOpenCode::with(settings(), server).await;
    let launching = world.try_launch(&parent, general("@say done"));
    let starting = async {
        let calls = || world.server.calls("GET /global/health");
        world.server.until("it receives a request", |_| calls() >= 1).await;
        world.server.behave();
    };
    let (task, ()) = tokio::join!(launching, starting);
    assert_eq!(world.ended(&task.unwrap()).await.status(), Status::Completed);
}

#[tokio::test]
async fn a_slow_server_is_not_taken_for_dead() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    world.server.delay(Duration::from_millis(1_500));
    let task = world.end_of(&parent, "@say done").await;
    assert_eq!(end(&task), (Status::Completed, "done", ""));
    world.server.behave();
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn g17_an_address_where_no_opencode_answers_is_reported_as_such() {
    let server = OpenCode::start().await;
    let servers = vec![("default".to_owned(), format!("{}/elsewhere", server.url()))];
    let long = Duration::from_secs(30);
    let world = OnOpenCode::build(settings(), server, servers, None, long).await;
    let Err(why) = world.host.known().await.remove(0).health else { panic!("it cannot be used") };
    assert!(why.contains("no OpenCode server answers there"), "{why}");
    assert!(world.host.put("other", "no address").is_err());
}

#[tokio::test]
async fn a_404_from_another_server_does_not_mean_that_a_parent_was_deleted() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    world.server.refuse_with(404);
    let asked = world.server.calls("GET /session/{id}");
    world.server.until("parents are asked for", |s| s.calls("GET /session/{id}") > asked).await;
    world.server.behave();
    assert!(world.supervisor.task(&task.id).unwrap().is_live());
    world.server.finish(task.id.as_str(), "done");
    assert_eq!(end(&world.ended(&task).await), (Status::Completed, "done", ""));
}

#[tokio::test]
async fn a_notice_that_was_accepted_but_not_stored_is_not_taken_for_delivered() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.server.until_busy(task.id.as_str()).await;
    // The message is accepted at once and stored later: the notice counts as delivered only then.
    world.server.be_slow_to_start(Duration::from_millis(700), Duration::ZERO);
    world.server.finish(task.id.as_str(), "done");
    world.ended(&task).await;
    let owed = || owes_notices(&world.store);
    assert!(owed());
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
    world.server.until("it counts as delivered", |_| !owed()).await;
    assert_eq!(visible(&world.server, &parent).len(), 1);
}

#[tokio::test]
async fn several_servers_work_at_once_and_one_may_come_back_on_another_port() {
    let (one, two) = (OpenCode::start().await, OpenCode::start().await);
    let servers = vec![("one".to_owned(), one.url()), ("two".to_owned(), two.url())];
    let long = Duration::from_secs(30);
    let world = OnOpenCode::build(settings(), one.clone(), servers, None, long).await;
    let (first, second) = (one.parent(HERE).await, two.parent(HERE).await);
    let (a, b) = (world.launch(&first, "@hang").await, world.launch(&second, "@hang").await);
    assert_eq!((a.origin.host_instance.as_str(), b.origin.host_instance.as_str()), ("one", "two"));
    world.at_work(&a).await;
    two.until_busy(b.id.as_str()).await;
    one.restart_on_new_port().await;
    two.finish(b.id.as_str(), "from two");
    assert_eq!(end(&world.ended(&b).await), (Status::Completed, "from two", ""));
    world.supervisor.add_server("one", &one.url()).await.unwrap();
    assert_eq!(world.ended(&a).await.status(), Status::Completed, "it was continued");
    assert_eq!(one.posts(a.id.as_str(), "prompt_async").len(), 2);
    assert_eq!(world.notices(&first, 1).await.len(), 1);
    two.until("the other parent is told", |two| visible(two, &second).len() == 1).await;
    let refused = world.supervisor.remove_server("two").await.unwrap_err().to_string();
    assert!(refused.contains("configuration file"), "{refused}");
}

/// A running task and its parent, on a server that may be unreachable for a short time only.
async fn at_work_with_little_patience() -> (OnOpenCode, String, Task) {
    let server = OpenCode::start().await;
    let servers = vec![("default".to_owned(), server.url())];
    let patience = Duration::from_millis(300);
    let world = OnOpenCode::build(settings(), server, servers, None, patience).await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.at_work(&task).await;
    (world, parent, task)
}

#[tokio::test]
async fn runs_of_a_server_that_is_gone_for_too_long_end_in_error() {
    let (world, parent, task) = at_work_with_little_patience().await;
    world.server.stop();
    let expected = "interrupted: its OpenCode process has been gone for too long";
    assert_eq!(end(&world.ended(&task).await), (Status::Error, "", expected));
    world.server.start_again().await;
    assert_eq!(world.notices(&parent, 1).await.len(), 1, "told when it is back");
}

#[tokio::test]
async fn a_run_given_up_on_a_server_that_was_cut_off_is_stopped_when_that_is_back() {
    let (world, parent, task) = at_work_with_little_patience().await;
    // The run continues, but the server refuses every request.
    world.server.refuse_with(503);
    world.server.close_streams();
    assert_eq!(world.ended(&task).await.status(), Status::Error);
    assert!(!world.server.is_idle(task.id.as_str()));
    world.server.behave();
    world.server.until("it is stopped", |server| server.is_idle(task.id.as_str())).await;
    assert_eq!(world.notices(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn simultaneous_ends_are_notified_in_order_and_once_although_responses_are_lost() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let task = world.launch(&parent, "@hang").await;
        world.at_work(&task).await;
        tasks.push(task);
    }
    // The first notice fails, so that the others queue up behind it and go out as one batch; then
    // one response in that batch is lost.
    world.server.spoil("POST /session/{id}/prompt_async", Fault::Status(500), 1);
    for task in &tasks {
        world.server.finish(task.id.as_str(), task.short_id.as_str());
        world.ended(task).await;
    }
    world.server.until("the first is told", |s| !visible(s, &parent).is_empty()).await;
    world.server.spoil("POST /session/{id}/prompt_async", Fault::AnswerLost, 1);
    let owed = || owes_notices(&world.store);
    world.server.until("nothing is owed", |_| !owed()).await;
    let told: Vec<String> = visible(&world.server, &parent);
    let expected: Vec<String> = (1..=8).map(|n| format!("Task Progress: {n}/8")).collect();
    let progress = |text: &String| text.lines().nth(1).unwrap_or_default().to_owned();
    assert_eq!(told.iter().map(progress).collect::<Vec<_>>(), expected, "{told:?}");
    let sent = world.server.count_posts(&parent, "prompt_async");
    assert_eq!(sent, 1 + 8, "the parent's own prompt and each notice once");
}

#[tokio::test]
async fn a_toast_is_shown_at_each_end_unless_they_are_switched_off() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    world.end_of(&parent, "@say done").await;
    world.server.until("a toast is shown", |server| server.toasts().len() == 1).await;
    let toast = world.server.toasts().remove(0);
    assert_eq!(toast["title"], "Background Task Completed");
    let message = toast["message"].as_str().unwrap();
    assert!(message.starts_with("Task \"look around\" finished in "), "{message}");
    assert_eq!(toast["variant"], "success");
    let quiet = Settings { toasts: false, ..settings() };
    let world = OnOpenCode::with(quiet, OpenCode::start().await).await;
    let parent = world.server.parent(HERE).await;
    world.end_of(&parent, "@say done").await;
    world.notices(&parent, 1).await;
    assert_eq!(world.server.toasts().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_rest_any_number_of_running_tasks_needs_at_most_two_calls_a_second() {
    let settings = Settings { poll_interval: Duration::from_secs(2), ..settings() };
    let world = OnOpenCode::with(settings, OpenCode::start().await).await;
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let parent = world.server.parent(HERE).await;
        for _ in 0..10 {
            tasks.push(world.launch(&parent, "@hang").await);
        }
    }
    let all_wait =
        |_: &OpenCode| tasks.iter().all(|task| world.progress(task).phase != Phase::Starting);
    world.server.until("all of them are seen at work", all_wait).await;
    let calls = || world.server.all_calls().values().sum::<usize>();
    let quiet = async |window: Duration| {
        let (before, at) = (calls(), std::time::Instant::now());
        tokio::time::sleep(window).await;
        (calls() - before) as f64 / at.elapsed().as_secs_f64()
    };
    // Calls that belong to the launches may take a few more seconds.
    quiet(Duration::from_secs(4)).await;
    let rate = quiet(Duration::from_secs(10)).await;
    assert!(rate <= 2.0, "{rate} calls a second: {:?}", world.server.all_calls());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_end_right_and_once_although_events_are_dropped_doubled_and_reordered() {
    const TASKS: usize = 1_000;
    const PARENTS: usize = 20;
    let world = OnOpenCode::start().await;
    let mut parents = Vec::new();
    for _ in 0..PARENTS {
        parents.push(world.server.parent(HERE).await);
    }
    world.server.shake_events(0.3, 20_261_116);
    let prompts =
        ["@say right 0", "@call bash {\"command\": \"echo\"}\n@say right 1", "@status 400"];
    let launch = async {
        let mut tasks = Vec::with_capacity(TASKS);
        for n in 0..TASKS {
            let prompt = prompts[n % prompts.len()];
            tasks.push(world.launch(&parents[n % PARENTS], prompt).await);
        }
        tasks
    };
    let disturb = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            world.server.close_streams();
        }
    };
    let ended = async {
        let tasks = launch.await;
        let mut ended = Vec::with_capacity(TASKS);
        for task in &tasks {
            ended.push(world.ended(task).await);
        }
        ended
    };
    let ended = tokio::select! {
        ended = ended => ended,
        () = disturb => unreachable!("it goes on for ever"),
    };
    for (n, task) in ended.iter().enumerate() {
        let expected = match n % prompts.len() {
            0 => (Status::Completed, Some("right 0")),
            1 => (Status::Completed, Some("right 1")),
            _ => (Status::Error, None),
        };
        assert_eq!((task.status(), task.state.result()), expected, "{n}: {task:?}");
    }
    for parent in &parents {
        let told = world.notices(parent, TASKS / PARENTS).await;
        assert_eq!(told.len(), TASKS / PARENTS, "none twice");
    }
}

#[tokio::test]
async fn on_a_local_server_a_path_that_is_no_directory_is_refused_at_launch() {
    let world = OnOpenCode::start().await;
    let parent = world.server.parent(HERE).await;
    let directory = "/nowhere".to_owned();
    let caller = Caller { directory, ..caller(&parent) };
    let launch = Launch { wanted: general("look").into(), fork: Fork::No, key: None };
    let refused = world.supervisor.launch(caller, launch).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "host refused: the directory `/nowhere` does not exist; name an existing directory by its \
         absolute path"
    );
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn an_abort_that_is_slow_to_arrive_does_not_stop_the_next_run() {
    let any = Settings { resumable: ResumePolicy::AnyEnded, ..settings() };
    let world = OnOpenCode::with(any, OpenCode::start().await).await;
    let parent = world.server.parent(HERE).await;
    let task = world.launch(&parent, "@hang").await;
    world.at_work(&task).await;
    let abort = "POST /session/{id}/abort";
    world.server.delay(Duration::from_millis(300));
    let target = Target::Task(task.id.clone());
    world.supervisor.cancel(&caller(&parent), target).await.unwrap();
    world.server.until("the request is in flight", |server| server.calls(abort) == 1).await;
    world.server.behave();
    let resumed = world.supervisor.resume(&task.id, "@hang".into()).await.unwrap();
    world.at_work(&resumed).await;
    assert_eq!(world.server.calls(abort), 1, "it had arrived before the run began");
    world.server.finish(task.id.as_str(), "done");
    assert_eq!(end(&world.ended(&resumed).await), (Status::Completed, "done", ""));
}
