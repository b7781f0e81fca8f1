//! Who may start when there are fewer slots than tasks (T11): first in, first out per parent and
//! fair between parents. Pure: counts in, grants out. The store applies it inside a transaction,
//! so the slots in use are always read off the tasks themselves and none can leak.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::id::{SessionId, TaskId};

/// Whether a task's caller goes on meanwhile, or waits for its end (the tool `Task`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    #[default]
    Background,
    Blocking,
}

/// A task's place at the table. An ended task has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    None,
    Queued,
    Active,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub active_per_parent: usize,
    /// Of those with a caller that waits.
    pub blocking_per_parent: usize,
    /// By `provider` or `provider/model`; what is not named has no limit.
    pub active_per_model: BTreeMap<String, usize>,
    pub queued_per_parent: usize,
}

/// How many slots are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    pub by_parent: BTreeMap<SessionId, usize>,
    pub blocking_by_parent: BTreeMap<SessionId, usize>,
    pub by_model: BTreeMap<String, usize>,
}

/// A queued task; `model` is empty when the host chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub id: TaskId,
    pub model: String,
    pub manner: Manner,
}

impl InUse {
    pub fn add(&mut self, parent: &SessionId, model: &str, manner: Manner) {
        *self.by_parent.entry(parent.clone()).or_default() += 1;
        if manner == Manner::Blocking {
            *self.blocking_by_parent.entry(parent.clone()).or_default() += 1;
        }
        *self.by_model.entry(model.to_owned()).or_default() += 1;
    }

    fn of_parent(&self, parent: &SessionId) -> usize {
        self.by_parent.get(parent).copied().unwrap_or(0)
    }

    pub fn has_room(
        &self,
        parent: &SessionId,
        model: &str,
        manner: Manner,
        limits: &Limits,
    ) -> bool {
        let blocking = self.blocking_by_parent.get(parent).copied().unwrap_or(0);
        self.of_parent(parent) < limits.active_per_parent
            && (manner == Manner::Background || blocking < limits.blocking_per_parent)
            && limits
                .active_per_model
                .iter()
                .filter(|(name, _)| covers(name, model))
                .all(|(name, limit)| self.under(name) < *limit)
    }

    fn under(&self, name: &str) -> usize {
        self.by_model.iter().filter(|(model, _)| covers(name, model)).map(|(_, n)| n).sum()
    }
}

/// A limit on `openai` counts every `openai/…`.
fn covers(name: &str, model: &str) -> bool {
    model == name || model.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
}

/// Grants slots until nothing fits: always to the head of the queue of the parent that has the
/// fewest, the longer waiting one on a tie. `queues` come oldest head first; a parent may have two
/// of them, one for each manner.
pub fn grant(
    mut in_use: InUse,
    mut queues: Vec<(SessionId, VecDeque<Waiting>)>,
    limits: &Limits,
) -> Vec<TaskId> {
    let mut granted = Vec::new();
    loop {
        let next = queues
            .iter_mut()
            .filter(|(parent, queue)| {
                queue
                    .front()
                    .is_some_and(|head| in_use.has_room(parent, &head.model, head.manner, limits))
            })
            .min_by_key(|(parent, _)| in_use.of_parent(parent));
        let Some((parent, queue)) = next else { return granted };
        let Some(head) = queue.pop_front() else { return granted };
        in_use.add(parent, &head.model, head.manner);
        granted.push(head.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(active_per_parent: usize, models: &[(&str, usize)]) -> Limits {
        Limits {
            active_per_parent,
            blocking_per_parent: 1,
            active_per_model: models.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            queued_per_parent: 1_000,
        }
    }

    /// `queues` as `parent: task@model task@model`; what is `waited` for has that as its model.
    fn check(limits: Limits, active: &[&str], queues: &[(&str, &str)], expected: &[&str]) {
        let mut in_use = InUse::default();
        for active in active {
            let (parent, model) = active.split_once('@').unwrap();
            in_use.add(&SessionId::new(parent), model, manner(model));
        }
        let waiting = |task: &str| {
            let (id, model) = task.split_once('@').unwrap_or((task, ""));
            Waiting { id: TaskId::new(id), model: model.to_owned(), manner: manner(model) }
        };
        let queues = queues
            .iter()
            .map(|(parent, tasks)| {
                (SessionId::new(*parent), tasks.split_whitespace().map(waiting).collect())
            })
            .collect();
        let granted = grant(in_use, queues, &limits);
        assert_eq!(granted.iter().map(TaskId::as_str).collect::<Vec<_>>(), expected);
    }

    fn manner(model: &str) -> Manner {
        if model == "waited" { Manner::Blocking } else { Manner::Background }
    }

    #[test]
    fn fewer_are_waited_for_at_a_time_and_they_hold_up_no_others() {
        let queues: &[(&str, &str)] = &[("p", "a@waited b@waited"), ("p", "c d")];
        check(limits(10, &[]), &[], queues, &["a", "c", "d"]);
        check(limits(10, &[]), &["p@waited"], queues, &["c", "d"]);
        check(limits(2, &[]), &["p@waited"], queues, &["c"]);
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
    fn a_limit_on_a_provider_counts_all_of_its_models() {
        let queues: &[(&str, &str)] = &[("p", "a@x/one b@x/two"), ("q", "c@y/one d@xy")];
        check(limits(10, &[("x", 1)]), &[], queues, &["a", "c", "d"]);
    }

    #[test]
    fn a_blocked_head_is_not_overtaken_by_its_own_followers() {
        check(limits(10, &[("m", 0)]), &[], &[("p", "a@m b@n"), ("q", "c@n")], &["c"]);
    }
}
