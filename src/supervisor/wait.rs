//! Waiting for ends: a waiting caller subscribes to the feed and sleeps; it never polls. A parent that waits
//! gets the ends with its response, and no notice on top (N3); an end that it was not given after all, as
//! after a timeout, is delivered as usual.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use super::mailbox::Awaiting;
use super::{Asked, Asks, Caller, Error, Supervisor};
use crate::task::{Phase, Receipt, Task, TaskId};

/// How many of the tasks must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Any,
    All,
    AtLeast(usize),
}

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Enough tasks have ended.
    Enough,
    TimedOut,
    /// Every task that is left waits for a person's answer (T15), so waiting on would not help.
    Blocked,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
}

/// The result of a parent's wait, and a guard: while it lives, the ends of these tasks are not delivered as
/// notices. An end that is not given to the caller is delivered like any other afterwards.
pub struct Awaited {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
    awaiting: Awaiting,
}

impl Awaited {
    /// The caller gets these ends with its response: in its conversation they are recorded without waking
    /// it. For a caller with a mailbox the returned notices are leased; they count as read once it
    /// acknowledges them.
    pub async fn give(&self, ended: &[&Task]) -> Result<Receipt, Error> {
        self.awaiting.give(ended).await
    }
}

impl Supervisor {
    /// Waits for ends only, whatever permissions are requested meanwhile.
    pub async fn wait(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        self.sleep_until_ended(ids, need, timeout, |_| false).await
    }

    /// The same, but returns at once when all that is left waits for a person's answer.
    pub async fn wait_or_blocked(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        self.sleep_until_ended(ids, need, timeout, |tasks| self.are_blocked(tasks)).await
    }

    async fn sleep_until_ended(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
        is_blocked: impl Fn(&[Task]) -> bool,
    ) -> Result<Waited, Error> {
        // Subscribe first, then read: an end in between is seen twice, never missed.
        let mut changes = self.0.feed.subscribe();
        let mut asks = self.0.asks.watch();
        let mut tasks = self.tasks(ids)?;
        let need = match need {
            Need::Any => 1,
            Need::All => tasks.len(),
            Need::AtLeast(n) => n.min(tasks.len()),
        };
        let deadline = self.0.core.clock().sleep(timeout);
        tokio::pin!(deadline);
        loop {
            if tasks.iter().filter(|task| !task.is_live()).count() >= need {
                return Ok(Waited { tasks, end: WaitEnd::Enough });
            }
            if is_blocked(&tasks) {
                return Ok(Waited { tasks, end: WaitEnd::Blocked });
            }
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => {
                        for task in tasks.iter_mut().filter(|task| task.id == change.task.id) {
                            *task = change.task.clone();
                        }
                    }
                    // Events were dropped because this caller was too slow: read the state instead.
                    Err(RecvError::Lagged(_)) => tasks = self.tasks(ids)?,
                    Err(RecvError::Closed) => return Err(Error::Stopping),
                },
                Ok(()) = asks.changed() => {}
                () = &mut deadline => return Ok(Waited { tasks, end: WaitEnd::TimedOut }),
                () = self.0.core.stopping().cancelled() => return Err(Error::Stopping),
            }
        }
    }

    /// Whether none of these continues until a person answers. A task must both look blocked and have an open
    /// request: after an answer it looks blocked until the next look, and after a restart no request is known
    /// until the first one. What the policy answers needs no person.
    fn are_blocked(&self, tasks: &[Task]) -> bool {
        match self.0.core.settings().asks {
            Asks::Allow | Asks::Deny => return false,
            Asks::Park(_) => {}
        }
        let mut live = tasks.iter().filter(|task| task.is_live()).peekable();
        live.peek().is_some()
            && live.all(|task| {
                task.progress.phase == Phase::Blocked && self.0.asks.has_any_of(&task.id)
            })
    }

    /// The open requests of these tasks, longest waiting first.
    pub fn asks_of(&self, tasks: &[Task]) -> Vec<Asked> {
        let mut asks = self.asks();
        asks.retain(|asked| tasks.iter().any(|task| task.id == asked.task));
        asks
    }

    /// Waits on behalf of a parent whose response contains what ended (N3).
    pub async fn await_ends(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Awaited, Error> {
        let own = self.tasks(ids)?;
        // Only the caller's own tasks: the notices of others go to their parents. Registered before the wait
        // reads any state, so that an end in between is held back for this caller.
        let own = own.into_iter().filter(|task| task.origin.parent.session == caller.session);
        let awaiting = self.0.mailboxes.await_ends(own.map(|task| task.id).collect());
        let Waited { tasks, end } = self.wait_or_blocked(ids, need, timeout).await?;
        Ok(Awaited { tasks, end, awaiting })
    }

    /// The same for a caller that certainly receives the response: acknowledged at once.
    pub async fn wait_as_parent(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        let awaited = self.await_ends(caller, ids, need, timeout).await?;
        let ended: Vec<&Task> = awaited.tasks.iter().filter(|task| !task.is_live()).collect();
        self.mail_was_read(awaited.give(&ended).await?).await?;
        let Awaited { tasks, end, .. } = awaited;
        Ok(Waited { tasks, end })
    }

    fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Task>, Error> {
        ids.iter().map(|id| self.task(id)).collect()
    }
}
