//! The reconciler: observes every active task, always the same way, judges what it sees (`verdict`), and
//! hands that to the components that write it (`ends`, `ledger`, `asks`). Level-triggered: events and the
//! timer only wake it, it takes no input, and lost or repeated events make no difference.
//!
//! Looks run concurrently, at most one per scope (the runs on one instance, the parents on one host), so that
//! a slow host delays only its own tasks. A wake-up during a look is remembered and causes another one. No
//! lock is held while a host is asked; a verdict that was overtaken meanwhile fails its optimistic write.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{Id, JoinError, JoinSet};

use super::Error;
use super::asks::OpenAsks;
use super::core::Core;
use super::ends::{Closing, Ends};
use super::ledger::Ledger;
use super::memory::{Memory, watched};
use super::transcript::Transcripts;
use super::turns::Bell;
use super::verdict::{self, Since, Verdict};
use crate::host::{self, Ask, Host, Observation, Watch};
use crate::store::{Active, FollowUp};
use crate::task::lifecycle::Report;
use crate::task::{MAILBOX, MessageId, Phase, Progress, SessionId, Task};
use crate::threads;
use crate::transcript;

/// The timer's interval while there is nothing to look at.
const NEVER: Duration = Duration::from_secs(86_400);

/// The unit of concurrency: one look at a time per scope, scopes independent of each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Scope {
    /// The runs on an instance of a host.
    Runs { host: String, instance: String },
    /// The parents on a host.
    Parents { host: String },
}

enum Sight {
    Runs(Vec<Active>),
    Parents(Vec<SessionId>),
}

/// Looks under way, and the memories that they leave for the next ones.
#[derive(Default)]
struct Looks {
    under_way: JoinSet<Memory>,
    scopes: HashMap<Id, Scope>,
    /// Woken again while a look was under way.
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
    pub(super) transcripts: Transcripts,
    /// Something may have ended.
    pub(super) bell: Bell,
}

impl Reconciler {
    pub(super) async fn run(self) {
        let mut looks = Looks::default();
        loop {
            let active = self.look(&mut looks).unwrap_or_else(|error| {
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
                    Some(done) = looks.under_way.join_next_with_id() => {
                        if looks.note(done) {
                            break;
                        }
                    }
                    () = self.core.stopping().cancelled() => return,
                }
            }
        }
    }

    /// Starts a look at every scope that has none under way. Returns whether there are active tasks.
    fn look(&self, looks: &mut Looks) -> Result<bool, Error> {
        let active = self.core.store().tasks().active()?;
        self.asks.keep_only(|id| active.iter().any(|active| active.task.id == *id));
        let any = !active.is_empty();
        let mut sights: BTreeMap<Scope, Sight> = BTreeMap::new();
        for (host, session) in self.core.store().tasks().live_parents()? {
            if host != MAILBOX {
                let sight = sights.entry(Scope::Parents { host });
                if let Sight::Parents(all) = sight.or_insert(Sight::Parents(Vec::new())) {
                    all.push(session);
                }
            }
        }
        for active in active.into_iter().filter(|active| watched(active).is_some()) {
            let (host, instance) =
                (active.task.origin.host.clone(), active.task.origin.host_instance.clone());
            let sight = sights.entry(Scope::Runs { host, instance });
            if let Sight::Runs(all) = sight.or_insert(Sight::Runs(Vec::new())) {
                all.push(active);
            }
        }
        // Memories of scopes without tasks are dropped.
        looks.memories.retain(|scope, _| sights.contains_key(scope));
        for (scope, sight) in sights {
            // The look under way may have read the state before the event: look again after it.
            if looks.scopes.values().any(|busy| *busy == scope) {
                looks.again.insert(scope);
                continue;
            }
            let memory = looks.memories.remove(&scope).unwrap_or_default();
            let look = looks.under_way.spawn(self.clone().look_at(scope.clone(), sight, memory));
            looks.scopes.insert(look.id(), scope);
        }
        Ok(any)
    }

    async fn look_at(self, scope: Scope, sight: Sight, mut memory: Memory) -> Memory {
        match (scope, sight) {
            (Scope::Runs { host, .. }, Sight::Runs(active)) => {
                self.look_at_runs(&host, active, &mut memory).await;
            }
            (Scope::Parents { host }, Sight::Parents(parents)) => {
                self.look_for_parents(&host, parents).await;
            }
            (Scope::Runs { .. }, Sight::Parents(_)) | (Scope::Parents { .. }, Sight::Runs(_)) => {}
        }
        memory
    }

    async fn look_at_runs(&self, name: &str, active: Vec<Active>, memory: &mut Memory) {
        memory.keep_only(&active);
        let host = match self.core.host(name) {
            Ok(host) => host,
            // The host is not configured any more: nobody can say what became of its runs.
            Err(error) => {
                let error = format!("interrupted: {error}");
                for active in active {
                    let report = Report::Failed { error: error.clone(), partial: None };
                    let change = active.task.state.report(report);
                    self.ends.conclude(&active.task, change, Closing::default()).await;
                }
                return;
            }
        };
        let seen = self.observe(host, &active, &mut memory.silent).await;
        let seen = active.into_iter().zip(seen);
        let judged: Vec<_> = seen
            .filter_map(|(active, seen)| {
                let seen = seen?;
                let since = memory.note(&active, &seen, self.core.clock());
                let verdict = verdict::judge(&active, &seen, since, self.core.settings());
                let asks = self.asks.note(&active.task, verdict.asks());
                let asks = memory.asks_waiting(asks, self.core.clock());
                Some(self.act(active, seen, since, verdict, asks))
            })
            .collect();
        join_all(judged).await;
    }

    /// What each of these runs looks like; `None` where that is unknown for now.
    async fn observe(
        &self,
        host: &Arc<dyn Host>,
        active: &[Active],
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
                            self.ends.blame(&active.task, "looking at it").await;
                            None
                        }
                    }
                });
                join_all(each).await
            }
        }
    }

    /// Runs on an unreachable host: shown as retrying, and failed once that has lasted for `gone`.
    async fn out_of_reach(&self, active: &[Active], error: &host::Error, lasted: Duration) {
        let why = error.to_string();
        for active in active {
            if lasted < self.core.settings().gone {
                self.ledger.show_retrying(active, why.clone()).await;
                continue;
            }
            // `stop`: should the host come back, the session is aborted there.
            let report = verdict::unreachable(&why, self.core.settings().gone);
            let change = active.task.state.stop(report);
            self.ends.conclude(&active.task, change, Closing::default()).await;
        }
    }

    /// Carries out a verdict. A failed write is logged only: the next look comes to the same verdict.
    async fn act(
        &self,
        active: Active,
        seen: Observation,
        since: Since,
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
                let end = self.ends.end_now(task, Closing::default());
                self.ledger.stall(&active, shown, since.same, end).await
            }
            Verdict::Nudge => self.ledger.follow_up(task, FollowUp::Todos).await,
            Verdict::Continue => self.ledger.follow_up(task, FollowUp::Continue).await,
            Verdict::Resend => {
                self.ledger.resend(task, watched(&active).map(|watch| watch.prompt)).await
            }
            Verdict::Park(why) => self.ledger.park(task, shown, why).await,
            Verdict::Ended { report, open_todos } => {
                let progress = Some(Progress { phase: task.progress.phase, ..shown });
                let closing = Closing { open_todos, progress, ..Closing::default() };
                self.ends.conclude(task, task.state.report(report), closing).await;
                Ok(())
            }
            Verdict::Stop(report) => {
                let report = self.with_whole_partial(task, &active.run.message_id, report).await;
                let progress = Some(Progress { phase: task.progress.phase, ..shown });
                let closing = Closing { progress, ..Closing::default() };
                self.ends.conclude(task, task.state.stop(report), closing).await;
                Ok(())
            }
        };
        if let Err(error) = written {
            let error = &error as &dyn std::error::Error;
            tracing::error!(
                task = %task.id,
                error,
                "verdict not written; retrying at the next look"
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
        let said = match self.transcripts.read(task).await {
            Ok(messages) => {
                let prompt = prompt.clone();
                let read = move || transcript::said(&messages, prompt.as_str());
                threads::apart(read).await.ok().flatten()
            }
            Err(_) => None,
        };
        // The transcript may be behind what was shown. Taken only if it ends as the shown text does.
        let is_whole =
            |said: &String| shown.strip_prefix('…').is_some_and(|end| said.ends_with(end));
        let partial = said.filter(is_whole).map_or(shown, Arc::from);
        Report::Failed { error, partial: Some(partial) }
    }

    /// Cancels the live tasks of parents that no longer exist and clears their lists (T16).
    async fn look_for_parents(&self, name: &str, parents: Vec<SessionId>) {
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
                    "tasks of a deleted parent not cancelled; retrying at the next look"
                );
            }
        }
    }
}

impl Looks {
    /// Takes in a finished look. `true` when the scope was woken again in the meantime.
    fn note(&mut self, done: Result<(Id, Memory), JoinError>) -> bool {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(scope) = self.scopes.remove(&id) else { return false };
        match done {
            Ok((_, memory)) => drop(self.memories.insert(scope.clone(), memory)),
            Err(error) => {
                tracing::error!(?scope, %error, "look panicked; repeated at the next sweep")
            }
        }
        self.again.remove(&scope)
    }
}

/// Observes in a task of its own, so that a panic of the adapter comes back as a value. It is aborted with
/// the look.
async fn observe_apart(
    host: &Arc<dyn Host>,
    watches: Vec<Watch>,
) -> Result<Result<Vec<Option<Observation>>, crate::host::Error>, tokio::task::JoinError> {
    let host = Arc::clone(host);
    let mut apart = JoinSet::from_iter([async move { host.observe(watches).await }]);
    apart.join_next().await.unwrap_or(Ok(Ok(Vec::new())))
}
