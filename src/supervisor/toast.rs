//! Toasts on the user's screen: one at each end, and now and then a progress line for the others. Best
//! effort: nothing waits for them, failures are not retried, and events missed by a lagging subscriber are
//! skipped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Supervisor;
use crate::feed::{EventKind, TaskEvent};
use crate::host::{Toast, Tone};
use crate::quote;
use crate::task::time::say;
use crate::task::{MAILBOX, SessionId, Status, Task};

const END_IS_SHOWN: Duration = Duration::from_secs(5);

/// Rate limit of progress lines: often enough to see that something happens, rare enough not to disturb.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
const LINE_IS_SHOWN: Duration = Duration::from_secs(4);

impl Supervisor {
    pub(super) async fn toaster(self) {
        if !self.0.core.settings().toasts {
            return;
        }
        let mut changes = self.0.feed.subscribe();
        // Parents with something new to show, round-robin: one line per interval, however many there are.
        let mut lines: VecDeque<SessionId> = VecDeque::new();
        let mut next = Instant::now() + BETWEEN_LINES;
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => self.note_change(&change, &mut lines),
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                },
                () = tokio::time::sleep_until(next), if !lines.is_empty() => {
                    if let Some(parent) = lines.pop_front() {
                        self.show_line(&parent);
                    }
                    next = Instant::now() + BETWEEN_LINES;
                }
                () = self.0.core.stopping().cancelled() => return,
            }
        }
    }

    fn note_change(&self, change: &TaskEvent, lines: &mut VecDeque<SessionId>) {
        let task = &change.task;
        if task.origin.parent.host == MAILBOX {
            return;
        }
        match change.kind {
            EventKind::Created | EventKind::Updated => {
                if !lines.contains(&task.origin.parent.session) {
                    lines.push_back(task.origin.parent.session.clone());
                }
            }
            EventKind::Completed | EventKind::Error | EventKind::Cancelled => {
                self.toast(task, end(task))
            }
        }
    }

    /// How far a parent's tasks are; `None` when none is running.
    pub fn progress_line(&self, parent: &SessionId) -> Option<String> {
        let live = self.0.core.store().tasks().live(Some(parent)).unwrap_or_default();
        (!live.is_empty()).then(|| line(&live))
    }

    fn show_line(&self, parent: &SessionId) {
        let Ok(live) = self.0.core.store().tasks().live(Some(parent)) else { return };
        let Some(task) = live.first() else { return };
        let toast = Toast {
            title: "Background tasks".into(),
            message: line(&live),
            tone: Tone::Info,
            shown: LINE_IS_SHOWN,
        };
        self.toast(task, toast);
    }

    fn toast(&self, task: &Task, toast: Toast) {
        let Ok(host) = self.0.core.host(&task.origin.parent.host) else { return };
        if host.toasts().is_none() {
            return;
        }
        let (host, parent) = (Arc::clone(host), self.0.core.place(&task.origin.parent.session));
        self.0.core.spawn_until_stop(async move {
            let Some(toasts) = host.toasts() else { return };
            if let Err(error) = toasts.toast(parent, toast).await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "toast not shown; dropped"
                );
            }
        });
    }
}

fn end(task: &Task) -> Toast {
    let took = task.completed_at.map(|end| say(end.since(task.started_at))).unwrap_or_default();
    let description = quote::label(&task.order.description);
    let (title, message, tone) = match task.status() {
        Status::Completed | Status::Running | Status::Resumed => (
            "Background Task Completed",
            format!("Task \"{description}\" finished in {took}."),
            Tone::Success,
        ),
        Status::Error => (
            "Background Task Failed",
            format!("Task \"{description}\" failed after {took}."),
            Tone::Error,
        ),
        Status::Cancelled => (
            "Background Task Cancelled",
            format!("Task \"{description}\" was cancelled after {took}."),
            Tone::Warning,
        ),
    };
    Toast { title: title.into(), message, tone, shown: END_IS_SHOWN }
}

/// `2 running · login code: grep · tests: waiting`
fn line(live: &[Task]) -> String {
    let each = live.iter().take(3).map(|task| {
        let doing = task.progress.last_tools.last().map(String::as_str);
        let doing = quote::line(doing.unwrap_or(task.progress.phase.name()));
        format!("{}: {doing}", quote::label(&task.order.description))
    });
    let mut parts = vec![format!("{} running", live.len())];
    parts.extend(each);
    parts.join(" · ")
}
