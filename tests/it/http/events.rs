//! The event stream (SSE) over real TCP: snapshot, replay after a reconnect, slow readers and many
//! readers.

use std::io::Write;

use asyncagents::host::scripted::Control;
use asyncagents::task::SessionId;
use asyncagents::wire::{StatsView, TaskView};
use serde_json::Value;

use crate::support::process::{Shell, until};
use crate::support::web::{Event, Site, fields};

fn descriptions(snapshot: &Event) -> Vec<String> {
    let tasks = snapshot.data["tasks"].as_array().unwrap().iter();
    let first_word = |text: &str| text.split(' ').next().unwrap().to_owned();
    tasks.map(|task| first_word(task["description"].as_str().unwrap())).collect()
}

#[test]
fn sends_snapshot_on_initial_connection() {
    let shell = Shell::new();
    shell.launch_to_the_end("first\n@say done");
    shell.launch_hanging("second");
    let site = Site::of(&shell);
    let event = site.events("").next().unwrap();
    assert_eq!(event.name, "snapshot");
    let fields = fields(&event.data);
    assert_eq!(fields, ["stats", "tasks", "total"]);
    let tasks: Vec<TaskView> = serde_json::from_value(event.data["tasks"].clone()).unwrap();
    assert_eq!((tasks, &event.data["total"]), (shell.tasks(), &2.into()));
    let stats: StatsView = serde_json::from_value(event.data["stats"].clone()).unwrap();
    assert_eq!(stats, site.read("/v1/stats"));
}

#[test]
fn the_snapshot_has_all_live_tasks_and_the_newest_others_up_to_a_limit() {
    let mut shell = Shell::new();
    let config = shell.path("config.toml");
    std::fs::write(&config, "[api]\nsnapshot_tasks = 2").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", config);
    shell.launch("live\n@hang");
    for name in ["one", "two", "three"] {
        shell.launch_to_the_end(&format!("{name}\n@say done"));
    }
    let event = Site::of(&shell).events("").next().unwrap();
    assert_eq!(descriptions(&event), ["three", "two", "live"]);
    assert_eq!(event.data["total"], 4);
}

#[test]
fn a_snapshot_is_shared_until_something_changes_or_is_pruned() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let snapshot = || descriptions(&site.events("").next().unwrap());
    shell.launch_to_the_end("one\n@say done");
    assert_eq!((snapshot(), snapshot()), (vec!["one".to_owned()], vec!["one".to_owned()]));
    shell.launch_to_the_end("two\n@say done");
    assert_eq!(snapshot(), ["two", "one"]);
    shell.say(["prune", "--keep", "1"]);
    assert_eq!(snapshot(), ["two"]);
}

#[test]
fn sends_task_created_when_new_task_launches() {
    let shell = Shell::new();
    let mut events = Site::start(&shell).events("");
    assert_eq!(descriptions(&events.next().unwrap()), [""; 0]);
    let task = shell.launch("@hang");
    let event = events.next().unwrap();
    assert_eq!((event.name.as_str(), event.task()), ("task.created", task));
}

#[test]
fn sends_task_updated_when_task_progress_changes() {
    let shell = Shell::new();
    let mut events = Site::start(&shell).events("");
    shell.launch("@tool read {\"path\":\"a\"}\n@hang");
    loop {
        let event = events.until("task.updated");
        let progress = event.task().progress;
        if progress.tool_calls == 1 {
            assert_eq!(progress.last_tools, ["read"]);
            break;
        }
    }
}

#[test]
fn sends_task_completed_when_task_finishes_successfully() {
    let shell = Shell::new();
    let mut events = Site::start(&shell).events("");
    let task = shell.launch_to_the_end("@say found it");
    assert_eq!(events.until("task.completed").task(), task);
    assert_eq!(task.result.as_deref(), Some("found it"));
}

#[test]
fn sends_task_error_when_task_fails() {
    let shell = Shell::new();
    let mut events = Site::start(&shell).events("");
    let task = shell.launch_to_the_end("@fail overloaded");
    assert_eq!(events.until("task.error").task(), task);
    assert_eq!(task.error.as_deref(), Some("overloaded"));
}

#[test]
fn sends_task_cancelled_when_task_is_cancelled() {
    let shell = Shell::new();
    let mut events = Site::start(&shell).events("");
    let task = shell.launch("@hang");
    shell.say(["cancel", &task.session_id]);
    let event = events.until("task.cancelled");
    assert_eq!(event.task(), shell.task(&task.session_id));
    assert_eq!(event.task().status.name(), "cancelled");
}

#[test]
fn a_resume_begins_as_task_updated_and_ends_as_task_completed() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("@say done");
    let mut events = Site::of(&shell).events("");
    assert_eq!(events.next().unwrap().name, "snapshot");
    shell.say(["resume", &task.session_id, "@say more"]);
    let first = events.next().unwrap();
    assert_eq!((first.name.as_str(), first.task().status.name()), ("task.updated", "resumed"));
    let last = events.until("task.completed").task();
    assert_eq!((last.result.as_deref(), last.resume_count), (Some("more"), 1));
    shell.say(["clear"]);
    let cleared = events.until("task.updated").task();
    assert!(cleared.cleared_at.is_some());
}

#[test]
fn sends_heartbeat_every_30_seconds() {
    let mut shell = Shell::new();
    assert_eq!(asyncagents::config::Api::default().heartbeat.as_secs(), 30);
    // The same test with one second instead of thirty.
    let config = shell.path("config.toml");
    std::fs::write(&config, "[api]\nheartbeat_seconds = 1").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", config);
    let mut events = Site::start(&shell).events("");
    let snapshot = events.next().unwrap();
    for _ in 0..2 {
        let began = std::time::Instant::now();
        let event = events.next().unwrap();
        assert_eq!((event.name.as_str(), event.id), ("heartbeat", snapshot.id));
        let fields = fields(&event.data);
        assert_eq!(fields, ["ts"]);
        let ts: asyncagents::task::Timestamp =
            serde_json::from_value(event.data["ts"].clone()).unwrap();
        assert_eq!(Value::from(ts.to_string()), event.data["ts"]);
        assert!(began.elapsed().as_millis() > 500, "only after an idle interval");
    }
}

#[test]
fn sends_fresh_snapshot_on_reconnection() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let mut events = site.events("");
    shell.launch_to_the_end("first\n@say done");
    let seen = events.until("task.completed");
    drop(events);
    shell.launch_to_the_end("second\n@say done");
    let mut events = site.events("");
    let snapshot = events.next().unwrap();
    assert_eq!(snapshot.name, "snapshot");
    assert_eq!(descriptions(&snapshot), ["second", "first"]);
    assert!(snapshot.id > seen.id);
    shell.launch("third\n@hang");
    let next = events.next().unwrap();
    assert_eq!((next.name.as_str(), next.id), ("task.created", snapshot.id + 1));
}

#[test]
fn since_replays_buffered_events_and_otherwise_begins_with_a_snapshot() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let mut events = site.events("");
    shell.launch_to_the_end("first\n@say done");
    let mut all = vec![events.until("task.created")];
    while all.last().unwrap().name != "task.completed" {
        all.push(events.next().unwrap());
    }
    let ids: Vec<u64> = all.iter().map(|event| event.id).collect();
    let counted: Vec<u64> = (ids[0]..).take(ids.len()).collect();
    assert_eq!(ids, counted, "every change, in order");
    let mut again = site.events(&format!("?since={}", ids[0] - 1));
    for event in &all {
        assert_eq!(again.next().as_ref(), Some(event));
    }
    let mut rest = site.events(&format!("?since={}", ids[0]));
    assert_eq!(rest.next().as_ref(), Some(&all[1]));
    let mut future = site.events("?since=1000000");
    assert_eq!(future.next().unwrap().name, "snapshot");
    // The replay buffer does not survive a restart, but the ids continue.
    let last = *ids.last().unwrap();
    shell.kill_daemon();
    let site = Site::start(&shell);
    let snapshot = site.events(&format!("?since={}", ids[0])).next().unwrap();
    assert_eq!((snapshot.name.as_str(), snapshot.id), ("snapshot", last));
    assert_eq!(site.get("/v1/events?since=first").status, 400);
}

#[test]
fn many_clients_see_the_same_events_in_the_same_order() {
    let shell = Shell::with_host_process();
    let site = Site::start(&shell);
    let mut clients: Vec<_> = (0..50).map(|_| site.events("")).collect();
    let tasks: Vec<TaskView> = (0..5).map(|_| shell.launch_hanging("one of many")).collect();
    for task in &tasks {
        shell.control(Control::Finish {
            session: SessionId::new(&task.session_id),
            text: "done".into(),
        });
    }
    until("all have ended", || shell.tasks().iter().all(|task| task.status.name() == "completed"));
    let mut heard = clients.iter_mut().map(|client| {
        let mut events = Vec::new();
        while events.iter().filter(|event: &&Event| event.name == "task.completed").count() < 5 {
            events.push(client.next().unwrap());
        }
        events
    });
    let first = heard.next().unwrap();
    assert!(first.windows(2).all(|pair| pair[1].id == pair[0].id + 1), "{first:?}");
    for other in heard {
        assert_eq!(other, first);
    }
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_slows_nobody() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let mut idle = site.connect();
    idle.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reading = site.events("");
    let clients = |n: u32| site.get("/metrics").body.contains(&format!("sse_clients {n}\n"));
    until("both are there", || clients(2));
    // Larger than all socket buffers on the way.
    let prompt = format!("@hang\n{}", "x".repeat(500_000));
    let file = shell.path("prompt");
    std::fs::write(&file, &prompt).unwrap();
    let client = shell.client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..40 {
        let request = crate::support::process::launch_request(&prompt);
        let task = runtime.block_on(client.launch(&request)).unwrap();
        loop {
            let event = reading.until("task.created");
            if event.task().session_id == task.session_id {
                break;
            }
        }
    }
    until("the other one is dropped", || clients(1));
}

#[test]
fn no_more_clients_than_allowed_read_the_stream() {
    let mut shell = Shell::new();
    let config = shell.path("config.toml");
    std::fs::write(&config, "[api]\nmax_streams = 2").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", config);
    let site = Site::start(&shell);
    let (first, _second) = (site.events(""), site.events(""));
    let refused = site.get("/v1/events");
    let text = "the event stream has as many clients as it may have; close one, or raise \
                `api.max_streams`";
    assert_eq!((refused.status, refused.error()), (503, text.to_owned()));
    drop(first);
    until("its stream is no longer counted", || {
        site.get("/metrics").body.contains("asyncagents_sse_clients 1\n")
    });
    assert_eq!(site.events("").next().unwrap().name, "snapshot");
}
