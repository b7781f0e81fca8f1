//! Further prompts of a run: what is said to it besides its own prompt. A row is written before the message is
//! acknowledged and stays owed until the host has it, so that a crash in between loses nothing.
//!
//! The race with the end of the run is decided here: adding one raises the task's `revision`, so that an end that
//! was judged without it is stale; and to a run that has ended none can be added.

use super::rows;
use super::subjects::Further;
use super::tasks::seq_of;
use super::{Error, PendingWrite};
use crate::task::{MessageId, Task, TaskId, Timestamp};

/// Something to be said to the current run of a task.
#[derive(Clone, Debug)]
pub struct NewFurtherPrompt {
    pub text: String,
    pub at: Timestamp,
    /// The caller's idempotency key.
    pub key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    Added,
    /// The run is over; nothing was written.
    Over,
    /// As many are owed as may be; nothing was written.
    Full,
}

/// One that is owed, or goes along with the run's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FurtherPrompt {
    pub seq: i64,
    pub text: String,
    /// The idempotency key for sending it; `None` before the first attempt.
    pub message_id: Option<MessageId>,
    pub sent: bool,
    /// It asks for an answer again; else it is a message of the parent.
    pub correction: bool,
}

impl Further<'_> {
    /// Adds one to the run that goes on now, unless `most` are owed already. Idempotent by key.
    pub fn add(
        &self,
        task: &TaskId,
        new: NewFurtherPrompt,
        most: usize,
    ) -> PendingWrite<AddOutcome> {
        let id = task.clone();
        self.store.write(move |db, _| {
            let Some((seq, now)) = rows::find_task(db, "t.id = ?1", id.as_str())? else {
                return Ok(AddOutcome::Over);
            };
            // The key before the state: a repeat of what was written must succeed, even if the run has
            // ended since. Without a key it is NULL, which equals nothing, so that no message counts as a
            // repeat.
            let known = "SELECT EXISTS (SELECT 1 FROM further_prompt WHERE task = ?1 AND key = ?2)";
            if db.query_one(known, (seq, &new.key), |row| row.get(0))? {
                return Ok(AddOutcome::Added);
            }
            if !now.is_live() {
                return Ok(AddOutcome::Over);
            }
            let owed: i64 = db.query_one(
                "SELECT count(*) FROM further_prompt WHERE task = ?1 AND run = ?2 AND sent_at IS NULL",
                (seq, now.run),
                |row| row.get(0),
            )?;
            if owed as usize >= most {
                return Ok(AddOutcome::Full);
            }
            db.execute(
                "INSERT INTO further_prompt (task, run, text, key, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                (seq, now.run, &new.text, &new.key, new.at.as_millis()),
            )?;
            // An end that was judged before this message is conditional on the old revision: it is not
            // written, and the run goes on with the message.
            db.execute("UPDATE task SET revision = revision + 1 WHERE seq = ?1", [seq])?;
            Ok(AddOutcome::Added)
        })
    }

    /// Asks for the answer of the run again, if nothing has changed since the task was read: one answer is asked
    /// for again once.
    pub fn correct(&self, task: &Task, text: String, at: Timestamp) -> PendingWrite<()> {
        let (id, run, revision) = (task.id.clone(), task.run, task.revision);
        self.store.write(move |db, _| {
            let moved = db.execute(
                // `slot > 0`: still live. To an ended task a correction would be owed for ever.
                "UPDATE task SET revision = revision + 1 WHERE id = ?1 AND revision = ?2 AND slot > 0",
                (id.as_str(), revision),
            )?;
            if moved > 0 {
                db.execute(
                    "INSERT INTO further_prompt (task, run, text, created_at, correction)
                     VALUES (?1, ?2, ?3, ?4, 1)",
                    (seq_of(db, &id)?, run, &text, at.as_millis()),
                )?;
            }
            Ok(())
        })
    }

    /// Whether one was added with this key, in any run of the task.
    pub fn was_added_with(&self, task: &TaskId, key: &str) -> Result<bool, Error> {
        self.store.read(|db| {
            Ok(db.query_one(
                "SELECT EXISTS (SELECT 1 FROM further_prompt f JOIN task t ON t.seq = f.task
                 WHERE t.id = ?1 AND f.key = ?2)",
                (task.as_str(), key),
                |row| row.get(0),
            )?)
        })
    }

    /// Those of the task's current run, in the order in which they were said.
    pub fn of_run(&self, task: &Task) -> Result<Vec<FurtherPrompt>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT seq, text, message_id, sent_at IS NOT NULL, correction FROM further_prompt
                 WHERE task = (SELECT seq FROM task WHERE id = ?1) AND run = ?2 ORDER BY seq",
                (task.id.as_str(), task.run),
                |row| {
                    Ok(FurtherPrompt {
                        seq: row.get(0)?,
                        text: row.get(1)?,
                        message_id: row.get(2)?,
                        sent: row.get(3)?,
                        correction: row.get(4)?,
                    })
                },
            )?)
        })
    }

    /// Decides that those which were not tried yet go along with the run's prompt, before that is sent: a repeat
    /// of the prompt says the same.
    pub fn join_prompt(&self, task: &Task, prompt: &MessageId) -> PendingWrite<()> {
        let (id, run, prompt) = (task.id.clone(), task.run, prompt.clone());
        self.store.write(move |db, _| {
            db.execute(
                // Not those with an id: they were tried before, and the host may have them under it.
                "UPDATE further_prompt SET message_id = ?3
                 WHERE task = ?1 AND run = ?2 AND message_id IS NULL",
                (seq_of(db, &id)?, run, prompt.as_str()),
            )?;
            Ok(())
        })
    }

    /// Writes down the message id before the first attempt to send it.
    pub fn name(&self, seq: i64, message_id: MessageId) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute(
                "UPDATE further_prompt SET message_id = ?2 WHERE seq = ?1 AND message_id IS NULL",
                (seq, message_id.as_str()),
            )?;
            Ok(())
        })
    }

    /// The host has it.
    pub fn sent(&self, seq: i64, at: Timestamp) -> PendingWrite<()> {
        self.store.write_deferrable(move |db, _| {
            db.execute(
                "UPDATE further_prompt SET sent_at = ?2 WHERE seq = ?1",
                (seq, at.as_millis()),
            )?;
            Ok(())
        })
    }
}
