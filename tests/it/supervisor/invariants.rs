//! Property test: random requests and reports, late, repeated and reordered, never break the
//! invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use asyncagents::host::scripted::Control;
use asyncagents::supervisor::{Error, Settings, Target, WaitEnd};
use asyncagents::task::queue::Limits;
use asyncagents::task::{Phase, SessionId, Slot, Status, Task, TaskId};
use proptest::prelude::*;
use tokio::task::JoinHandle;

use super::deliver::wait_as_parent;
use crate::support::{World, caller, order, owes_notices, settings};

/// An operation. Numbers index the parents or the existing tasks.
#[derive(Clone, Debug)]
enum Operation {
    Launch { parent: usize, script: usize },
    Resume { task: usize, script: usize },
    Cancel { task: usize },
    CancelAll { parent: usize },
    Clear { parent: usize },
    Wait { task: usize },
    Finish { task: usize },
    FinishSilently { task: usize },
    Fail { task: usize },
    AbortInHost { task: usize },
    DeleteSession { task: usize },
    Ring,
    FailPosts { posts: u32, stored: bool },
    Unreachable,
    Reachable,
    RestartHost,
    RestartDaemon,
    LetGo,
}

const SCRIPTS: [&str; 8] = [
    "@hang",
    "@hang",
    "quick",
    "@lose-event\n@say found",
    "@idle-twice\n@say found",
    "@todo-once tests\n@tool read\n@say found",
    "@compact\n@fail no",
    "@stream 2 1\n@hang",
];

fn operation() -> impl Strategy<Value = Operation> {
    let (parent, task, script) = (0..2usize, 0..12usize, 0..SCRIPTS.len());
    prop_oneof![
        8 => (parent.clone(), script.clone()).prop_map(|(parent, script)| Operation::Launch { parent, script }),
        4 => (task.clone(), script).prop_map(|(task, script)| Operation::Resume { task, script }),
        3 => task.clone().prop_map(|task| Operation::Cancel { task }),
        1 => parent.clone().prop_map(|parent| Operation::CancelAll { parent }),
        1 => parent.prop_map(|parent| Operation::Clear { parent }),
        2 => task.clone().prop_map(|task| Operation::Wait { task }),
        6 => task.clone().prop_map(|task| Operation::Finish { task }),
        2 => task.clone().prop_map(|task| Operation::FinishSilently { task }),
        2 => task.clone().prop_map(|task| Operation::Fail { task }),
        1 => task.clone().prop_map(|task| Operation::AbortInHost { task }),
        1 => task.prop_map(|task| Operation::DeleteSession { task }),
        2 => Just(Operation::Ring),
        1 => (0..3u32, any::<bool>()).prop_map(|(posts, stored)| Operation::FailPosts { posts, stored }),
        1 => Just(Operation::Unreachable),
        2 => Just(Operation::Reachable),
        1 => Just(Operation::RestartHost),
        1 => Just(Operation::RestartDaemon),
        4 => Just(Operation::LetGo),
    ]
}

struct Run {
    world: World,
    parents: Vec<SessionId>,
    tasks: Vec<TaskId>,
    deleted: BTreeSet<TaskId>,
    waiters: Vec<JoinHandle<Result<(), Error>>>,
    /// The state in which each ended run was first observed.
    ends: BTreeMap<(TaskId, u32), Status>,
}

fn small() -> Settings {
    let limits = Limits { active_per_parent: 2, ..(*settings().limits).clone() };
    Settings {
        limits: limits.into(),
        poll_interval: Duration::from_millis(20),
        settle: Duration::from_millis(60),
        answer_grace: Duration::from_millis(400),
        gone: Duration::from_secs(600),
        ..settings()
    }
}

impl Run {
    async fn begin() -> Run {
        let world = World::with(small()).await;
        let parents = vec![world.parent().await, world.parent().await];
        Run {
            world,
            parents,
            tasks: Vec::new(),
            deleted: BTreeSet::new(),
            waiters: Vec::new(),
            ends: BTreeMap::new(),
        }
    }

    fn pick(&self, task: usize) -> Option<TaskId> {
        (!self.tasks.is_empty()).then(|| self.tasks[task % self.tasks.len()].clone())
    }

    async fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Launch { parent, script } => {
                let launched = self.world.try_launch(&self.parents[parent], order(SCRIPTS[script]));
                if let Ok(task) = launched.await {
                    self.tasks.push(task.id);
                }
            }
            Operation::CancelAll { parent } => {
                let caller = caller(&self.parents[parent]);
                self.world.supervisor.cancel(&caller, Target::All).await.unwrap();
            }
            Operation::Clear { parent } => {
                self.world.supervisor.clear(&caller(&self.parents[parent])).await.unwrap();
            }
            Operation::Ring => self.world.control(Control::Ring).await,
            Operation::FailPosts { posts, stored } => {
                self.world.control(Control::FailPosts { posts, stored }).await;
            }
            Operation::Unreachable => self.world.control(Control::Unreachable { yes: true }).await,
            Operation::Reachable => self.world.control(Control::Unreachable { yes: false }).await,
            Operation::RestartHost => self.world.control(Control::Restart).await,
            Operation::RestartDaemon => self.world.restart().await,
            Operation::LetGo => tokio::time::sleep(Duration::from_millis(5)).await,
            Operation::Resume { task, .. }
            | Operation::Cancel { task }
            | Operation::Wait { task }
            | Operation::Finish { task }
            | Operation::FinishSilently { task }
            | Operation::Fail { task }
            | Operation::AbortInHost { task }
            | Operation::DeleteSession { task } => {
                if let Some(id) = self.pick(task) {
                    self.apply_to(id, operation).await;
                }
            }
        }
    }

    async fn apply_to(&mut self, session: TaskId, operation: Operation) {
        match operation {
            Operation::Resume { script, .. } => {
                // It may be refused; the invariants have to hold either way.
                let _ = self.world.supervisor.resume(&session, SCRIPTS[script].into()).await;
            }
            Operation::Cancel { .. } => {
                let caller = caller(&self.parents[0]);
                let _ = self.world.supervisor.cancel(&caller, Target::Task(session)).await;
            }
            Operation::Wait { .. } => {
                let supervisor = self.world.supervisor.clone();
                let caller = caller(&self.parents[0]);
                self.waiters.push(tokio::spawn(async move {
                    let end = wait_as_parent(&supervisor, &caller, &[session]).await?;
                    assert!(end == WaitEnd::Enough);
                    Ok(())
                }));
            }
            Operation::Finish { .. } => {
                self.world.control(Control::Finish { session, text: "done".into() }).await;
            }
            Operation::FinishSilently { .. } => {
                let text = "done".into();
                self.world.control(Control::FinishSilently { session, text }).await;
            }
            Operation::Fail { .. } => {
                self.world.control(Control::Fail { session, error: "no".into() }).await;
            }
            Operation::AbortInHost { .. } => self.world.control(Control::Abort { session }).await,
            Operation::DeleteSession { .. } => {
                self.deleted.insert(session.clone());
                self.world.control(Control::Delete { session }).await;
            }
            other => unreachable!("{other:?} is about no task"),
        }
    }

    /// An ended task keeps its state until it is resumed.
    fn check_that_ends_stay(&mut self) {
        for id in &self.tasks {
            let task = self.world.task(id);
            if !task.is_live() {
                let first = self.ends.entry((id.clone(), task.run)).or_insert(task.status());
                assert_eq!(*first, task.status(), "{task:?}");
            }
        }
    }

    /// Lets every running task come to its end.
    async fn settle(&mut self) {
        self.world.control(Control::Unreachable { yes: false }).await;
        self.world.control(Control::FailPosts { posts: 0, stored: false }).await;
        let started = std::time::Instant::now();
        loop {
            let live: Vec<TaskId> =
                self.tasks.iter().filter(|id| self.world.task(id).is_live()).cloned().collect();
            if live.is_empty() {
                return;
            }
            let states = || live.iter().map(|id| self.world.task(id)).collect::<Vec<Task>>();
            assert!(started.elapsed() < Duration::from_secs(40), "still live: {:#?}", states());
            for session in live {
                self.world.control(Control::Finish { session, text: "done".into() }).await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn check(mut self) {
        self.settle().await;
        self.check_that_ends_stay();
        let tasks: Vec<Task> = self.tasks.iter().map(|id| self.world.task(id)).collect();
        for task in &tasks {
            assert_eq!(task.slot, Slot::None, "a slot leaked: {task:?}");
            if task.status() == Status::Cancelled
                && task.run == 0
                && task.progress.phase == Phase::Queued
            {
                assert_eq!(self.world.host.prompts(&task.id), [""; 0], "started: {task:?}");
            }
        }
        for parent in &self.parents {
            let owed: usize = tasks
                .iter()
                .filter(|task| task.origin.parent.session == *parent)
                .map(|task| task.run as usize + 1)
                .sum();
            let store = self.world.store.clone();
            self.world.until("nothing is owed", || !owes_notices(&store)).await;
            let posts = self.world.posts(parent, owed).await;
            let ids: BTreeSet<_> = posts.iter().map(|post| &post.message).collect();
            assert_eq!((posts.len(), ids.len()), (owed, owed), "one notice per run: {posts:#?}");
            // All slots are free again.
            let next = self.world.launch(parent, "quick").await;
            assert_eq!(next.slot, Slot::Active);
        }
        for waiter in std::mem::take(&mut self.waiters) {
            let settled = tokio::time::timeout(Duration::from_secs(20), waiter).await;
            match settled.expect("every waiter settles").unwrap() {
                Ok(()) | Err(Error::Stopping | Error::Store(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn requests_and_reports_in_any_order_never_break_the_invariants(
        operations in prop::collection::vec(operation(), 1..40)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run::begin().await;
            for operation in operations {
                run.apply(operation).await;
                run.check_that_ends_stay();
            }
            run.check().await;
        });
    }
}
