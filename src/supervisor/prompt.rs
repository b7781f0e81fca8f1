//! The prompter: admits queued tasks to free slots and sends children the prompts they are owed.
//!
//! A prompt is owed while its row has no `sent_at`. Crash window: sent but not recorded; it is sent again
//! with the same message id, which hosts do not run twice. Failures are retried with back-off and jitter per
//! task, visibly, until the host has been unreachable for `gone`. At most one send per task is under way.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::{Id, JoinSet};

use super::core::Core;
use super::ends::{EndDetails, Ends};
use super::ledger::Ledger;
use super::turns::Bell;
use super::{Error, verdict};
use crate::backoff::Backoff;
use crate::host::{self, Place, Post, Prompt};
use crate::store::{ActiveTask, FollowUp, FurtherPrompt};
use crate::task::lifecycle::{Change, Report};
use crate::task::{MessageId, Schema, Task, TaskId};

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);

/// Polling interval for parked tasks: there is no event when a key is set.
const PARKED_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Follow-up prompts.
const GO_ON_WITH_TODOS: &str = "Some of your todos are still open. Go on with them until each is completed or cancelled, \
     then give your final answer again in full.";
const GO_ON_AFTER_RESTART: &str = "Your work was interrupted by a restart. Look at what is already done, go on from there, and \
     give your final answer.";

/// Stands before what was said to a task while it waited for its turn.
const ADDED: &str = "Added before you began:";

/// Sends under way, and the back-offs of those that failed.
#[derive(Default)]
struct Outgoing {
    sends: JoinSet<(TaskId, bool)>,
    sending: HashMap<Id, ActiveTask>,
    failures: HashMap<TaskId, RetryState>,
    /// Something is owed to a task that is being sent to: look again when that send is done.
    skipped: bool,
}

/// Back-off of a task whose host could not be reached. Times are uptimes.
#[derive(Clone, Copy)]
struct RetryState {
    tries: u32,
    since: Duration,
    until: Duration,
}

/// The worker, and the components it reports to.
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
            // A successful send owes nothing new, so it does not cause another query.
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

    /// Starts all sends that are due; returns when to look again at the latest.
    async fn send_owed(&self, outgoing: &mut Outgoing) -> Duration {
        let lacking = self.unpark().await.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "parked tasks not checked; retrying");
            true
        });
        let (limits, now) = (self.core.limits(), self.core.clock().now());
        let admitted = match self.core.store().slots().any_queued() {
            Ok(true) => {
                self.core.store().slots().admit(limits, now).await.map(|started| {
                    // One that was parked during a run is owed no prompt: observing it resumes it.
                    if !started.is_empty() {
                        self.look.ring();
                    }
                })
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        // Not fatal: tasks that hold a slot are prompted all the same.
        if let Err(error) = &admitted {
            tracing::error!(
                error = error as &dyn std::error::Error,
                "queued tasks not admitted; retrying"
            );
        }
        let owed = match self.core.store().tasks().unprompted() {
            Ok(owed) => owed,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "owed prompts unreadable; retrying");
                return AFTER_AN_ERROR;
            }
        };
        let sending: HashSet<TaskId> =
            outgoing.sending.values().map(|active| active.task.id.clone()).collect();
        outgoing.failures.retain(|id, _| owed.iter().any(|active| active.task.id == *id));
        let uptime = self.core.clock().uptime();
        // At most one send per task: a second one would read the same rows before the first has marked
        // them, and could overtake it.
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
                // A cancel may have come during the send, and its abort before the prompt.
                prompter.ends.abort_if_over(&to_send.task);
                (to_send.task.id, sent)
            });
            outgoing.sending.insert(send.id(), active);
        }
        let next = outgoing.failures.values().map(|failing| failing.until.saturating_sub(uptime));
        let next = next.min().unwrap_or(Duration::from_secs(3600));
        // No event tells when a key was set, so it is polled for.
        let next = if lacking { next.min(PARKED_POLL_INTERVAL) } else { next };
        // Tasks wait for slots that are free, and the bell is not rung for them again.
        let next = if admitted.is_err() { next.min(AFTER_AN_ERROR) } else { next };
        next.max(Duration::from_millis(10))
    }

    /// Takes in the result of a send. `true` when it has to be retried.
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
                outgoing.failures.insert(task, RetryState { tries: tries + 1, since, until });
                true
            }
            Err(error) => {
                if let Some(active) = outgoing.sending.remove(&error.id()) {
                    self.ends.fail_after_panic(&active.task, "prompting it").await;
                }
                false
            }
        }
    }

    /// Sends everything that is owed to one task, in order. `false` means: retry later.
    async fn send(&self, active: &ActiveTask, failing_for: Duration) -> bool {
        let ActiveTask { task, run } = active;
        if task.origin.is_forked
            && run.sent_at.is_none()
            && let Err(error) = self.hand_over(task).await
        {
            return self.prompt_failed(active, error, failing_for).await;
        }
        let first = match run.sent_at {
            Some(_) => String::new(),
            None => match self.first_words(active).await {
                Ok(text) => text,
                Err(error) => return self.prompt_failed(active, error, failing_for).await,
            },
        };
        // In the order of the conversation: the run's own prompt, its follow-ups, what was said to it since.
        let mut owed = vec![(None, &run.message_id, first.as_str(), run.sent_at)];
        if let Some(id) = &run.continue_id {
            owed.push((Some(FollowUp::Continue), id, GO_ON_AFTER_RESTART, run.continue_sent_at));
        }
        if let Some(id) = &run.nudge_id {
            owed.push((Some(FollowUp::Todos), id, GO_ON_WITH_TODOS, run.nudge_sent_at));
        }
        for (follow_up, message, text, _) in owed.into_iter().filter(|(_, _, _, at)| at.is_none()) {
            let prompt = prompt(task, message, text);
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
            // Sent but not recorded: the retry sends the same message id, which does not run twice.
            if noted.await.is_err() {
                return false;
            }
        }
        match self.send_further(active).await {
            Ok(noted) => {
                self.look.ring();
                noted
            }
            Err(error) => self.prompt_failed(active, error, failing_for).await,
        }
    }

    /// The run's prompt, with what was said to the task before it began, which the agent sees with its first
    /// step, and with the schema that its answer has to fit. Which messages these are is written down before the
    /// prompt is sent, so that a repeat says the same.
    async fn first_words(&self, active: &ActiveTask) -> Result<String, Error> {
        let ActiveTask { task, run } = active;
        let further = self.core.store().further();
        let mut said = further.of_run(task)?;
        if said.iter().any(|said| said.message_id.is_none()) {
            let host = self.core.host(&task.origin.host)?;
            // An earlier attempt may have arrived without them; then they come after it.
            if !host.posted(Place::from(task), run.message_id.clone()).await? {
                // Read again afterwards: a message may have been added since the first read, and what is
                // sent has to be what was marked.
                further.join_prompt(task, &run.message_id).await?;
                said = further.of_run(task)?;
            }
        }
        let along = said.iter().filter(|said| said.message_id.as_ref() == Some(&run.message_id));
        let along = along.map(|said| format!("{ADDED}\n{}", said.text));
        let schema = task.order.schema.as_ref().map(Schema::instructions);
        let parts = std::iter::once(run.prompt.clone()).chain(along).chain(schema);
        Ok(parts.collect::<Vec<_>>().join("\n\n"))
    }

    /// Sends the messages that are owed to the run, in order. `false`: one was sent and that could not be
    /// written; it is sent again under the same id.
    async fn send_further(&self, active: &ActiveTask) -> Result<bool, Error> {
        let ActiveTask { task, run } = active;
        // Those that went along with the prompt are still to be marked.
        if !run.owes_further {
            return Ok(true);
        }
        let (core, further) = (&self.core, self.core.store().further());
        for FurtherPrompt { seq, text, message_id, sent, correction } in further.of_run(task)? {
            if sent {
                continue;
            }
            if message_id.as_ref() != Some(&run.message_id) {
                let message = match message_id {
                    Some(message) => message,
                    None => {
                        let message = core.clock().message_id();
                        // The id is on disk before the host sees it: after a crash the same message is sent
                        // under the same id, which the host does not take twice.
                        further.name(seq, message.clone()).await?;
                        message
                    }
                };
                let host = core.host(&task.origin.host)?;
                let prompt = prompt(task, &message, &text);
                match host.steering() {
                    // The session is idle: it has given the answer that is corrected.
                    _ if correction => host.prompt(prompt).await?,
                    Some(steering) => steering.steer(prompt).await?,
                    None => {
                        let why = "it takes no messages at work".to_owned();
                        return Err(host::Error::Refused(why).into());
                    }
                }
            }
            // Stops here, so that the order is kept: the next round begins with this one.
            if further.sent(seq, core.clock().now()).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Posts the inherited context to the child. Idempotent: looked up by its message id first.
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

    /// Queues parked tasks whose credentials are back. `true` while others still wait for theirs.
    async fn unpark(&self) -> Result<bool, Error> {
        let mut others = false;
        for task in self.core.store().slots().parked()? {
            // A deleted session or unknown host is queued, too: with a slot, the usual path ends the task.
            match self.core.lacks(&task).await {
                Ok(None) | Err(host::Error::NoSuchSession(_)) => {
                    self.core.store().slots().unpark(&task, self.core.clock().now()).await?;
                }
                Ok(Some(_)) | Err(_) => others = true,
            }
        }
        Ok(others)
    }

    /// A refusal ends the run; an unreachable host is retried, visibly, and ends the run after `gone`.
    /// `false` means: retry later.
    async fn prompt_failed(
        &self,
        active: &ActiveTask,
        error: Error,
        failing_for: Duration,
    ) -> bool {
        let task = &active.task;
        let change = match error {
            Error::Host(host::Error::NoSuchSession(_)) => {
                task.state.report(Report::Aborted { error: "Session deleted".into() })
            }
            Error::Host(host::Error::NoCredentials(why)) => {
                return self.ledger.park(task, task.progress.clone(), why).await.is_ok();
            }
            Error::Host(host::Error::Refused(why)) => {
                refused(active, format!("the host refused the prompt: {why}"))
            }
            error @ Error::UnknownHost { .. } => refused(active, format!("interrupted: {error}")),
            // `stop` and not `report`: the prompt may have arrived with its response lost, so the session
            // is aborted as well.
            error if failing_for >= self.core.settings().gone => {
                task.state.stop(verdict::unreachable(&error.to_string(), self.core.settings().gone))
            }
            error => {
                self.ledger.show_retrying(active, error.to_string()).await;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    task = %task.id,
                    host = task.origin.host,
                    ?failing_for,
                    error,
                    "prompt delivery failed; retrying"
                );
                return false;
            }
        };
        let concluded = self.ends.conclude(task, change, EndDetails::default()).await;
        // Not concluded and still live: the end could not be written, so this is retried.
        concluded || self.core.task(&task.id).is_ok_and(|task| !task.is_live())
    }
}

/// The end of a run whose host takes no prompt. One that is at work, and was sent a message, is aborted,
/// because it would no longer be watched.
fn refused(active: &ActiveTask, error: String) -> Option<Change> {
    let failed = Report::Failed { error, partial: None };
    match active.run.sent_at {
        Some(_) => active.task.state.stop(failed),
        None => active.task.state.report(failed),
    }
}

fn prompt(task: &Task, message: &MessageId, text: &str) -> Prompt {
    Prompt {
        to: Place::from(task),
        message: message.clone(),
        text: text.to_owned(),
        agent: task.order.agent.clone(),
        model: task.order.model.clone(),
    }
}
