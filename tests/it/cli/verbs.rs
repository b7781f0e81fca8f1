//! The contract of the command line: the output and exit codes that scripts rely on (section 7 of the
//! specification), and the errors that people read.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use asyncagents::config::{Config, default_file};
use asyncagents::task::{Phase, Status};
use asyncagents::wire::TaskView;
use serde_json::{Value, json};

use crate::support::process::{CommandOutcome, Shell, launch_request};

fn said(stdout: impl Into<String>) -> CommandOutcome {
    CommandOutcome { code: 0, stdout: stdout.into(), stderr: String::new() }
}

fn failed(stderr: impl Into<String>) -> CommandOutcome {
    CommandOutcome { code: 1, stdout: String::new(), stderr: stderr.into() }
}

#[test]
fn run_prints_the_task_and_returns_at_once_although_the_agent_hangs() {
    let shell = Shell::new();
    let task = shell.json([
        "run",
        "--json",
        "--agent",
        "explore",
        "--description",
        "find the auth code",
        "--batch",
        "search",
        "--model",
        "openai/gpt",
        "Look for it.\n@hang",
    ]);
    assert_eq!(
        task,
        json!({
            "sessionID": id(&task["sessionID"], "ses_", 26),
            "shortID": id(&task["shortID"], "", 6),
            "parentSessionID": "cli",
            "parentMessageID": "",
            "parentAgent": "",
            "parentHost": "mailbox",
            "host": "scripted",
            "hostInstance": "scripted-0",
            "directory": shell.path("").to_str().unwrap().trim_end_matches('/'),
            "description": "find the auth code",
            "prompt": "Look for it.\n@hang",
            "agent": "explore",
            "model": "openai/gpt",
            "status": "running",
            "startedAt": moment(&task["startedAt"]),
            "batchId": "search",
            "resumeCount": 0,
            "isForked": false,
            "progress": {
                "toolCalls": 0,
                "toolCallsByName": {},
                "lastTools": [],
                "lastUpdate": task["startedAt"],
                "phase": "starting",
            },
        })
    );
}

#[test]
fn output_prints_the_ended_task_with_its_result_and_the_time_of_its_first_retrieval() {
    let shell = Shell::new();
    let launched = shell.json(["run", "--json", "@tool read {\"path\":\"a\"}\n@say src/auth.rs"]);
    let id = launched["sessionID"].as_str().unwrap();
    assert_eq!(shell.run(["wait", "--quiet", id]), said(""));
    let first = shell.json(["output", "--json", id]);
    let mut expected = launched.clone();
    for (name, value) in [
        ("status", json!("completed")),
        ("result", json!("src/auth.rs")),
        ("completedAt", moment(&first["completedAt"])),
        ("resultRetrievedAt", moment(&first["resultRetrievedAt"])),
        (
            "progress",
            json!({
                "toolCalls": 1,
                "toolCallsByName": { "read": 1 },
                "lastTools": ["read"],
                "lastUpdate": moment(&first["progress"]["lastUpdate"]),
                "phase": first["progress"]["phase"],
                "lastMessage": "src/auth.rs",
                "lastMessageAt": moment(&first["progress"]["lastMessageAt"]),
            }),
        ),
    ] {
        expected[name] = value;
    }
    assert_eq!(first, expected);
    assert_eq!(shell.json(["output", "--json", id]), first, "the second retrieval");
    assert_eq!(shell.json(["list", "--json"]), json!([first]));
}

#[test]
fn output_gives_the_result_on_standard_output_and_the_rest_on_standard_error() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("find it\n@say src/auth.rs");
    let line = format!("{} \"find it @say src/auth.rs\" completed\n", task.short_id);
    let stdout = "src/auth.rs\n".to_owned();
    assert_eq!(
        shell.run(["output", &task.short_id]),
        CommandOutcome { code: 0, stdout, stderr: line }
    );

    let task = shell.launch_to_the_end("@fail overloaded");
    let line = format!("{} \"@fail overloaded\" error: \"overloaded\"\n", task.short_id);
    let stdout = String::new();
    assert_eq!(
        shell.run(["output", &task.short_id]),
        CommandOutcome { code: 0, stdout, stderr: line }
    );

    let task = shell.launch("@hang");
    assert_eq!(shell.run(["output", "--wait", "0.05", &task.short_id]).code, 124);
    for wait in ["--wait=inf", "--wait=1e300", "--wait=nan", "--wait=-1"] {
        let refused = "error: --wait must be a number of seconds\n";
        assert_eq!(shell.run(["output", wait, &task.short_id]), failed(refused), "{wait}");
    }
    let refused = "error: `timeout` must be between 0 and 3600 seconds\n";
    assert_eq!(shell.run(["output", "--wait=3601", &task.short_id]), failed(refused));
}

#[test]
fn list_shows_everybodys_tasks_newest_first_unless_a_parent_is_named() {
    let mut shell = Shell::new();
    assert_eq!(shell.run(["list"]), said("No background tasks found\n"));
    assert_eq!(shell.run(["list", "--json"]), said("[]\n"));
    let own = shell.launch_to_the_end("mine\n@say a");
    shell.set("ASYNCAGENTS_PARENT", "ses_other");
    let other = shell.launch_to_the_end("theirs\n@fail b");
    shell.unset("ASYNCAGENTS_PARENT");
    let ids = |args: &[&str]| -> Vec<String> {
        let tasks = shell.json(["list", "--json"].iter().chain(args));
        let tasks: Vec<TaskView> = serde_json::from_value(tasks).unwrap();
        tasks.into_iter().map(|task| task.session_id).collect()
    };
    assert_eq!(ids(&[]), [other.session_id.as_str(), &own.session_id]);
    assert_eq!(ids(&["--limit", "1"]), [other.session_id.as_str()]);
    assert_eq!(ids(&["--parent", "cli"]), [own.session_id.as_str()]);
    assert_eq!(ids(&["--parent", "ses_other"]), [other.session_id.as_str()]);
    assert_eq!(ids(&["--status", "completed"]), [own.session_id.as_str()]);
    assert_eq!(ids(&["--batch", &own.batch_id]), [own.session_id.as_str()]);
    assert_eq!(ids(&["--agent", "oracle"]), [""; 0]);
    assert_eq!(
        shell.run(["list", "--status", "queued"]),
        failed(
            "error: no status `queued`; there are: running, completed, error, cancelled, resumed\n"
        )
    );
    let text = shell.say(["list"]);
    let words: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(words, ["ID", "STATUS", "AGENT", "AGE", "TIME", "TOOLS", "COST", "DESCRIPTION"]);
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn list_searches_descriptions_and_states_how_many_match() {
    let shell = Shell::new();
    let launch = |description: &str| shell.say(["run", "--description", description, "@hang"]);
    for description in ["Fix the Login", "explore the login", "something else"] {
        launch(description);
    }
    let search = |args: &[&str]| shell.run(["list", "--search"].iter().chain(args));
    let shown = |args: &[&str]| -> Vec<String> {
        let ended = search(args);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        let lines = ended.stdout.lines().skip(1);
        // Only the description: other columns differ from run to run.
        lines.map(|line| line.rsplit("  ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(shown(&["LOGIN"]), ["explore the login", "Fix the Login", "2 tasks found"]);
    let hidden = "… and 1 older one; --limit shows more";
    assert_eq!(shown(&["login", "--limit=1"]), ["explore the login", hidden, "2 tasks found"]);
    assert_eq!(shown(&["fix"]), ["Fix the Login", "1 task found"]);
    let ended = search(&["login", "--json", "--limit=1"]);
    let tasks: Vec<TaskView> = serde_json::from_str(&ended.stdout).unwrap();
    let descriptions: Vec<&str> = tasks.iter().map(|task| task.description.as_str()).collect();
    assert_eq!(
        (descriptions, ended.stderr.as_str()),
        (vec!["explore the login"], "2 tasks found\n")
    );
    let none = "No background tasks found; --all also searches cleared ones\n";
    assert_eq!(search(&["nowhere"]), said(none));
    shell.say(["clear"]);
    assert_eq!(search(&["login"]), said(none));
    assert_eq!(shown(&["login", "--all"]).last().unwrap(), "2 tasks found");
    assert_eq!(search(&["nowhere", "--all"]), said("No background tasks found\n"));
}

#[tokio::test]
async fn more_tasks_than_one_page_of_the_api_are_listed() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let client = shell.client();
    for n in 0..203 {
        client.launch(&launch_request(&format!("{n}\n@hang"))).await.unwrap();
    }
    let prompts: Vec<String> = shell.tasks().into_iter().map(|task| task.prompt).collect();
    let expected: Vec<String> = (0..203).rev().map(|n| format!("{n}\n@hang")).collect();
    assert_eq!(prompts, expected);
    let text = shell.say(["list", "--limit", "201"]);
    assert_eq!(text.lines().count(), 1 + 201 + 1);
    assert!(text.ends_with("… and 2 older ones; --limit shows more\n"), "{text}");
}

#[test]
fn wait_exits_124_on_timeout_0_when_all_completed_1_if_any_failed_130_if_any_was_cancelled() {
    let shell = Shell::new();
    let completed = shell.launch("@say a").session_id;
    let another = shell.launch("@think 50\n@say b").session_id;
    let error = shell.launch("@fail c").session_id;
    let cancelled = shell.launch("@hang").session_id;
    let hanging = shell.launch("@hang").session_id;
    shell.say(["cancel", &cancelled]);
    let check = |args: &[&str], code: i32| {
        let ended = shell.run(["wait", "--quiet"].iter().chain(args));
        assert_eq!(ended, CommandOutcome { code, ..said("") }, "{args:?}");
    };
    check(&[&completed], 0);
    check(&[&completed, &another, &completed], 0);
    check(&[&error], 1);
    check(&[&completed, &error], 1);
    check(&[&cancelled], 130);
    check(&[&completed, &cancelled], 130);
    check(&[&error, &cancelled], 1);
    check(&[&cancelled, &error], 1);
    check(&["--timeout", "0.1", &hanging], 124);
    check(&["--timeout", "0", &hanging], 124);
    check(&["--timeout", "0", &completed], 0);
    check(&["--timeout", "0.1", &error, &hanging], 124);
    check(&["--all", "--timeout", "0.1", &completed, &hanging], 124);
    check(&["--any", &hanging, &completed], 0);
    check(&["--any", &hanging, &error], 1);
    check(&["--any", &hanging, &cancelled], 130);
    check(&["-n", "2", &completed, &hanging, &another], 0);
    check(&["-n", "2", "--timeout", "0.1", &completed, &hanging], 124);
    check(&["-n", "9", &completed, &another], 0);
}

#[test]
fn wait_prints_tasks_as_they_finish() {
    let shell = Shell::with_host_process();
    let first = shell.launch_hanging("first");
    let second = shell.launch_hanging("second");
    let mut waiting = shell.start(["wait", &first.short_id, &second.short_id]);
    shell.finish(&second, "b");
    let told = format!("{} \"second @hang\" completed\n", second.short_id);
    assert_eq!(waiting.next_stderr_line(), told);
    shell.finish(&first, "a");
    let stderr = format!("{} \"first @hang\" completed\n", first.short_id);
    assert_eq!(waiting.wait(), CommandOutcome { stderr, ..said("") });
}

#[test]
fn wait_for_blocked_tasks_says_what_is_asked_and_how_to_answer_and_exits_2() {
    let shell = Shell::new();
    let task = shell.launch("a task\n@ask bash rm -rf x\n@say found");
    let id = &task.short_id;
    let asked = format!(
        "{id} \"a task @ask bash rm -rf x @say found\" asks for: \"bash rm -rf x\"\n  \
         allow it with `asyncagents approve {id}`, refuse it with `asyncagents deny {id}`\n"
    );
    assert_eq!(shell.run(["wait", id]), CommandOutcome { code: 2, ..failed(&asked) });
    let output = shell.run(["output", "--wait=60", id]);
    assert!(output.code == 2 && output.stderr.ends_with(&asked), "{output:?}");
    shell.say(["approve", id]);
    assert_eq!(shell.run(["wait", "--quiet", id]), said(""));
}

#[test]
fn wait_refuses_contradictory_flags_and_invalid_timeouts() {
    let shell = Shell::new();
    let task = shell.launch("@hang").session_id;
    for args in [
        vec!["wait", "-n", "0", &task],
        vec!["wait", "--any", "-n", "2", &task],
        vec!["wait", "--any", "--all", &task],
        vec!["wait", "--timeout", "soon", &task],
    ] {
        let ended = shell.run(&args);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.starts_with("error: "), "{ended:?}");
    }
    for timeout in ["--timeout=-1", "--timeout=nan", "--timeout=inf", "--timeout=1e300"] {
        let refused = failed("error: --timeout must be a number of seconds\n");
        assert_eq!(shell.run(["wait", timeout, &task]), CommandOutcome { code: 2, ..refused });
    }
}

#[test]
fn retry_launches_failed_tasks_again_and_says_which_it_refuses() {
    let shell = Shell::new();
    let first = shell.launch_to_the_end("@fail overloaded");
    let done = shell.launch_to_the_end("@say done");
    let running = shell.launch_hanging("busy");
    let retried = shell.json(["retry", "--json", &first.short_id]);
    let [retry]: [TaskView; 1] = serde_json::from_value(retried).unwrap();
    let expected = TaskView {
        session_id: retry.session_id.clone(),
        short_id: retry.short_id.clone(),
        status: Status::Running,
        started_at: retry.started_at,
        completed_at: None,
        error: None,
        progress: retry.progress.clone(),
        retry_of: Some(first.session_id.clone()),
        ..first.clone()
    };
    assert_eq!(retry, expected);
    let linked = TaskView { retried_by: Some(retry.session_id), ..first.clone() };
    assert_eq!(shell.task(&first.session_id), linked);

    let ids = [&running.short_id, &first.short_id, &done.short_id];
    let ended = shell.run(["retry", ids[0], ids[1], ids[2]]);
    let newest = shell.tasks().remove(0);
    assert_eq!(newest.retry_of, Some(first.session_id));
    let only = "only failed and cancelled tasks can be retried; this one";
    let stderr = format!(
        "error: `{}` was not retried: {only} is still at work: wait for its end, or cancel it first\n\
         error: `{}` was not retried: {only} has completed: resume it with a follow-up\n",
        running.short_id, done.short_id
    );
    assert_eq!(ended, CommandOutcome { code: 1, stdout: format!("{}\n", newest.short_id), stderr });
    let launched = shell.tasks().len();
    assert_eq!(shell.run(["retry", &newest.short_id, "nobody"]).code, 1);
    assert_eq!(shell.tasks().len(), launched, "a wrong id launches nothing");
}

#[test]
fn a_paused_queue_is_shown_until_it_is_continued() {
    let shell = Shell::with_host_process();
    let running = shell.launch_hanging("busy");
    let paused = "The queue is paused: 1 task running, 0 tasks waiting. `asyncagents continue` starts it \
                  again.\n";
    assert_eq!(shell.run(["pause"]), said(paused));
    let waiting = shell.launch("@say done");
    let json = json!({ "paused": true, "queued": 1, "active": 1 });
    assert_eq!(shell.json(["pause", "--json"]), json);
    shell.kill_daemon();
    shell.say(["daemon", "start"]);
    assert!(shell.health().unwrap().paused, "also after a restart");
    let status = shell.say(["daemon", "status"]);
    let line = "the queue is paused: queued tasks wait for `asyncagents continue`\n";
    assert!(status.ends_with(line), "{status}");
    let line = "\nqueue       paused: queued tasks wait for `asyncagents continue`\n";
    let status = shell.say(["status"]);
    assert!(status.contains(line), "{status}");
    assert_eq!(shell.task(&waiting.session_id).progress.phase, Phase::Queued);
    let free = "The queue is not paused; tasks start as slots become free.\n";
    assert_eq!(shell.run(["continue"]), said(free));
    assert_eq!(shell.run(["wait", "--quiet", &waiting.short_id]), said(""));
    assert!(!shell.health().unwrap().paused);
    let status = shell.say(["status"]);
    assert!(!status.contains("paused"), "{status}");
    shell.say(["cancel", &running.short_id]);
    let json = json!({ "paused": false, "queued": 0, "active": 0 });
    assert_eq!(shell.json(["continue", "--json"]), json);
}

#[test]
fn a_completed_task_resumes_in_its_own_session() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("first\n@say one");
    let resumed = shell.json(["resume", "--json", &task.short_id, "again\n@hang"]);
    let resumed: TaskView = serde_json::from_value(resumed).unwrap();
    let expected = TaskView {
        status: Status::Resumed,
        resume_count: 1,
        completed_at: None,
        progress: resumed.progress.clone(),
        ..task.clone()
    };
    assert_eq!(resumed, expected);
    assert_eq!(
        shell.run(["resume", &task.short_id, "and again"]),
        failed("error: the task is currently being resumed; wait for its notice and try again\n")
    );
    shell.say(["cancel", &task.short_id]);

    let task = shell.launch_to_the_end("second\n@say one");
    assert_eq!(
        shell.run(["resume", &task.short_id, "@say two"]),
        said(format!("{}\n", task.short_id))
    );
    assert_eq!(shell.run(["wait", "--quiet", &task.short_id]), said(""));
    let ended = shell.task(&task.session_id);
    let expected = TaskView {
        resume_count: 1,
        result: Some("two".into()),
        completed_at: ended.completed_at,
        progress: ended.progress.clone(),
        ..task
    };
    assert_eq!(ended, expected);
}

#[test]
fn a_run_with_a_schema_gives_json_that_fits_it_or_an_error() {
    let shell = Shell::new();
    let file = shell.path("schema.json");
    fs::write(&file, "{\"type\": \"object\", \"required\": [\"n\"]}").unwrap();
    let file = file.to_str().unwrap();
    let run = |prompt: &str| shell.say(["run", "--schema", file, prompt]).trim().to_owned();
    let fits = run("@say not yet\n@then ```json {}\n@then {\"n\": 1}");
    assert_eq!(shell.run(["wait", "--quiet", &fits]), said(""));
    assert_eq!(shell.say(["output", &fits]), "{\"n\": 1}\n");
    let never = run("@say never");
    assert_eq!(shell.run(["wait", "--quiet", &never]).code, 1);
    let task = shell.json(["output", "--json", &never]);
    let error = task["error"].as_str().unwrap();
    assert!(
        error.starts_with("none of 3 answers fits the schema; the last one: - it is not"),
        "{error}"
    );
    assert!(
        task["result"].as_str().unwrap().starts_with("done: Your answer does not fit"),
        "{task}"
    );
    let before = shell.tasks();
    for (text, told) in [
        ("[]", "error: `schema` is not a JSON Schema that can be used: it must be an object\n"),
        (
            "{\"$ref\": \"https://example.org/x\"}",
            "error: `schema` is not a JSON Schema that can be used: ",
        ),
        ("{", "is not JSON: "),
    ] {
        fs::write(file, text).unwrap();
        let refused = shell.run(["run", "--schema", file, "x"]);
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains(told), "{refused:?}");
    }
    let missing = shell.run(["run", "--schema", "nowhere.json", "x"]);
    assert!(
        missing.stderr.starts_with("error: cannot read the schema `nowhere.json`: "),
        "{missing:?}"
    );
    assert_eq!(shell.tasks(), before);
}

#[test]
fn send_takes_a_message_from_an_argument_or_standard_input() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("look");
    assert_eq!(
        shell.run(["send", &task.short_id, "not there"]),
        said(format!("{}\n", task.short_id))
    );
    for arguments in [["send", &task.short_id, "-"].as_slice(), &["send", &task.short_id]] {
        let ended = shell.run_with_input(arguments, b"but here\n");
        assert_eq!(ended, said(format!("{}\n", task.short_id)));
    }
    let sent = shell.json(["send", "--json", &task.short_id, "and there"]);
    assert_eq!((&sent["sessionID"], &sent["status"]), (&json!(task.session_id), &json!("running")));
    assert_eq!(sent["delivery"], "steered");
    let empty = failed("error: the message is empty, so nothing was done\n");
    assert_eq!(shell.run_with_input(["send", &task.short_id], b" \n"), empty);
    shell.finish(&task, "found");
    shell.run(["wait", "--quiet", &task.short_id]);
    let resumed = shell.run(["send", &task.short_id, "@say more"]);
    let note = "it had completed; resumed with this message\n".to_owned();
    assert_eq!(resumed, CommandOutcome { stderr: note, ..said(format!("{}\n", task.short_id)) });
    assert_eq!(shell.run(["wait", "--quiet", &task.short_id]), said(""));
    assert_eq!(shell.task(&task.session_id).result.as_deref(), Some("more"));
    let error = shell.launch_to_the_end("@fail no").short_id;
    let text = format!(
        "error: task `{error}` takes no messages any more, its status is error; start a new task with \
         asyncagents_task\n"
    );
    assert_eq!(shell.run(["send", &error, "more"]), failed(text));
}

#[test]
fn only_completed_tasks_resume() {
    let shell = Shell::new();
    let running = shell.launch("@hang").short_id;
    let error = shell.launch_to_the_end("@fail no").short_id;
    let cancelled = shell.launch("@hang").short_id;
    shell.say(["cancel", &cancelled]);
    let before = shell.tasks();
    let check = |id: &str, text: &str| {
        assert_eq!(shell.run(["resume", id, "go on"]), failed(format!("error: {text}\n")));
    };
    check(&running, "only completed tasks can be resumed; this one is still running");
    check(&error, "only completed tasks can be resumed; start a new task instead");
    check(&cancelled, "only completed tasks can be resumed; start a new task instead");
    let completed = shell.launch_to_the_end("@say a");
    let refused = shell.run(["resume", &completed.short_id, " \n"]);
    assert_eq!(refused, failed("error: the prompt is empty, so nothing was done\n"));
    let mut after = shell.tasks();
    assert_eq!(after.remove(0), completed);
    assert_eq!(statuses(&after), statuses(&before));
}

#[test]
fn tasks_are_cancelled_by_id() {
    let shell = Shell::new();
    let task = shell.launch("one\n@hang");
    let others = [shell.launch("two\n@hang"), shell.launch("three\n@hang")];
    let ids = [others[0].short_id.as_str(), &others[1].session_id];
    let line = |task: &TaskView| format!("cancelled {} \"{}\"\n", task.short_id, task.description);
    assert_eq!(shell.run(["cancel", &task.short_id]), said(line(&task)));
    assert_eq!(
        shell.run(["cancel", ids[0], ids[1]]),
        said(format!("{}{}", line(&others[0]), line(&others[1])))
    );
    assert_eq!(statuses(&shell.tasks()), ["cancelled"; 3]);
    assert_eq!(
        shell.run(["cancel", &task.short_id]),
        failed(format!("error: {} \"one @hang\" is already over (cancelled)\n", task.short_id))
    );
    for args in
        [vec!["cancel"], vec!["cancel", "--all", "x"], vec!["cancel", "--all", "--batch", "x"]]
    {
        assert_eq!(shell.run(args).code, 2);
    }
}

#[test]
fn an_unknown_id_among_those_to_cancel_cancels_nothing() {
    let shell = Shell::new();
    let task = shell.launch("@hang");
    let refused = shell.run(["cancel", &task.short_id, "nobody"]);
    assert_eq!(refused.code, 1);
    assert_eq!(statuses(&shell.tasks()), ["running"]);
}

#[test]
fn cancel_all_stops_everybodys_running_tasks() {
    let mut shell = Shell::new();
    shell.launch_to_the_end("@say done");
    shell.launch("@hang");
    shell.set("ASYNCAGENTS_PARENT", "ses_other");
    shell.launch("@hang");
    shell.unset("ASYNCAGENTS_PARENT");
    assert_eq!(shell.say(["cancel", "--all"]).lines().count(), 2);
    assert_eq!(statuses(&shell.tasks()), ["cancelled", "cancelled", "completed"]);
    assert_eq!(shell.run(["cancel", "--all"]), said("No running background tasks to cancel.\n"));
}

#[test]
fn cancel_batch_stops_the_running_tasks_of_that_batch() {
    let shell = Shell::new();
    let run = |batch: &str, prompt: &str| shell.say(["run", "--batch", batch, prompt]);
    run("b", "@hang");
    run("other", "@hang");
    run("b", "@hang");
    assert_eq!(shell.say(["cancel", "--batch", "b"]).lines().count(), 2);
    assert_eq!(statuses(&shell.tasks()), ["cancelled", "running", "cancelled"]);
    assert_eq!(
        shell.run(["cancel", "--batch", "b"]),
        said("No running background tasks to cancel.\n")
    );
    assert_eq!(
        shell.run(["cancel", "--batch", "nothing"]),
        failed("error: there is no batch `nothing`\n")
    );
}

#[test]
fn clear_stops_the_shells_tasks_and_keeps_the_history() {
    let mut shell = Shell::new();
    shell.launch_to_the_end("@say done");
    shell.launch("@hang");
    shell.set("ASYNCAGENTS_PARENT", "ses_other");
    shell.launch("@hang");
    shell.unset("ASYNCAGENTS_PARENT");
    assert_eq!(shell.run(["clear"]), said("Cleared 2 tasks, 1 of them cancelled.\n"));
    assert_eq!(shell.run(["clear"]), said("Cleared 0 tasks, 0 of them cancelled.\n"));
    let tasks: Vec<TaskView> =
        serde_json::from_value(shell.json(["list", "--json", "--all", "--parent", "cli"])).unwrap();
    assert_eq!(statuses(&tasks), ["cancelled", "completed"]);
    assert_eq!(shell.json(["list", "--json", "--parent", "cli"]), json!([]));
    assert!(tasks.iter().all(|task| task.cleared_at.is_some()), "{tasks:#?}");
    assert_eq!(shell.json(["list", "--json", "--parent", "ses_other"])[0]["status"], "running");
}

#[test]
fn a_task_is_named_by_its_full_id_its_short_id_or_a_unique_prefix() {
    let shell = Shell::new();
    let task = shell.launch_to_the_end("one\n@say 1");
    let other = shell.launch_to_the_end("two\n@say 2");
    let id = task.session_id.as_str();
    for name in [id, &id[..id.len() - 1], &id[..id.len() - 5], &task.short_id] {
        assert_eq!(shell.run(["output", name]).stdout, "1\n", "{name}");
    }
    let padded = format!(" {id} ");
    assert_eq!(shell.run(["output", &padded]).stdout, "1\n", "{padded}");
    let ambiguous = format!(
        "error: `ses_` could be any of: {id} (one @say 1), {} (two @say 2)\n",
        other.session_id
    );
    for verb in ["output", "cancel"] {
        assert_eq!(shell.run([verb, "ses_"]), failed(&ambiguous), "{verb}");
    }
    assert_eq!(shell.run(["wait", "ses_"]), CommandOutcome { code: 2, ..failed(&ambiguous) });
    assert_eq!(shell.run(["resume", "ses_", "go on"]), failed(&ambiguous));
    for unknown in ["nobody", "", "ses_zzz", "%", "é"] {
        let text = format!("error: no task `{unknown}`; list the tasks to see their ids\n");
        for verb in ["output", "cancel"] {
            assert_eq!(shell.run([verb, unknown]), failed(&text), "{verb}");
        }
        assert_eq!(shell.run(["wait", unknown]), CommandOutcome { code: 2, ..failed(&text) });
        assert_eq!(shell.run(["resume", unknown, "go on"]), failed(&text));
    }
}

#[test]
fn each_run_from_the_shell_is_a_batch_of_its_own_unless_one_is_named() {
    let shell = Shell::new();
    let (first, second) = (shell.launch("@hang"), shell.launch("@hang"));
    assert_ne!(first.batch_id, second.batch_id);
    id(&json!(first.batch_id), "bat_", 26);
    for _ in 0..2 {
        assert_eq!(shell.json(["run", "--json", "--batch", "b", "@hang"])["batchId"], "b");
    }
}

#[test]
fn run_takes_its_prompt_from_standard_input_and_its_description_from_the_prompt() {
    let shell = Shell::new();
    let prompt = format!("@hang\nLook   at\n{}", "é".repeat(100));
    let ended = shell.run_with_input(["run", "--json", "-"], prompt.as_bytes());
    let task: TaskView = serde_json::from_str(&ended.stdout).unwrap();
    let description = format!("@hang Look at {}…", "é".repeat(46));
    assert_eq!((task.prompt, task.description), (prompt, description));
}

#[test]
fn an_agent_that_is_not_registered_is_refused_with_the_known_names() {
    let shell = Shell::new();
    assert_eq!(
        shell.run(["run", "--agent", "nobody", "look"]),
        failed(
            "error: Agent \"nobody\" not found. Make sure it's registered. \
             Known agents: build, explore, general, librarian, oracle\n"
        )
    );
    assert_eq!(shell.tasks(), []);
}

#[test]
fn a_host_that_does_not_exist_is_refused_with_those_that_do() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_HOST", "moon");
    assert_eq!(
        shell.run(["run", "look"]),
        failed(
            "error: the daemon did not start: no host `moon`; ASYNCAGENTS_HOST (or `host` in the \
             configuration file) can be `embedded`, `opencode`, `scripted` or \
             `scripted:<socket>`\n"
        )
    );
}

#[test]
fn arguments_that_cannot_be_used_are_refused_with_a_clear_text_and_change_nothing() {
    let shell = Shell::new();
    let check = |args: &[&str], input: &[u8], text: &str| {
        let refused = shell.run_with_input(["run"].iter().chain(args), input);
        assert_eq!(refused, failed(format!("error: {text}\n")), "{args:?}");
    };
    let empty = "the prompt is empty, so nothing was done";
    check(&[""], b"", empty);
    check(&[" \n\t"], b"", empty);
    check(&["-"], b"", empty);
    check(&["-", "--description", "d"], b" \n", empty);
    let long = "é".repeat(1_000_001);
    let too_long = "`prompt` is too long: 1000001 characters, at most 1000000";
    check(&["-"], long.as_bytes(), too_long);
    let huge = "x".repeat(30_000_000);
    let too_long = "`prompt` is too long: 30000000 characters, at most 1000000";
    check(&["-"], huge.as_bytes(), too_long);
    check(&["-"], b"a\0b", "`prompt` must not contain control characters");
    let not_text = "cannot read the prompt from standard input: stream did not contain valid UTF-8";
    check(&["-"], b"a\xffb", not_text);
    let hostile = "a\u{1b}[2J";
    check(&["--agent", hostile, "x"], b"", "`agent` must not contain control characters");
    check(&["--batch", hostile, "x"], b"", "`batch` must not contain control characters");
    check(&["--model", hostile, "x"], b"", "`model` must not contain control characters");
    check(&["--agent", " ", "x"], b"", "`agent` is required and must not be empty");
    check(&["--batch", "", "x"], b"", "`batch` is required and must not be empty");
    check(&["--description", "\n", "x"], b"", "`description` is required and must not be empty");
    let long = "é".repeat(501);
    let too_long = "`description` is too long: 501 characters, at most 500";
    check(&["--description", &long, "x"], b"", too_long);
    check(&["--budget-cost", "nan", "x"], b"", "`budget.cost` must be a positive number");
    check(&["--budget-seconds", "0", "x"], b"", "`budget.wall_seconds` must be a positive number");
    assert_eq!(shell.tasks(), []);
}

#[test]
fn arguments_that_are_not_utf_8_are_refused_and_change_nothing() {
    let shell = Shell::new();
    let odd = OsString::from_vec(b"a\xff".to_vec());
    let refused = |args: &[&str]| {
        let ended = shell.run(args.iter().map(OsString::from).chain([odd.clone()]));
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.starts_with("error: invalid UTF-8 was detected"), "{ended:?}");
    };
    refused(&["run"]);
    refused(&["run", "x", "--agent"]);
    refused(&["run", "x", "--description"]);
    refused(&["output"]);
    refused(&["cancel"]);
    refused(&["wait"]);
    refused(&["resume", "x"]);
    assert_eq!(shell.tasks(), []);
}

#[test]
fn a_storage_directory_in_the_environment_that_is_not_utf_8_is_refused_by_name() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_HOME", OsString::from_vec(b"/tmp/\xff".to_vec()));
    assert_eq!(
        shell.run(["run", "x"]),
        failed(
            "error: `ASYNCAGENTS_HOME` in the environment is not valid UTF-8; \
             set it to plain text or unset it\n"
        )
    );
}

#[test]
fn the_help_of_every_verb_is_the_one_that_was_reviewed() {
    let shell = Shell::new();
    let help = shell.say(["--help"]);
    // The width of help without a terminal.
    let long = |help: &str| help.lines().any(|line| line.chars().count() > 100);
    assert!(!long(&help));
    insta::assert_snapshot!("help", help);
    let mut known: Vec<&str> = Vec::new();
    for (verb, words) in HELP {
        let text = shell.say(words.iter().chain(&["--help"]));
        assert!(!long(&text), "{words:?}");
        insta::assert_snapshot!(format!("help_{}", words.join("_")), text);
        known.push(verb);
    }
    known.dedup();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let listed: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, [known, vec!["help"]].concat());
}

const HELP: &[(&str, &[&str])] = &[
    ("demo", &["demo"]),
    ("run", &["run"]),
    ("list", &["list"]),
    ("output", &["output"]),
    ("logs", &["logs"]),
    ("wait", &["wait"]),
    ("batch", &["batch"]),
    ("status", &["status"]),
    ("stats", &["stats"]),
    ("resume", &["resume"]),
    ("retry", &["retry"]),
    ("send", &["send"]),
    ("fork-preview", &["fork-preview"]),
    ("dash", &["dash"]),
    ("approve", &["approve"]),
    ("deny", &["deny"]),
    ("cancel", &["cancel"]),
    ("clear", &["clear"]),
    ("pause", &["pause"]),
    ("continue", &["continue"]),
    ("prune", &["prune"]),
    ("agents", &["agents"]),
    ("trust", &["trust"]),
    ("untrust", &["untrust"]),
    ("hosts", &["hosts"]),
    ("hosts", &["hosts", "add"]),
    ("hosts", &["hosts", "remove"]),
    ("auth", &["auth"]),
    ("auth", &["auth", "set"]),
    ("auth", &["auth", "list"]),
    ("auth", &["auth", "remove"]),
    ("mcp", &["mcp"]),
    ("mcp", &["mcp", "install"]),
    ("mcp", &["mcp", "uninstall"]),
    ("opencode", &["opencode", "install"]),
    ("opencode", &["opencode", "uninstall"]),
    ("doctor", &["doctor"]),
    ("backup", &["backup"]),
    ("serve", &["serve"]),
    ("daemon", &["daemon"]),
    ("daemon", &["daemon", "start"]),
    ("daemon", &["daemon", "stop"]),
    ("daemon", &["daemon", "restart"]),
    ("daemon", &["daemon", "logs"]),
    ("daemon", &["daemon", "install"]),
    ("daemon", &["daemon", "uninstall"]),
    ("daemon", &["daemon", "status"]),
    ("config", &["config"]),
    ("config", &["config", "init"]),
    ("config", &["config", "show"]),
    ("completions", &["completions"]),
    ("man", &["man"]),
];

#[test]
fn config_init_writes_the_file_once_and_leaves_an_existing_one_alone() {
    let shell = Shell::new();
    let file = shell.path(".config/asyncagents/config.toml");
    assert_eq!(shell.run(["config", "init"]), said(format!("wrote {}\n", file.display())));
    assert_eq!(fs::read_to_string(&file).unwrap(), default_file());
    fs::write(&file, "enabled = false\n").unwrap();
    let refused = format!("error: `{}` already exists; it was left as it is\n", file.display());
    assert_eq!(shell.run(["config", "init"]), failed(refused));
    assert_eq!(fs::read_to_string(&file).unwrap(), "enabled = false\n");
    assert_eq!(shell.run(["config", "init", "--print"]), said(default_file()));
    assert_eq!(
        shell.run(["run", "x"]),
        failed(
            "error: background tasks are switched off (`enabled = false` in the configuration \
             file)\n"
        )
    );
}

#[test]
fn config_show_prints_the_effective_configuration() {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_API_PORT");
    let config = Config { host: "scripted".into(), model: "a/b".into(), ..Config::default() };
    let shown = format!(
        "# storage: {}\n# file: {}\n\n{}\n",
        shell.home().display(),
        shell.path(".config/asyncagents/config.toml").display(),
        config.to_toml().trim_end()
    );
    assert_eq!(shell.run(["--model", "a/b", "config", "show"]), said(shown));
}

#[test]
fn an_unknown_key_in_the_file_stops_every_verb_and_names_the_nearest_key() {
    let shell = Shell::new();
    let file = shell.path("config.toml");
    fs::write(&file, "[limits]\nactive_per_parnt = 3\n").unwrap();
    let text = format!(
        "error: unknown key `limits.active_per_parnt` in {}; \
         did you mean `limits.active_per_parent`?\n",
        file.display()
    );
    for verb in [
        "run x",
        "list",
        "output x",
        "wait x",
        "resume x y",
        "send x y",
        "approve",
        "deny x",
        "cancel x",
        "clear",
        "prune --keep 1",
        "serve",
        "daemon start",
        "daemon stop",
        "daemon status",
        "config show",
    ] {
        let args = ["--config", file.to_str().unwrap()].into_iter().chain(verb.split(' '));
        // `wait` exits with 1 when a task failed, so an error of its own has another code.
        let code = if verb.starts_with("wait") { 2 } else { 1 };
        assert_eq!(shell.run(args), CommandOutcome { code, ..failed(&text) }, "{verb}");
    }
    assert!(!shell.home().exists());
}

/// Checks the format of an id and returns it.
fn id(id: &Value, prefix: &str, characters: usize) -> Value {
    let body = id.as_str().and_then(|text| text.strip_prefix(prefix)).unwrap();
    assert_eq!(body.chars().count(), characters, "{id}");
    assert!(body.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
    id.clone()
}

/// Checks that a time is RFC 3339 in UTC with milliseconds and returns it.
fn moment(moment: &Value) -> Value {
    let text = moment.as_str().unwrap();
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{text}");
    moment.clone()
}

fn statuses(tasks: &[TaskView]) -> Vec<&str> {
    tasks.iter().map(|task| task.status.name()).collect()
}
