//! Waiting for ends. A waiting caller sleeps on the feed; it never polls.

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
    /// Every task that is left waits for the answer of a person (T15), so only that would be waited for.
    Blocked,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
}

/// What a parent has waited for. While this lives, the ends of its tasks are nobody else's news; an
/// end that is not given to the caller is told like any other afterwards.
pub struct Awaited {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
    awaiting: Awaiting,
}

impl Awaited {
    /// The caller is given these ends with its answer: in its conversation they are recorded
    /// without waking it. A caller with a mailbox has the notices in hand that are named here; they
    /// count as read once it says so.
    pub async fn give(&self, ended: &[&Task]) -> Result<Receipt, Error> {
        self.awaiting.give(ended).await
    }
}

impl Supervisor {
    /// Waits for ends only, whatever is asked meanwhile.
    pub async fn wait(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Waited, Error> {
        self.sleep_until_ended(ids, need, timeout, |_| false).await
    }

    /// The same, but returns at once when all that is left waits for the answer of a person.
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
                    Err(RecvError::Lagged(_)) => tasks = self.tasks(ids)?,
                    Err(RecvError::Closed) => return Err(Error::Stopping),
                },
                Ok(()) = asks.changed() => {}
                () = &mut deadline => return Ok(Waited { tasks, end: WaitEnd::TimedOut }),
                () = self.0.core.stopping().cancelled() => return Err(Error::Stopping),
            }
        }
    }

    /// Whether nothing goes on with these until somebody answers. A task must both look blocked and
    /// have a request on record: after an answer it looks blocked until the next look, and after a
    /// restart nothing is on record until the first one. What the policy answers by itself needs nobody.
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

    /// What these tasks ask, longest first.
    pub fn asks_of(&self, tasks: &[Task]) -> Vec<Asked> {
        let mut asks = self.asks();
        asks.retain(|asked| tasks.iter().any(|task| task.id == asked.task));
        asks
    }

    /// Waits on behalf of a parent that is answered with what ended (N3).
    pub async fn await_ends(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<Awaited, Error> {
        let own = self.tasks(ids)?;
        let own = own.into_iter().filter(|task| task.origin.parent.session == caller.session);
        let awaiting = self.0.mailboxes.await_ends(own.map(|task| task.id).collect());
        let Waited { tasks, end } = self.wait_or_blocked(ids, need, timeout).await?;
        Ok(Awaited { tasks, end, awaiting })
    }

    /// The same for a caller that surely gets all of it.
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
