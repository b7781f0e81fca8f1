//! How runs end: every row of T6 through the whole machine, with lost and duplicated events (T7).

use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::host::scripted::Control;
use asyncagents::supervisor::Asks;
use asyncagents::task::stats::Usage;
use asyncagents::task::{Budget, Phase, State, Status, Timestamp};

use crate::support::{World, order, settings};

fn completed(result: &str) -> State {
    State::Completed { result: result.into(), error: None }
}

fn failed(error: &str, result: Option<&str>) -> State {
    State::Failed { error: error.into(), result: result.map(Into::into) }
}

fn cancelled(error: &str) -> State {
    State::Cancelled { error: Some(error.into()), result: None }
}

async fn check(prompt: &str, expected: State) {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, prompt).await;
    assert_eq!(task.state, expected, "{prompt}");
    assert!(task.completed_at.is_some());
    assert_eq!(world.posts(&parent, 1).await.len(), 1, "{prompt}");
}

#[tokio::test]
async fn a_run_that_answers_is_completed() {
    check("@think 5\n@tool read {\"path\":\"a\"}\n@stream 3 1\n@say found", completed("found"))
        .await;
}

#[tokio::test]
async fn a_run_that_fails_for_good_is_an_error() {
    check("@stream 2 1\n@fail overloaded", failed("overloaded", Some("word word "))).await;
}

#[tokio::test]
async fn retries_of_the_host_are_not_an_end() {
    check("@retry 100 overloaded\n@say found", completed("found")).await;
}

#[tokio::test]
async fn an_idle_that_comes_before_the_answer_is_finished_is_not_an_end() {
    check("@idle-twice\n@say found", completed("found")).await;
}

#[tokio::test]
async fn a_missed_idle_event_is_caught_by_the_sweep() {
    check("@lose-event\n@say found", completed("found")).await;
}

#[tokio::test]
async fn a_compaction_in_mid_run_is_not_the_answer() {
    check("@tool read\n@compact\n@tool read\n@say found", completed("found")).await;
}

#[tokio::test]
async fn aborted_by_someone_in_the_host_is_cancelled() {
    check("@tool read\n@abort", cancelled("aborted in the host")).await;
}

#[tokio::test]
async fn a_deleted_session_is_cancelled() {
    check("@tool read\n@delete", cancelled("Session deleted")).await;
}

#[tokio::test]
async fn a_panic_in_one_tasks_work_fails_that_task_only() {
    let world = World::start().await;
    let parent = world.parent().await;
    let bad = world.launch(&parent, "@panic\n@hang").await;
    let good = world.launch(&parent, "@think 50\n@say found").await;
    let (bad, good) = (world.ended(&bad).await, world.ended(&good).await);
    assert_eq!(good.state, completed("found"));
    assert_eq!(bad.state, failed("internal error while looking at it; see the daemon's log", None));
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
}

#[tokio::test]
async fn open_todos_get_one_prompt_and_are_then_named_in_the_notice() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@todo write tests\n@say found").await;
    assert_eq!(task.status(), Status::Completed);
    let prompts = world.host.prompts(&task.id);
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    assert!(prompts[1].starts_with("Some of your todos are still open."), "{prompts:?}");
    let hidden = &world.posts(&parent, 1).await[0].hidden;
    assert!(hidden.contains("Todos left open:\n- \"write tests\""), "{hidden}");
}

#[tokio::test]
async fn todos_that_are_done_after_the_prompt_are_not_mentioned() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@todo-once write tests\n@say found").await;
    assert_eq!(world.host.prompts(&task.id).len(), 2);
    let hidden = &world.posts(&parent, 1).await[0].hidden;
    assert!(!hidden.contains("Todos left open"), "{hidden}");
}

#[tokio::test]
async fn a_restarted_host_is_continued_once_in_the_same_session() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@tool read\n@hang").await;
    world.until("it works", || world.task(&task.id).progress.tool_calls == 1).await;
    world.control(Control::Restart).await;
    let ended = world.ended(&task).await;
    assert_eq!(ended.status(), Status::Completed, "{:?}", ended.state);
    let prompts = world.host.prompts(&task.id);
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    assert!(prompts[1].starts_with("Your work was interrupted by a restart."), "{prompts:?}");
    assert_eq!(world.posts(&parent, 1).await.len(), 1);
}

#[tokio::test]
async fn refused_permissions_end_in_an_error_that_names_them() {
    let mut deny = settings();
    deny.asks = Asks::Deny;
    let world = World::with(deny).await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@ask bash rm -rf x\n@say found").await;
    assert_eq!(task.state, failed("stopped because permission was refused: bash: refused", None));
}

#[tokio::test]
async fn permissions_can_be_allowed_by_policy() {
    let mut allow = settings();
    allow.asks = Asks::Allow;
    let world = World::with(allow).await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@ask bash ls\n@say found").await;
    assert_eq!(task.state, completed("found"));
}

#[tokio::test]
async fn a_parked_request_is_denied_after_a_while() {
    let mut park = settings();
    park.asks = Asks::Park(Some(Duration::from_millis(100)));
    let world = World::with(park).await;
    let parent = world.parent().await;
    let task = world.end_of(&parent, "@ask bash ls\n@say found").await;
    assert_eq!(task.state, failed("stopped because permission was refused: bash: refused", None));
}

#[tokio::test]
async fn the_time_a_run_is_parked_does_not_count_against_its_budget() {
    let clock = Clock::manual(Timestamp::from_millis(1_790_000_000_000));
    let mut world = World::at(settings(), clock.clone()).await;
    let parent = world.parent().await;
    let mut order = order("@hang");
    order.budget = Budget { wall_seconds: Some(100), ..Budget::default() };
    let task = world.try_launch(&parent, order).await.unwrap();
    let works = |world: &World| world.task(&task.id).progress.phase == Phase::Waiting;
    world.until("it works", || works(&world)).await;
    clock.advance(Duration::from_secs(60));
    let progress = world.task(&task.id).progress;
    world.store.slots().park(&task, progress, clock.now()).await.unwrap();
    // The parked run continues after the restart; the time in between must not count against its
    // budget.
    world.kill();
    clock.advance(Duration::from_secs(1_000));
    world.revive();
    world.until("it works again", || works(&world)).await;
    clock.advance(Duration::from_secs(39));
    // Another end triggers a reconcile pass, which looks at this task as well.
    world.end_of(&parent, "@say done").await;
    assert_eq!(world.status(&task), Status::Running);
    clock.advance(Duration::from_secs(1));
    let reached = failed("budget reached: 100 s of wall time", None);
    assert_eq!(world.ended(&task).await.state, reached);
}

#[tokio::test]
async fn a_reached_budget_stops_the_run_keeps_the_partial_result_and_names_the_limit() {
    let world = World::start().await;
    let parent = world.parent().await;
    let check = async |budget: Budget, prompt: &str, error: &str| {
        let mut order = order(prompt);
        order.budget = budget;
        let task = world.try_launch(&parent, order).await.unwrap();
        let ended = world.ended(&task).await;
        assert_eq!(ended.state, failed(error, Some("word ")));
    };
    let none = Budget::default;
    let half = "@stream 1 1\n";
    check(
        Budget { tool_calls: Some(2), ..none() },
        &format!("{half}@repeat 2 read\n@hang"),
        "budget reached: 2 tool calls",
    )
    .await;
    let spend = format!("{half}@spend 100 0.5\n@hang");
    check(Budget { tokens: Some(100), ..none() }, &spend, "budget reached: 100 tokens").await;
    check(Budget { cost: Some(0.5), ..none() }, &spend, "budget reached: cost of 0.5").await;
    let wall = Budget { wall_seconds: Some(1), ..none() };
    check(wall, &format!("{half}@hang"), "budget reached: 1 s of wall time").await;
}

#[tokio::test]
async fn only_the_live_tasks_of_a_deleted_parent_are_cancelled_and_leave_its_list() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let done = world.end_of(&parent, "quick").await;
    let live = world.launch(&parent, "@hang").await;
    let theirs = world.launch(&other, "@hang").await;
    world.control(Control::Delete { session: parent.clone() }).await;
    let ended = world.ended(&live).await;
    assert_eq!(ended.state, cancelled("Parent session deleted"));
    let listed = || world.supervisor.list(&parent, None).unwrap().tasks.len();
    world.until("the list is empty", || listed() == 0).await;
    assert_eq!(world.status(&done), Status::Completed);
    assert_eq!(world.status(&theirs), Status::Running);
}

#[tokio::test]
async fn a_run_goes_on_across_a_restart_of_the_daemon() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let slow = world.launch(&parent, "@hang").await;
    let quick = world.launch(&parent, "@think 100\n@say found").await;
    let host = world.host.clone();
    world
        .until("both are prompted", || {
            !host.prompts(&slow.id).is_empty() && !host.prompts(&quick.id).is_empty()
        })
        .await;
    world.kill();
    // The run ends while no daemon is watching.
    world.finish(&slow, "ended in between").await;
    world.revive();
    assert_eq!(world.ended(&slow).await.state, completed("ended in between"));
    assert_eq!(world.ended(&quick).await.state, completed("found"));
    assert_eq!(world.posts(&parent, 2).await.len(), 2);
    assert_eq!(world.host.prompts(&slow.id).len(), 1);
}

#[tokio::test]
async fn a_parents_total_is_its_own_plus_all_its_descendants() {
    let mut deep = settings();
    deep.max_depth = 2;
    let world = World::with(deep).await;
    let parent = world.parent().await;
    let child = world.end_of(&parent, "@spend 10 0.5\n@say found").await;
    world.end_of(&child.id, "@spend 7 0.25\n@say found").await;
    world.end_of(&parent, "@spend 100 1\n@say found").await;
    let spent = |session| world.supervisor.spent(session).unwrap();
    assert_eq!(spent(&parent), Usage { tokens: 117, cost: 1.75 });
    assert_eq!(spent(&child.id), Usage { tokens: 17, cost: 0.75 });
}

#[tokio::test]
async fn progress_figures_come_from_the_host() {
    let world = World::start().await;
    let parent = world.parent().await;
    let prompt = "@tool read {\"path\":\"a\"}\n@tool grep {}\n@tool read {\"path\":\"b\"}\n\
                  @tool bash {}\n@spend 7 0.25\n@say found";
    let progress = world.end_of(&parent, prompt).await.progress;
    assert_eq!(progress.tool_calls, 4);
    let by_name = [("bash", 1), ("grep", 1), ("read", 2)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(progress.tool_calls_by_name, by_name.into());
    assert_eq!(progress.last_tools, ["grep", "read", "bash"]);
    assert_eq!((progress.tokens, progress.cost), (Some(7), Some(0.25)));
    assert_eq!(progress.last_message.as_deref(), Some("found"));
}
