//! Open permission requests and questions of children (T15): listed, and answered by a person or by policy.
//!
//! The map is a cache of what the reconciler saw last; the host is the truth. Only the time of the first
//! sight is on disk, so that the time limit goes on across restarts. A policy's answer that fails is given
//! again at the next look.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::core::Core;
use super::turns::Bell;
use super::{Asks, Error, Supervisor};
use crate::host::{self, Answer, Ask, Place};
use crate::task::{Task, TaskId, Timestamp};

/// A child that waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub ask: Ask,
    pub task: TaskId,
    pub since: Timestamp,
}

/// The open requests, as last seen by the reconciler.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct OpenAsks {
    core: Core,
    /// By the id of the request.
    open: Arc<watch::Sender<HashMap<String, Asked>>>,
    /// Wakes the reconciler: a run continues after an answer.
    look: Bell,
}

impl OpenAsks {
    pub(super) fn new(core: Core, look: Bell) -> OpenAsks {
        OpenAsks { core, open: Arc::default(), look }
    }

    /// The open requests, longest waiting first.
    pub(super) fn all(&self) -> Vec<Asked> {
        let mut asks: Vec<Asked> = self.open.borrow().values().cloned().collect();
        asks.sort_by_key(|asked| asked.since);
        asks
    }

    pub(super) fn has_any_of(&self, task: &TaskId) -> bool {
        self.open.borrow().values().any(|asked| asked.task == *task)
    }

    /// Changes when a request is opened or settled.
    pub(super) fn watch(&self) -> watch::Receiver<HashMap<String, Asked>> {
        self.open.subscribe()
    }

    async fn answer(&self, asked: &Asked, answer: Answer) -> Result<(), Error> {
        let task = self.core.task(&asked.task)?;
        self.tell(&task, &asked.ask, answer).await?;
        // Removed at once and not at the next look, so that it is not listed or answered again meanwhile. A
        // refusal ends the run with everything else it asks (T6), so a wait must not take those for open
        // requests either. Should one be open all the same, the next look notes it again.
        let is_answered = |other: &Asked| {
            other.ask.id == asked.ask.id || answer == Answer::Deny && other.task == asked.task
        };
        self.open.send_if_modified(|asks| {
            let before = asks.len();
            asks.retain(|_, other| !is_answered(other));
            asks.len() < before
        });
        self.core.store().asks().forget(vec![asked.ask.id.clone()]);
        self.look.ring();
        Ok(())
    }

    async fn tell(&self, task: &Task, ask: &Ask, answer: Answer) -> Result<(), Error> {
        let unasked = || host::Error::Refused(format!("nothing is asked as `{}`", ask.id));
        let host = self.core.host(&task.origin.host)?;
        let permissions = host.permissions().ok_or_else(unasked)?;
        Ok(permissions.answer(Place::from(task), ask.id.clone(), answer).await?)
    }

    /// Applies the policy: answers at once, or denies what has waited longer than allowed.
    pub(super) async fn answer_by_policy(&self, task: &Task, asks: &[(Ask, Duration)]) {
        for (ask, waiting) in asks {
            let answer = match self.core.settings().asks {
                Asks::Allow => Answer::Allow,
                Asks::Deny => Answer::Deny,
                Asks::Park(Some(longest)) if *waiting >= longest => Answer::Deny,
                Asks::Park(_) => continue,
            };
            if let Err(error) = self.tell(task, ask, answer).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    task = %task.id,
                    error,
                    "permission answer failed; retrying at the next look"
                );
            }
        }
    }

    /// Takes in the requests that the reconciler saw of a task just now. When each was first seen is on
    /// disk, so that its time limit goes on after a restart (T15).
    pub(super) fn note(&self, task: &Task, open: &[Ask]) -> Vec<Asked> {
        let now = self.core.clock().now();
        let (mut settled, mut noted) = (Vec::new(), Vec::new());
        self.open.send_if_modified(|asks| {
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
            self.core.store().asks().forget(settled);
        }
        noted
    }

    fn first_seen(&self, task: &Task, ask: &Ask, now: Timestamp) -> Asked {
        tracing::info!(task = %task.id, "permission requested; waiting for an answer");
        let since =
            self.core.store().asks().since(&task.id, &ask.id, now).unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "age of a permission request unreadable; counting from now");
                now
            });
        Asked { ask: ask.clone(), task: task.id.clone(), since }
    }

    /// Drops the requests of tasks that are over.
    pub(super) fn keep_only(&self, live: impl Fn(&TaskId) -> bool) {
        self.open.send_if_modified(|asks| {
            let before = asks.len();
            asks.retain(|_, asked| live(&asked.task));
            asks.len() < before
        });
    }
}

impl Supervisor {
    /// The open requests, longest waiting first.
    pub fn asks(&self) -> Vec<Asked> {
        self.0.asks.all()
    }

    /// Answers one request by its id, or all of a task by the task's. Returns what was answered.
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
        // Stops at the first failure; what was answered by then stays answered.
        for asked in &open {
            self.0.asks.answer(asked, answer).await?;
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::core::tests::bare;

    #[tokio::test]
    async fn what_is_asked_is_listed_longest_first_until_its_task_is_over() {
        let (core, _home) = bare();
        let asks = OpenAsks::new(core, Bell::default());
        let asked = |id: &str, task: &str, since| Asked {
            ask: Ask { id: id.into(), what: "may it".into() },
            task: TaskId::new(task),
            since: Timestamp::from_millis(since),
        };
        let (newer, older) = (asked("per_1", "one", 2), asked("per_2", "other", 1));
        let mut watch = asks.watch();
        asks.open.send_modify(|open| {
            open.extend([newer.clone(), older.clone()].map(|asked| (asked.ask.id.clone(), asked)));
        });
        assert_eq!(asks.all(), [older, newer.clone()]);
        watch.changed().await.unwrap();
        asks.keep_only(|task| task.as_str() == "one");
        assert_eq!(asks.all(), [newer]);
        assert!(asks.has_any_of(&TaskId::new("one")) && !asks.has_any_of(&TaskId::new("other")));
        assert!(watch.has_changed().unwrap());
    }
}
