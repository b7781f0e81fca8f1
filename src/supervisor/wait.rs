//! Waiting for ends: a waiting caller subscribes to the feed and sleeps; it never polls. A parent that waits
//! gets the ends with its response, and no notice on top (N3); an end that it was not given after all, as
//! after a timeout, is delivered as usual.
//!
//! A wait whose tasks are all blocked on permission requests is over, unless its client shows the requests to its
//! user ([`PermissionDialog`]): then it goes on while one of them may still be answered there.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::mailbox::WaitGuard;
use super::{Asks, Caller, Error, PermissionRequest, Supervisor};
use crate::task::{Phase, Receipt, SessionId, Task, TaskId};

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
pub struct WaitOutcome {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
}

/// The result of a parent's wait, and a guard: while it lives, the ends of these tasks are not delivered as
/// notices. An end that is not given to the caller is delivered like any other afterwards.
pub struct AwaitedEnds {
    /// All tasks that were asked for, in the same order, as they are now.
    pub tasks: Vec<Task>,
    pub end: WaitEnd,
    awaiting: WaitGuard,
}

impl AwaitedEnds {
    /// The caller gets these ends with its response: in its conversation they are recorded without waking
    /// it. For a caller with a mailbox the returned notices are leased; they count as read once it
    /// acknowledges them.
    pub async fn give(&self, ended: &[&Task]) -> Result<Receipt, Error> {
        self.awaiting.give(ended).await
    }
}

/// Whether a client shows the permission requests of its tasks to its user while it waits, and which of them the
/// user has declined to answer; those are left to other people.
#[derive(Clone, Debug, Default)]
pub struct PermissionDialog(Option<watch::Receiver<HashSet<String>>>);

impl PermissionDialog {
    /// With requests that may be declined later.
    pub fn with(declined: watch::Receiver<HashSet<String>>) -> PermissionDialog {
        PermissionDialog(Some(declined))
    }

    /// With all that were declined.
    pub fn without(declined: impl IntoIterator<Item = String>) -> PermissionDialog {
        PermissionDialog(Some(watch::channel(declined.into_iter().collect()).1))
    }

    /// Whether the client's user is, or will be, asked this.
    pub fn shows(&self, ask: &str) -> bool {
        self.0.as_ref().is_some_and(|declined| !declined.borrow().contains(ask))
    }

    /// Never returns when nothing can change any more.
    async fn changed(&mut self) {
        if let Some(declined) = &mut self.0
            && declined.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// What else may end a wait, before enough tasks have ended.
enum WaitKind<'a> {
    ForEnds,
    UntilBlocked,
    /// Until blocked on something that the client's user is not asked.
    Asking {
        parent: &'a SessionId,
        asking: PermissionDialog,
        /// How much longer the wait may be than its timeout while the user is asked.
        extension: Option<Duration>,
    },
}

impl WaitKind<'_> {
    async fn changed(&mut self) {
        match self {
            WaitKind::ForEnds | WaitKind::UntilBlocked => std::future::pending().await,
            WaitKind::Asking { asking, .. } => asking.changed().await,
        }
    }
}

impl Supervisor {
    /// Waits for ends only, whatever permissions are requested meanwhile.
    pub async fn wait(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<WaitOutcome, Error> {
        self.sleep_until_ended(ids, need, timeout, WaitKind::ForEnds).await
    }

    /// The same, but returns at once when all that is left waits for a person's answer.
    pub async fn wait_or_blocked(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<WaitOutcome, Error> {
        self.sleep_until_ended(ids, need, timeout, WaitKind::UntilBlocked).await
    }

    async fn sleep_until_ended(
        &self,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
        mut waiting: WaitKind<'_>,
    ) -> Result<WaitOutcome, Error> {
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
                return Ok(WaitOutcome { tasks, end: WaitEnd::Enough });
            }
            if self.is_blocked(&tasks, &waiting) {
                return Ok(WaitOutcome { tasks, end: WaitEnd::Blocked });
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
                () = waiting.changed() => {}
                () = &mut deadline => match self.extension(&tasks, &mut waiting) {
                    Some(extension) => deadline.set(self.0.core.clock().sleep(extension)),
                    None => return Ok(WaitOutcome { tasks, end: WaitEnd::TimedOut }),
                },
                () = self.0.core.stopping().cancelled() => return Err(Error::Stopping),
            }
        }
    }

    /// Whether none of these continues until a person answers. A task must both look blocked and have an open
    /// request: after an answer it looks blocked until the next check, and after a restart no request is known
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

    fn is_blocked(&self, tasks: &[Task], waiting: &WaitKind<'_>) -> bool {
        match waiting {
            WaitKind::ForEnds => false,
            WaitKind::UntilBlocked => self.are_blocked(tasks),
            WaitKind::Asking { parent, asking, .. } => {
                self.are_blocked(tasks) && !self.is_user_asked(tasks, parent, asking)
            }
        }
    }

    /// Whether the client's user is asked something that these tasks wait for. Only the parent's own tasks count:
    /// the requests of others are not shown to it.
    fn is_user_asked(&self, tasks: &[Task], parent: &SessionId, asking: &PermissionDialog) -> bool {
        let own = |id: &TaskId| {
            tasks.iter().any(|task| task.id == *id && task.origin.parent.session == *parent)
        };
        self.asks().iter().any(|asked| asking.shows(&asked.ask.id) && own(&asked.task))
    }

    /// More time, once, for a wait whose user is being asked when its time is up: people take longer to read a
    /// question than most timeouts allow.
    fn extension(&self, tasks: &[Task], waiting: &mut WaitKind<'_>) -> Option<Duration> {
        match waiting {
            WaitKind::Asking { parent, asking, extension }
                if self.is_user_asked(tasks, parent, asking) =>
            {
                extension.take()
            }
            WaitKind::ForEnds | WaitKind::UntilBlocked | WaitKind::Asking { .. } => None,
        }
    }

    /// The open requests of these tasks, longest waiting first.
    pub fn asks_of(&self, tasks: &[Task]) -> Vec<PermissionRequest> {
        let mut asks = self.asks();
        asks.retain(|asked| tasks.iter().any(|task| task.id == asked.task));
        asks
    }

    /// Waits until enough tasks have ended, or all that is left waits for the answer of a person whom the client
    /// does not ask. Meanwhile the ends are delivered as without a wait.
    pub async fn wait_asking(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
        asking: &PermissionDialog,
    ) -> Result<WaitOutcome, Error> {
        let waiting = WaitKind::Asking {
            parent: &caller.session,
            asking: asking.clone(),
            extension: caller.longest_wait.map(|longest| longest.saturating_sub(timeout)),
        };
        self.sleep_until_ended(ids, need, timeout, waiting).await
    }

    /// Waits on behalf of a parent whose response contains what ended (N3).
    pub async fn await_ends(
        &self,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
        asking: &PermissionDialog,
    ) -> Result<AwaitedEnds, Error> {
        let own = self.tasks(ids)?;
        // Only the caller's own tasks: the notices of others go to their parents. Registered before the wait
        // reads any state, so that an end in between is held back for this caller.
        let own = own.into_iter().filter(|task| task.origin.parent.session == caller.session);
        let awaiting = self.0.mailboxes.await_ends(own.map(|task| task.id).collect());
        let WaitOutcome { tasks, end } =
            self.wait_asking(caller, ids, need, timeout, asking).await?;
        Ok(AwaitedEnds { tasks, end, awaiting })
    }

    fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Task>, Error> {
        ids.iter().map(|id| self.task(id)).collect()
    }
}
