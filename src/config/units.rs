//! Units of the config file, as modules for serde's `with`: times in seconds or days, and 0 for "off". In the code they
//! are `Duration` and `Option`, so that no unit is mixed up and no 0 is taken for a limit.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(super) const DAY: u64 = 86_400;

pub(super) mod seconds {
    use super::*;

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_secs())
    }

    pub(in crate::config) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

pub(super) mod fractional_seconds {
    use super::*;

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(in crate::config) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Duration, D::Error> {
        // Checked, because the plain conversion panics on a number that is negative, not finite or too large.
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

pub(super) mod count_or_off {
    use super::*;

    pub(in crate::config) fn serialize<S: Serializer>(
        count: &Option<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(count.unwrap_or(0))
    }

    pub(in crate::config) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        Ok(Some(u64::deserialize(from)?).filter(|count| *count > 0))
    }
}

pub(super) mod seconds_or_off {
    use super::*;

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        count_or_off::serialize(&time.map(|time| time.as_secs()), to)
    }

    pub(in crate::config) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(count_or_off::deserialize(from)?.map(Duration::from_secs))
    }
}

pub(super) mod days_or_off {
    use super::*;

    // Whole days both ways: a shown config must read back as itself.

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        count_or_off::serialize(&time.map(|time| time.as_secs() / DAY), to)
    }

    pub(in crate::config) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(count_or_off::deserialize(from)?
            .map(|days| Duration::from_secs(days.saturating_mul(DAY))))
    }
}
