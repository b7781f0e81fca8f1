//! Exponential back-off: how long to wait before something that failed is tried again.

use std::time::Duration;

/// The pause after the first failed try, and the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// Doubled with every try that has failed before the last one.
    pub fn pause(self, before: u32) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(before)).min(self.longest)
    }

    /// With jitter: shortened by up to a half, so that clients that failed together do not retry in step.
    /// The number is a random one.
    pub fn jittered(self, before: u32, random: u8) -> Duration {
        let pause = self.pause(before);
        pause - (pause / 2) * (u32::from(random) + 1) / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: Backoff =
        Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let pauses =
            [0, 1, 2, 5, 6, 31, 32, u32::MAX].map(|before| SECONDS.pause(before).as_secs());
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn jitter_shortens_a_pause_by_at_most_half() {
        let millis = |random| SECONDS.jittered(3, random).as_millis();
        assert_eq!([millis(0), millis(127), millis(255)], [7_984, 6_000, 4_000]);
    }
}
