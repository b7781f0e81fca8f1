//! The messages of a task's session: asked of its host while they may still grow, and kept at the
//! end of every run, so that they outlive the host (H4).

use std::collections::HashSet;
use std::io::{Read, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::{Error, Supervisor};
use crate::host::{self, Host};
use crate::store::{Kept, OwedTranscript};
use crate::task::{Task, TaskId};

/// After a host did not answer.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// So many are looked up at a time.
const AT_ONCE: usize = 64;

impl Supervisor {
    /// The host's own messages, as a JSON array. Of an ended task they come from where they are
    /// kept, as soon as they are; of a live one only when its host cannot be asked.
    pub async fn transcript(&self, task: &Task) -> Result<String, Error> {
        let kept = self.0.store.kept_transcript(&task.id)?;
        match kept {
            Some(kept) if !task.is_live() && kept.run == task.run => unpack(kept).await,
            kept => match (self.ask_transcript(&task.host, &task.id).await, kept) {
                (Ok(messages), _) => Ok(messages),
                (Err(_), Some(kept)) => unpack(kept).await,
                (Err(error), None) => Err(error),
            },
        }
    }

    async fn ask_transcript(&self, host: &str, task: &TaskId) -> Result<String, Error> {
        Ok(self.host(host)?.transcript(task).await?)
    }

    /// Keeps what is owed to be kept. A host that does not answer is asked again; a session that
    /// is gone has nothing left to keep.
    pub(super) async fn keeper(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = match self.keep_owed().await {
                Ok(Left::Nothing) => {
                    pause = FIRST_PAUSE;
                    Duration::MAX
                }
                Ok(Left::Something) => pause,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot keep transcripts now");
                    pause
                }
            };
            tokio::select! {
                () = self.0.ends.notified() => {}
                () = tokio::time::sleep(wait) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    async fn keep_owed(&self) -> Result<Left, Error> {
        let (mut after, mut left) = (0, Left::Nothing);
        let mut silent: HashSet<String> = HashSet::new();
        loop {
            let owed = self.0.store.owed_transcripts(after, AT_ONCE)?;
            let Some(last) = owed.last() else { return Ok(left) };
            after = last.seq;
            let mut written = Vec::with_capacity(owed.len());
            for OwedTranscript { task, host, run, .. } in owed {
                // One that did not answer for one task need not be waited for with the next.
                let asked = match silent.contains(&host) {
                    true => None,
                    false => Some(self.ask_transcript(&host, &task).await),
                };
                let body = match asked {
                    Some(Ok(messages)) => Some(pack(messages).await?),
                    Some(Err(Error::Host(host::Error::NoSuchSession(_)))) => None,
                    Some(Err(_)) | None => {
                        silent.insert(host);
                        left = Left::Something;
                        continue;
                    }
                };
                written.push(self.0.store.keep_transcript(&task, run, body));
            }
            for outcome in written {
                outcome.await?;
            }
        }
    }
}

/// What a look at the owed transcripts left to be tried again.
enum Left {
    Nothing,
    Something,
}

/// Long ones take a while.
async fn pack(messages: String) -> Result<Vec<u8>, Error> {
    apart(move || {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(messages.as_bytes())?;
        encoder.finish()
    })
    .await
}

async fn unpack(kept: Kept) -> Result<String, Error> {
    apart(move || {
        let mut messages = String::new();
        DeflateDecoder::new(kept.body.as_slice()).read_to_string(&mut messages)?;
        Ok(messages)
    })
    .await
}

async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    done.map_err(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "transcript cannot be unpacked");
        Error::Store(crate::store::Error::Unreadable { column: "transcript" })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_transcript_comes_back_as_it_was() {
        let messages = format!("[{}]", vec!["{\"info\":\"äöü\"}"; 1000].join(","));
        let body = pack(messages.clone()).await.unwrap();
        assert!(body.len() * 20 < messages.len(), "{}", body.len());
        assert_eq!(unpack(Kept { run: 0, body }).await.unwrap(), messages);
    }

    #[tokio::test]
    async fn a_transcript_that_is_damaged_is_named_as_what_it_is() {
        let error = unpack(Kept { run: 0, body: vec![0xff; 9] }).await.unwrap_err();
        assert_eq!(error.to_string(), "the task store holds something unreadable in `transcript`");
    }
}
