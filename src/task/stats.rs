//! Aggregates over tasks: counts by state, figures of a batch, tokens and cost. Pure; the store does the
//! summing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lifecycle::Status;
use super::time::Timestamp;

/// How many tasks of a batch (or of anything) are in each state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Status, u64>);

impl Counts {
    pub fn add(&mut self, status: Status, n: u64) {
        *self.0.entry(status).or_default() += n;
    }

    pub fn of(&self, status: Status) -> u64 {
        self.0.get(&status).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Running and resumed, also when queued.
    pub fn live(&self) -> u64 {
        self.of(Status::Running) + self.of(Status::Resumed)
    }

    pub fn ended(&self) -> u64 {
        self.total() - self.live()
    }
}

/// The aggregates of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStats {
    pub counts: Counts,
    pub tool_calls: u64,
    pub tool_calls_by_name: BTreeMap<String, u64>,
    pub tool_calls_by_agent: BTreeMap<String, u64>,
    /// The first start.
    pub began: Timestamp,
    /// The last end, if there was one.
    pub ended: Option<Timestamp>,
}

impl BatchStats {
    /// From the first start to the last end; to now while something is live.
    pub fn duration(&self, now: Timestamp) -> Duration {
        // While a task is live, the last end is not the end of the batch.
        let until = if self.counts.live() > 0 { now } else { self.ended.unwrap_or(now) };
        until.since(self.began)
    }

    /// Completed tasks among all.
    pub fn completion_rate(&self) -> f64 {
        match self.counts.total() {
            0 => 0.0,
            total => self.counts.of(Status::Completed) as f64 / total as f64,
        }
    }
}

/// Tokens and cost, as the hosts report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub tokens: u64,
    pub cost: f64,
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage { tokens: self.tokens + other.tokens, cost: self.cost + other.cost }
    }
}

impl FromIterator<Status> for Counts {
    fn from_iter<I: IntoIterator<Item = Status>>(statuses: I) -> Counts {
        let mut counts = Counts::default();
        for status in statuses {
            counts.add(status, 1);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_task_counts_as_live_and_not_as_ended() {
        use Status::*;
        let counts = Counts::from_iter([Running, Resumed, Completed, Error, Cancelled, Completed]);
        assert_eq!((counts.live(), counts.ended(), counts.total()), (2, 4, 6));
        assert_eq!(counts.of(Completed), 2);
    }
}
