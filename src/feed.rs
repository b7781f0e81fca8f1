//! Live task changes for whoever listens. Fed by the store's writer after a commit, in the order
//! of the commits. Subscribe first, then read the store: what falls between is then seen twice,
//! never missed.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::task::{Status, Task};

/// How many changes a slow listener may lag behind before it has to read the store again.
const KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Created,
    /// Anything but a creation or an end: progress, a resume, a clear.
    Updated,
    Completed,
    Error,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub kind: Kind,
    pub task: Arc<Task>,
}

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Feed(broadcast::Sender<Change>);

impl Feed {
    pub fn new() -> Feed {
        Feed(broadcast::Sender::new(KEPT))
    }

    pub fn publish(&self, change: Change) {
        // Nobody listening is no error.
        let _ = self.0.send(change);
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}

impl Default for Feed {
    fn default() -> Feed {
        Feed::new()
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
