//! How a call waits: held by its caller, who sleeps until the answer comes, or deferred, so that its caller does
//! something else and comes back for the answer (`calls.rs`).
//!
//! A deferred call says nothing before its caller comes: the text is written then. So an end that was told by other
//! means meanwhile is not told again, and one that was not collected stays unread and is told by the next answer.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::supervisor::{
    AwaitedEnds, Caller, Error, Need, NewCall, PermissionDialog, Supervisor, WaitEnd,
};
use crate::task::{TaskId, Timestamp};

/// For a wait without a limit. Timers take it, unlike the longest duration there is.
pub(super) const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How one call waits.
#[derive(Default)]
pub(super) struct Waiter<'a> {
    pub(super) asking: PermissionDialog,
    pub(super) deferral: Option<&'a Deferral>,
}

/// A deferred call, from both ends: its tool reports how far it is, its client says when it comes for the answer.
pub(super) struct Deferral {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) key: String,
    pub(super) created_at: Timestamp,
    pub(super) request: DeferredRequest,
    /// The tasks it waits for, once it is stored.
    tasks: OnceLock<Vec<TaskId>>,
    stage: watch::Sender<Stage>,
    collected: watch::Sender<bool>,
}

/// What is stored of a call, beside its columns. Credentials are not: the tasks were launched before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DeferredRequest {
    pub(super) caller: Caller,
    pub(super) arguments: Value,
    /// The client shows permission requests to its user.
    pub(super) asks: bool,
    /// The tasks it waits for: what the arguments stood for when the call was made.
    pub(super) tasks: Vec<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing is stored yet: it may be answered like any other call.
    Beginning,
    Waiting,
    /// What it waited for is there; the client has to come for it.
    Over,
}

impl Waiter<'_> {
    /// Whether its caller is not held up by it, so that it may take as long as it takes.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferral.is_some()
    }

    /// What a call that went on after a restart waits for.
    pub(super) fn tasks(&self) -> Option<&[TaskId]> {
        self.deferral?.tasks()
    }

    pub(super) async fn await_ends(
        &self,
        supervisor: &Supervisor,
        caller: &Caller,
        ids: &[TaskId],
        need: Need,
        timeout: Duration,
    ) -> Result<AwaitedEnds, Error> {
        let Some(deferral) = self.deferral else {
            return supervisor.await_ends(caller, ids, need, timeout, &self.asking).await;
        };
        let look = || supervisor.await_ends(caller, ids, need, Duration::ZERO, &self.asking);
        if deferral.tasks().is_none() {
            let awaited = look().await?;
            // Over already: there is nothing to come back for.
            if awaited.end != WaitEnd::TimedOut {
                return Ok(awaited);
            }
            // Releases the ends that the look holds back: other answers may tell of them from here on.
            drop(awaited);
            deferral.store(supervisor, caller, ids).await?;
        }
        loop {
            deferral.stage.send_replace(Stage::Waiting);
            // Counted from the call, also after a restart.
            let passed = supervisor.clock().now().since(deferral.created_at);
            let left = timeout.saturating_sub(passed);
            // No waiter is registered for these ends: other answers may tell of them.
            let waited = supervisor.wait_asking(caller, ids, need, left, &self.asking).await?;
            deferral.stage.send_replace(Stage::Over);
            // What is told is read after the client has come, not when the wait ended: days may lie in
            // between, in which an end was told by other means or the task was resumed.
            deferral.until_collected(supervisor).await?;
            let awaited = look().await?;
            // Otherwise resumed, or answered by a person, before the client came: there is more to wait for.
            if waited.end == WaitEnd::TimedOut || awaited.end != WaitEnd::TimedOut {
                return Ok(awaited);
            }
        }
    }
}

impl Deferral {
    pub(super) fn new(
        id: String,
        tool: String,
        key: String,
        created_at: Timestamp,
        request: DeferredRequest,
    ) -> Deferral {
        Deferral {
            id,
            tool,
            key,
            created_at,
            request,
            tasks: OnceLock::new(),
            stage: watch::Sender::new(Stage::Beginning),
            collected: watch::Sender::new(false),
        }
    }

    /// Of a call that is stored already.
    pub(super) fn stored(self) -> Deferral {
        let _ = self.tasks.set(self.request.tasks.clone());
        self.stage.send_replace(Stage::Waiting);
        self
    }

    /// `None` before it is stored.
    pub(super) fn tasks(&self) -> Option<&[TaskId]> {
        self.tasks.get().map(Vec::as_slice)
    }

    pub(super) fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// The client has come for the answer.
    pub(super) fn collect(&self) {
        self.collected.send_replace(true);
    }

    async fn store(
        &self,
        supervisor: &Supervisor,
        caller: &Caller,
        ids: &[TaskId],
    ) -> Result<(), Error> {
        let request = DeferredRequest { tasks: ids.to_vec(), ..self.request.clone() };
        let new = NewCall {
            id: self.id.clone(),
            parent: caller.session.clone(),
            tool: self.tool.clone(),
            key: self.key.clone(),
            request: serde_json::to_string(&request).expect("our own types are JSON"),
            created_at: self.created_at,
        };
        supervisor.begin_call(new).await?;
        // After the row is durable: `tasks` tells that there is one to write the outcome to.
        let _ = self.tasks.set(ids.to_vec());
        Ok(())
    }

    /// Consumes the client's visit: if there is nothing to give after all, it has to come again.
    async fn until_collected(&self, supervisor: &Supervisor) -> Result<(), Error> {
        let mut collected = self.collected.subscribe();
        let stopping = supervisor.stopping();
        tokio::select! {
            // `wait_for` fails only when the sender is dropped, and `self` holds it.
            _ = collected.wait_for(|collected| *collected) => {}
            () = stopping.cancelled() => return Err(Error::Stopping),
        }
        self.collected.send_replace(false);
        Ok(())
    }
}
