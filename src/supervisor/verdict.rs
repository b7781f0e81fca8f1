//! The decision of the reconciler: what an observation means for a run (T6). Pure; how long the run has
//! looked like this is an input.
//!
//! Hosts show intermediate states: an idle session may be between two steps, a prompt may be accepted and
//! not yet stored. So every verdict but a clear answer or error waits until the observation has been stable
//! for `settle` or `answer_grace`.

use std::sync::Arc;
use std::time::Duration;

use super::Settings;
use crate::host::{Activity, Ask, Observation};
use crate::store::{ActiveTask, Run};
use crate::task::lifecycle::Report;
use crate::task::time::say;
use crate::task::{Phase, Progress, Task, Timestamp};
use crate::transcript::{self, Outcome};

/// Durations from the reconciler's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elapsed {
    /// How long the run has looked exactly like this.
    pub(super) same: Duration,
    /// How long the run has gone on, unaffected by jumps of the wall clock.
    pub(super) wall: Duration,
    /// How long its newest prompt has been watched, however often that was sent.
    pub(super) prompt: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It continues: only its progress is shown.
    GoesOn(Phase, Option<String>),
    Asks(Vec<Ask>),
    /// Quiet for too long, or repeating the same tool call.
    Stalled,
    /// Idle with open todos: prompt it once to continue with them.
    Nudge,
    /// The host lost the run, as after a restart: continue it once in the same session.
    Continue,
    /// The host lost the prompt: send it again under the same id.
    Resend,
    Ended {
        report: Report,
        open_todos: Vec<String>,
    },
    /// It gives up its slot and waits for its lost credentials.
    Park(String),
    /// Ended by us and not by the host: the session has to be aborted as well.
    Stop(Report),
}

impl Verdict {
    /// The open permission requests.
    pub(super) fn asks(&self) -> &[Ask] {
        match self {
            Verdict::Asks(asks) => asks,
            Verdict::GoesOn(..)
            | Verdict::Stalled
            | Verdict::Nudge
            | Verdict::Continue
            | Verdict::Resend
            | Verdict::Ended { .. }
            | Verdict::Park(_)
            | Verdict::Stop(_) => &[],
        }
    }
}

pub(super) fn judge(
    active: &ActiveTask,
    seen: &Observation,
    elapsed: Elapsed,
    settings: &Settings,
) -> Verdict {
    match &seen.activity {
        Activity::Gone => aborted("Session deleted"),
        // `Stop`: should its host come back after all, the run may still be at work there.
        Activity::Lost(why) => Verdict::Stop(Report::Failed { error: why.clone(), partial: None }),
        Activity::Lacking(why) => Verdict::Park(why.clone()),
        Activity::Idle => idle(&active.run, seen, elapsed, settings),
        Activity::Waiting => busy(active, seen, elapsed, settings, Phase::Waiting, None),
        Activity::Streaming => busy(active, seen, elapsed, settings, Phase::Streaming, None),
        Activity::Tool => busy(active, seen, elapsed, settings, Phase::Tool, None),
        Activity::Retrying(why) => {
            busy(active, seen, elapsed, settings, Phase::Retrying, Some(why.clone()))
        }
        Activity::Blocked(asks) => match over_budget(active, seen, elapsed, settings) {
            Some(verdict) => verdict,
            None => Verdict::Asks(asks.clone()),
        },
    }
}

fn idle(run: &Run, seen: &Observation, elapsed: Elapsed, settings: &Settings) -> Verdict {
    let todos = &seen.open_todos;
    match &seen.outcome {
        Outcome::Answered { .. } if !todos.is_empty() && run.nudge_id.is_none() => Verdict::Nudge,
        Outcome::Answered { text } => Verdict::Ended {
            report: Report::Finished { result: text.clone() },
            open_todos: todos.clone(),
        },
        Outcome::Failed { error, partial } => failed(error.clone(), partial.clone()),
        // It looks the same between two steps of a run, for a moment.
        Outcome::Refused { what, partial } if elapsed.same >= settings.settle => {
            failed(format!("stopped because permission was refused: {what}"), partial.clone())
        }
        // So does an answer that was dropped because of a context overflow, before the compaction.
        Outcome::Aborted if elapsed.same >= settings.settle => aborted("aborted in the host"),
        Outcome::Unfinished { partial } if elapsed.same >= settings.settle => {
            interrupted(run, partial.clone())
        }
        Outcome::Unanswered if elapsed.same >= settings.answer_grace => interrupted(run, None),
        Outcome::PromptMissing if elapsed.prompt >= settings.answer_grace => failed(
            "the host accepted the prompt and never ran it; is the agent registered?".into(),
            None,
        ),
        Outcome::PromptMissing if elapsed.same >= settings.settle => Verdict::Resend,
        // Not stable for long enough: the gap between accepting a prompt and running it, or between two
        // idles.
        Outcome::Unfinished { .. }
        | Outcome::Unanswered
        | Outcome::PromptMissing
        | Outcome::Aborted
        | Outcome::Refused { .. } => Verdict::GoesOn(Phase::Waiting, None),
    }
}

fn busy(
    active: &ActiveTask,
    seen: &Observation,
    elapsed: Elapsed,
    settings: &Settings,
    phase: Phase,
    detail: Option<String>,
) -> Verdict {
    if let Some(verdict) = over_budget(active, seen, elapsed, settings) {
        return verdict;
    }
    let circles = seen.figures.repeated >= settings.stall_repeats;
    if elapsed.same < settings.stall && !circles {
        return Verdict::GoesOn(phase, detail);
    }
    match settings.cancel_stalled {
        true => Verdict::Stop(Report::Aborted { error: stalled(elapsed, circles) }),
        false => Verdict::Stalled,
    }
}

fn stalled(elapsed: Elapsed, circles: bool) -> String {
    match circles {
        true => "stalled: the same tool call again and again".into(),
        false => format!("stalled: no activity for {}", say(elapsed.same)),
    }
}

fn over_budget(
    active: &ActiveTask,
    seen: &Observation,
    elapsed: Elapsed,
    settings: &Settings,
) -> Option<Verdict> {
    let progress = progress(&active.task, seen, settings.last_message_characters);
    let reached = active.task.order.budget.reached(&progress, elapsed.wall)?;
    let partial = seen.figures.last_message.as_deref().map(Arc::from);
    Some(Verdict::Stop(Report::Failed { error: reached, partial }))
}

/// The host was restarted during a run: continued once per run; the second time it fails (T6).
fn interrupted(run: &Run, partial: Option<Arc<str>>) -> Verdict {
    match (&run.continue_id, run.continue_sent_at) {
        (None, _) => Verdict::Continue,
        (Some(_), None) => Verdict::GoesOn(Phase::Waiting, None),
        (Some(_), Some(_)) => {
            failed("interrupted: the host was restarted again during the run".into(), partial)
        }
    }
}

fn failed(error: String, partial: Option<Arc<str>>) -> Verdict {
    Verdict::Ended { report: Report::Failed { error, partial }, open_todos: Vec::new() }
}

fn aborted(error: &str) -> Verdict {
    Verdict::Ended { report: Report::Aborted { error: error.into() }, open_todos: Vec::new() }
}

/// The report for a run whose host has been unreachable for too long.
pub(super) fn unreachable(why: &str, gone: Duration) -> Report {
    let error = format!("interrupted: {why}, for {}", say(gone));
    Report::Failed { error, partial: None }
}

/// The figures of an observation, with this many characters of the last message and the phase that the
/// task already had.
pub(super) fn progress(task: &Task, seen: &Observation, last_message: usize) -> Progress {
    let figures = seen.figures.clone();
    Progress {
        tool_calls: figures.tool_calls,
        tool_calls_by_name: figures.tool_calls_by_name,
        last_tools: figures.last_tools,
        last_update: task.progress.last_update,
        phase: task.progress.phase,
        last_message: figures.last_message.map(|text| transcript::newest_part(&text, last_message)),
        last_message_at: figures.last_message_at.map(Timestamp::from_millis),
        tokens: figures.tokens,
        cost: figures.cost,
        detail: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::supervisor::{Asks, Retention};
    use crate::task::lifecycle::ResumePolicy;
    use crate::task::queue::Limits;
    use crate::task::{
        BatchId, MessageId, Order, Origin, Parent, Progress, SessionId, ShortId, Slot, State, Task,
        TaskId, Timestamp,
    };
    use crate::transcript::Figures;

    const AT: Timestamp = Timestamp::EPOCH;

    fn settings() -> Settings {
        Settings {
            home: std::path::PathBuf::new(),
            enabled: true,
            limits: Arc::new(Limits {
                active: None,
                active_per_parent: 10,
                blocking_per_parent: 3,
                active_per_model: [].into(),
                queued_per_parent: 1_000,
                is_draining: false,
            }),
            poll_interval: Duration::from_secs(2),
            max_depth: 1,
            fork_method: crate::supervisor::ForkMethod::Context,
            stall: Duration::from_secs(600),
            stall_repeats: 20,
            cancel_stalled: false,
            settle: Duration::from_secs(2),
            answer_grace: Duration::from_secs(60),
            gone: Duration::from_secs(600),
            resumable: ResumePolicy::Completed,
            asks: Asks::Park(None),
            result_cache: Duration::from_secs(300),
            last_message_characters: 2_000,
            inline_characters: 8_000,
            toasts: true,
            notifier: Arc::default(),
            history: Retention::default(),
            keep_unread: None,
        }
    }

    fn active() -> ActiveTask {
        let task = Task {
            id: TaskId::new("ses_1"),
            short_id: ShortId::new("ab12c3"),
            origin: Origin {
                parent: Parent {
                    session: SessionId::new("ses_0"),
                    message: String::new(),
                    agent: String::new(),
                    host: "scripted".into(),
                },
                host: "scripted".into(),
                host_instance: String::new(),
                directory: String::new(),
                depth: 1,
                is_forked: false,
                retry_of: None,
            },
            order: Order {
                description: "look".into(),
                prompt: "look".into(),
                agent: "explore".into(),
                ..Order::default()
            },
            batch: BatchId::new("bat_1"),
            state: State::Running,
            started_at: AT,
            completed_at: None,
            result_retrieved_at: None,
            cleared_at: None,
            retried_by: None,
            run: 0,
            slot: Slot::Active,
            progress: Progress::new(AT),
            revision: 0,
        };
        let run = Run {
            n: 0,
            message_id: MessageId::new("msg_1"),
            prompt: "look".into(),
            started_at: AT,
            sent_at: Some(AT),
            ended_at: None,
            ended_as: None,
            result: None,
            error: None,
            open_todos: Vec::new(),
            nudge_id: None,
            nudge_sent_at: None,
            continue_id: None,
            continue_sent_at: None,
            further: None,
            owes_further: false,
            corrections: 0,
            stalled: false,
            waited: Duration::ZERO,
        };
        ActiveTask { task, run }
    }

    fn nudged() -> ActiveTask {
        let mut active = active();
        active.run.nudge_id = Some(MessageId::new("msg_2"));
        active.run.nudge_sent_at = Some(AT);
        active
    }

    fn continued() -> ActiveTask {
        let mut active = active();
        active.run.continue_id = Some(MessageId::new("msg_3"));
        active.run.continue_sent_at = Some(AT);
        active
    }

    fn seen(activity: Activity, outcome: Outcome) -> Observation {
        Observation {
            session: SessionId::new("ses_1"),
            activity,
            outcome,
            open_todos: Vec::new(),
            figures: Figures::default(),
        }
    }

    fn with_todos(observation: Observation) -> Observation {
        Observation { open_todos: vec!["tests".into()], ..observation }
    }

    fn check(active: &ActiveTask, seen: &Observation, same_seconds: u64, expected: Verdict) {
        let same = Duration::from_secs(same_seconds);
        let elapsed = Elapsed { same, wall: Duration::ZERO, prompt: same };
        assert_eq!(judge(active, seen, elapsed, &settings()), expected, "{seen:?}");
    }

    fn answered() -> Outcome {
        Outcome::Answered { text: "found".into() }
    }

    fn finished(open_todos: Vec<String>) -> Verdict {
        Verdict::Ended { report: Report::Finished { result: "found".into() }, open_todos }
    }

    fn waits() -> Verdict {
        Verdict::GoesOn(Phase::Waiting, None)
    }

    #[test]
    fn idle_answered_no_open_todo_is_completed() {
        check(&active(), &seen(Activity::Idle, answered()), 0, finished(Vec::new()));
    }

    #[test]
    fn idle_answered_todos_open_gets_one_prompt_then_is_completed() {
        let idle = with_todos(seen(Activity::Idle, answered()));
        check(&active(), &idle, 0, Verdict::Nudge);
        check(&nudged(), &idle, 0, finished(vec!["tests".into()]));
    }

    #[test]
    fn failed_for_good_is_an_error() {
        let outcome = Outcome::Failed { error: "overloaded".into(), partial: Some("half".into()) };
        let expected = failed("overloaded".into(), Some("half".into()));
        check(&active(), &seen(Activity::Idle, outcome), 0, expected);
    }

    #[test]
    fn stopped_because_something_was_refused_is_an_error_naming_it() {
        let outcome = Outcome::Refused { what: "bash: no".into(), partial: None };
        let stopped = seen(Activity::Idle, outcome);
        // The same can be seen between two steps of a run.
        check(&active(), &stopped, 1, Verdict::GoesOn(Phase::Waiting, None));
        let expected = failed("stopped because permission was refused: bash: no".into(), None);
        check(&active(), &stopped, 2, expected);
    }

    #[test]
    fn a_reached_budget_stops_the_run_and_keeps_the_partial_result() {
        let mut active = active();
        active.task.order.budget.tool_calls = Some(3);
        let mut busy = seen(Activity::Tool, Outcome::Unfinished { partial: None });
        busy.figures.tool_calls = 2;
        busy.figures.last_message = Some("half".into());
        check(&active, &busy, 0, Verdict::GoesOn(Phase::Tool, None));
        busy.figures.tool_calls = 3;
        let stop = || {
            Verdict::Stop(Report::Failed {
                error: "budget reached: 3 tool calls".into(),
                partial: Some("half".into()),
            })
        };
        check(&active, &busy, 0, stop());
        busy.activity = Activity::Blocked(Vec::new());
        check(&active, &busy, 0, stop());
        // An idle run is judged as ended: the budget no longer matters.
        let done = Observation { activity: Activity::Idle, outcome: answered(), ..busy };
        check(&active, &done, 0, finished(Vec::new()));
    }

    #[test]
    fn the_host_was_restarted_in_mid_run_is_continued_once_then_an_error() {
        let idle = seen(Activity::Idle, Outcome::Unfinished { partial: Some("half".into()) });
        check(&active(), &idle, 1, waits());
        check(&active(), &idle, 2, Verdict::Continue);
        let error = "interrupted: the host was restarted again during the run";
        check(&continued(), &idle, 1, waits());
        check(&continued(), &idle, 2, failed(error.into(), Some("half".into())));
        let mut owed = continued();
        owed.run.continue_sent_at = None;
        check(&owed, &idle, 2, waits());
    }

    #[test]
    fn never_completed_when_the_model_did_not_run() {
        let unanswered = seen(Activity::Idle, Outcome::Unanswered);
        check(&active(), &unanswered, 59, waits());
        check(&active(), &unanswered, 60, Verdict::Continue);
        let missing = seen(Activity::Idle, Outcome::PromptMissing);
        check(&active(), &missing, 1, waits());
        check(&active(), &missing, 2, Verdict::Resend);
        let error = "the host accepted the prompt and never ran it; is the agent registered?";
        check(&active(), &missing, 60, failed(error.into(), None));
    }

    #[test]
    fn aborted_by_someone_in_the_host_is_cancelled() {
        let stopped = seen(Activity::Idle, Outcome::Aborted);
        check(&active(), &stopped, 1, Verdict::GoesOn(Phase::Waiting, None));
        check(&active(), &stopped, 2, aborted("aborted in the host"));
    }

    #[test]
    fn a_deleted_session_is_cancelled() {
        check(
            &active(),
            &seen(Activity::Gone, Outcome::PromptMissing),
            0,
            aborted("Session deleted"),
        );
    }

    #[test]
    fn a_busy_session_goes_on_whatever_its_transcript_says() {
        let phases = [
            (Activity::Waiting, Phase::Waiting, None),
            (Activity::Streaming, Phase::Streaming, None),
            (Activity::Tool, Phase::Tool, None),
            (Activity::Retrying("busy".into()), Phase::Retrying, Some("busy".to_owned())),
        ];
        for (activity, phase, detail) in phases {
            check(&active(), &seen(activity, answered()), 599, Verdict::GoesOn(phase, detail));
        }
        let ask = Ask { id: "per_1".into(), what: "bash rm".into() };
        let blocked = seen(Activity::Blocked(vec![ask.clone()]), answered());
        check(&active(), &blocked, 100_000, Verdict::Asks(vec![ask]));
    }

    #[test]
    fn no_activity_for_ten_minutes_is_a_stall() {
        let busy = seen(Activity::Waiting, Outcome::Unanswered);
        check(&active(), &busy, 599, waits());
        check(&active(), &busy, 600, Verdict::Stalled);
        let stop = Settings { cancel_stalled: true, ..settings() };
        let same = Duration::from_secs(600);
        let elapsed = Elapsed { same, wall: Duration::ZERO, prompt: same };
        let error = "stalled: no activity for 10m 0s".to_owned();
        assert_eq!(
            judge(&active(), &busy, elapsed, &stop),
            Verdict::Stop(Report::Aborted { error })
        );
    }

    #[test]
    fn the_same_tool_call_twenty_times_in_a_row_is_a_stall() {
        let mut busy = seen(Activity::Tool, Outcome::Unanswered);
        busy.figures.repeated = 19;
        check(&active(), &busy, 0, Verdict::GoesOn(Phase::Tool, None));
        busy.figures.repeated = 20;
        check(&active(), &busy, 0, Verdict::Stalled);
    }
}
