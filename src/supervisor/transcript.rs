//! The messages of a task's session: asked of its host while they may still grow, and kept at the
//! end of every run, so that they outlive the host (H4).

use std::io::{Read, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::{Error, Supervisor};
use crate::host::{self, Host};
use crate::store::Kept;
use crate::task::Task;

/// After a host did not answer.
const PAUSE: Duration = Duration::from_secs(5);

/// So many are looked up at a time.
const AT_ONCE: usize = 64;

impl Supervisor {
    /// The host's own messages, as a JSON array. Of an ended task they come from where they are
    /// kept, as soon as they are; of a live one only when its host cannot be asked.
    pub async fn transcript(&self, task: &Task) -> Result<String, Error> {
        let kept = self.0.store.kept_transcript(&task.id)?;
        match kept {
            Some(kept) if !task.is_live() && kept.run == task.run => unpack(kept).await,
            kept => match (self.ask_transcript(task).await, kept) {
                (Ok(messages), _) => Ok(messages),
                (Err(_), Some(kept)) => unpack(kept).await,
                (Err(error), None) => Err(error),
            },
        }
    }

    async fn ask_transcript(&self, task: &Task) -> Result<String, Error> {
        Ok(self.host(&task.host)?.transcript(&task.id).await?)
    }

    /// Keeps what is owed to be kept. A host that does not answer is asked again; a session that
    /// is gone has nothing left to keep.
    pub(super) async fn keeper(self) {
        loop {
            let pause = match self.keep_owed().await {
                Ok(true) => PAUSE,
                Ok(false) => Duration::MAX,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot keep transcripts now");
                    PAUSE
                }
            };
            tokio::select! {
                () = self.0.ends.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    /// Says whether something is left to be tried again.
    async fn keep_owed(&self) -> Result<bool, Error> {
        loop {
            let owed = self.0.store.owed_transcripts(AT_ONCE)?;
            let (all, mut kept) = (owed.len(), 0);
            for (task, run) in owed {
                let body = match self.ask_transcript(&task).await {
                    Ok(messages) => Some(pack(messages).await?),
                    Err(Error::Host(host::Error::NoSuchSession(_))) => None,
                    Err(_) => continue,
                };
                self.0.store.keep_transcript(&task.id, run, body).await?;
                kept += 1;
            }
            if all < AT_ONCE || kept == 0 {
                return Ok(kept < all);
            }
        }
    }
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
    done.map_err(|error| Error::Store(crate::store::Error::Io(error)))
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
}
