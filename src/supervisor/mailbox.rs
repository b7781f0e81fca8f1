//! Mailboxes, for parents that are not conversations: their notices wait in the outbox to be fetched. Each
//! fetched notice is leased to one reader and stays unread until that one acknowledges it; when the lease
//! runs out it is leased again (at-least-once).
//!
//! Also the registry of callers that wait for an end: while one waits, the end is its response and is not
//! sent as a notice on top. Leases and waits are in memory; a restart hands out unacknowledged notices again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::core::Core;
use super::turns::Bell;
use super::{Caller, Error, Supervisor};
use crate::claim;
use crate::notice::{self, Notice, NoticeContent, Subject};
use crate::store::OwedNotice;
use crate::task::lifecycle::RunEnd;
use crate::task::{NoticeId, Receipt, SessionId, Task, TaskId};

/// Lease: a reader that has not acknowledged after this long never got it, and the next one does.
const LEASE: Duration = Duration::from_secs(60);

/// Batch size; the rest comes with the next call.
const MOST: usize = 50;

/// A notice that is leased to a reader.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedNotice {
    /// To be named in the acknowledgement.
    pub id: NoticeId,
    pub task: TaskId,
    content: NoticeContent,
}

impl LeasedNotice {
    /// `inline` is how many characters of the result are in it.
    pub fn text(&self, inline: usize) -> String {
        notice::in_one_part(&self.content, inline)
    }

    /// The length of the result it reports.
    pub fn result_characters(&self) -> usize {
        match &self.content.subject {
            Subject::Ended { result, .. } => result.as_ref().map_or(0, |text| text.chars().count()),
            Subject::Stalled { .. } => 0,
        }
    }
}

/// A batch of leased notices, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mail {
    pub notices: Vec<LeasedNotice>,
    /// How many more there are.
    pub left: usize,
}

/// The same as it is told in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mailbox {
    pub notices: Vec<Notice>,
    pub left: usize,
}

/// The leases, and the ends that callers wait for.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Mailboxes {
    core: Core,
    state: Arc<Mutex<State>>,
    /// A parent may be owed a notice.
    notices: Bell,
}

#[derive(Default)]
struct State {
    /// Leased notices, and the uptime since when.
    leased: HashMap<NoticeId, Duration>,
    /// How many callers wait for a task's end, with the response as their notice (N3).
    awaited: HashMap<TaskId, usize>,
}

/// Guard: while it lives, the ends of these tasks are a caller's response and not yet notices.
pub(super) struct WaitGuard {
    mailboxes: Mailboxes,
    tasks: Vec<TaskId>,
}

impl Mailboxes {
    pub(super) fn new(core: Core, notices: Bell) -> Mailboxes {
        Mailboxes { core, state: Arc::default(), notices }
    }

    /// Leases the unread notices that no other reader holds.
    fn hand_out(&self, caller: &Caller) -> Result<Mail, Error> {
        let (store, now) = (self.core.store(), self.core.clock().uptime());
        // Held across the read, so that two concurrent readers do not lease the same notice.
        let mut state = self.state.lock();
        state.leased.retain(|_, at| now.saturating_sub(*at) < LEASE);
        let mut unread = store.outbox().unread(&caller.session)?;
        for predecessor in self.gone_predecessors(caller)? {
            unread.extend(store.outbox().unread(&predecessor)?);
        }
        if unread.is_empty() {
            return Ok(Mail::default());
        }
        // An end that a caller waits for comes with that caller's answer.
        unread.retain(|(notice, task)| {
            !state.leased.contains_key(notice) && !state.awaited.contains_key(task)
        });
        let left = unread.len().saturating_sub(MOST);
        let receipt = unread.into_iter().map(|(notice, _)| notice).take(MOST).collect();
        let owed = store.outbox().notices(&receipt)?;
        state.leased.extend(owed.iter().map(|owed| (owed.id, now)));
        let leased = |owed: OwedNotice| {
            let content = content(&owed);
            LeasedNotice { id: owed.id, task: owed.task, content }
        };
        Ok(Mail { notices: owed.into_iter().map(leased).collect(), left })
    }

    /// Earlier callers in the same place that left unread notices and have ended: the claim on their name is
    /// free.
    fn gone_predecessors(&self, caller: &Caller) -> Result<Vec<SessionId>, Error> {
        if caller.heir_of.is_empty() {
            return Ok(Vec::new());
        }
        let mut names = self.core.store().outbox().unread_parents(&caller.heir_of)?;
        let home = &self.core.settings().home;
        names.retain(|name| *name != caller.session && !claim::is_held(home, name.as_str()));
        Ok(names)
    }

    async fn was_read(&self, receipt: Receipt) -> Result<(), Error> {
        if receipt.is_empty() {
            return Ok(());
        }
        // Disk before memory: the lease ends only when the notice cannot be leased again.
        self.core.store().outbox().mark_read(receipt.clone(), self.core.clock().now()).await?;
        self.release(&receipt);
        Ok(())
    }

    /// The same for answers of deferred calls, and the notices in them.
    pub(super) async fn was_received(
        &self,
        receipt: Receipt,
        calls: Vec<String>,
    ) -> Result<(), Error> {
        let now = self.core.clock().now();
        self.core.store().calls().received(calls, receipt.clone(), now).await?;
        self.release(&receipt);
        Ok(())
    }

    fn release(&self, receipt: &Receipt) {
        self.state.lock().leased.retain(|notice, _| !receipt.has(*notice));
    }

    /// Leases notices again that were leased before and not acknowledged. `false`, and nothing is leased,
    /// when one of them has been read since.
    pub(super) fn lease_again(&self, receipt: &Receipt) -> Result<bool, Error> {
        let now = self.core.clock().uptime();
        // Held across the read, as in `hand_out`.
        let mut state = self.state.lock();
        if self.core.store().outbox().any_read(receipt)? {
            return Ok(false);
        }
        state.leased.extend(receipt.notices().iter().map(|notice| (*notice, now)));
        Ok(true)
    }

    /// The tasks whose ends a caller waits for.
    pub(super) fn awaited(&self) -> HashSet<TaskId> {
        self.state.lock().awaited.keys().cloned().collect()
    }

    pub(super) fn await_ends(&self, tasks: Vec<TaskId>) -> WaitGuard {
        let mut state = self.state.lock();
        for id in &tasks {
            *state.awaited.entry(id.clone()).or_default() += 1;
        }
        drop(state);
        WaitGuard { mailboxes: self.clone(), tasks }
    }
}

impl WaitGuard {
    /// The caller gets these ends with its response: in its conversation they are recorded without waking
    /// it; for a caller with a mailbox the notices are leased from now on.
    pub(super) async fn give(&self, ended: &[&Task]) -> Result<Receipt, Error> {
        let own = ended.iter().filter(|task| self.tasks.contains(&task.id));
        let own: Vec<TaskId> = own.map(|task| task.id.clone()).collect();
        if own.is_empty() {
            return Ok(Receipt::default());
        }
        let Mailboxes { core, state, .. } = &self.mailboxes;
        // In time, because the deliverer leaves these notices alone while the guard lives.
        core.store().outbox().hush(own.clone()).await?;
        let now = core.clock().uptime();
        // Read and leased under one lock, so that no other reader is given them in between.
        let mut state = state.lock();
        let mut notices = Vec::new();
        for task in &own {
            notices.extend(core.store().outbox().unread_end(task)?);
        }
        state.leased.extend(notices.iter().map(|notice| (*notice, now)));
        Ok(notices.into_iter().collect())
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        let mut state = self.mailboxes.state.lock();
        for id in &self.tasks {
            if let Some(waiting) = state.awaited.get_mut(id) {
                *waiting -= 1;
                if *waiting == 0 {
                    state.awaited.remove(id);
                }
            }
        }
        drop(state);
        // The deliverer may have held back notices because of this guard.
        self.mailboxes.notices.ring();
    }
}

impl Supervisor {
    /// Leases the unread notices that no other reader holds.
    pub fn hand_out_mail(&self, caller: &Caller) -> Result<Mail, Error> {
        self.0.mailboxes.hand_out(caller)
    }

    /// A parent's ended tasks whose notices are unread.
    pub fn ended_unread(&self, parent: &SessionId) -> Result<Vec<TaskId>, Error> {
        Ok(self.0.core.store().outbox().ended_unread(parent)?)
    }

    /// Whether the parent has had the notice of this end.
    pub fn is_told(&self, task: &Task) -> Result<bool, Error> {
        Ok(self.0.core.store().outbox().unread_end(&task.id)?.is_none())
    }

    /// Acknowledges: they are not leased again.
    pub async fn mail_was_read(&self, receipt: Receipt) -> Result<(), Error> {
        self.0.mailboxes.was_read(receipt).await
    }

    /// For readers that cannot acknowledge: marked as read at once (at-most-once).
    pub async fn read_mailbox(&self, caller: &Caller) -> Result<Mailbox, Error> {
        let Mail { notices, left } = self.hand_out_mail(caller)?;
        self.mail_was_read(notices.iter().map(|notice| notice.id).collect()).await?;
        let inline = self.inline_characters();
        let compose = |notice: &LeasedNotice| notice::compose(&notice.content, inline);
        Ok(Mailbox { notices: notices.iter().map(compose).collect(), left })
    }

    /// How many characters of a result are included in its notice.
    pub fn inline_characters(&self) -> usize {
        self.0.core.settings().inline_characters
    }
}

/// An outbox row as the content of a notice.
pub(super) fn content(owed: &OwedNotice) -> NoticeContent {
    let run = &owed.run;
    let subject = match owed.quiet {
        Some(quiet) => Subject::Stalled { quiet },
        None => Subject::Ended {
            how: run.ended_as.unwrap_or(RunEnd::Failed),
            took: run.ended_at.unwrap_or(run.started_at).since(run.started_at),
            result: run.result.clone(),
            error: run.error.clone(),
            open_todos: run.open_todos.clone(),
        },
    };
    NoticeContent {
        short_id: owed.short_id.clone(),
        description: owed.description.clone(),
        run: run.n,
        subject,
        batch_ended: owed.batch_ended,
        batch_total: owed.batch_total,
        development: owed.development,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::core::tests::bare;

    #[tokio::test]
    async fn an_end_is_awaited_until_the_last_waiter_leaves_and_the_deliverer_is_woken() {
        let (core, _home) = bare();
        let bell = Bell::default();
        let mailboxes = Mailboxes::new(core, bell.clone());
        let (one, other) = (TaskId::new("one"), TaskId::new("other"));
        let first = mailboxes.await_ends(vec![one.clone(), other.clone()]);
        let second = mailboxes.await_ends(vec![one.clone()]);
        assert_eq!(mailboxes.awaited(), HashSet::from([one.clone(), other]));
        drop(first);
        assert_eq!(mailboxes.awaited(), HashSet::from([one]));
        bell.rung().await;
        drop(second);
        assert_eq!(mailboxes.awaited(), HashSet::new());
        bell.rung().await;
    }
}
