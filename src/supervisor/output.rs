//! Fetching what a task has to show: its state and its result.

use std::time::Duration;

use super::{Caller, Error, Need, Supervisor};
use crate::task::{Task, TaskId};

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub task: Task,
    /// The caller wanted to wait, and did not see the end.
    pub timed_out: bool,
    /// The notices that a caller with a mailbox has in hand with this.
    pub told: Vec<i64>,
}

impl Supervisor {
    /// Answers at once, or when the task has ended if there is a time to wait.
    pub async fn output(
        &self,
        caller: &Caller,
        id: &TaskId,
        wait: Option<Duration>,
    ) -> Result<Output, Error> {
        let (task, timed_out, told) = match wait {
            None => (self.task(id)?, false, Vec::new()),
            Some(timeout) => {
                let ids = std::slice::from_ref(id);
                let awaited = self.await_ends(caller, ids, Need::All, timeout).await?;
                let ended: Vec<&Task> = awaited.tasks.iter().filter(|t| !t.is_live()).collect();
                (self.task(id)?, awaited.timed_out, awaited.give(&ended).await?)
            }
        };
        self.retrieved(&[&task]).await?;
        Ok(Output { task: self.task(id)?, timed_out, told })
    }

    /// Notes that the results of these have been fetched, where that is news.
    pub async fn retrieved(&self, tasks: &[&Task]) -> Result<(), Error> {
        let is_news = |task: &&&Task| {
            !task.is_live()
                && task.result_retrieved_at.is_none_or(|at| Some(at) < task.completed_at)
        };
        let ids: Vec<TaskId> = tasks.iter().filter(is_news).map(|task| task.id.clone()).collect();
        match ids.is_empty() {
            true => Ok(()),
            false => Ok(self.0.store.retrieved(ids, self.0.clock.now()).await?),
        }
    }
}
