//! Fetching what a task has to show: its state and its result.

use std::time::Duration;

use super::{Caller, Error, Need, Supervisor};
use crate::task::{Task, TaskId};

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub task: Task,
    /// The caller wanted to wait, and did not see the end.
    pub timed_out: bool,
}

impl Supervisor {
    /// Answers at once, or when the task has ended if there is a time to wait.
    pub async fn output(
        &self,
        caller: &Caller,
        id: &TaskId,
        wait: Option<Duration>,
    ) -> Result<Output, Error> {
        let (task, timed_out) = match wait {
            None => (self.task(id)?, false),
            Some(timeout) => {
                let ids = std::slice::from_ref(id);
                let mut waited = self.wait_as_parent(caller, ids, Need::All, timeout).await?;
                (waited.tasks.remove(0), waited.timed_out)
            }
        };
        if task.is_live() || task.result_retrieved_at.is_some() {
            return Ok(Output { task, timed_out });
        }
        self.0.store.retrieved(id, self.0.clock.now()).await?;
        Ok(Output { task: self.task(id)?, timed_out })
    }
}
