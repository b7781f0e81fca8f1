//! Resuming: the next run of an ended task, in the same session with its whole history.

use super::{Error, Supervisor};
use crate::host::Place;
use crate::store::{NewRun, Resumed};
use crate::task::launch::prompt_text;
use crate::task::lifecycle::Request;
use crate::task::{Task, TaskId};

impl Supervisor {
    pub async fn resume(&self, id: &TaskId, prompt: String) -> Result<Task, Error> {
        self.resume_once(id, prompt, None).await
    }

    /// The same key resumes once: a caller that lost its connection may ask again.
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
        if let Some(key) = &key
            && self.0.core.store().tasks().was_begun_with(id, key)?
        {
            return self.task(id);
        }
        let task = self.task(id)?;
        let request = Request::Resume(self.0.core.settings().resumable);
        task.state.request(request.clone())?;
        if !self.0.core.host(&task.origin.host)?.has(Place::from(&task)).await? {
            return Err(Error::SessionGone(task.short_id.to_string()));
        }
        self.check_objection(&task.origin.host, &task.origin.directory, &task.order.agent).await?;
        if let Some(why) = self.0.core.lacks(&task).await? {
            return Err(Error::ModelRefused(why));
        }
        let handed = self.0.core.handed_for(&task);
        self.check_model(&task.origin.host, task.order.model.clone(), &handed).await?;
        // What was stopped before must not stop what begins now.
        let turn = self.0.ends.stop_turn(&task.id).await;
        // The first call with this key may have been on its way until now.
        if let Some(key) = &key
            && self.0.core.store().tasks().was_begun_with(id, key)?
        {
            return self.task(id);
        }
        for (owed, run) in self.0.core.store().tasks().owed_aborts()? {
            if owed.id == task.id && !self.0.ends.abort_in_turn(&turn, &owed, run).await {
                return Err(Error::StillStopping(task.short_id.to_string()));
            }
        }
        // Somebody may have been faster while the host was asked.
        let task = self.task(id)?;
        let change = task.state.request(request)?;
        let run = NewRun {
            message_id: self.0.core.clock().message_id(),
            prompt,
            at: self.0.core.clock().now(),
            key,
        };
        let limits = self.0.core.limits();
        let most = limits.queued_per_parent;
        // By itself: a caller that hangs up during the write must not leave the prompt unsent.
        let (resuming, supervisor) =
            (self.0.core.store().tasks().resume(&task, change, run, limits), self.clone());
        let resumed = self.0.core.spawn(async move {
            let resumed = resuming.await;
            // Also when it is queued: there may be room, and others that wait were before it.
            supervisor.0.bells.prompts.ring();
            resumed
        });
        let resumed = resumed.await.unwrap_or(Err(crate::store::Error::Panicked))?;
        let task = match resumed {
            Resumed::Yes(task) => *task,
            Resumed::Stale => return Err(Error::Contended),
            Resumed::QueueFull => return Err(Error::QueueFull(most)),
        };
        tracing::info!(task = %task.id, run = task.run, "resumed");
        Ok(task)
    }
}
