//! An archive of transcripts: what sessions on other hosts held when their runs had ended, so that it can be read
//! when the host is gone. That one is to be fetched is written with the end of the run (`transcript_owed`), so that
//! it is fetched after a crash, too; a fetched one replaces that of an earlier run.

use super::subjects::Transcripts;
use super::{Error, PendingWrite};
use crate::task::TaskId;

/// An archived transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedTranscript {
    /// After which run.
    pub run: u32,
    /// Compressed by the supervisor; the store does not look inside.
    pub body: Vec<u8>,
}

/// A session whose transcript is still to be fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct OwedTranscript {
    /// The task's place in the history.
    pub seq: i64,
    pub task: TaskId,
    pub host: String,
    /// The run that has ended.
    pub run: u32,
}

impl Transcripts<'_> {
    /// A page of the transcripts that are owed, behind this task.
    pub fn owed(&self, after: i64, most: usize) -> Result<Vec<OwedTranscript>, Error> {
        self.store.read(|db| {
            // Not the whole task: SQLite's sorter would copy its result, which may be long. `INDEXED BY` the
            // partial index of what is owed, so that finding nothing, the usual case, reads one page.
            Ok(db.query_all(
                "SELECT t.seq, t.id, t.host, r.n FROM run r INDEXED BY run_transcript_owed
                 JOIN task t ON t.seq = r.task
                 WHERE r.transcript_owed = 1 AND r.task > ?1 ORDER BY r.task, r.n DESC LIMIT ?2",
                (after, most as i64),
                |row| {
                    let task = row.get(1)?;
                    Ok(OwedTranscript {
                        seq: row.get(0)?,
                        task,
                        host: row.get(2)?,
                        run: row.get(3)?,
                    })
                },
            )?)
        })
    }

    /// Stores it in place of that of an earlier run; one of a later run is not overwritten. Without a body there is
    /// nothing to be had any more: nothing is owed, and what is stored stays.
    pub fn keep(&self, id: &TaskId, run: u32, body: Option<Vec<u8>>) -> PendingWrite<()> {
        let id = id.clone();
        self.store.write_deferrable(move |db, _| {
            db.execute(
                "UPDATE run SET transcript_owed = 0
                 WHERE n <= ?2 AND task = (SELECT seq FROM task WHERE id = ?1)
                   AND transcript_owed = 1",
                (id.as_str(), run),
            )?;
            if let Some(body) = body {
                db.execute(
                    "INSERT INTO transcript SELECT seq, ?2, ?3 FROM task WHERE id = ?1
                     ON CONFLICT DO UPDATE SET run = excluded.run, body = excluded.body
                       WHERE excluded.run >= transcript.run",
                    (id.as_str(), run, body),
                )?;
            }
            Ok(())
        })
    }

    pub fn kept(&self, id: &TaskId) -> Result<Option<ArchivedTranscript>, Error> {
        self.store.read(|db| {
            let kept = "SELECT run, body FROM transcript
                        WHERE task = (SELECT seq FROM task WHERE id = ?1)";
            Ok(db.query_opt(kept, [id.as_str()], |row| {
                Ok(ArchivedTranscript { run: row.get(0)?, body: row.get(1)? })
            })?)
        })
    }
}
