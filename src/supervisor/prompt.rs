//! The prompter: gives free slots to the queue and sends children the prompts they are owed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::{Id, JoinSet};

use super::core::Core;
use super::ends::{Closing, Ends};
use super::ledger::Ledger;
use super::turns::Bell;
use super::{Error, verdict};
use crate::backoff::Backoff;
use crate::host::{self, Place, Post, Prompt};
use crate::store::{Active, FollowUp};
use crate::task::lifecycle::Report;
use crate::task::{Task, TaskId};

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);

/// So often it is looked whether there are credentials for those that lack them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// What asks a child to go on with what it left open.
const GO_ON_WITH_TODOS: &str = "Some of your todos are still open. Go on with them until each is completed or cancelled, \
     then give your final answer again in full.";
const GO_ON_AFTER_RESTART: &str = "Your work was interrupted by a restart. Look at what is already done, go on from there, and \
     give your final answer.";

/// Sends under way, and what to wait for before trying again.
#[derive(Default)]
struct Outgoing {
    sends: JoinSet<(TaskId, bool)>,
    sending: HashMap<Id, Active>,
    failures: HashMap<TaskId, Failing>,
    /// Something was owed to a task that was being sent to.
    skipped: bool,
}

/// A task whose host could not be reached. Times are uptimes.
#[derive(Clone, Copy)]
struct Failing {
    tries: u32,
    since: Duration,
    until: Duration,
}

/// The worker, and what it speaks to beside the hosts.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Prompter {
    pub(super) core: Core,
    pub(super) ends: Ends,
    pub(super) ledger: Ledger,
    /// A child may be owed a prompt, or a slot may be free.
    pub(super) bell: Bell,
    /// Something may have ended.
    pub(super) look: Bell,
}

impl Prompter {
    pub(super) async fn run(self) {
        let mut outgoing = Outgoing::default();
        loop {
            let retry = tokio::time::Instant::now() + self.send_owed(&mut outgoing).await;
            // A send that went well changes nothing that is worth another look.
            loop {
                tokio::select! {
                    () = self.bell.rung() => break,
                    () = tokio::time::sleep_until(retry) => break,
                    Some(done) = outgoing.sends.join_next_with_id() => {
                        if self.note(&mut outgoing, done).await || outgoing.skipped {
                            break;
                        }
                    }
                    () = self.core.stopping().cancelled() => return,
                }
            }
        }
    }

    /// Starts what can be started; says when to look again at the latest.
    async fn send_owed(&self, outgoing: &mut Outgoing) -> Duration {
        let lacking = self.unpark().await.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "cannot look at tasks without credentials");
            true
        });
        let (limits, now) = (self.core.limits(), self.core.clock().now());
        let admitted = match self.core.store().slots().any_queued() {
            Ok(true) => {
                self.core.store().slots().admit(limits, now).await.map(|started| {
                    // One that was put back in the middle of its run is owed no prompt.
                    if !started.is_empty() {
                        self.look.ring();
                    }
                })
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        // Those that have a slot go on, whatever is wrong with the queue.
        if let Err(error) = &admitted {
            tracing::error!(error = error as &dyn std::error::Error, "cannot give out slots");
        }
        let owed = match self.core.store().tasks().unprompted() {
            Ok(owed) => owed,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "cannot read owed prompts; will look again");
                return AFTER_AN_ERROR;
            }
        };
        let sending: HashSet<TaskId> =
            outgoing.sending.values().map(|active| active.task.id.clone()).collect();
        outgoing.failures.retain(|id, _| owed.iter().any(|active| active.task.id == *id));
        let uptime = self.core.clock().uptime();
        outgoing.skipped = owed.iter().any(|active| sending.contains(&active.task.id));
        for active in owed.into_iter().filter(|active| !sending.contains(&active.task.id)) {
            let failed = outgoing.failures.get(&active.task.id);
            if failed.is_some_and(|failing| failing.until > uptime) {
                continue;
            }
            let failing_for = failed.map(|failing| uptime.saturating_sub(failing.since));
            let failing_for = failing_for.unwrap_or_default();
            let (prompter, to_send) = (self.clone(), active.clone());
            let send = outgoing.sends.spawn(async move {
                let sent = prompter.send(&to_send, failing_for).await;
                prompter.ends.abort_if_over(&to_send.task);
                (to_send.task.id, sent)
            });
            outgoing.sending.insert(send.id(), active);
        }
        let next = outgoing.failures.values().map(|failing| failing.until.saturating_sub(uptime));
        let next = next.min().unwrap_or(Duration::from_secs(3600));
        // Nobody says when a key was set: it is looked for.
        let next = if lacking { next.min(BETWEEN_LOOKS) } else { next };
        next.max(Duration::from_millis(10))
    }

    /// `true` when it has to be tried again.
    async fn note(
        &self,
        outgoing: &mut Outgoing,
        done: Result<(Id, (TaskId, bool)), tokio::task::JoinError>,
    ) -> bool {
        match done {
            Ok((id, (task, true))) => {
                outgoing.sending.remove(&id);
                outgoing.failures.remove(&task);
                false
            }
            Ok((id, (task, false))) => {
                outgoing.sending.remove(&id);
                let now = self.core.clock().uptime();
                let earlier = outgoing.failures.get(&task).copied();
                let (tries, since) = earlier.map_or((0, now), |f| (f.tries, f.since));
                let until = now + PAUSES.jittered(tries, self.core.clock().random());
                outgoing.failures.insert(task, Failing { tries: tries + 1, since, until });
                true
            }
            Err(error) => {
                if let Some(active) = outgoing.sending.remove(&error.id()) {
                    self.ends.blame(&active.task, "prompting it").await;
                }
                false
            }
        }
    }

    /// `false` means: try again later.
    async fn send(&self, active: &Active, failing_for: Duration) -> bool {
        let Active { task, run } = active;
        if task.origin.is_forked
            && run.sent_at.is_none()
            && let Err(error) = self.hand_over(task).await
        {
            return self.prompt_failed(active, error, failing_for).await;
        }
        let mut owed = vec![(None, &run.message_id, run.prompt.as_str(), run.sent_at)];
        if let Some(id) = &run.continue_id {
            owed.push((Some(FollowUp::Continue), id, GO_ON_AFTER_RESTART, run.continue_sent_at));
        }
        if let Some(id) = &run.nudge_id {
            owed.push((Some(FollowUp::Todos), id, GO_ON_WITH_TODOS, run.nudge_sent_at));
        }
        for (follow_up, message, text, _) in owed.into_iter().filter(|(_, _, _, at)| at.is_none()) {
            let prompt = Prompt {
                to: Place::from(task),
                message: message.clone(),
                text: text.to_owned(),
                agent: task.order.agent.clone(),
                model: task.order.model.clone(),
            };
            let sent = match self.core.host(&task.origin.host) {
                Ok(host) => host.prompt(prompt).await.map_err(Error::from),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                return self.prompt_failed(active, error, failing_for).await;
            }
            let now = self.core.clock().now();
            let noted = match follow_up {
                None => self.core.store().tasks().prompt_sent(task, now),
                Some(follow_up) => self.core.store().tasks().follow_up_sent(task, follow_up, now),
            };
            if noted.await.is_err() {
                return false;
            }
        }
        self.look.ring();
        true
    }

    /// Puts the context into the child's session, once, however often this is tried.
    async fn hand_over(&self, task: &Task) -> Result<(), Error> {
        let Some(inheritance) = self.core.store().tasks().inheritance(&task.id)? else {
            return Ok(());
        };
        let host = self.core.host(&task.origin.host)?;
        let to = Place::from(task);
        if host.posted(to.clone(), inheritance.message_id.clone()).await? {
            return Ok(());
        }
        let post = Post {
            to,
            message: inheritance.message_id,
            visible: inheritance.preamble,
            hidden: inheritance.context,
            agent: task.order.agent.clone(),
            wake: false,
        };
        Ok(host.post(vec![post]).await?)
    }

    /// Puts back into the queue what has again what it lacked. `true` while others still wait for theirs.
    async fn unpark(&self) -> Result<bool, Error> {
        let mut others = false;
        for task in self.core.store().slots().parked()? {
            // Without a host, it is found out with a slot what that means for it.
            match self.core.lacks(&task).await {
                Ok(None) | Err(host::Error::NoSuchSession(_)) => {
                    self.core.store().slots().unpark(&task, self.core.clock().now()).await?;
                }
                Ok(Some(_)) | Err(_) => others = true,
            }
        }
        Ok(others)
    }

    /// What the host refuses ends the run; what cannot be reached is tried again, visibly, and ends
    /// the run after a while. `false` means: try again later.
    async fn prompt_failed(&self, active: &Active, error: Error, failing_for: Duration) -> bool {
        let task = &active.task;
        let change = match error {
            Error::Host(host::Error::NoSuchSession(_)) => {
                task.state.report(Report::Aborted { error: "Session deleted".into() })
            }
            Error::Host(host::Error::NoCredentials(why)) => {
                return self.ledger.park(task, task.progress.clone(), why).await.is_ok();
            }
            Error::Host(host::Error::Refused(why)) => {
                let error = format!("the host refused the prompt: {why}");
                task.state.report(Report::Failed { error, partial: None })
            }
            error @ Error::UnknownHost { .. } => {
                let error = format!("interrupted: {error}");
                task.state.report(Report::Failed { error, partial: None })
            }
            // The prompt may have arrived all the same.
            error if failing_for >= self.core.settings().gone => {
                task.state.stop(verdict::unreachable(&error.to_string(), self.core.settings().gone))
            }
            error => {
                self.ledger.show_retrying(active, error.to_string()).await;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(task = %task.id, error, "prompt not delivered; retrying");
                return false;
            }
        };
        let concluded = self.ends.conclude(task, change, Closing::default()).await;
        // Not concluded and still live: it could not be written.
        concluded || self.core.task(&task.id).is_ok_and(|task| !task.is_live())
    }
}
