//! Cancellation: commit the end first, then abort the session without waiting for it; descendants are
//! cancelled along (T8). The abort is owed on disk and retried, so a host that is down delays it but never
//! loses it. A cancel runs detached from its caller: one that hangs up must not leave half of it done.
//!
//! Each end notes the idempotency key of the cancel in its own transaction. So a repeat, after the daemon was killed
//! half-way, cancels the rest and answers with all of them, and leaves alone what was resumed in between.

use super::ends::Cancellation;
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
        self.cancel_once(caller, target, None).await
    }

    /// The same under the caller's idempotency key: a repeat answers as the first call would have.
    pub async fn cancel_once(
        &self,
        caller: &Caller,
        target: Target,
        key: Option<String>,
    ) -> Result<CancelOutcome, Error> {
        let (supervisor, caller) = (self.clone(), caller.clone());
        let work = async move {
            let _turn = supervisor.0.launches.turn_of(key.as_deref()).await;
            supervisor.cancel_all(&caller, target, key.as_deref()).await
        };
        let cancelling = self.0.core.spawn(work);
        cancelling.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))
    }

    async fn cancel_all(
        &self,
        caller: &Caller,
        target: Target,
        key: Option<&str>,
    ) -> Result<CancelOutcome, Error> {
        let so_far = self.0.core.store().keyed_changes().so_far(key)?;
        let by = Cancellation { caller: Some(caller), key, why: None };
        let live = match target {
            Target::Task(id) => {
                let task = self.task(&id)?;
                self.check_owner(&task, caller)?;
                let cancelled = match so_far.has(id.as_str()) {
                    true => task,
                    false => self.0.ends.cancel(task, by).await?,
                };
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
        let mut tasks = Vec::with_capacity(live.len());
        for id in so_far.ids() {
            // It may have been pruned since.
            let done = self.0.core.store().tasks().get(&TaskId::new(id))?;
            tasks.extend(done.filter(|task| self.check_owner(task, caller).is_ok()));
        }
        // Newest first: a queued task must not be admitted because an older one just freed its slot.
        for task in live.into_iter().rev().filter(|task| !so_far.has(task.id.as_str())) {
            match self.0.ends.cancel(task, by).await {
                Ok(task) => tasks.push(task),
                // It ended by itself in the meantime.
                Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        tasks.sort_by(|one, other| (one.started_at, &one.id).cmp(&(other.started_at, &other.id)));
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
