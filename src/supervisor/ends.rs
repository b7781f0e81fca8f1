//! The one way to an end: written with what is owed for it in one transaction, then carried out. Whoever
//! finds out that a run is over (the reconciler, the prompter, a cancel, a recovery) comes here.

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

/// How often a cancel is tried against a task that keeps moving.
const TRIES: usize = 8;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Ends {
    core: Core,
    /// By task: held while a session is being stopped, and while a run begins in it.
    stops: Turns,
    wakes: Wakes,
}

/// Who has something to do after an end.
#[derive(Clone)]
pub(super) struct Wakes {
    /// A parent is owed a notice.
    pub(super) notices: Bell,
    /// A slot is free.
    pub(super) prompts: Bell,
    /// A transcript is owed to be kept.
    pub(super) transcripts: Bell,
}

/// What else is written with an end.
#[derive(Default)]
pub(super) struct Closing {
    pub(super) open_todos: Vec<String>,
    pub(super) progress: Option<Progress>,
    /// Set when the parent knows already.
    pub(super) hushed: bool,
}

impl Ends {
    pub(super) fn new(core: Core, wakes: Wakes) -> Ends {
        Ends { core, stops: Turns::default(), wakes }
    }

    /// Writes an end that the lifecycle allows. `false` when the news was stale.
    pub(super) async fn conclude(
        &self,
        task: &Task,
        change: Option<Change>,
        closing: Closing,
    ) -> bool {
        let Some(change) = change else { return false };
        match self.apply(task, change, closing).await {
            Ok(ended) => ended.is_some(),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(task = %task.id, error, "cannot write an end; will look again");
                false
            }
        }
    }

    /// Writes an end with what is owed for it, and carries that out. `None` when the task moved on since it
    /// was read.
    async fn apply(
        &self,
        task: &Task,
        change: Change,
        closing: Closing,
    ) -> Result<Option<Task>, Error> {
        let effects = change.effects.clone();
        let end = self.end_now(task, closing);
        let Some(ended) = self.core.store().tasks().end(task, change, end).await? else {
            return Ok(None);
        };
        tracing::info!(task = %ended.id, status = ended.status().name(), "ended");
        let mut failed = None;
        for effect in effects {
            match effect {
                Effect::CancelDescendants => failed = self.cancel_descendants(&ended).await.err(),
                // What is owed stays owed until both are done; `recover` goes on with it.
                Effect::AbortSession if failed.is_some() => {}
                Effect::AbortSession => self.abort(&ended),
                Effect::NotifyParent(_) => self.wake(),
                Effect::SendPrompt => self.wakes.prompts.ring(),
            }
        }
        failed.map_or(Ok(Some(ended)), Err)
    }

    /// What is written beside the state, when a run ends or stalls now.
    pub(super) fn end_now(&self, task: &Task, closing: Closing) -> End {
        let kept = self.core.host(&task.origin.host).is_ok_and(|host| host.keeps_transcripts());
        End {
            at: self.core.clock().now(),
            message_id: self.core.clock().message_id(),
            wake: !closing.hushed,
            open_todos: closing.open_todos,
            progress: closing.progress,
            transcript: !kept,
        }
    }

    fn wake(&self) {
        self.wakes.notices.ring();
        self.wakes.prompts.ring();
        self.wakes.transcripts.ring();
    }

    /// A panic in one task's work fails that task only.
    pub(super) async fn blame(&self, task: &Task, doing: &str) {
        tracing::error!(task = %task.id, "panicked while {doing}");
        let error = format!("internal error while {doing}; see the daemon's log");
        let report = Report::Failed { error, partial: None };
        self.conclude(task, task.state.stop(report), Closing::default()).await;
    }

    /// `caller` is `None` when it follows from something else, and nobody is to be woken for it.
    pub(super) async fn cancel(
        &self,
        task: Task,
        caller: Option<&Caller>,
        why: Option<&str>,
    ) -> Result<Task, Error> {
        let mut task = task;
        for _ in 0..TRIES {
            let change = task.state.request(Request::Cancel { why: why.map(str::to_owned) })?;
            // The caller cancelled it and knows; a cancelled parent has no use for being woken (N3).
            let hushed = caller.is_none_or(|caller| caller.session == task.origin.parent.session);
            let closing = Closing { hushed, ..Closing::default() };
            if let Some(cancelled) = self.apply(&task, change, closing).await? {
                return Ok(cancelled);
            }
            task = self.core.task(&task.id)?;
        }
        Err(Error::Contended)
    }

    pub(super) async fn cancel_descendants(&self, task: &Task) -> Result<(), Error> {
        for child in self.core.store().tasks().live(Some(&task.id))? {
            match Box::pin(self.cancel(child, None, None)).await {
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cancels the live tasks of a parent that no longer exists and clears its list (T16).
    pub(super) async fn parent_is_gone(&self, parent: &TaskId) -> Result<(), Error> {
        let mut failed = None;
        for task in self.core.store().tasks().live(Some(parent))? {
            match self.cancel(task, None, Some("Parent session deleted")).await {
                // Or it ended by itself in the meantime.
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                // One that cannot be cancelled now does not keep the others running.
                Err(error) => failed = Some(error),
            }
        }
        self.core.store().tasks().clear(parent, self.core.clock().now()).await?;
        failed.map_or(Ok(()), Err)
    }

    /// Aborts without waiting for the abort (T8). It is tried until it succeeds; that it is owed is
    /// on disk, for the case that we die before.
    pub(super) fn abort(&self, task: &Task) {
        let (ends, task) = (self.clone(), task.clone());
        self.core.spawn(async move {
            let mut tries = 0;
            while !ends.abort_now(&task, task.run).await {
                tokio::select! {
                    () = tokio::time::sleep(BETWEEN_ABORTS.pause(tries)) => {}
                    () = ends.core.stopping().cancelled() => return,
                }
                tries += 1;
            }
        });
    }

    /// A cancel may have overtaken a prompt: its abort came before there was anything to abort.
    pub(super) fn abort_if_over(&self, task: &Task) {
        let now = self.core.store().tasks().get(&task.id);
        if let Ok(Some(now)) = now
            && now.run == task.run
            && !now.is_live()
        {
            self.abort(task);
        }
    }

    /// `false`: the host could not be reached.
    pub(super) async fn abort_now(&self, task: &Task, run: u32) -> bool {
        // A resume waits for it: one that is slow to arrive would stop the next run.
        let turn = self.stop_turn(&task.id).await;
        self.abort_in_turn(&turn, task, run).await
    }

    /// Held while a session is being stopped, and while a run begins in it.
    pub(super) async fn stop_turn(&self, id: &TaskId) -> Turn {
        self.stops.take(id.as_str()).await
    }

    /// For whoever holds that turn.
    pub(super) async fn abort_in_turn(&self, _: &Turn, task: &Task, run: u32) -> bool {
        // A later run has taken the session over; there is nothing left of this one to stop.
        let current = self.core.store().tasks().get(&task.id).ok().flatten();
        let superseded = current.is_none_or(|now| now.run != run || now.is_live());
        let aborted = match self.core.host(&task.origin.host) {
            _ if superseded => Ok(()),
            Ok(host) => host.abort(Place::from(task)).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match aborted {
            // A host that is no longer configured has nobody who could be told.
            Ok(())
            | Err(Error::Host(host::Error::NoSuchSession(_)) | Error::UnknownHost { .. }) => {
                self.core.store().tasks().abort_sent(&task.id, run).await.is_ok()
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(task = %task.id, error, "cannot abort its session yet");
                false
            }
        }
    }
}
