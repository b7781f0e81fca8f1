//! Group commit: the one writer thread takes every queued change into one transaction, so that durability
//! costs one fsync per batch and not one per change.
//!
//! Each change has a savepoint of its own, so it is rolled back alone when it fails or panics. Callers are
//! answered, and listeners told, only after the commit. A crash before it loses the whole batch, of which
//! no one was told; a crash after it and before the answer leaves a caller that has to ask again, which is what the
//! idempotency keys are for. A full disk rolls back all of the batch. Once the file is known to be corrupt
//! (`damage`), every change is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Error;
use super::sql::Connection;
use super::sqlite::damage::Latch;
use crate::task::Task;
use crate::task::alert::Channel;
use crate::task::view::Brief;

/// More than this in one transaction would make the first caller wait for the last.
const MOST_IN_ONE_COMMIT: usize = 256;

/// What a commit did to a task, for subscribers of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Created,
    Updated,
    Ended,
}

/// A change of a task that is on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct CommittedChange {
    /// A sequence number: it grows by one with every change of this store, across restarts, in commit order.
    pub id: u64,
    pub what: ChangeKind,
    pub task: Task,
}

/// Events that a change leaves to be published once it is committed.
pub(super) struct PendingEvents {
    pub(super) changes: Vec<(ChangeKind, Task)>,
    /// How ended tasks are stored for lists.
    pub(super) brief: Brief,
    /// The channels that notify people.
    pub(super) channels: Channels,
}

/// Set when the daemon starts, and read by the writer.
pub(super) type Channels = Arc<parking_lot::Mutex<Vec<Channel>>>;

/// A queued change, its result type erased: first it is made inside the transaction, then its caller is
/// answered.
trait Change: Send {
    fn urgency(&self) -> CommitUrgency;
    /// `false`: it failed and is to be rolled back.
    fn make(&mut self, db: &Connection, events: &mut PendingEvents) -> bool;
    /// Why it could not be made.
    fn why_not(&self) -> Error;
    /// What it found to be wrong with the file.
    fn damage(&self) -> Option<Arc<str>>;
    /// Answers the caller; an error of the commit takes precedence over what the change returned.
    fn settle(self: Box<Self>, committed: Result<(), Error>);
}

/// Whether a change is worth a commit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitUrgency {
    Immediate,
    /// What is lost in a crash is found out again, so it may wait for the next commit.
    Deferrable,
}

/// How long a batch of deferrable changes is held open. Their callers wait as long, so it is short.
const LONGEST_WAIT: Duration = Duration::from_millis(3);

struct QueuedWrite<T, F> {
    urgency: CommitUrgency,
    change: Option<F>,
    made: Result<T, Error>,
    answer: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Change for QueuedWrite<T, F>
where
    T: Send,
    F: FnOnce(&Connection, &mut PendingEvents) -> Result<T, Error> + Send,
{
    fn urgency(&self) -> CommitUrgency {
        self.urgency
    }

    fn make(&mut self, db: &Connection, events: &mut PendingEvents) -> bool {
        if let Some(change) = self.change.take() {
            // A panic in one change must not end the writer thread, without which nothing is written any
            // more. Unwind safety: the savepoint is rolled back and the events truncated.
            self.made = catch_unwind(AssertUnwindSafe(|| change(db, events)))
                .unwrap_or_else(|_| Err(Error::Panicked));
        }
        self.made.is_ok()
    }

    fn why_not(&self) -> Error {
        self.made.as_ref().err().map_or(Error::RolledBack, Error::again)
    }

    fn damage(&self) -> Option<Arc<str>> {
        self.made.as_ref().err().and_then(Error::damage)
    }

    fn settle(self: Box<Self>, committed: Result<(), Error>) {
        let answer = match committed {
            Ok(()) => self.made,
            Err(error) => Err(error),
        };
        // A caller that hung up does not undo what it asked for.
        let _ = self.answer.send(answer);
    }
}

/// The outcome of a change that is already queued: waiting for it is optional.
#[must_use = "the change is on its way, but only this knows whether it was made"]
pub struct PendingWrite<T>(oneshot::Receiver<Result<T, Error>>);

impl<T> Future for PendingWrite<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}

impl<T> PendingWrite<T> {
    pub(super) fn closed() -> PendingWrite<T> {
        PendingWrite(oneshot::channel().1)
    }

    /// Blocks the thread, also one of an async runtime: for what is rare and short. Never call it on the
    /// writer thread, which would wait for itself.
    pub(super) fn wait(mut self, longest: Duration) -> Result<T, Error> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let until = Instant::now() + longest;
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut self).poll(&mut context) {
                return answer;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Closed);
            }
            std::thread::park_timeout(left);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) struct Writer {
    queue: mpsc::Sender<Box<dyn Change>>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(
        db: Connection,
        damage: Arc<Latch>,
        brief: Brief,
        channels: Channels,
        publish: impl Fn(CommittedChange) + Send + 'static,
    ) -> std::io::Result<Writer> {
        let (queue, waiting) = mpsc::channel();
        let work = move || run(db, &waiting, &damage, (brief, channels), publish);
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(work)?;
        Ok(Writer { queue, thread })
    }

    /// Queues a change at once; the future only waits for its outcome.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        urgency: CommitUrgency,
        change: impl FnOnce(&Connection, &mut PendingEvents) -> Result<T, Error> + Send + 'static,
    ) -> PendingWrite<T> {
        let (answer, outcome) = oneshot::channel();
        let change = Some(change);
        let pending = Box::new(QueuedWrite { urgency, change, made: Err(Error::Closed), answer });
        // A writer that is gone drops the answer with it, which reads as `Closed`.
        let _ = self.queue.send(pending);
        PendingWrite(outcome)
    }

    /// Finishes what is queued, then closes the database.
    pub(super) fn stop(self) {
        drop(self.queue);
        if self.thread.join().is_err() {
            tracing::error!("store writer panicked; changes that were still queued are lost");
        }
    }
}

fn run(
    db: Connection,
    waiting: &mpsc::Receiver<Box<dyn Change>>,
    damage: &Latch,
    (brief, channels): (Brief, Channels),
    publish: impl Fn(CommittedChange),
) {
    while let Ok(first) = waiting.recv() {
        let mut events = PendingEvents { changes: Vec::new(), brief, channels: channels.clone() };
        let mut batch = vec![first];
        wait_for_company(waiting, &mut batch);
        let committed = damage.check().and_then(|()| commit(&db, waiting, &mut batch, &mut events));
        let found = batch.iter().filter_map(|change| change.damage()).next();
        if let Some(why) = committed.as_ref().err().and_then(Error::damage).or(found) {
            damage.set(&why);
        }
        match &committed {
            // The latch has logged it once; every later change fails the same way.
            Err(Error::Damaged(_)) => {}
            Ok(before) => {
                for (id, (what, task)) in (before + 1..).zip(events.changes) {
                    let committed = CommittedChange { id, what, task };
                    // A listener that panics must not end the only thread that writes: the change is
                    // made, and its caller is waiting for the answer.
                    if catch_unwind(AssertUnwindSafe(|| publish(committed))).is_err() {
                        tracing::error!(
                            id,
                            "change listener panicked; subscribers missed the change"
                        );
                    }
                }
            }
            Err(error) => {
                let (error, changes) = (error as &dyn std::error::Error, batch.len());
                tracing::error!(
                    error,
                    changes,
                    "store commit failed; all of its changes are rolled back"
                );
            }
        }
        for change in batch {
            change.settle(committed.as_ref().map(|_| ()).map_err(Error::again));
        }
    }
}

/// Holds the batch open until a change comes that is not deferrable, or the time is up.
fn wait_for_company(waiting: &mpsc::Receiver<Box<dyn Change>>, batch: &mut Vec<Box<dyn Change>>) {
    let until = Instant::now() + LONGEST_WAIT;
    while batch.last().is_some_and(|change| change.urgency() == CommitUrgency::Deferrable) {
        match waiting.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(change) => batch.push(change),
            Err(_) => return,
        }
    }
}

/// Makes and commits the batch, and takes in what is queued meanwhile. Returns the id of the newest change
/// before it.
fn commit(
    db: &Connection,
    waiting: &mpsc::Receiver<Box<dyn Change>>,
    batch: &mut Vec<Box<dyn Change>>,
    events: &mut PendingEvents,
) -> Result<u64, Error> {
    // `BEGIN IMMEDIATE`, because maintenance (`VACUUM`) writes on another connection: a transaction that reads
    // first and writes later fails with SQLITE_BUSY_SNAPSHOT when another commit came in between.
    let tx = db.begin_write()?;
    let mut done = 0;
    while let Some(change) = batch.get_mut(done) {
        // Events of a change that is rolled back must not be published.
        let events_before = events.changes.len();
        let savepoint = tx.savepoint()?;
        if change.make(&tx, events) {
            savepoint.commit()?;
        } else {
            // On a full disk SQLite rolls back the whole transaction by itself. The changes before this
            // one are gone, too, and going on would commit every later one by itself.
            if !tx.in_transaction() {
                return Err(change.why_not());
            }
            drop(savepoint); // rolls back
            events.changes.truncate(events_before);
        }
        done += 1;
        if done < MOST_IN_ONE_COMMIT {
            batch.extend(waiting.try_recv().ok());
        }
    }
    let before = count_changes(&tx, events.changes.len())?;
    tx.commit()?;
    Ok(before)
}

/// Advances the sequence number of changes in the same transaction, so that a snapshot knows exactly which
/// changes it contains and a subscriber can go on behind it without a gap.
fn count_changes(db: &Connection, events: usize) -> Result<u64, Error> {
    if events == 0 {
        return Ok(0);
    }
    Ok(db.query_one(
        "UPDATE counter SET n = n + ?1 WHERE name = 'change' RETURNING n - ?1",
        [events as i64],
        |row| row.get::<i64>(0),
    )? as u64)
}
