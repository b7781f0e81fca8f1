//! Open permission requests and questions of children (T15): listed, and answered by a person or by policy.
//!
//! The map is a cache of what the reconciler saw last; the host is the truth. Only the time of the first
//! sight is on disk, so that the time limit goes on across restarts. A policy's answer that fails is given
//! again at the next check.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::core::Core;
use super::turns::Bell;
use super::{Asks, Error, Supervisor};
use crate::host::{self, Answer, Ask, Place};
use crate::task::{Answered, Answerer, Door, Task, TaskId, Timestamp};

/// A child that waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PermissionRequest {
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
    open: Arc<watch::Sender<HashMap<String, PermissionRequest>>>,
    /// Wakes the reconciler: a run continues after an answer.
    look: Bell,
    /// A notification may be owed.
    alerts: Bell,
}

impl OpenAsks {
    pub(super) fn new(core: Core, look: Bell, alerts: Bell) -> OpenAsks {
        OpenAsks { core, open: Arc::default(), look, alerts }
    }

    /// The open requests, longest waiting first.
    pub(super) fn all(&self) -> Vec<PermissionRequest> {
        let mut asks: Vec<PermissionRequest> = self.open.borrow().values().cloned().collect();
        asks.sort_by_key(|request| request.since);
        asks
    }

    pub(super) fn has_any_of(&self, task: &TaskId) -> bool {
        self.open.borrow().values().any(|request| request.task == *task)
    }

    /// Changes when a request is opened or settled.
    pub(super) fn watch(&self) -> watch::Receiver<HashMap<String, PermissionRequest>> {
        self.open.subscribe()
    }

    async fn answer(
        &self,
        request: &PermissionRequest,
        answer: Answer,
        by: Answerer,
        key: Option<&str>,
    ) -> Result<(), Error> {
        let task = self.core.task(&request.task)?;
        self.tell(&task, &request.ask, answer, by, key).await?;
        // Removed at once and not at the next check, so that it is not listed or answered again meanwhile. A
        // refusal ends the run with everything else it asks (T6), so a wait must not take those for open
        // requests either. Should one be open all the same, the next check notes it again.
        let is_answered = |other: &PermissionRequest| {
            other.ask.id == request.ask.id || answer == Answer::Deny && other.task == request.task
        };
        self.open.send_if_modified(|asks| {
            let before = asks.len();
            asks.retain(|_, other| !is_answered(other));
            asks.len() < before
        });
        self.core.store().asks().forget(vec![request.ask.id.clone()]);
        self.look.ring();
        Ok(())
    }

    /// Gives the answer to the host, and records it.
    async fn tell(
        &self,
        task: &Task,
        ask: &Ask,
        answer: Answer,
        answerer: Answerer,
        key: Option<&str>,
    ) -> Result<(), Error> {
        let unasked =
            || host::Error::Refused(format!("no permission request `{}` is open", ask.id));
        let host = self.core.host(&task.origin.host)?;
        let permissions = host.permissions().ok_or_else(unasked)?;
        permissions.answer(Place::from(task), ask.id.clone(), answer).await?;
        let Answerer { door, by } = answerer;
        let answered = Answered {
            id: ask.id.clone(),
            what: ask.what.clone(),
            allowed: answer == Answer::Allow,
            door,
            by,
            at: self.core.clock().now(),
        };
        // Not an error of the answer: the host has it, and goes on.
        let key = key.map(str::to_owned);
        if let Err(error) = self.core.store().asks().answered(&task.id, answered, key).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(task = %task.id, error, "permission answer given but not recorded");
        }
        Ok(())
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
            let policy = Answerer { door: Door::Policy, by: String::new() };
            if let Err(error) = self.tell(task, ask, answer, policy, None).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    task = %task.id,
                    error,
                    "permission answer failed; retrying at the next check"
                );
            }
        }
    }

    /// Takes in the requests that the reconciler saw of a task just now. When each was first seen is on
    /// disk, so that its time limit goes on after a restart (T15).
    pub(super) fn note(&self, task: &Task, open: &[Ask]) -> Vec<PermissionRequest> {
        let now = self.core.clock().now();
        let (mut settled, mut noted) = (Vec::new(), Vec::new());
        self.open.send_if_modified(|asks| {
            asks.retain(|id, request| {
                let is_open = request.task != task.id || open.iter().any(|ask| ask.id == *id);
                settled.extend((!is_open).then(|| id.clone()));
                is_open
            });
            let before = asks.len();
            noted.extend(open.iter().map(|ask| {
                let request = asks.entry(ask.id.clone());
                request.or_insert_with(|| self.first_seen(task, ask, now)).clone()
            }));
            !settled.is_empty() || asks.len() > before
        });
        if !settled.is_empty() {
            self.core.store().asks().forget(settled);
        }
        noted
    }

    fn first_seen(&self, task: &Task, ask: &Ask, now: Timestamp) -> PermissionRequest {
        tracing::info!(task = %task.id, "permission requested; waiting for an answer");
        let since = match self.core.store().asks().since(&ask.id) {
            Ok(Some(since)) => since,
            Ok(None) => {
                self.note_new(task, ask, now);
                now
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    task = %task.id,
                    ask = ask.id,
                    error,
                    "age of a permission request unreadable; counting from now"
                );
                now
            }
        };
        PermissionRequest { ask: ask.clone(), task: task.id.clone(), since }
    }

    /// People are notified of those that they have to answer; the others a policy answers.
    fn note_new(&self, task: &Task, ask: &Ask, now: Timestamp) {
        let settings = self.core.settings();
        let is_parked = matches!(settings.asks, Asks::Park(_));
        if !is_parked || settings.notifier.channels().is_empty() {
            return self.core.store().asks().first_seen(&task.id, &ask.id, now);
        }
        let noted =
            self.core.store().asks().first_seen_by_people(&task.id, &ask.id, &ask.what, now);
        let alerts = self.alerts.clone();
        let (task, ask) = (task.id.clone(), ask.id.clone());
        self.core.spawn(async move {
            match noted.await {
                Ok(()) => alerts.ring(),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        %task,
                        ask,
                        error,
                        "permission request not recorded; nobody is notified of it"
                    );
                }
            }
        });
    }

    /// Drops the requests of tasks that are over.
    pub(super) fn keep_only(&self, live: impl Fn(&TaskId) -> bool) {
        self.open.send_if_modified(|asks| {
            let before = asks.len();
            asks.retain(|_, request| live(&request.task));
            asks.len() < before
        });
    }
}

impl Supervisor {
    /// The open requests, longest waiting first.
    pub fn asks(&self) -> Vec<PermissionRequest> {
        self.0.asks.all()
    }

    /// Changes whenever a request is opened or settled.
    pub fn watch_asks(&self) -> watch::Receiver<HashMap<String, PermissionRequest>> {
        self.0.asks.watch()
    }

    /// The answers that a task was given, oldest first.
    pub fn answers(&self, task: &TaskId) -> Result<Vec<Answered>, Error> {
        Ok(self.0.core.store().asks().answers(task)?)
    }

    /// Answers one request by its id, or all of a task by the task's. Returns what was answered.
    pub async fn answer(
        &self,
        reference: &str,
        answer: Answer,
        by: Answerer,
    ) -> Result<Vec<PermissionRequest>, Error> {
        self.answer_once(reference, answer, by, None).await
    }

    /// The same under the caller's idempotency key: what was answered under it before is returned as well.
    pub async fn answer_once(
        &self,
        reference: &str,
        answer: Answer,
        by: Answerer,
        key: Option<&str>,
    ) -> Result<Vec<PermissionRequest>, Error> {
        let _turn = self.0.launches.turn_of(key).await;
        let mut open = self.asks();
        let mut given = self.given(key)?;
        if open.iter().any(|asked| asked.ask.id == reference) {
            open.retain(|asked| asked.ask.id == reference);
        } else if given.iter().any(|given| given.ask.id == reference) {
            given.retain(|given| given.ask.id == reference);
            return Ok(given);
        } else if let Some(answered) = self.0.core.store().asks().answer_to(reference)? {
            return Err(Error::AnsweredBefore(answered));
        } else {
            let task = self.resolve(reference).map_err(|error| match error {
                Error::NoSuchTask(reference) => Error::NothingAsked(reference),
                other => other,
            })?;
            given.retain(|request| request.task == task.id);
            // What the task has asked for since stays open: the caller who repeats the call has not seen it.
            if !given.is_empty() {
                return Ok(given);
            }
            open.retain(|request| request.task == task.id);
        }
        if open.is_empty() {
            return Err(Error::NothingAsked(reference.to_owned()));
        }
        // Stops at the first failure; what was answered by then stays answered.
        for asked in &open {
            self.0.asks.answer(asked, answer, by.clone(), key).await?;
        }
        Ok(open)
    }

    /// The requests that were answered under this key.
    fn given(&self, key: Option<&str>) -> Result<Vec<PermissionRequest>, Error> {
        let Some(key) = key else { return Ok(Vec::new()) };
        let given = self.0.core.store().asks().answered_under(key)?;
        // When it was first seen is not kept.
        let request = |(task, given): (TaskId, Answered)| PermissionRequest {
            ask: Ask { id: given.id, what: given.what },
            task,
            since: given.at,
        };
        Ok(given.into_iter().map(request).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::core::tests::bare;

    #[tokio::test]
    async fn open_requests_are_listed_oldest_first_until_their_task_has_ended() {
        let (core, _home) = bare();
        let asks = OpenAsks::new(core, Bell::default(), Bell::default());
        let request = |id: &str, task: &str, since| PermissionRequest {
            ask: Ask { id: id.into(), what: "may it".into() },
            task: TaskId::new(task),
            since: Timestamp::from_millis(since),
        };
        let (newer, older) = (request("per_1", "one", 2), request("per_2", "other", 1));
        let mut watch = asks.watch();
        asks.open.send_modify(|open| {
            open.extend(
                [newer.clone(), older.clone()].map(|request| (request.ask.id.clone(), request)),
            );
        });
        assert_eq!(asks.all(), [older, newer.clone()]);
        watch.changed().await.unwrap();
        asks.keep_only(|task| task.as_str() == "one");
        assert_eq!(asks.all(), [newer]);
        assert!(asks.has_any_of(&TaskId::new("one")) && !asks.has_any_of(&TaskId::new("other")));
        assert!(watch.has_changed().unwrap());
    }
}
