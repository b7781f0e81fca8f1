//! Clock and source of randomness: the one place that reads the time of day and random bytes, so that tests
//! can use a manual clock instead. It also mints ids, from a monotonic tick and 16 random bytes.
//!
//! The wall clock can jump. So durations are measured with [`Clock::uptime`], and ticks never go backwards,
//! neither within a process nor, after [`Clock::go_on_after`], from one daemon to the next.

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
    /// The last tick given out: ids sort by the time they were minted, whatever the wall clock does.
    tick: AtomicU64,
}

enum Source {
    System {
        start: Instant,
    },
    /// For tests. `moved` wakes sleepers whenever the time is advanced.
    Manual {
        start: i64,
        millis: AtomicI64,
        moved: watch::Sender<()>,
    },
}

impl Clock {
    pub fn system() -> Clock {
        Clock::of(Source::System { start: Instant::now() })
    }

    /// For tests: stands still until [`Clock::advance`].
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
                // The time first, then the wake-up: a sleeper that wakes must see the new time.
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

    /// Wall time in microseconds since 1970: for comparing moments that two processes of one machine saw.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn micros(&self) -> i64 {
        match &self.0.source {
            Source::System { .. } => {
                // A clock before 1970 counts as 1970: ids must not become negative.
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

    /// Sleeps for this long by this clock; with a manual one, until a test has advanced it far enough.
    pub async fn sleep(&self, duration: Duration) {
        match &self.0.source {
            Source::System { .. } => tokio::time::sleep(duration).await,
            Source::Manual { moved, .. } => {
                let until = self.uptime().saturating_add(duration);
                let mut moved = moved.subscribe();
                // `wait_for` fails only when the sender is dropped, and `self` holds it.
                let _ = moved.wait_for(|()| self.uptime() >= until).await;
            }
        }
    }

    /// A random byte, for jitter.
    pub fn random(&self) -> u8 {
        random_bytes()[0]
    }

    /// The next value of a monotonic counter: milliseconds since 1970 times 4096, plus one for each tick
    /// within the same millisecond. OpenCode's ids are made this way, and hosts sort messages by them.
    pub fn tick(&self) -> u64 {
        let now = (self.now().as_millis().max(0) as u64) << 12;
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.0.tick.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        let last = last.unwrap_or_else(|last| last);
        now.max(last + 1)
    }

    /// Makes later ticks greater than this one, the newest in the store: the wall clock may have been set
    /// back between two daemons, and ids must go on sorting by time.
    pub fn go_on_after(&self, tick: u64) {
        self.0.tick.fetch_max(tick, Ordering::SeqCst);
    }

    pub fn session_id(&self) -> SessionId {
        SessionId::mint(self.tick(), &random_bytes())
    }

    pub fn message_id(&self) -> MessageId {
        MessageId::mint(self.tick(), &random_bytes())
    }

    pub fn batch_id(&self) -> BatchId {
        BatchId::mint(self.tick(), &random_bytes())
    }

    pub fn short_id(&self) -> ShortId {
        ShortId::mint(&random_bytes())
    }

    /// 128 random bits in hex: for tokens, and for idempotency keys.
    pub fn nonce(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(random_bytes()))
    }
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
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
