//! Filter, sort order and window of a page, as values and as SQL. Text from outside is only ever bound, never part of
//! the statement. Every order has the number of the task as its last term: ties are stable, so that no task is on two
//! pages or on none.

use super::sql::Value;

use crate::task::{BatchId, SessionId, Status};

/// Which tasks to show. An empty filter shows the whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    pub status: Option<Status>,
    pub agent: Option<String>,
    pub parent: Option<SessionId>,
    pub batch: Option<BatchId>,
    /// Where its agent runs.
    pub host: Option<String>,
    /// Leave out what was cleared from its parent's list.
    pub listed_only: bool,
    /// Part of the description, in capitals or not. An empty text is part of every description.
    pub search: Option<String>,
}

/// By default the newest come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sort {
    pub field: Field,
    pub direction: Direction,
}

/// What tasks can be sorted by; those that are alike in it, by their launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Field {
    /// In the order of their launch.
    #[default]
    StartedAt,
    /// Live tasks come before all ended ones.
    CompletedAt,
    Status,
    Agent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    Ascending,
    #[default]
    Descending,
}

/// Which part of all that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub limit: u64,
    pub offset: u64,
}

impl Filter {
    /// Whether counter rows know the total, the search aside.
    pub(super) fn counted(&self) -> bool {
        // Destructured without `..`, here and below: a new field has to be decided on in every one of them.
        let Filter { status: _, agent: _, parent, batch, host, listed_only, search: _ } = self;
        parent.is_none() && batch.is_none() && host.is_none() && !listed_only
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.search.as_deref().filter(|text| !text.is_empty())
    }

    /// Whether all tasks match, the search aside.
    pub(super) fn admits_all(&self) -> bool {
        let Filter { status, agent, parent: _, batch: _, host: _, listed_only: _, search: _ } =
            self;
        self.counted() && status.is_none() && agent.is_none()
    }

    /// A `WHERE` condition and its values, all but the search.
    pub(super) fn condition(&self) -> (String, Vec<Value<'_>>) {
        let Filter { status, agent, parent, batch, host, listed_only, search: _ } = self;
        let mut terms = vec!["1"];
        let mut values = Vec::new();
        let equal = [
            ("t.status = ?", status.map(Status::name)),
            ("t.agent = ?", agent.as_deref()),
            ("t.parent_session = ?", parent.as_ref().map(SessionId::as_str)),
            ("t.batch = ?", batch.as_ref().map(BatchId::as_str)),
            ("t.host = ?", host.as_deref()),
        ];
        for (term, value) in equal {
            if let Some(value) = value {
                terms.push(term);
                values.push(Value::Text(value.as_bytes()));
            }
        }
        if *listed_only {
            terms.push("t.cleared_at IS NULL");
        }
        (terms.join(" AND "), values)
    }
}

impl Sort {
    pub(super) fn is_by_launch(self) -> bool {
        self.field == Field::StartedAt
    }

    /// An `ORDER BY` list. Both columns have the same direction, so that one index serves either way.
    pub(super) fn sql(self) -> &'static str {
        use Direction::*;
        match (self.field, self.direction) {
            (Field::StartedAt, Ascending) => "t.seq",
            (Field::StartedAt, Descending) => "t.seq DESC",
            (Field::CompletedAt, Ascending) => "t.completed_at, t.seq",
            (Field::CompletedAt, Descending) => "t.completed_at DESC, t.seq DESC",
            (Field::Status, Ascending) => "t.status, t.seq",
            (Field::Status, Descending) => "t.status DESC, t.seq DESC",
            (Field::Agent, Ascending) => "t.agent, t.seq",
            (Field::Agent, Descending) => "t.agent DESC, t.seq DESC",
        }
    }
}

impl Window {
    /// Limit and offset as SQL has them.
    pub(super) fn signed(self) -> (i64, i64) {
        let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
        (signed(self.limit), signed(self.offset))
    }
}
