//! What pruning takes and what it leaves, on a store whose tasks are named by hand.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use tempfile::TempDir;

use super::*;
use crate::store::sql::{self, Row};
use crate::store::{End, Filter, NewRun, NewTask, Placement, ResumeOutcome, Sort, Store, Window};
use crate::task::lifecycle::{Report, Request, ResumePolicy};
use crate::task::queue::Limits;
use crate::task::{
    BatchId, MAILBOX, MessageId, Order, Origin, Parent, Progress, Receipt, SHELL, SessionId,
    ShortId, Task, TaskId,
};

const DAY: Duration = Duration::from_secs(86_400);

const LONG: [&str; 10] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"];

/// A store whose tasks are named by hand and whose times are days.
pub(in crate::store) struct History {
    pub(in crate::store) store: Store,
    limits: Arc<Limits>,
    directory: TempDir,
}

/// (status, agent, tasks, tool calls) and (batch, tasks, live ones).
type Counters = (Vec<(String, String, i64, i64)>, Vec<(String, i64, i64)>);

impl History {
    pub(in crate::store) fn new() -> History {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&directory.path().join("test.db"), |_| {}).unwrap();
        let limits = Limits {
            active: None,
            active_per_parent: 1000,
            blocking_per_parent: 3,
            active_per_model: BTreeMap::new(),
            queued_per_parent: 1000,
            is_draining: false,
        };
        History { store, limits: Arc::new(limits), directory }
    }

    pub(in crate::store) async fn launch(
        &self,
        name: &str,
        agent: &str,
        batch: &str,
        parent_host: &str,
    ) -> Task {
        let new = new_task(name, agent, batch, parent_host);
        self.store.tasks().insert(new, self.limits.clone()).await.unwrap()
    }

    /// For a client of MCP, which reads its mail with its next call.
    async fn launch_for_client(&self, name: &str) -> Task {
        let mut new = new_task(name, "general", "batch", MAILBOX);
        new.origin.parent.session = SessionId::new("client");
        self.store.tasks().insert(new, self.limits.clone()).await.unwrap()
    }

    pub(in crate::store) async fn finish(&self, task: &Task, on: u32) -> Task {
        self.end(task, on, Report::Finished { result: "done".into() }).await
    }

    async fn end(&self, task: &Task, on: u32, report: Report) -> Task {
        let change = task.state.report(report).unwrap();
        self.store.tasks().end(task, change, end_of(task, on)).await.unwrap().unwrap()
    }

    pub(in crate::store) async fn resume(&self, task: &Task) -> Task {
        let run = NewRun {
            message_id: MessageId::new(format!("{}-prompt-{}", task.id, task.run + 1)),
            prompt: "and then?".to_owned(),
            at: day(0),
            key: None,
        };
        let change = task.state.request(Request::Resume(ResumePolicy::Completed)).unwrap();
        let resumed = self.store.tasks().resume(task, change, run, self.limits.clone());
        match resumed.await.unwrap() {
            ResumeOutcome::Resumed(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    /// Tasks of the same kind that ended one a day, the first on day 1.
    async fn finished(&self, names: &[&str]) {
        for (name, on) in names.iter().zip(1..) {
            let task = self.launch(name, "general", "batch", MAILBOX).await;
            self.finish(&task, on).await;
        }
    }

    async fn prune(&self, keep: Retention, today: u32) -> u64 {
        self.store.history().prune(&keep, None, None, day(today)).await.unwrap()
    }

    fn rows<T>(&self, sql: &str, read: fn(Row<'_>) -> Result<T, sql::Error>) -> Vec<T> {
        self.store.read(|db| Ok(db.query_all(sql, (), read)?)).unwrap()
    }

    /// The length of the file once these have ended, each with a prompt of 100 kB.
    async fn length_with(&self, names: &[&str]) -> u64 {
        for name in names {
            let mut new = new_task(name, "general", "batch", MAILBOX);
            new.order.prompt = "x".repeat(100_000);
            let task = self.store.tasks().insert(new, self.limits.clone()).await.unwrap();
            self.finish(&task, 1).await;
        }
        self.store.empty_log().await.unwrap();
        self.length()
    }

    pub(in crate::store) fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("test.db")
    }

    fn length(&self) -> u64 {
        std::fs::metadata(self.file()).unwrap().len()
    }

    fn rewrite(&self, auto_vacuum: &str) {
        let db = rusqlite::Connection::open(self.file()).unwrap();
        db.execute_batch(&format!("PRAGMA auto_vacuum = {auto_vacuum}; VACUUM")).unwrap();
    }

    fn left(&self) -> Vec<String> {
        self.rows("SELECT id FROM task ORDER BY seq", |row| row.get(0))
    }

    fn counters(&self) -> Counters {
        let tally = "SELECT status, agent, n, tool_calls FROM tally WHERE n > 0";
        self.counted(tally, "SELECT id, total, live FROM batch")
    }

    fn recount(&self) -> Counters {
        self.counted(
            "SELECT status, agent, count(*), sum(tool_calls) FROM task GROUP BY status, agent",
            "SELECT batch, count(*), sum(slot > 0) FROM task GROUP BY batch",
        )
    }

    fn counted(&self, tally: &str, batches: &str) -> Counters {
        let tally = self.rows(&format!("{tally} ORDER BY 1, 2"), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        });
        let batches = self.rows(&format!("{batches} ORDER BY 1"), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        });
        (tally, batches)
    }
}

fn new_task(name: &str, agent: &str, batch: &str, parent_host: &str) -> NewTask {
    NewTask {
        id: TaskId::new(name),
        short_ids: vec![ShortId::new(name)],
        nonce: name.to_owned(),
        origin: Origin {
            parent: Parent {
                session: SessionId::new(SHELL),
                message: String::new(),
                agent: String::new(),
                host: parent_host.to_owned(),
            },
            host: "scripted".to_owned(),
            host_instance: String::new(),
            directory: String::new(),
            depth: 1,
            is_forked: false,
            retry_of: None,
        },
        order: Order {
            description: name.to_owned(),
            prompt: "do it".to_owned(),
            agent: agent.to_owned(),
            ..Order::default()
        },
        placement: Placement::Named(BatchId::new(batch)),
        inheritance: None,
        development: false,
        message_id: MessageId::new(format!("{name}-prompt")),
        at: day(0),
    }
}

fn end_of(task: &Task, on: u32) -> End {
    End {
        at: day(on),
        message_id: MessageId::new(format!("{}-notice-{}", task.id, task.run)),
        wake: true,
        open_todos: Vec::new(),
        progress: Some(Progress { tool_calls: 3, ..task.progress.clone() }),
        transcript: false,
        key: None,
    }
}

fn day(n: u32) -> Timestamp {
    Timestamp::EPOCH.plus(DAY * n)
}

fn tasks(n: u64) -> Retention {
    Retention { tasks: Some(n), ..Retention::default() }
}

fn days(n: u32) -> Retention {
    Retention { age: Some(DAY * n), ..Retention::default() }
}

#[tokio::test]
async fn pruning_deletes_runs_and_notices_with_their_task_and_keeps_the_counters_right() {
    let history = History::new();
    let resumed = history.launch("resumed", "explore", "gone", MAILBOX).await;
    let resumed = history.finish(&resumed, 1).await;
    let resumed = history.resume(&resumed).await;
    history.finish(&resumed, 2).await;
    let failed = history.launch("failed", "general", "shared", MAILBOX).await;
    let report = Report::Failed { error: "broke".to_owned(), partial: None };
    history.end(&failed, 2, report).await;
    history.launch("live", "explore", "shared", MAILBOX).await;
    let owing = history.launch("owing", "general", "owing", "scripted").await;
    history.finish(&owing, 3).await;
    let again = history.launch("again", "general", "shared", MAILBOX).await;
    let again = history.finish(&again, 3).await;
    history.resume(&again).await;
    let kept = history.launch("kept", "explore", "shared", MAILBOX).await;
    history.finish(&kept, 4).await;
    assert_eq!(history.counters(), history.recount());

    assert_eq!(history.prune(tasks(1), 9).await, 2);

    assert_eq!(history.left(), ["live", "owing", "again", "kept"]);
    let tally =
        |status: &str, agent: &str, n, calls| (status.to_owned(), agent.to_owned(), n, calls);
    let expected = (
        vec![
            tally("completed", "explore", 1, 3),
            tally("completed", "general", 1, 3),
            tally("resumed", "general", 1, 3),
            tally("running", "explore", 1, 0),
        ],
        vec![("owing".to_owned(), 1, 0), ("shared".to_owned(), 3, 2)],
    );
    assert_eq!(history.counters(), expected);
    assert_eq!(history.recount(), expected);
    let of_tasks = |table: &str, n: &str| -> Vec<(Option<String>, i64)> {
        let sql = format!(
            "SELECT task.id, {n} FROM {table} LEFT JOIN task ON task.seq = {table}.task
             ORDER BY {table}.seq"
        );
        history.rows(&sql, |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let of = |name: &str, n| (Some(name.to_owned()), n);
    assert_eq!(
        of_tasks("run", "n"),
        [of("live", 0), of("owing", 0), of("again", 0), of("again", 1), of("kept", 0)]
    );
    assert_eq!(of_tasks("notice", "notice.run"), [of("owing", 0), of("again", 0), of("kept", 0)]);
}

#[tokio::test]
async fn a_task_that_owes_a_notice_stays_until_it_is_delivered() {
    let history = History::new();
    let owing = history.launch("owing", "general", "batch", "scripted").await;
    history.finish(&owing, 1).await;
    history.finished(&["a", "b"]).await;
    assert_eq!(history.prune(Retention { tasks: Some(0), age: Some(DAY) }, 9).await, 2);
    assert_eq!(history.left(), ["owing"]);

    let notice = history.store.outbox().due(day(9), DAY, &HashSet::new()).unwrap().remove(0);
    history.store.outbox().delivered(notice.id, day(9)).await.unwrap();
    assert_eq!(history.prune(days(1), 9).await, 1);
    assert_eq!(history.left(), [""; 0]);
}

#[tokio::test]
async fn the_newest_tasks_are_kept_also_when_older_ones_cannot_be_deleted() {
    let history = History::new();
    let owing = history.launch("owing", "general", "batch", "scripted").await;
    history.finish(&owing, 1).await;
    history.finished(&["a", "b", "c"]).await;
    let prune = async |n, left: &[&str]| {
        let before = history.left().len();
        let pruned = history.prune(tasks(n), 9).await;
        assert_eq!((history.left(), pruned), (owned(left), (before - left.len()) as u64));
    };
    prune(u64::MAX, &["owing", "a", "b", "c"]).await;
    prune(4, &["owing", "a", "b", "c"]).await;
    prune(3, &["owing", "a", "b", "c"]).await;
    prune(2, &["owing", "b", "c"]).await;
    prune(0, &["owing"]).await;
    prune(0, &["owing"]).await;
}

#[tokio::test]
async fn a_task_with_an_unread_notice_is_kept_until_it_is_read_or_too_old() {
    let history = History::new();
    for (name, on) in [("old", 1), ("read", 8), ("new", 8)] {
        let task = history.launch_for_client(name).await;
        history.finish(&task, on).await;
    }
    history.finished(&["of the shell"]).await;
    let unread = history.store.outbox().unread(&SessionId::new("client")).unwrap();
    let prune = async |unread: Option<u32>| {
        let unread = unread.map(|days| DAY * days);
        history.store.history().prune(&tasks(0), unread, None, day(9)).await.unwrap()
    };
    assert_eq!((prune(None).await, history.left()), (1, owned(&["old", "read", "new"])));
    history.store.outbox().mark_read(Receipt::from_iter([unread[1].0]), day(9)).await.unwrap();
    assert_eq!((prune(None).await, history.left()), (1, owned(&["old", "new"])));
    assert_eq!((prune(Some(7)).await, history.left()), (1, owned(&["new"])));
    assert_eq!((prune(Some(1)).await, history.left()), (1, owned(&[])));
}

#[tokio::test]
async fn a_task_whose_abort_or_transcript_is_owed_stays_until_that_is_settled() {
    let history = History::new();
    let mut owing = Vec::new();
    for (name, abort, transcript) in [("abort", true, false), ("transcript", false, true)] {
        let task = history.launch(name, "general", "batch", MAILBOX).await;
        let report = Report::Finished { result: "done".into() };
        let change = if abort { task.state.stop(report) } else { task.state.report(report) };
        let (change, end) = (change.unwrap(), End { transcript, ..end_of(&task, 1) });
        owing.push(history.store.tasks().end(&task, change, end).await.unwrap().unwrap());
    }
    let keep = Retention { tasks: Some(0), age: Some(DAY) };
    assert_eq!((history.prune(keep, 9).await, history.left().len()), (0, 2));
    history.store.tasks().abort_sent(&owing[0].id, 0).await.unwrap();
    assert_eq!((history.prune(keep, 9).await, history.left()), (1, owned(&["transcript"])));
    history.store.transcripts().keep(&owing[1].id, 0, None).await.unwrap();
    assert_eq!((history.prune(keep, 9).await, history.left()), (1, owned(&[])));
}

#[tokio::test]
async fn pruning_frees_disk_space() {
    let history = History::new();
    let (few, many) = (history.length_with(&["a"]).await, history.length_with(&LONG).await);
    assert!(many > 4 * few, "{few} bytes, then {many}");
    assert_eq!(history.prune(tasks(1), 9).await, LONG.len() as u64);
    assert!(history.length() < 2 * few, "{few} bytes, then {many}, now {}", history.length());
    assert_eq!(history.store.integrity().check().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_file_from_before_incremental_vacuum_is_rewritten_when_it_is_pruned() {
    let history = History::new();
    let few = history.length_with(&["a"]).await;
    history.rewrite("NONE");
    let many = history.length_with(&LONG).await;
    assert_eq!(history.prune(tasks(1), 9).await, LONG.len() as u64);
    assert!(history.length() < 2 * few, "{few} bytes, then {many}, now {}", history.length());
    assert_eq!(history.store.integrity().check().unwrap(), [""; 0]);
    let mode = history.rows("PRAGMA auto_vacuum", |row| row.get::<i64>(0));
    assert_eq!(mode, [2], "the next time it shrinks in slices");
    history.finished(&["b"]).await;
    assert_eq!(history.left(), ["n9", "b"]);
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[tokio::test]
async fn the_age_of_a_task_counts_from_its_end() {
    let history = History::new();
    let long = history.launch("long", "general", "batch", MAILBOX).await;
    history.launch("live", "general", "batch", MAILBOX).await;
    history.finished(&["a", "b", "c"]).await;
    history.finish(&long, 8).await;
    assert_eq!(history.prune(days(8), 10).await, 1);
    assert_eq!(history.left(), ["long", "live", "b", "c"]);
    assert_eq!(history.prune(days(3), 10).await, 2);
    assert_eq!(history.left(), ["long", "live"]);
}

#[tokio::test]
async fn without_limits_nothing_is_pruned_and_with_both_either_suffices() {
    let history = History::new();
    history.finished(&["a", "b", "c", "d"]).await;
    assert_eq!(history.prune(Retention::default(), 1000).await, 0);
    assert_eq!(history.prune(Retention { tasks: Some(3), age: Some(DAY * 8) }, 11).await, 2);
    assert_eq!(history.left(), ["c", "d"]);
}

#[tokio::test]
async fn more_than_one_chunk_is_pruned_in_several_transactions() {
    let history = History::new();
    let names: Vec<String> = (0..2 * CHUNK + 2).map(|n| format!("t{n}")).collect();
    join_all(names.iter().map(async |name| history.finished(&[name]).await)).await;
    let before = history.left();
    assert_eq!(history.prune(tasks(1), 9).await, 2 * CHUNK as u64 + 1);
    assert_eq!(history.left(), before[2 * CHUNK + 1..]);
    assert_eq!(history.counters(), history.recount());
}

#[tokio::test]
async fn a_search_concurrent_with_launches_ends_and_pruning_sees_one_snapshot() {
    let history = History::new();
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let search = |store: &Store, limit: u64| {
        let filter = Filter { search: Some("TASK".to_owned()), ..Filter::default() };
        let window = Window { limit, offset: 0 };
        let page = store.pages().get(&filter, Sort::default(), window, |task| task).unwrap();
        assert_eq!(page.tasks.len() as u64, page.total.min(limit));
        page.total
    };
    let looking = [200, 201, 3].map(|limit| {
        let (store, over) = (history.store.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                search(&store, limit);
            }
        })
    });
    for n in 0..60 {
        let name = format!("task {n}");
        history.finished(&[&name]).await;
        let before = search(&history.store, 50);
        if n % 10 == 9 {
            assert_eq!(
                (before, history.prune(tasks(2), 9).await),
                (10 + 2 * u64::from(n > 9), before - 2)
            );
            assert_eq!(search(&history.store, 50), 2);
        }
    }
    over.store(true, std::sync::atomic::Ordering::SeqCst);
    looking.into_iter().for_each(|thread| thread.join().unwrap());
}
