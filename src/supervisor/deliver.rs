//! The outbox worker: delivers notices to parents, and is the only one that does. In order per parent,
//! parents concurrently, with back-off until it succeeds.
//!
//! At-least-once on the wire, once in the conversation: the message id is minted with the outbox row and is
//! the idempotency key. A notice that may have been sent before (by an earlier daemon, or with a lost
//! response) is looked up in the conversation first. Only when it is certainly new is that request saved.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;

use super::Error;
use super::core::Core;
use super::mailbox::{Mailboxes, content};
use super::turns::Bell;
use crate::backoff::Backoff;
use crate::host::{self, Post};
use crate::notice;
use crate::store::{MOST_DUE, OwedNotice};
use crate::task::{NoticeId, SessionId};

const PAUSES: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// Concurrent deliveries, one per parent.
const AT_ONCE: usize = 32;

/// Batch size: notices that one parent gets in one call.
const MOST_TOGETHER: usize = 128;

/// The worker, and its memory of notices with an unknown outcome.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Deliverer {
    core: Core,
    mailboxes: Mailboxes,
    /// A parent may be owed a notice.
    bell: Bell,
    /// Notices that were sent and are not recorded as delivered: looked up before they are sent again.
    tried: Arc<Mutex<HashSet<NoticeId>>>,
}

impl Deliverer {
    pub(super) fn new(core: Core, mailboxes: Mailboxes, bell: Bell) -> Deliverer {
        Deliverer { core, mailboxes, bell, tried: Arc::default() }
    }

    pub(super) async fn run(self) {
        // The previous daemon may have died between sending and recording. Only notices that are newer than
        // all of its are certainly unsent. While the newest is unknown, every notice is looked up.
        let mut surely_new_after = self.core.store().outbox().newest().unwrap_or(NoticeId::LAST);
        let mut parents: JoinSet<SessionId> = JoinSet::new();
        let mut speaking: HashMap<tokio::task::Id, SessionId> = HashMap::new();
        loop {
            let wait = self.tell_due(&mut parents, &mut speaking, surely_new_after);
            if wait.is_err() && surely_new_after == NoticeId::LAST {
                surely_new_after = self.core.store().outbox().newest().unwrap_or(NoticeId::LAST);
            }
            let wait = wait.unwrap_or_else(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "outbox unreadable; retrying"
                );
                PAUSES.first
            });
            tokio::select! {
                () = self.bell.rung() => {}
                () = tokio::time::sleep(wait) => {}
                Some(delivery) = parents.join_next_with_id() => {
                    let id = match &delivery {
                        Ok((id, _)) => *id,
                        Err(error) => error.id(),
                    };
                    let parent = speaking.remove(&id);
                    if delivery.is_err() {
                        tracing::error!(?parent, "notice delivery panicked; retrying");
                        tokio::time::sleep(PAUSES.first).await;
                    }
                }
                () = self.core.stopping().cancelled() => {
                    // Deliveries under way are completed and recorded: it saves the next daemon a lookup.
                    while parents.join_next().await.is_some() {}
                    return;
                }
            }
        }
    }

    /// Starts all deliveries that are due; returns how long until the next one is.
    fn tell_due(
        &self,
        parents: &mut JoinSet<SessionId>,
        speaking: &mut HashMap<tokio::task::Id, SessionId>,
        surely_new_after: NoticeId,
    ) -> Result<Duration, Error> {
        let now = self.core.clock().now();
        let mut by_parent: BTreeMap<SessionId, Vec<OwedNotice>> = BTreeMap::new();
        let mut aside: HashSet<SessionId> = speaking.values().cloned().collect();
        let room = AT_ONCE.saturating_sub(speaking.len());
        // Read before the notices: a caller that takes an end as its answer and leaves between the two reads
        // is still seen as waiting, and the notice is not sent on top of the answer.
        let awaited = self.mailboxes.awaited();
        loop {
            let due = self.core.store().outbox().due(now, PAUSES.longest, &aside)?;
            let all = due.len() < MOST_DUE;
            for owed in due {
                let parent = &owed.parent_session;
                // A caller that waits for this very end gets it as its response (N3). Later notices of the
                // same parent wait with it, to keep the order. A stall is not what it waits for.
                if owed.quiet.is_none() && awaited.contains(&owed.task) {
                    aside.insert(parent.clone());
                }
                if !aside.contains(parent) {
                    by_parent.entry(parent.clone()).or_default().push(owed);
                }
            }
            if all || by_parent.len() >= room {
                break;
            }
            // The page was full of a few parents' notices: read on behind them, or the others starve.
            aside.extend(by_parent.keys().cloned());
        }
        // Fairness: the parent whose notice has waited longest comes first.
        let mut in_turn: Vec<(SessionId, Vec<OwedNotice>)> = by_parent.into_iter().collect();
        in_turn.sort_by_key(|(_, owed)| owed[0].id);
        for (parent, owed) in in_turn.into_iter().take(room) {
            let deliverer = self.clone();
            let to = parent.clone();
            let telling = parents.spawn(async move {
                deliverer.tell(owed, surely_new_after).await;
                to
            });
            speaking.insert(telling.id(), parent);
        }
        // What is due and was not started waits for a delivery to finish or a waiting caller to leave; both
        // ring the bell, so the timer is only for back-offs.
        let next = self.core.store().outbox().next_due(now)?.map(|due| due.since(now));
        Ok(next.map_or(Duration::from_secs(3600), |next| next.clamp(PAUSES.first, PAUSES.longest)))
    }

    /// Delivers to one parent, in order; stops at the first failure, so that nothing overtakes it.
    async fn tell(&self, owed: Vec<OwedNotice>, surely_new_after: NoticeId) {
        let mut written = Vec::with_capacity(owed.len());
        for together in self.said_together(&owed, surely_new_after) {
            let now = self.core.clock().now();
            match self.post(together).await {
                // The next ones are sent before this is on disk. Crash window: the row still says "owed",
                // and the next daemon finds the message in the conversation by its id.
                Ok(()) => {
                    for owed in together.owed() {
                        self.core.metrics().notice_delivered();
                        written.push((owed.id, self.core.store().outbox().delivered(owed.id, now)));
                    }
                }
                Err(Error::Host(error @ host::Error::NoSuchSession(_))) => {
                    // The parent was deleted: a permanent failure.
                    for owed in together.owed() {
                        let noted = self.core.store().outbox().undeliverable(
                            owed.id,
                            error.to_string(),
                            now,
                        );
                        written.push((owed.id, noted));
                    }
                }
                Err(error) => {
                    let Some(first) = together.owed().first() else { continue };
                    self.core.metrics().notice_retried();
                    let pause = PAUSES.pause(first.attempts);
                    let error = &error as &dyn std::error::Error;
                    let (parent, attempt) = (&first.parent_session, first.attempts + 1);
                    tracing::warn!(
                        task = %first.task,
                        %parent,
                        attempt,
                        delay = ?pause,
                        error,
                        "notice delivery failed; retrying"
                    );
                    let noted = self.core.store().outbox().postpone(first.id, now.plus(pause));
                    written.push((first.id, noted));
                    break;
                }
            }
        }
        let mut unwritten = false;
        for (notice, outcome) in written {
            match outcome.await {
                Ok(()) => {
                    self.tried().remove(&notice);
                }
                Err(error) => {
                    unwritten = true;
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(
                        error,
                        "notice outcome not recorded; it is looked up before the next attempt"
                    );
                }
            }
        }
        // It is still due: without a pause this would be a busy loop.
        if unwritten {
            tokio::time::sleep(PAUSES.first).await;
        }
    }

    /// Batches: certainly new notices go together, one that may have been sent before goes alone, after a
    /// lookup.
    fn said_together<'a>(
        &self,
        owed: &'a [OwedNotice],
        surely_new_after: NoticeId,
    ) -> Vec<NoticeBatch<'a>> {
        let tried = self.tried().clone();
        let is_new = |owed: &OwedNotice| {
            owed.attempts == 0 && owed.id > surely_new_after && !tried.contains(&owed.id)
        };
        let alike = owed.chunk_by(|one, next| is_new(one) && is_new(next));
        let bounded = alike.flat_map(|alike| alike.chunks(MOST_TOGETHER));
        bounded
            .map(|together| match together {
                [one] if !is_new(one) => NoticeBatch::MayBeThere(one),
                new => NoticeBatch::New(new),
            })
            .collect()
    }

    fn tried(&self) -> MutexGuard<'_, HashSet<NoticeId>> {
        self.tried.lock()
    }

    async fn post(&self, together: NoticeBatch<'_>) -> Result<(), Error> {
        let owed = together.owed();
        let Some(OwedNotice { parent_host, parent_session, .. }) = owed.first() else {
            return Ok(());
        };
        let host = self.core.host(parent_host)?;
        let to = self.core.place(parent_session);
        if let NoticeBatch::MayBeThere(owed) = together
            && host.posted(to.clone(), owed.message_id.clone()).await?
        {
            return Ok(());
        }
        // Before the call: from here on the host may have them, whatever it answers.
        self.tried().extend(owed.iter().map(|owed| owed.id));
        let posts = owed.iter().map(|owed| {
            let notice = notice::compose(&content(owed), self.core.settings().inline_characters);
            Post {
                to: to.clone(),
                message: owed.message_id.clone(),
                visible: notice.visible,
                hidden: notice.hidden,
                agent: owed.parent_agent.clone(),
                wake: owed.wake,
            }
        });
        Ok(host.post(posts.collect()).await?)
    }
}

/// A batch of notices for one parent.
#[derive(Clone, Copy)]
enum NoticeBatch<'a> {
    New(&'a [OwedNotice]),
    /// An earlier attempt may have reached the conversation.
    MayBeThere(&'a OwedNotice),
}

impl<'a> NoticeBatch<'a> {
    fn owed(self) -> &'a [OwedNotice] {
        match self {
            NoticeBatch::New(owed) => owed,
            NoticeBatch::MayBeThere(owed) => std::slice::from_ref(owed),
        }
    }
}
