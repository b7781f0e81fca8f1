//! Fair scheduling of slots (T11): first in, first out per parent, and round robin between parents, the one
//! served longest ago first. Pure: counts in, grants out.
//!
//! The store applies it inside the writer's transaction and counts the slots in use from the rows of live
//! tasks. There is no counter that could leak a slot when a task ends in an unforeseen way.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::id::{SessionId, TaskId};

/// Whether a task's caller goes on meanwhile, or waits for its end (the tool `Task`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchMode {
    #[default]
    Background,
    Blocking,
}

/// Whether a task occupies a slot, waits for one, or neither. An ended task has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    None,
    Queued,
    Active,
    /// It has none and is not in the queue, until a client brings the credentials that it lost (T6).
    Parked,
}

/// How many tasks may run at the same time (`[limits]` in the configuration).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all parents together.
    pub active: Option<usize>,
    pub active_per_parent: usize,
    /// Of those whose caller waits for them; they count among `active_per_parent`, too.
    pub blocking_per_parent: usize,
    /// By `provider` or `provider/model`; what is not named has no limit.
    pub active_per_model: BTreeMap<String, usize>,
    pub queued_per_parent: usize,
    /// The daemon is to stop once nothing runs any more: nothing starts.
    pub is_draining: bool,
}

/// How many slots are in use, by everything that there are limits on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// The queue is paused: no slot is given out, whatever is free.
    pub is_paused: bool,
    pub by_parent: BTreeMap<SessionId, usize>,
    pub blocking_by_parent: BTreeMap<SessionId, usize>,
    pub by_model: BTreeMap<String, usize>,
}

/// The queued tasks of one parent in one mode, the oldest first. Two queues per parent: blocking tasks,
/// which have a smaller limit, must not hold up the background tasks behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub parent: SessionId,
    /// A counter, not a time: greater for a parent that was given a slot later, 0 for one that was given
    /// none since it has tasks in the queue.
    pub served: u64,
    pub waiting: VecDeque<QueuedTask>,
}

/// A task that waits for a slot; `model` is empty when the host chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTask {
    pub id: TaskId,
    pub model: String,
    pub mode: LaunchMode,
}

/// The queue as a new task finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Tasks wait, of whatever parent.
    pub is_contended: bool,
    /// How many of the new task's parent wait, in either mode.
    pub of_parent: usize,
    /// One of its parent waits in the same mode.
    pub own_queue: bool,
    /// One waits that a limit on the new task's model counts, too.
    pub same_model_limit: bool,
}

/// What becomes of a new task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Start,
    Wait,
    /// Its parent has as many tasks in the queue as it may have.
    Refuse,
}

impl QueueState {
    /// Whether a task would be overtaken if the new one started now: one that waits for the same slot, of its
    /// own parent, or of any parent under the same limit. Then the new one waits, too, and the next round of
    /// [`grant`] decides. Without this, a parent that launches often enough could starve the others.
    pub fn would_be_overtaken(self, limits: &Limits) -> bool {
        // Under a limit for all parents every queued task waits for the same slot.
        self.own_queue || self.same_model_limit || self.is_contended && limits.active.is_some()
    }

    /// Decides on a new task. `has_room`: it would stay within the limits, regardless of the queue.
    pub fn admit(self, has_room: bool, limits: &Limits) -> Admission {
        match has_room && !self.would_be_overtaken(limits) {
            true => Admission::Start,
            false if limits.let_wait(self.of_parent) => Admission::Wait,
            false => Admission::Refuse,
        }
    }
}

impl Limits {
    /// Whether one more of a parent's tasks may wait, when this many do.
    pub fn let_wait(&self, queued: usize) -> bool {
        queued < self.queued_per_parent
    }

    /// The limits by model that count a task with this one.
    pub fn covering(&self, model: &str) -> impl Iterator<Item = (&str, usize)> {
        let all = self.active_per_model.iter().map(|(name, limit)| (name.as_str(), *limit));
        all.filter(move |(name, _)| covers(name, model))
    }
}

impl SlotUsage {
    pub fn add(&mut self, parent: &SessionId, model: &str, mode: LaunchMode) {
        *self.by_parent.entry(parent.clone()).or_default() += 1;
        if mode == LaunchMode::Blocking {
            *self.blocking_by_parent.entry(parent.clone()).or_default() += 1;
        }
        *self.by_model.entry(model.to_owned()).or_default() += 1;
    }

    fn of_parent(&self, parent: &SessionId) -> usize {
        self.by_parent.get(parent).copied().unwrap_or(0)
    }

    /// Whether one more such task stays within all limits.
    pub fn has_room(
        &self,
        parent: &SessionId,
        model: &str,
        mode: LaunchMode,
        limits: &Limits,
    ) -> bool {
        // Background tasks are not held to the limit of blocking ones, but both fill the parent's.
        let blocking = self.blocking_by_parent.get(parent).copied().unwrap_or(0);
        !self.is_paused
            && !limits.is_draining
            && limits.active.is_none_or(|most| self.by_parent.values().sum::<usize>() < most)
            && self.of_parent(parent) < limits.active_per_parent
            && (mode == LaunchMode::Background || blocking < limits.blocking_per_parent)
            && limits.covering(model).all(|(name, limit)| self.under(name) < limit)
    }

    fn under(&self, name: &str) -> usize {
        self.by_model.iter().filter(|(model, _)| covers(name, model)).map(|(_, n)| n).sum()
    }
}

/// A limit on `openai` counts every `openai/…`.
fn covers(name: &str, model: &str) -> bool {
    model == name || model.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
}

/// Grants slots until nothing fits: always to the head of a queue of the parent served longest ago, then of
/// the one with the fewest slots, then of the one that waits longest. `queues` come oldest head first; a
/// parent may have two of them, one for each mode.
///
/// A parent with a thousand queued tasks delays another one by one grant, not by a thousand.
pub fn grant(mut in_use: SlotUsage, mut queues: Vec<Queue>, limits: &Limits) -> Vec<TaskId> {
    let mut granted = Vec::new();
    let mut latest = queues.iter().map(|queue| queue.served).max().unwrap_or(0);
    loop {
        // Only the head of a queue can start: tasks behind one whose model is at its limit wait with it, so
        // that a parent's tasks start in the order they were launched in.
        let fits = |Queue { parent, waiting, .. }: &&mut Queue| {
            let head = waiting.front();
            head.is_some_and(|head| in_use.has_room(parent, &head.model, head.mode, limits))
        };
        // `min_by_key` takes the first of equals, and `queues` come oldest head first: the third criterion.
        let rank = |queue: &&mut Queue| (queue.served, in_use.of_parent(&queue.parent));
        let Some(next) = queues.iter_mut().filter(fits).min_by_key(rank) else { return granted };
        let Some(head) = next.waiting.pop_front() else { return granted };
        let parent = next.parent.clone();
        in_use.add(&parent, &head.model, head.mode);
        granted.push(head.id);
        // Both queues of the parent count as served: a turn is the parent's, whatever it used it for.
        latest += 1;
        let its = queues.iter_mut().filter(|queue| queue.parent == parent);
        its.for_each(|queue| queue.served = latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(active_per_parent: usize, models: &[(&str, usize)]) -> Limits {
        Limits {
            active: None,
            active_per_parent,
            blocking_per_parent: 1,
            active_per_model: models.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            queued_per_parent: 1_000,
            is_draining: false,
        }
    }

    /// `queues` as `parent: task@model task@model`, a parent served at 7 as `parent 7`; what is
    /// `waited` for has that as its model.
    fn check(limits: Limits, active: &[&str], queues: &[(&str, &str)], expected: &[&str]) {
        let mut in_use = SlotUsage::default();
        for active in active {
            let (parent, model) = active.split_once('@').unwrap();
            in_use.add(&SessionId::new(parent), model, mode(model));
        }
        let waiting = |task: &str| {
            let (id, model) = task.split_once('@').unwrap_or((task, ""));
            QueuedTask { id: TaskId::new(id), model: model.to_owned(), mode: mode(model) }
        };
        let queues = queues
            .iter()
            .map(|(parent, tasks)| {
                let (parent, served) = parent.split_once(' ').unwrap_or((parent, "0"));
                Queue {
                    parent: SessionId::new(parent),
                    served: served.parse().unwrap(),
                    waiting: tasks.split_whitespace().map(waiting).collect(),
                }
            })
            .collect();
        let granted = grant(in_use, queues, &limits);
        assert_eq!(granted.iter().map(TaskId::as_str).collect::<Vec<_>>(), expected);
    }

    fn mode(model: &str) -> LaunchMode {
        if model == "waited" { LaunchMode::Blocking } else { LaunchMode::Background }
    }

    #[test]
    fn blocking_tasks_have_a_lower_limit_and_do_not_hold_up_background_tasks() {
        let queues: &[(&str, &str)] = &[("p", "a@waited b@waited"), ("p", "c d")];
        check(limits(10, &[]), &[], queues, &["a", "c", "d"]);
        check(limits(10, &[]), &["p@waited"], queues, &["c", "d"]);
        check(limits(2, &[]), &["p@waited"], queues, &["c"]);
    }

    #[test]
    fn while_the_queue_is_paused_or_drained_nothing_gets_a_slot() {
        let (parent, background) = (SessionId::new("p"), LaunchMode::Background);
        let usage = |is_paused| SlotUsage { is_paused, ..SlotUsage::default() };
        let check = |is_paused, is_draining, expected: &[&str]| {
            let limits = Limits { is_draining, ..limits(10, &[]) };
            let has_room = usage(is_paused).has_room(&parent, "", background, &limits);
            let admission = QueueState::default().admit(has_room, &limits);
            let starts = if expected.is_empty() { Admission::Wait } else { Admission::Start };
            assert_eq!(admission, starts, "{is_paused} {is_draining}");
            let head = QueuedTask { id: TaskId::new("a"), model: String::new(), mode: background };
            let queue = Queue { parent: parent.clone(), served: 0, waiting: [head].into() };
            let granted = grant(usage(is_paused), vec![queue], &limits);
            assert_eq!(granted.iter().map(TaskId::as_str).collect::<Vec<_>>(), expected);
        };
        check(false, false, &["a"]);
        check(true, false, &[]);
        check(false, true, &[]);
        check(true, true, &[]);
    }

    #[test]
    fn first_in_first_out_per_parent_up_to_the_cap() {
        check(limits(2, &[]), &[], &[("p", "a b c")], &["a", "b"]);
        check(limits(2, &[]), &["p@"], &[("p", "a b c")], &["a"]);
        check(limits(2, &[]), &["p@", "p@"], &[("p", "a b c")], &[]);
    }

    #[test]
    fn fair_between_parents_when_they_share_a_model() {
        let three = || limits(10, &[("m", 3)]);
        check(three(), &[], &[("p", "a@m b@m c@m"), ("q", "x@m")], &["a", "x", "b"]);
        check(three(), &["p@m"], &[("p", "a@m b@m"), ("q", "x@m y@m")], &["x", "a"]);
    }

    #[test]
    fn of_the_parents_that_wait_the_one_served_longest_ago_is_next() {
        let one = || limits(10, &[("m", 1)]);
        check(one(), &[], &[("p 9", "a@m b@m"), ("q 8", "x@m"), ("r 7", "y@m")], &["y"]);
        check(one(), &[], &[("p 9", "a@m b@m"), ("q", "x@m")], &["x"]);
        // Served longest ago counts for more than who has fewer.
        check(limits(10, &[]), &["p@"], &[("q 2", "x"), ("p 1", "a")], &["a", "x"]);
        let two = || limits(10, &[("m", 2)]);
        check(two(), &[], &[("p 3", "a@m b@m"), ("q 4", "x@m y@m")], &["a", "x"]);
    }

    #[test]
    fn a_limit_over_all_parents_is_shared_by_turns() {
        let total = |active| Limits { active: Some(active), ..limits(10, &[]) };
        let queues: &[(&str, &str)] = &[("p", "a b c"), ("q", "x y")];
        check(total(3), &[], queues, &["a", "x", "b"]);
        check(total(3), &["r@", "r@"], queues, &["a"]);
        check(total(2), &["r@", "r@"], queues, &[]);
    }

    #[test]
    fn a_limit_on_a_provider_counts_all_of_its_models() {
        let queues: &[(&str, &str)] = &[("p", "a@x/one b@x/two"), ("q", "c@y/one d@xy")];
        check(limits(10, &[("x", 1)]), &[], queues, &["a", "c", "d"]);
    }

    #[test]
    fn a_new_task_starts_when_there_is_room_and_it_overtakes_nobody() {
        let check = |queue: QueueState, has_room: bool, expected: Admission| {
            assert_eq!(queue.admit(has_room, &limits(10, &[])), expected, "{queue:?} {has_room}");
        };
        let empty = QueueState::default();
        check(empty, true, Admission::Start);
        check(empty, false, Admission::Wait);
        // Others wait for slots that this one does not need.
        let contended = QueueState { is_contended: true, ..empty };
        check(contended, true, Admission::Start);
        check(QueueState { of_parent: 1, ..contended }, true, Admission::Start);
        check(QueueState { of_parent: 1, own_queue: true, ..contended }, true, Admission::Wait);
        check(QueueState { same_model_limit: true, ..contended }, true, Admission::Wait);
    }

    #[test]
    fn under_a_limit_over_all_parents_nobody_overtakes_anybody() {
        let total = Limits { active: Some(3), ..limits(10, &[]) };
        let contended = QueueState { is_contended: true, ..QueueState::default() };
        assert_eq!(contended.admit(true, &total), Admission::Wait);
        assert_eq!(QueueState::default().admit(true, &total), Admission::Start);
    }

    #[test]
    fn a_full_queue_refuses_what_would_have_to_wait_and_nothing_else() {
        let check = |queued_per_parent: usize, of_parent: usize, has_room, expected| {
            let limits = Limits { queued_per_parent, ..limits(10, &[]) };
            let queue =
                QueueState { is_contended: of_parent > 0, of_parent, ..QueueState::default() };
            assert_eq!(queue.admit(has_room, &limits), expected, "{queued_per_parent} {of_parent}");
        };
        check(2, 1, false, Admission::Wait);
        check(2, 2, false, Admission::Refuse);
        check(2, 2, true, Admission::Start);
        // No queue at all.
        check(0, 0, true, Admission::Start);
        check(0, 0, false, Admission::Refuse);
    }

    #[test]
    fn a_blocked_head_is_not_overtaken_by_its_own_followers() {
        check(limits(10, &[("m", 0)]), &[], &[("p", "a@m b@n"), ("q", "c@n")], &["c"]);
    }
}
