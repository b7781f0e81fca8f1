//! Deferred calls: they wait in the daemon, and their callers poll.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::Answer;
use asyncagents::task::{Answerer, Door, TaskId, Timestamp};
use asyncagents::tools::{Call, CallStart, Calls};
use asyncagents::wire::{CallStatus, CallView};
use serde_json::{Value, json};

use super::{Tools, order};
use crate::support::{World, settings, shown};

fn calls(tools: &Tools<'_>) -> Calls {
    Calls::new(tools.world.supervisor.clone(), Arc::new(tools.toolbox.clone()))
}

fn call(tools: &Tools<'_>, name: &str, arguments: Value, key: &str) -> Call {
    let (name, caller) = (name.to_owned(), tools.caller.clone());
    Call { name, caller, arguments, key: Some(key.to_owned()), acknowledges: true }
}

async fn begun(calls: &Calls, call: Call) -> CallView {
    match calls.begin(call, None).await.unwrap() {
        CallStart::Deferred(call) => call,
        CallStart::Answered(answer) => panic!("{}", answer.text),
    }
}

#[tokio::test]
async fn a_wait_of_half_an_hour_is_one_call() {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let tools = Tools::of_client(&world);
    let calls = calls(&tools);
    let task = tools.launch("@hang").await;
    world.until("it works", || world.host.is_busy(&task.id)).await;
    let wait = begun(&calls, call(&tools, "asyncagents_wait", json!({}), "one")).await;
    for _ in 0..30 {
        clock.advance(Duration::from_secs(60));
        let polled = calls.get(&tools.caller, &wait.id).await.unwrap().unwrap();
        assert_eq!(polled.status, CallStatus::Working);
    }
    world.finish(&task, "the end").await;
    let answer = loop {
        let polled = calls.get(&tools.caller, &wait.id).await.unwrap().unwrap();
        if let Some(answer) = polled.answer {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert!(answer.text.ends_with(&shown("the end")), "{}", answer.text);
}

#[tokio::test]
async fn an_answer_that_no_client_fetches_is_deleted_after_a_month() {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let tools = Tools::of_client(&world);
    let calls = calls(&tools);
    let launched = [tools.launch("@hang").await, tools.launch("@hang").await];
    let [ended, live] = &launched;
    let mut waits = Vec::new();
    for task in &launched {
        world.until("it works", || world.host.is_busy(&task.id)).await;
        let of_task = json!({ "task_ids": [task.id.as_str()], "timeout": 600 });
        let key = task.id.to_string();
        waits.push(begun(&calls, call(&tools, "asyncagents_wait", of_task, &key)).await);
    }
    world.finish(ended, "the end").await;
    let open = || world.supervisor.open_calls().unwrap().into_iter().map(|call| call.id);
    clock.advance(Duration::from_secs(29 * 24 * 3600));
    calls.prune().await.unwrap();
    assert_eq!(open().count(), 2, "the client may still come");
    clock.advance(Duration::from_secs(2 * 24 * 3600));
    // The other wait times out as well, so that both calls are over and pruned; the task is not
    // affected.
    while open().count() > 0 {
        calls.prune().await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let polled = calls.get(&tools.caller, &waits[0].id).await.unwrap().unwrap();
    assert_eq!(polled.status, CallStatus::Cancelled);
    assert!(world.host.is_busy(&live.id));
}

#[tokio::test]
async fn a_call_that_is_repeated_with_its_key_is_the_same_call() {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    let calls = calls(&tools);
    let errand = json!({ "description": "errand", "prompt": "@hang" });
    let (one, two) = tokio::join!(
        begun(&calls, call(&tools, "Task", errand.clone(), "key")),
        begun(&calls, call(&tools, "Task", errand.clone(), "key")),
    );
    let third = begun(&calls, call(&tools, "Task", errand, "key")).await;
    assert_eq!((&one.id, &one.id), (&two.id, &third.id));
    assert_eq!(tools.tasks().len(), 1);
}

#[tokio::test]
async fn only_tools_that_wait_for_ends_are_deferred() {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    let calls = calls(&tools);
    let deferred = ["task", "output", "wait", "cancel", "list", "clear"].map(|word| {
        calls.may_defer(&call(&tools, &format!("asyncagents_{word}"), order(""), "key"))
    });
    assert_eq!(deferred, [false, false, true, false, false, false]);
    assert!(calls.may_defer(&call(&tools, "Task", json!({}), "key")));
    let keyless = Call { key: None, ..call(&tools, "Task", json!({}), "key") };
    assert!(!calls.may_defer(&keyless), "it could not be repeated");
}

#[tokio::test]
async fn a_call_that_asks_for_two_permissions_goes_on_asking_for_the_one_that_is_left() {
    for (first, second) in [(0, 1), (1, 0)] {
        answer_one_after_the_other(first, second).await;
    }
}

async fn answer_one_after_the_other(first: usize, second: usize) {
    let world = World::start().await;
    let tools = Tools::of_client(&world);
    let calls = calls(&tools);
    let tasks = [
        tools.launch("@ask bash one\n@say deleted one").await,
        tools.launch("@ask bash two\n@say deleted two").await,
    ];
    let ids = tasks.map(|task| task.id.to_string());
    let wait = call(&tools, "asyncagents_wait", json!({ "task_ids": ids }), "one");
    let CallStart::Deferred(wait) = calls.begin(wait, Some(HashSet::new())).await.unwrap() else {
        panic!("it waits for answers");
    };
    let poll = async || calls.get(&tools.caller, &wait.id).await.unwrap().unwrap();
    let asked = loop {
        let polled = poll().await;
        assert!(polled.answer.is_none(), "{polled:?}");
        if polled.asks.len() == 2 {
            break polled.asks;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let by = Answerer { door: Door::McpElicitation, by: String::new() };
    world.supervisor.answer(&asked[first].id, Answer::Allow, by.clone()).await.unwrap();
    let ended = TaskId::new(&asked[first].session_id);
    loop {
        let polled = poll().await;
        assert_eq!(polled.status, CallStatus::InputRequired, "{polled:?}");
        assert_eq!(polled.asks, asked[second..=second]);
        if !world.supervisor.task(&ended).unwrap().is_live() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.supervisor.answer(&asked[second].id, Answer::Allow, by).await.unwrap();
    while poll().await.status != CallStatus::Completed {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
