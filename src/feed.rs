//! Broadcast channel of task events with a replay buffer: the source of the SSE stream, of waits, toasts
//! and metrics. The store's writer publishes after each commit, in commit order, so an event is never about
//! something that is not on disk.
//!
//! Subscribe first, then read the store: an event that falls in between is then seen twice, never missed,
//! and recognised by its id. A subscriber that lags more than `CAPACITY` events behind gets `Lagged` and
//! has to read the store again. The buffer is in memory only: after a restart nothing can be replayed.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

use crate::task::{Status, Task};

/// How many events a slow subscriber may lag behind before it has to read the store again; as many are
/// kept for clients that reconnect.
const CAPACITY: usize = 1024;

/// Bound of the replay buffer. Events carry whole prompts and results, and 1024 of the largest would be
/// gigabytes.
const MOST_BUFFERED_BYTES: usize = 16 << 20;

/// What happened to a task, by the names of the SSE events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Created,
    /// Anything but a creation or an end: progress, a resume, a clear.
    Updated,
    Completed,
    Error,
    Cancelled,
}

/// One committed change of a task, with the task as it is after it.
#[derive(Debug)]
pub struct TaskEvent {
    /// The store's change counter: without gaps, and counted on after a restart.
    pub id: u64,
    pub kind: EventKind,
    pub task: Task,
    /// Cache of the serialised event; see [`TaskEvent::encoded`].
    encoded: OnceLock<Bytes>,
}

/// A subscription: the events published from now on.
pub type Events = broadcast::Receiver<Arc<TaskEvent>>;

type Watcher = Box<dyn Fn(&TaskEvent) + Send>;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Feed(Arc<Inner>);

struct Inner {
    sender: broadcast::Sender<Arc<TaskEvent>>,
    buffer: Mutex<ReplayBuffer>,
    watchers: Mutex<Vec<Watcher>>,
}

/// The newest events, for clients that reconnect with the id of the last one they saw.
#[derive(Default)]
struct ReplayBuffer {
    events: VecDeque<Arc<TaskEvent>>,
    bytes: usize,
}

impl Feed {
    pub fn new() -> Feed {
        Feed(Arc::new(Inner {
            sender: broadcast::Sender::new(CAPACITY),
            buffer: Mutex::default(),
            watchers: Mutex::default(),
        }))
    }

    /// Called by the store's writer thread alone, which is what keeps events in commit order.
    pub fn publish(&self, event: TaskEvent) {
        for watcher in self.0.watchers.lock().iter() {
            watcher(&event);
        }
        let event = Arc::new(event);
        let mut buffer = self.buffer();
        buffer.push(event.clone());
        // Sent while the buffer is locked: `subscribe_after` holds the same lock from its copy of the
        // buffer to its subscription, so an event is in exactly one of the two. An error only means
        // that there are no subscribers.
        let _ = self.0.sender.send(event);
    }

    pub fn subscribe(&self) -> Events {
        self.0.sender.subscribe()
    }

    /// Everything after this event: first the buffered ones, then what is published. `None` when the
    /// buffer does not reach back that far, or when there is no such event yet.
    pub fn subscribe_after(&self, id: u64) -> Option<(Vec<Arc<TaskEvent>>, Events)> {
        let buffer = self.buffer();
        let (oldest, newest) = (buffer.events.front()?.id, buffer.events.back()?.id);
        // `oldest - 1` is the last event before the buffer: a client that saw it missed nothing else.
        if !(oldest - 1..=newest).contains(&id) {
            return None;
        }
        let missed = buffer.events.iter().filter(|event| event.id > id).cloned().collect();
        Some((missed, self.subscribe()))
    }

    /// Calls `watcher` with every event, before subscribers are woken: a subscriber that reads the
    /// metrics finds the event counted. It has to be quick, since the store's writer waits for it.
    pub fn watch(&self, watcher: impl Fn(&TaskEvent) + Send + 'static) {
        self.0.watchers.lock().push(Box::new(watcher));
    }

    fn buffer(&self) -> MutexGuard<'_, ReplayBuffer> {
        self.0.buffer.lock()
    }
}

impl Default for Feed {
    fn default() -> Feed {
        Feed::new()
    }
}

impl ReplayBuffer {
    /// Adds an event and evicts the oldest ones beyond either bound. The newest always stays: the ids in
    /// the buffer say whether a reconnecting client has missed something.
    fn push(&mut self, event: Arc<TaskEvent>) {
        self.bytes += size(&event.task);
        self.events.push_back(event);
        while self.events.len() > CAPACITY
            || (self.bytes > MOST_BUFFERED_BYTES && self.events.len() > 1)
        {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= size(&oldest.task);
            }
        }
    }
}

/// The parts of a task that can be long, counted twice: the encoded event is kept as well.
fn size(task: &Task) -> usize {
    let result = task.state.result().map_or(0, str::len);
    2 * (task.order.prompt.len() + task.order.description.len() + result + 1024)
}

impl TaskEvent {
    pub fn new(id: u64, kind: EventKind, task: Task) -> TaskEvent {
        TaskEvent { id, kind, task, encoded: OnceLock::new() }
    }

    /// The event as bytes. The first caller encodes it, all others share those bytes, so the cost does
    /// not grow with the number of SSE clients.
    pub fn encoded(&self, encode: impl FnOnce(&TaskEvent) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(self)).clone()
    }
}

impl EventKind {
    /// The kind of an event that ended a run.
    pub fn of_end(status: Status) -> EventKind {
        match status {
            Status::Completed => EventKind::Completed,
            Status::Error => EventKind::Error,
            Status::Cancelled => EventKind::Cancelled,
            Status::Running | Status::Resumed => EventKind::Updated,
        }
    }
}
