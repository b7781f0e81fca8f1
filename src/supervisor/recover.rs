//! What a crash left of a launch: a session that carries the intent's nonce is adopted, so that
//! the task goes on; without one there is nothing, and the intent goes too.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::launch::Begun;
use super::{Error, Supervisor};
use crate::host::{self, NewSession, Opened, Place};
use crate::store::Intent;
use crate::task::{Status, Task, TaskId};

const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// What the daemon before us had sent when it died may be read by the host a little later.
const STILL_ON_ITS_WAY: Duration = Duration::from_secs(15);

/// How many launches, and how many aborts, are looked after at once.
const AT_ONCE: usize = 16;

impl Supervisor {
    /// Looks at once, and again now and then: hosts may come up later, and launches may fail.
    pub(super) async fn recover(self) {
        let mut letting_go = Some(self.0.core.store().tasks().let_all_go());
        loop {
            let intents = self.0.core.store().intents().all().unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot read intents");
                Vec::new()
            });
            // Not before that: what is launched meanwhile was not left by anybody.
            if let Some(letting_go) = letting_go.take()
                && let Err(error) = letting_go.await
            {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "tasks that were waited for still count as such");
            }
            // Side by side: a host that does not answer holds up nobody else's.
            let (stopped, settled) =
                tokio::join!(self.stop_what_is_over(), self.settle_all(intents));
            let unsettled = !(stopped && settled);
            let pause = if unsettled { BETWEEN_TRIES } else { BETWEEN_TRIES * 30 };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.core.stopping().cancelled() => return,
            }
        }
    }

    /// `true` when none of these launches is left in the middle.
    async fn settle_all(&self, intents: Vec<Intent>) -> bool {
        let settle = |intent: Intent| async move {
            // Launches that are under way look after themselves.
            let Some(_turn) = self.0.launches.try_turn(&intent.nonce) else { return true };
            self.settle_again(&intent.nonce).await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot recover yet");
                false
            })
        };
        let settled = stream::iter(intents).map(settle).buffer_unordered(AT_ONCE);
        settled.fold(true, |all, settled| async move { all && settled }).await
    }

    /// Sends the aborts that are still owed, and cancels what a cancelled task left behind.
    async fn stop_what_is_over(&self) -> bool {
        let owed = self.0.core.store().tasks().owed_aborts().unwrap_or_else(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot read owed aborts");
            Vec::new()
        });
        let stop = |(task, run): (Task, u32)| async move {
            // One that was given up leaves its descendants at work; and the abort comes last, because
            // nobody looks for them once it is noted as sent.
            let over = task.status() != Status::Cancelled
                || self.0.ends.cancel_descendants(&task).await.is_ok();
            over && self.0.ends.abort_now(&task, run).await
        };
        let stopped = stream::iter(owed).map(stop).buffer_unordered(AT_ONCE);
        stopped.fold(true, |all, stopped| async move { all && stopped }).await
    }

    /// Read anew: it may have been settled before its turn came.
    async fn settle_again(&self, nonce: &str) -> Result<bool, Error> {
        match self.0.core.store().intents().get(nonce)? {
            Some(intent) => self.settle(intent).await,
            None => Ok(true),
        }
    }

    /// For whoever holds the turn of this key. `false`: the host may still be about to open it.
    pub(super) async fn settle(&self, intent: Intent) -> Result<bool, Error> {
        // Nobody was told of this launch, and there is nobody left to ask about it.
        let Ok(host) = self.0.core.host(&intent.host) else {
            tracing::warn!(host = intent.host, "host is not configured any more; launch dropped");
            self.0.core.store().intents().remove(intent.nonce).await?;
            return Ok(true);
        };
        let Ok(begun) = serde_json::from_str::<Begun>(&intent.launch) else {
            tracing::error!(nonce = intent.nonce, "an intent that cannot be read was dropped");
            self.0.core.store().intents().remove(intent.nonce).await?;
            return Ok(true);
        };
        let session = self.session_for(&begun, &intent.nonce);
        let directory = session.directory.clone();
        let mut found = host.find(session).await?.into_iter();
        match found.next() {
            Some(opened) if begun.abandoned => {
                host.delete(Place::of_child(&opened, &directory)).await?;
                self.0.core.store().intents().remove(intent.nonce).await?;
            }
            Some(opened) => {
                let task = self.complete(intent.nonce, begun, opened).await?;
                tracing::info!(task = %task.id, "adopted after a crash");
            }
            None if self.0.core.clock().uptime() < STILL_ON_ITS_WAY => return Ok(false),
            None => {
                begun.warn_of_a_copy();
                self.0.core.store().intents().remove(intent.nonce).await?;
            }
        }
        // Opened twice: the second one is nobody's.
        for twin in found {
            let deleted = host.delete(Place::of_child(&twin, &directory)).await;
            deleted.unwrap_or_else(|error| left_behind(&twin, &error));
        }
        Ok(true)
    }

    /// What the daemon before us had sent may have opened a session for this launch that came after
    /// the one it has now.
    pub(super) fn delete_late_twins(&self, host: String, session: NewSession, task: TaskId) {
        let supervisor = self.clone();
        self.0.core.spawn_until_stop(async move {
            let left = STILL_ON_ITS_WAY.saturating_sub(supervisor.0.core.clock().uptime());
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

/// Its launch has a session all the same.
fn left_behind(twin: &Opened, error: &host::Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(session = %twin.session, error, "second session of a launch left behind");
}
