//! Read side of the status API: pages, totals, groups, snapshots, store health. Queries only; everything is
//! answered from the store, and no host is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Error, Supervisor};
use crate::store::{
    Filter, Group, QuarantinedTask, QueueLength, Snapshot, Sort, Totals, UnreadableRow, Window,
};
use crate::task::queue::Limits;
use crate::task::trends::{Span, Trends};
use crate::task::view::TaskView;
use crate::task::{BatchId, RunEvent, Task, TaskId};

/// The outcome of a check of the whole store.
#[derive(Clone, Debug, Default)]
pub struct StoreCheck {
    /// What is wrong with the file.
    pub problems: Vec<String>,
    /// Tasks that could not be read, and runs and notices that were mended.
    pub tasks: Vec<QuarantinedTask>,
    pub mended: Vec<UnreadableRow>,
    /// How many rows of other tables cannot be read, by table.
    pub unreadable: BTreeMap<String, u64>,
}

impl Supervisor {
    pub fn task_count(&self) -> Result<u64, Error> {
        Ok(self.0.core.store().overview().task_count()?)
    }

    /// How many tasks there are, and whether the queue is paused.
    pub fn health_figures(&self) -> Result<(u64, bool), Error> {
        Ok(self.0.core.store().overview().health_figures()?)
    }

    /// Appends a page as JSON to `answer`, with commas between the tasks; returns how many match.
    pub fn page_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        answer: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        Ok(self.0.core.store().pages().json(filter, sort, window, answer)?)
    }

    /// The same, if it takes microseconds; `None` when it belongs on a blocking thread.
    pub fn page_json_at_once(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        answer: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        Ok(self.0.core.store().pages().json_at_once(filter, sort, window, answer)?)
    }

    /// A task as lists and events show it.
    pub fn brief(&self, task: &Task) -> TaskView {
        self.0.core.store().brief(task)
    }

    /// What is wrong with the store, if damage was found.
    pub fn store_damage(&self) -> Option<String> {
        self.0.core.store().integrity().damage().map(|damage| damage.to_string())
    }

    /// Tasks that could not be read and were quarantined since this daemon was started.
    pub fn newly_quarantined(&self) -> Vec<QuarantinedTask> {
        self.0.core.store().integrity().newly_quarantined()
    }

    /// Runs and notices that this process mended.
    pub fn newly_mended(&self) -> Vec<UnreadableRow> {
        self.0.core.store().integrity().newly_mended()
    }

    /// Full integrity check: what is wrong with the store, and which tasks and other rows could not be read.
    pub fn check_store(&self) -> Result<StoreCheck, Error> {
        let problems = self.0.core.store().integrity().check()?;
        // In a file that is not written, those who cannot be decoded stay where they are.
        if problems.is_empty() {
            self.0.core.store().integrity().inspect_all()?;
        }
        let integrity = self.0.core.store().integrity();
        let (tasks, mended) = (integrity.quarantined()?, integrity.mended()?);
        Ok(StoreCheck { problems, tasks, mended, unreadable: integrity.unreadable_rows()? })
    }

    pub fn totals(&self) -> Result<Totals, Error> {
        Ok(self.0.core.store().overview().totals()?)
    }

    /// All live tasks and the newest others.
    pub fn snapshot(&self, others: u64) -> Result<Snapshot, Error> {
        Ok(self.0.core.store().overview().snapshot(others)?)
    }

    /// Cache validator of a snapshot: while it stays the same, so does the snapshot.
    pub fn snapshot_key(&self) -> Result<(u64, u64), Error> {
        Ok(self.0.core.store().overview().snapshot_key()?)
    }

    pub fn group(&self, id: &BatchId) -> Result<(Group, Vec<TaskView>), Error> {
        self.0.core.store().overview().group(id)?.ok_or_else(|| Error::NoSuchGroup(id.to_string()))
    }

    /// A page of groups, those with the newest members first, and how many there are.
    pub fn groups(&self, limit: u64, offset: u64) -> Result<(Vec<Group>, u64), Error> {
        Ok(self.0.core.store().overview().groups(limit, offset)?)
    }

    /// What happened over a span of time; bounded, see the store.
    pub fn trends(&self, span: Span) -> Result<Trends, Error> {
        Ok(self.0.core.store().overview().trends(span)?)
    }

    pub fn queue_length(&self) -> Result<QueueLength, Error> {
        Ok(self.0.core.store().overview().queue_length()?)
    }

    /// What happened to a task, oldest first.
    pub fn run_events(&self, task: &TaskId) -> Result<Vec<RunEvent>, Error> {
        Ok(self.0.core.store().tasks().run_events(task)?)
    }

    /// Preamble and context of a fork.
    pub fn inherited(&self, task: &TaskId) -> Result<Option<(String, String)>, Error> {
        let inheritance = self.0.core.store().tasks().inheritance(task)?;
        Ok(inheritance.map(|inherited| (inherited.preamble, inherited.context)))
    }

    /// The limits in force.
    pub fn limits(&self) -> Arc<Limits> {
        self.0.core.limits()
    }

    /// The metrics as text.
    pub fn measured(&self) -> Result<String, Error> {
        let (queued, owed) = self.0.core.store().overview().waiting()?;
        Ok(self.0.core.metrics().text(queued, owed))
    }
}
