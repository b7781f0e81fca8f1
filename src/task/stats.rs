//! Counts over tasks: of a batch, and the arithmetic of what a parent is told about it.

use std::collections::BTreeMap;

use super::lifecycle::Status;

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

/// Tokens and money, in the hosts' own figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub tokens: u64,
    pub cost: f64,
}

impl std::ops::Add for Spent {
    type Output = Spent;

    fn add(self, other: Spent) -> Spent {
        Spent { tokens: self.tokens + other.tokens, cost: self.cost + other.cost }
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
