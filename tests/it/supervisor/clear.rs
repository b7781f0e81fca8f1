//! Clearing (O3): a parent's tasks leave its list, and live ones are cancelled.

use asyncagents::supervisor::ClearOutcome;
use asyncagents::task::Status;

use crate::support::{World, caller};

#[tokio::test]
async fn clear_aborts_live_tasks_and_empties_the_list_while_the_history_stays() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let done = world.end_of(&parent, "quick").await;
    let live = world.launch(&parent, "@hang").await;
    let theirs = world.launch(&other, "@hang").await;
    let cleared = world.supervisor.clear(&caller(&parent)).await.unwrap();
    assert_eq!(cleared, ClearOutcome { cancelled: 1, cleared: 2 });
    assert_eq!(world.supervisor.list(&parent, None).unwrap().tasks, []);
    assert_eq!(world.status(&live), Status::Cancelled);
    assert_eq!(world.status(&theirs), Status::Running);
    let kept = world.task(&done.id);
    assert!(kept.cleared_at.is_some());
    assert_eq!(kept.state, done.state);
    let again = world.supervisor.clear(&caller(&parent)).await.unwrap();
    assert_eq!(again, ClearOutcome { cancelled: 0, cleared: 0 });
    assert!(world.posts(&parent, 2).await.iter().filter(|post| !post.wake).count() == 1);
}
