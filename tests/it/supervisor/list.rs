//! Listing (O2), and resolving a task from what people type (T1).

use asyncagents::supervisor::Error;
use asyncagents::task::Status;
use asyncagents::task::stats::Counts;

use crate::support::World;

#[tokio::test]
async fn the_list_shows_direct_children_of_the_calling_session_newest_first() {
    let world = World::start().await;
    let (parent, other) = (world.parent().await, world.parent().await);
    let first = world.end_of(&parent, "quick").await;
    let second = world.launch(&parent, "@hang").await;
    world.launch(&other, "@hang").await;
    let listing = world.supervisor.list(&parent, None).unwrap();
    let ids: Vec<_> = listing.tasks.iter().map(|task| task.id.clone()).collect();
    assert_eq!(ids, [second.id.clone(), first.id]);
    assert_eq!(listing.counts, Counts::from_iter([Status::Completed, Status::Running]));
    let running = world.supervisor.list(&parent, Some(Status::Running)).unwrap();
    assert_eq!((running.tasks.len(), running.total), (1, 1));
    assert_eq!(running.tasks[0].id, second.id);
    assert_eq!(running.counts, listing.counts);
}

#[tokio::test]
async fn a_task_is_found_by_full_id_short_id_or_unique_prefix() {
    let world = World::start().await;
    let parent = world.parent().await;
    let one = world.launch(&parent, "@hang").await;
    let two = world.launch(&parent, "@hang").await;
    let found = |reference: &str| world.supervisor.resolve(reference).map(|task| task.id);
    assert_eq!(found(one.id.as_str()).unwrap(), one.id);
    assert_eq!(found(&format!(" {} ", one.short_id)).unwrap(), one.id);
    let shared = one.id.as_str().bytes().zip(two.id.as_str().bytes());
    let shared = shared.take_while(|(a, b)| a == b).count();
    assert_eq!(found(&two.id.as_str()[..=shared]).unwrap(), two.id);
    let Err(Error::Ambiguous { candidates, .. }) = found("ses_") else { panic!("ambiguous") };
    let expected = [&one, &two].map(|task| format!("{} (look around)", task.id));
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(candidates, expected);
    for nobody in ["", "nobody", "ses_%", "ses_\u{10ffff}", "'; DROP TABLE task; --"] {
        assert!(matches!(found(nobody), Err(Error::NoSuchTask(_))), "{nobody}");
    }
}
