//! The reconciler: observes every active task, always the same way, judges what it sees (`verdict`), and
//! hands that to the components that write it (`ends`, `ledger`, `asks`). Level-triggered: events and the
//! timer only wake it, it takes no input, and lost or repeated events make no difference.
//!
//! Checks run concurrently, at most one per scope (the runs on one instance, the parents on one host), so that
//! a slow host delays only its own tasks. A wake-up during a check is remembered and causes another one. No
//! lock is held while a host is asked; a verdict that was overtaken meanwhile fails its optimistic write.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{Id, JoinError, JoinSet};

use super::Error;
use super::asks::OpenAsks;
use super::core::Core;
use super::ends::{EndDetails, Ends};
use super::fit::SchemaCheck;
use super::ledger::Ledger;
use super::memory::{Memory, watched};
use super::transcript::Transcripts;
use super::turns::Bell;
use super::verdict::{self, Elapsed, Verdict};
use crate::host::{self, Ask, Host, Observation, Watch};
use crate::store::{ActiveTask, FollowUp};
use crate::task::lifecycle::Report;
use crate::task::{MAILBOX, MessageId, Phase, Progress, SessionId, Task};
use crate::threads;
use crate::transcript;

/// The timer's interval while there is nothing to check.
const NEVER: Duration = Duration::from_secs(86_400);

/// The unit of concurrency: one check at a time per scope, scopes independent of each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Scope {
    /// The runs on an instance of a host.
    Runs { host: String, instance: String },
    /// The parents on a host.
    Parents { host: String },
}

enum CheckTargets {
    Runs(Vec<ActiveTask>),
    Parents(Vec<SessionId>),
}

/// Checks in flight, and the memories that they leave for the next ones.
#[derive(Default)]
struct InFlightChecks {
    in_flight: JoinSet<Memory>,
    scopes: HashMap<Id, Scope>,
    /// Woken again while a check was in flight.
    again: HashSet<Scope>,
    memories: HashMap<Scope, Memory>,
}

/// The worker, and the components it hands its verdicts to.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Reconciler {
    pub(super) core: Core,
    pub(super) ends: Ends,
    pub(super) ledger: Ledger,
    pub(super) asks: OpenAsks,
    pub(super) fitting: SchemaCheck,
    pub(super) transcripts: Transcripts,
    /// Something may have ended.
    pub(super) bell: Bell,
}

impl Reconciler {
    pub(super) async fn run(self) {
        let mut checks = InFlightChecks::default();
        loop {
            let active = self.start_checks(&mut checks).unwrap_or_else(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "active tasks unreadable; retrying at the next sweep"
                );
                true
            });
            // The timer is the safety net for lost events; without active tasks it has nothing to find.
            let timer = if active { self.core.settings().poll_interval } else { NEVER };
            let sweep = tokio::time::Instant::now() + timer;
            loop {
                tokio::select! {
                    () = self.bell.rung() => break,
                    () = tokio::time::sleep_until(sweep) => break,
                    Some(done) = checks.in_flight.join_next_with_id() => {
                        if checks.note(done) {
                            break;
                        }
                    }
                    () = self.core.stopping().cancelled() => return,
                }
            }
        }
    }

    /// Starts a check of every scope that has none in flight. Returns whether there are active tasks.
    fn start_checks(&self, checks: &mut InFlightChecks) -> Result<bool, Error> {
        let active = self.core.store().tasks().active()?;
        self.asks.keep_only(|id| active.iter().any(|active| active.task.id == *id));
        let any = !active.is_empty();
        let mut targets_by_scope: BTreeMap<Scope, CheckTargets> = BTreeMap::new();
        for (host, session) in self.core.store().tasks().live_parents()? {
            if host != MAILBOX {
                let targets = targets_by_scope.entry(Scope::Parents { host });
                if let CheckTargets::Parents(all) =
                    targets.or_insert(CheckTargets::Parents(Vec::new()))
                {
                    all.push(session);
                }
            }
        }
        for active in active.into_iter().filter(|active| watched(active).is_some()) {
            let (host, instance) =
                (active.task.origin.host.clone(), active.task.origin.host_instance.clone());
            let targets = targets_by_scope.entry(Scope::Runs { host, instance });
            if let CheckTargets::Runs(all) = targets.or_insert(CheckTargets::Runs(Vec::new())) {
                all.push(active);
            }
        }
        // Memories of scopes without tasks are dropped.
        checks.memories.retain(|scope, _| targets_by_scope.contains_key(scope));
        for (scope, targets) in targets_by_scope {
            // The check in flight may have read the state before the event: check again after it.
            if checks.scopes.values().any(|busy| *busy == scope) {
                checks.again.insert(scope);
                continue;
            }
            let memory = checks.memories.remove(&scope).unwrap_or_default();
            let check = checks.in_flight.spawn(self.clone().check(scope.clone(), targets, memory));
            checks.scopes.insert(check.id(), scope);
        }
        Ok(any)
    }

    async fn check(self, scope: Scope, targets: CheckTargets, mut memory: Memory) -> Memory {
        match (scope, targets) {
            (Scope::Runs { host, .. }, CheckTargets::Runs(active)) => {
                self.check_runs(&host, active, &mut memory).await;
            }
            (Scope::Parents { host }, CheckTargets::Parents(parents)) => {
                self.check_parents(&host, parents).await;
            }
            (Scope::Runs { .. }, CheckTargets::Parents(_))
            | (Scope::Parents { .. }, CheckTargets::Runs(_)) => {}
        }
        memory
    }

    async fn check_runs(&self, name: &str, active: Vec<ActiveTask>, memory: &mut Memory) {
        memory.keep_only(&active);
        let host = match self.core.host(name) {
            Ok(host) => host,
            // The host is not configured any more: nobody can say what became of its runs.
            Err(error) => {
                let error = format!("interrupted: {error}");
                for active in active {
                    let report = Report::Failed { error: error.clone(), partial: None };
                    let change = active.task.state.report(report);
                    self.ends.conclude(&active.task, change, EndDetails::default()).await;
                }
                return;
            }
        };
        let seen = self.observe(host, &active, &mut memory.silent).await;
        let seen = active.into_iter().zip(seen);
        let judged: Vec<_> = seen
            .filter_map(|(active, seen)| {
                let seen = seen?;
                let elapsed = memory.note(&active, &seen, self.core.clock());
                let verdict = verdict::judge(&active, &seen, elapsed, self.core.settings());
                let asks = self.asks.note(&active.task, verdict.asks());
                let asks = memory.asks_waiting(asks, self.core.clock());
                Some(self.act(active, seen, elapsed, verdict, asks))
            })
            .collect();
        join_all(judged).await;
    }

    /// What each of these runs looks like; `None` where that is unknown for now.
    async fn observe(
        &self,
        host: &Arc<dyn Host>,
        active: &[ActiveTask],
        silent: &mut Option<Duration>,
    ) -> Vec<Option<Observation>> {
        let watches: Vec<Watch> = active.iter().filter_map(watched).collect();
        let name = active.first().map(|active| active.task.origin.host.clone()).unwrap_or_default();
        match observe_apart(host, watches.clone()).await {
            Ok(Ok(seen)) if seen.len() == watches.len() => {
                if silent.take().is_some() {
                    tracing::info!(host = name, "host reachable again");
                }
                seen
            }
            Ok(Ok(_)) => vec![None; active.len()],
            Ok(Err(error)) => {
                let uptime = self.core.clock().uptime();
                // Logged once per outage: the host is asked again at every sweep.
                let since = *silent.get_or_insert_with(|| {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        host = name,
                        error,
                        "host unreachable; its runs are shown as retrying"
                    );
                    uptime
                });
                self.out_of_reach(active, &error, uptime.saturating_sub(since)).await;
                vec![None; active.len()]
            }
            // A transcript made the adapter panic: observe them one by one, and fail only that task.
            Err(_) => {
                let each = active.iter().zip(watches).map(|(active, watch)| async move {
                    match observe_apart(host, vec![watch]).await {
                        Ok(Ok(mut seen)) => seen.pop().flatten(),
                        Ok(Err(_)) => None,
                        Err(_) => {
                            self.ends.fail_after_panic(&active.task, "looking at it").await;
                            None
                        }
                    }
                });
                join_all(each).await
            }
        }
    }

    /// Runs on an unreachable host: shown as retrying, and failed once that has lasted for `gone`.
    async fn out_of_reach(&self, active: &[ActiveTask], error: &host::Error, lasted: Duration) {
        let why = error.to_string();
        for active in active {
            if lasted < self.core.settings().gone {
                self.ledger.show_retrying(active, why.clone()).await;
                continue;
            }
            // `stop`: should the host come back, the session is aborted there.
            let report = verdict::unreachable(&why, self.core.settings().gone);
            let change = active.task.state.stop(report);
            self.ends.conclude(&active.task, change, EndDetails::default()).await;
        }
    }

    /// Carries out a verdict. A failed write is logged only: the next check comes to the same verdict.
    async fn act(
        &self,
        active: ActiveTask,
        seen: Observation,
        elapsed: Elapsed,
        verdict: Verdict,
        asks: Vec<(Ask, Duration)>,
    ) {
        let task = &active.task;
        let shown = verdict::progress(task, &seen, self.core.settings().last_message_characters);
        let written = match verdict {
            Verdict::GoesOn(phase, detail) => {
                self.ledger.show(&active, Progress { phase, detail, ..shown }).await
            }
            Verdict::Asks(open) => {
                self.asks.answer_by_policy(task, &asks).await;
                let detail = open.first().map(|ask| ask.what.clone());
                self.ledger.show(&active, Progress { phase: Phase::Blocked, detail, ..shown }).await
            }
            Verdict::Stalled => {
                let shown = Progress { phase: Phase::Stalled, ..shown };
                let end = self.ends.end_now(task, EndDetails::default());
                self.ledger.stall(&active, shown, elapsed.same, end).await
            }
            Verdict::Nudge => self.ledger.follow_up(task, FollowUp::Todos).await,
            Verdict::Continue => self.ledger.follow_up(task, FollowUp::Continue).await,
            Verdict::Resend => {
                self.ledger.resend(task, watched(&active).map(|watch| watch.prompt)).await
            }
            Verdict::Park(why) => self.ledger.park(task, shown, why).await,
            Verdict::Ended { report, open_todos } => {
                match self.fitting.check(&active, report).await {
                    Ok(Some(report)) => {
                        let progress = Some(Progress { phase: task.progress.phase, ..shown });
                        let closing = EndDetails { open_todos, progress, ..EndDetails::default() };
                        self.ends.conclude(task, task.state.report(report), closing).await;
                        Ok(())
                    }
                    // Asked again: the run goes on.
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Verdict::Stop(report) => {
                let report = self.with_whole_partial(task, &active.run.message_id, report).await;
                let progress = Some(Progress { phase: task.progress.phase, ..shown });
                let closing = EndDetails { progress, ..EndDetails::default() };
                self.ends.conclude(task, task.state.stop(report), closing).await;
                Ok(())
            }
        };
        if let Err(error) = written {
            let error = &error as &dyn std::error::Error;
            tracing::error!(
                task = %task.id,
                error,
                "verdict not written; retrying at the next check"
            );
        }
    }

    /// Replaces the truncated partial result by the whole one: progress is cut for display (T19), what is
    /// stored at the end is not.
    async fn with_whole_partial(&self, task: &Task, prompt: &MessageId, report: Report) -> Report {
        let (error, shown) = match report {
            Report::Failed { error, partial: Some(shown) } => (error, shown),
            other => return other,
        };
        let text = match self.transcripts.read(task).await {
            Ok(messages) => {
                let prompt = prompt.clone();
                let read = move || transcript::last_text(&messages, prompt.as_str());
                threads::run_blocking(read).await.ok().flatten()
            }
            Err(_) => None,
        };
        // The transcript may be behind what was shown. Taken only if it ends as the shown text does.
        let is_whole =
            |text: &String| shown.strip_prefix('…').is_some_and(|end| text.ends_with(end));
        let partial = text.filter(is_whole).map_or(shown, Arc::from);
        Report::Failed { error, partial: Some(partial) }
    }

    /// Cancels the live tasks of parents that no longer exist and clears their lists (T16).
    async fn check_parents(&self, name: &str, parents: Vec<SessionId>) {
        let Ok(host) = self.core.host(name) else { return };
        // An error proves nothing: only a host that answers can say that a parent is gone.
        let places = parents.iter().map(|parent| self.core.place(parent)).collect();
        let Ok(missing) = host.missing(places).await else { return };
        for parent in missing {
            if let Err(error) = self.ends.parent_is_gone(&parent).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    %parent,
                    error,
                    "tasks of a deleted parent not cancelled; retrying at the next check"
                );
            }
        }
    }
}

impl InFlightChecks {
    /// Takes in a finished check. `true` when the scope was woken again in the meantime.
    fn note(&mut self, done: Result<(Id, Memory), JoinError>) -> bool {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(scope) = self.scopes.remove(&id) else { return false };
        match done {
            Ok((_, memory)) => drop(self.memories.insert(scope.clone(), memory)),
            Err(error) => {
                tracing::error!(?scope, %error, "check panicked; repeated at the next sweep")
            }
        }
        self.again.remove(&scope)
    }
}

/// Observes in a task of its own, so that a panic of the adapter comes back as a value. It is aborted with
/// the check.
async fn observe_apart(
    host: &Arc<dyn Host>,
    watches: Vec<Watch>,
) -> Result<Result<Vec<Option<Observation>>, crate::host::Error>, tokio::task::JoinError> {
    let host = Arc::clone(host);
    let mut apart = JoinSet::from_iter([async move { host.observe(watches).await }]);
    apart.join_next().await.unwrap_or(Ok(Ok(Vec::new())))
}
