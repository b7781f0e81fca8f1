//! The reconciler: looks at every active task, always the same way, and writes down what it sees.
//! Events and the timer only wake it; it takes no input.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::{Id, JoinError, JoinSet};

use super::verdict::{self, Since, Verdict};
use super::{Asked, Asks, Error, Supervisor};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::host::metered::Metered;
use crate::host::{self, Activity, Answer, Ask, Host, Observation, Watch};
use crate::store::{self, Active, End, FollowUp};
use crate::task::lifecycle::{Change, Effect, Refused, Report};
use crate::task::{MAILBOX, MessageId, Phase, Progress, SessionId, Task, TaskId, Timestamp};
use crate::threads;
use crate::transcript;

/// No sooner than this does a timer ring that is not needed.
const NEVER: Duration = Duration::from_secs(86_400);

const BETWEEN_ABORTS: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// What is remembered between two looks. Losing it costs time, never truth.
#[derive(Default)]
struct Memory {
    runs: HashMap<TaskId, Seen>,
    /// Uptime when each open question was first seen here, and how old it was then.
    asks: HashMap<String, (Duration, Duration)>,
    /// Since when the host has not answered.
    silent: Option<Duration>,
}

struct Seen {
    run: u32,
    /// What it is watched for, when that was sent, and since when it is watched.
    prompt: (MessageId, Timestamp),
    prompt_since: Duration,
    observation: Observation,
    /// Uptime when it began to look like this.
    since: Duration,
    /// Uptime when this run was first seen, and how old it was then.
    first: Duration,
    age: Duration,
    /// How long it had been without a slot by then.
    waited: Duration,
}

/// What else is written with an end.
#[derive(Default)]
pub(super) struct Closing {
    pub(super) open_todos: Vec<String>,
    pub(super) progress: Option<Progress>,
    /// Set when the parent knows already.
    pub(super) hushed: bool,
}

/// What is looked at as a whole, and by itself: a host that is slow holds up nobody else.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    /// The runs on an instance of a host.
    Runs { host: String, instance: String },
    /// The parents on a host.
    Parents { host: String },
}

enum Sight {
    Runs(Vec<Active>),
    Parents(Vec<SessionId>),
}

/// Looks under way, and what they left behind for the next ones.
#[derive(Default)]
struct Looks {
    under_way: JoinSet<Memory>,
    places: HashMap<Id, Place>,
    /// Wanted again while they were under way.
    again: HashSet<Place>,
    memories: HashMap<Place, Memory>,
}

impl Supervisor {
    pub(super) async fn reconciler(self) {
        let mut looks = Looks::default();
        loop {
            let active = self.look(&mut looks).unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot look at tasks");
                true
            });
            // Without active tasks there is nothing a timer could find.
            let timer = if active { self.0.settings.poll_interval } else { NEVER };
            let sweep = tokio::time::Instant::now() + timer;
            loop {
                tokio::select! {
                    () = self.0.look.notified() => break,
                    () = tokio::time::sleep_until(sweep) => break,
                    Some(done) = looks.under_way.join_next_with_id() => {
                        if looks.note(done) {
                            break;
                        }
                    }
                    () = self.0.stopping.cancelled() => return,
                }
            }
        }
    }

    /// Begins a look at everything. Says whether there is anything to look at.
    fn look(&self, looks: &mut Looks) -> Result<bool, Error> {
        let active = self.0.store.tasks().active()?;
        self.keep_asks_of(|id| active.iter().any(|active| active.task.id == *id));
        let any = !active.is_empty();
        let mut sights: BTreeMap<Place, Sight> = BTreeMap::new();
        for (host, session) in self.0.store.tasks().live_parents()? {
            if host != MAILBOX {
                let sight = sights.entry(Place::Parents { host });
                if let Sight::Parents(all) = sight.or_insert(Sight::Parents(Vec::new())) {
                    all.push(session);
                }
            }
        }
        for active in active.into_iter().filter(|active| watched(active).is_some()) {
            let (host, instance) =
                (active.task.origin.host.clone(), active.task.origin.host_instance.clone());
            let sight = sights.entry(Place::Runs { host, instance });
            if let Sight::Runs(all) = sight.or_insert(Sight::Runs(Vec::new())) {
                all.push(active);
            }
        }
        looks.memories.retain(|place, _| sights.contains_key(place));
        for (place, sight) in sights {
            if looks.places.values().any(|busy| *busy == place) {
                looks.again.insert(place);
                continue;
            }
            let memory = looks.memories.remove(&place).unwrap_or_default();
            let look = looks.under_way.spawn(self.clone().look_at(place.clone(), sight, memory));
            looks.places.insert(look.id(), place);
        }
        Ok(any)
    }

    async fn look_at(self, place: Place, sight: Sight, mut memory: Memory) -> Memory {
        match (place, sight) {
            (Place::Runs { host, .. }, Sight::Runs(active)) => {
                self.look_at_runs(&host, active, &mut memory).await;
            }
            (Place::Parents { host }, Sight::Parents(parents)) => {
                self.look_for_parents(&host, parents).await;
            }
            (Place::Runs { .. }, Sight::Parents(_)) | (Place::Parents { .. }, Sight::Runs(_)) => {}
        }
        memory
    }

    async fn look_at_runs(&self, name: &str, active: Vec<Active>, memory: &mut Memory) {
        memory.keep_only(&active);
        let host = match self.host(name) {
            Ok(host) => host,
            // Nobody will ever say what became of them.
            Err(error) => {
                let error = format!("interrupted: {error}");
                for active in active {
                    let report = Report::Failed { error: error.clone(), partial: None };
                    let change = active.task.state.report(report);
                    self.conclude(&active.task, change, Closing::default()).await;
                }
                return;
            }
        };
        let seen = self.observe(host, &active, &mut memory.silent).await;
        let seen = active.into_iter().zip(seen);
        let judged: Vec<_> = seen
            .filter_map(|(active, seen)| {
                let seen = seen?;
                let since = memory.note(&active, &seen, &self.0.clock);
                let verdict = verdict::judge(&active, &seen, since, &self.0.settings);
                let asks = self.note_asks(&active.task, verdict.asks());
                let asks = memory.asks_waiting(asks, &self.0.clock);
                Some(self.act(active, seen, since, verdict, asks))
            })
            .collect();
        join_all(judged).await;
    }

    /// What each of these runs looks like; `None` where the host did not say.
    async fn observe(
        &self,
        host: &Metered,
        active: &[Active],
        silent: &mut Option<Duration>,
    ) -> Vec<Option<Observation>> {
        let watches: Vec<Watch> = active.iter().filter_map(watched).collect();
        let name = active.first().map(|active| active.task.origin.host.clone()).unwrap_or_default();
        match observe_apart(host, watches.clone()).await {
            Ok(Ok(seen)) if seen.len() == watches.len() => {
                if silent.take().is_some() {
                    tracing::info!(host = name, "host answers again");
                }
                seen
            }
            Ok(Ok(_)) => vec![None; active.len()],
            Ok(Err(error)) => {
                let uptime = self.0.clock.uptime();
                // Once is enough: it is asked again at every sweep.
                let since = *silent.get_or_insert_with(|| {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        host = name,
                        error,
                        "host does not answer; its runs are retried"
                    );
                    uptime
                });
                self.out_of_reach(active, &error, uptime.saturating_sub(since)).await;
                vec![None; active.len()]
            }
            // Somebody's transcript makes the adapter panic: find out whose, and blame only that.
            Err(_) => {
                let each = active.iter().zip(watches).map(|(active, watch)| async move {
                    match observe_apart(host, vec![watch]).await {
                        Ok(Ok(mut seen)) => seen.pop().flatten(),
                        Ok(Err(_)) => None,
                        Err(_) => {
                            self.blame(&active.task, "looking at it").await;
                            None
                        }
                    }
                });
                join_all(each).await
            }
        }
    }

    /// Runs on a host that does not answer: shown, and given up after a while.
    async fn out_of_reach(&self, active: &[Active], error: &host::Error, lasted: Duration) {
        let why = error.to_string();
        for active in active {
            if lasted < self.0.settings.gone {
                self.show_retrying(active, why.clone()).await;
                continue;
            }
            let report = verdict::unreachable(&why, self.0.settings.gone);
            let change = active.task.state.stop(report);
            self.conclude(&active.task, change, Closing::default()).await;
        }
    }

    /// Says why nothing comes of a run for the moment.
    pub(super) async fn show_retrying(&self, active: &Active, why: String) {
        let shown = active.task.progress.clone();
        let progress = Progress { phase: Phase::Retrying, detail: Some(why), ..shown };
        if let Err(error) = self.show(active, progress).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(task = %active.task.id, error, "progress not written");
        }
    }

    async fn act(
        &self,
        active: Active,
        seen: Observation,
        since: Since,
        verdict: Verdict,
        asks: Vec<(Ask, Duration)>,
    ) {
        let task = &active.task;
        let shown = verdict::progress(task, &seen, self.0.settings.last_message_characters);
        let written = match verdict {
            Verdict::GoesOn(phase, detail) => {
                self.show(&active, Progress { phase, detail, ..shown }).await
            }
            Verdict::Asks(open) => {
                self.answer_by_policy(task, &asks).await;
                let detail = open.first().map(|ask| ask.what.clone());
                self.show(&active, Progress { phase: Phase::Blocked, detail, ..shown }).await
            }
            Verdict::Stalled => {
                self.stall(&active, Progress { phase: Phase::Stalled, ..shown }, since).await
            }
            Verdict::Nudge => self.follow_up(task, FollowUp::Todos).await,
            Verdict::Continue => self.follow_up(task, FollowUp::Continue).await,
            Verdict::Resend => {
                let prompt = watched(&active).map(|watch| watch.prompt);
                let lost = match prompt {
                    Some(prompt) => self.0.store.tasks().prompt_lost(task, &prompt).await,
                    None => Ok(()),
                };
                self.0.prompts.notify_one();
                lost
            }
            Verdict::Park(why) => self.park(task, shown, why).await,
            Verdict::Ended { report, open_todos } => {
                let progress = Some(Progress { phase: task.progress.phase, ..shown });
                let closing = Closing { open_todos, progress, ..Closing::default() };
                self.conclude(task, task.state.report(report), closing).await;
                Ok(())
            }
            Verdict::Stop(report) => {
                let report = self.with_whole_partial(task, &active.run.message_id, report).await;
                let progress = Some(Progress { phase: task.progress.phase, ..shown });
                let closing = Closing { progress, ..Closing::default() };
                self.conclude(task, task.state.stop(report), closing).await;
                Ok(())
            }
        };
        if let Err(error) = written {
            let error = &error as &dyn std::error::Error;
            tracing::error!(task = %task.id, error, "cannot write down what was seen");
        }
    }

    /// It gives its slot to another one, and waits for what it lacks.
    pub(super) async fn park(
        &self,
        task: &Task,
        shown: Progress,
        why: String,
    ) -> Result<(), store::Error> {
        tracing::warn!(task = %task.id, why, "put back");
        let progress = Progress { detail: Some(why), ..shown };
        self.0.store.slots().park(task, progress, self.0.clock.now()).await?;
        self.0.prompts.notify_one();
        Ok(())
    }

    /// What is shown of a run while it goes on is cut (T19); what is kept of it at its end is not.
    async fn with_whole_partial(&self, task: &Task, prompt: &MessageId, report: Report) -> Report {
        let (error, shown) = match report {
            Report::Failed { error, partial: Some(shown) } => (error, shown),
            other => return other,
        };
        let said = match self.transcript(task).await {
            Ok(messages) => {
                let prompt = prompt.clone();
                let read = move || transcript::said(&messages, prompt.as_str());
                threads::apart(read).await.ok().flatten()
            }
            Err(_) => None,
        };
        // The newest part may be in nobody's transcript yet.
        let is_whole =
            |said: &String| shown.strip_prefix('…').is_some_and(|end| said.ends_with(end));
        let partial = said.filter(is_whole).map_or(shown, Arc::from);
        Report::Failed { error, partial: Some(partial) }
    }

    /// Writes an end that the lifecycle allows. `false` when the news was stale.
    pub(super) async fn conclude(
        &self,
        task: &Task,
        change: Option<Change>,
        closing: Closing,
    ) -> bool {
        let Some(change) = change else { return false };
        match self.apply(task, change, closing).await {
            Ok(ended) => ended.is_some(),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(task = %task.id, error, "cannot write an end; will look again");
                false
            }
        }
    }

    /// The one way to an end: writes it with what is owed for it, and carries that out. `None` when the
    /// task moved on since it was read.
    pub(super) async fn apply(
        &self,
        task: &Task,
        change: Change,
        closing: Closing,
    ) -> Result<Option<Task>, Error> {
        let effects = change.effects.clone();
        let end = self.end_now(task, closing);
        let Some(ended) = self.0.store.tasks().end(task, change, end).await? else {
            return Ok(None);
        };
        tracing::info!(task = %ended.id, status = ended.status().name(), "ended");
        let mut failed = None;
        for effect in effects {
            match effect {
                Effect::CancelDescendants => failed = self.cancel_descendants(&ended).await.err(),
                // What is owed stays owed until both are done; `recover` goes on with it.
                Effect::AbortSession if failed.is_some() => {}
                Effect::AbortSession => self.abort(&ended),
                Effect::NotifyParent(_) => self.told_of_an_end(),
                Effect::SendPrompt => self.0.prompts.notify_one(),
            }
        }
        failed.map_or(Ok(Some(ended)), Err)
    }

    pub(super) fn end_now(&self, task: &Task, closing: Closing) -> End {
        let kept = self.host(&task.origin.host).is_ok_and(|host| host.keeps_transcripts());
        End {
            at: self.0.clock.now(),
            message_id: self.0.clock.message_id(),
            wake: !closing.hushed,
            open_todos: closing.open_todos,
            progress: closing.progress,
            transcript: !kept,
        }
    }

    /// A slot is free and a parent is owed a notice.
    pub(super) fn told_of_an_end(&self) {
        self.0.notices.notify_one();
        self.0.prompts.notify_one();
        self.0.ends.notify_one();
    }

    /// A panic in one task's work fails that task only.
    pub(super) async fn blame(&self, task: &Task, doing: &str) {
        tracing::error!(task = %task.id, "panicked while {doing}");
        let error = format!("internal error while {doing}; see the daemon's log");
        let report = Report::Failed { error, partial: None };
        self.conclude(task, task.state.stop(report), Closing::default()).await;
    }

    /// Aborts without waiting for the abort (T8). It is tried until it succeeds; that it is owed is
    /// on disk, for the case that we die before.
    pub(super) fn abort(&self, task: &Task) {
        let (supervisor, task) = (self.clone(), task.clone());
        tokio::spawn(async move {
            let mut tries = 0;
            while !supervisor.abort_now(&task, task.run).await {
                tokio::select! {
                    () = tokio::time::sleep(BETWEEN_ABORTS.pause(tries)) => {}
                    () = supervisor.0.stopping.cancelled() => return,
                }
                tries += 1;
            }
        });
    }

    /// `false`: the host could not be reached.
    pub(super) async fn abort_now(&self, task: &Task, run: u32) -> bool {
        // A resume waits for it: one that is slow to arrive would stop the next run.
        let _turn = self.stopping_of(&task.id).lock_owned().await;
        self.abort_in_turn(task, run).await
    }

    /// Held while a session is being stopped, and while a run begins in it.
    pub(super) fn stopping_of(&self, id: &TaskId) -> Arc<tokio::sync::Mutex<()>> {
        self.turn(&format!("stop {id}"))
    }

    /// For whoever holds that turn.
    pub(super) async fn abort_in_turn(&self, task: &Task, run: u32) -> bool {
        // A later run has taken the session over; there is nothing left of this one to stop.
        let current = self.0.store.tasks().get(&task.id).ok().flatten();
        let superseded = current.is_none_or(|now| now.run != run || now.is_live());
        let aborted = match self.host(&task.origin.host) {
            _ if superseded => Ok(()),
            Ok(host) => host.abort(&task.id).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match aborted {
            // A host that is no longer configured has nobody who could be told.
            Ok(())
            | Err(Error::Host(host::Error::NoSuchSession(_)) | Error::UnknownHost { .. }) => {
                self.0.store.tasks().abort_sent(&task.id, run).await.is_ok()
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(task = %task.id, error, "cannot abort its session yet");
                false
            }
        }
    }

    async fn show(&self, active: &Active, progress: Progress) -> Result<(), store::Error> {
        let task = &active.task;
        if active.run.stalled {
            // Still quiet: it stays stalled until something moves.
            if same_figures(&task.progress, &progress) && progress.phase != Phase::Blocked {
                return Ok(());
            }
            self.0.store.tasks().unstall(task).await?;
        }
        self.show_figures(task, progress).await
    }

    async fn show_figures(&self, task: &Task, progress: Progress) -> Result<(), store::Error> {
        let last_update = match same_figures(&task.progress, &progress) {
            true => task.progress.last_update,
            false => self.0.clock.now(),
        };
        let progress = Progress { last_update, ..progress };
        if progress == task.progress {
            return Ok(());
        }
        self.0.store.tasks().set_progress(task, progress).await
    }

    async fn stall(
        &self,
        active: &Active,
        progress: Progress,
        since: Since,
    ) -> Result<(), store::Error> {
        // Told once. What goes in circles has figures that go on.
        if active.run.stalled {
            return self.show_figures(&active.task, progress).await;
        }
        let progress = Progress { last_update: active.task.progress.last_update, ..progress };
        let end = self.end_now(&active.task, Closing::default());
        if self.0.store.tasks().stall(&active.task, progress, since.same, end).await? {
            tracing::warn!(task = %active.task.id, "stalled");
            self.0.notices.notify_one();
        }
        Ok(())
    }

    async fn follow_up(&self, task: &Task, follow_up: FollowUp) -> Result<(), store::Error> {
        let message = self.0.clock.message_id();
        if self.0.store.tasks().owe_follow_up(task, follow_up, message).await? {
            self.0.prompts.notify_one();
        }
        Ok(())
    }

    async fn answer_by_policy(&self, task: &Task, asks: &[(Ask, Duration)]) {
        for (ask, waiting) in asks {
            let answer = match self.0.settings.asks {
                Asks::Allow => Answer::Allow,
                Asks::Deny => Answer::Deny,
                Asks::Park(Some(longest)) if *waiting >= longest => Answer::Deny,
                Asks::Park(_) => continue,
            };
            let answered = match self.host(&task.origin.host) {
                Ok(host) => host.answer(&task.id, &ask.id, answer).await.map_err(Error::from),
                Err(error) => Err(error),
            };
            if let Err(error) = answered {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(task = %task.id, error, "cannot answer what it asks");
            }
        }
    }

    /// Cancels the live tasks of parents that no longer exist and clears their lists (T16).
    async fn look_for_parents(&self, name: &str, parents: Vec<SessionId>) {
        let Ok(host) = self.host(name) else { return };
        // A host that does not answer has lost nobody.
        let Ok(missing) = host.missing(parents).await else { return };
        for parent in missing {
            if let Err(error) = self.parent_is_gone(&parent).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(%parent, error, "cannot write down that a parent is gone");
            }
        }
    }

    async fn parent_is_gone(&self, parent: &SessionId) -> Result<(), Error> {
        let mut failed = None;
        for task in self.0.store.tasks().live(Some(parent))? {
            match self.cancel_one(task, None, Some("Parent session deleted")).await {
                // Or it ended by itself in the meantime.
                Ok(_) | Err(Error::Refused(Refused::AlreadyOver)) => {}
                // One that cannot be cancelled now does not keep the others running.
                Err(error) => failed = Some(error),
            }
        }
        self.0.store.tasks().clear(parent, self.0.clock.now()).await?;
        failed.map_or(Ok(()), Err)
    }
}

impl Looks {
    /// `true` when somebody wanted the same look again in the meantime.
    fn note(&mut self, done: Result<(Id, Memory), JoinError>) -> bool {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(place) = self.places.remove(&id) else { return false };
        match done {
            Ok((_, memory)) => drop(self.memories.insert(place.clone(), memory)),
            Err(error) => tracing::error!(?place, %error, "a look panicked; it is done again"),
        }
        self.again.remove(&place)
    }
}

impl Memory {
    fn keep_only(&mut self, active: &[Active]) {
        let live: HashSet<&TaskId> = active.iter().map(|active| &active.task.id).collect();
        self.runs.retain(|id, _| live.contains(id));
        let open: HashSet<&str> =
            self.runs.values().flat_map(|seen| asks(&seen.observation)).collect();
        self.asks.retain(|id, _| open.contains(id.as_str()));
    }

    fn note(&mut self, active: &Active, observation: &Observation, clock: &Clock) -> Since {
        let (uptime, run) = (clock.uptime(), active.task.run);
        // Time in the queue is not time at work.
        let began = active.run.sent_at.unwrap_or(active.run.started_at);
        let waited = active.run.waited;
        let prompt = newest_prompt(active);
        let prompt = prompt.unwrap_or((active.run.message_id.clone(), active.run.started_at));
        let fresh = |first, age, prompt_since| Seen {
            run,
            prompt: prompt.clone(),
            prompt_since,
            observation: observation.clone(),
            since: uptime,
            first,
            age,
            waited,
        };
        let age = clock.now().since(began).saturating_sub(waited);
        let known = self.runs.remove(&active.task.id).filter(|seen| seen.waited == waited);
        let seen = match known {
            Some(seen) if seen.run == run && seen.prompt.0 == prompt.0 => {
                // One that is sent again gets its time again.
                match seen.prompt.1 == prompt.1 && seen.observation == *observation {
                    true => seen,
                    false => fresh(seen.first, seen.age, seen.prompt_since),
                }
            }
            Some(seen) if seen.run == run => fresh(seen.first, seen.age, uptime),
            Some(_) | None => fresh(uptime, age, uptime),
        };
        let since = Since {
            same: uptime.saturating_sub(seen.since),
            wall: seen.age + uptime.saturating_sub(seen.first),
            prompt: uptime.saturating_sub(seen.prompt_since),
        };
        self.runs.insert(active.task.id.clone(), seen);
        since
    }

    /// How long each open question has been waiting, also before we were started. The wall clock
    /// says how old one was when it was first seen here; from then on a clock that does not jump.
    fn asks_waiting(&mut self, open: Vec<Asked>, clock: &Clock) -> Vec<(Ask, Duration)> {
        let (now, uptime) = (clock.now(), clock.uptime());
        let wait = |Asked { ask, since, .. }: Asked| {
            let seen = self.asks.entry(ask.id.clone()).or_insert((uptime, now.since(since)));
            let waited = seen.1 + uptime.saturating_sub(seen.0);
            (ask, waited)
        };
        open.into_iter().map(wait).collect()
    }
}

fn asks(observation: &Observation) -> impl Iterator<Item = &str> {
    let asks = match &observation.activity {
        Activity::Blocked(asks) => asks.as_slice(),
        Activity::Idle
        | Activity::Waiting
        | Activity::Streaming
        | Activity::Tool
        | Activity::Retrying(_)
        | Activity::Gone
        | Activity::Lacking(_)
        | Activity::Lost(_) => &[],
    };
    asks.iter().map(|ask| ask.id.as_str())
}

/// The run as the host knows it: from its newest prompt on. `None` while a prompt is still owed.
fn watched(active: &Active) -> Option<Watch> {
    let task = &active.task;
    Some(Watch {
        session: task.id.clone(),
        prompt: newest_prompt(active)?.0,
        instance: task.origin.host_instance.clone(),
        directory: task.origin.directory.clone(),
    })
}

/// The prompt that was sent last, and when. `None` while one is still owed.
fn newest_prompt(active: &Active) -> Option<(MessageId, Timestamp)> {
    let run = &active.run;
    let mut newest: (&MessageId, Timestamp) = (&run.message_id, run.sent_at?);
    let follow_ups = [(&run.nudge_id, run.nudge_sent_at), (&run.continue_id, run.continue_sent_at)];
    for (id, sent_at) in follow_ups {
        if let Some(id) = id {
            let sent_at = sent_at?;
            if sent_at > newest.1 || (sent_at == newest.1 && id > newest.0) {
                newest = (id, sent_at);
            }
        }
    }
    Some((newest.0.clone(), newest.1))
}

/// In a task of its own, so that a panic of the adapter comes back as a value.
async fn observe_apart(
    host: &Metered,
    watches: Vec<Watch>,
) -> Result<Result<Vec<Option<Observation>>, crate::host::Error>, tokio::task::JoinError> {
    let host = host.clone();
    tokio::spawn(async move { host.observe(watches).await }).await
}

fn same_figures(one: &Progress, other: &Progress) -> bool {
    let bare = |progress: &Progress| Progress {
        phase: Phase::Waiting,
        last_update: Timestamp::from_millis(0),
        detail: None,
        ..progress.clone()
    };
    bare(one) == bare(other)
}
