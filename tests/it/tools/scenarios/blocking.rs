//! S4: the blocking tool `Task` returns the result in time, continues in the background after that,
//! and reuses identical results.

use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::supervisor::{Answer, Target};
use asyncagents::task::stats::Usage;
use asyncagents::task::{Answerer, SHELL, SessionId, Slot, Status, Timestamp};
use asyncagents::tools::{self, Audience, Call, Error, OfferScope, OnTimeout, Toolbox};
use serde_json::{Value, json};

use super::{SHORT, Tools};
use crate::support::{World, caller, quoted, settings, shown};

fn answer(text: &str) -> String {
    quoted("Result", text)
}

fn question(prompt: &str) -> Value {
    json!({ "description": "code analysis", "prompt": prompt })
}

#[tokio::test]
async fn s4_basic_execution() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    assert_eq!(
        tools.says("Task", question("@tool read {\"path\":\"main.go\"}\n@say three issues")).await,
        answer("three issues")
    );
    let task = tools.newest();
    assert_eq!(task.status(), Status::Completed);
    assert!(task.result_retrieved_at.is_some());
}

#[tokio::test]
async fn s4_isolated_session_with_its_own_title() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    tools.says("Task", question("look\n@say found")).await;
    let task = tools.newest();
    assert_eq!(world.host.title(&task.id), "Task: code analysis");
    assert_eq!(world.host.prompts(&task.id), ["look\n@say found"], "nothing of its parent's");
    assert_ne!(task.id, tools.caller.session);
}

#[tokio::test]
async fn s4_both_description_and_prompt_are_required() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let check = async |arguments: Value, expected: &str| {
        assert_eq!(tools.refuses("Task", arguments).await, format!("Error: {expected}"));
    };
    let fit = "invalid arguments: ";
    check(json!({ "prompt": "look" }), &format!("{fit}missing field `description`")).await;
    check(json!({ "description": "look" }), &format!("{fit}missing field `prompt`")).await;
    check(json!({}), &format!("{fit}missing field `description`")).await;
    for blank in ["", " \n\t "] {
        let nothing = json!({ "description": blank, "prompt": "look" });
        check(nothing, "`description` is required and must not be empty").await;
        let nothing = json!({ "description": "look", "prompt": blank });
        check(nothing, "`prompt` is required and must not be empty").await;
    }
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn s4_input_is_trimmed() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let padded = json!({ "description": "  code analysis\n", "prompt": "\n look here \n" });
    assert_eq!(tools.says("Task", padded).await, answer("done: look here"));
    let task = tools.newest();
    assert_eq!(
        (task.order.description.as_str(), task.order.prompt.as_str()),
        ("code analysis", "look here")
    );
}

#[tokio::test]
async fn s4_input_that_is_too_long_is_refused() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let sized = |description: usize, prompt: usize| json!({ "description": "ä".repeat(description), "prompt": "ö".repeat(prompt) });
    assert_eq!(
        tools.refuses("Task", sized(201, 1)).await,
        "Error: `description` is too long: 201 characters, at most 200"
    );
    assert_eq!(
        tools.refuses("Task", sized(1, 10_001)).await,
        "Error: `prompt` is too long: 10001 characters, at most 10000"
    );
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
    let longest = tools.call("Task", sized(200, 10_000)).await;
    assert!(!longest.is_error, "{}", longest.text);
}

#[tokio::test]
async fn s4_unknown_properties_are_refused() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let mut arguments = question("look");
    arguments["agent"] = json!("oracle");
    assert_eq!(
        tools.refuses("Task", arguments).await,
        "Error: invalid arguments: unknown field `agent`, expected one of `description`, `prompt`, \
         `schema`"
    );
    assert_eq!(world.supervisor.task_count().unwrap(), 0);
}

#[tokio::test]
async fn s4_json_schema_integration() {
    let mut toolbox = Toolbox::default();
    toolbox.blocking.offered = OfferScope::Everywhere;
    let schema = |audience| {
        let tools = tools::list(&toolbox, audience, &[]).tools;
        tools.into_iter().find(|tool| tool.name == "Task").unwrap().input_schema
    };
    // Our addition to the properties of the specification (O7).
    let result_schema = json!({
        "type": "object",
        "description": "A JSON Schema. The result is then JSON that fits it; the agent is asked again \
                        when its answer does not.",
    });
    assert_eq!(
        schema(Audience::Conversation),
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "description": {
                    "type": "string", "minLength": 1, "maxLength": 200,
                    "description": "A short (3-5 word) description of the task",
                },
                "prompt": {
                    "type": "string", "minLength": 1, "maxLength": 10_000,
                    "description": "The task for the agent to perform",
                },
                "schema": result_schema,
            },
            "required": ["description", "prompt"],
            "additionalProperties": false,
        })
    );
    // Over MCP, schemas are passed on to providers that support fewer keywords.
    assert_eq!(
        schema(Audience::Mcp),
        json!({
            "type": "object",
            "properties": {
                "description": {
                    "type": "string",
                    "description": "A short (3-5 word) description of the task",
                },
                "prompt": {
                    "type": "string",
                    "description": "The task for the agent to perform",
                },
                "schema": result_schema,
            },
            "required": ["description", "prompt"],
        })
    );
}

#[tokio::test]
async fn s4_it_is_offered_over_mcp_and_can_be_switched_everywhere() {
    for (offered, conversation, mcp) in [
        (OfferScope::Mcp, false, true),
        (OfferScope::Everywhere, true, true),
        (OfferScope::Nowhere, false, false),
    ] {
        let mut toolbox = Toolbox::default();
        toolbox.blocking.offered = offered;
        for (audience, there) in [(Audience::Conversation, conversation), (Audience::Mcp, mcp)] {
            let mut tools = tools::list(&toolbox, audience, &[]).tools.into_iter();
            assert_eq!(tools.any(|tool| tool.name == "Task"), there, "{offered:?} {audience:?}");
        }
    }
    let world = World::start().await;
    let call = Call {
        name: "Task".into(),
        caller: caller(&world.parent().await),
        arguments: question("look"),
        key: None,
        acknowledges: false,
    };
    let refused = tools::call(&world.supervisor, &Toolbox::default(), call).await;
    assert!(matches!(refused, Err(Error::NoSuchTool { .. })));
}

#[tokio::test]
async fn s4_timeout_handling() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    tools.toolbox.blocking.timeout = SHORT;
    assert_eq!(
        tools.refuses("Task", question("@hang")).await,
        "task execution timeout: task <task 1> goes on in the background; you will get a message \
         when it ends"
    );
    let task = tools.newest();
    assert_eq!(task.status(), Status::Running);
    world.finish(&task, "three issues").await;
    let posts = world.posts(&tools.caller.session, 1).await;
    assert!(posts[0].wake && posts[0].hidden.ends_with("\nthree issues\n~~~"), "{posts:?}");
    let output = tools.output(&task).await;
    assert!(output.ends_with(&shown("three issues")), "{output}");
}

#[tokio::test]
async fn s4_timeout_handling_without_a_conversation() {
    let world = World::start().await;
    let mut client = Tools::of_client(&world);
    // The same when the client's time-out is the shorter one.
    client.caller.longest_wait = Some(SHORT);
    assert_eq!(
        client.refuses("Task", question("@hang")).await,
        "task execution timeout: task <task 1> goes on in the background; \
         asyncagents_wait(task_ids=[\"<task 1>\"]) waits for it"
    );
    client.caller.longest_wait = None;
    let task = client.newest();
    let wait = json!({ "task_ids": [task.short_id] });
    let (waited, ()) = tokio::join!(client.says("wait", wait), async {
        world.finish(&task, "three issues").await;
    });
    assert!(waited.ends_with(&shown("three issues")), "{waited}");
}

#[tokio::test]
async fn s4_a_blocking_task_that_needs_a_permission_says_so_at_once_and_stays_in_the_background() {
    let world = World::start().await;
    let mut client = Tools::of_client(&world);
    client.toolbox.blocking.on_timeout = OnTimeout::Cancel;
    assert_eq!(
        client.refuses("Task", question("@ask bash ls\n@say found")).await,
        "task needs permission: task <task 1> stays in the background until the user has answered. \
         Show what is asked and the command, and do not answer yourself; after that, \
         asyncagents_wait(task_ids=[\"<task 1>\"]) waits for it.\n\n\
         Waiting for a person:\n- <task 1> \"code analysis\" asks for \"bash ls\"\n  \
         `asyncagents approve <task 1>` allows it, `asyncagents deny <task 1>` refuses it"
    );
    let task = client.newest();
    world
        .supervisor
        .answer(task.short_id.as_str(), Answer::Allow, Answerer::default())
        .await
        .unwrap();
    assert_eq!(world.ended(&task).await.state.result(), Some("found"));
}

#[tokio::test]
async fn s4_timeout_that_cancels() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    tools.toolbox.blocking.timeout = SHORT;
    tools.toolbox.blocking.on_timeout = OnTimeout::Cancel;
    assert_eq!(tools.refuses("Task", question("@hang")).await, "task timeout");
    let task = tools.newest();
    assert_eq!(task.status(), Status::Cancelled);
    world.until("its session is stopped", || !world.host.is_busy(&task.id)).await;
}

#[tokio::test]
async fn s4_error_handling_of_a_cancelled_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let (refused, ()) = tokio::join!(tools.refuses("Task", question("@hang")), async {
        world.until("it is there", || !tools.tasks().is_empty()).await;
        let target = Target::Task(tools.newest().id);
        let somebody = caller(&SessionId::new(SHELL));
        world.supervisor.cancel(&somebody, target).await.unwrap();
    });
    assert_eq!(refused, "task cancelled");
}

#[tokio::test]
async fn s4_error_handling_of_a_failed_task() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    assert_eq!(
        tools.refuses("Task", question("@fail the model is overloaded")).await,
        "task failed: \"the model is overloaded\""
    );
}

#[tokio::test]
async fn s4_max_concurrent_tasks_is_three_and_waiting_for_a_place_counts() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let mut hurried = Tools::by(&world, tools.caller.clone(), "asyncagents");
    hurried.toolbox.blocking.timeout = SHORT;
    let begin = || tools.says("Task", question("@hang"));
    let rest = async {
        world.until("three run", || tools.tasks().len() == 3).await;
        let three = tools.tasks();
        assert!(three.iter().all(|task| task.slot == Slot::Active));
        let (answered, ()) = tokio::join!(tools.says("Task", question("@say fourth")), async {
            world.until("a fourth is there", || tools.tasks().len() == 4).await;
            let fourth = tools.newest();
            assert_eq!(fourth.slot, Slot::Queued);
            let refused = hurried.refuses("Task", question("@say fifth")).await;
            assert!(
                refused.starts_with("task execution timeout: task <task 5> goes on"),
                "{refused}"
            );
            // Its caller has stopped waiting, so it moved to the slots of background tasks.
            let fifth = world.ended(&tools.newest()).await;
            assert_eq!(fifth.state.result(), Some("fifth"));
            assert_eq!(world.task(&fourth.id).slot, Slot::Queued);
            world.finish(&three[0], "first").await;
        });
        assert_eq!(answered, answer("fourth"));
        for task in &three[1..] {
            world.finish(task, "others").await;
        }
    };
    let (one, two, three, ()) = tokio::join!(begin(), begin(), begin(), rest);
    let mut answers = [one, two, three];
    answers.sort();
    assert_eq!(answers, ["first", "others", "others"].map(answer));
}

#[tokio::test]
async fn s4_background_tasks_do_not_take_the_places_of_those_that_are_waited_for() {
    let mut few = settings();
    let mut limits = (*few.limits).clone();
    limits.blocking_per_parent = 1;
    few.limits = limits.into();
    let world = World::with(few).await;
    let tools = Tools::of(&world, "asyncagents").await;
    tools.launch("@hang").await;
    assert_eq!(tools.says("Task", question("@say found")).await, answer("found"));
}

#[tokio::test]
async fn s4_cost_aggregation() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let parent = &tools.caller.session;
    assert_eq!(world.supervisor.spent(parent).unwrap(), Usage::default());
    tools.says("Task", question("@spend 100 0.5\n@say found")).await;
    tools.refuses("Task", question("@spend 20 0.25\n@fail no")).await;
    let spent = Usage { tokens: 120, cost: 0.75 };
    assert_eq!(world.supervisor.spent(parent).unwrap(), spent);
}

#[tokio::test]
async fn s4_caching_strategy() {
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    let ask = async |tools: &Tools<'_>, prompt: &str, tasks: u64| {
        let answered = tools.says("Task", question(prompt)).await;
        assert_eq!(world.supervisor.task_count().unwrap(), tasks, "{prompt}");
        answered
    };
    // The reuse of results is off by default.
    assert_eq!(ask(&tools, "@say one", 1).await, answer("one"));
    assert_eq!(ask(&tools, "@say one", 2).await, answer("one"));
    tools.toolbox.blocking.cache = Some(Duration::from_secs(60));
    assert_eq!(ask(&tools, "@say one", 2).await, answer("one"));
    assert_eq!(ask(&tools, "  @say one\n", 2).await, answer("one"));
    assert_eq!(ask(&tools, "@say two", 3).await, answer("two"));
    let mut other = Tools::of(&world, "asyncagents").await;
    other.toolbox = tools.toolbox.clone();
    assert_eq!(ask(&other, "@say one", 4).await, answer("one"));
    clock.advance(Duration::from_secs(61));
    assert_eq!(ask(&tools, "@say one", 5).await, answer("one"));
    assert_eq!(ask(&tools, "@say one", 5).await, answer("one"));
}

#[tokio::test]
async fn s4_a_failure_is_not_cached() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    tools.toolbox.blocking.cache = Some(Duration::from_secs(60));
    for tasks in [1, 2] {
        assert_eq!(tools.refuses("Task", question("@fail no")).await, "task failed: \"no\"");
        assert_eq!(world.supervisor.task_count().unwrap(), tasks);
    }
}

#[tokio::test]
async fn s4_the_agent_is_the_callers_own_else_the_configured_one() {
    let world = World::start().await;
    let mut tools = Tools::of(&world, "asyncagents").await;
    for (own, configured, expected) in
        [("build", "general", "build"), ("", "general", "general"), ("", "oracle", "oracle")]
    {
        tools.caller.agent = own.into();
        tools.toolbox.blocking.agent = configured.into();
        tools.says("Task", question("look")).await;
        assert_eq!(tools.newest().order.agent, expected);
    }
}

#[tokio::test]
async fn s4_a_blocking_task_is_a_task_like_any_other() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    tools.says("Task", question("@say found")).await;
    let task = tools.newest();
    let list = tools.says("list", json!({})).await;
    assert!(list.ends_with("- <task 1> [completed] build: \"code analysis\" (<time>"), "{list}");
    let follow_up = json!({ "resume": task.short_id, "prompt": "@say more" });
    tools.says("task", follow_up).await;
    assert_eq!(world.ended(&task).await.state.result(), Some("more"));
}

#[tokio::test]
async fn s4_an_empty_answer_of_an_agent_is_reported_with_a_text() {
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    let answer = tools.call("Task", question("@say")).await;
    assert!(!answer.text.trim().is_empty(), "{answer:?}");
}

#[tokio::test]
async fn s4_logging_integration() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = std::sync::Mutex::new(log.reopen().unwrap());
    let plain = tracing_subscriber::fmt().without_time().with_level(false).with_target(false);
    let _listening =
        tracing::subscriber::set_default(plain.with_ansi(false).with_writer(writer).finish());
    let world = World::start().await;
    let tools = Tools::of(&world, "asyncagents").await;
    tools.says("Task", question("@say found")).await;
    tools.refuses("Task", question("@fail no")).await;
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines = text.lines().filter(|line| line.contains("`Task`"));
    let same = |word: &str| match word.starts_with("duration=") {
        true => "duration=<time>".to_owned(),
        false => word.to_owned(),
    };
    let lines: Vec<String> =
        lines.map(|line| line.split(' ').map(same).collect::<Vec<_>>().join(" ")).collect();
    let began = "blocking `Task` started description=\"code analysis\"";
    let ended = "blocking `Task` answered description=\"code analysis\" duration=<time> success=";
    assert_eq!(lines, [began, &format!("{ended}true"), began, &format!("{ended}false")]);
}
