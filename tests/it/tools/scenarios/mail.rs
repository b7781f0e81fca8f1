//! The mailbox of a parent without a conversation: unread ends precede its next answer, once.

use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::task::{Receipt, Timestamp};
use asyncagents::tools::{self, Call};
use asyncagents::wire::ToolAnswer;
use serde_json::json;

use super::{SHORT, Tools};
use crate::support::{World, quoted, settings, shown};

const ONE_LINE: &str = "✓ **Agent \"find the login\" finished in <time>**\nTask Progress: 1/1\nTask <task 1>: completed";
const NO_MAIL: &str = "1 task: ";

async fn list(client: &Tools<'_>) -> String {
    client.says("list", json!({})).await
}

/// A task that ends after its launch was answered, so that its end becomes mail.
async fn end_one(tools: &Tools<'_>) {
    let task = tools.launch("@hang").await;
    tools.finish(&task, "found").await;
}

/// Calls the list as a client that acknowledges its mail.
async fn acknowledging(client: &Tools<'_>) -> ToolAnswer {
    let call = Call {
        name: "asyncagents_list".into(),
        caller: client.caller.clone(),
        arguments: json!({}),
        key: None,
        acknowledges: true,
    };
    tools::call(&client.world.supervisor, &client.toolbox, call).await.unwrap()
}

#[tokio::test]
async fn notices_open_the_next_answer_once() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    end_one(&client).await;
    let text = list(&client).await;
    let result = quoted("Result of task <task 1>", "found");
    assert!(text.starts_with(&format!("{ONE_LINE}\n\n{result}\n\n---\n\n{NO_MAIL}")), "{text}");
    assert!(list(&client).await.starts_with(NO_MAIL));
}

#[tokio::test]
async fn notices_come_together_oldest_first_and_also_before_a_refusal() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let (one, two) = (client.launch("@hang").await, client.launch("@hang").await);
    client.finish(&two, "second").await;
    world
        .control(asyncagents::host::scripted::Control::Fail {
            session: one.id.clone(),
            error: "overloaded".into(),
        })
        .await;
    world.ended(&one).await;
    assert_eq!(
        client.refuses("output", json!({ "task_id": "nobody" })).await,
        format!(
            "✓ **Agent \"find the login\" finished in <time>**\nTask Progress: 1/2\n\
             Task <task 2>: completed\n\n{}\n\n\
             ✗ **Agent \"find the login\" failed in <time>**\nTask Progress: 2/2\n\
             Task <task 1>: error\n\nError: \"overloaded\"\n\n---\n\n\
             Error: no task `nobody`; list the tasks to see their ids",
            quoted("Result of task <task 2>", "second")
        )
    );
}

#[tokio::test]
async fn mail_is_only_for_its_client_and_a_conversation_has_none() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let mut other = Tools::of_client(&world);
    other.caller.session = asyncagents::task::SessionId::new("another-client");
    end_one(&client).await;
    let conversation = Tools::of(&world, "asyncagents").await;
    end_one(&conversation).await;
    assert_eq!(list(&other).await, "No background tasks found");
    assert!(list(&conversation).await.starts_with(NO_MAIL));
    assert!(list(&client).await.starts_with(ONE_LINE));
}

#[tokio::test]
async fn mail_that_was_acknowledged_does_not_come_again() {
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let client = Tools::of_client(&world);
    end_one(&client).await;
    let answer = acknowledging(&client).await;
    assert!(answer.text.starts_with("✓ **Agent"), "{}", answer.text);
    assert_eq!(answer.receipt.notices().len(), 1);
    world.supervisor.mail_was_read(answer.receipt).await.unwrap();
    for _ in 0..2 {
        let answer = acknowledging(&client).await;
        assert!(answer.text.starts_with(NO_MAIL), "{}", answer.text);
        assert_eq!(answer.receipt, Receipt::default());
        clock.advance(Duration::from_secs(61));
    }
}

#[tokio::test]
async fn mail_that_was_not_acknowledged_comes_again_after_a_minute() {
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    let world = World::at(settings(), clock.clone()).await;
    let client = Tools::of_client(&world);
    end_one(&client).await;
    let first = acknowledging(&client).await;
    // A lease: the mail is reserved for its first reader, whichever call comes next.
    clock.advance(Duration::from_secs(59));
    assert!(acknowledging(&client).await.text.starts_with(NO_MAIL));
    assert!(list(&client).await.starts_with(NO_MAIL));
    clock.advance(Duration::from_secs(1));
    let again = acknowledging(&client).await;
    assert_eq!((again.receipt, again.text), (first.receipt, first.text));
}

#[tokio::test]
async fn an_end_that_a_blocking_output_returned_does_not_come_again_as_mail() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let task = client.launch("@hang").await;
    let block = json!({ "task_id": task.short_id, "block": true });
    let (output, ()) = tokio::join!(client.says("output", block), world.finish(&task, "found"));
    assert!(output.starts_with("Task Result\n") && output.ends_with(&shown("found")), "{output}");
    assert!(list(&client).await.starts_with(NO_MAIL));
}

#[tokio::test]
async fn an_end_that_a_wait_returned_does_not_come_again_as_mail() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let task = client.launch("@hang").await;
    let (waited, ()) = tokio::join!(client.says("wait", json!({})), world.finish(&task, "found"));
    assert!(waited.starts_with("1 of 1 task has ended.\n\nTask Result\n"), "{waited}");
    assert!(list(&client).await.starts_with(NO_MAIL));
}

#[tokio::test]
async fn an_end_that_task_returned_does_not_come_again_as_mail() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let errand = json!({ "description": "find the login", "prompt": "@say found" });
    assert_eq!(client.says("Task", errand).await, quoted("Result", "found"));
    assert!(list(&client).await.starts_with(NO_MAIL));
    // An end after the call's time-out does come as mail.
    let mut hurried = Tools::of_client(&world);
    hurried.toolbox.blocking.timeout = SHORT;
    let errand = json!({ "description": "find the login", "prompt": "@hang" });
    hurried.refuses("Task", errand).await;
    client.finish(&client.newest(), "found").await;
    assert!(list(&client).await.starts_with(&ONE_LINE.replace("<task 1>", "<task 2>")));
}

#[tokio::test]
async fn a_task_that_its_client_cancelled_does_not_come_as_mail() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    client.launch("@hang").await;
    let text = client.says("cancel", json!({ "all": true })).await;
    assert_eq!(text, "Cancelled task <task 1> \"find the login\".");
    assert!(list(&client).await.starts_with(NO_MAIL));
}

#[tokio::test]
async fn mail_survives_a_restart_of_the_daemon() {
    let mut world = World::start().await;
    end_one(&Tools::of_client(&world)).await;
    world.restart().await;
    let text = list(&Tools::of_client(&world)).await;
    assert!(text.starts_with(ONE_LINE), "{text}");
}

#[tokio::test]
async fn a_result_that_came_as_mail_is_not_shown_again_by_a_wait_which_says_how_to_read_it() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    end_one(&client).await;
    assert!(list(&client).await.contains("found"));
    let line = "- <task 1> [completed] explore: \"find the login\" (<time>";
    assert_eq!(
        client.says("wait", json!({})).await,
        format!(
            "No running background tasks to wait for.\n\n\
             Ended before, asyncagents_output(task_id=…) shows their results:\n{line}"
        )
    );
    let wait = json!({ "task_ids": [client.newest().short_id] });
    assert_eq!(
        client.says("wait", wait).await,
        format!(
            "1 of 1 task has ended.\n\nShown before, asyncagents_output shows them again:\n{line}"
        )
    );
}

#[tokio::test]
async fn mail_carries_results_up_to_a_limit_and_says_where_the_rest_is() {
    let world = World::start().await;
    let client = Tools::of_client(&world);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(client.launch("@hang").await);
    }
    for task in &tasks {
        client.finish(task, &"x".repeat(7_900)).await;
    }
    let text = list(&client).await;
    assert_eq!(text.matches(&"x".repeat(7_900)).count(), 3);
    let rest = "[Result: 7900 characters; asyncagents_output(task_id=\"<task 4>\") shows them]";
    assert!(text.contains(&format!("Task <task 4>: completed\n\n{rest}\n\n---")), "{text}");
    // The full result of an end that was only mentioned is still new to a wait.
    let waited = client.says("wait", json!({ "task_ids": [tasks[3].short_id] })).await;
    assert!(waited.starts_with("1 of 1 task has ended.\n\nTask Result\n"), "{waited}");
}
