//! The state machine of a task. Pure: nothing here reads a clock, a socket or a table.
//!
//! A task is a chain of runs: the launch is run 0, every resume the next. While a run goes on the
//! task is `Running` (run 0) or `Resumed`; otherwise it rests in one of the three ended states.
//! Two kinds of input move it. A [`Request`] is a wish from outside and can be refused, so its
//! answer has an error to show. A [`Report`] is news about the current run, read off the host by
//! the reconciler; it can come late or twice, so its answer may be `None`, and that is all there
//! is to do about it. Both return a [`Change`]: the new state and what its owner owes the world.
//! The store writes a change and what is owed (slot, abort, prompt, notice) in one transaction, on the
//! condition that the task has not changed since; this is what makes "one end, told once" a property of data rather
//! than of timing. Nothing else decides what follows from a change.
//!
//! A resume that fails must not cost the user what was there before it: the task goes back to the
//! state it came from, keeps the earlier result, and shows the failure in `error`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Where a task is in its life, with what exists then.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Running,
    /// Answering a follow-up prompt. The state it came from is kept, to go back to if this run fails.
    Resumed {
        from: EndedState,
        result: Option<Arc<str>>,
    },
    Completed {
        result: Arc<str>,
        /// Why the last resume failed, if it did.
        error: Option<String>,
    },
    Failed {
        error: String,
        /// What there was when it broke, or the result of an earlier run.
        result: Option<Arc<str>>,
    },
    Cancelled {
        error: Option<String>,
        result: Option<Arc<str>>,
    },
}

/// The ended states, without their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedState {
    Completed,
    Failed,
    Cancelled,
}

/// The name of a state in the database and on the wire (T2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Running,
    Completed,
    Error,
    Cancelled,
    Resumed,
}

/// A wish from outside. It can be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// With a reason when it is not its parent's own wish.
    Cancel {
        why: Option<String>,
    },
    Resume(ResumePolicy),
}

/// Which ended tasks may be resumed (`resume.any_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePolicy {
    Completed,
    AnyEnded,
}

/// News of the current run. It can be stale, never wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    Finished {
        result: Arc<str>,
    },
    /// Over for good without an answer, or with a part of one.
    Failed {
        error: String,
        partial: Option<Arc<str>>,
    },
    /// Stopped from elsewhere, or its session is gone.
    Aborted {
        error: String,
    },
}

/// A new state and what its owner must do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub to: State,
    pub effects: Vec<Effect>,
}

/// What the owner of a task must do after a change. The store writes each as a column or a row in the same
/// transaction, so a crash in between leaves it owed, not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Comes before the abort: after a crash, `recover` finds the descendants by the abort that is owed to
    /// their parent. Once that is done, they are not looked for again.
    CancelDescendants,
    /// Tell the host to stop the session's run.
    AbortSession,
    /// Put the task in the queue; its prompt is sent when it has a slot.
    SendPrompt,
    /// The run is over and its parent is owed one notice of how.
    NotifyParent(RunEnd),
}

/// How one run ended. A resume can fail and leave its task completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Completed,
    Failed,
    Cancelled,
}

/// Why a request cannot be granted in the present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the task is already over")]
    AlreadyOver,
    #[error("the task is currently being resumed; wait for its notice and try again")]
    BeingResumed,
    #[error("only completed tasks can be resumed; this one is still running")]
    StillRunning,
    #[error("only completed tasks can be resumed; start a new task instead")]
    NotCompleted,
    #[error(
        "only failed and cancelled tasks can be retried; this one is still at work: wait for its end, or cancel \
         it first"
    )]
    RetryOfLive,
    #[error(
        "only failed and cancelled tasks can be retried; this one has completed: resume it with a follow-up"
    )]
    RetryOfCompleted,
}

impl State {
    /// Grants or refuses a wish. Every pair of request and state is written out, without a `_` arm: a new
    /// state does not compile before it is decided what it means here.
    pub fn request(&self, request: Request) -> Result<Change, Refused> {
        use State::*;
        match (request, self) {
            (Request::Cancel { why }, Running) => Ok(cancelled(why, None)),
            // The result of the run before is the task's result still.
            (Request::Cancel { why }, Resumed { result, .. }) => Ok(cancelled(why, result.clone())),
            (Request::Cancel { .. }, Completed { .. } | Failed { .. } | Cancelled { .. }) => {
                Err(Refused::AlreadyOver)
            }
            (Request::Resume(_), Completed { result, .. }) => {
                Ok(resumed(EndedState::Completed, Some(result.clone())))
            }
            (Request::Resume(ResumePolicy::AnyEnded), Failed { result, .. }) => {
                Ok(resumed(EndedState::Failed, result.clone()))
            }
            (Request::Resume(ResumePolicy::AnyEnded), Cancelled { result, .. }) => {
                Ok(resumed(EndedState::Cancelled, result.clone()))
            }
            // The specification's rule, unless `resume.any_status` is set.
            (Request::Resume(ResumePolicy::Completed), Failed { .. } | Cancelled { .. }) => {
                Err(Refused::NotCompleted)
            }
            // One follow-up at a time, as the specification has it.
            (Request::Resume(_), Resumed { .. }) => Err(Refused::BeingResumed),
            (Request::Resume(_), Running) => Err(Refused::StillRunning),
        }
    }

    /// Whether the task may be launched again. That changes nothing of this one.
    pub fn check_retry(&self) -> Result<(), Refused> {
        match self {
            State::Failed { .. } | State::Cancelled { .. } => Ok(()),
            State::Running | State::Resumed { .. } => Err(Refused::RetryOfLive),
            State::Completed { .. } => Err(Refused::RetryOfCompleted),
        }
    }

    /// `None` means stale: the host's event and our sweep may both see the same end.
    pub fn report(&self, report: Report) -> Option<Change> {
        match self {
            // The first report wins. A cancellation, too, beats a completion that arrives after it.
            State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } => None,
            State::Running => {
                Some(ended(report, |error, partial| State::Failed { error, result: partial }, None))
            }
            // What the failed resume had written so far counts only when there was no result before it.
            State::Resumed { from, result } => Some(ended(
                report,
                |error, partial| back_to(*from, error, result.clone().or(partial)),
                result.clone(),
            )),
        }
    }

    /// As [`State::report`], for a run that we give up (a budget is reached, its host is gone): its session
    /// may still be working, so an abort is owed as well.
    pub fn stop(&self, report: Report) -> Option<Change> {
        let mut change = self.report(report)?;
        // In front of the notice, so that effects are carried out in the same order as in a cancellation.
        change.effects.insert(0, Effect::AbortSession);
        Some(change)
    }

    pub fn status(&self) -> Status {
        match self {
            State::Running => Status::Running,
            State::Resumed { .. } => Status::Resumed,
            State::Completed { .. } => Status::Completed,
            State::Failed { .. } => Status::Error,
            State::Cancelled { .. } => Status::Cancelled,
        }
    }

    /// The result, or what there is of one; during a resume, that of the run before.
    pub fn result(&self) -> Option<&str> {
        match self {
            State::Running => None,
            State::Completed { result, .. } => Some(result),
            State::Resumed { result, .. }
            | State::Failed { result, .. }
            | State::Cancelled { result, .. } => result.as_deref(),
        }
    }

    /// Why the last run failed or was cancelled. A completed task has one after a resume that failed.
    pub fn error(&self) -> Option<&str> {
        match self {
            State::Running | State::Resumed { .. } => None,
            State::Failed { error, .. } => Some(error),
            State::Completed { error, .. } | State::Cancelled { error, .. } => error.as_deref(),
        }
    }
}

impl Change {
    /// How the run ended, when this change ends one.
    pub fn run_end(&self) -> Option<RunEnd> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::NotifyParent(end) => Some(*end),
            Effect::CancelDescendants | Effect::AbortSession | Effect::SendPrompt => None,
        })
    }

    /// Whether the result is that of the run this ends: an unchanged text is that of an earlier one, unless
    /// the run was completed with it.
    pub fn brings_result(&self, before: &State) -> bool {
        self.run_end() == Some(RunEnd::Completed) || self.to.result() != before.result()
    }

    pub fn has(&self, effect: Effect) -> bool {
        self.effects.contains(&effect)
    }
}

impl RunEnd {
    pub fn name(self) -> &'static str {
        match self {
            RunEnd::Completed => "completed",
            RunEnd::Failed => "failed",
            RunEnd::Cancelled => "cancelled",
        }
    }

    pub fn parse(word: &str) -> Option<RunEnd> {
        [RunEnd::Completed, RunEnd::Failed, RunEnd::Cancelled]
            .into_iter()
            .find(|end| end.name() == word)
    }
}

impl Status {
    pub const ALL: [Status; 5] =
        [Status::Running, Status::Completed, Status::Error, Status::Cancelled, Status::Resumed];

    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Completed => "completed",
            Status::Error => "error",
            Status::Cancelled => "cancelled",
            Status::Resumed => "resumed",
        }
    }

    pub fn parse(word: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.name() == word)
    }

    pub fn is_live(self) -> bool {
        matches!(self, Status::Running | Status::Resumed)
    }
}

/// The `from` of a resume is stored under the name of its status.
impl EndedState {
    pub fn status(self) -> Status {
        match self {
            EndedState::Completed => Status::Completed,
            EndedState::Failed => Status::Error,
            EndedState::Cancelled => Status::Cancelled,
        }
    }

    pub fn of(status: Status) -> Option<EndedState> {
        match status {
            Status::Completed => Some(EndedState::Completed),
            Status::Error => Some(EndedState::Failed),
            Status::Cancelled => Some(EndedState::Cancelled),
            Status::Running | Status::Resumed => None,
        }
    }
}

fn cancelled(error: Option<String>, result: Option<Arc<str>>) -> Change {
    Change {
        to: State::Cancelled { error, result },
        // In the order in which they are carried out.
        effects: vec![
            Effect::CancelDescendants,
            Effect::AbortSession,
            Effect::NotifyParent(RunEnd::Cancelled),
        ],
    }
}

fn resumed(from: EndedState, result: Option<Arc<str>>) -> Change {
    Change { to: State::Resumed { from, result }, effects: vec![Effect::SendPrompt] }
}

/// The change that a report makes. `fail` says where a failure leads, which differs between a launch and a
/// resume; `earlier` is the result that an aborted run leaves standing.
fn ended(
    report: Report,
    fail: impl FnOnce(String, Option<Arc<str>>) -> State,
    earlier: Option<Arc<str>>,
) -> Change {
    let (to, end) = match report {
        // A resume that completes clears the error of an earlier one that failed.
        Report::Finished { result } => {
            (State::Completed { result, error: None }, RunEnd::Completed)
        }
        Report::Failed { error, partial } => (fail(error, partial), RunEnd::Failed),
        Report::Aborted { error } => {
            (State::Cancelled { error: Some(error), result: earlier }, RunEnd::Cancelled)
        }
    };
    Change { to, effects: vec![Effect::NotifyParent(end)] }
}

/// The state before a resume that failed, with why it failed.
fn back_to(state: EndedState, error: String, result: Option<Arc<str>>) -> State {
    match state {
        EndedState::Completed => {
            State::Completed { result: result.unwrap_or_else(|| "".into()), error: Some(error) }
        }
        EndedState::Failed => State::Failed { error, result },
        EndedState::Cancelled => State::Cancelled { error: Some(error), result },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<Arc<str>> {
        Some(text.into())
    }

    fn completed(result: &str, error: Option<&str>) -> State {
        State::Completed { result: result.into(), error: error.map(Into::into) }
    }

    fn failed(error: &str, result: Option<&str>) -> State {
        State::Failed { error: error.into(), result: result.map(Into::into) }
    }

    fn stopped(error: Option<&str>, result: Option<&str>) -> State {
        State::Cancelled { error: error.map(Into::into), result: result.map(Into::into) }
    }

    fn resumed_from(from: EndedState, result: Option<&str>) -> State {
        State::Resumed { from, result: result.map(Into::into) }
    }

    /// One of each, with everything in it.
    fn every_state() -> [State; 5] {
        [
            State::Running,
            completed("old", None),
            failed("broke", Some("half")),
            stopped(None, Some("old")),
            resumed_from(EndedState::Completed, Some("old")),
        ]
    }

    #[test]
    fn cancel_stops_a_live_task_and_is_refused_by_an_ended_one() {
        let stop = |to| {
            Ok(Change {
                to,
                effects: vec![
                    Effect::CancelDescendants,
                    Effect::AbortSession,
                    Effect::NotifyParent(RunEnd::Cancelled),
                ],
            })
        };
        for why in [None, Some("Parent session deleted")] {
            let expected = [
                stop(stopped(why, None)),
                Err(Refused::AlreadyOver),
                Err(Refused::AlreadyOver),
                Err(Refused::AlreadyOver),
                stop(stopped(why, Some("old"))),
            ];
            for (state, expected) in every_state().into_iter().zip(expected) {
                let request = Request::Cancel { why: why.map(Into::into) };
                assert_eq!(state.request(request), expected, "{state:?}");
            }
        }
    }

    #[test]
    fn only_a_completed_task_resumes() {
        let go = |from, result: &str| {
            let to = State::Resumed { from, result: text(result) };
            Ok(Change { to, effects: vec![Effect::SendPrompt] })
        };
        let expected = [
            Err(Refused::StillRunning),
            go(EndedState::Completed, "old"),
            Err(Refused::NotCompleted),
            Err(Refused::NotCompleted),
            Err(Refused::BeingResumed),
        ];
        for (state, expected) in every_state().into_iter().zip(expected) {
            let request = Request::Resume(ResumePolicy::Completed);
            assert_eq!(state.request(request), expected, "{state:?}");
        }
        let expected = [
            Err(Refused::StillRunning),
            go(EndedState::Completed, "old"),
            go(EndedState::Failed, "half"),
            go(EndedState::Cancelled, "old"),
            Err(Refused::BeingResumed),
        ];
        for (state, expected) in every_state().into_iter().zip(expected) {
            let request = Request::Resume(ResumePolicy::AnyEnded);
            assert_eq!(state.request(request), expected, "{state:?}");
        }
    }

    fn reports() -> [Report; 3] {
        [
            Report::Finished { result: "new".into() },
            Report::Failed { error: "why".into(), partial: text("part") },
            Report::Aborted { error: "aborted in the host".into() },
        ]
    }

    fn check_reports(state: State, expected: [Option<State>; 3]) {
        let ends = [RunEnd::Completed, RunEnd::Failed, RunEnd::Cancelled];
        for ((report, expected), end) in reports().into_iter().zip(expected).zip(ends) {
            let change = |effects| expected.clone().map(|to| Change { to, effects });
            let notice = Effect::NotifyParent(end);
            assert_eq!(state.report(report.clone()), change(vec![notice]), "{state:?} {report:?}");
            let stopped = change(vec![Effect::AbortSession, notice]);
            assert_eq!(state.stop(report.clone()), stopped, "{state:?} {report:?}");
        }
    }

    #[test]
    fn a_running_task_ends_as_the_host_says() {
        check_reports(
            State::Running,
            [
                Some(completed("new", None)),
                Some(failed("why", Some("part"))),
                Some(stopped(Some("aborted in the host"), None)),
            ],
        );
    }

    #[test]
    fn a_resume_that_fails_goes_back_to_the_state_it_came_from() {
        let aborted = || Some(stopped(Some("aborted in the host"), Some("old")));
        for (from, back) in [
            (EndedState::Completed, completed("old", Some("why"))),
            (EndedState::Failed, failed("why", Some("old"))),
            (EndedState::Cancelled, stopped(Some("why"), Some("old"))),
        ] {
            check_reports(
                resumed_from(from, Some("old")),
                [Some(completed("new", None)), Some(back), aborted()],
            );
        }
        check_reports(
            resumed_from(EndedState::Failed, None),
            [
                Some(completed("new", None)),
                Some(failed("why", Some("part"))),
                Some(stopped(Some("aborted in the host"), None)),
            ],
        );
    }

    #[test]
    fn news_that_comes_late_or_twice_changes_nothing() {
        for state in every_state() {
            if !state.status().is_live() {
                check_reports(state, [None, None, None]);
            }
        }
        for report in reports() {
            let first = State::Running.report(report).unwrap();
            for again in reports() {
                assert_eq!(first.to.report(again), None);
            }
        }
    }

    #[test]
    fn exactly_five_states_on_the_wire() {
        let words: Vec<&str> = every_state().iter().map(|state| state.status().name()).collect();
        assert_eq!(words, ["running", "completed", "error", "cancelled", "resumed"]);
        assert_eq!(Status::parse("resumed"), Some(Status::Resumed));
        assert_eq!(Status::parse("queued"), None);
    }
}
