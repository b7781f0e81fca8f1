//! The single path by which a run ends: the end and everything owed for it (notice, abort, transcript) are
//! written in one transaction, then carried out. The reconciler, the prompter, cancels and recovery all end
//! runs here.
//!
//! Writes are optimistic: an end that was decided on a stale revision is dropped. Aborts are retried with
//! back-off, in this process and by `recover` after a crash. A lock per task (`stops`) keeps an abort and a
//! resume of the same session apart: a late abort would stop the next run.

use std::time::Duration;

use super::core::Core;
use super::turns::{Bell, Turn, Turns};
use super::{Caller, Error};
use crate::backoff::Backoff;
use crate::host::{self, Place};
use crate::store::End;
use crate::task::lifecycle::{Change, Effect, Refused, Report, Request};
use crate::task::{Progress, Task, TaskId};

const BETWEEN_ABORTS: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// Attempts of a cancel's optimistic write against a task that keeps changing.
const TRIES: usize = 8;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Ends {
    core: Core,
    /// Locks by task: held while a session is being aborted, and while a run starts in it. Besides the locks
    /// of launches, the only ones that are held while a host is called.
    stops: Turns,
    wakes: Wakes,
}

/// The workers that have something to do after an end.
#[derive(Clone)]
pub(super) struct Wakes {
    /// A parent is owed a notice.
    pub(super) notices: Bell,
    /// A slot is free.
    pub(super) prompts: Bell,
    /// A transcript is owed to be kept.
    pub(super) transcripts: Bell,
    /// A notification for people is owed.
    pub(super) alerts: Bell,
}

/// What is written together with an end.
#[derive(Default)]
pub(super) struct EndDetails {
    pub(super) open_todos: Vec<String>,
    pub(super) progress: Option<Progress>,
    /// Set when the parent knows already: its notice is recorded without waking it.
    pub(super) hushed: bool,
    /// The idempotency key of the call that ends it.
    pub(super) key: Option<String>,
}

/// Who cancels a task, and why, where a caller does.
#[derive(Clone, Copy, Default)]
pub(super) struct Cancellation<'a> {
    /// `None` when it follows from something else (the parent was cancelled or deleted); then no parent is
    /// woken for it.
    pub(super) caller: Option<&'a Caller>,
    pub(super) why: Option<&'a str>,
    pub(super) key: Option<&'a str>,
}

impl Ends {
    pub(super) fn new(core: Core, wakes: Wakes) -> Ends {
        Ends { core, stops: Turns::default(), wakes }
    }

    /// Writes an end that the lifecycle allows. `false` when the report was stale, or could not be written;
    /// the reconciler finds the same end again.
    pub(super) async fn conclude(
        &self,
        task: &Task,
        change: Option<Change>,
        closing: EndDetails,
    ) -> bool {
        let Some(change) = change else { return false };
        match self.apply(task, change, closing).await {
            Ok(ended) => ended.is_some(),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    task = %task.id,
                    error,
                    "end of run not written; retrying at the next check"
                );
                false
            }
        }
    }

    /// Writes an end with what is owed for it, and carries that out. `None` when the task changed since it
    /// was read (optimistic concurrency).
    async fn apply(
        &self,
        task: &Task,
        change: Change,
        closing: EndDetails,
    ) -> Result<Option<Task>, Error> {
        let effects = change.effects.clone();
        let end = self.end_now(task, closing);
        let Some(ended) = self.core.store().tasks().end(task, change, end).await? else {
            return Ok(None);
        };
        tracing::info!(task = %ended.id, status = ended.status().name(), "task ended");
        self.carry_out(&ended, effects).await?;
        Ok(Some(ended))
    }

    /// Carries out what a change asks for, once it is committed: of an end, and of a resume.
    pub(super) async fn carry_out(&self, task: &Task, effects: Vec<Effect>) -> Result<(), Error> {
        let mut failed = None;
        for effect in effects {
            match effect {
                Effect::CancelDescendants => failed = self.cancel_descendants(task).await.err(),
                // The abort is the marker for `recover`, which cancels descendants before it sends one. Sent
                // now, it would be recorded as done and the descendants be forgotten.
                Effect::AbortSession if failed.is_some() => {}
                Effect::AbortSession => self.abort(task),
                Effect::NotifyParent(_) => self.wake(),
                // Also of one that is queued: a slot may have become free since it was written.
                Effect::SendPrompt => self.wakes.prompts.ring(),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What is written beside the state when a run ends or stalls now. The message id of the notice is
    /// minted here, once: it is the idempotency key of every delivery attempt.
    pub(super) fn end_now(&self, task: &Task, closing: EndDetails) -> End {
        let kept = self.core.host(&task.origin.host).is_ok_and(|host| host.keeps_transcripts());
        End {
            at: self.core.clock().now(),
            message_id: self.core.clock().message_id(),
            wake: !closing.hushed,
            open_todos: closing.open_todos,
            progress: closing.progress,
            transcript: !kept,
            key: closing.key,
        }
    }

    fn wake(&self) {
        self.wakes.notices.ring();
        self.wakes.prompts.ring();
        self.wakes.transcripts.ring();
        self.wakes.alerts.ring();
    }

    /// Turns a panic in one task's work into a failure of that task alone.
    pub(super) async fn fail_after_panic(&self, task: &Task, doing: &str) {
        tracing::error!(task = %task.id, "panicked while {doing}; task failed");
        let error = format!("internal error while {doing}; see the daemon's log");
        let report = Report::Failed { error, partial: None };
        self.conclude(task, task.state.stop(report), EndDetails::default()).await;
    }

    pub(super) async fn cancel(&self, task: Task, by: Cancellation<'_>) -> Result<Task, Error> {
        let Cancellation { caller, why, key } = by;
        let mut task = task;
        for _ in 0..TRIES {
            let change = task.state.request(Request::Cancel { why: why.map(str::to_owned) })?;
            // The caller cancelled it and knows; a cancelled parent has no use for being woken (N3).
            let hushed = caller.is_none_or(|caller| caller.session == task.origin.parent.session);
            let key = key.map(str::to_owned);
            let closing = EndDetails { hushed, key, ..EndDetails::default() };
            if let Some(cancelled) = self.apply(&task, change, closing).await? {
                return Ok(cancelled);
            }
            task = self.core.task(&task.id)?;
        }
        Err(Error::Contended)
    }

    pub(super) async fn cancel_descendants(&self, task: &Task) -> Result<(), Error> {
        for child in self.core.store().tasks().live(Some(&task.id))? {
            // Boxed because it is recursive: a cancel takes its own descendants along.
            match Box::pin(self.cancel(child, Cancellation::default())).await {
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cancels the live tasks of a parent that no longer exists and clears its list (T16).
    pub(super) async fn parent_is_gone(&self, parent: &TaskId) -> Result<(), Error> {
        let mut failed = None;
        let why = Cancellation { why: Some("Parent session deleted"), ..Cancellation::default() };
        for task in self.core.store().tasks().live(Some(parent))? {
            match self.cancel(task, why).await {
                // Or it ended by itself in the meantime.
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                // One that cannot be cancelled now does not keep the others running.
                Err(error) => failed = Some(error),
            }
        }
        self.core.store().tasks().clear(parent, None, self.core.clock().now()).await?;
        failed.map_or(Ok(()), Err)
    }

    /// Aborts the session in the background (T8), with back-off until it succeeds. That it is owed is on
    /// disk, so `recover` continues after a crash.
    pub(super) fn abort(&self, task: &Task) {
        let (ends, task) = (self.clone(), task.clone());
        self.core.spawn(async move {
            let mut attempt = 1;
            while let Err(error) = ends.abort_now(&task, task.run).await {
                let delay = BETWEEN_ABORTS.pause(attempt - 1);
                log_failed_abort(&task, &error, attempt, delay);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = ends.core.stopping().cancelled() => return,
                }
                attempt += 1;
            }
        });
    }

    /// Called after every prompt. Race: a cancel may have overtaken the prompt, and its abort came before
    /// there was anything to abort.
    pub(super) fn abort_if_over(&self, task: &Task) {
        let now = self.core.store().tasks().get(&task.id);
        if let Ok(Some(now)) = now
            && now.run == task.run
            && !now.is_live()
        {
            self.abort(task);
        }
    }

    /// Sends one abort. One that fails has to be retried.
    pub(super) async fn abort_now(&self, task: &Task, run: u32) -> Result<(), Error> {
        // A resume waits for this lock: an abort that is slow to arrive would stop the next run.
        let turn = self.stop_turn(&task.id).await;
        self.abort_in_turn(&turn, task, run).await
    }

    /// The lock that is held while a session is being aborted, and while a run starts in it.
    pub(super) async fn stop_turn(&self, id: &TaskId) -> Turn {
        self.stops.take(id.as_str()).await
    }

    /// The same for a caller that holds the lock already; the parameter proves it.
    pub(super) async fn abort_in_turn(&self, _: &Turn, task: &Task, run: u32) -> Result<(), Error> {
        // Checked under the lock: once a later run has taken over the session, an abort would hit that one.
        let current = self.core.store().tasks().get(&task.id).ok().flatten();
        let superseded = current.is_none_or(|now| now.run != run || now.is_live());
        let aborted = match self.core.host(&task.origin.host) {
            _ if superseded => Ok(()),
            Ok(host) => host.abort(Place::from(task)).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match aborted {
            // Nothing is left to abort: the session is deleted, or its host is not configured any more.
            Ok(())
            | Err(Error::Host(host::Error::NoSuchSession(_)) | Error::UnknownHost { .. }) => {
                Ok(self.core.store().tasks().abort_sent(&task.id, run).await?)
            }
            Err(error) => Err(error),
        }
    }
}

/// A warning at the first attempt only: the attempts go on for as long as the host is away.
pub(super) fn log_failed_abort(task: &Task, error: &Error, attempt: u32, delay: Duration) {
    let error = error as &dyn std::error::Error;
    if attempt == 1 {
        tracing::warn!(
            task = %task.id,
            attempt,
            ?delay,
            error,
            "session abort failed; retrying, and the agent may still be running"
        );
    } else {
        tracing::debug!(task = %task.id, attempt, ?delay, error, "session abort failed; retrying");
    }
}
