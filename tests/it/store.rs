//! The store by itself, where a running program is too coarse: what is published when, and what
//! one change means for another.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::store::{
    Committed, Direction, End, Error, Filter, NewRun, NewTask, Opened, Placement, Resumed, Session,
    Sort, Store, What, Window,
};
use asyncagents::task::lifecycle::{Change, Report, Request, Resumable};
use asyncagents::task::queue::Limits;
use asyncagents::task::{Order, Origin, Parent, SessionId, Task, TaskId};
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

/// A store in a directory of its own, and what it has published.
struct World {
    store: Store,
    clock: Clock,
    limits: Arc<Limits>,
    published: Arc<Mutex<Vec<Committed>>>,
    folder: TempDir,
}

impl World {
    fn new() -> World {
        World::listening(|_, _| {})
    }

    /// `listen` is called by the writer with the store's file and what it has just committed.
    fn listening(listen: impl Fn(&Path, &Committed) + Send + 'static) -> World {
        let folder = tempfile::tempdir().unwrap();
        let published = Arc::new(Mutex::new(Vec::new()));
        let (file, news) = (folder.path().join("tasks.db"), published.clone());
        let publish = move |committed: Committed| {
            listen(&file, &committed);
            news.lock().unwrap().push(committed);
        };
        let (store, opened) = Store::open(&folder.path().join("tasks.db"), publish).unwrap();
        assert_eq!(opened, Opened::New);
        let limits = Arc::new(Limits {
            active: None,
            active_per_parent: 10,
            blocking_per_parent: 3,
            active_per_model: Default::default(),
            queued_per_parent: 1000,
        });
        World { store, clock: Clock::system(), limits, published, folder }
    }

    fn new_task(&self) -> NewTask {
        NewTask {
            id: self.clock.session_id(),
            short_ids: vec![self.clock.short_id()],
            nonce: self.clock.nonce(),
            origin: Origin {
                parent: Parent {
                    session: SessionId::new("ses_parent"),
                    message: "msg_parent".into(),
                    agent: "build".into(),
                    host: "scripted".into(),
                },
                host: "scripted".into(),
                host_instance: "scripted-0".into(),
                directory: "/somewhere".into(),
                depth: 1,
                is_forked: false,
            },
            order: Order {
                description: "find it".into(),
                prompt: "Find it.".into(),
                agent: "explore".into(),
                ..Order::default()
            },
            placement: Placement::CurrentOr(self.clock.batch_id()),
            inheritance: None,
            development: false,
            message_id: self.clock.message_id(),
            at: self.clock.now(),
            ticket: self.clock.tick(),
        }
    }

    async fn insert(&self) -> Task {
        self.store.tasks().insert(self.new_task(), self.limits.clone()).await.unwrap()
    }

    fn end(&self) -> End {
        End {
            at: self.clock.now(),
            message_id: self.clock.message_id(),
            wake: true,
            open_todos: Vec::new(),
            progress: None,
            transcript: true,
        }
    }

    fn published(&self) -> Vec<Committed> {
        self.published.lock().unwrap().clone()
    }

    fn stored(&self) -> Vec<Task> {
        let all = Window { limit: 1000, offset: 0 };
        self.store.pages().get(&Filter::default(), oldest_first(), all, |task| task).unwrap().tasks
    }
}

fn oldest_first() -> Sort {
    Sort { direction: Direction::Ascending, ..Sort::default() }
}

fn finished(task: &Task) -> Change {
    task.state.report(Report::Finished { result: "src/auth.rs".into() }).unwrap()
}

/// Reads from outside, so that it sees only what is committed.
fn count(file: &Path) -> usize {
    let db = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    db.query_row("SELECT count(*) FROM task", [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

fn status(file: &Path, id: &TaskId) -> String {
    let db = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    db.query_row("SELECT status FROM task WHERE id = ?1", [id.as_str()], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_change_is_published_when_it_is_on_disk_and_before_its_caller_hears_of_it() {
    let world = World::listening(|file, committed| {
        let known = status(file, &committed.task.id);
        assert_eq!(known, committed.task.status().name(), "published before the commit");
    });
    let task = world.insert().await;
    assert_eq!(world.published(), [Committed { id: 1, what: What::Created, task: task.clone() }]);
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    assert_eq!(
        world.published()[1..],
        [Committed { id: 2, what: What::Ended, task: ended.clone() }]
    );
    assert_eq!(world.stored(), [ended]);
}

#[tokio::test]
async fn changes_are_published_in_the_order_in_which_they_were_made() {
    let world = World::new();
    let mut expected = Vec::new();
    let mut outcomes = Vec::new();
    for _ in 0..300 {
        let new = world.new_task();
        expected.push((What::Created, new.id.clone()));
        outcomes.push(world.store.tasks().insert(new, world.limits.clone()));
    }
    let mut tasks = Vec::new();
    for outcome in outcomes {
        tasks.push(outcome.await.unwrap());
    }
    let mut outcomes = Vec::new();
    for task in tasks.iter().rev() {
        expected.push((What::Ended, task.id.clone()));
        outcomes.push(world.store.tasks().end(task, finished(task), world.end()));
    }
    for outcome in outcomes {
        assert!(outcome.await.unwrap().is_some());
    }
    let published: Vec<(What, TaskId)> =
        world.published().into_iter().map(|news| (news.what, news.task.id)).collect();
    assert_eq!(published, expected);
}

#[tokio::test]
async fn two_writers_of_the_same_end_owe_one_notice() {
    let world = World::new();
    let task = world.insert().await;
    let cancel = task.state.request(Request::Cancel { why: None }).unwrap();
    let first = world.store.tasks().end(&task, finished(&task), world.end());
    let second = world.store.tasks().end(&task, finished(&task), world.end());
    let third = world.store.tasks().end(&task, cancel, world.end());
    let ended = first.await.unwrap().unwrap();
    assert_eq!((second.await.unwrap(), third.await.unwrap()), (None, None));
    assert_eq!(ended.state.result(), Some("src/auth.rs"));
    assert_eq!(world.stored(), std::slice::from_ref(&ended));
    let now = world.clock.now().plus(Duration::from_secs(1));
    let owed = world.store.outbox().due(now, Duration::from_secs(60), &HashSet::new()).unwrap();
    let owed: Vec<_> = owed.into_iter().map(|owed| (owed.task, owed.run.n)).collect();
    assert_eq!(owed, [(ended.id, 0)]);
    assert_eq!(world.published().len(), 2);
}

#[tokio::test]
async fn a_change_that_fails_does_not_take_those_with_it_that_share_its_commit() {
    let (holds, held) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let counts = seen.clone();
    let world = World::listening(move |file, _| {
        let mut counts = counts.lock().unwrap();
        counts.push(count(file));
        // The first one holds the writer until the others are all waiting for it.
        if counts.len() == 1 {
            holds.send(()).unwrap();
            gone.recv().unwrap();
        }
    });
    let first = world.new_task();
    let (taken, taken_short) = (first.id.clone(), first.short_ids[0].clone());
    let first = world.store.tasks().insert(first, world.limits.clone());
    held.recv().unwrap();
    let insert = |new: NewTask| world.store.tasks().insert(new, world.limits.clone());
    let good = [world.new_task(), world.new_task(), world.new_task()];
    let ids: Vec<TaskId> = good.iter().map(|new| new.id.clone()).collect();
    let [one, two, three] = good;
    let one = insert(one);
    let same_id = insert(NewTask { id: taken, ..world.new_task() });
    let two = insert(two);
    let same_short_id = insert(NewTask { short_ids: vec![taken_short], ..world.new_task() });
    let three = insert(three);
    go.send(()).unwrap();

    let first = first.await.unwrap();
    let made = [one.await.unwrap(), two.await.unwrap(), three.await.unwrap()];
    assert_eq!(made.iter().map(|task| task.id.clone()).collect::<Vec<_>>(), ids);
    assert!(matches!(same_id.await, Err(Error::Failed(_))));
    assert!(matches!(same_short_id.await, Err(Error::NoShortId)));
    let [one, two, three] = made;
    let stored = [first, one, two, three];
    assert_eq!(world.stored(), stored);
    let mut ids = 1..;
    let created =
        stored.map(|task| Committed { id: ids.next().unwrap(), what: What::Created, task });
    assert_eq!(world.published(), created);
    assert_eq!(*seen.lock().unwrap(), [1, 4, 4, 4], "three of them in one commit");
}

#[tokio::test]
async fn a_launch_asked_for_twice_is_one_task() {
    let world = World::new();
    let new = world.new_task();
    let again = NewTask { id: world.clock.session_id(), ..new.clone() };
    let first = world.store.tasks().insert(new, world.limits.clone());
    let second = world.store.tasks().insert(again, world.limits.clone());
    let task = first.await.unwrap();
    assert_eq!(second.await.unwrap(), task);
    assert_eq!(world.stored(), std::slice::from_ref(&task));
    assert_eq!(world.published(), [Committed { id: 1, what: What::Created, task }]);
}

#[tokio::test]
async fn news_that_comes_after_a_resume_belongs_to_the_run_before_and_changes_nothing() {
    let world = World::new();
    let task = world.insert().await;
    let late = finished(&task);
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    assert_eq!(world.store.tasks().end(&task, late.clone(), world.end()).await.unwrap(), None);
    let run = NewRun {
        message_id: world.clock.message_id(),
        prompt: "And where else?".into(),
        at: world.clock.now(),
        ticket: world.clock.tick(),
        key: None,
    };
    let change = ended.state.request(Request::Resume(Resumable::Completed)).unwrap();
    let resumed =
        world.store.tasks().resume(&ended, change.clone(), run.clone(), world.limits.clone());
    let Resumed::Yes(resumed) = resumed.await.unwrap() else { panic!("it was not resumed") };
    assert_eq!(world.store.tasks().end(&ended, late.clone(), world.end()).await.unwrap(), None);
    assert_eq!(world.store.tasks().end(&task, late, world.end()).await.unwrap(), None);
    let again = world.store.tasks().resume(&ended, change, run, world.limits.clone());
    assert_eq!(again.await.unwrap(), Resumed::Stale);
    assert_eq!(world.stored(), [*resumed]);
}

#[tokio::test]
async fn what_was_queued_is_written_when_the_store_is_closed_and_nothing_after() {
    let world = World::new();
    let outcomes: Vec<_> = (0..50)
        .map(|_| world.store.tasks().insert(world.new_task(), world.limits.clone()))
        .collect();
    world.store.close();
    for outcome in outcomes {
        outcome.await.unwrap();
    }
    let late = world.store.tasks().insert(world.new_task(), world.limits.clone()).await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    let file = world.folder.path().join("tasks.db");
    assert_eq!(count(&file), 50);
}

#[test]
fn a_closed_store_is_one_file() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(world.insert());
    assert_eq!(world.stored().len(), 1, "a reader stays behind");
    world.store.close();
    let mut names: Vec<PathBuf> = std::fs::read_dir(world.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into())
        .collect();
    names.sort();
    assert_eq!(names, [Path::new("tasks.db")]);
}

#[tokio::test]
async fn a_store_opened_again_holds_what_it_held() {
    let world = World::new();
    let task = world.insert().await;
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    let live = world.insert().await;
    world.store.close();
    let (store, opened) = Store::open(&world.folder.path().join("tasks.db"), |_| {}).unwrap();
    assert_eq!(opened, Opened::Existing);
    assert_eq!(store.tasks().get(&ended.id).unwrap(), Some(ended));
    assert_eq!(store.tasks().get(&live.id).unwrap(), Some(live));
    assert_eq!(store.integrity().check().unwrap(), [""; 0]);
    assert_eq!(store.tasks().get(&TaskId::new("ses_nobody")).unwrap(), None);
}

#[tokio::test]
async fn what_is_said_while_a_session_comes_to_rest_keeps_it_at_work() {
    let world = World::new();
    let id = world.clock.session_id();
    let session = Session {
        id: id.clone(),
        parent: None,
        nonce: world.clock.nonce(),
        title: "look around".into(),
        directory: "/somewhere".into(),
        agent: "explore".into(),
        deny: Vec::new(),
        model: String::new(),
        running: false,
        said: 0,
        created_at: world.clock.now(),
        handed: Default::default(),
    };
    world.store.sessions().open(session).await.unwrap();
    let say = |message: &str| {
        world.store.sessions().say(&id, message.into(), "{}".into(), "m".into(), true)
    };
    let standing = || {
        let session = world.store.sessions().get(&id).unwrap().unwrap();
        (session.running, session.said)
    };
    assert!(say("msg_1").await.unwrap());
    // The run has made up its mind that nothing is left, and does not know of the second yet.
    let (_, known) = standing();
    assert!(say("msg_2").await.unwrap());
    assert!(!world.store.sessions().rest(&id, known).await.unwrap());
    assert_eq!(standing(), (true, 2));
    assert!(world.store.sessions().rest(&id, 2).await.unwrap());
    assert_eq!(standing(), (false, 2));
}

#[tokio::test]
async fn clearing_takes_ended_tasks_off_the_list_and_leaves_one_that_was_just_launched() {
    let world = World::new();
    let (ended, live) = (world.insert().await, world.insert().await);
    let change = ended.state.request(Request::Cancel { why: None }).unwrap();
    world.store.tasks().end(&ended, change, world.end()).await.unwrap().unwrap();
    assert_eq!(
        world.store.tasks().clear(&live.origin.parent.session, world.clock.now()).await.unwrap(),
        1
    );
    let cleared =
        |task: &Task| world.store.tasks().get(&task.id).unwrap().unwrap().cleared_at.is_some();
    assert_eq!((cleared(&ended), cleared(&live)), (true, false));
}

#[tokio::test]
async fn a_listener_that_panics_does_not_end_the_writer() {
    let world = World::listening(|_, _| panic!("on purpose"));
    for _ in 0..2 {
        let (new, limits) = (world.new_task(), world.limits.clone());
        let id = new.id.clone();
        assert_eq!(world.store.tasks().insert(new, limits).await.unwrap().id, id);
    }
    assert_eq!(world.stored().len(), 2);
}
