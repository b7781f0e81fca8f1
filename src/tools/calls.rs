//! Deferred calls: those that wait in the daemon while their callers do something else, and come back for the answer
//! (MCP tasks). Each is a row in the store and a future here. The row is written when the call begins to wait, after
//! what it launches is launched; a daemon that finds an open row carries it on under the same idempotency key.
//!
//! The answer is composed when the client comes for it, stored, and given again whenever the client asks again. It is
//! composed anew as long as the client has not acknowledged it and an end in it has been told by other means.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asks;
use super::table::Tool;
use super::waiter::{Deferral, DeferredRequest, Stage, Waiter};
use super::{Call, Error, Toolbox, audience};
use crate::quote::label;
use crate::supervisor::{self, Caller, PermissionDialog, StoredCall, Supervisor};
use crate::task::{Task, TaskId};
use crate::wire::{CallStatus, CallView, PermissionView, ToolAnswer};

/// How long an answer is kept, and how many of them for one parent.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
const MOST_KEPT: i64 = 200;

/// How many calls of one parent wait at the same time; beyond that, the call blocks its caller.
const MOST_WAITING: usize = 100;

/// After this time an answer that no client has come for is given up. Its ends stay in the mailbox of the parent.
const LONGEST_UNCOLLECTED: Duration = Duration::from_secs(30 * 24 * 3600);

const BETWEEN_PRUNINGS: Duration = Duration::from_secs(3600);

/// How long a client waits for its answer to be composed, and the daemon for its calls when it stops. Nothing is
/// lost after that: the answer comes the next time, and the call goes on with the next daemon.
const LONGEST_COMPOSITION: Duration = Duration::from_secs(2);
const LONGEST_JOIN: Duration = Duration::from_secs(5);

/// How many of the agents that are waited for are named in a status.
const MOST_NAMED: usize = 5;

/// The calls that are deferred. A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Calls(Arc<Inner>);

struct Inner {
    supervisor: Supervisor,
    toolbox: Arc<Toolbox>,
    /// By id.
    running: Mutex<HashMap<String, Arc<RunningCall>>>,
    spawned: TaskTracker,
}

struct RunningCall {
    deferral: Deferral,
    declined: watch::Sender<HashSet<String>>,
    stop: CancellationToken,
    outcome: watch::Sender<Option<Outcome>>,
}

/// How a call ended, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Answer(ToolAnswer),
    /// The call itself was wrong: the tool is not offered any more.
    Failure(String),
}

/// What became of a call that may be deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStart {
    /// There was nothing to wait for.
    Answered(ToolAnswer),
    Deferred(CallView),
}

/// A call among those that run, until its future ends in whatever way.
struct Entry {
    calls: Calls,
    running: Arc<RunningCall>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // On drop and not at the end of the future: a call that panics or is cancelled would otherwise stay
        // in the map, and every later look would wait for an answer that is never composed.
        self.calls.0.running.lock().remove(&self.running.deferral.id);
        // Tells waiters that nothing more will come.
        self.running.stop.cancel();
    }
}

impl Calls {
    pub fn new(supervisor: Supervisor, toolbox: Arc<Toolbox>) -> Calls {
        let (running, spawned) = (Mutex::default(), TaskTracker::new());
        Calls(Arc::new(Inner { supervisor, toolbox, running, spawned }))
    }

    /// Carries on what an earlier daemon left, prunes old answers, and waits for all calls when the daemon stops.
    pub async fn run(self) {
        let supervisor = &self.0.supervisor;
        match supervisor.open_calls() {
            Ok(open) => {
                for call in open {
                    self.carry_on(call).await;
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "deferred calls unreadable; each goes on when it is asked for"
                );
            }
        }
        let stopping = supervisor.stopping();
        while !stopping.is_cancelled() {
            if let Err(error) = self.prune().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "deferred calls not pruned; retrying in an hour");
            }
            tokio::select! {
                () = tokio::time::sleep(BETWEEN_PRUNINGS) => {}
                () = stopping.cancelled() => {}
            }
        }
        self.0.spawned.close();
        if tokio::time::timeout(LONGEST_JOIN, self.0.spawned.wait()).await.is_err() {
            tracing::warn!("deferred calls did not stop in time; the next daemon carries them on");
        }
    }

    /// Deletes old answers, and gives up those that no client has come for: each is a row and a future, and a client
    /// that was killed never comes.
    pub async fn prune(&self) -> Result<(), supervisor::Error> {
        let before = self.0.supervisor.clock().now().minus(LONGEST_UNCOLLECTED);
        let is_uncollected = |running: &&Arc<RunningCall>| {
            let deferral = &running.deferral;
            *deferral.stages().borrow() == Stage::Over && deferral.created_at < before
        };
        let uncollected: Vec<String> = {
            let running = self.0.running.lock();
            running.values().filter(is_uncollected).map(|call| call.deferral.id.clone()).collect()
        };
        // What they wait for is over, so cancelling them stops no task.
        for id in uncollected {
            self.stop_call(&id).await?;
        }
        self.0.supervisor.prune_calls(KEPT_FOR, MOST_KEPT).await
    }

    async fn carry_on(&self, call: StoredCall) {
        let id = call.id.clone();
        // Cancelled but not settled: the daemon exited between the mark and the stop of what was launched.
        // Stopping it again is harmless.
        let carried_on = match call.cancelled {
            true => self.stop_launched(&call).await,
            false => self.start(&call).map(drop),
        };
        if let Err(error) = carried_on {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                call = id,
                error,
                "deferred call not carried on; retrying when asked for"
            );
        }
    }

    /// Whether a call of this tool is deferred for a caller that comes back.
    pub fn may_defer(&self, call: &Call) -> bool {
        let found = self.0.toolbox.find(audience(&call.caller), &call.name);
        // Without a key a repeat could not be told from another call, and a crash between the launch and
        // the row would launch twice.
        let waits = found.is_some_and(|found| matches!(found.tool, Tool::Wait | Tool::Blocking));
        let waiting = self.0.running.lock();
        let of_parent = |running: &&Arc<RunningCall>| {
            running.deferral.request.caller.session == call.caller.session
        };
        waits && call.key.is_some() && waiting.values().filter(of_parent).count() < MOST_WAITING
    }

    /// Makes a call: answered at once if there is nothing to wait for, otherwise it goes on by itself. `asks` says
    /// that the client shows permission requests to its user, and which were declined there. A repeat with the same
    /// key is the same call.
    pub async fn begin(
        &self,
        call: Call,
        asks: Option<HashSet<String>>,
    ) -> Result<CallStart, Error> {
        let key = call.key.clone().unwrap_or_default();
        let failed = |error: supervisor::Error| in_store(&key, error);
        // A repeat after the daemon went away, or after the answer with the handle was lost on its way.
        if let Some(stored) = self.0.supervisor.call_with_key(&key).map_err(failed)? {
            return Ok(CallStart::Deferred(self.view(&stored).map_err(failed)?));
        }
        let clock = self.0.supervisor.clock();
        // The client does not wait, so that its timeout does not matter.
        let caller = Caller { longest_wait: None, ..call.caller };
        let arguments = call.arguments.clone();
        let request = DeferredRequest {
            caller: caller.clone(),
            arguments,
            asks: asks.is_some(),
            tasks: Vec::new(),
        };
        let (id, at) = (clock.nonce(), clock.now());
        let deferral = Deferral::new(id, call.name.clone(), key.clone(), at, request);
        let call = Call { caller, ..call };
        let running =
            self.spawn(call, RunningCall::new(deferral, asks.unwrap_or_default()), Some(&key));
        let (mut stages, mut outcome) = (running.deferral.stages(), running.outcome.subscribe());
        tokio::select! {
            // The outcome first: the entry cancels `stop` right after it is sent, and an answer that is
            // there must not be reported as a daemon that stops.
            biased;
            Ok(outcome) = outcome.wait_for(Option::is_some) => match &*outcome {
                Some(Outcome::Answer(answer)) => return Ok(CallStart::Answered(answer.clone())),
                Some(Outcome::Failure(_)) | None => return Err(Error::Stopping),
            },
            Ok(_) = stages.wait_for(|stage| *stage != Stage::Beginning) => {}
            () = running.stop.cancelled() => return Err(Error::Stopping),
        }
        // Read back and not built from memory: the client gets a handle only for what is on disk.
        match self.0.supervisor.call_with_key(&key).map_err(failed)? {
            Some(stored) => Ok(CallStart::Deferred(self.view(&stored).map_err(failed)?)),
            None => Err(Error::Stopping),
        }
    }

    /// How far a call is, and its answer once it is there; `None` when there is no such call.
    pub async fn get(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<CallView>, supervisor::Error> {
        let supervisor = &self.0.supervisor;
        let Some(stored) = self.find(caller, id)? else { return Ok(None) };
        match stored.outcome.as_deref().map(parse) {
            Some(Outcome::Answer(ToolAnswer { receipt, .. })) if stored.received_at.is_none() => {
                // The client did not acknowledge, so it may have lost the answer. The same text again, as
                // long as its notices are unread; they are leased, so that no other answer contains them
                // meanwhile.
                if !supervisor.lease_again(&receipt)? {
                    // Told by other means since it was composed.
                    let again = self.start(&stored)?;
                    again.collected().await;
                }
            }
            Some(_) => {}
            None if stored.cancelled => {}
            None => {
                // Tasks that lost their credentials in a restart can go on.
                supervisor.bring(caller).await?;
                let running = self.start(&stored)?;
                // Only then: a visit while the call still waits would be kept, and the answer composed and
                // leased later, with no client there to take it.
                if *running.deferral.stages().borrow() == Stage::Over {
                    running.collected().await;
                }
            }
        }
        let stored = supervisor.stored_call(id)?;
        stored.map(|stored| self.view(&stored)).transpose()
    }

    /// Cancels a call: the task of a blocking `Task` is stopped; a wait merely ends. `false` when there is no such
    /// call; one that is over stays as it is.
    pub async fn cancel(&self, caller: &Caller, id: &str) -> Result<bool, supervisor::Error> {
        if self.find(caller, id)?.is_none() {
            return Ok(false);
        }
        self.stop_call(id).await?;
        Ok(true)
    }

    async fn stop_call(&self, id: &str) -> Result<(), supervisor::Error> {
        // The mark first, durably: should the daemon exit before the task is stopped, the next one finds
        // the row cancelled but open, and stops it.
        self.0.supervisor.cancel_call(id).await?;
        // Also when it was marked before: an earlier attempt may have failed to stop the task.
        let marked = |stored: &StoredCall| stored.cancelled && stored.settled_at.is_none();
        match self.0.supervisor.stored_call(id)?.filter(marked) {
            Some(stored) => self.stop_launched(&stored).await,
            None => Ok(()),
        }
    }

    /// Cancels the call that was made with this key, if it was deferred: its caller never heard of its id.
    pub async fn cancel_by_key(&self, caller: &Caller, key: &str) -> Result<(), supervisor::Error> {
        match self.0.supervisor.call_with_key(key)? {
            Some(stored) => self.cancel(caller, &stored.id).await.map(drop),
            // It may have no row yet, because what it launches is still being launched.
            None => {
                let running = self.0.running.lock();
                if let Some(running) = running.values().find(|running| running.deferral.key == key)
                {
                    running.stop.cancel();
                }
                Ok(())
            }
        }
    }

    /// The client's user did not want to answer these requests: they are left to others, and a wait for nothing
    /// else is over.
    pub async fn decline(
        &self,
        caller: &Caller,
        id: &str,
        asks: Vec<String>,
    ) -> Result<bool, supervisor::Error> {
        if self.find(caller, id)?.is_none() {
            return Ok(false);
        }
        self.0.supervisor.decline_asks(id, asks.clone()).await?;
        if let Some(running) = self.0.running.lock().get(id) {
            running.declined.send_modify(|declined| declined.extend(asks));
        }
        Ok(true)
    }

    /// A caller that has a name of its own finds its own calls only. For one whose parent is its connection the id
    /// is enough: the next connection of the same client has another name.
    fn find(&self, caller: &Caller, id: &str) -> Result<Option<StoredCall>, supervisor::Error> {
        let stored = self.0.supervisor.stored_call(id)?;
        Ok(stored.filter(|stored| {
            let is_named = |caller: &Caller| caller.heir_of.is_empty();
            let by_name = request(stored).is_some_and(|request| is_named(&request.caller));
            !(by_name && is_named(caller)) || stored.parent == caller.session
        }))
    }

    /// The running call of a row; one that does not run is started.
    fn start(&self, stored: &StoredCall) -> Result<Arc<RunningCall>, supervisor::Error> {
        if let Some(running) = self.0.running.lock().get(&stored.id) {
            return Ok(Arc::clone(running));
        }
        let Some(request) = request(stored) else {
            return Err(supervisor::Error::NoSuchTask(stored.id.clone()));
        };
        let call = Call {
            name: stored.tool.clone(),
            caller: request.caller.clone(),
            arguments: request.arguments.clone(),
            key: Some(stored.key.clone()),
            acknowledges: true,
        };
        let StoredCall { id, tool, key, created_at, declined, .. } = stored.clone();
        let deferral = Deferral::new(id, tool, key, created_at, request).stored();
        let running = RunningCall::new(deferral, declined.into_iter().collect());
        Ok(self.spawn(call, running, None))
    }

    /// Starts a call, unless one with its id, or with this key, runs.
    fn spawn(&self, call: Call, running: RunningCall, key: Option<&str>) -> Arc<RunningCall> {
        // Look-up and insertion under one lock: of two polls that find the call not running, only one
        // starts it.
        let mut all = self.0.running.lock();
        let same = |known: &&Arc<RunningCall>| {
            known.deferral.id == running.deferral.id || key == Some(&known.deferral.key)
        };
        if let Some(known) = all.values().find(same) {
            return Arc::clone(known);
        }
        let running = Arc::new(running);
        all.insert(running.deferral.id.clone(), Arc::clone(&running));
        let entry = Entry { calls: self.clone(), running: Arc::clone(&running) };
        self.0.spawned.spawn(entry.carry_out(call));
        running
    }

    /// Ends the wait of a cancelled call, and what it launched for its answer alone.
    async fn stop_launched(&self, stored: &StoredCall) -> Result<(), supervisor::Error> {
        let Inner { supervisor, toolbox, .. } = &*self.0;
        if let Some(running) = self.0.running.lock().get(&stored.id) {
            running.stop.cancel();
        }
        if let Some(request) = request(stored) {
            // In the name of the caller that made the call: the one that cancels may be a later connection
            // of the same client, which is another parent.
            let DeferredRequest { caller, .. } = request;
            super::abort(supervisor, toolbox, &stored.tool, &caller, &stored.key).await?;
        }
        supervisor.call_was_cancelled(&stored.id).await
    }

    fn view(&self, stored: &StoredCall) -> Result<CallView, supervisor::Error> {
        let outcome = stored.outcome.as_deref().map(parse);
        let tasks = match (&outcome, stored.cancelled) {
            (None, false) => self.tasks(stored),
            (_, _) => Vec::new(),
        };
        let asks = self.asks(stored, &tasks)?;
        let status = match (&outcome, stored.cancelled) {
            (_, true) => CallStatus::Cancelled,
            (Some(Outcome::Answer(_)), false) => CallStatus::Completed,
            (Some(Outcome::Failure(_)), false) => CallStatus::Failed,
            (None, false) if asks.is_empty() => CallStatus::Working,
            (None, false) => CallStatus::InputRequired,
        };
        let (answer, failure) = match outcome {
            Some(Outcome::Answer(answer)) => (Some(answer), None),
            Some(Outcome::Failure(why)) => (None, Some(why)),
            None => (None, None),
        };
        let seen = tasks.iter().map(|task| task.progress.last_update);
        let updated_at = stored.settled_at.or_else(|| seen.max()).unwrap_or(stored.created_at);
        Ok(CallView {
            id: stored.id.clone(),
            status,
            message: message(&tasks),
            created_at: stored.created_at,
            updated_at: updated_at.max(stored.created_at),
            expires_at: stored.settled_at.map(|at| at.plus(KEPT_FOR)),
            answer,
            failure,
            asks,
        })
    }

    /// The tasks that a call waits for, without those that were pruned.
    fn tasks(&self, stored: &StoredCall) -> Vec<Task> {
        let ids: Vec<TaskId> = request(stored).map_or_else(Vec::new, |request| request.tasks);
        ids.iter().filter_map(|id| self.0.supervisor.task(id).ok()).collect()
    }

    /// What the client's user is to be asked.
    fn asks(
        &self,
        stored: &StoredCall,
        tasks: &[Task],
    ) -> Result<Vec<PermissionView>, supervisor::Error> {
        if !request(stored).is_some_and(|request| request.asks) {
            return Ok(Vec::new());
        }
        let own = |id: &TaskId| {
            tasks.iter().any(|task| task.id == *id && task.origin.parent.session == stored.parent)
        };
        let mut asked = self.0.supervisor.asks_of(tasks);
        asked.retain(|asked| !stored.declined.contains(&asked.ask.id) && own(&asked.task));
        asks::views(&self.0.supervisor, asked)
    }
}

impl Entry {
    async fn carry_out(self, call: Call) {
        let Inner { supervisor, toolbox, .. } = &*self.calls.0;
        let RunningCall { deferral, declined, stop, outcome } = &*self.running;
        let asking = match deferral.request.asks {
            true => PermissionDialog::with(declined.subscribe()),
            false => PermissionDialog::default(),
        };
        let waiter = Waiter { asking, deferral: Some(deferral) };
        let answered = super::call_with(supervisor, toolbox, call, &waiter);
        let came = match stop.run_until_cancelled(Box::pin(answered)).await {
            Some(Ok(answer)) => Outcome::Answer(answer),
            // Not over: the next daemon carries it on, and a client repeats a call that was not stored.
            None | Some(Err(Error::Stopping)) => return,
            Some(Err(error)) => Outcome::Failure(error.to_string()),
        };
        // Stored before it is published: `collected` waits for the outcome, and what is given to the client
        // is read from the row. A call that never began to wait has no row.
        if deferral.tasks().is_some() {
            let json = serde_json::to_string(&came).expect("our own types are JSON");
            if let Err(error) = supervisor.settle_call(&deferral.id, json).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    call = deferral.id,
                    error,
                    "answer not stored; it is composed again"
                );
            }
        }
        outcome.send_replace(Some(came));
    }
}

impl RunningCall {
    fn new(deferral: Deferral, declined: HashSet<String>) -> RunningCall {
        RunningCall {
            deferral,
            declined: watch::Sender::new(declined),
            stop: CancellationToken::new(),
            outcome: watch::Sender::new(None),
        }
    }

    /// Says that the client has come, and waits until its answer is stored.
    async fn collected(&self) {
        let mut outcome = self.outcome.subscribe();
        self.deferral.collect();
        let composed = async {
            tokio::select! {
                _ = outcome.wait_for(Option::is_some) => {}
                () = self.stop.cancelled() => {}
            }
        };
        let _ = tokio::time::timeout(LONGEST_COMPOSITION, composed).await;
    }
}

/// What a row says of the call; `None` when a later version wrote it.
fn request(stored: &StoredCall) -> Option<DeferredRequest> {
    serde_json::from_str(&stored.request).ok()
}

fn parse(outcome: &str) -> Outcome {
    serde_json::from_str(outcome)
        .unwrap_or_else(|_| Outcome::Failure("the stored answer cannot be read".to_owned()))
}

fn in_store(key: &str, error: supervisor::Error) -> Error {
    let error = &error as &dyn std::error::Error;
    tracing::error!(key, error, "call not deferred; its client repeats it");
    Error::Stopping
}

/// What the agents do that are waited for: phase and last tool of each that is live.
fn message(tasks: &[Task]) -> String {
    let live: Vec<&Task> = tasks.iter().filter(|task| task.is_live()).collect();
    let line = |task: &&Task| {
        let tool =
            task.progress.last_tools.last().map(|tool| format!(", last tool {}", label(tool)));
        format!(
            "{} \"{}\": {}{}",
            task.short_id,
            label(&task.order.description),
            task.progress.phase.name(),
            tool.unwrap_or_default()
        )
    };
    let mut lines: Vec<String> = live.iter().take(MOST_NAMED).map(line).collect();
    if live.len() > MOST_NAMED {
        lines.push(format!("and {} more", live.len() - MOST_NAMED));
    }
    lines.join("; ")
}
