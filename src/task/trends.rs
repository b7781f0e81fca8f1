//! Trends: what tasks did over a span of time, in buckets of equal length, with percentiles of their durations.
//! Pure; the store hands in one task after the other.

use std::collections::BTreeMap;

use super::{Status, Timestamp};

/// A span of time in buckets of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: Timestamp,
    /// Of a bucket.
    pub bucket_millis: i64,
    pub buckets: usize,
}

/// A task that has ended, as far as trends need it.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedTask {
    pub status: Status,
    pub agent: String,
    /// Empty when the host chose it.
    pub model: String,
    pub started_at: Timestamp,
    pub completed_at: Timestamp,
    pub tokens: u64,
    pub cost: f64,
}

/// What happened within one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bucket {
    pub launched: u64,
    pub completed: u64,
    pub error: u64,
    pub cancelled: u64,
    pub tokens: u64,
    pub cost: f64,
}

/// Of one agent or model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    pub tasks: u64,
    pub errors: u64,
    pub tokens: u64,
    pub cost: f64,
    durations: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trends {
    pub span: Span,
    pub buckets: Vec<Bucket>,
    pub by_agent: BTreeMap<String, Share>,
    pub by_model: BTreeMap<String, Share>,
    /// There were more tasks than are read; the oldest are missing.
    pub is_partial: bool,
    durations: Vec<u64>,
}

/// In milliseconds, by nearest rank; all 0 when nothing ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

impl Span {
    pub fn until(self) -> Timestamp {
        let millis = self.bucket_millis.saturating_mul(self.buckets as i64);
        Timestamp::from_millis(self.from.as_millis().saturating_add(millis))
    }

    fn bucket(self, at: Timestamp) -> Option<usize> {
        let since = at.as_millis().checked_sub(self.from.as_millis())?;
        let bucket = usize::try_from(since.div_euclid(self.bucket_millis)).ok()?;
        (bucket < self.buckets).then_some(bucket)
    }
}

impl Trends {
    pub fn new(span: Span) -> Trends {
        Trends {
            span,
            buckets: vec![Bucket::default(); span.buckets],
            by_agent: BTreeMap::new(),
            by_model: BTreeMap::new(),
            is_partial: false,
            durations: Vec::new(),
        }
    }

    pub fn launched(&mut self, at: Timestamp) {
        if let Some(bucket) = self.span.bucket(at) {
            self.buckets[bucket].launched += 1;
        }
    }

    pub fn ended(&mut self, task: EndedTask) {
        let Some(bucket) = self.span.bucket(task.completed_at) else { return };
        let bucket = &mut self.buckets[bucket];
        let count = match task.status {
            Status::Completed => &mut bucket.completed,
            Status::Error => &mut bucket.error,
            Status::Cancelled => &mut bucket.cancelled,
            Status::Running | Status::Resumed => return,
        };
        *count += 1;
        bucket.tokens += task.tokens;
        bucket.cost += task.cost;
        let millis = task.completed_at.since(task.started_at).as_millis() as u64;
        self.durations.push(millis);
        for (shares, name) in [(&mut self.by_agent, &task.agent), (&mut self.by_model, &task.model)]
        {
            let share = shares.entry(name.clone()).or_default();
            share.tasks += 1;
            share.errors += u64::from(task.status == Status::Error);
            share.tokens += task.tokens;
            share.cost += task.cost;
            share.durations.push(millis);
        }
    }

    pub fn durations(&mut self) -> Percentiles {
        percentiles(&mut self.durations)
    }
}

impl Share {
    pub fn durations(&mut self) -> Percentiles {
        percentiles(&mut self.durations)
    }
}

fn percentiles(durations: &mut [u64]) -> Percentiles {
    durations.sort_unstable();
    let Some(last) = durations.len().checked_sub(1) else { return Percentiles::default() };
    let rank = |percent: usize| durations[(durations.len() * percent).div_ceil(100).max(1) - 1];
    Percentiles { p50: rank(50), p90: rank(90), p99: rank(99), max: durations[last] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: Status, agent: &str, from: i64, until: i64) -> EndedTask {
        EndedTask {
            status,
            agent: agent.into(),
            model: String::new(),
            started_at: Timestamp::from_millis(from),
            completed_at: Timestamp::from_millis(until),
            tokens: 10,
            cost: 0.5,
        }
    }

    #[test]
    fn tasks_are_counted_in_the_bucket_they_were_launched_or_ended_in() {
        let from = Timestamp::from_millis(1_000);
        let mut trends = Trends::new(Span { from, bucket_millis: 100, buckets: 2 });
        for at in [999, 1_000, 1_099, 1_100, 1_199, 1_200, i64::MAX] {
            trends.launched(Timestamp::from_millis(at));
        }
        trends.ended(ended(Status::Completed, "a", 900, 1_010));
        trends.ended(ended(Status::Error, "a", 1_000, 1_150));
        trends.ended(ended(Status::Cancelled, "b", 1_000, 1_199));
        trends.ended(ended(Status::Completed, "b", 1_000, 1_200));
        let first =
            Bucket { launched: 2, completed: 1, tokens: 10, cost: 0.5, ..Bucket::default() };
        let second = Bucket {
            launched: 2,
            error: 1,
            cancelled: 1,
            tokens: 20,
            cost: 1.0,
            ..Bucket::default()
        };
        assert_eq!(trends.buckets, [first, second]);
        let shares: Vec<_> = trends
            .by_agent
            .iter()
            .map(|(name, share)| (&**name, share.tasks, share.errors))
            .collect();
        assert_eq!(shares, [("a", 2, 1), ("b", 1, 0)]);
        assert_eq!(trends.by_model[""].tasks, 3);
        assert_eq!(trends.durations(), Percentiles { p50: 150, p90: 199, p99: 199, max: 199 });
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        assert_eq!(percentiles(&mut []), Percentiles::default());
        assert_eq!(percentiles(&mut [7]), Percentiles { p50: 7, p90: 7, p99: 7, max: 7 });
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentiles(&mut hundred), Percentiles { p50: 50, p90: 90, p99: 99, max: 100 });
    }
}
