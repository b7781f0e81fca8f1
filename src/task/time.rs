//! Timestamps and durations: how they are stored (milliseconds), sent (RFC 3339) and shown. Pure; the time
//! comes from `clock.rs`. Arithmetic saturates, since the clock may jump and a store may hold any number.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// Milliseconds since 1970 in UTC; RFC 3339 with milliseconds on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const EPOCH: Timestamp = Timestamp(0);

    pub fn from_millis(millis: i64) -> Timestamp {
        Timestamp(millis)
    }

    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// Zero when `earlier` is later: clocks jump, durations do not turn negative.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub fn plus(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(millis))
    }

    pub fn minus(self, duration: Duration) -> Timestamp {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A damaged row may hold any number, and RFC 3339 ends with the year 9999.
        let moment = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{moment:.3}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        let moment: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Timestamp(moment.as_millisecond()))
    }
}

/// A duration as people say it: `420ms`, `12s`, `2m 5s`, `1h 0m 9s`.
pub fn say(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{}ms", duration.as_millis()),
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m {s}s"),
        (h, m, s) => format!("{h}h {m}m {s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_rfc_3339_utc_with_milliseconds() {
        let moment = Timestamp::from_millis(1_794_776_438_007);
        assert_eq!(moment.to_string(), "2026-11-15T21:00:38.007Z");
        let json = serde_json::to_string(&moment).unwrap();
        assert_eq!(json, "\"2026-11-15T21:00:38.007Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), moment);
    }

    #[test]
    fn durations_are_shown_in_units_from_milliseconds_to_hours() {
        let check = |millis, expected| assert_eq!(say(Duration::from_millis(millis)), expected);
        check(0, "0ms");
        check(999, "999ms");
        check(1_000, "1s");
        check(59_999, "59s");
        check(60_000, "1m 0s");
        check(125_000, "2m 5s");
        check(3_609_000, "1h 0m 9s");
        check(100 * 3_600_000, "100h 0m 0s");
    }

    #[test]
    fn a_clock_that_jumps_back_gives_no_negative_duration() {
        let (early, late) = (Timestamp::from_millis(5), Timestamp::from_millis(9));
        assert_eq!(late.since(early), Duration::from_millis(4));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
