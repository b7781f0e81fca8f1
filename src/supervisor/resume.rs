//! Resumes: the next run of an ended task, in the same session with its whole history.
//!
//! The race to prevent is a late abort of the previous run that stops the new one. A resume takes the task's
//! stop lock and sends the owed aborts itself before it starts the run; if one cannot be sent the resume is
//! refused. The host is asked before the lock, the state is checked again under it.

use super::{Error, Supervisor};
use crate::host::Place;
use crate::store::{NewRun, ResumeOutcome};
use crate::task::launch::prompt_text;
use crate::task::lifecycle::{Change, Request};
use crate::task::{Task, TaskId};

impl Supervisor {
    pub async fn resume(&self, id: &TaskId, prompt: String) -> Result<Task, Error> {
        self.resume_once(id, prompt, None).await
    }

    /// With an idempotency key: a caller that lost its connection may repeat the call and resumes once.
    pub async fn resume_once(
        &self,
        id: &TaskId,
        prompt: String,
        key: Option<String>,
    ) -> Result<Task, Error> {
        if !self.0.core.settings().enabled {
            return Err(Error::Disabled);
        }
        let prompt = prompt_text(Some(prompt))?;
        if self.was_begun_with(id, key.as_deref())? {
            return self.task(id);
        }
        let task = self.task(id)?;
        let request = Request::Resume(self.0.core.settings().resumable);
        task.state.request(request.clone())?;
        self.check_resumable(&task).await?;
        // From here on no abort of the previous run can be under way.
        let turn = self.0.ends.stop_turn(&task.id).await;
        // Checked again under the lock: the first call with this key may have held it until now.
        if self.was_begun_with(id, key.as_deref())? {
            return self.task(id);
        }
        // Under the lock, so that they hit the previous run and not the next one.
        for (owed, run) in self.0.core.store().tasks().owed_aborts()? {
            if owed.id == task.id && self.0.ends.abort_in_turn(&turn, &owed, run).await.is_err() {
                return Err(Error::StillStopping(task.short_id.to_string()));
            }
        }
        // Read again: the task may have changed while the host was asked.
        let task = self.task(id)?;
        let change = task.state.request(request)?;
        self.begin_run(&task, change, prompt, key).await
    }

    fn was_begun_with(&self, id: &TaskId, key: Option<&str>) -> Result<bool, Error> {
        Ok(match key {
            Some(key) => self.0.core.store().tasks().was_begun_with(id, key)?,
            None => false,
        })
    }

    /// Whether its host still has everything that another run needs.
    async fn check_resumable(&self, task: &Task) -> Result<(), Error> {
        let (core, host) = (&self.0.core, &task.origin.host);
        if !core.host(host)?.has(Place::from(task)).await? {
            return Err(Error::SessionGone(task.short_id.to_string()));
        }
        self.check_objection(host, &task.origin.directory, &task.order.agent).await?;
        if let Some(why) = core.lacks(task).await? {
            return Err(Error::ModelRefused(why));
        }
        self.check_model(host, task.order.model.clone(), &core.handed_for(task)).await?;
        Ok(())
    }

    async fn begin_run(
        &self,
        task: &Task,
        change: Change,
        prompt: String,
        key: Option<String>,
    ) -> Result<Task, Error> {
        let (core, clock) = (&self.0.core, self.0.core.clock());
        let run = NewRun { message_id: clock.message_id(), prompt, at: clock.now(), key };
        let limits = core.limits();
        let most = limits.queued_per_parent;
        let effects = change.effects.clone();
        // Detached: a caller that hangs up during the write must not keep the prompter from being woken.
        let resuming = core.store().tasks().resume(task, change, run, limits);
        let ends = self.0.ends.clone();
        let resumed = core.spawn(async move {
            let resumed = resuming.await?;
            if let ResumeOutcome::Resumed(task) = &resumed {
                ends.carry_out(task, effects).await?;
            }
            Ok::<_, Error>(resumed)
        });
        match resumed.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))? {
            ResumeOutcome::Resumed(task) => {
                tracing::info!(task = %task.id, run = task.run, "task resumed");
                Ok(*task)
            }
            ResumeOutcome::Stale => Err(Error::Contended),
            ResumeOutcome::QueueFull => Err(Error::QueueFull(most)),
        }
    }
}
