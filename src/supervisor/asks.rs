//! Permissions and questions of children that wait for somebody (T15): listed and answered.

use super::{Error, Supervisor};
use crate::host::{Answer, Ask, Host};
use crate::task::{Task, TaskId, Timestamp};

/// A child that waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub ask: Ask,
    pub task: TaskId,
    pub since: Timestamp,
}

impl Supervisor {
    /// What waits, longest first.
    pub fn asks(&self) -> Vec<Asked> {
        let mut asks: Vec<Asked> = self.0.asks.borrow().values().cloned().collect();
        asks.sort_by_key(|asked| asked.since);
        asks
    }

    /// Answers one question by its id, or all of a task by the task's. Says what was answered.
    pub async fn answer(&self, reference: &str, answer: Answer) -> Result<Vec<Asked>, Error> {
        let mut open = self.asks();
        if open.iter().any(|asked| asked.ask.id == reference) {
            open.retain(|asked| asked.ask.id == reference);
        } else {
            let task = self.resolve(reference).map_err(|error| match error {
                Error::NoSuchTask(reference) => Error::NothingAsked(reference),
                other => other,
            })?;
            open.retain(|asked| asked.task == task.id);
        }
        if open.is_empty() {
            return Err(Error::NothingAsked(reference.to_owned()));
        }
        for asked in &open {
            let task = self.task(&asked.task)?;
            self.host(&task.origin.host)?.answer(&task.id, &asked.ask.id, answer).await?;
            self.forget_ask(&asked.ask.id);
        }
        self.0.look.notify_one();
        Ok(open)
    }

    /// What the reconciler saw of a task just now. When each was asked is kept on disk: it goes on
    /// waiting where it was when we are started again (T15).
    pub(super) fn note_asks(&self, task: &Task, open: &[Ask]) -> Vec<Asked> {
        let now = self.0.clock.now();
        let (mut settled, mut noted) = (Vec::new(), Vec::new());
        self.0.asks.send_if_modified(|asks| {
            asks.retain(|id, asked| {
                let is_open = asked.task != task.id || open.iter().any(|ask| ask.id == *id);
                settled.extend((!is_open).then(|| id.clone()));
                is_open
            });
            let before = asks.len();
            noted.extend(open.iter().map(|ask| {
                let asked = asks.entry(ask.id.clone());
                asked.or_insert_with(|| self.first_seen(task, ask, now)).clone()
            }));
            !settled.is_empty() || asks.len() > before
        });
        if !settled.is_empty() {
            self.0.store.asks().forget(settled);
        }
        noted
    }

    fn first_seen(&self, task: &Task, ask: &Ask, now: Timestamp) -> Asked {
        tracing::info!(task = %task.id, "permission requested; waiting for an answer");
        let since = self.0.store.asks().since(&task.id, &ask.id, now).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot read since when it is asked; counting from now");
            now
        });
        Asked { ask: ask.clone(), task: task.id.clone(), since }
    }

    /// Tasks that are over ask nothing any more.
    pub(super) fn keep_asks_of(&self, live: impl Fn(&TaskId) -> bool) {
        self.0.asks.send_if_modified(|asks| {
            let before = asks.len();
            asks.retain(|_, asked| live(&asked.task));
            asks.len() < before
        });
    }

    fn forget_ask(&self, id: &str) {
        self.0.asks.send_if_modified(|asks| asks.remove(id).is_some());
        self.0.store.asks().forget(vec![id.to_owned()]);
    }
}
