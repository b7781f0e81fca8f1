//! Cancelling: mark first, then abort without waiting for the abort; descendants go along (T8).

use super::reconcile::Closing;
use super::{Caller, Error, Supervisor};
use crate::task::lifecycle::{Refused, Request};
use crate::task::{BatchId, Task, TaskId};

/// How often a cancel is tried against a task that keeps moving.
const TRIES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Task(TaskId),
    /// The caller's live tasks.
    All,
    /// Everybody's live tasks: what `--all` means at the shell.
    Everything,
    Batch(BatchId),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cancelled {
    /// As they are now, in the order of their launch; descendants are not listed.
    pub tasks: Vec<Task>,
}

impl Supervisor {
    pub async fn cancel(&self, caller: &Caller, target: Target) -> Result<Cancelled, Error> {
        let live = match target {
            Target::Task(id) => {
                let task = self.task(&id)?;
                let cancelled = self.cancel_one(task, Some(caller)).await?;
                return Ok(Cancelled { tasks: vec![cancelled] });
            }
            Target::All => self.0.store.live(Some(&caller.session))?,
            Target::Everything => self.0.store.live(None)?,
            Target::Batch(batch) => {
                let live = self.0.store.live_in_batch(&batch)?;
                if live.is_empty() && self.0.store.batch(&batch)?.is_empty() {
                    return Err(Error::NoSuchBatch(batch.to_string()));
                }
                live
            }
        };
        // Newest first: a queued task must not start because an older one just made room.
        let mut tasks = Vec::with_capacity(live.len());
        for task in live.into_iter().rev() {
            match self.cancel_one(task, Some(caller)).await {
                Ok(task) => tasks.push(task),
                // It ended by itself in the meantime.
                Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        tasks.reverse();
        Ok(Cancelled { tasks })
    }

    async fn cancel_one(&self, task: Task, caller: Option<&Caller>) -> Result<Task, Error> {
        let mut task = task;
        for _ in 0..TRIES {
            let change = task.state.request(Request::Cancel)?;
            // Who cancels knows; a cancelled parent has no use for being woken (N3).
            let hushed = caller.is_none_or(|caller| caller.session == task.parent.session);
            let end = self.end_now(&task, Closing { hushed, abort: true, ..Closing::default() });
            if let Some(cancelled) = self.0.store.end(&task, change, end).await? {
                tracing::info!(task = %cancelled.id, "cancelled");
                self.told_of_an_end();
                // Before the abort: once that is noted as sent, nobody looks for them after a crash.
                let descendants = self.cancel_descendants(&cancelled).await;
                self.abort(&cancelled);
                descendants?;
                return Ok(cancelled);
            }
            task = self.task(&task.id)?;
        }
        Err(Error::Contended)
    }

    pub(super) async fn cancel_descendants(&self, task: &Task) -> Result<(), Error> {
        for child in self.0.store.live(Some(&task.id))? {
            match Box::pin(self.cancel_one(child, None)).await {
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
