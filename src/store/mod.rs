//! The durable store: tasks, runs, notices and intents in one SQLite file in WAL mode. The only module that
//! speaks SQL.
//!
//! One writer thread with group commit (`writer`), and a pool of read-only connections, which in WAL mode see
//! the last commit and never wait for the writer. A change is acknowledged after its commit, so whatever a
//! caller was told survives a crash; what it was not told may have been written all the same, which is why
//! launches, runs and prompts have idempotency keys. Three things can be wrong with the file, and each has an
//! answer here: rows that cannot be decoded (`quarantine`), a corrupt tree (`sqlite::damage`, then
//! `sqlite::repair`), and a disk that is full (the change is rolled back and its caller told).

mod alerts;
mod asks;
mod calls;
mod events;
mod filter;
mod further;
mod inheritance;
mod instances;
mod intents;
mod keyed;
mod lookups;
mod newest;
mod outbox;
mod pages;
mod processes;
mod prune;
mod quarantine;
mod rows;
mod search;
mod sessions;
mod slots;
mod sql;
mod sqlite;
mod status;
mod stored;
mod subjects;
mod tasks;
mod transcripts;
mod trends;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

pub use alerts::OwedAlert;
pub use calls::{NewCall, StoredCall};
pub use filter::{Direction, Field, Filter, Sort, Window};
pub use further::{AddOutcome, FurtherPrompt, NewFurtherPrompt};
pub use inheritance::Inheritance;
pub use intents::{Intent, IntentOutcome};
pub use keyed::ChangesSoFar;
pub use lookups::Resolution;
pub use outbox::{MOST_DUE, OwedNotice};
pub use pages::Page;
pub use processes::RecordedProcess;
pub use prune::Retention;
pub use quarantine::QuarantinedTask;
pub use rows::Run;
pub use sessions::{Messages, Session};
pub use slots::SlotCounts;
pub use sqlite::bad_rows::UnreadableRow;
pub use sqlite::open::OpenOutcome;
pub use sqlite::repair::{RepairReport, repair};
pub use status::{Group, Snapshot, Tally, Totals};
pub use stored::StoredBudget;
pub use subjects::{
    Alerts, Asks, Calls, Further, History, Instances, Integrity, Intents, KeyedChanges, Outbox,
    Overview, Pages, Processes, Sessions, Slots, Tasks, Transcripts,
};
pub use tasks::{ActiveTask, End, FollowUp, NewRun, NewTask, Placement, ResumeOutcome};
pub use transcripts::{ArchivedTranscript, OwedTranscript};
pub use trends::QueueLength;
pub use writer::{ChangeKind, CommittedChange, PendingWrite};

use crate::task::Task;
use crate::task::view::{Brief, TaskView};
use sql::Connection;
use sqlite::{copy, damage, open};
use writer::{CommitUrgency, PendingEvents, Writer};

/// Size of the reader pool when idle; each connection has a page cache. More are opened under load and
/// closed afterwards.
const IDLE_READERS: usize = 4;

/// How often one read is retried after a quarantine. Every quarantine also covers the tasks around the bad
/// one, so this reaches far beyond a page of the history.
const MOST_QUARANTINED: usize = 20;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    /// `None` once the store is closed.
    writer: Mutex<Option<Writer>>,
    /// The pool of idle read-only connections.
    readers: Mutex<Vec<Connection>>,
    path: PathBuf,
    /// Counts prunings, for owners of files that belong to tasks.
    pruned: watch::Sender<u64>,
    damage: Arc<damage::Latch>,
    /// What this process has put into quarantine.
    quarantined: Mutex<Vec<QuarantinedTask>>,
    mended: Mutex<Vec<UnreadableRow>>,
    brief: Brief,
    /// By which people are told.
    channels: writer::Channels,
}

/// Why the store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the disk is full; free some space, nothing was changed")]
    DiskFull,
    #[error("the task store cannot be written; is its directory read-only? nothing was changed")]
    ReadOnly,
    #[error("the task store failed")]
    Failed(#[source] sql::Error),
    #[error("the task store failed and rolled the change back")]
    RolledBack,
    #[error("no short id is free for a new task; prune the history with `asyncagents prune`")]
    NoShortId,
    #[error("the task store holds something unreadable in `{column}`")]
    Unreadable { column: &'static str },
    #[error(
        "the record of a task is damaged (`{field}`) and the task was marked as failed; try again"
    )]
    UnreadableTask { seq: i64, field: String },
    #[error(
        "the task store is damaged ({0}), so nothing is written to it any more; `asyncagents daemon \
         stop`, then `asyncagents doctor --repair` saves what can be read"
    )]
    Damaged(Arc<str>),
    #[error("the task store is closed")]
    Closed,
    #[error("a change to the task store panicked and was rolled back")]
    Panicked,
    #[error(
        "the task store was written by a newer asyncagents (schema {found}, this one knows {known}); \
         upgrade asyncagents, or set ASYNCAGENTS_HOME to another directory"
    )]
    TooNew { found: i64, known: i64 },
    #[error("`{0}` is a database of another program; set ASYNCAGENTS_HOME to another directory")]
    Foreign(String),
    #[error("cannot set the damaged task store `{path}` aside")]
    SetAside {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write the copy `{path}`")]
    Copy {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot open the task store")]
    Io(#[from] std::io::Error),
}

impl Store {
    /// Opens or creates the store, and migrates it if need be. `publish` is called on the writer thread with
    /// every committed change, in commit order: it must not block.
    pub fn open(
        path: &Path,
        publish: impl Fn(CommittedChange) + Send + 'static,
    ) -> Result<(Store, OpenOutcome), Error> {
        Store::open_with(path, Brief::default(), publish)
    }

    /// The same, with tasks in lists as `brief` shows them.
    pub fn open_with(
        path: &Path,
        brief: Brief,
        publish: impl Fn(CommittedChange) + Send + 'static,
    ) -> Result<(Store, OpenOutcome), Error> {
        let (db, opened) = open::open(path)?;
        let damage = Arc::new(damage::Latch::at(path, &db));
        let channels = writer::Channels::default();
        let writer = Writer::start(db, damage.clone(), brief, channels.clone(), publish)?;
        let inner = Inner {
            writer: Mutex::new(Some(writer)),
            readers: Mutex::new(Vec::new()),
            path: path.to_owned(),
            pruned: watch::Sender::new(0),
            damage,
            quarantined: Mutex::default(),
            mended: Mutex::default(),
            brief,
            channels,
        };
        Ok((Store(Arc::new(inner)), opened))
    }

    /// Finishes what is queued and closes the database. Later changes fail with [`Error::Closed`].
    pub fn close(&self) {
        // Readers first: the last connection to close checkpoints the write-ahead log and deletes it, and
        // a read-only one cannot.
        self.0.readers.lock().clear();
        let writer = self.0.writer.lock().take();
        if let Some(writer) = writer {
            writer.stop();
        }
    }

    /// Online backup of the store at `from`, which another process may have open. `progress` hears how many pages of
    /// how many are copied.
    pub fn copy(from: &Path, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        copy::copy(&open::reader(from)?, to, progress)
    }

    /// A task as lists and events show it.
    pub fn brief(&self, task: &Task) -> TaskView {
        self.0.brief.view(task)
    }
}

impl Store {
    /// Queues a change for the next group commit. It is made even if the caller drops what this returns.
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection, &mut PendingEvents) -> Result<T, Error> + Send + 'static,
    ) -> PendingWrite<T> {
        self.submit(CommitUrgency::Immediate, change)
    }

    /// The same without a commit (and fsync) of its own: it waits a few milliseconds for a change to go along
    /// with. Only for what is found out again if we crash before it is on disk: that a prompt or a notice was
    /// sent (its id is looked up at the host before it is sent again), that an abort was, figures of progress.
    fn write_deferrable<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection, &mut PendingEvents) -> Result<T, Error> + Send + 'static,
    ) -> PendingWrite<T> {
        self.submit(CommitUrgency::Deferrable, change)
    }

    fn submit<T: Send + 'static>(
        &self,
        urgency: CommitUrgency,
        change: impl FnOnce(&Connection, &mut PendingEvents) -> Result<T, Error> + Send + 'static,
    ) -> PendingWrite<T> {
        // Held while the change is queued, which does not block: `close` takes the writer out under the same lock,
        // so a change is either queued before it and committed, or refused.
        let writer = self.0.writer.lock();
        match writer.as_ref() {
            Some(writer) => writer.submit(urgency, change),
            None => PendingWrite::closed(),
        }
    }

    /// Reads are short (a row, a page) and run on the caller's thread. One that meets a task that cannot be
    /// decoded is retried once that is in quarantine, so `query` may run several times.
    fn read<T>(&self, mut query: impl FnMut(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let mut answer = self.read_once(&mut query);
        for _ in 0..MOST_QUARANTINED {
            match &answer {
                // `quarantine` waits for the writer, so no read may be made on the writer thread.
                Err(Error::UnreadableTask { seq, .. })
                    if self.integrity().quarantine(Some(*seq)) => {}
                // A query that groups by status knows no task to blame: look for the unknown word.
                Err(Error::Unreadable { column: "status" })
                    if self.integrity().quarantine(None) => {}
                Ok(_) | Err(_) => break,
            }
            answer = self.read_once(&mut query);
        }
        answer
    }

    fn read_once<T>(
        &self,
        query: &mut impl FnMut(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // The lock is held for the pop and the push alone; queries run without it.
        let idle = self.0.readers.lock().pop();
        let answer = match idle {
            Some(db) => Ok(db),
            None => open::reader(&self.0.path),
        };
        let answer = answer.and_then(|db| {
            let answer = query(&db);
            let mut readers = self.0.readers.lock();
            // A connection whose transaction could not be rolled back keeps its snapshot: it would show
            // an old state for ever, and keep the log from being checkpointed.
            if readers.len() < IDLE_READERS && !db.in_transaction() {
                readers.push(db);
            }
            answer
        });
        if let Err(Error::Damaged(why)) = &answer {
            self.0.damage.set(why);
        }
        answer
    }

    /// The same for several queries that need one snapshot: in WAL mode a read transaction sees the commit
    /// that was the last when it first read.
    fn read_at_once<T>(
        &self,
        mut query: impl FnMut(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.read(|db| {
            let moment = db.begin()?;
            query(&moment)
        })
    }
}

impl Error {
    fn damage(&self) -> Option<Arc<str>> {
        match self {
            Error::Damaged(why) => Some(Arc::clone(why)),
            _ => None,
        }
    }

    /// The same error for another caller of the same failed group commit. Sources that cannot be cloned
    /// become `RolledBack`.
    fn again(&self) -> Error {
        match self {
            Error::DiskFull => Error::DiskFull,
            Error::ReadOnly => Error::ReadOnly,
            Error::Failed(source) => Error::Failed(source.clone()),
            Error::Closed => Error::Closed,
            Error::Damaged(why) => Error::Damaged(Arc::clone(why)),
            Error::RolledBack
            | Error::NoShortId
            | Error::Unreadable { .. }
            | Error::UnreadableTask { .. }
            | Error::Panicked
            | Error::TooNew { .. }
            | Error::Foreign(_)
            | Error::SetAside { .. }
            | Error::Copy { .. }
            | Error::Io(_) => Error::RolledBack,
        }
    }
}

impl From<sql::Error> for Error {
    fn from(error: sql::Error) -> Error {
        match error {
            sql::Error::Full => Error::DiskFull,
            sql::Error::ReadOnly => Error::ReadOnly,
            sql::Error::Damaged(why) => Error::Damaged(why),
            sql::Error::Value { .. } | sql::Error::NoRow | sql::Error::Failed(_) => {
                Error::Failed(error)
            }
        }
    }
}
