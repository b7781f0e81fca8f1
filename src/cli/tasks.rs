//! How tasks are shown, the same in every command: their names, statuses and figures.

use super::show::{self, BOLD, DIM, Line, PLAIN};
use crate::clock::Clock;
use crate::quote;
use crate::task::time::say;
use crate::task::{Phase, Timestamp};
use crate::wire::TaskView;

/// The short id and the description in quotes.
pub(super) fn named(task: &TaskView) -> Line {
    let TaskView { short_id, description, .. } = task;
    Line::new(BOLD, short_id).with(PLAIN, &format!(" {}", quote::literal(description)))
}

pub(super) fn is_over(task: &TaskView) -> bool {
    !task.status.is_live()
}

pub(super) fn is_blocked(task: &TaskView) -> bool {
    !is_over(task) && task.progress.phase == Phase::Blocked
}

/// The status, and of a live task also what it is doing.
pub(super) fn status(task: &TaskView) -> Line {
    let status = Line::new(show::status_style(task.status), task.status.name());
    if is_over(task) {
        return status;
    }
    let phase = task.progress.phase;
    status.with(PLAIN, ", ").with(show::phase_style(phase), phase.name())
}

/// From the launch to the end, or until now.
pub(super) fn running_time(task: &TaskView, now: Timestamp) -> String {
    say(task.completed_at.unwrap_or(now).since(task.started_at))
}

pub(super) fn tool_calls(task: &TaskView) -> String {
    show::counted(task.progress.tool_calls.into(), "tool call")
}

/// Tokens and cost, as far as the host reports them.
pub(super) fn usage(task: &TaskView) -> Vec<String> {
    let tokens = task.progress.tokens.filter(|tokens| *tokens > 0);
    let tokens = tokens.map(|tokens| format!("{} tokens", show::tokens(tokens)));
    tokens.into_iter().chain(cost(task)).collect()
}

pub(super) fn cost(task: &TaskView) -> Option<String> {
    task.progress.cost.filter(|cost| *cost > 0.0).map(show::cost)
}

/// What people watch: the last tool of a live task, and its figures.
pub(super) fn figures(task: &TaskView, now: Timestamp) -> Line {
    let last = task.progress.last_tools.last().filter(|_| !is_over(task));
    let mut facts = vec![running_time(task, now), tool_calls(task)];
    facts.extend(last.map(|tool| format!("last {tool}")));
    facts.extend(usage(task));
    Line::new(DIM, &facts.join(", "))
}

pub(super) fn now() -> Timestamp {
    Clock::system().now()
}
