//! The mailbox of a parent that is no conversation: its notices wait there to be read. Each is
//! handed out to one reader at a time, and stays unread until that one says that it has it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::{Caller, Error, Supervisor};
use crate::claim;
use crate::notice::{self, Facts, News, Notice};
use crate::store::Owed;
use crate::task::{NoticeId, Receipt, SessionId, Task, TaskId};

/// A reader that has not said anything after this long never got it: the next one does.
const HANDED_OUT_FOR: Duration = Duration::from_secs(60);

/// So many are handed out at a time; the rest comes with the next call.
const MOST: usize = 50;

/// A notice that was handed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// What to name when it has been read.
    pub id: NoticeId,
    pub task: TaskId,
    facts: Facts,
}

impl Letter {
    /// `inline` is how many characters of the result are in it.
    pub fn text(&self, inline: usize) -> String {
        notice::letter(&self.facts, inline)
    }

    /// How long the result is that it tells of.
    pub fn result_characters(&self) -> usize {
        match &self.facts.news {
            News::Ended { result, .. } => result.as_ref().map_or(0, |text| text.chars().count()),
            News::Stalled { .. } => 0,
        }
    }
}

/// What was handed out, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mail {
    pub letters: Vec<Letter>,
    /// How many more there are.
    pub left: usize,
}

/// The same as it is told in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mailbox {
    pub notices: Vec<Notice>,
    pub left: usize,
}

impl Supervisor {
    /// The unread notices that nobody else has just been given.
    pub fn hand_out_mail(&self, caller: &Caller) -> Result<Mail, Error> {
        let now = self.0.clock.uptime();
        let mut handed = self.handed();
        handed.retain(|_, at| now.saturating_sub(*at) < HANDED_OUT_FOR);
        // Under the lock, so that two who ask at once do not get the same.
        let mut unread = self.0.store.outbox().unread(&caller.session)?;
        for predecessor in self.gone_predecessors(caller)? {
            unread.extend(self.0.store.outbox().unread(&predecessor)?);
        }
        if unread.is_empty() {
            return Ok(Mail::default());
        }
        // Who waits for an end gets it with that answer.
        let awaited = self.awaited();
        unread.retain(|(notice, task)| !handed.contains_key(notice) && !awaited.contains_key(task));
        drop(awaited);
        let left = unread.len().saturating_sub(MOST);
        let receipt = unread.into_iter().map(|(notice, _)| notice).take(MOST).collect();
        let owed = self.0.store.outbox().notices(&receipt)?;
        handed.extend(owed.iter().map(|owed| (owed.id, now)));
        let letter = |owed: Owed| {
            let facts = super::deliver::facts(&owed);
            Letter { id: owed.id, task: owed.task, facts }
        };
        Ok(Mail { letters: owed.into_iter().map(letter).collect(), left })
    }

    /// Callers that worked in the same place, left unread news, and are no more.
    fn gone_predecessors(&self, caller: &Caller) -> Result<Vec<SessionId>, Error> {
        if caller.heir_of.is_empty() {
            return Ok(Vec::new());
        }
        let mut names = self.0.store.outbox().unread_parents(&caller.heir_of)?;
        let home = &self.0.settings.home;
        names.retain(|name| *name != caller.session && !claim::is_held(home, name.as_str()));
        Ok(names)
    }

    /// The notices of these ends, which the caller is told of in another way.
    pub(super) fn hand_out_ends(&self, ended: &[TaskId]) -> Result<Receipt, Error> {
        let now = self.0.clock.uptime();
        let mut handed = self.handed();
        let mut notices = Vec::new();
        for task in ended {
            notices.extend(self.0.store.outbox().unread_end(task)?);
        }
        handed.extend(notices.iter().map(|notice| (*notice, now)));
        Ok(notices.into_iter().collect())
    }

    /// A parent's tasks that have ended, as far as it has not been told.
    pub fn ended_unread(&self, parent: &SessionId) -> Result<Vec<TaskId>, Error> {
        Ok(self.0.store.outbox().ended_unread(parent)?)
    }

    /// Whether the parent has been told of this end.
    pub fn is_told(&self, task: &Task) -> Result<bool, Error> {
        Ok(self.0.store.outbox().unread_end(&task.id)?.is_none())
    }

    /// They have arrived, and are not handed out again.
    pub async fn mail_was_read(&self, receipt: Receipt) -> Result<(), Error> {
        if receipt.is_empty() {
            return Ok(());
        }
        self.0.store.outbox().mark_read(receipt.clone(), self.0.clock.now()).await?;
        let mut handed = self.handed();
        handed.retain(|notice, _| !receipt.has(*notice));
        Ok(())
    }

    /// For readers who cannot say that they have got it.
    pub async fn read_mailbox(&self, caller: &Caller) -> Result<Mailbox, Error> {
        let Mail { letters, left } = self.hand_out_mail(caller)?;
        self.mail_was_read(letters.iter().map(|letter| letter.id).collect()).await?;
        let inline = self.inline_characters();
        let notice = |letter: &Letter| notice::compose(&letter.facts, inline);
        Ok(Mailbox { notices: letters.iter().map(notice).collect(), left })
    }

    /// How much of a result travels with the news of it.
    pub fn inline_characters(&self) -> usize {
        self.0.settings.inline_characters
    }

    fn handed(&self) -> MutexGuard<'_, HashMap<NoticeId, Duration>> {
        self.0.handed.lock()
    }
}
