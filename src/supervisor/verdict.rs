//! What an observation means for a run (T6). Pure: how long it has looked like this comes in.

use std::time::Duration;

use super::Settings;
use crate::host::{Activity, Ask, Observation};
use crate::store::{Active, Run};
use crate::task::Phase;
use crate::task::lifecycle::Report;
use crate::task::time::say;
use crate::transcript::Outcome;

/// What the reconciler remembers between two looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// How long the run has looked exactly like this.
    pub(super) same: Duration,
    /// How long the run has gone on, without the clock's jumps.
    pub(super) wall: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing to do but to show where it is.
    GoesOn(Phase, Option<String>),
    Asks(Vec<Ask>),
    /// Quiet for too long, or running in circles.
    Stalled,
    /// Idle with open todos: ask once to go on with them.
    Nudge,
    /// The host lost the run: go on once in the same session.
    Continue,
    /// The host lost the prompt: send it again.
    Resend,
    Ended {
        report: Report,
        open_todos: Vec<String>,
    },
    /// Over because we say so: the session has to be stopped as well.
    Stop(Report),
}

pub(super) fn judge(
    active: &Active,
    seen: &Observation,
    since: Since,
    settings: &Settings,
) -> Verdict {
    match &seen.activity {
        Activity::Gone => aborted("Session deleted"),
        Activity::Idle => idle(&active.run, seen, since, settings),
        Activity::Waiting => busy(active, seen, since, settings, Phase::Waiting, None),
        Activity::Streaming => busy(active, seen, since, settings, Phase::Streaming, None),
        Activity::Tool => busy(active, seen, since, settings, Phase::Tool, None),
        Activity::Retrying(why) => {
            busy(active, seen, since, settings, Phase::Retrying, Some(why.clone()))
        }
        Activity::Blocked(asks) => match over_budget(active, seen, since) {
            Some(verdict) => verdict,
            None => Verdict::Asks(asks.clone()),
        },
    }
}

fn idle(run: &Run, seen: &Observation, since: Since, settings: &Settings) -> Verdict {
    let todos = &seen.open_todos;
    match &seen.outcome {
        Outcome::Answered { .. } if !todos.is_empty() && run.nudge_id.is_none() => Verdict::Nudge,
        Outcome::Answered { text } => Verdict::Ended {
            report: Report::Finished { result: text.clone() },
            open_todos: todos.clone(),
        },
        Outcome::Failed { error, partial } => failed(error.clone(), partial.clone()),
        Outcome::Refused { what, partial } => {
            failed(format!("stopped because it was refused: {what}"), partial.clone())
        }
        Outcome::Aborted => aborted("aborted in the host"),
        Outcome::Unfinished { partial } if since.same >= settings.settle => {
            interrupted(run, partial.clone())
        }
        Outcome::Unanswered if since.same >= settings.answer_grace => interrupted(run, None),
        Outcome::PromptMissing if since.same >= settings.answer_grace => failed(
            "the host accepted the prompt and never ran it; is the agent registered?".into(),
            None,
        ),
        Outcome::PromptMissing if since.same >= settings.settle => Verdict::Resend,
        // A gap between accepting a prompt and running it, or between two idles.
        Outcome::Unfinished { .. } | Outcome::Unanswered | Outcome::PromptMissing => {
            Verdict::GoesOn(Phase::Waiting, None)
        }
    }
}

fn busy(
    active: &Active,
    seen: &Observation,
    since: Since,
    settings: &Settings,
    phase: Phase,
    detail: Option<String>,
) -> Verdict {
    if let Some(verdict) = over_budget(active, seen, since) {
        return verdict;
    }
    let circles = seen.figures.repeated >= settings.stall_repeats;
    if since.same < settings.stall && !circles {
        return Verdict::GoesOn(phase, detail);
    }
    match settings.cancel_stalled {
        true => Verdict::Stop(Report::Aborted { error: stalled(since, circles) }),
        false => Verdict::Stalled,
    }
}

fn stalled(since: Since, circles: bool) -> String {
    match circles {
        true => "stalled: the same tool call again and again".into(),
        false => format!("stalled: no activity for {}", say(since.same)),
    }
}

fn over_budget(active: &Active, seen: &Observation, since: Since) -> Option<Verdict> {
    let progress = super::reconcile::progress(&active.task, seen);
    let reached = active.task.budget.reached(&progress, since.wall)?;
    let partial = seen.figures.last_message.clone();
    Some(Verdict::Stop(Report::Failed { error: reached, partial }))
}

/// The host was restarted in mid-run: continued once; again, it is over.
fn interrupted(run: &Run, partial: Option<String>) -> Verdict {
    match (&run.continue_id, run.continue_sent_at) {
        (None, _) => Verdict::Continue,
        (Some(_), None) => Verdict::GoesOn(Phase::Waiting, None),
        (Some(_), Some(_)) => {
            failed("interrupted: the host was restarted again in mid-run".into(), partial)
        }
    }
}

fn failed(error: String, partial: Option<String>) -> Verdict {
    Verdict::Ended { report: Report::Failed { error, partial }, open_todos: Vec::new() }
}

fn aborted(error: &str) -> Verdict {
    Verdict::Ended { report: Report::Aborted { error: error.into() }, open_todos: Vec::new() }
}
