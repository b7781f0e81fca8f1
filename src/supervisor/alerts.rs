//! The worker that notifies people (N5), from an outbox of its own: one lane per channel, in order, with
//! back-off and until what is owed is too old. At least once, with the same id in every attempt; a daemon
//! that is killed between a delivery and its record delivers again.
//!
//! There are two back-offs. A receiver that is away holds up its whole channel, so that it is not asked once for each
//! notification and the order stays. One notification that a receiver refuses waits alone: it may never be taken, and
//! must not keep the others from people until it is given up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::JoinSet;

use super::Error;
use super::core::Core;
use super::turns::Bell;
use crate::backoff::Backoff;
use crate::notify::Notifier;
use crate::store::OwedAlert;
use crate::task::Timestamp;
use crate::task::alert::Channel;

const PAUSES: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(300) };

/// For what no bell is rung for, such as the end of a task in quarantine.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Alerter {
    pub(super) core: Core,
    /// A notification may be owed.
    pub(super) bell: Bell,
}

impl Alerter {
    pub(super) async fn run(self) {
        if self.notifier().channels().is_empty() {
            return;
        }
        // Dropped when this stops, with what is under way: the next daemon finds it owed.
        let mut lanes: JoinSet<(Channel, Option<Timestamp>)> = JoinSet::new();
        let mut busy: HashSet<Channel> = HashSet::new();
        // Until when, and how often in a row. Not stored: the next daemon may find the receiver there.
        let mut away: HashMap<Channel, (Timestamp, u32)> = HashMap::new();
        loop {
            let wait = self.start_due(&mut lanes, &mut busy, &away).unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "owed notifications unreadable; retrying");
                PAUSES.first
            });
            tokio::select! {
                () = self.bell.rung() => {}
                () = tokio::time::sleep(wait) => {}
                Some(done) = lanes.join_next() => match done {
                    Ok((channel, until)) => {
                        busy.remove(&channel);
                        match until {
                            Some(until) => {
                                let tries = away.get(&channel).map_or(0, |(_, tries)| *tries);
                                away.insert(channel, (until, tries + 1));
                            }
                            None => drop(away.remove(&channel)),
                        }
                    }
                    Err(_) => {
                        let channels: Vec<&str> = busy.iter().map(|busy| busy.name()).collect();
                        tracing::error!(?channels, "notification panicked; retrying");
                        lanes.shutdown().await;
                        busy.clear();
                        tokio::time::sleep(PAUSES.first).await;
                    }
                },
                () = self.core.stopping().cancelled() => return,
            }
        }
    }

    fn notifier(&self) -> &Notifier {
        &self.core.settings().notifier
    }

    /// Starts a lane for every idle channel with something due; returns how long until the next is.
    fn start_due(
        &self,
        lanes: &mut JoinSet<(Channel, Option<Timestamp>)>,
        busy: &mut HashSet<Channel>,
        away: &HashMap<Channel, (Timestamp, u32)>,
    ) -> Result<Duration, Error> {
        let now = self.core.clock().now();
        let mut wait = LONGEST_SLEEP;
        for channel in self.notifier().channels() {
            if busy.contains(&channel) {
                continue;
            }
            let (until, tries) = away.get(&channel).copied().unwrap_or((now, 0));
            if until > now {
                wait = wait.min(until.since(now).max(Duration::from_millis(10)));
                continue;
            }
            let due = self.core.store().alerts().due(channel, now)?;
            if due.is_empty() {
                if let Some(next) = self.core.store().alerts().next_due(channel)? {
                    wait = wait.min(next.since(now).max(Duration::from_millis(10)));
                }
                continue;
            }
            let alerter = self.clone();
            busy.insert(channel);
            lanes.spawn(async move {
                let until = alerter.send(due, tries).await;
                (channel, until)
            });
        }
        Ok(wait)
    }

    /// One channel, in order. Returns when to go on with a receiver that is away. `tries` is how often it was found
    /// away in a row: at the cap the oldest alert gives way, and its own attempts with it.
    async fn send(&self, due: Vec<OwedAlert>, tries: u32) -> Option<Timestamp> {
        for alert in due {
            let now = self.core.clock().now();
            let OwedAlert { channel, id, attempts, .. } = &alert;
            let (channel, attempt) = (*channel, attempts + 1);
            // Tried at least once: it may have waited behind others, or for the next daemon.
            if *attempts > 0 && now.since(alert.created_at) >= self.notifier().give_up {
                tracing::warn!(
                    channel = channel.name(),
                    id,
                    attempts,
                    "notification given up; it could not be delivered within `notify.give_up_seconds`"
                );
                self.note(self.core.store().alerts().remove(alert.seq)).await;
                continue;
            }
            match self.notifier().send(channel, id, &alert.body, now).await {
                Ok(()) => self.note(self.core.store().alerts().remove(alert.seq)).await,
                Err(error) => {
                    let delay = PAUSES.jittered(tries.max(*attempts), self.core.clock().random());
                    tracing::warn!(
                        channel = channel.name(),
                        id,
                        attempt,
                        ?delay,
                        error = &error as &dyn std::error::Error,
                        "notification failed; retrying"
                    );
                    let now = self.core.clock().now();
                    let until = now.plus(delay);
                    if error.is_of_the_channel() {
                        // Due as before, so that it stays the first.
                        self.note(self.core.store().alerts().postpone(alert.seq, now)).await;
                        return Some(until);
                    }
                    self.note(self.core.store().alerts().postpone(alert.seq, until)).await;
                }
            }
        }
        None
    }

    async fn note(&self, outcome: impl Future<Output = Result<(), crate::store::Error>>) {
        if let Err(error) = outcome.await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "notification outcome not recorded; it is sent again"
            );
            // It is still due: without a pause this would be a busy loop.
            tokio::time::sleep(PAUSES.first).await;
        }
    }
}
