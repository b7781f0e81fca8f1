//! Fetching results (O1, T9), blocking and non-blocking, of running, ended and resumed tasks.
//! Supervisor and scripted host run in this process.

use std::time::Duration;

use asyncagents::supervisor::WaitEnd;

use crate::support::{World, caller};

#[tokio::test]
async fn the_time_of_the_first_retrieval_of_a_result_is_recorded() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@say found").await;
    assert_eq!(task.result_retrieved_at, None);
    let first = world.supervisor.output(&caller(&parent), &task.id, None).await.unwrap();
    let at = first.task.result_retrieved_at;
    assert!(at.is_some());
    let second = world.supervisor.output(&caller(&parent), &task.id, None).await.unwrap();
    assert_eq!(second.task.result_retrieved_at, at);
}

#[tokio::test]
async fn output_does_not_block_unless_asked() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let output = world.supervisor.output(&caller(&parent), &task.id, None).await.unwrap();
    assert!(output.task.is_live() && output.end == WaitEnd::Enough);
    assert_eq!(output.task.result_retrieved_at, None);
}

#[tokio::test]
async fn a_wait_that_times_out_returns_the_status_and_the_task_goes_on() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@hang").await;
    let wait = Some(Duration::from_millis(20));
    let output = world.supervisor.output(&caller(&parent), &task.id, wait).await.unwrap();
    assert!(output.task.is_live() && output.end == WaitEnd::TimedOut);
    world.finish(&task, "found").await;
    assert_eq!(world.ended(&task).await.state.result(), Some("found"));
    assert!(world.posts(&parent, 1).await[0].wake);
}

#[tokio::test]
async fn results_survive_a_restart() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@tool read\n@say found").await;
    world.restart().await;
    assert_eq!(world.task(&task.id), task);
}
