//! Steering (T21): a message to a task. A live one gets it before its next step, a queued one with its first; to
//! a completed one it is a resume.
//!
//! Acknowledged means durable: the message is a row before the caller is told, and the prompter sends it from
//! there. The race with the end of the run is decided in the store: either the row comes first and the run goes
//! on, or the end does and the message becomes a resume.

use super::{Error, Supervisor};
use crate::store::{AddOutcome, NewFurtherPrompt};
use crate::task::launch::message_text;
use crate::task::lifecycle::Refused;
use crate::task::{Slot, Task, TaskId};

/// How often a task may end or begin again under a message before its caller is told to try later.
const TRIES: usize = 8;

/// How many messages may wait for a task to take them in (T19).
const MOST_OWED: usize = 100;

/// A message that is on disk: its task, and how it is delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct SendOutcome {
    pub task: Task,
    pub delivery: Delivery,
}

/// How the agent gets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Before its next step.
    Steered,
    /// With its first step, once the task has a slot.
    Queued,
    /// As the prompt of another run.
    Resumed,
}

impl Supervisor {
    /// Says something to a task. With an idempotency key a repeated call says it once.
    pub async fn send(
        &self,
        id: &TaskId,
        message: String,
        key: Option<String>,
    ) -> Result<SendOutcome, Error> {
        if !self.0.core.settings().enabled {
            return Err(Error::Disabled);
        }
        let message = message_text(message)?;
        for _ in 0..TRIES {
            let task = self.task(id)?;
            // Before the state is looked at: a repeated call must neither resume a task that has ended since
            // nor say it again to one that the first call resumed.
            if let Some(key) = &key {
                let store = self.0.core.store();
                if store.further().was_added_with(id, key)? {
                    return Ok(steered(task));
                }
                if store.tasks().was_begun_with(id, key)? {
                    return Ok(SendOutcome { task, delivery: Delivery::Resumed });
                }
            }
            if task.is_live() {
                // `task` is what was read; the write decides anew. Ended in between, the message is a
                // resume, and the next round finds the task so.
                if self.steer(&task, &message, key.clone()).await? {
                    return Ok(steered(self.task(id)?));
                }
                continue;
            }
            // Under the same key: a repeat finds the run that this one begins, by `was_begun_with` above.
            match self.resume_once(id, message.clone(), key.clone()).await {
                Ok(task) => return Ok(SendOutcome { task, delivery: Delivery::Resumed }),
                // Another caller resumed it just now, so it takes messages again.
                Err(Error::Refused(Refused::BeingResumed | Refused::StillRunning)) => {}
                Err(Error::Refused(Refused::NotCompleted)) => {
                    return Err(Error::TakesNoMessages {
                        task: task.short_id.to_string(),
                        status: task.status().name(),
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Contended)
    }

    /// Writes a message for a live task. `false`: it has ended meanwhile.
    async fn steer(&self, task: &Task, text: &str, key: Option<String>) -> Result<bool, Error> {
        let core = &self.0.core;
        if core.host(&task.origin.host)?.steering().is_none() {
            return Err(Error::CannotSteer {
                task: task.short_id.to_string(),
                host: task.origin.host.clone(),
            });
        }
        let new = NewFurtherPrompt { text: text.to_owned(), at: core.clock().now(), key };
        // Detached: a caller that hangs up during the write must not keep the prompter from being woken.
        let adding = core.store().further().add(&task.id, new, MOST_OWED);
        let prompts = self.0.bells.prompts.clone();
        let added = core.spawn(async move {
            let added = adding.await;
            // Whatever came of the write: to look for owed prompts in vain is harmless, and not to look
            // would leave a message that was written to the next bell.
            prompts.ring();
            added
        });
        match added.await.unwrap_or(Err(crate::store::Error::Panicked))? {
            AddOutcome::Added => Ok(true),
            AddOutcome::Over => Ok(false),
            AddOutcome::Full => Err(Error::TooManyMessages(MOST_OWED)),
        }
    }
}

fn steered(task: Task) -> SendOutcome {
    let delivery = match task.slot {
        Slot::Queued => Delivery::Queued,
        Slot::Active | Slot::Parked | Slot::None => Delivery::Steered,
    };
    SendOutcome { task, delivery }
}
