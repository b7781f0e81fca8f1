//! Persists what the reconciler sees of runs that continue: progress, stalls, parking, follow-up prompts.
//! Unchanged figures are not written, so that idle runs cause no writes and no events. Every write is
//! conditional on the run being the one that was looked at.

use std::time::Duration;

use super::core::Core;
use super::turns::Bell;
use crate::store::{self, ActiveTask, End, FollowUp};
use crate::task::{MessageId, Phase, Progress, Task, Timestamp};

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Ledger {
    core: Core,
    /// A child may be owed a prompt, or a slot may be free.
    prompts: Bell,
    /// A parent may be owed a notice.
    notices: Bell,
}

impl Ledger {
    pub(super) fn new(core: Core, prompts: Bell, notices: Bell) -> Ledger {
        Ledger { core, prompts, notices }
    }

    /// Shows a run as retrying, with the reason.
    pub(super) async fn show_retrying(&self, active: &ActiveTask, why: String) {
        let shown = active.task.progress.clone();
        let progress = Progress { phase: Phase::Retrying, detail: Some(why), ..shown };
        if let Err(error) = self.show(active, progress).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(
                task = %active.task.id,
                error,
                "progress not written; retrying at the next check"
            );
        }
    }

    pub(super) async fn show(
        &self,
        active: &ActiveTask,
        progress: Progress,
    ) -> Result<(), store::Error> {
        let task = &active.task;
        if active.run.stalled {
            // Still quiet: it stays stalled until its figures change.
            if same_figures(&task.progress, &progress) && progress.phase != Phase::Blocked {
                return Ok(());
            }
            self.core.store().tasks().unstall(task).await?;
        }
        self.show_figures(task, progress).await
    }

    async fn show_figures(&self, task: &Task, progress: Progress) -> Result<(), store::Error> {
        let last_update = match same_figures(&task.progress, &progress) {
            true => task.progress.last_update,
            false => self.core.clock().now(),
        };
        let progress = Progress { last_update, ..progress };
        if progress == task.progress {
            return Ok(());
        }
        self.core.store().tasks().set_progress(task, progress).await
    }

    /// Marks a run as stalled: quiet for this long, or repeating the same call. `end` is what its notice
    /// needs.
    pub(super) async fn stall(
        &self,
        active: &ActiveTask,
        progress: Progress,
        quiet: Duration,
        end: End,
    ) -> Result<(), store::Error> {
        // Notified once per stall. A run that repeats itself still has changing figures to show.
        if active.run.stalled {
            return self.show_figures(&active.task, progress).await;
        }
        let progress = Progress { last_update: active.task.progress.last_update, ..progress };
        if self.core.store().tasks().stall(&active.task, progress, quiet, end).await? {
            tracing::warn!(task = %active.task.id, "task stalled; its parent is notified");
            self.notices.ring();
        }
        Ok(())
    }

    /// Parks a run: it gives up its slot and waits for its lost credentials.
    pub(super) async fn park(
        &self,
        task: &Task,
        shown: Progress,
        why: String,
    ) -> Result<(), store::Error> {
        tracing::warn!(task = %task.id, why, "task parked; waiting for its credentials");
        let progress = Progress { detail: Some(why), ..shown };
        self.core.store().slots().park(task, progress, self.core.clock().now()).await?;
        self.prompts.ring();
        Ok(())
    }

    /// Owes the run a follow-up prompt, at most once of each kind.
    pub(super) async fn follow_up(
        &self,
        task: &Task,
        follow_up: FollowUp,
    ) -> Result<(), store::Error> {
        let message = self.core.clock().message_id();
        if self.core.store().tasks().owe_follow_up(task, follow_up, message).await? {
            self.prompts.ring();
        }
        Ok(())
    }

    /// The host lost this prompt: it is owed again, under the same message id.
    pub(super) async fn resend(
        &self,
        task: &Task,
        prompt: Option<MessageId>,
    ) -> Result<(), store::Error> {
        let lost = match prompt {
            Some(prompt) => self.core.store().tasks().prompt_lost(task, &prompt).await,
            None => Ok(()),
        };
        self.prompts.ring();
        lost
    }
}

fn same_figures(one: &Progress, other: &Progress) -> bool {
    let bare = |progress: &Progress| Progress {
        phase: Phase::Waiting,
        last_update: Timestamp::from_millis(0),
        detail: None,
        ..progress.clone()
    };
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_phase_time_or_detail_is_no_change_of_figures() {
        let one = Progress::new(Timestamp::from_millis(1));
        let other = Progress { phase: Phase::Tool, detail: Some("why".into()), ..one.clone() };
        assert!(same_figures(&one, &other));
        assert!(!same_figures(&one, &Progress { tool_calls: 1, ..one.clone() }));
    }
}
