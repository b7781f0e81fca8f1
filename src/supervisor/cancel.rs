//! Cancellation: commit the end first, then abort the session without waiting for it; descendants are
//! cancelled along (T8). The abort is owed on disk and retried, so a host that is down delays it but never
//! loses it. A cancel runs detached from its caller: one that hangs up must not leave half of it done.

use super::{Caller, Error, Supervisor};
use crate::task::lifecycle::Refused;
use crate::task::{BatchId, Task, TaskId};

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
pub struct CancelOutcome {
    /// As they are now, in the order of their launch; descendants are not listed.
    pub tasks: Vec<Task>,
}

impl Supervisor {
    /// Spawned, so that it completes although the caller hangs up: sessions would keep working, and notices
    /// stay unsent.
    pub async fn cancel(&self, caller: &Caller, target: Target) -> Result<CancelOutcome, Error> {
        let (supervisor, caller) = (self.clone(), caller.clone());
        let cancelling =
            self.0.core.spawn(async move { supervisor.cancel_all(&caller, target).await });
        cancelling.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))
    }

    async fn cancel_all(&self, caller: &Caller, target: Target) -> Result<CancelOutcome, Error> {
        let live = match target {
            Target::Task(id) => {
                let task = self.task(&id)?;
                self.check_owner(&task, caller)?;
                let cancelled = self.0.ends.cancel(task, Some(caller), None).await?;
                return Ok(CancelOutcome { tasks: vec![cancelled] });
            }
            Target::All => self.0.core.store().tasks().live(Some(&caller.session))?,
            Target::Everything => self.0.core.store().tasks().live(None)?,
            Target::Batch(batch) => {
                let mut live = self.0.core.store().tasks().live_in_batch(&batch)?;
                let mut all = self.0.core.store().tasks().batch(&batch)?;
                let is_own = |task: &Task| self.check_owner(task, caller).is_ok();
                live.retain(is_own);
                all.retain(is_own);
                if all.is_empty() {
                    return Err(Error::NoSuchBatch(batch.to_string()));
                }
                live
            }
        };
        // Newest first: a queued task must not be admitted because an older one just freed its slot.
        let mut tasks = Vec::with_capacity(live.len());
        for task in live.into_iter().rev() {
            match self.0.ends.cancel(task, Some(caller), None).await {
                Ok(task) => tasks.push(task),
                // It ended by itself in the meantime.
                Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        tasks.reverse();
        Ok(CancelOutcome { tasks })
    }

    /// Authorisation (T18): a task may be changed by its parent, by any ancestor, and by the shell, which is
    /// the user.
    pub fn check_owner(&self, task: &Task, caller: &Caller) -> Result<(), Error> {
        if caller.is_shell() {
            return Ok(());
        }
        let mut above = task.origin.parent.session.clone();
        while above != caller.session {
            match self.0.core.store().tasks().get(&above)? {
                Some(parent) => above = parent.origin.parent.session,
                None => return Err(Error::NotYours(task.short_id.to_string())),
            }
        }
        Ok(())
    }
}
