//! Results that have to fit a JSON Schema (O7): corrections are requested when they do not, also
//! across restarts.

use asyncagents::supervisor::{Delivery, Fork, Launch};
use asyncagents::task::{Order, Schema, SessionId, State, Status, Task};
use serde_json::json;

use crate::support::{World, caller, order};

fn schema() -> Schema {
    let schema = json!({
        "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"],
    });
    Schema::new(schema).unwrap()
}

fn wanted(prompt: &str) -> Order {
    Order { schema: Some(schema()), ..order(prompt) }
}

async fn launch(world: &World, parent: &SessionId, prompt: &str) -> Task {
    world.try_launch(parent, wanted(prompt)).await.unwrap()
}

fn completed(result: &str) -> State {
    State::Completed { result: result.into(), error: None }
}

#[tokio::test]
async fn an_answer_that_fits_is_the_result_and_the_agent_was_told_what_is_expected() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = launch(&world, &parent, "count\n@say {\"n\": 1}").await;
    assert_eq!(world.ended(&task).await.state, completed("{\"n\": 1}"));
    let prompts = world.host.prompts(&task.id);
    assert_eq!(prompts.len(), 1);
    let told = format!("count\n@say {{\"n\": 1}}\n\n{}", schema().instructions());
    assert_eq!(prompts[0], told);
    assert_eq!(world.task(&task.id).order.prompt, "count\n@say {\"n\": 1}");
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again_in_the_same_session_and_run() {
    let world = World::start().await;
    let parent = world.parent().await;
    let script = "@say it is one\n@then {\"n\": \"one\"}\n@then {\"n\": 1}";
    let task = launch(&world, &parent, script).await;
    let ended = world.ended(&task).await;
    assert_eq!((ended.state, ended.run), (completed("{\"n\": 1}"), 0));
    let prompts = world.host.prompts(&task.id);
    assert_eq!(prompts.len(), 3);
    assert!(prompts[1].contains("- it is not JSON: "), "{}", prompts[1]);
    assert!(prompts[2].contains("- at /n: \"one\" is not of type \"integer\""), "{}", prompts[2]);
    assert_eq!(world.posts(&parent, 1).await.len(), 1, "one end, told once");
}

#[tokio::test]
async fn three_answers_that_do_not_fit_end_the_task_in_error_with_the_last_one_kept() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = launch(&world, &parent, "@say one\n@then two\n@then {\"n\": 3.5}").await;
    let ended = world.ended(&task).await;
    let error =
        "none of 3 answers fits the schema; the last one: - at /n: 3.5 is not of type \"integer\"";
    let expected = State::Failed { error: error.into(), result: Some("{\"n\": 3.5}".into()) };
    assert_eq!(ended.state, expected);
    assert_eq!(world.host.prompts(&task.id).len(), 3);
}

#[tokio::test]
async fn answers_are_counted_across_restarts() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let task = launch(&world, &parent, "@hang").await;
    world.finish(&task, "not JSON").await;
    // The correction prompt contains no script, so the scripted host echoes its first line.
    world.until("it is asked again", || world.host.prompts(&task.id).len() == 2).await;
    world.restart().await;
    let ended = world.ended(&task).await;
    assert_eq!(ended.status(), Status::Error, "{:?}", ended.state);
    assert_eq!(
        world.host.prompts(&task.id).len(),
        3,
        "the restart does not grant three more answers"
    );
}

#[tokio::test]
async fn a_restart_between_an_answer_and_its_correction_loses_nothing() {
    for _ in 0..5 {
        let mut world = World::start().await;
        let parent = world.parent().await;
        let script = "@think 20\n@say no\n@then neither\n@then {\"n\": 7}";
        let task = launch(&world, &parent, script).await;
        for pause in [25, 3, 9] {
            tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
            world.restart().await;
        }
        assert_eq!(world.ended(&task).await.state, completed("{\"n\": 7}"));
        assert_eq!(world.host.prompts(&task.id).len(), 3);
    }
}

#[tokio::test]
async fn a_resume_has_to_fit_again_and_one_that_does_not_keeps_the_earlier_result() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = launch(&world, &parent, "@say {\"n\": 1}").await;
    world.ended(&task).await;
    world.supervisor.resume(&task.id, "@say no\n@then {\"n\": 2}".into()).await.unwrap();
    assert_eq!(world.ended(&task).await.state, completed("{\"n\": 2}"));
    let sent = world.supervisor.send(&task.id, "@say never".into(), None).await.unwrap();
    assert_eq!(sent.delivery, Delivery::Resumed);
    let ended = world.ended(&task).await;
    let State::Completed { result, error: Some(error) } = &ended.state else {
        panic!("{:?}", ended.state);
    };
    assert_eq!(&**result, "{\"n\": 2}");
    assert!(error.starts_with("none of 3 answers fits the schema"), "{error}");
}

#[tokio::test]
async fn a_forked_task_with_a_schema_has_both() {
    let world = World::start().await;
    let parent = world.parent().await;
    let launch = Launch {
        wanted: wanted("@say no\n@then {\"n\": 4}").into(),
        fork: Fork::Caller,
        key: None,
    };
    let task = world.supervisor.launch(caller(&parent), launch).await.unwrap();
    let ended = world.ended(&task).await;
    assert_eq!((ended.state.clone(), ended.origin.is_forked), (completed("{\"n\": 4}"), true));
    let prompts = world.host.prompts(&task.id);
    assert_eq!(prompts.len(), 3, "what it inherits, its prompt, and once again");
    assert!(prompts[1].ends_with(schema().as_str()), "{}", prompts[1]);
}

#[tokio::test]
async fn the_answer_to_a_message_has_to_fit_the_schema_of_the_task() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = launch(&world, &parent, "@think 50\n@say no\n@then {\"n\": 5}").await;
    world.until("it works", || world.host.is_busy(&task.id)).await;
    world.supervisor.send(&task.id, "@say {\"n\": 6}".into(), None).await.unwrap();
    // The answer to the message replaces the earlier ones.
    assert_eq!(world.ended(&task).await.state, completed("{\"n\": 6}"));
}
