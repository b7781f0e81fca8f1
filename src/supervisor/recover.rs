//! What a crash left of a launch: a session that carries the intent's nonce is adopted, so that
//! the task goes on; without one there is nothing, and the intent goes too.

use std::time::Duration;

use super::{Error, Supervisor};
use crate::host::Host;
use crate::store::Intent;

const BETWEEN_TRIES: Duration = Duration::from_secs(2);

impl Supervisor {
    /// Ends when every intent that was there at the start is settled. Hosts may come up later.
    pub(super) async fn recover(self) {
        let started_at = self.0.clock.now();
        loop {
            let intents = self.0.store.intents().unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot read intents");
                Vec::new()
            });
            // Launches of this daemon look after themselves.
            let ours =
                |intent: &Intent| intent.created_at >= started_at && !intent.launch.is_empty();
            let left: Vec<_> = intents.into_iter().filter(|intent| !ours(intent)).collect();
            let mut unsettled = false;
            for intent in left {
                if let Err(error) = self.settle(intent).await {
                    unsettled = true;
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot recover yet");
                }
            }
            let pause = if unsettled { BETWEEN_TRIES } else { BETWEEN_TRIES * 30 };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    async fn settle(&self, intent: Intent) -> Result<(), Error> {
        let Ok(host) = self.host(&intent.host) else {
            tracing::warn!(host = intent.host, "an unfinished launch waits for its host");
            return Ok(());
        };
        match (host.find(&intent.nonce).await?, serde_json::from_str(&intent.launch)) {
            (Some(opened), Ok(begun)) => {
                let task = self.complete(intent.nonce, begun, opened).await?;
                tracing::info!(task = %task.id, "adopted after a crash");
            }
            (Some(opened), Err(_)) => {
                host.delete(&opened.session).await?;
                self.0.store.drop_intent(intent.nonce).await?;
            }
            (None, _) => self.0.store.drop_intent(intent.nonce).await?,
        }
        Ok(())
    }
}
