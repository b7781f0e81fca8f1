//! The reconciler's memory between two checks: since when each run has looked the same, and how long it has
//! gone on. Losing it costs time, never truth: after a restart the timers for stalls and grace periods start
//! anew. Durations are measured in uptime, which does not jump; the wall clock is used once, for the time
//! before this process.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::PermissionRequest;
use super::verdict::Elapsed;
use crate::clock::Clock;
use crate::host::{Activity, Ask, Observation, Watch};
use crate::store::ActiveTask;
use crate::task::{MessageId, TaskId, Timestamp};

/// The memory of one scope: the runs on one instance.
#[derive(Default)]
pub(super) struct Memory {
    runs: HashMap<TaskId, RunMemory>,
    /// Uptime when each open question was first seen here, and how old it was then.
    asks: HashMap<String, (Duration, Duration)>,
    /// Uptime since which the host has not answered; `None` while it does.
    pub(super) silent: Option<Duration>,
}

struct RunMemory {
    run: u32,
    /// Its newest prompt, when that was sent, and since when it is watched.
    prompt: (MessageId, Timestamp),
    prompt_since: Duration,
    observation: Observation,
    /// Uptime when it began to look like this.
    since: Duration,
    /// Uptime when this run was first seen, and how old it was then.
    first: Duration,
    age: Duration,
    /// How long it had been without a slot by then.
    waited: Duration,
}

impl Memory {
    pub(super) fn keep_only(&mut self, active: &[ActiveTask]) {
        let live: HashSet<&TaskId> = active.iter().map(|active| &active.task.id).collect();
        self.runs.retain(|id, _| live.contains(id));
        let open: HashSet<&str> =
            self.runs.values().flat_map(|seen| asks(&seen.observation)).collect();
        self.asks.retain(|id, _| open.contains(id.as_str()));
    }

    pub(super) fn note(
        &mut self,
        active: &ActiveTask,
        observation: &Observation,
        clock: &Clock,
    ) -> Elapsed {
        let (uptime, run) = (clock.uptime(), active.task.run);
        // Time in the queue does not count against the budget.
        let began = active.run.sent_at.unwrap_or(active.run.started_at);
        let waited = active.run.waited;
        let prompt = newest_prompt(active);
        let prompt = prompt.unwrap_or((active.run.message_id.clone(), active.run.started_at));
        let fresh = |first, age, prompt_since| RunMemory {
            run,
            prompt: prompt.clone(),
            prompt_since,
            observation: observation.clone(),
            since: uptime,
            first,
            age,
            waited,
        };
        let age = clock.now().since(began).saturating_sub(waited);
        // `waited` has grown when a task lost its slot during a run. What was measured before counts the time
        // without a slot as silence, so the run is measured anew; its age leaves that time out.
        let known = self.runs.remove(&active.task.id).filter(|seen| seen.waited == waited);
        let seen = match known {
            Some(seen) if seen.run == run && seen.prompt.0 == prompt.0 => {
                // A prompt that was sent again restarts the timer of "same", but not that of the prompt.
                match seen.prompt.1 == prompt.1 && seen.observation == *observation {
                    true => seen,
                    false => fresh(seen.first, seen.age, seen.prompt_since),
                }
            }
            Some(seen) if seen.run == run => fresh(seen.first, seen.age, uptime),
            Some(_) | None => fresh(uptime, age, uptime),
        };
        let elapsed = Elapsed {
            same: uptime.saturating_sub(seen.since),
            wall: seen.age + uptime.saturating_sub(seen.first),
            prompt: uptime.saturating_sub(seen.prompt_since),
        };
        self.runs.insert(active.task.id.clone(), seen);
        elapsed
    }

    /// How long each open request has waited, including the time before this process. The wall clock says
    /// how old one was when first seen here; from then on the uptime, which does not jump.
    pub(super) fn asks_waiting(
        &mut self,
        open: Vec<PermissionRequest>,
        clock: &Clock,
    ) -> Vec<(Ask, Duration)> {
        let (now, uptime) = (clock.now(), clock.uptime());
        let wait = |PermissionRequest { ask, since, .. }: PermissionRequest| {
            let seen = self.asks.entry(ask.id.clone()).or_insert((uptime, now.since(since)));
            let waited = seen.1 + uptime.saturating_sub(seen.0);
            (ask, waited)
        };
        open.into_iter().map(wait).collect()
    }
}

fn asks(observation: &Observation) -> impl Iterator<Item = &str> {
    let asks = match &observation.activity {
        Activity::Blocked(asks) => asks.as_slice(),
        Activity::Idle
        | Activity::Waiting
        | Activity::Streaming
        | Activity::Tool
        | Activity::Retrying(_)
        | Activity::Gone
        | Activity::Lacking(_)
        | Activity::Lost(_) => &[],
    };
    asks.iter().map(|ask| ask.id.as_str())
}

/// The run as the host knows it: from its newest prompt on. `None` while a prompt is still owed.
pub(super) fn watched(active: &ActiveTask) -> Option<Watch> {
    let task = &active.task;
    Some(Watch {
        session: task.id.clone(),
        prompt: newest_prompt(active)?.0,
        instance: task.origin.host_instance.clone(),
        directory: task.origin.directory.clone(),
    })
}

/// The prompt that was sent last, and when. `None` while one is still owed.
fn newest_prompt(active: &ActiveTask) -> Option<(MessageId, Timestamp)> {
    let run = &active.run;
    if run.owes_further {
        return None;
    }
    let mut newest: (&MessageId, Timestamp) = (&run.message_id, run.sent_at?);
    // A message is a prompt of the run like its follow-ups: what was answered before it is not its end.
    let further = run.further.as_ref();
    let follow_ups = [
        (run.nudge_id.as_ref(), run.nudge_sent_at),
        (run.continue_id.as_ref(), run.continue_sent_at),
        (further.map(|(id, _)| id), further.map(|(_, at)| *at)),
    ];
    for (id, sent_at) in follow_ups {
        if let Some(id) = id {
            let sent_at = sent_at?;
            // Two in the same millisecond: ids grow with time, so the greater one is the later.
            if sent_at > newest.1 || (sent_at == newest.1 && id > newest.0) {
                newest = (id, sent_at);
            }
        }
    }
    Some((newest.0.clone(), newest.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_request_counts_from_when_it_was_asked_also_across_restarts() {
        let clock = Clock::manual(Timestamp::from_millis(60_000));
        let ask = Ask { id: "per_1".into(), what: "may it".into() };
        let since = Timestamp::from_millis(50_000);
        let request = PermissionRequest { ask: ask.clone(), task: TaskId::new("one"), since };
        let mut memory = Memory::default();
        let second = Duration::from_secs;
        let waiting = |memory: &mut Memory| memory.asks_waiting(vec![request.clone()], &clock);
        assert_eq!(waiting(&mut memory), [(ask.clone(), second(10))]);
        clock.advance(second(5));
        assert_eq!(waiting(&mut memory), [(ask.clone(), second(15))]);
        memory.keep_only(&[]);
        assert_eq!(memory.asks.len(), 0, "nobody asks it any more");
    }
}
