//! Live task changes for whoever listens. Fed by the store's writer after a commit, in the order
//! of the commits. Subscribe first, then read the store: what falls between is then seen twice,
//! never missed, and recognised by its id.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

use crate::task::{Status, Task};

/// How many changes a slow listener may lag behind before it has to read the store again; as many
/// are kept for those who were away.
const KEPT: usize = 1024;

/// Nobody's prompts and results fill the memory by being kept.
const MOST_KEPT_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Created,
    /// Anything but a creation or an end: progress, a resume, a clear.
    Updated,
    Completed,
    Error,
    Cancelled,
}

#[derive(Debug)]
pub struct Change {
    /// As the store counts its changes.
    pub id: u64,
    pub kind: Kind,
    pub task: Task,
    written: OnceLock<Bytes>,
}

/// What is published from now on.
pub type Changes = broadcast::Receiver<Arc<Change>>;

type Watcher = Box<dyn Fn(&Change) + Send>;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Feed(Arc<Inner>);

struct Inner {
    changes: broadcast::Sender<Arc<Change>>,
    kept: Mutex<Recent>,
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Default)]
struct Recent {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl Feed {
    pub fn new() -> Feed {
        Feed(Arc::new(Inner {
            changes: broadcast::Sender::new(KEPT),
            kept: Mutex::default(),
            watchers: Mutex::default(),
        }))
    }

    pub fn publish(&self, change: Change) {
        for watcher in self.0.watchers.lock().iter() {
            watcher(&change);
        }
        let change = Arc::new(change);
        let mut kept = self.kept();
        kept.push(change.clone());
        // Nobody listening is no error. Under the lock, so that nobody who comes just now misses it.
        let _ = self.0.changes.send(change);
    }

    pub fn subscribe(&self) -> Changes {
        self.0.changes.subscribe()
    }

    /// Everything after this change: first what is kept, then what comes. `None` when not all of
    /// it is kept, or when there is no such change yet.
    pub fn subscribe_after(&self, id: u64) -> Option<(Vec<Arc<Change>>, Changes)> {
        let kept = self.kept();
        let (oldest, newest) = (kept.changes.front()?.id, kept.changes.back()?.id);
        if !(oldest - 1..=newest).contains(&id) {
            return None;
        }
        let missed = kept.changes.iter().filter(|change| change.id > id).cloned().collect();
        Some((missed, self.subscribe()))
    }

    /// Calls `watcher` with every change, before those who wait for it are woken. It has to be
    /// quick: the store's writer waits for it.
    pub fn watch(&self, watcher: impl Fn(&Change) + Send + 'static) {
        self.0.watchers.lock().push(Box::new(watcher));
    }

    fn kept(&self) -> MutexGuard<'_, Recent> {
        self.0.kept.lock()
    }
}

impl Default for Feed {
    fn default() -> Feed {
        Feed::new()
    }
}

impl Recent {
    fn push(&mut self, change: Arc<Change>) {
        self.bytes += size(&change.task);
        self.changes.push_back(change);
        while self.changes.len() > KEPT || (self.bytes > MOST_KEPT_BYTES && self.changes.len() > 1)
        {
            if let Some(oldest) = self.changes.pop_front() {
                self.bytes -= size(&oldest.task);
            }
        }
    }
}

/// The parts of a task that can be long, twice: it is also kept as it was written.
fn size(task: &Task) -> usize {
    let result = task.state.result().map_or(0, str::len);
    2 * (task.order.prompt.len() + task.order.description.len() + result + 1024)
}

impl Change {
    pub fn new(id: u64, kind: Kind, task: Task) -> Change {
        Change { id, kind, task, written: OnceLock::new() }
    }

    /// The change as `write` puts it: the first caller writes, all others share it.
    pub fn written(&self, write: impl FnOnce(&Change) -> Bytes) -> Bytes {
        self.written.get_or_init(|| write(self)).clone()
    }
}

impl Kind {
    /// The kind of a change that ended a run.
    pub fn of_end(status: Status) -> Kind {
        match status {
            Status::Completed => Kind::Completed,
            Status::Error => Kind::Error,
            Status::Cancelled => Kind::Cancelled,
            Status::Running | Status::Resumed => Kind::Updated,
        }
    }
}
