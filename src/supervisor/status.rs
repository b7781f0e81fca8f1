//! What the status API asks: pages, totals, groups, as JSON where it is kept ready.

use super::{Error, Supervisor};
use crate::store::{Filter, Group, Snapshot, Sort, Totals};
use crate::task::{BatchId, TaskId};

impl Supervisor {
    /// Another number after every change: answers made under the same one are still true.
    pub fn version(&self) -> u64 {
        self.0.store.version()
    }

    pub fn task_count(&self) -> Result<u64, Error> {
        Ok(self.0.store.task_count()?)
    }

    /// Appends a page as JSON, with commas between the tasks, and says how many match.
    pub fn list_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: (u64, u64),
        to: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        Ok(self.0.store.list_json(filter, sort, window, to)?)
    }

    pub fn task_json(&self, id: &TaskId) -> Result<Vec<u8>, Error> {
        self.0.store.task_json(id)?.ok_or_else(|| Error::NoSuchTask(id.to_string()))
    }

    pub fn totals(&self) -> Result<Totals, Error> {
        Ok(self.0.store.totals()?)
    }

    /// All live tasks and the newest others.
    pub fn snapshot(&self, others: u64) -> Result<Snapshot, Error> {
        Ok(self.0.store.snapshot(others)?)
    }

    pub fn group(&self, id: &BatchId) -> Result<(Group, Vec<u8>), Error> {
        self.0.store.group(id)?.ok_or_else(|| Error::NoSuchGroup(id.to_string()))
    }

    /// Those with the newest members first, and how many there are.
    pub fn groups(&self, limit: u64, offset: u64) -> Result<(Vec<Group>, u64), Error> {
        Ok(self.0.store.groups(limit, offset)?)
    }

    /// The metrics as text.
    pub fn measured(&self) -> Result<String, Error> {
        let (queued, owed) = self.0.store.waiting()?;
        Ok(self.0.metrics.text(queued, owed))
    }
}
