//! The tools through the texts they return (section 2 of the specification), and snapshots of their
//! schemas and descriptions.

use asyncagents::supervisor::{AgentOffer, Caller};
use asyncagents::task::{MAILBOX, SessionId};
use asyncagents::tools::{self, Alias, Audience, Call, Error, Toolbox};
use serde_json::{Value, json};

use crate::support::{World, caller, quoted, shown};

/// The text of a tool's answer, with everything that differs from run to run normalised, and
/// whether it is an error.
async fn say(world: &World, caller: &Caller, name: &str, arguments: Value) -> (String, bool) {
    let toolbox =
        Toolbox { aliases: vec![Alias::Superagents, Alias::Background], ..Toolbox::default() };
    let answer = world.tool_of(&toolbox, caller, name, arguments).await;
    (same(world, caller, answer.text), answer.is_error)
}

pub fn same(world: &World, caller: &Caller, text: String) -> String {
    let mut text = text;
    let mut tasks = world.supervisor.list(&caller.session, None).unwrap().tasks;
    tasks.reverse();
    for (n, task) in tasks.iter().enumerate() {
        text = text.replace(task.short_id.as_str(), &format!("<task {}>", n + 1));
        text = text.replace(task.id.as_str(), &format!("<session {}>", n + 1));
    }
    let words = text.split_inclusive([' ', '\n', '(', ')', '|', '.']);
    words.map(|word| if is_time(word) { "<time>" } else { word }).collect()
}

fn is_time(word: &str) -> bool {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &word[digits.len()..];
    !digits.is_empty()
        && digits.chars().all(|c| c.is_ascii_digit())
        && (unit.starts_with("ms") || unit.starts_with('s'))
}

async fn check(world: &World, caller: &Caller, name: &str, arguments: Value, expected: &str) {
    let (text, is_error) = say(world, caller, name, arguments).await;
    assert_eq!(text, expected);
    assert!(!is_error, "{text}");
}

async fn check_error(world: &World, caller: &Caller, name: &str, arguments: Value, text: &str) {
    let said = say(world, caller, name, arguments).await;
    assert_eq!(said, (text.to_owned(), true));
}

fn launch(prompt: &str) -> Value {
    json!({ "description": "find the login", "prompt": prompt, "agent": "explore" })
}

#[tokio::test]
async fn the_tools_teach_how_they_are_meant() {
    let list = tools::list(&Toolbox::default(), Audience::Conversation, &[]);
    let names: Vec<&str> = list.tools.iter().map(|tool| tool.name.as_str()).collect();
    let words = ["task", "output", "wait", "cancel", "send", "list", "clear"];
    assert_eq!(names, words.map(|word| format!("asyncagents_{word}")));
    insta::assert_json_snapshot!(list);
    let agent = |name: &str, reads_only| AgentOffer { name: name.into(), model: None, reads_only };
    let agents = [agent("build", false), agent("explore", true), agent("general", false)];
    insta::assert_json_snapshot!(
        "the_tools_teach_clients_of_mcp",
        tools::list(&Toolbox::default(), Audience::Mcp, &agents)
    );
}

#[tokio::test]
async fn aliases_are_registered_when_the_config_asks_for_them() {
    let aliases = vec![Alias::Superagents, Alias::Background];
    let toolbox = Toolbox { aliases, ..Toolbox::default() };
    let list = tools::list(&toolbox, Audience::Conversation, &[]).tools;
    let names: Vec<&str> = list[7..].iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "superagents_task",
            "superagents_output",
            "superagents_wait",
            "superagents_cancel",
            "superagents_send",
            "superagents_list",
            "superagents_clear",
            "background_task",
            "background_output",
            "background_cancel"
        ]
    );
    assert!(list[14..].iter().all(|tool| !tool.description.contains("asyncagents_")));
    assert_eq!(list[15].input_schema["properties"]["timeout"]["maximum"], 600_000);
    assert!(list[16].input_schema["properties"]["taskId"].is_object());
}

#[tokio::test]
async fn every_tool_that_a_text_mentions_exists() {
    let aliases = vec![Alias::Superagents, Alias::Background];
    let toolbox = Toolbox { aliases, ..Toolbox::default() };
    let world = World::start().await;
    let conversation = caller(&world.parent().await);
    let client = Caller { host: MAILBOX.into(), ..caller(&SessionId::new("a-client")) };
    for (audience, caller) in [(Audience::Conversation, conversation), (Audience::Mcp, client)] {
        let list = tools::list(&toolbox, audience, &[]);
        let mut texts: Vec<String> = list.tools.iter().map(|tool| format!("{tool:?}")).collect();
        texts.push(list.instructions.clone());
        for prefix in ["asyncagents", "superagents", "background"] {
            let name = format!("{prefix}_task");
            texts.push(world.tool_of(&toolbox, &caller, &name, launch("@hang")).await.text);
        }
        for text in texts {
            let words = text.split(|c: char| c != '_' && !c.is_ascii_alphabetic());
            let spoken_of = words.filter(|word| {
                ["asyncagents_", "superagents_", "background_"].iter().any(|p| word.starts_with(p))
            });
            for word in spoken_of {
                assert!(list.tools.iter().any(|tool| tool.name == word), "no {word}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn the_texts_of_launch_output_list_and_clear() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    check(&world, &caller, "asyncagents_list", json!({}), "No background tasks found").await;
    check(
        &world,
        &caller,
        "asyncagents_task",
        launch("@hang"),
        "Background task launched.\n\n\
         Task ID: <task 1>\nDescription: find the login\nAgent: explore\nStatus: running\n\n\
         You will get a message when it ends. Go on with your work; \
         asyncagents_output(task_id=\"<task 1>\") shows how far it is.",
    )
    .await;
    let listed = world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
    let id = listed.short_id.to_string();
    world
        .until("it was seen", || {
            world.task(&listed.id).progress.phase == asyncagents::task::Phase::Waiting
        })
        .await;
    check(
        &world,
        &caller,
        "asyncagents_output",
        json!({ "task_id": id }),
        "Task Status\n\n| Field | Value |\n| --- | --- |\n| Task ID | <task 1> |\n\
         | Description | find the login |\n| Agent | explore |\n| Status | running |\n\
         | Phase | waiting |\n| Duration | <time>|\n| Tool calls | 0 |\n\
         | Last activity | <time>ago |",
    )
    .await;
    world.finish(&listed, "src/login.rs:12").await;
    world.ended(&listed).await;
    check(
        &world,
        &caller,
        "asyncagents_output",
        json!({ "task_id": id }),
        &format!(
            "Task Result\n\nTask ID: <task 1>\nDescription: find the login\nDuration: <time>{}",
            shown("src/login.rs:12")
        ),
    )
    .await;
    check(
        &world,
        &caller,
        "asyncagents_task",
        json!({ "resume": id, "prompt": "@hang", "agent": "oracle" }),
        "Resume #1 of task <task 1> started.\n\n\
         Task ID: <task 1>\nDescription: find the login\nStatus: resumed\n\n\
         You will get a message with the answer.\n\
         Note: a resume goes on with the task as it is; ignored: agent.",
    )
    .await;
    let (text, _) = say(&world, &caller, "asyncagents_list", json!({})).await;
    let (summary, line) = text.split_once('\n').unwrap();
    assert_eq!(summary, "1 task: 0 running, 0 completed, 0 error, 0 cancelled, 1 resumed");
    assert!(line.starts_with("- <task 1> (resumed) [resumed, "), "{line}");
    check(
        &world,
        &caller,
        "asyncagents_cancel",
        json!({ "all": true }),
        "Cancelled task <task 1> \"find the login\".",
    )
    .await;
    check(&world, &caller, "asyncagents_clear", json!({}), "Cleared 1 task.").await;
    check(&world, &caller, "asyncagents_list", json!({}), "No background tasks found").await;
}

#[tokio::test]
async fn a_result_with_a_schema_is_also_given_as_structured_content() {
    let world = World::start().await;
    let parent = caller(&world.parent().await);
    let schema = json!({ "type": "object", "required": ["n"] });
    let mut wanted = launch("@say {\"n\": 1}");
    wanted["schema"] = schema.clone();
    world.tool(&parent, "asyncagents_task", wanted.clone()).await;
    let task = world.supervisor.list(&parent.session, None).unwrap().tasks.remove(0);
    world.ended(&task).await;
    let output = json!({ "task_id": task.short_id });
    let answer = world.tool(&parent, "asyncagents_output", output.clone()).await;
    assert_eq!(answer.structured, Some(json!({ "n": 1 })));
    let waited =
        world.tool(&parent, "asyncagents_wait", json!({ "task_ids": [task.short_id] })).await;
    assert_eq!(waited.structured, Some(json!({ "n": 1 })));
    let mut session = output;
    session["full_session"] = json!(true);
    assert_eq!(world.tool(&parent, "asyncagents_output", session).await.structured, None);
    // Structured content has to be an object, so an array is wrapped; an answer about several tasks
    // has none.
    wanted["schema"] = json!({ "type": "array" });
    wanted["prompt"] = json!("@say [1, 2]");
    world.tool(&parent, "asyncagents_task", wanted).await;
    let list = world.supervisor.list(&parent.session, None).unwrap().tasks.remove(0);
    world.ended(&list).await;
    let answer =
        world.tool(&parent, "asyncagents_output", json!({ "task_id": list.short_id })).await;
    assert_eq!(answer.structured, Some(json!({ "result": [1, 2] })));
    let both = json!({ "task_ids": [task.short_id, list.short_id] });
    assert_eq!(world.tool(&parent, "asyncagents_wait", both).await.structured, None);
    let client = Caller { host: MAILBOX.into(), ..caller(&SessionId::new("a-client")) };
    let errand = json!({ "description": "count", "prompt": "@say {\"n\": 2}", "schema": schema });
    let answer = world.tool(&client, "Task", errand).await;
    assert!(!answer.is_error, "{}", answer.text);
    assert_eq!(answer.structured, Some(json!({ "n": 2 })));
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_refused_and_nothing_is_launched() {
    let world = World::start().await;
    let parent = caller(&world.parent().await);
    let client = Caller { host: MAILBOX.into(), ..caller(&SessionId::new("a-client")) };
    for (caller, tool) in
        [(&parent, "asyncagents_task"), (&client, "asyncagents_task"), (&client, "Task")]
    {
        for schema in
            [json!({ "type": "nonsense" }), json!({ "$ref": "https://example.org/x" }), json!(7)]
        {
            let mut wanted = launch("@say {}");
            if tool == "Task" {
                wanted.as_object_mut().unwrap().remove("agent");
            }
            wanted["schema"] = schema;
            let answer = world.tool(caller, tool, wanted).await;
            let refused = "Error: `schema` is not a JSON Schema that can be used: ";
            assert!(answer.is_error && answer.text.starts_with(refused), "{}", answer.text);
        }
    }
    assert_eq!(world.host.sessions().len(), 1, "the parent alone");
}

#[tokio::test]
async fn the_texts_of_send() {
    let world = World::start().await;
    let parent = caller(&world.parent().await);
    say(&world, &parent, "asyncagents_task", launch("@hang")).await;
    let task = world.supervisor.list(&parent.session, None).unwrap().tasks.remove(0);
    let send = |message: &str| json!({ "task_id": task.short_id, "message": message });
    let sent = "Message sent to task <task 1>. The agent sees it before its next step.";
    check(&world, &parent, "asyncagents_send", send("not there"), sent).await;
    world.until("it was said", || world.host.prompts(&task.id).len() == 2).await;
    check(&world, &parent, "superagents_send", send("here"), sent).await;
    let empty = "Error: `message` is required and must not be empty";
    check_error(&world, &parent, "asyncagents_send", send(" "), empty).await;
    let other = caller(&world.parent().await);
    let (refused, is_error) = say(&world, &other, "asyncagents_send", send("mine")).await;
    let expected = format!(
        "Error: task `{id}` was launched by another conversation, which alone may change it; a person \
         can, in a shell: `asyncagents cancel {id}`, `asyncagents resume {id} PROMPT`, `asyncagents \
         send {id} MESSAGE`",
        id = task.short_id
    );
    assert_eq!((refused, is_error), (expected, true));
    world.until("all was said", || world.host.prompts(&task.id).len() == 3).await;
    world.finish(&task, "found").await;
    world.ended(&task).await;
    check(
        &world,
        &parent,
        "asyncagents_send",
        send("@hang"),
        "Resume #1 of task <task 1> started.\n\n\
         Task ID: <task 1>\nDescription: find the login\nStatus: resumed\n\n\
         You will get a message with the answer.",
    )
    .await;
}

#[tokio::test]
async fn a_task_of_another_conversation_is_read_by_its_id_and_not_resumed() {
    let world = World::start().await;
    let parent = caller(&world.parent().await);
    say(&world, &parent, "asyncagents_task", launch("@say found")).await;
    let task = world.supervisor.list(&parent.session, None).unwrap().tasks.remove(0);
    world.ended(&task).await;
    let other = caller(&world.parent().await);
    for (tool, arguments) in [
        ("asyncagents_wait", json!({ "task_ids": [task.short_id] })),
        ("asyncagents_output", json!({ "task_id": task.short_id })),
    ] {
        let (read, is_error) = say(&world, &other, tool, arguments).await;
        assert!(!is_error && read.contains("found"), "{tool}: {read}");
    }
    let resume = json!({ "resume": task.short_id, "prompt": "go on" });
    let (refused, is_error) = say(&world, &other, "asyncagents_task", resume).await;
    let begins = format!("Error: task `{}` was launched by another conversation", task.short_id);
    assert!(is_error && refused.starts_with(&begins), "{refused}");
    assert_eq!(world.host.prompts(&task.id).len(), 1);
}

#[tokio::test]
async fn a_blocking_output_waits_and_says_when_it_timed_out() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    say(&world, &caller, "asyncagents_task", launch("@think 50\n@say found")).await;
    let task = world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
    let block = json!({ "task_id": task.short_id, "block": true, "timeout": 30 });
    let (text, _) = say(&world, &caller, "asyncagents_output", block).await;
    assert!(text.ends_with(&shown("found")), "{text}");
    say(&world, &caller, "asyncagents_task", launch("@hang")).await;
    let task = world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
    let block = json!({ "task_id": task.short_id, "block": true, "timeout": 1 });
    let (text, is_error) = say(&world, &caller, "asyncagents_output", block).await;
    let end = "Timed out after <time>of waiting. The task goes on; you will get a message when it \
               ends.";
    assert!(text.ends_with(end) && !is_error, "{text}");
}

#[tokio::test]
async fn a_task_that_waits_for_a_paused_queue_says_so() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    world.supervisor.pause_queue().await.unwrap();
    let (text, is_error) = say(&world, &caller, "asyncagents_task", launch("@hang")).await;
    let expected =
        "Status: running (queued: the queue is paused; `asyncagents continue` starts it again)";
    assert!(text.contains(expected) && !is_error, "{text}");
}

#[tokio::test]
async fn a_failed_task_shows_its_error_and_its_partial_result() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let task = world.end_of(&caller.session, "@stream 1 1\n@fail no | credit").await;
    let (text, is_error) =
        say(&world, &caller, "asyncagents_output", json!({ "task_id": task.id.as_str() })).await;
    assert!(text.contains("| Status | error |\n| Error | \"no \\| credit\" |"), "{text}");
    let again = "\n\nTo try again, launch it anew with asyncagents_task; a person can retry it in a shell: \
                 `asyncagents retry <task 1>`.";
    assert!(text.ends_with(&format!("{}{again}", quoted("Partial result", "word "))), "{text}");
    assert!(!is_error);
}

#[tokio::test]
async fn the_whole_session_can_be_shown() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let prompt = "look\n@tool read {\"path\":\"a\"}\n@say found";
    let task = world.end_of(&caller.session, prompt).await;
    let arguments = json!({
        "task_id": task.short_id, "full_session": true, "include_tool_results": true,
        "message_limit": 2,
    });
    let (text, _) = say(&world, &caller, "asyncagents_output", arguments).await;
    assert!(text.contains("completed {\"path\":\"a\"}\n[Tool result]\n  ok"), "{text}");
    assert!(text.contains("\n---\n\nMessages, quoted from the agent"), "{text}");
    assert!(text.ends_with("]\n  found\n~~~") && !text.contains("look\n"), "{text}");
}

#[tokio::test]
async fn arguments_that_a_tool_does_not_have_are_refused_with_those_it_has() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let check = async |tool: &str, arguments: Value, text: &str| {
        check_error(&world, &caller, &format!("asyncagents_{tool}"), arguments, text).await;
    };
    let not_there = "Error: invalid arguments: unknown field `wait`, expected ";
    let fields = [
        (
            "task",
            "one of `description`, `prompt`, `agent`, `fork`, `resume`, `batch`, `model`, \
             `budget`, `host`, `schema`",
        ),
        (
            "output",
            "one of `task_id`, `block`, `timeout`, `offset`, `full_session`, `include_thinking`, \
             `include_tool_results`, `since_message_id`, `message_limit`, `thinking_max_chars`",
        ),
        ("wait", "one of `task_ids`, `batch`, `mode`, `count`, `timeout`"),
        ("list", "`status`"),
    ];
    for (tool, fields) in fields {
        check(tool, json!({ "wait": true }), &format!("{not_there}{fields}")).await;
    }
    check(
        "clear",
        json!({ "wait": true }),
        "Error: invalid arguments: unknown field `wait`, there are no fields",
    )
    .await;
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn bad_arguments_get_a_text_that_says_the_way_out_and_change_nothing() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let check = async |tool: &str, arguments: Value, text: &str| {
        check_error(&world, &caller, &format!("asyncagents_{tool}"), arguments, text).await;
    };
    check("task", json!({}), "Error: `prompt` is required and must not be empty").await;
    let mut both = launch("look");
    both["fork"] = json!(true);
    both["resume"] = json!("ab12c3");
    check(
        "task",
        both,
        "Error: `fork` and `resume` are mutually exclusive: fork starts a new task with this \
         conversation's context, resume goes on with an existing task; pass one of them",
    )
    .await;
    let mut nobody = launch("look");
    nobody["agent"] = json!("x");
    check(
        "task",
        nobody,
        "Agent \"x\" not found. Make sure it's registered. \
         Known agents: build, explore, general, librarian, oracle",
    )
    .await;
    check(
        "task",
        json!({ "resume": "ab12c3", "prompt": "more" }),
        "Error: no task `ab12c3`; list the tasks to see their ids",
    )
    .await;
    let types = "Error: invalid arguments: invalid type: ";
    check("task", json!({ "prompt": 7 }), &format!("{types}integer `7`, expected a string")).await;
    let named = "Error: invalid arguments: expected an object with their names";
    check("task", json!([1]), named).await;
    check("cancel", json!([null, true]), named).await;
    check("clear", json!("all"), named).await;
    check("output", json!({}), "Error: invalid arguments: missing field `task_id`").await;
    check(
        "output",
        json!({ "task_id": "x", "timeout": 601 }),
        "Error: `timeout` must be between 1 second and 10 minutes",
    )
    .await;
    let exactly_one = "Error: pass exactly one of `task_id`, `all: true` and `batch`";
    check("cancel", json!({}), exactly_one).await;
    check("cancel", json!({ "all": true, "batch": "b" }), exactly_one).await;
    check(
        "cancel",
        json!({ "all": true, "taskId": "ab12c3" }),
        "Error: invalid arguments: unknown field `taskId`, expected one of `task_id`, \
         `all`, `batch`",
    )
    .await;
    check(
        "list",
        json!({ "status": "sleeping" }),
        "Error: no state `sleeping`; there are: running, completed, error, cancelled, resumed",
    )
    .await;
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
    let unknown = Call {
        name: "background_task".into(),
        caller: caller.clone(),
        arguments: json!({}),
        key: None,
        acknowledges: false,
    };
    let toolbox = Toolbox::default();
    let unknown = tools::call(&world.supervisor, &toolbox, unknown);
    assert!(matches!(unknown.await, Err(Error::NoSuchTool { .. })));
}

#[tokio::test]
async fn an_argument_that_is_null_is_left_out() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let mut order = launch("@hang");
    for name in ["fork", "resume", "batch", "model", "budget", "host"] {
        order[name] = Value::Null;
    }
    let (text, is_error) = say(&world, &caller, "asyncagents_task", order).await;
    assert!(!is_error, "{text}");
    let task = world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
    let output = json!({
        "task_id": task.short_id, "block": null, "timeout": null, "offset": null,
        "full_session": null, "include_thinking": null, "message_limit": null,
    });
    let (text, is_error) = say(&world, &caller, "asyncagents_output", output).await;
    assert!(!is_error, "{text}");
    let cancel = json!({ "task_id": task.short_id, "all": null, "batch": null });
    check(
        &world,
        &caller,
        "asyncagents_cancel",
        cancel,
        "Cancelled task <task 1> \"find the login\".",
    )
    .await;
    let wait = json!({ "task_ids": null, "batch": null, "mode": null, "count": null });
    let nothing = "No running background tasks to wait for.";
    check(&world, &caller, "asyncagents_wait", wait, nothing).await;
}

#[tokio::test]
async fn background_output_counts_in_milliseconds_and_background_cancel_takes_task_id() {
    let world = World::start().await;
    let caller = caller(&world.parent().await);
    let (text, _) = say(&world, &caller, "background_task", launch("@hang")).await;
    assert!(text.contains("background_output(task_id=\"<task 1>\")"), "{text}");
    let task = world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
    let block = json!({ "task_id": task.short_id, "block": true, "timeout": 1000 });
    let (text, _) = say(&world, &caller, "background_output", block).await;
    assert!(text.contains("Timed out after <time>of waiting."), "{text}");
    check(
        &world,
        &caller,
        "background_cancel",
        json!({ "taskId": task.short_id }),
        "Cancelled task <task 1> \"find the login\".",
    )
    .await;
}

#[tokio::test]
async fn the_next_answer_to_a_parent_without_a_conversation_starts_with_its_unread_notices() {
    let world = World::start().await;
    let mut client = caller(&SessionId::new("mcp-client"));
    client.host = MAILBOX.into();
    say(&world, &client, "asyncagents_task", launch("@hang")).await;
    let task = world.supervisor.list(&client.session, None).unwrap().tasks.remove(0);
    world.finish(&task, "found").await;
    world.ended(&task).await;
    let (text, _) = say(&world, &client, "asyncagents_list", json!({})).await;
    let (mail, list) = text.split_once("\n\n---\n\n").unwrap();
    assert_eq!(
        mail,
        format!(
            "✓ **Agent \"find the login\" finished in <time>**\nTask Progress: 1/1\n\
             Task <task 1>: completed\n\n{}",
            quoted("Result of task <task 1>", "found")
        )
    );
    assert!(list.starts_with("1 task: "), "{list}");
    let (text, _) = say(&world, &client, "asyncagents_list", json!({})).await;
    assert!(text.starts_with("1 task: "), "{text}");
}
