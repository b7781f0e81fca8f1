//! The contract of the store, as tests that every engine has to pass: what is published when, and
//! how changes interact. A second engine is one more line in `engines!`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::store::{
    ChangeKind, CommittedChange, Direction, End, Error, Filter, Intent, IntentOutcome, NewCall,
    NewRun, NewTask, OwedNotice, Placement, ResumeOutcome, Retention, Session, SlotCounts, Sort,
    Store, Window,
};
use asyncagents::task::alert::Channel;
use asyncagents::task::lifecycle::{Change, Report, Request, ResumePolicy};
use asyncagents::task::queue::Limits;
use asyncagents::task::{
    Answered, Door, LaunchMode, MAILBOX, Order, Origin, Parent, Receipt, SessionId, Slot, Task,
    TaskId, Timestamp,
};
use tempfile::TempDir;

type Publish = Box<dyn Fn(CommittedChange) + Send>;

/// Opens the store in a folder; in an empty folder, a new one.
type OpenStore = fn(&Path, Publish) -> Store;

fn sqlite(folder: &Path, publish: Publish) -> Store {
    Store::open(&folder.join("tasks.db"), publish).unwrap().0
}

/// Makes every contract function a test of every engine.
macro_rules! engines {
    ($($engine:ident),+ => $sentences:tt) => { $(engines!(@one $engine $sentences);)+ };
    (@one $engine:ident [$($sentence:ident),+ $(,)?]) => {
        mod $engine {
            $(
                #[tokio::test]
                async fn $sentence() {
                    super::$sentence(super::$engine).await;
                }
            )+
        }
    };
}

engines!(sqlite => [
    a_change_is_published_when_it_is_on_disk_and_before_its_caller_hears_of_it,
    changes_are_published_in_the_order_in_which_they_were_made,
    two_writers_of_the_same_end_owe_one_notice,
    a_change_that_fails_does_not_take_those_with_it_that_share_its_commit,
    a_launch_asked_for_twice_is_one_task,
    news_that_comes_after_a_resume_belongs_to_the_run_before_and_changes_nothing,
    what_was_queued_is_written_when_the_store_is_closed_and_nothing_after,
    a_store_opened_again_holds_what_it_held,
    what_is_said_while_a_session_comes_to_rest_keeps_it_at_work,
    clearing_takes_ended_tasks_off_the_list_and_leaves_one_that_was_just_launched,
    a_listener_that_panics_does_not_end_the_writer,
    an_end_and_its_notice_are_one_transaction,
    every_run_has_one_end_notice_of_its_own,
    a_delivered_notice_is_owed_no_longer_and_a_postponed_one_holds_its_parent_up,
    what_is_in_a_mailbox_is_unread_until_it_is_marked,
    an_intent_is_there_until_its_task_is,
    slots_go_to_the_parent_served_longest_ago_and_in_the_order_of_launches,
    the_ids_of_changes_are_the_order_of_commits_and_go_on_after_a_restart,
    a_snapshot_holds_exactly_the_changes_up_to_its_id,
    pruning_takes_what_has_ended_and_leaves_what_is_owed,
    what_was_said_in_a_session_comes_back_in_its_order_and_a_copy_has_it,
    a_deferred_call_is_one_by_its_key_and_open_until_it_is_settled,
    an_answer_is_received_with_its_notices_and_stays_the_same_from_then_on,
    old_answers_are_pruned_and_each_parent_keeps_its_newest,
    how_a_permission_was_answered_is_kept_with_its_task,
    a_retry_and_the_task_it_repeats_name_each_other_also_when_the_first_is_gone,
    a_paused_queue_gives_no_slot_and_is_still_paused_when_the_store_is_opened_again,
    a_long_queue_is_told_of_a_pause_in_batches_and_each_task_once,
    what_people_are_to_be_told_is_owed_with_the_end_and_until_it_is_delivered,
]);

/// A store in its own directory, and the changes it has published.
struct World {
    open: OpenStore,
    store: Store,
    clock: Clock,
    limits: Arc<Limits>,
    published: Arc<Mutex<Vec<CommittedChange>>>,
    folder: TempDir,
}

impl World {
    fn new(open: OpenStore) -> World {
        World::listening(open, |_, _| {})
    }

    /// The writer calls `listen` with the store and the change after each commit: reads in there
    /// see committed data.
    fn listening(
        open: OpenStore,
        listen: impl Fn(&Store, &CommittedChange) + Send + 'static,
    ) -> World {
        let folder = tempfile::tempdir().unwrap();
        let published = Arc::new(Mutex::new(Vec::new()));
        let reader: Arc<OnceLock<Store>> = Arc::default();
        let (news, itself) = (published.clone(), reader.clone());
        let publish = move |committed: CommittedChange| {
            listen(reader.wait(), &committed);
            news.lock().unwrap().push(committed);
        };
        let store = open(folder.path(), Box::new(publish));
        assert!(itself.set(store.clone()).is_ok());
        World { open, store, clock: Clock::system(), limits: limits(10), published, folder }
    }

    /// Closes the store and opens the same directory again.
    fn reopened(&self) -> Store {
        self.store.close();
        let news = self.published.clone();
        let publish = move |committed| news.lock().unwrap().push(committed);
        (self.open)(self.folder.path(), Box::new(publish))
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
                retry_of: None,
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
            key: None,
        }
    }

    /// With a parent of this name, on this host.
    fn task_of(&self, parent: &str, host: &str) -> NewTask {
        let mut new = self.new_task();
        new.origin.parent.session = SessionId::new(parent);
        new.origin.parent.host = host.to_owned();
        new
    }

    async fn launch(&self, new: NewTask) -> Task {
        self.store.tasks().insert(new, self.limits.clone()).await.unwrap()
    }

    async fn finish(&self, task: &Task) -> Task {
        let end = self.store.tasks().end(task, finished(task), self.end());
        end.await.unwrap().unwrap()
    }

    /// The notices that are due now.
    fn due(&self) -> Vec<OwedNotice> {
        due(&self.store, &self.clock)
    }

    fn published(&self) -> Vec<CommittedChange> {
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

fn due(store: &Store, clock: &Clock) -> Vec<OwedNotice> {
    let now = clock.now().plus(Duration::from_secs(1));
    store.outbox().due(now, Duration::from_secs(60), &HashSet::new()).unwrap()
}

fn limits(active_per_parent: usize) -> Arc<Limits> {
    Arc::new(Limits {
        active: None,
        active_per_parent,
        blocking_per_parent: 3,
        active_per_model: Default::default(),
        queued_per_parent: 1000,
        is_draining: false,
    })
}

async fn a_change_is_published_when_it_is_on_disk_and_before_its_caller_hears_of_it(
    open: OpenStore,
) {
    let world = World::listening(open, |store, committed| {
        let known = store.tasks().get(&committed.task.id).unwrap();
        assert_eq!(known.as_ref(), Some(&committed.task), "published before the commit");
    });
    let task = world.insert().await;
    assert_eq!(
        world.published(),
        [CommittedChange { id: 1, what: ChangeKind::Created, task: task.clone() }]
    );
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    assert_eq!(
        world.published()[1..],
        [CommittedChange { id: 2, what: ChangeKind::Ended, task: ended.clone() }]
    );
    assert_eq!(world.stored(), [ended]);
}

async fn changes_are_published_in_the_order_in_which_they_were_made(open: OpenStore) {
    let world = World::new(open);
    let mut expected = Vec::new();
    let mut outcomes = Vec::new();
    for _ in 0..300 {
        let new = world.new_task();
        expected.push((ChangeKind::Created, new.id.clone()));
        outcomes.push(world.store.tasks().insert(new, world.limits.clone()));
    }
    let mut tasks = Vec::new();
    for outcome in outcomes {
        tasks.push(outcome.await.unwrap());
    }
    let mut outcomes = Vec::new();
    for task in tasks.iter().rev() {
        expected.push((ChangeKind::Ended, task.id.clone()));
        outcomes.push(world.store.tasks().end(task, finished(task), world.end()));
    }
    for outcome in outcomes {
        assert!(outcome.await.unwrap().is_some());
    }
    let published: Vec<(ChangeKind, TaskId)> =
        world.published().into_iter().map(|news| (news.what, news.task.id)).collect();
    assert_eq!(published, expected);
}

async fn two_writers_of_the_same_end_owe_one_notice(open: OpenStore) {
    let world = World::new(open);
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

async fn a_change_that_fails_does_not_take_those_with_it_that_share_its_commit(open: OpenStore) {
    let (holds, held) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let counts = seen.clone();
    let world = World::listening(open, move |store, _| {
        let mut counts = counts.lock().unwrap();
        counts.push(store.overview().task_count().unwrap());
        // The first commit blocks the writer until all other changes are queued, so that they share
        // one group commit.
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
    let created = stored.map(|task| CommittedChange {
        id: ids.next().unwrap(),
        what: ChangeKind::Created,
        task,
    });
    assert_eq!(world.published(), created);
    assert_eq!(*seen.lock().unwrap(), [1, 4, 4, 4], "three of them in one commit");
}

async fn a_launch_asked_for_twice_is_one_task(open: OpenStore) {
    let world = World::new(open);
    let new = world.new_task();
    let again = NewTask { id: world.clock.session_id(), ..new.clone() };
    let first = world.store.tasks().insert(new, world.limits.clone());
    let second = world.store.tasks().insert(again, world.limits.clone());
    let task = first.await.unwrap();
    assert_eq!(second.await.unwrap(), task);
    assert_eq!(world.stored(), std::slice::from_ref(&task));
    assert_eq!(world.published(), [CommittedChange { id: 1, what: ChangeKind::Created, task }]);
}

async fn news_that_comes_after_a_resume_belongs_to_the_run_before_and_changes_nothing(
    open: OpenStore,
) {
    let world = World::new(open);
    let task = world.insert().await;
    let late = finished(&task);
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    assert_eq!(world.store.tasks().end(&task, late.clone(), world.end()).await.unwrap(), None);
    let run = NewRun {
        message_id: world.clock.message_id(),
        prompt: "And where else?".into(),
        at: world.clock.now(),
        key: None,
    };
    let change = ended.state.request(Request::Resume(ResumePolicy::Completed)).unwrap();
    let resumed =
        world.store.tasks().resume(&ended, change.clone(), run.clone(), world.limits.clone());
    let ResumeOutcome::Resumed(resumed) = resumed.await.unwrap() else {
        panic!("it was not resumed")
    };
    assert_eq!(world.store.tasks().end(&ended, late.clone(), world.end()).await.unwrap(), None);
    assert_eq!(world.store.tasks().end(&task, late, world.end()).await.unwrap(), None);
    let again = world.store.tasks().resume(&ended, change, run, world.limits.clone());
    assert_eq!(again.await.unwrap(), ResumeOutcome::Stale);
    assert_eq!(world.stored(), [*resumed]);
}

async fn what_was_queued_is_written_when_the_store_is_closed_and_nothing_after(open: OpenStore) {
    let world = World::new(open);
    let outcomes: Vec<_> = (0..50)
        .map(|_| world.store.tasks().insert(world.new_task(), world.limits.clone()))
        .collect();
    world.store.close();
    for outcome in outcomes {
        outcome.await.unwrap();
    }
    let late = world.store.tasks().insert(world.new_task(), world.limits.clone()).await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    assert_eq!(world.reopened().overview().task_count().unwrap(), 50);
}

async fn a_store_opened_again_holds_what_it_held(open: OpenStore) {
    let world = World::new(open);
    let task = world.insert().await;
    let ended =
        world.store.tasks().end(&task, finished(&task), world.end()).await.unwrap().unwrap();
    let live = world.insert().await;
    let store = world.reopened();
    assert_eq!(store.tasks().get(&ended.id).unwrap(), Some(ended));
    assert_eq!(store.tasks().get(&live.id).unwrap(), Some(live));
    assert_eq!(store.integrity().check().unwrap(), [""; 0]);
    assert_eq!(store.tasks().get(&TaskId::new("ses_nobody")).unwrap(), None);
}

async fn what_is_said_while_a_session_comes_to_rest_keeps_it_at_work(open: OpenStore) {
    let world = World::new(open);
    let id = world.clock.session_id();
    world.store.sessions().open(session(&world, &id)).await.unwrap();
    let say = |message: &str| {
        world.store.sessions().say(&id, message.into(), "{}".into(), "m".into(), true)
    };
    let standing = || {
        let session = world.store.sessions().get(&id).unwrap().unwrap();
        (session.running, session.said)
    };
    assert!(say("msg_1").await.unwrap());
    // Race: the run read this count and decided to stop just before the second message arrived.
    let (_, known) = standing();
    assert!(say("msg_2").await.unwrap());
    assert!(!world.store.sessions().rest(&id, known).await.unwrap());
    assert_eq!(standing(), (true, 2));
    assert!(world.store.sessions().rest(&id, 2).await.unwrap());
    assert_eq!(standing(), (false, 2));
}

async fn clearing_takes_ended_tasks_off_the_list_and_leaves_one_that_was_just_launched(
    open: OpenStore,
) {
    let world = World::new(open);
    let (ended, live) = (world.insert().await, world.insert().await);
    let change = ended.state.request(Request::Cancel { why: None }).unwrap();
    world.store.tasks().end(&ended, change, world.end()).await.unwrap().unwrap();
    assert_eq!(
        world
            .store
            .tasks()
            .clear(&live.origin.parent.session, None, world.clock.now())
            .await
            .unwrap(),
        1
    );
    let cleared =
        |task: &Task| world.store.tasks().get(&task.id).unwrap().unwrap().cleared_at.is_some();
    assert_eq!((cleared(&ended), cleared(&live)), (true, false));
}

async fn a_listener_that_panics_does_not_end_the_writer(open: OpenStore) {
    let world = World::listening(open, |_, _| panic!("on purpose"));
    for _ in 0..2 {
        let (new, limits) = (world.new_task(), world.limits.clone());
        let id = new.id.clone();
        assert_eq!(world.store.tasks().insert(new, limits).await.unwrap().id, id);
    }
    assert_eq!(world.stored().len(), 2);
}

async fn an_end_and_its_notice_are_one_transaction(open: OpenStore) {
    let world = World::listening(open, |store, committed| {
        let owed = due(store, &Clock::system()).len();
        assert_eq!(
            owed,
            usize::from(committed.what == ChangeKind::Ended),
            "an end without its notice"
        );
    });
    let task = world.insert().await;
    let ended = world.finish(&task).await;
    let [owed] = &world.due()[..] else { panic!("{:?}", world.due()) };
    assert_eq!((&owed.task, owed.run.n, owed.run.ended_at), (&ended.id, 0, ended.completed_at));
    assert_eq!(world.published().len(), 2, "the listener has not panicked");
}

async fn every_run_has_one_end_notice_of_its_own(open: OpenStore) {
    let world = World::new(open);
    let mut task = world.insert().await;
    for n in 0..3 {
        let ended = world.finish(&task).await;
        let owed: Vec<u32> = world.due().iter().map(|owed| owed.run.n).collect();
        assert_eq!(owed, (0..=n).collect::<Vec<_>>());
        let change = ended.state.request(Request::Resume(ResumePolicy::Completed)).unwrap();
        let run = NewRun {
            message_id: world.clock.message_id(),
            prompt: "And then?".into(),
            at: world.clock.now(),
            key: Some(format!("key-{n}")),
        };
        let resumed = world.store.tasks().resume(&ended, change, run, world.limits.clone());
        let ResumeOutcome::Resumed(resumed) = resumed.await.unwrap() else { panic!("not resumed") };
        assert!(world.store.tasks().was_begun_with(&resumed.id, &format!("key-{n}")).unwrap());
        task = *resumed;
    }
    assert!(!world.store.tasks().was_begun_with(&task.id, "another").unwrap());
}

async fn a_delivered_notice_is_owed_no_longer_and_a_postponed_one_holds_its_parent_up(
    open: OpenStore,
) {
    let world = World::new(open);
    for parent in ["ses_one", "ses_one", "ses_two"] {
        let task = world.launch(world.task_of(parent, "scripted")).await;
        world.finish(&task).await;
    }
    let parents = || -> Vec<String> {
        world.due().iter().map(|owed| owed.parent_session.to_string()).collect()
    };
    assert_eq!(parents(), ["ses_one", "ses_one", "ses_two"]);
    let (first, now) = (world.due()[0].id, world.clock.now());
    let later = now.plus(Duration::from_secs(30));
    world.store.outbox().postpone(first, later).await.unwrap();
    assert_eq!(parents(), ["ses_two"]);
    assert_eq!(world.store.outbox().next_due(now).unwrap(), Some(later));
    world.store.outbox().delivered(first, now).await.unwrap();
    assert_eq!(parents(), ["ses_one", "ses_two"]);
}

async fn what_is_in_a_mailbox_is_unread_until_it_is_marked(open: OpenStore) {
    let world = World::new(open);
    let parent = SessionId::new("client");
    let first = world.launch(world.task_of("client", MAILBOX)).await;
    let second = world.launch(world.task_of("client", MAILBOX)).await;
    let (first, second) = (world.finish(&first).await, world.finish(&second).await);
    // An end that the parent caused itself does not wake it, and starts as read.
    let third = world.launch(world.task_of("client", MAILBOX)).await;
    let quiet = End { wake: false, ..world.end() };
    world.store.tasks().end(&third, finished(&third), quiet).await.unwrap().unwrap();
    assert_eq!(world.due(), [], "nothing is to be delivered to a mailbox");
    let outbox = world.store.outbox();
    let unread = || -> Vec<TaskId> {
        outbox.unread(&parent).unwrap().into_iter().map(|(_, task)| task).collect()
    };
    assert_eq!(unread(), [first.id.clone(), second.id.clone()]);
    assert_eq!(outbox.unread_parents("cli").unwrap(), std::slice::from_ref(&parent));
    let receipt: Receipt = outbox.unread_end(&first.id).unwrap().into_iter().collect();
    for _ in 0..2 {
        outbox.mark_read(receipt.clone(), world.clock.now()).await.unwrap();
        assert_eq!(unread(), std::slice::from_ref(&second.id));
    }
    assert_eq!(outbox.unread_end(&first.id).unwrap(), None);
    let store = world.reopened();
    assert_eq!(store.outbox().ended_unread(&parent).unwrap(), [second.id]);
}

async fn an_intent_is_there_until_its_task_is(open: OpenStore) {
    let world = World::new(open);
    let new = world.new_task();
    let intent = Intent {
        nonce: new.nonce.clone(),
        host: "scripted".into(),
        parent_session: new.origin.parent.session.clone(),
        created_at: world.clock.now(),
        launch: "{}".into(),
    };
    let intend =
        |limits| world.store.intents().intend(intent.clone(), None, LaunchMode::Background, limits);
    let none = Limits { active_per_parent: 0, queued_per_parent: 0, ..(*world.limits).clone() };
    assert_eq!(intend(Arc::new(none)).await.unwrap(), IntentOutcome::QueueFull);
    assert_eq!(world.store.intents().all().unwrap(), []);
    assert_eq!(intend(world.limits.clone()).await.unwrap(), IntentOutcome::Yes);
    assert_eq!(world.store.intents().get(&new.nonce).unwrap(), Some(intent.clone()));
    let task = world.launch(new).await;
    assert_eq!(world.store.intents().all().unwrap(), []);
    assert_eq!(world.store.tasks().by_nonce(&intent.nonce).unwrap(), Some(task));
}

async fn slots_go_to_the_parent_served_longest_ago_and_in_the_order_of_launches(open: OpenStore) {
    let mut world = World::new(open);
    let one = Limits { active: Some(1), ..(*world.limits).clone() };
    world.limits = Arc::new(one);
    let mut running = world.launch(world.task_of("ses_many", "scripted")).await;
    let mut expected = Vec::new();
    for (parent, turn) in [("ses_many", 1), ("ses_many", 3), ("ses_few", 0), ("ses_few", 2)] {
        let mut new = world.task_of(parent, "scripted");
        // The queue orders by arrival, not by the caller's clock.
        new.at = Timestamp::from_millis(1_000 - i64::from(turn));
        expected.push((turn, world.launch(new).await.id));
    }
    expected.sort();
    for (_, next) in expected {
        assert_eq!(admitted(&world).await, [""; 0], "the only slot is taken");
        world.finish(&running).await;
        assert_eq!(admitted(&world).await, [next.as_str()]);
        running = world.store.tasks().get(&next).unwrap().unwrap();
    }
    world.finish(&running).await;
    assert!(!world.store.slots().any_queued().unwrap());
}

async fn admitted(world: &World) -> Vec<String> {
    let admitted = world.store.slots().admit(world.limits.clone(), world.clock.now()).await;
    admitted.unwrap().iter().map(|task| task.id.to_string()).collect()
}

async fn the_ids_of_changes_are_the_order_of_commits_and_go_on_after_a_restart(open: OpenStore) {
    let world = World::new(open);
    let launches: Vec<_> = (0..20).map(|_| world.launch(world.new_task())).collect();
    let tasks = futures_util::future::join_all(launches).await;
    futures_util::future::join_all(tasks.iter().map(|task| world.finish(task))).await;
    let store = world.reopened();
    let late = store.tasks().insert(world.new_task(), world.limits.clone()).await.unwrap();
    let ids: Vec<u64> = world.published().iter().map(|change| change.id).collect();
    assert_eq!(ids, (1..=41).collect::<Vec<u64>>());
    assert_eq!(world.published().last().map(|change| change.task.id.clone()), Some(late.id));
    assert_eq!(store.overview().snapshot_key().unwrap(), (41, 21));
}

/// A client that reads a snapshot and then everything after its id misses nothing and sees nothing twice.
async fn a_snapshot_holds_exactly_the_changes_up_to_its_id(open: OpenStore) {
    let world = World::new(open);
    let launch = async {
        for _ in 0..10 {
            let launches: Vec<_> = (0..20).map(|_| world.launch(world.new_task())).collect();
            futures_util::future::join_all(launches).await;
        }
    };
    let store = world.store.clone();
    let look = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        while seen.last() != Some(&(200, 200)) {
            let snapshot = store.overview().snapshot(0).unwrap();
            seen.push((snapshot.change, snapshot.tasks.len() as u64));
        }
        seen
    });
    let ((), seen) = tokio::join!(launch, look);
    // Every change is a launch here, so the change id counts the tasks.
    for (change, tasks) in seen.unwrap() {
        assert_eq!(change, tasks);
    }
}

async fn pruning_takes_what_has_ended_and_leaves_what_is_owed(open: OpenStore) {
    let world = World::new(open);
    let live = world.insert().await;
    let told = world.launch(world.task_of("ses_told", "scripted")).await;
    let owed = world.launch(world.task_of("ses_owed", "scripted")).await;
    let unread = world.launch(world.task_of("client", MAILBOX)).await;
    let unkept = world.launch(world.task_of("client", MAILBOX)).await;
    for task in [&told, &owed, &unread, &unkept] {
        let end = End { transcript: task.id == unkept.id, ..world.end() };
        world.store.tasks().end(task, finished(task), end).await.unwrap().unwrap();
    }
    let of_told = world.due().iter().find(|owed| owed.task == told.id).unwrap().id;
    world.store.outbox().delivered(of_told, world.clock.now()).await.unwrap();
    let read = world.store.outbox().unread_end(&unkept.id).unwrap().into_iter().collect();
    world.store.outbox().mark_read(read, world.clock.now()).await.unwrap();
    let prune = || async {
        let (none, at) = (Retention { tasks: Some(0), age: None }, world.clock.now());
        world.store.history().prune(&none, None, None, at).await.unwrap();
        world.stored().into_iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let left = [&live, &owed, &unread, &unkept].map(|task| task.id.clone());
    assert_eq!(prune().await, left);

    let of_owed = world.due()[0].id;
    world.store.outbox().delivered(of_owed, world.clock.now()).await.unwrap();
    let read = world.store.outbox().unread_end(&unread.id).unwrap().into_iter().collect();
    world.store.outbox().mark_read(read, world.clock.now()).await.unwrap();
    world.store.transcripts().keep(&unkept.id, 0, None).await.unwrap();
    assert_eq!(prune().await, [live.id]);
}

async fn what_was_said_in_a_session_comes_back_in_its_order_and_a_copy_has_it(open: OpenStore) {
    let world = World::new(open);
    let sessions = world.store.sessions();
    let (id, copy) = (world.clock.session_id(), world.clock.session_id());
    sessions.open(session(&world, &id)).await.unwrap();
    for n in 0..3 {
        let (message, body) = (format!("msg_{n}"), format!(r#"{{"info":{n},"parts":[]}}"#));
        assert!(sessions.say(&id, message.clone(), body.clone(), "m".into(), true).await.unwrap());
        assert!(!sessions.say(&id, message, body, "m".into(), true).await.unwrap(), "said twice");
    }
    sessions.save_message(&id, "msg_1".into(), r#"{"info":7,"parts":[]}"#.into()).await.unwrap();
    sessions.copy(session(&world, &copy), &id).await.unwrap();
    let all = r#"[{"info":0,"parts":[]},{"info":7,"parts":[]},{"info":2,"parts":[]}]"#;
    let store = world.reopened();
    for session in [&id, &copy] {
        assert_eq!(store.sessions().transcript(session).unwrap(), all);
    }
    let first = store.sessions().messages(&id, 0).unwrap();
    assert_eq!(first.bodies.len(), 3);
    assert_eq!(store.sessions().messages(&id, first.last).unwrap().bodies, [""; 0]);
    assert_eq!(store.sessions().running().unwrap(), [id]);
}

fn session(world: &World, id: &SessionId) -> Session {
    Session {
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
    }
}

fn new_call(world: &World, parent: &str, key: &str) -> NewCall {
    NewCall {
        id: world.clock.nonce(),
        parent: SessionId::new(parent),
        tool: "asyncagents_wait".into(),
        key: key.into(),
        request: "{}".into(),
        created_at: world.clock.now(),
    }
}

async fn a_deferred_call_is_one_by_its_key_and_open_until_it_is_settled(open: OpenStore) {
    let world = World::new(open);
    let calls = world.store.calls();
    let call = calls.begin(new_call(&world, "client", "one")).await.unwrap();
    assert_eq!(calls.begin(new_call(&world, "client", "one")).await.unwrap(), call);
    let other = calls.begin(new_call(&world, "client", "two")).await.unwrap();
    calls.decline(call.id.clone(), vec!["per_1".into()]).await.unwrap();
    assert!(calls.cancel(other.id.clone()).await.unwrap());
    assert!(!calls.cancel(other.id.clone()).await.unwrap(), "once");
    calls.settle(other.id.clone(), "too late".into(), world.clock.now()).await.unwrap();
    let store = world.reopened();
    let ids = |store: &Store| -> Vec<String> {
        let mut open: Vec<String> =
            store.calls().open().unwrap().into_iter().map(|call| call.id).collect();
        open.sort();
        open
    };
    let mut both = vec![call.id.clone(), other.id.clone()];
    both.sort();
    assert_eq!(ids(&store), both);
    let kept = store.calls().by_key("one").unwrap().unwrap();
    assert_eq!((kept.declined.as_slice(), kept.cancelled), (&["per_1".to_owned()][..], false));
    store.calls().settle(call.id.clone(), "done".into(), world.clock.now()).await.unwrap();
    store.calls().cancelled(other.id.clone(), world.clock.now()).await.unwrap();
    assert_eq!(ids(&store), [""; 0]);
    assert!(!store.calls().cancel(call.id.clone()).await.unwrap(), "it is over");
    let settled = |id: &str| store.calls().get(id).unwrap().unwrap().outcome;
    assert_eq!((settled(&call.id), settled(&other.id)), (Some("done".into()), None));
}

async fn an_answer_is_received_with_its_notices_and_stays_the_same_from_then_on(open: OpenStore) {
    let world = World::new(open);
    let task = world.launch(world.task_of("client", MAILBOX)).await;
    world.finish(&task).await;
    let receipt: Receipt = world.store.outbox().unread_end(&task.id).unwrap().into_iter().collect();
    let calls = world.store.calls();
    let call = calls.begin(new_call(&world, "client", "one")).await.unwrap();
    let settle = |outcome: &str| calls.settle(call.id.clone(), outcome.into(), world.clock.now());
    settle("first").await.unwrap();
    settle("composed again").await.unwrap();
    assert!(!world.store.outbox().any_read(&receipt).unwrap());
    let now = world.clock.now();
    calls.received(vec![call.id.clone()], receipt.clone(), now).await.unwrap();
    assert!(world.store.outbox().any_read(&receipt).unwrap());
    settle("too late").await.unwrap();
    let kept = calls.get(&call.id).unwrap().unwrap();
    assert_eq!((kept.outcome.as_deref(), kept.received_at), (Some("composed again"), Some(now)));
}

async fn old_answers_are_pruned_and_each_parent_keeps_its_newest(open: OpenStore) {
    let world = World::new(open);
    let calls = world.store.calls();
    let at = Timestamp::from_millis;
    for (parent, key, settled) in
        [("a", "a1", 100), ("a", "a2", 200), ("a", "a3", 300), ("b", "b1", 50), ("b", "b2", 400)]
    {
        let call = calls.begin(new_call(&world, parent, key)).await.unwrap();
        calls.settle(call.id, "done".into(), at(settled)).await.unwrap();
    }
    calls.begin(new_call(&world, "a", "open")).await.unwrap();
    assert_eq!(calls.prune(at(60), 2).await.unwrap(), 2);
    let kept = |key: &&str| calls.by_key(key).unwrap().is_some();
    let all = ["a1", "a2", "a3", "b1", "b2", "open"];
    let kept: Vec<&str> = all.into_iter().filter(kept).collect();
    assert_eq!(kept, ["a2", "a3", "b2", "open"]);
}

async fn how_a_permission_was_answered_is_kept_with_its_task(open: OpenStore) {
    let world = World::new(open);
    let (task, other) = (world.insert().await, world.insert().await);
    let answered = |id: &str, allowed| Answered {
        id: id.into(),
        what: "bash ls".into(),
        allowed,
        door: Door::McpElicitation,
        by: "client".into(),
        at: world.clock.now(),
    };
    let (one, two) = (answered("per_1", true), answered("per_2", false));
    for answer in [&one, &two] {
        world.store.asks().answered(&task.id, answer.clone(), None).await.unwrap();
    }
    let store = world.reopened();
    assert_eq!(store.asks().answers(&task.id).unwrap(), [one, two.clone()]);
    assert_eq!(store.asks().answers(&other.id).unwrap(), []);
    assert_eq!(store.asks().answer_to("per_2").unwrap(), Some(two));
    assert_eq!(store.asks().answer_to("per_3").unwrap(), None);
}

async fn a_retry_and_the_task_it_repeats_name_each_other_also_when_the_first_is_gone(
    open: OpenStore,
) {
    let world = World::new(open);
    let first = world.insert().await;
    let first = world.finish(&first).await;
    let mut again = world.new_task();
    again.origin.retry_of = Some(first.id.clone());
    let retry = world.launch(again).await;
    assert_eq!(retry.origin.retry_of, Some(first.id.clone()));
    let linked = Task { retried_by: Some(retry.id.clone()), ..first };
    let stored = world.stored();
    assert_eq!(stored, [linked.clone(), retry.clone()]);
    let news: Vec<(ChangeKind, Task)> =
        world.published().into_iter().skip(2).map(|news| (news.what, news.task)).collect();
    assert_eq!(news, [(ChangeKind::Created, retry), (ChangeKind::Updated, linked)]);

    let mut orphan = world.new_task();
    orphan.origin.retry_of = Some(TaskId::new("ses_pruned"));
    let orphan = world.launch(orphan).await;
    assert_eq!(orphan.origin.retry_of, Some(TaskId::new("ses_pruned")));
    assert_eq!(world.reopened().tasks().get(&orphan.id).unwrap(), Some(orphan));
}

async fn a_paused_queue_gives_no_slot_and_is_still_paused_when_the_store_is_opened_again(
    open: OpenStore,
) {
    let world = World::new(open);
    let (limits, at) = (world.limits.clone(), world.clock.now());
    assert!(world.store.slots().pause(at).await.unwrap());
    assert!(!world.store.slots().pause(at).await.unwrap(), "it was");
    let task = world.insert().await;
    assert_eq!(task.slot, Slot::Queued);
    assert_eq!(world.store.slots().admit(limits.clone(), at).await.unwrap(), []);
    let store = world.reopened();
    assert!(store.slots().is_paused().unwrap());
    assert_eq!(store.slots().admit(limits.clone(), at).await.unwrap(), []);
    assert_eq!(store.slots().counts().unwrap(), SlotCounts { queued: 1, active: 0 });
    assert!(store.slots().unpause().await.unwrap());
    assert!(!store.slots().unpause().await.unwrap(), "it was not");
    let started = store.slots().admit(limits, at).await.unwrap();
    assert_eq!(started.iter().map(|task| &task.id).collect::<Vec<_>>(), [&task.id]);
    assert_eq!(store.slots().counts().unwrap(), SlotCounts { queued: 0, active: 1 });
}

async fn a_long_queue_is_told_of_a_pause_in_batches_and_each_task_once(open: OpenStore) {
    const BATCH: usize = 200;
    let world = World::new(open);
    let slots = world.store.slots();
    let running = world.insert().await;
    slots.pause(world.clock.now()).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..=BATCH {
        tasks.push(world.insert().await.id);
    }
    let says = |id: &TaskId| world.store.tasks().get(id).unwrap().unwrap().progress.detail;
    assert!(tasks.iter().all(|id| says(id).is_some()), "a launch during a pause says so at once");
    assert!(slots.unpause().await.unwrap());
    world.published.lock().unwrap().clear();
    let next = slots.explain_queued(0).await.unwrap().unwrap();
    let told = tasks.iter().filter(|id| says(id).is_none()).count();
    assert_eq!((told, world.published.lock().unwrap().len()), (BATCH, BATCH));
    assert_eq!(slots.explain_queued(next).await.unwrap(), None);
    assert!(tasks.iter().all(|id| says(id).is_none()));
    assert_eq!(slots.explain_queued(0).await.unwrap(), Some(next));
    let told: Vec<TaskId> =
        world.published.lock().unwrap().iter().map(|change| change.task.id.clone()).collect();
    assert_eq!(told, tasks, "what is right already is not published again");
    assert_eq!(world.store.tasks().get(&running.id).unwrap(), Some(running));
}

async fn what_people_are_to_be_told_is_owed_with_the_end_and_until_it_is_delivered(
    open: OpenStore,
) {
    let world = World::new(open);
    let due = |store: &Store, channel| store.alerts().due(channel, world.clock.now()).unwrap();
    let told = world.insert().await;
    world.finish(&told).await;
    assert_eq!(due(&world.store, Channel::Webhook), [], "nobody wants to be told");
    let channels = vec![Channel::Webhook, Channel::Command];
    world.store.alerts().set_channels(channels.clone()).await.unwrap();
    let (first, second) = (world.insert().await, world.insert().await);
    let end = world.end();
    let id = end.message_id.to_string();
    let stale = world.store.tasks().end(&first, finished(&first), world.end());
    let ended = stale.await.unwrap().unwrap();
    let again = world.store.tasks().end(&first, finished(&first), end).await.unwrap();
    assert_eq!(again, None, "the second end is stale, and owes nothing");
    let [owed] = due(&world.store, Channel::Webhook).try_into().unwrap();
    assert_ne!(owed.id, id);
    let body: serde_json::Value = serde_json::from_str(&owed.body).unwrap();
    assert_eq!(body["task"], serde_json::to_value(world.store.brief(&ended)).unwrap());
    world.finish(&second).await;

    let store = world.reopened();
    drop(store.alerts().set_channels(channels));
    let (webhook, command) = (due(&store, Channel::Webhook), due(&store, Channel::Command));
    assert_eq!((webhook.len(), command.len(), &webhook[0]), (2, 2, &owed));
    let later = world.clock.now().plus(Duration::from_secs(60));
    store.alerts().postpone(owed.seq, later).await.unwrap();
    assert_eq!(due(&store, Channel::Webhook), webhook[1..], "one that is refused waits alone");
    store.alerts().remove(webhook[1].seq).await.unwrap();
    assert_eq!(store.alerts().next_due(Channel::Webhook).unwrap(), Some(later));
    assert_eq!(due(&store, Channel::Command), command);
    store.alerts().remove(command[0].seq).await.unwrap();
    assert_eq!(due(&store, Channel::Command), command[1..]);
    store.alerts().set_channels(Vec::new()).await.unwrap();
    assert_eq!(store.alerts().next_due(Channel::Command).unwrap(), None, "nobody would send it");
}
