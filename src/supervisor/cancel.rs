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
    /// Goes on by itself: a caller that hangs up must not leave sessions at work, or news untold.
    pub async fn cancel(&self, caller: &Caller, target: Target) -> Result<Cancelled, Error> {
        let (supervisor, caller) = (self.clone(), caller.clone());
        let cancelling = tokio::spawn(async move { supervisor.cancel_all(&caller, target).await });
        cancelling.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))
    }

    async fn cancel_all(&self, caller: &Caller, target: Target) -> Result<Cancelled, Error> {
        let live = match target {
            Target::Task(id) => {
                let task = self.task(&id)?;
                self.check_owner(&task, caller)?;
                let cancelled = self.cancel_one(task, Some(caller), None).await?;
                return Ok(Cancelled { tasks: vec![cancelled] });
            }
            Target::All => self.0.store.tasks().live(Some(&caller.session))?,
            Target::Everything => self.0.store.tasks().live(None)?,
            Target::Batch(batch) => {
                let mut live = self.0.store.tasks().live_in_batch(&batch)?;
                let mut all = self.0.store.tasks().batch(&batch)?;
                let is_own = |task: &Task| self.check_owner(task, caller).is_ok();
                live.retain(is_own);
                all.retain(is_own);
                if all.is_empty() {
                    return Err(Error::NoSuchBatch(batch.to_string()));
                }
                live
            }
        };
        // Newest first: a queued task must not start because an older one just made room.
        let mut tasks = Vec::with_capacity(live.len());
        for task in live.into_iter().rev() {
            match self.cancel_one(task, Some(caller), None).await {
                Ok(task) => tasks.push(task),
                // It ended by itself in the meantime.
                Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        tasks.reverse();
        Ok(Cancelled { tasks })
    }

    /// Who may change a task (T18): its parent, who is above that, and the shell, which is the user.
    pub fn check_owner(&self, task: &Task, caller: &Caller) -> Result<(), Error> {
        if caller.is_shell() {
            return Ok(());
        }
        let mut above = task.origin.parent.session.clone();
        while above != caller.session {
            match self.0.store.tasks().get(&above)? {
                Some(parent) => above = parent.origin.parent.session,
                None => return Err(Error::NotYours(task.short_id.to_string())),
            }
        }
        Ok(())
    }

    /// `caller` is `None` when it follows from something else, and nobody is to be woken for it.
    pub(super) async fn cancel_one(
        &self,
        task: Task,
        caller: Option<&Caller>,
        why: Option<&str>,
    ) -> Result<Task, Error> {
        let mut task = task;
        for _ in 0..TRIES {
            let change = task.state.request(Request::Cancel { why: why.map(str::to_owned) })?;
            // Who cancels knows; a cancelled parent has no use for being woken (N3).
            let hushed = caller.is_none_or(|caller| caller.session == task.origin.parent.session);
            let closing = Closing { hushed, ..Closing::default() };
            if let Some(cancelled) = self.apply(&task, change, closing).await? {
                return Ok(cancelled);
            }
            task = self.task(&task.id)?;
        }
        Err(Error::Contended)
    }

    pub(super) async fn cancel_descendants(&self, task: &Task) -> Result<(), Error> {
        for child in self.0.store.tasks().live(Some(&task.id))? {
            match Box::pin(self.cancel_one(child, None, None)).await {
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
