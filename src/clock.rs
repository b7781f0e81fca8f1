//! The one place that reads the time and rolls dice, so that tests can hold both in their hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::task::{BatchId, MessageId, SessionId, ShortId, Timestamp};

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    source: Source,
    /// The last tick given out. Ids never run backwards, whatever the wall clock does.
    tick: AtomicU64,
}

enum Source {
    System { start: Instant },
    Manual { start: i64, millis: AtomicI64, moved: watch::Sender<()> },
}

impl Clock {
    pub fn system() -> Clock {
        Clock::of(Source::System { start: Instant::now() })
    }

    /// Stands still until [`Clock::advance`].
    pub fn manual(start: Timestamp) -> Clock {
        let start = start.as_millis();
        let (millis, moved) = (AtomicI64::new(start), watch::Sender::new(()));
        Clock::of(Source::Manual { start, millis, moved })
    }

    fn of(source: Source) -> Clock {
        Clock(Arc::new(Inner { source, tick: AtomicU64::new(0) }))
    }

    /// # Panics
    /// When the clock is not a manual one.
    pub fn advance(&self, duration: Duration) {
        match &self.0.source {
            Source::Manual { millis, moved, .. } => {
                millis.fetch_add(duration.as_millis() as i64, Ordering::SeqCst);
                moved.send_replace(());
            }
            Source::System { .. } => panic!("the system's clock cannot be moved"),
        }
    }

    /// Wall time: for showing and storing, not for measuring; it jumps.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.micros().div_euclid(1_000))
    }

    /// The same wall time in microseconds since 1970: for comparing two processes of one machine.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn micros(&self) -> i64 {
        match &self.0.source {
            Source::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                since.as_micros() as i64
            }
            Source::Manual { millis, .. } => millis.load(Ordering::SeqCst) * 1_000,
        }
    }

    /// Time since this clock was made: for measuring; it never jumps.
    pub fn uptime(&self) -> Duration {
        match &self.0.source {
            Source::System { start } => start.elapsed(),
            Source::Manual { start, .. } => self.now().since(Timestamp::from_millis(*start)),
        }
    }

    /// Sleeps until so much of its time has gone by.
    pub async fn sleep(&self, duration: Duration) {
        match &self.0.source {
            Source::System { .. } => tokio::time::sleep(duration).await,
            Source::Manual { moved, .. } => {
                let until = self.uptime().saturating_add(duration);
                let mut moved = moved.subscribe();
                // We hold the clock: it cannot go away meanwhile.
                let _ = moved.wait_for(|()| self.uptime() >= until).await;
            }
        }
    }

    /// For jitter.
    pub fn random(&self) -> u8 {
        dice()[0]
    }

    /// Milliseconds times 4096, counted on within a millisecond.
    pub fn tick(&self) -> u64 {
        let now = (self.now().as_millis().max(0) as u64) << 12;
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.0.tick.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        let last = last.unwrap_or_else(|last| last);
        now.max(last + 1)
    }

    /// Ticks go on after this one, also when the wall clock was set back before we were started.
    pub fn go_on_after(&self, tick: u64) {
        self.0.tick.fetch_max(tick, Ordering::SeqCst);
    }

    pub fn session_id(&self) -> SessionId {
        SessionId::mint(self.tick(), &dice())
    }

    pub fn message_id(&self) -> MessageId {
        MessageId::mint(self.tick(), &dice())
    }

    pub fn batch_id(&self) -> BatchId {
        BatchId::mint(self.tick(), &dice())
    }

    pub fn short_id(&self) -> ShortId {
        ShortId::mint(&dice())
    }

    /// 128 bits that nobody can guess.
    pub fn nonce(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(dice()))
    }
}

fn dice() -> [u8; 16] {
    let mut dice = [0; 16];
    getrandom::fill(&mut dice).expect("the system gives random bytes");
    dice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::tick_of;

    #[test]
    fn ids_grow_also_when_the_clock_stands_still_or_jumps_back() {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000));
        let first = clock.message_id();
        let second = clock.message_id();
        clock.0.source.jump(-500_000);
        let third = clock.message_id();
        assert!(first < second && second < third, "{first} {second} {third}");
    }

    #[test]
    fn ids_go_on_after_those_of_an_earlier_process_whose_clock_was_ahead() {
        let at = |millis| Clock::manual(Timestamp::from_millis(millis));
        // The second crosses the end of the 48 bits that are in an id.
        for now in [1_000_000_000_000, (26 << 36) - 1_000] {
            let earlier = at(now + 3_600_000).message_id();
            let clock = at(now);
            clock.go_on_after(tick_of(earlier.as_str(), clock.tick()).unwrap());
            assert_eq!(clock.tick() >> 12, (now as u64) + 3_600_000);
        }
        assert_eq!(tick_of("per_x", 5), None);
        assert_eq!(tick_of("msg_parent-message", 5), None);
        assert_eq!(tick_of("mailbox", 5), None);
    }

    impl Source {
        fn jump(&self, by: i64) {
            if let Source::Manual { millis, .. } = self {
                millis.fetch_add(by, Ordering::SeqCst);
            }
        }
    }
}
