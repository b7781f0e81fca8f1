//! Crash recovery of launches and aborts, at the start and then periodically.
//!
//! An intent without a task is a launch that was cut off. A session that carries its nonce is adopted and
//! the task continues; without one the intent is dropped, but not before requests that the previous daemon
//! had sent can have arrived. Owed aborts are sent again. Each launch is settled under the lock of its key,
//! so that a caller's retry and recovery do not work on it at the same time.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::ends::log_failed_abort;
use super::intent::LaunchIntent;
use super::{Error, Supervisor};
use crate::host::{self, NewSession, OpenedSession, Place};
use crate::store::Intent;
use crate::task::{Status, Task, TaskId};

const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// Requests that the previous daemon had sent when it died may reach the host this much later.
const LATE_REQUEST_WINDOW: Duration = Duration::from_secs(15);

/// Concurrency, for launches and for aborts.
const AT_ONCE: usize = 16;

impl Supervisor {
    /// The worker: recovers at once and then periodically, because hosts may come up later and launches of
    /// this daemon may fail half-way, too.
    pub(super) async fn recover(self) {
        // Nobody waits for the blocking tasks of the previous daemon any more: its connections are gone.
        let mut moving = Some(self.0.core.store().tasks().move_all_to_background());
        if let Err(error) = self.explain_queue().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "queued tasks not updated; their texts about a pause may be old");
        }
        let mut round = 0;
        loop {
            round += 1;
            let intents = self.0.core.store().intents().all().unwrap_or_else(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "intents unreadable; retrying"
                );
                Vec::new()
            });
            // Awaited after the intents are read: those written since belong to launches of this daemon.
            if let Some(moving) = moving.take()
                && let Err(error) = moving.await
            {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "tasks of the previous daemon not moved to the background; they still count as blocking"
                );
            }
            // Concurrently: a host that does not answer delays only its own.
            let (stopped, settled) =
                tokio::join!(self.stop_what_is_over(round), self.settle_all(intents));
            // Unfinished recovery is retried soon; otherwise a look once a minute is enough.
            let unsettled = !(stopped && settled);
            let pause = if unsettled { BETWEEN_TRIES } else { BETWEEN_TRIES * 30 };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.core.stopping().cancelled() => return,
            }
        }
    }

    /// `true` when every one of these launches is finished or undone.
    async fn settle_all(&self, intents: Vec<Intent>) -> bool {
        let settle = |intent: Intent| async move {
            // The lock is taken: the launch is under way, and finishes itself.
            let Some(_turn) = self.0.launches.try_turn(&intent.nonce) else { return true };
            self.settle_again(&intent.nonce).await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    nonce = intent.nonce,
                    host = intent.host,
                    error,
                    "launch not recovered; retrying"
                );
                false
            })
        };
        let settled = stream::iter(intents).map(settle).buffer_unordered(AT_ONCE);
        settled.fold(true, |all, settled| async move { all && settled }).await
    }

    /// Sends the aborts that are still owed, and cancels what a cancelled task left behind. The round counts as
    /// the attempt: in the first one all are owed by an earlier daemon.
    async fn stop_what_is_over(&self, round: u32) -> bool {
        let owed = self.0.core.store().tasks().owed_aborts().unwrap_or_else(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "owed aborts unreadable; retrying"
            );
            Vec::new()
        });
        let stop = |(task, run): (Task, u32)| async move {
            // Only a cancel takes its descendants along; a run that failed leaves them at work. The abort
            // comes last: once it is recorded as sent, the descendants are not looked for again.
            let over = task.status() != Status::Cancelled
                || self.0.ends.cancel_descendants(&task).await.is_ok();
            if !over {
                return false;
            }
            let aborted = self.0.ends.abort_now(&task, run).await;
            if let Err(error) = &aborted {
                log_failed_abort(&task, error, round, BETWEEN_TRIES);
            }
            aborted.is_ok()
        };
        let stopped = stream::iter(owed).map(stop).buffer_unordered(AT_ONCE);
        stopped.fold(true, |all, stopped| async move { all && stopped }).await
    }

    /// Reads the intent again under the lock: it may have been settled since the list was read.
    async fn settle_again(&self, nonce: &str) -> Result<bool, Error> {
        match self.0.core.store().intents().get(nonce)? {
            Some(intent) => self.settle(intent).await,
            None => Ok(true),
        }
    }

    /// Finishes or undoes a launch; the caller holds the lock of its key. `false`: the host may still be
    /// about to open the session.
    pub(super) async fn settle(&self, intent: Intent) -> Result<bool, Error> {
        // No caller knows of this launch, and its host cannot be asked any more.
        let Ok(host) = self.0.core.host(&intent.host) else {
            tracing::warn!(
                host = intent.host,
                "host not configured any more; interrupted launch dropped"
            );
            self.0.core.store().intents().remove(intent.nonce).await?;
            return Ok(true);
        };
        let Ok(launch) = serde_json::from_str::<LaunchIntent>(&intent.launch) else {
            tracing::error!(nonce = intent.nonce, "intent unreadable; interrupted launch dropped");
            self.0.core.store().intents().remove(intent.nonce).await?;
            return Ok(true);
        };
        let session = self.session_for(&launch, &intent.nonce);
        let directory = session.directory.clone();
        let mut found = host.find(session).await?.into_iter();
        match found.next() {
            Some(opened) if launch.abandoned => {
                host.delete(Place::of_child(&opened, &directory)).await?;
                self.0.core.store().intents().remove(intent.nonce).await?;
            }
            Some(opened) => {
                let task = self.complete(intent.nonce, launch, opened).await?;
                tracing::info!(
                    task = %task.id,
                    "session of an interrupted launch adopted; task continues"
                );
            }
            None if self.0.core.clock().uptime() < LATE_REQUEST_WINDOW => return Ok(false),
            None => {
                launch.warn_of_a_copy();
                self.0.core.store().intents().remove(intent.nonce).await?;
            }
        }
        // The request to open was carried out twice; a second session belongs to no task.
        for twin in found {
            let deleted = host.delete(Place::of_child(&twin, &directory)).await;
            deleted.unwrap_or_else(|error| left_behind(&twin, &error));
        }
        Ok(true)
    }

    /// A late request of the previous daemon may open a second session for this launch after it got the one
    /// it has. Deleted once such requests must have arrived.
    pub(super) fn delete_late_twins(&self, host: String, session: NewSession, task: TaskId) {
        let supervisor = self.clone();
        self.0.core.spawn_until_stop(async move {
            let left = LATE_REQUEST_WINDOW.saturating_sub(supervisor.0.core.clock().uptime());
            supervisor.0.core.clock().sleep(left).await;
            let Ok(host) = supervisor.0.core.host(&host) else { return };
            let directory = session.directory.clone();
            let found = host.find(session).await.unwrap_or_default();
            for twin in found.into_iter().filter(|found| found.session != task) {
                let deleted = host.delete(Place::of_child(&twin, &directory)).await;
                deleted.unwrap_or_else(|error| left_behind(&twin, &error));
            }
        });
    }
}

/// Only logged: the launch has its session.
fn left_behind(twin: &OpenedSession, error: &host::Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(
        session = %twin.session,
        error,
        "duplicate session of a launch not deleted; it stays on its host"
    );
}
