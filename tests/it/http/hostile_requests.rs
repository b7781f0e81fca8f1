//! Fuzzing the tools with arguments generated from their schemas: always a text, never a crash, no
//! partial effects.

use std::time::Duration;

use asyncagents::supervisor::Caller;
use asyncagents::task::{MAILBOX, SessionId, State, Status, Task, Timestamp};
use asyncagents::tools::{self, Alias, Audience, Blocking, OfferScope, Toolbox};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestRng, TestRunner};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::support::process::Shell;
use crate::support::web::Site;
use crate::support::{World, caller};

/// The length of one part of a result with the text around it.
const LONGEST_ERROR: usize = 8_100;

/// Placeholder for the id of one of the caller's tasks, which are created on demand.
const AN_ID: &str = "<a task>";

/// A mutation of valid arguments. An index picks one of the properties.
#[derive(Clone, Debug)]
enum Mutation {
    Replace(Index, Value),
    Remove(Index),
    Add(String, Value),
    /// Replaces a value inside an argument that is a list or an object.
    Within(Index, Value),
    Whole(Value),
    /// Replaces the object by the list of its values.
    List,
}

#[derive(Clone, Debug)]
struct Case {
    /// The index of the tool.
    tool: usize,
    /// The task that the placeholder stands for.
    task: Index,
    is_client: bool,
    arguments: Value,
}

/// One world for all cases: each starts with what the cases before it left behind.
struct Stage {
    runtime: Runtime,
    world: World,
    toolbox: Toolbox,
    callers: [Caller; 2],
}

/// The state that a refused call must not change.
#[derive(Debug, PartialEq)]
struct StateCounts {
    tasks: u64,
    intents: usize,
    sessions: usize,
    live: Vec<(SessionId, State, u32, Option<Timestamp>)>,
}

impl Stage {
    fn begin() -> Stage {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (world, conversation) = runtime.block_on(async {
            let world = World::start().await;
            let parent = world.parent().await;
            (world, caller(&parent))
        });
        let client = Caller { host: MAILBOX.into(), ..caller(&SessionId::new("a-client")) };
        Stage { runtime, world, toolbox: toolbox(), callers: [conversation, client] }
    }

    /// A running, a completed and a failed task of the caller.
    async fn tasks(&self, caller: &Caller) -> Vec<Task> {
        let list = |status| {
            let listing = self.world.supervisor.list(&caller.session, Some(status)).unwrap();
            listing.tasks.into_iter().find(|task| task.order.description == "of the stage")
        };
        let mut tasks = Vec::new();
        for (status, prompt) in [
            (Status::Running, "@hang"),
            (Status::Completed, "@say found"),
            (Status::Error, "@fail no"),
        ] {
            if let Some(task) = list(status) {
                tasks.push(task);
                continue;
            }
            let order = json!({
                "description": "of the stage", "prompt": prompt, "agent": "explore",
            });
            self.world.tool(caller, "asyncagents_task", order).await;
            let task = self.world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
            tasks.push(match status {
                Status::Running => task,
                _ => self.world.ended(&task).await,
            });
        }
        tasks
    }

    fn seen(&self) -> StateCounts {
        let supervisor = &self.world.supervisor;
        let live = self
            .callers
            .iter()
            .flat_map(|caller| self.world.store.tasks().live(Some(&caller.session)).unwrap());
        // All other scripts end by themselves.
        let live = live.filter(|task| task.order.prompt == "@hang");
        StateCounts {
            tasks: supervisor.task_count().unwrap(),
            intents: self.world.store.intents().all().unwrap().len(),
            sessions: self.world.host.sessions().len(),
            live: live.map(|task| (task.id, task.state, task.run, task.cleared_at)).collect(),
        }
    }

    /// Calls the tool and checks the invariants.
    fn check(&self, tool: &str, case: &Case) -> String {
        self.runtime.block_on(async {
            let caller = &self.callers[usize::from(case.is_client)];
            let tasks = self.tasks(caller).await;
            let id = case.task.get(&tasks).short_id.to_string();
            let arguments = with_ids(case.arguments.clone(), &id);
            // Bounds every wait, except that of the blocking `Task`, which ends by itself.
            let longest_wait = (tool != "Task").then_some(Duration::from_millis(2));
            let caller = Caller { longest_wait, ..caller.clone() };
            let before = self.seen();
            let answer = self.world.tool_of(&self.toolbox, &caller, tool, arguments.clone()).await;
            assert!(!answer.text.trim().is_empty(), "{tool} says nothing to {arguments}");
            if answer.is_error {
                let length = answer.text.chars().count();
                assert!(
                    length <= LONGEST_ERROR + mail(&answer.text),
                    "{tool}: {length} characters"
                );
                // A `Task` call whose agent never returned JSON was executed: its failed task is
                // expected.
                let is_carried_out = answer.text.contains("task failed: \"none of 3 answers fits");
                if !is_carried_out {
                    assert_eq!(self.seen(), before, "{tool}({arguments}): {}", answer.text);
                }
            }
            answer.text
        })
    }
}

/// The length of the notices in front of an answer.
fn mail(text: &str) -> usize {
    text.split_once("\n\n---\n\n").map_or(0, |(mail, _)| mail.chars().count())
}

fn toolbox() -> Toolbox {
    let blocking = Blocking { offered: OfferScope::Everywhere, ..Blocking::default() };
    Toolbox { aliases: vec![Alias::Superagents, Alias::Background], blocking }
}

/// Every tool with its schema, for both audiences.
fn all_tools() -> Vec<(String, bool, Value)> {
    let of = |audience| {
        let tools = tools::list(&toolbox(), audience, &[]).tools.into_iter();
        tools.map(move |tool| (tool.name, audience == Audience::Mcp, tool.input_schema))
    };
    of(Audience::Conversation).chain(of(Audience::Mcp)).collect()
}

fn with_ids(value: Value, id: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(AN_ID, id)),
        Value::Array(values) => values.into_iter().map(|value| with_ids(value, id)).collect(),
        Value::Object(values) => {
            values.into_iter().map(|(name, value)| (name, with_ids(value, id))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// Values that a schema allows. The property's name selects the kind of text.
fn fitting(name: &str, schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return prop::sample::select(values.clone()).boxed();
    }
    let least = schema["minimum"].as_u64().unwrap_or(0);
    match schema["type"].as_str().unwrap() {
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "integer" => (least..least + 50).prop_map(Value::from).boxed(),
        "number" => {
            let most = schema["maximum"].as_f64().unwrap_or(1_000.0);
            (least.max(1) as f64..=most).prop_map(Value::from).boxed()
        }
        "array" => {
            let item = fitting("task_id", &schema["items"]);
            prop::collection::vec(item, 0..4).prop_map(Value::from).boxed()
        }
        // Any object fits the type; generate JSON Schemas.
        "object" if name == "schema" => {
            let schemas =
                [json!({}), json!({ "type": "string" }), json!({ "items": { "$ref": "#" } })];
            prop::sample::select(schemas.to_vec()).boxed()
        }
        "object" => object(schema),
        "string" => text(name),
        other => panic!("no generator for the type {other}"),
    }
}

fn text(name: &str) -> BoxedStrategy<Value> {
    let texts: &[&str] = match name {
        "task_id" | "taskId" | "resume" => &[AN_ID, AN_ID, "nobody", "ses_"],
        "agent" => &["explore", "general", "nobody"],
        "host" => &["scripted", "nowhere"],
        "batch" => &["nightly", "never"],
        "model" => &["openai/scripted"],
        "since_message_id" => &["msg_answer_000001", "msg_nobody"],
        _ => &["look around", "ä€😀", "@say found"],
    };
    prop::sample::select(texts).prop_map(Value::from).boxed()
}

fn object(schema: &Value) -> BoxedStrategy<Value> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().unwrap().iter();
    let properties: Vec<BoxedStrategy<Option<(String, Value)>>> = properties
        .map(|(name, schema)| {
            let chance = match name.as_str() {
                // A launch is refused without the first two, and mostly with the others: weigh them
                // so that both cases occur.
                "description" | "agent" => 0.9,
                "resume" | "fork" | "host" => 0.2,
                _ => 0.4,
            };
            let is_required = required.contains(&name.as_str());
            let name = name.clone();
            let value = fitting(&name, schema).prop_map(move |value| (name.clone(), value));
            match is_required {
                true => value.prop_map(Some).boxed(),
                false => prop::option::weighted(chance, value).boxed(),
            }
        })
        .collect();
    let object = |values: Vec<Option<(String, Value)>>| -> Value {
        Value::Object(values.into_iter().flatten().collect::<Map<String, Value>>())
    };
    properties.prop_map(object).boxed()
}

/// Arguments that no well-behaved client sends.
fn hostile() -> BoxedStrategy<Value> {
    let numbers = prop::sample::select(vec![
        json!(0),
        json!(-1),
        json!(0.5),
        json!(-0.0),
        json!(1e308),
        json!(5e-324),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(u32::MAX),
        json!(600.000_1),
    ]);
    let texts = prop::sample::select(vec![
        "",
        " ",
        "\n",
        "\u{0}",
        "a\u{0}b",
        "\u{1b}[31m",
        "\u{7f}",
        "\u{202e}",
        "\u{feff}",
        "NaN",
        "Infinity",
        "-1",
        "true",
        "null",
        "[]",
        "\\ud800",
        "\u{fffd}",
        "\u{10ffff}",
        "%",
        "ses_%",
        "'; DROP TABLE task; --",
        "../../etc/passwd",
        "${HOME}",
        "{{prompt}}",
        AN_ID,
    ]);
    let long = prop::sample::select(vec![201, 501, 8_001, 10_001]);
    let long = prop_oneof![
        8 => long.prop_map(|length: usize| json!("x".repeat(length))),
        1 => Just(json!("ä".repeat(1_000_001))),
    ];
    let deep = (1..120_usize).prop_map(|depth| {
        (0..depth).fold(json!(AN_ID), |inner, n| match n % 2 {
            0 => json!([inner]),
            _ => json!({ "task_id": inner }),
        })
    });
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        numbers,
        texts.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        long,
        deep,
        Just(json!([])),
        Just(json!({})),
        Just(json!([AN_ID, AN_ID])),
        Just(json!(vec![AN_ID; 2_001])),
    ]
    .boxed()
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let extra = prop::sample::select(vec![
        "task_id",
        "taskId",
        "all",
        "resume",
        "fork",
        "timeout",
        "",
        "__proto__",
        "\u{0}",
        "TASK_ID",
    ]);
    prop_oneof![
        6 => (any::<Index>(), hostile()).prop_map(|(at, value)| Mutation::Replace(at, value)),
        2 => any::<Index>().prop_map(Mutation::Remove),
        2 => (extra, hostile()).prop_map(|(name, value)| Mutation::Add(name.to_owned(), value)),
        1 => (any::<Index>(), hostile()).prop_map(|(at, value)| Mutation::Within(at, value)),
        1 => hostile().prop_map(Mutation::Whole),
        1 => Just(Mutation::List),
    ]
}

fn mutated(arguments: Value, properties: &[String], mutation: Mutation) -> Value {
    let Value::Object(mut values) = arguments else { return arguments };
    let any_of = |at: Index| (!properties.is_empty()).then(|| at.get(properties).clone());
    match mutation {
        Mutation::Replace(at, value) => values.extend(any_of(at).map(|name| (name, value))),
        Mutation::Remove(at) => {
            any_of(at).and_then(|name| values.remove(&name));
        }
        Mutation::Add(name, value) => {
            values.insert(name, value);
        }
        Mutation::Within(at, value) => match any_of(at).and_then(|name| values.get_mut(&name)) {
            Some(Value::Array(items)) => items.push(value),
            Some(Value::Object(inner)) => {
                let name = inner.keys().next().cloned().unwrap_or_else(|| "tokens".to_owned());
                inner.insert(name, value);
            }
            Some(_) | None => {}
        },
        Mutation::Whole(value) => return value,
        Mutation::List => return values.into_iter().map(|(_, value)| value).collect(),
    }
    Value::Object(values)
}

/// Calls of all tools, with valid and with mutated arguments.
fn case(all: &[(String, bool, Value)]) -> impl Strategy<Value = Case> {
    let arguments: Vec<BoxedStrategy<(usize, Value)>> = all
        .iter()
        .enumerate()
        .map(|(n, (_, _, schema))| object(schema).prop_map(move |value| (n, value)).boxed())
        .collect();
    let properties: Vec<Vec<String>> = all
        .iter()
        .map(|(_, _, schema)| schema["properties"].as_object().unwrap().keys().cloned().collect())
        .collect();
    let clients: Vec<bool> = all.iter().map(|(_, is_client, _)| *is_client).collect();
    let good = prop::strategy::Union::new(arguments);
    let mutations = prop::collection::vec(mutation(), 0..3);
    (good, mutations, any::<Index>()).prop_map(move |((tool, good), mutations, task)| {
        let mutate = |value, mutation| mutated(value, &properties[tool], mutation);
        let arguments = mutations.into_iter().fold(good, mutate);
        Case { tool, task, is_client: clients[tool], arguments }
    })
}

/// A fixed seed, so that a failure is reproducible.
fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    TestRunner::new_with_rng(config, rng)
}

#[test]
fn whatever_a_tool_is_called_with_it_answers_and_leaves_nothing_half_done() {
    let all = all_tools();
    let stage = Stage::begin();
    let checked = runner(600).run(&case(&all), |case| {
        stage.check(&all[case.tool].0, &case);
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
    // The world still works.
    let order = json!({ "description": "look", "prompt": "@say found", "agent": "explore" });
    stage.runtime.block_on(async {
        let caller = &stage.callers[0];
        stage.world.tool(caller, "asyncagents_task", order).await;
        let task = stage.world.supervisor.list(&caller.session, None).unwrap().tasks.remove(0);
        assert_eq!(stage.world.ended(&task).await.state.result(), Some("found"));
    });
}

#[test]
fn arguments_that_fit_the_schema_are_not_refused_as_invalid() {
    let all = all_tools();
    let stage = Stage::begin();
    for (tool, is_client, schema) in &all {
        let checked = runner(12).run(&(object(schema), any::<Index>()), |(arguments, task)| {
            let case = Case { tool: 0, task, is_client: *is_client, arguments };
            let answer = stage.check(tool, &case);
            let form = "invalid arguments";
            assert!(!answer.contains(form), "{tool}({}): {answer}", case.arguments);
            Ok(())
        });
        if let Err(error) = checked {
            panic!("{error}");
        }
    }
}

/// Bodies that no `Value` can represent: they have to be refused before a tool is called.
#[test]
fn a_body_that_is_not_json_is_refused_with_a_readable_error() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let token = std::fs::read_to_string(shell.home().join("token")).unwrap();
    let token = format!("Authorization: Bearer {}", token.trim());
    let headers = [token.as_str(), "Content-Type: application/json"];
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for prompt in [
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\u00""#,
        "NaN",
        "-Infinity",
        "1e999",
        "'x'",
        &deep,
        "",
    ] {
        let body = format!(
            r#"{{"caller": {{"sessionID": "a-client"}},
                 "arguments": {{"description": "x", "agent": "explore", "prompt": {prompt}}}}}"#
        );
        for tool in ["asyncagents_task", "Task"] {
            let answer = site.ask("POST", &format!("/v1/tools/{tool}"), &headers, &body);
            assert!((400..500).contains(&answer.status), "{prompt:.20}: {answer:?}");
            assert!(!answer.error().is_empty());
        }
    }
    assert_eq!(shell.tasks(), []);
    assert_eq!(site.get("/v1/health").status, 200);
}
