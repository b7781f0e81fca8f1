//! Fetching a task's state and result, optionally waiting for its end. A caller that waits gets the end as
//! its response, so no notice wakes it on top (N3).

use std::time::Duration;

use super::{Caller, Error, Need, PermissionDialog, PermissionRequest, Supervisor, WaitEnd};
use crate::task::{Receipt, Task, TaskId};

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub task: Task,
    /// How the wait went; [`WaitEnd::Enough`] when the caller did not wait.
    pub end: WaitEnd,
    /// What the task waits for a person to answer.
    pub asks: Vec<PermissionRequest>,
    /// The notices that a caller with a mailbox has in hand with this.
    pub receipt: Receipt,
}

impl Supervisor {
    /// Returns at once, or waits up to `wait` for the task to end.
    pub async fn output(
        &self,
        caller: &Caller,
        id: &TaskId,
        wait: Option<Duration>,
    ) -> Result<Output, Error> {
        let (task, end, receipt) = match wait {
            None => (self.task(id)?, WaitEnd::Enough, Receipt::default()),
            Some(timeout) => {
                let ids = std::slice::from_ref(id);
                let asking = PermissionDialog::default();
                let awaited = self.await_ends(caller, ids, Need::All, timeout, &asking).await?;
                let ended: Vec<&Task> = awaited.tasks.iter().filter(|t| !t.is_live()).collect();
                (self.task(id)?, awaited.end, awaited.give(&ended).await?)
            }
        };
        // Read again afterwards: the task shows when its result was fetched.
        self.retrieved(&[&task]).await?;
        let task = self.task(id)?;
        let asks = self.asks_of(std::slice::from_ref(&task));
        Ok(Output { task, end, asks, receipt })
    }

    /// Records that these results have been fetched, unless that is recorded already.
    pub async fn retrieved(&self, tasks: &[&Task]) -> Result<(), Error> {
        let is_news = |task: &&&Task| {
            !task.is_live()
                && task.result_retrieved_at.is_none_or(|at| Some(at) < task.completed_at)
        };
        let ids: Vec<TaskId> = tasks.iter().filter(is_news).map(|task| task.id.clone()).collect();
        match ids.is_empty() {
            true => Ok(()),
            false => {
                Ok(self.0.core.store().tasks().retrieved(ids, self.0.core.clock().now()).await?)
            }
        }
    }
}
