//! One OpenCode process: health checks, its event stream, and observations of its sessions.
//!
//! `attend` is a reconnect loop with back-off: health check, event stream, and again. The stream feeds a
//! cache of session states (`mirror`) and wakes the reconciler; progress alone is debounced. An observation
//! reads only what the cache cannot vouch for, so that thousands of tasks at rest cost less than two
//! requests a second. Events may be lost, late or repeated: status and asks of each directory are also
//! polled in turns (`Rounds`).
//!
//! Locks are taken in the order mirror, rounds, and never held while the server is asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::OpenCode;
use super::client::{Client, HealthError};
use super::events::Events;
use super::mirror::{Mirror, Need, Wake};
use super::translate;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::host::{Activity, Error, Observation, Watch};
use crate::task::{MessageId, SessionId};
use crate::transcript::{Figures, Outcome};

/// Timeouts of health checks. A starting server never answers what it was sent too early (G1), so the first
/// is short; one that starts hundreds of runs answers after 20 s, so the last is long.
pub(super) const HEALTH_TIMEOUTS: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// The server sends a heartbeat every 10 seconds: after three missed ones the connection counts as dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(35);

/// How long a call waits for the first health check of a server.
const UNTIL_KNOWN: Duration = Duration::from_secs(10);

/// How often progress alone wakes the reconciler.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// Concurrent requests while many sessions are read.
const AT_ONCE: usize = 16;

// Polling intervals, each for one directory or parent in turn: at rest they add up to less than two
// requests a second, however many tasks there are.
const BETWEEN_STATUSES: Duration = Duration::from_secs(1);
const BETWEEN_ASKS: Duration = Duration::from_secs(5);
const BETWEEN_PARENTS: Duration = Duration::from_secs(4);

/// Bound on deleted sessions that are remembered until `missing` asks; the polling finds the others.
const MOST_DOUBTFUL: usize = 10_000;

pub(super) struct Instance {
    pub(super) name: String,
    /// Without its password.
    pub(super) address: String,
    pub(super) client: Client,
    /// Fingerprint of the login in use, for servers that callers name.
    pub(super) login: u32,
    clock: Clock,
    arrived: Arc<Notify>,
    health: watch::Sender<ServerHealth>,
    mirror: Mutex<Mirror>,
    rounds: Mutex<Rounds>,
    leave: CancellationToken,
}

/// The result of the last health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHealth {
    Looking,
    Up {
        version: String,
    },
    Down {
        why: String,
    },
    /// It answers, and is of a version that we do not speak with.
    Foreign {
        why: String,
    },
}

/// Round-robin polling: whose turn it is, and when.
#[derive(Default)]
struct Rounds {
    statuses: Round,
    asks: Round,
    parents: Round,
    /// Sessions that were reported deleted and are not watched: perhaps parents. To be verified.
    doubtful: BTreeSet<SessionId>,
}

#[derive(Default)]
struct Round {
    last: Option<String>,
    due: Duration,
}

impl Round {
    /// The next one in turn, if it is time.
    fn next(&mut self, all: &BTreeSet<String>, now: Duration, every: Duration) -> Option<String> {
        if now < self.due || all.is_empty() {
            return None;
        }
        self.due = now + every;
        let after = self.last.as_ref().and_then(|last| all.iter().find(|name| *name > last));
        let next = after.or(all.first()).cloned();
        self.last.clone_from(&next);
        next
    }
}

impl Instance {
    pub(super) fn new(
        name: String,
        address: String,
        client: Client,
        clock: Clock,
        arrived: Arc<Notify>,
    ) -> Instance {
        // Versions continue from the clock, so that none of an earlier instance of the same name comes again
        // and a cached transcript is never taken for current.
        let first = clock.tick();
        Instance {
            arrived,
            name,
            address,
            client,
            login: 0,
            clock,
            health: watch::Sender::new(ServerHealth::Looking),
            mirror: Mutex::new(Mirror::new(first)),
            rounds: Mutex::default(),
            leave: CancellationToken::new(),
        }
    }

    /// Ends the listener: the instance has been replaced or removed.
    pub(super) fn leave(&self) {
        self.leave.cancel();
    }

    pub(super) fn is_local(&self) -> bool {
        self.client.is_local()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.health.borrow(), ServerHealth::Up { .. })
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(*self.health.borrow(), ServerHealth::Down { .. } | ServerHealth::Foreign { .. })
    }

    /// The current state; waits a little for the first health check.
    pub(super) async fn health(&self) -> ServerHealth {
        let mut health = self.health.subscribe();
        let known = health.wait_for(|health| *health != ServerHealth::Looking);
        let _ = tokio::time::timeout(HEALTH_TIMEOUTS.first, known).await;
        self.health.borrow().clone()
    }

    /// The client, once a health check has succeeded. Nothing is sent before: a starting server would never
    /// answer it (G1).
    pub(super) async fn ready(&self) -> Result<&Client, Error> {
        let mut health = self.health.subscribe();
        let known = health.wait_for(|health| *health != ServerHealth::Looking);
        let known = tokio::time::timeout(UNTIL_KNOWN, known).await;
        match known {
            Ok(Ok(health)) => match &*health {
                ServerHealth::Up { .. } => Ok(&self.client),
                // Transient also when it is foreign: the right one may be started again.
                ServerHealth::Down { why } | ServerHealth::Foreign { why } => {
                    Err(Error::Unreachable(format!("{} {why}", self.called())))
                }
                ServerHealth::Looking => Err(self.silent()),
            },
            Ok(Err(_)) | Err(_) => Err(self.silent()),
        }
    }

    /// The same for a launch, which is refused by a server that we do not speak with.
    pub(super) async fn ready_to_launch(&self) -> Result<&Client, Error> {
        let ready = self.ready().await;
        match (ready, &*self.health.borrow()) {
            (Err(_), ServerHealth::Foreign { why }) => {
                Err(Error::Refused(format!("{} {why}", self.called())))
            }
            (ready, _) => ready,
        }
    }

    fn silent(&self) -> Error {
        Error::Unreachable(format!("{} does not answer yet", self.called()))
    }

    /// How errors call it. The generated name of a server that a caller named says nothing, so that is
    /// shown by its address.
    fn called(&self) -> String {
        match OpenCode::is_handed(&self.name) {
            true => format!("`{}` (ASYNCAGENTS_OPENCODE_URL):", self.address),
            false => format!("`{}`", self.name),
        }
    }

    /// Reconnects to the server and its event stream, until it is told to leave.
    pub(super) async fn attend(&self, wake: &Notify) {
        tokio::select! {
            () = self.attend_for_ever(wake) => {}
            () = self.leave.cancelled() => {}
        }
    }

    async fn attend_for_ever(&self, wake: &Notify) {
        let mut tries = 0;
        loop {
            self.find().await;
            let begun = self.clock.uptime();
            let ended = self.hear(wake).await;
            self.mirror().stop_listening();
            tracing::debug!(instance = self.name, ended, "event stream ended; reconnecting");
            // Pooled connections may lead to a process that has ended.
            self.client.renew();
            // `Looking` makes new calls wait (`ready`) and ends observations under way (`breaks_off`).
            if self.health.send_replace(ServerHealth::Looking) != ServerHealth::Looking {
                self.mirror().doubt();
                wake.notify_one();
            }
            // A stream that lasted is reconnected at once, one that keeps breaking with back-off.
            let held = self.clock.uptime().saturating_sub(begun) > PAUSES.longest;
            tries = if held { 0 } else { tries + 1 };
            self.answers_meanwhile().await;
            tokio::time::sleep(PAUSES.pause(tries)).await;
        }
    }

    /// Only the stream broke: if the server still answers, calls need not wait for the reconnect.
    async fn answers_meanwhile(&self) {
        if let Ok(health) = self.client.health(HEALTH_TIMEOUTS.first).await {
            self.health.send_replace(ServerHealth::Up { version: health.version });
        }
    }

    /// Returns when the server answers.
    async fn find(&self) {
        for tries in 0.. {
            let timeout = HEALTH_TIMEOUTS.pause(tries);
            match self.client.health(timeout).await {
                Ok(health) => {
                    let version = health.version;
                    let up = ServerHealth::Up { version: version.clone() };
                    if self.health.send_replace(up.clone()) != up {
                        tracing::info!(instance = self.name, version, "OpenCode server answers");
                        self.arrived.notify_one();
                    }
                    return;
                }
                // Probably starting: callers in `ready` keep waiting instead of failing.
                Err(HealthError::Silent(_)) if timeout < HEALTH_TIMEOUTS.longest => {}
                Err(HealthError::Silent(why) | HealthError::Down(why)) => {
                    let down = ServerHealth::Down { why: why.clone() };
                    if self.health.send_replace(down.clone()) != down {
                        tracing::warn!(
                            instance = self.name,
                            why,
                            "OpenCode server does not answer; retrying"
                        );
                    }
                }
                Err(HealthError::Foreign(why)) => {
                    let foreign = ServerHealth::Foreign { why: why.clone() };
                    if self.health.send_replace(foreign.clone()) != foreign {
                        tracing::warn!(
                            instance = self.name,
                            why,
                            "OpenCode server is not used; it is asked again"
                        );
                    }
                }
            }
            tokio::time::sleep(PAUSES.pause(tries)).await;
        }
    }

    /// Reads the stream until it ends, and returns why it did.
    async fn hear(&self, wake: &Notify) -> String {
        let bytes = match tokio::time::timeout(HEALTH_TIMEOUTS.longest, self.client.events()).await
        {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no stream in time".into(),
        };
        let mut events = Events::new(bytes);
        // Nothing is replayed (no `Last-Event-ID`), so everything before this point is in doubt and read
        // anew at the next observation.
        self.mirror().listen();
        wake.notify_one();
        let mut waking: Option<tokio::time::Instant> = None;
        loop {
            let silence = tokio::time::Instant::now() + LONGEST_SILENCE;
            // One timer for both: the end of the debounce, and the heartbeat timeout.
            let until = waking.unwrap_or(silence).min(silence);
            let line = match tokio::time::timeout_at(until, events.next()).await {
                Ok(Some(Ok(line))) => line,
                Ok(Some(Err(error))) => return error.to_string(),
                Ok(None) => return "closed".into(),
                Err(_) if waking.take().is_some() => {
                    wake.notify_one();
                    continue;
                }
                Err(_) => return "silent for too long".into(),
            };
            match self.note(&line) {
                Wake::No => {}
                Wake::Now => {
                    waking = None;
                    wake.notify_one();
                }
                Wake::Later => {
                    waking.get_or_insert_with(|| tokio::time::Instant::now() + DEBOUNCE);
                }
            }
            // A stream that never pauses must not postpone the wake-up for ever.
            if waking.is_some_and(|at| at <= tokio::time::Instant::now()) {
                waking = None;
                wake.notify_one();
            }
        }
    }

    fn note(&self, line: &str) -> Wake {
        let Some(event) = translate::event(line) else { return Wake::No };
        let session = SessionId::new(event.session.clone());
        let deleted = event.change == translate::SessionChange::Deleted;
        let woken = self.mirror().hear(event, self.clock.uptime());
        // Not a watched child: perhaps a deleted parent. The event alone is no proof, `missing` verifies it.
        match woken {
            Wake::No if deleted => {
                let mut rounds = self.rounds();
                if rounds.doubtful.len() >= MOST_DOUBTFUL {
                    rounds.doubtful.clear();
                }
                rounds.doubtful.insert(session);
                Wake::Now
            }
            other => other,
        }
    }

    /// Cache validator: changes with every event of the session; `None` while there is no stream.
    pub(super) fn version(&self, session: &SessionId) -> Option<u64> {
        self.mirror().version(session)
    }

    /// Called before a prompt is sent, so that events about it count from now on.
    pub(super) fn expect(&self, session: &SessionId, prompt: &MessageId, directory: &str) {
        self.mirror().expect(session, prompt, directory, self.clock.uptime());
    }

    /// One observation per watch; `None` where the state is unknown for now.
    pub(super) async fn observe(&self, watches: &[&Watch]) -> Vec<Option<Observation>> {
        if self.ready().await.is_err() {
            return vec![None; watches.len()];
        }
        // A server that was restarted never answers what the old process was asked: give up with the stream
        // instead of waiting for the request's timeout.
        tokio::select! {
            seen = self.look_at(watches) => seen,
            () = self.breaks_off() => vec![None; watches.len()],
        }
    }

    async fn breaks_off(&self) {
        let mut health = self.health.subscribe();
        let _ = health.wait_for(|health| !matches!(health, ServerHealth::Up { .. })).await;
    }

    /// In three steps: poll the status of suspicious directories, read the sessions that turned out idle,
    /// answer from the cache. A session is only read after its status was polled in the same look: an idle
    /// event may be stale, and what is read of a busy session is the middle of a run (G4).
    async fn look_at(&self, watches: &[&Watch]) -> Vec<Option<Observation>> {
        let began = self.clock.uptime();
        // Decided under the locks, which are released before the first request.
        let (statuses, asks) = {
            let now = began;
            let mut mirror = self.mirror();
            mirror.watch(watches, now);
            let all = mirror.directories();
            let mut rounds = self.rounds();
            let mut statuses = mirror.suspicious(now);
            statuses.extend(rounds.statuses.next(&all, now, BETWEEN_STATUSES));
            let mut asks = mirror.take_asked();
            asks.retain(|directory| all.contains(directory));
            asks.extend(rounds.asks.next(&all, now, BETWEEN_ASKS));
            (statuses, asks)
        };
        let looked = join_all(statuses.iter().map(|directory| self.look(directory)));
        let asked = join_all(asks.iter().map(|directory| self.look_for_asks(directory)));
        let (checked, ()) = tokio::join!(looked, async { drop(asked.await) });
        let checked: BTreeSet<String> = checked.into_iter().flatten().collect();
        let mut reads = Vec::with_capacity(watches.len());
        for watch in watches {
            reads.push(self.read(watch, &checked));
        }
        let gone: Vec<bool> = stream::iter(reads).buffered(AT_ONCE).collect().await;
        let each = watches.iter().zip(gone);
        let tell = |watch, gone| if gone { Some(is_gone(watch)) } else { self.tell(watch, began) };
        each.map(|(watch, gone)| tell(watch, gone)).collect()
    }

    /// Polls the status of a directory. `None` when the server did not answer.
    async fn look(&self, directory: &str) -> Option<String> {
        // Counted before the request: a suspicion that arises during it is not answered by it.
        let before = self.mirror().suspicions(directory);
        match self.client.statuses(directory).await {
            Ok(statuses) => {
                self.mirror().note_statuses(&before, &statuses);
                Some(directory.to_owned())
            }
            Err(error) => {
                self.note_failure(&error);
                None
            }
        }
    }

    async fn look_for_asks(&self, directory: &str) {
        let permissions = self.client.permissions(directory);
        let asked = tokio::join!(permissions, self.client.questions(directory));
        match asked {
            (Ok(permissions), Ok(questions)) => {
                self.mirror().note_asks(directory, translate::asks(permissions, questions));
            }
            (Err(error), _) | (_, Err(error)) => {
                self.note_failure(&error);
                // The event that asked for this look will not come again.
                self.mirror().look_for_asks_again(directory);
            }
        }
    }

    /// Reads what the cache needs of a session. `true` when it no longer exists.
    async fn read(&self, watch: &Watch, checked: &BTreeSet<String>) -> bool {
        let now = self.clock.uptime();
        let need = self.mirror().need(&watch.session, checked, now);
        let read = match need {
            Need::Nothing => return false,
            Need::Seed => match self.client.messages(&watch.session).await {
                Ok(messages) => {
                    self.mirror().note_seed(&watch.session, messages);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Need::Read(suspicions) => self.read_idle(watch, (now, suspicions)).await,
        };
        match read {
            Ok(()) => false,
            Err(Error::NoSuchSession(_)) => true,
            Err(error) => {
                self.note_failure(&error);
                false
            }
        }
    }

    async fn read_idle(&self, watch: &Watch, at: (Duration, u64)) -> Result<(), Error> {
        let id = &watch.session;
        let (messages, todos) = tokio::join!(self.client.messages(id), self.client.todos(id));
        let open = translate::open_todos(todos?);
        self.mirror().note_read(id, &messages?, open, at);
        Ok(())
    }

    fn tell(&self, watch: &Watch, began: Duration) -> Option<Observation> {
        let (activity, idle) = self.mirror().tell(&watch.session, began)?;
        Some(Observation {
            session: watch.session.clone(),
            activity,
            outcome: idle.outcome,
            open_todos: idle.open_todos,
            figures: idle.figures,
        })
    }

    /// Which of these no longer exist: those reported deleted are verified, and one more in turn, because
    /// the event of a deletion may have been missed.
    pub(super) async fn missing(&self, parents: Vec<SessionId>) -> Vec<SessionId> {
        let doubtful: Vec<SessionId> = {
            let now = self.clock.uptime();
            let all: BTreeSet<String> = parents.iter().map(ToString::to_string).collect();
            let mut rounds = self.rounds();
            let turn = rounds.parents.next(&all, now, BETWEEN_PARENTS).map(SessionId::new);
            let asked = |session: &&SessionId| all.contains(session.as_str());
            let mut doubtful: BTreeSet<SessionId> =
                rounds.doubtful.iter().filter(asked).cloned().collect();
            // Taken out whatever the answer: should the request fail, polling in turns finds it later.
            rounds.doubtful.retain(|session| !doubtful.contains(session));
            doubtful.extend(turn);
            doubtful.into_iter().collect()
        };
        if doubtful.is_empty() || self.ready().await.is_err() {
            return Vec::new();
        }
        let asked = stream::iter(doubtful).map(|session| async move {
            let gone = matches!(self.client.session(&session).await, Err(Error::NoSuchSession(_)));
            gone.then_some(session)
        });
        asked.buffered(AT_ONCE).filter_map(std::future::ready).collect().await
    }

    /// A failed request is repeated at the next check, so it is logged at debug level only.
    fn note_failure(&self, error: &Error) {
        let error = error as &dyn std::error::Error;
        tracing::debug!(
            instance = self.name,
            error,
            "OpenCode request failed; repeated at the next check"
        );
    }

    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock()
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock()
    }
}

fn is_gone(watch: &Watch) -> Observation {
    Observation {
        session: watch.session.clone(),
        activity: Activity::Gone,
        outcome: Outcome::PromptMissing,
        open_todos: Vec::new(),
        figures: Figures::default(),
    }
}

/// Groups watches by the instance they belong to, with their positions in the input.
pub(super) fn by_instance(watches: &[Watch]) -> HashMap<&str, Vec<(usize, &Watch)>> {
    let mut groups: HashMap<&str, Vec<(usize, &Watch)>> = HashMap::new();
    for (n, watch) in watches.iter().enumerate() {
        groups.entry(&watch.instance).or_default().push((n, watch));
    }
    groups
}
