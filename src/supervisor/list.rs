//! Listing: what a parent sees of its tasks, which is its direct children, newest first, without those it
//! has cleared. The counts are read first; when nothing matches, no page is read.

use super::{Caller, Error, Supervisor};
use crate::store::{Filter, Page, Sort, Window};
use crate::task::stats::{Counts, Usage};
use crate::task::{BatchId, SessionId, Status, Task};

/// Page size; the history API has the rest.
const MOST: u64 = 200;

#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    pub tasks: Vec<Task>,
    /// Over all of the parent's listed tasks, whatever the filter.
    pub counts: Counts,
    /// How many match the filter, shown or not.
    pub total: u64,
}

impl Supervisor {
    pub fn list(&self, parent: &SessionId, status: Option<Status>) -> Result<Listing, Error> {
        let counts = self.0.core.store().tasks().listed_counts(parent)?;
        let matching = status.map_or(counts.total(), |status| counts.of(status));
        if matching == 0 {
            return Ok(Listing { tasks: Vec::new(), counts, total: 0 });
        }
        let filter =
            Filter { status, parent: Some(parent.clone()), listed_only: true, ..Filter::default() };
        let newest = Window { limit: MOST, offset: 0 };
        let Page { tasks, total } = self.0.core.store().pages().get(
            &filter,
            Sort::default(),
            newest,
            std::convert::identity,
        )?;
        Ok(Listing { tasks, counts, total })
    }

    /// A parent's tasks in the background that have not ended, in the order of their launch.
    pub fn in_background(&self, parent: &SessionId) -> Result<Vec<Task>, Error> {
        Ok(self.0.core.store().tasks().live_in_background(parent)?)
    }

    /// The tasks of a batch that the caller may change (T18): others may use the same name.
    pub fn batch(&self, caller: &Caller, batch: &BatchId) -> Result<Vec<Task>, Error> {
        let mut tasks = self.0.core.store().tasks().batch(batch)?;
        tasks.retain(|task| self.check_owner(task, caller).is_ok());
        if tasks.is_empty() { Err(Error::NoSuchBatch(batch.to_string())) } else { Ok(tasks) }
    }

    /// Tokens and cost of a session with all its descendants; of a conversation only the latter are known
    /// here (T17).
    pub fn spent(&self, session: &SessionId) -> Result<Usage, Error> {
        let own =
            self.0.core.store().tasks().get(session)?.map_or(Usage::default(), |task| Usage {
                tokens: task.progress.tokens.unwrap_or(0),
                cost: task.progress.cost.unwrap_or(0.0),
            });
        Ok(own + self.0.core.store().tasks().spent_below(session)?)
    }
}
