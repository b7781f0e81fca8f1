//! The status API over real TCP: lists, filters, totals, single tasks, and its OpenAPI document.

use asyncagents::task::Phase;
use asyncagents::wire::{
    GroupView, GroupsView, HealthView, MessagesView, PageView, StatsView, TaskView,
};
use serde_json::{Value, json};

use crate::support::process::{Shell, until};
use crate::support::web::{Site, fields};

/// These tests identify tasks by their descriptions.
fn launch(shell: &Shell, description: &str, agent: &str, prompt: &str) -> TaskView {
    let run = ["run", "--json", "--agent", agent, "--description", description, prompt];
    serde_json::from_value(shell.json(run)).unwrap()
}

fn finished(shell: &Shell, description: &str, agent: &str) -> TaskView {
    let task = launch(shell, description, agent, "@say done");
    shell.run(["wait", &task.session_id]);
    task
}

/// Three tasks: one failed, one completed, one running.
fn three() -> (Shell, Site) {
    let shell = Shell::new();
    let failed = launch(&shell, "Fix the Login", "build", "@fail overloaded");
    shell.run(["wait", &failed.session_id]);
    finished(&shell, "explore the login", "explore");
    let hangs = launch(&shell, "Ünïcode search", "explore", "@hang");
    let site = Site::of(&shell);
    let at_work = || site.task(&hangs.session_id).progress.phase == Phase::Waiting;
    until("all three have settled", at_work);
    (shell, site)
}

#[test]
fn returns_all_tasks_when_no_filters_applied() {
    let (shell, site) = three();
    let page: PageView = site.read("/v1/tasks");
    assert_eq!(page, PageView { tasks: shell.tasks(), total: 3, limit: 50, offset: 0 });
    let page: Value = site.read("/v1/tasks");
    assert_eq!(fields(&page), ["limit", "offset", "tasks", "total"]);
}

#[test]
fn filters_by_status_parameter() {
    let (_shell, site) = three();
    assert_eq!(site.listed("?status=running"), (vec!["Ünïcode search".into()], 1));
    assert_eq!(site.listed("?status=error"), (vec!["Fix the Login".into()], 1));
    assert_eq!(site.listed("?status=cancelled"), (vec![], 0));
    let refused = site.get("/v1/tasks?status=done");
    let known = "no status `done`; there are: running, completed, error, cancelled, resumed";
    assert_eq!((refused.status, refused.error()), (400, known.to_owned()));
}

#[test]
fn filters_by_agent_parameter() {
    let (_shell, site) = three();
    let both = vec!["Ünïcode search".into(), "explore the login".into()];
    assert_eq!(site.listed("?agent=explore"), (both, 2));
    assert_eq!(site.listed("?agent=EXPLORE"), (vec![], 0));
    let one = vec!["explore the login".into()];
    assert_eq!(site.listed("?agent=explore&status=completed"), (one, 1));
}

#[test]
fn searches_description_by_keyword() {
    let (_shell, site) = three();
    let logins: Vec<String> = vec!["explore the login".into(), "Fix the Login".into()];
    assert_eq!(site.listed("?search=LOGIN"), (logins.clone(), 2));
    assert_eq!(site.listed("?search=login&limit=1"), (logins[..1].to_vec(), 2));
    assert_eq!(site.listed("?search=login&offset=1"), (logins[1..].to_vec(), 2));
    assert_eq!(site.listed("?search=login&agent=build"), (logins[1..].to_vec(), 1));
    let oldest_first = vec![logins[1].clone(), logins[0].clone()];
    assert_eq!(site.listed("?search=login&sort=startedAt:asc"), (oldest_first.clone(), 2));
    assert_eq!(site.listed("?search=login&sort=agent:asc"), (oldest_first, 2));
    let sorted = "?search=login&sort=agent:asc";
    assert_eq!(site.listed(&format!("{sorted}&limit=1&offset=1")), (logins[..1].to_vec(), 2));
    assert_eq!(site.listed(&format!("{sorted}&status=error")), (logins[1..].to_vec(), 1));
    assert_eq!(site.listed("?search=x").1, 2);
    assert_eq!(site.listed("?search=%C3%9CN%C3%8F"), (vec!["Ünïcode search".into()], 1));
    assert_eq!(site.listed("?search=%C3%AF"), (vec!["Ünïcode search".into()], 1));
    assert_eq!(site.listed("?search=nowhere"), (vec![], 0));
    assert_eq!(site.listed("?search=").1, 3);
}

#[test]
fn paginates_with_limit_and_offset() {
    let shell = Shell::new();
    let names: Vec<String> = (0..25).map(|n| format!("task {n}")).collect();
    for name in &names {
        launch(&shell, name, "general", "@hang");
    }
    let site = Site::of(&shell);
    let newest_first: Vec<String> = names.iter().rev().cloned().collect();
    let check = |query: &str, expected: &[String]| {
        assert_eq!(site.listed(query), (expected.to_vec(), 25), "{query}");
    };
    check("?limit=10&offset=20", &newest_first[20..]);
    check("?limit=10", &newest_first[..10]);
    check("?limit=0", &[]);
    check("?offset=25", &[]);
    check("?status=running&limit=2&offset=3", &newest_first[3..5]);
    check("?sort=startedAt:asc&limit=3&offset=1", &names[1..4]);
    let page: PageView = site.read("/v1/tasks?limit=1000&offset=24");
    assert_eq!((page.limit, page.offset, page.tasks.len()), (200, 24, 1));
    for query in ["limit=-1", "limit=many", "offset=1.5", "limits=3", "sort=prompt:asc"] {
        let refused = site.get(&format!("/v1/tasks?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(!refused.error().is_empty());
    }
}

#[test]
fn pages_are_right_when_tasks_in_between_were_pruned() {
    let shell = Shell::new();
    finished(&shell, "first", "general");
    launch(&shell, "second", "general", "@hang");
    finished(&shell, "third", "general");
    launch(&shell, "fourth", "general", "@hang");
    shell.say(["prune", "--keep", "0"]);
    let site = Site::of(&shell);
    let (second, fourth) = ("second".to_owned(), "fourth".to_owned());
    assert_eq!(site.listed(""), (vec![fourth.clone(), second.clone()], 2));
    assert_eq!(site.listed("?limit=1&offset=1"), (vec![second.clone()], 2));
    assert_eq!(site.listed("?sort=startedAt:asc"), (vec![second, fourth], 2));
}

#[test]
fn returns_total_count_alongside_results() {
    let (shell, site) = three();
    for (query, total) in [("", 3), ("?limit=1", 3), ("?agent=build", 1), ("?parent=cli", 3)] {
        let page: PageView = site.read(&format!("/v1/tasks{query}"));
        assert_eq!(page.total, total, "{query}");
    }
    finished(&shell, "another", "build");
    assert_eq!(site.listed("").1, 4, "also right after a change");
}

#[test]
fn tasks_are_sorted_by_a_field_in_either_direction() {
    let (_shell, site) = three();
    let check = |sort: &str, expected: [&str; 3]| {
        let descriptions = expected.map(str::to_owned).to_vec();
        assert_eq!(site.listed(&format!("?sort={sort}")), (descriptions, 3), "{sort}");
    };
    let (failed, done, running) = ("Fix the Login", "explore the login", "Ünïcode search");
    check("startedAt:asc", [failed, done, running]);
    check("startedAt", [running, done, failed]);
    check("completedAt:asc", [running, failed, done]);
    check("completedAt:desc", [done, failed, running]);
    check("status:asc", [done, failed, running]);
    check("agent:asc", [failed, done, running]);
    check("agent:desc", [running, done, failed]);
    let refused = site.get("/v1/tasks?sort=size:up").error();
    let text = "cannot sort by `size:up`; give one of startedAt, completedAt, status, agent, with \
                `:asc` or `:desc`";
    assert_eq!(refused, text);
}

#[test]
fn returns_full_task_object_for_valid_id() {
    let (shell, site) = three();
    for task in shell.tasks() {
        assert_eq!(site.task(&task.session_id), task);
    }
    let mut failed: Value =
        site.read(&format!("/v1/tasks/{}", shell.tasks().last().unwrap().session_id));
    let task = failed.as_object_mut().unwrap();
    // Only the format of values that differ from run to run is checked.
    for moment in ["startedAt", "completedAt"] {
        let text = task.remove(moment).unwrap();
        let text = text.as_str().unwrap().to_owned();
        assert!(text.len() == 24 && text.ends_with('Z') && &text[19..20] == ".", "{text}");
    }
    assert_eq!(
        fields(&failed),
        [
            "agent",
            "batchId",
            "description",
            "directory",
            "error",
            "events",
            "host",
            "hostInstance",
            "isForked",
            "parentAgent",
            "parentHost",
            "parentMessageID",
            "parentSessionID",
            "progress",
            "prompt",
            "resumeCount",
            "sessionID",
            "shortID",
            "status",
        ]
    );
    assert_eq!(failed["error"], "overloaded");
    let events = failed["events"].as_array().unwrap();
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["queued", "started", "failed"]);
    assert_eq!(events[2]["text"], "overloaded");
    assert_eq!(
        fields(&failed["progress"]),
        ["lastTools", "lastUpdate", "phase", "toolCalls", "toolCallsByName"]
    );
}

#[test]
fn returns_404_for_unknown_id() {
    let (shell, site) = three();
    let short = shell.tasks()[0].short_id.clone();
    for id in ["ses_nobody", &short] {
        let answer = site.get(&format!("/v1/tasks/{id}"));
        let text = format!("no task `{id}`; list the tasks to see their ids");
        assert_eq!((answer.status, answer.error()), (404, text));
    }
    assert_eq!(site.get("/v1/tasks/%ff").status, 400);
}

fn texts(messages: &Value) -> Vec<String> {
    let messages = messages.as_array().unwrap().iter();
    let parts = messages.flat_map(|message| message["parts"].as_array().unwrap());
    parts.filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn returns_message_history_for_a_running_task() {
    let shell = Shell::new();
    let prompt = "my password is 1234\n@tool read {\"path\":\"a\"}\n@hang";
    let task = launch(&shell, "a task", "general", prompt);
    let site = Site::of(&shell);
    let logs = || -> Value { site.read(&format!("/v1/tasks/{}/logs", task.session_id)) };
    until("the tool was called", || logs().as_array().unwrap().len() > 1);
    assert_eq!(texts(&logs()), [prompt], "unmasked");
    let called: Vec<Value> = logs()[1]["parts"].as_array().unwrap().clone();
    assert_eq!(called[0]["tool"], "read");
}

#[test]
fn returns_message_history_for_a_completed_task() {
    let shell = Shell::new();
    let task = finished(&shell, "a task", "general");
    let site = Site::of(&shell);
    let logs: Value = site.read(&format!("/v1/tasks/{}/logs", task.session_id));
    assert_eq!(texts(&logs), ["@say done", "done"]);
}

#[test]
fn returns_404_for_unknown_task_id() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for route in ["logs", "messages"] {
        let answer = site.get(&format!("/v1/tasks/ses_nobody/{route}"));
        let text = "no task `ses_nobody`; list the tasks to see their ids";
        assert_eq!((answer.status, answer.error()), (404, text.to_owned()));
    }
}

#[test]
fn logs_can_be_read_after_the_host_is_gone() {
    let shell = Shell::new();
    let task = finished(&shell, "a task", "general");
    shell.say(["resume", &task.session_id, "@say more"]);
    shell.run(["wait", &task.session_id]);
    let site = Site::of(&shell);
    let metric = || site.get("/metrics").body;
    let kept =
        "asyncagents_host_calls_total{host=\"scripted\",call=\"transcript\",outcome=\"ok\"} 2";
    until("both runs are kept", || metric().contains(kept));
    // The scripted host runs inside the daemon, so its sessions end with it.
    shell.say(["daemon", "stop"]);
    let site = Site::start(&shell);
    let logs: Value = site.read(&format!("/v1/tasks/{}/logs", task.session_id));
    assert_eq!(texts(&logs), ["@say done", "done", "@say more", "more"]);
}

#[test]
fn a_transcript_that_was_owed_when_the_daemon_died_is_kept_by_the_next_one() {
    let shell = Shell::with_host_process();
    let task = finished(&shell, "a task", "general");
    shell.kill_daemon();
    let db = rusqlite::Connection::open(shell.database()).unwrap();
    db.execute_batch("DELETE FROM transcript; UPDATE run SET transcript_owed = 1").unwrap();
    drop(db);
    shell.say(["daemon", "start"]);
    let kept = || -> i64 {
        let db = rusqlite::Connection::open(shell.database()).unwrap();
        db.query_row("SELECT count(*) FROM transcript", [], |row| row.get(0)).unwrap()
    };
    until("it is kept", || kept() == 1);
    let logs: Value = Site::of(&shell).read(&format!("/v1/tasks/{}/logs", task.session_id));
    assert_eq!(texts(&logs), ["@say done", "done"]);
}

#[test]
fn messages_are_shown_with_the_filters_of_the_output_tool() {
    let shell = Shell::new();
    let prompt = "@tool read {\"path\":\"a\"}\n@say found";
    let task = launch(&shell, "a task", "general", prompt);
    shell.run(["wait", &task.session_id]);
    let site = Site::of(&shell);
    let read = |query: &str| -> MessagesView {
        site.read(&format!("/v1/tasks/{}/messages{query}", task.session_id))
    };
    let all = read("?include_tool_results=true&include_thinking=true");
    let logs: Vec<Value> = site.read(&format!("/v1/tasks/{}/logs", task.session_id));
    assert_eq!((&all.messages, &all.task_id), (&logs, &task.session_id));
    let plain = read("");
    let state = |view: &MessagesView| view.messages[1]["parts"][0]["state"].clone();
    assert_eq!(state(&all), json!({"status": "completed", "input": {"path": "a"}, "output": "ok"}));
    assert_eq!(state(&plain), json!({"status": "completed", "input": {"path": "a"}}));
    assert_eq!(read("?message_limit=1").messages, plain.messages[2..]);
    let second = plain.messages[1]["info"]["id"].as_str().unwrap();
    let since = read(&format!("?since_message_id={second}"));
    assert_eq!(since.messages, plain.messages[2..]);
    assert_eq!(since.filter.since_message_id.as_deref(), Some(second));
    let answer = read("?full_session=false");
    assert_eq!(answer.messages, plain.messages[2..]);
    let whole = serde_json::to_value(read("?full_session=true").filter).unwrap();
    let expected =
        json!({"full_session": true, "include_thinking": false, "include_tool_results": false});
    assert_eq!(whole, expected);
    let refused = site.get(&format!("/v1/tasks/{}/messages?full=1", task.session_id));
    assert_eq!(refused.status, 400);
}

#[test]
fn returns_group_with_all_member_tasks_and_aggregate_stats() {
    let shell = Shell::new();
    let run = |prompt: &str| -> TaskView {
        let task = shell.json(["run", "--json", "--batch", "mine", prompt]);
        let task: TaskView = serde_json::from_value(task).unwrap();
        shell.run(["wait", &task.session_id]);
        task
    };
    let resumed = run("@tool read {}\n@tool read {}\n@say done");
    run("@say done");
    run("@fail overloaded");
    let hanging: TaskView =
        serde_json::from_value(shell.json(["run", "--json", "--batch", "mine", "@hang"])).unwrap();
    shell.say(["cancel", &hanging.session_id]);
    let site = Site::of(&shell);
    let group: GroupView = site.read("/v1/task-groups/mine");
    let mut members = shell.tasks();
    members.reverse();
    assert_eq!((group.group_id.as_str(), &group.tasks), ("mine", &members));
    let first = members.iter().map(|task| task.started_at).min().unwrap();
    let last = members.iter().filter_map(|task| task.completed_at).max().unwrap();
    let expected = json!({
        "completed": 2, "running": 0, "error": 1, "cancelled": 1, "total": 4,
        "completionRate": 0.5, "totalToolCalls": 2,
        "toolCallsByName": { "read": 2 }, "toolCallsByAgent": { "general": 2 },
        "duration": last.since(first).as_millis() as u64,
    });
    assert_eq!(serde_json::to_value(&group.stats).unwrap(), expected);

    shell.say(["resume", &resumed.session_id, "@hang"]);
    let group: GroupView = site.read("/v1/task-groups/mine");
    let stats = group.stats;
    assert_eq!((stats.completed, stats.running, stats.total), (1, 1, 4), "resumed is running");

    finished(&shell, "another", "general");
    let groups: GroupsView = site.read("/v1/task-groups");
    assert_eq!((groups.total, groups.limit, groups.offset, groups.groups.len()), (2, 50, 0, 2));
    assert_eq!(groups.groups[1].group_id, "mine");
    let second: GroupsView = site.read("/v1/task-groups?limit=1&offset=1");
    assert_eq!(second.groups[0].group_id, "mine");
    assert_eq!(second.groups[0].stats.cancelled, 1);
}

#[test]
fn returns_404_for_unknown_group_id() {
    let shell = Shell::new();
    let answer = Site::start(&shell).get("/v1/task-groups/nobody");
    let text = "no task group `nobody`; `/v1/task-groups` lists them";
    assert_eq!((answer.status, answer.error()), (404, text.to_owned()));
}

#[test]
fn health_endpoint_returns_ok_status_with_uptime() {
    let (shell, site) = three();
    let health: HealthView = site.read("/v1/health");
    let expected = HealthView {
        status: "ok".into(),
        uptime: health.uptime,
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: 1,
        task_count: 3,
        paused: false,
        pid: shell.pid(),
        warnings: vec![],
        restart_needed: None,
        urgent: Vec::new(),
    };
    assert_eq!(health, expected);
    assert!(health.uptime < 60);
}

#[test]
fn stats_endpoint_returns_counts_by_status_and_agent() {
    let (_shell, site) = three();
    let stats: StatsView = site.read("/v1/stats");
    let counts =
        |pairs: &[(&str, u64)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    let by_status =
        [("cancelled", 0), ("completed", 1), ("error", 1), ("resumed", 0), ("running", 1)];
    let expected = StatsView {
        by_status: counts(&by_status),
        by_agent: counts(&[("build", 1), ("explore", 2)]),
        duration: stats.duration,
        total_tasks: 3,
        active_tasks: 1,
        tool_calls_by_name: counts(&[]),
        tool_calls_by_agent: counts(&[("build", 0), ("explore", 0)]),
    };
    assert_eq!(stats, expected);
}

#[test]
fn stats_endpoint_returns_duration_statistics() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let stats = || -> Value { site.read("/v1/stats") };
    assert_eq!(stats()["duration"], json!({"avg": 0, "max": 0, "min": 0}));
    let prompts = ["@tool read {}\n@tool grep {}\n@say a", "@think 30\n@tool read {}\n@say b"];
    for prompt in prompts {
        let task = launch(&shell, "a task", "general", prompt);
        shell.run(["wait", &task.session_id]);
    }
    let took: Vec<u64> = shell
        .tasks()
        .iter()
        .map(|task| task.completed_at.unwrap().since(task.started_at).as_millis() as u64)
        .collect();
    let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
    let average = (took[0] + took[1]) / 2;
    let expected = json!({
        "byStatus": {"cancelled": 0, "completed": 2, "error": 0, "resumed": 0, "running": 0},
        "byAgent": {"general": 2},
        "duration": {"avg": average, "max": most, "min": least},
        "totalTasks": 2, "activeTasks": 0,
        "toolCallsByName": {"grep": 1, "read": 2}, "toolCallsByAgent": {"general": 3},
    });
    assert_eq!(stats(), expected);
    // Pruned tasks are no longer counted.
    shell.say(["prune", "--keep", "0"]);
    assert_eq!(stats()["duration"], json!({"avg": 0, "max": 0, "min": 0}));
    assert_eq!(stats()["toolCallsByName"], json!({}));
    assert_eq!(site.listed("?search=task"), (vec![], 0));
}

#[test]
fn a_search_sees_new_cleared_resumed_and_pruned_tasks_at_once() {
    let shell = Shell::new();
    let first = finished(&shell, "first look", "general");
    let site = Site::of(&shell);
    let search = || -> Vec<TaskView> {
        let page: PageView = site.read("/v1/tasks?search=LOOK");
        assert_eq!(page.total, page.tasks.len() as u64);
        page.tasks
    };
    assert_eq!(search(), [site.task(&first.session_id)]);
    let second = finished(&shell, "second look", "general");
    let both = || [site.task(&second.session_id), site.task(&first.session_id)];
    assert_eq!(search(), both());
    shell.say(["clear"]);
    assert_eq!(search(), both());
    assert!(search().iter().all(|task| task.cleared_at.is_some()));
    shell.say(["resume", &first.session_id, "@say again"]);
    assert_eq!(search()[1].resume_count, 1);
    shell.run(["wait", &first.session_id]);
    assert_eq!(search(), both());
    assert_eq!(search()[1].result.as_deref(), Some("again"));
    shell.say(["prune", "--keep", "1"]);
    assert_eq!(search(), [site.task(&second.session_id)]);
    shell.say(["prune", "--keep", "0"]);
    assert_eq!(search(), []);
}

#[test]
fn tasks_persist_across_plugin_restarts() {
    let (shell, site) = three();
    let before: PageView = site.read("/v1/tasks?status=completed");
    shell.kill_daemon();
    let after: PageView = Site::start(&shell).read("/v1/tasks?status=completed");
    assert_eq!((after.total, &after), (1, &before));
}

#[test]
fn historical_tasks_appear_in_task_list_responses() {
    let shell = Shell::new();
    finished(&shell, "before", "general");
    shell.say(["daemon", "stop"]);
    finished(&shell, "after", "general");
    let site = Site::of(&shell);
    let both = vec!["after".to_owned(), "before".to_owned()];
    assert_eq!(site.listed(""), (both.clone(), 2));
    assert_eq!(site.listed("?search=e"), (both, 2));
}

#[test]
fn task_detail_accessible_for_completed_tasks_after_restart() {
    let shell = Shell::new();
    let task = finished(&shell, "before", "general");
    let before = Site::of(&shell).task(&task.session_id);
    shell.say(["daemon", "stop"]);
    assert_eq!(Site::start(&shell).task(&task.session_id), before);
    assert_eq!(before.result.as_deref(), Some("done"));
}

#[test]
fn the_json_stored_with_an_ended_task_matches_its_rows() {
    let shell = Shell::new();
    let task = finished(&shell, "a task", "general");
    let site = Site::of(&shell);
    let stored = || -> Option<TaskView> {
        let db = rusqlite::Connection::open(shell.database()).unwrap();
        let json = db.query_row("SELECT json FROM view", [], |row| row.get::<_, String>(0)).ok()?;
        Some(serde_json::from_str(&json).unwrap())
    };
    let shown = || Some(site.task(&task.session_id));
    assert_eq!(stored(), shown());
    shell.say(["output", &task.session_id]);
    assert_eq!(stored(), shown());
    shell.say(["clear"]);
    assert_eq!(stored(), shown());
    shell.say(["resume", &task.session_id, "@hang"]);
    assert_eq!(stored(), None, "a live task has none");
}

#[test]
fn the_openapi_document_is_the_one_that_was_reviewed() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let served: Value = site.read("/v1/openapi.json");
    assert_eq!(served, serde_json::to_value(asyncagents::http::document()).unwrap());
    assert_eq!(served["openapi"], "3.1.0");
    insta::assert_json_snapshot!("openapi", served);
}

#[test]
fn metrics_have_the_names_prometheus_expects() {
    let (_shell, site) = three();
    let answer = site.get("/metrics");
    assert_eq!(answer.status, 200);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.headers["content-type"], kind);
    let lines: Vec<&str> = answer.body.lines().collect();
    for line in [
        "asyncagents_launches_total 3",
        "asyncagents_ends_total{kind=\"completed\"} 1",
        "asyncagents_ends_total{kind=\"error\"} 1",
        "asyncagents_task_duration_seconds_count 2",
        "asyncagents_queued_tasks 0",
        "asyncagents_notices_owed 0",
        "asyncagents_notices_delivered_total 2",
        "asyncagents_notices_retried_total 0",
        "asyncagents_sse_clients 0",
        "asyncagents_host_calls_total{host=\"scripted\",call=\"open\",outcome=\"ok\"} 3",
        "# EOF",
    ] {
        assert!(lines.contains(&line), "{line} in {}", answer.body);
    }
}
