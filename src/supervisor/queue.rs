//! The queue as a whole: paused and continued by a person, and drained before the daemon stops. Who gets a
//! slot is decided in the store's transaction, by `task::queue`.

use std::time::Duration;

use super::core::DrainGuard;
use super::{Error, Supervisor};
pub use crate::store::SlotCounts;

/// What became of waiting for the running tasks.
pub enum DrainOutcome {
    /// Nothing runs. Nothing starts, either, for as long as this is kept.
    Drained(DrainGuard),
    /// This many still run; tasks start again.
    TimedOut(u64),
}

impl Supervisor {
    /// No queued task gets a slot until the queue is continued, also after a restart of the daemon; running tasks go
    /// on. Idempotent.
    pub async fn pause_queue(&self) -> Result<(), Error> {
        let core = &self.0.core;
        if core.store().slots().pause(core.clock().now()).await? {
            tracing::info!("queue paused; running tasks go on");
        }
        self.explain_to_queued().await;
        Ok(())
    }

    /// Idempotent.
    pub async fn continue_queue(&self) -> Result<(), Error> {
        if self.0.core.store().slots().unpause().await? {
            tracing::info!("queue continued");
        }
        self.0.bells.prompts.ring();
        self.explain_to_queued().await;
        Ok(())
    }

    /// The queue is paused or continued already: a text that could not be written is no reason to say otherwise.
    async fn explain_to_queued(&self) {
        if let Err(error) = self.explain_queue().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "queued tasks may not say whether the queue is paused; corrected at the next start"
            );
        }
    }

    /// Lets every queued task say whether the queue is paused. Detached: a caller that hangs up must not leave some
    /// of them with the wrong text. Also at the start, after a daemon that was killed in between.
    pub(super) async fn explain_queue(&self) -> Result<(), Error> {
        let core = self.0.core.clone();
        let explaining = self.0.core.spawn(async move {
            let mut next = Some(0);
            while let Some(after) = next {
                next = core.store().slots().explain_queued(after).await?;
            }
            Ok(())
        });
        explaining.await.unwrap_or(Err(Error::Store(crate::store::Error::Panicked)))
    }

    pub fn is_queue_paused(&self) -> Result<bool, Error> {
        Ok(self.0.core.store().slots().is_paused()?)
    }

    pub fn slot_counts(&self) -> Result<SlotCounts, Error> {
        Ok(self.0.core.store().slots().counts()?)
    }

    /// Waits until no task runs any more, and lets none start meanwhile. Dropping the future, or what it returns, lets
    /// tasks start again: nothing of it is on disk, so a caller that goes away leaves nothing behind.
    pub async fn drain(&self, longest: Option<Duration>) -> Result<DrainOutcome, Error> {
        // Subscribed first: an end between the count and the wait is not missed.
        let mut changes = self.events();
        let draining = self.0.core.drain(self.0.bells.prompts.clone());
        let emptied = async {
            while self.slot_counts()?.active > 0 {
                // Lagging is as good as a change: it is counted again.
                let _ = changes.recv().await;
            }
            Ok(())
        };
        let time_is_up = async {
            match longest {
                Some(longest) => tokio::time::sleep(longest).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            emptied = emptied => emptied.map(|()| DrainOutcome::Drained(draining)),
            () = self.0.core.stopping().cancelled() => Err(Error::Stopping),
            () = time_is_up => Ok(DrainOutcome::TimedOut(self.slot_counts()?.active)),
        }
    }
}
