//! Waiting for ends. A waiting caller sleeps on the feed; it never polls.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use super::{Caller, Error, Supervisor};
use crate::task::{Task, TaskId};

/// How many of the tasks must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Any,
    All,
    AtLeast(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub timed_out: bool,
}

/// While it lives, the end of these tasks is somebody's answer and not yet a notice.
pub(super) struct Awaiting {
    supervisor: Supervisor,
    tasks: Vec<TaskId>,
}

impl Supervisor {
    pub async fn wait(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        // Subscribe first, then read: an end in between is seen twice, never missed.
        let mut changes = self.0.feed.subscribe();
        let mut tasks = self.tasks(ids)?;
        let need = match need {
            Need::Any => 1,
            Need::All => tasks.len(),
            Need::AtLeast(n) => n.min(tasks.len()),
        };
        let deadline = self.0.clock.sleep(timeout);
        tokio::pin!(deadline);
        loop {
            if tasks.iter().filter(|task| !task.is_live()).count() >= need {
                return Ok(Waited { tasks, timed_out: false });
            }
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => {
                        for task in tasks.iter_mut().filter(|task| task.id == change.task.id) {
                            *task = change.task.clone();
                        }
                    }
                    Err(RecvError::Lagged(_)) => tasks = self.tasks(ids)?,
                    Err(RecvError::Closed) => return Err(Error::Stopping),
                },
                () = &mut deadline => return Ok(Waited { tasks, timed_out: true }),
                () = self.0.stopping.cancelled() => return Err(Error::Stopping),
            }
        }
    }

    /// Waits on behalf of a parent: an end it is given here is recorded in its conversation
    /// without waking it (N3). If the caller hangs up before, it is woken like anybody.
    pub async fn wait_as_parent(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        let own = self.tasks(ids)?;
        let own = own.into_iter().filter(|task| task.parent.session == caller.session);
        let awaiting = self.awaiting(own.map(|task| task.id).collect());
        let waited = self.wait(ids, need, timeout).await?;
        for task in waited.tasks.iter().filter(|task| !task.is_live()) {
            if awaiting.tasks.contains(&task.id) {
                self.0.store.hush(&task.id, self.0.clock.now()).await?;
            }
        }
        Ok(waited)
    }

    fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Task>, Error> {
        ids.iter().map(|id| self.task(id)).collect()
    }

    fn awaiting(&self, tasks: Vec<TaskId>) -> Awaiting {
        let mut awaited = self.awaited();
        for id in &tasks {
            *awaited.entry(id.clone()).or_default() += 1;
        }
        drop(awaited);
        Awaiting { supervisor: self.clone(), tasks }
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        let mut awaited = self.supervisor.awaited();
        for id in &self.tasks {
            if let Some(waiting) = awaited.get_mut(id) {
                *waiting -= 1;
                if *waiting == 0 {
                    awaited.remove(id);
                }
            }
        }
        drop(awaited);
        self.supervisor.0.notices.notify_one();
    }
}
