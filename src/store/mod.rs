//! Tasks, runs, notices and intents in SQLite. The only module that speaks SQL.
//!
//! One writer thread commits (`writer`), readers have connections of their own. Whatever a
//! function here acknowledges is on disk.

mod asks;
mod filter;
mod inheritance;
mod instances;
mod intents;
mod lookups;
mod newest;
mod news;
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
mod subjects;
mod tasks;
mod transcripts;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

pub use filter::{Direction, Field, Filter, Sort, Window};
pub use inheritance::Inheritance;
pub use intents::{Intended, Intent};
pub use lookups::Resolved;
pub use outbox::{MOST_DUE, Owed};
pub use pages::Page;
pub use processes::RecordedProcess;
pub use prune::Keep;
pub use quarantine::Quarantined;
pub use rows::Run;
pub use sessions::{Messages, Session};
pub use sqlite::open::Opened;
pub use sqlite::repair::{Repaired, repair};
pub use status::{Group, Snapshot, Tally, Totals};
pub use subjects::{
    Asks, History, Instances, Integrity, Intents, Outbox, Overview, Pages, Processes, Sessions,
    Slots, Tasks, Transcripts,
};
pub use tasks::{Active, End, FollowUp, NewRun, NewTask, Placement, Resumed};
pub use transcripts::{Kept, OwedTranscript};
pub use writer::{Committed, What, Written};

use crate::task::Task;
use crate::task::view::{Brief, TaskView};
use sql::Connection;
use sqlite::{copy, damage, open};
use writer::{Haste, News, Writer};

/// Idle reader connections that are kept; each has a page cache.
const IDLE_READERS: usize = 4;

/// Each time the tasks around a bad one are looked at as well, so this is far more than a page.
const MOST_QUARANTINED: usize = 20;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    writer: Mutex<Option<Writer>>,
    readers: Mutex<Vec<Connection>>,
    path: PathBuf,
    pruned: watch::Sender<u64>,
    damage: Arc<damage::Latch>,
    quarantined: Mutex<Vec<Quarantined>>,
    brief: Brief,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the disk is full; free some space, nothing was changed")]
    DiskFull,
    #[error("the task store cannot be written; is its directory read-only? nothing was changed")]
    ReadOnly,
    #[error("the task store failed")]
    Failed(#[source] sql::Error),
    #[error("the task store failed and took the change back")]
    RolledBack,
    #[error("no short id is free for a new task; prune the history with `asyncagents prune`")]
    NoShortId,
    #[error("the task store holds something unreadable in `{column}`")]
    Unreadable { column: &'static str },
    #[error("a task cannot be read any more (`{field}`); it is ended in error, try again")]
    UnreadableTask { seq: i64, field: String },
    #[error(
        "the task store is damaged ({0}), so nothing is written to it any more; `asyncagents daemon \
         stop`, then `asyncagents doctor --repair` saves what can be read"
    )]
    Damaged(Arc<str>),
    #[error("the task store is closed")]
    Closed,
    #[error("a change to the task store panicked and was taken back")]
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
    /// Opens or creates the store. `publish` hears of every committed change, in order.
    pub fn open(
        path: &Path,
        publish: impl Fn(Committed) + Send + 'static,
    ) -> Result<(Store, Opened), Error> {
        Store::open_with(path, Brief::default(), publish)
    }

    /// The same, with tasks in lists as `brief` shows them.
    pub fn open_with(
        path: &Path,
        brief: Brief,
        publish: impl Fn(Committed) + Send + 'static,
    ) -> Result<(Store, Opened), Error> {
        let (db, opened) = open::open(path)?;
        let damage = Arc::new(damage::Latch::at(path, &db));
        let writer = Writer::start(db, damage.clone(), brief, publish)?;
        let inner = Inner {
            writer: Mutex::new(Some(writer)),
            readers: Mutex::new(Vec::new()),
            path: path.to_owned(),
            pruned: watch::Sender::new(0),
            damage,
            quarantined: Mutex::default(),
            brief,
        };
        Ok((Store(Arc::new(inner)), opened))
    }

    /// Finishes what is queued and closes the database. Later changes fail with [`Error::Closed`].
    pub fn close(&self) {
        // Readers first: the last connection to go tidies up the write-ahead log.
        self.0.readers.lock().clear();
        let writer = self.0.writer.lock().take();
        if let Some(writer) = writer {
            writer.stop();
        }
    }

    /// Copies the store at `from`, which somebody else may have open.
    pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
        copy::copy(&open::reader(from)?, to)
    }

    /// A task as lists and events show it.
    pub fn brief(&self, task: &Task) -> TaskView {
        self.0.brief.view(task)
    }
}

impl Store {
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection, &mut News) -> Result<T, Error> + Send + 'static,
    ) -> Written<T> {
        self.submit(Haste::Now, change)
    }

    /// For what can be found out again if we die before it is on disk.
    fn write_along<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection, &mut News) -> Result<T, Error> + Send + 'static,
    ) -> Written<T> {
        self.submit(Haste::MayWait, change)
    }

    fn submit<T: Send + 'static>(
        &self,
        haste: Haste,
        change: impl FnOnce(&Connection, &mut News) -> Result<T, Error> + Send + 'static,
    ) -> Written<T> {
        let writer = self.0.writer.lock();
        match writer.as_ref() {
            Some(writer) => writer.submit(haste, change),
            None => Written::closed(),
        }
    }

    /// Reads are short (a row, a page) and run where they are called. One that meets a task that
    /// cannot be decoded is made again once that is in quarantine.
    fn read<T>(&self, mut query: impl FnMut(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let mut answer = self.read_once(&mut query);
        for _ in 0..MOST_QUARANTINED {
            match &answer {
                Err(Error::UnreadableTask { seq, .. })
                    if self.integrity().quarantine(Some(*seq)) => {}
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
        let idle = self.0.readers.lock().pop();
        let answer = match idle {
            Some(db) => Ok(db),
            None => open::reader(&self.0.path),
        };
        let answer = answer.and_then(|db| {
            let answer = query(&db);
            let mut readers = self.0.readers.lock();
            // One in a transaction that could not be ended would show an old state for ever.
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

    /// The same for several queries that are to see one state of things.
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

    /// The same error for another caller of the same failed commit.
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
