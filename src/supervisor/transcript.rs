//! Transcripts: read from the host while the task is live, archived compressed at the end of every run, so
//! that they outlive the host (H4). Archiving is owed on disk and retried with back-off by a worker.
//!
//! Transcripts of live tasks are cached for viewers, validated by the host's version of the session and a
//! time to live. The cache is for display only: how a run ended is never decided by it.

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use parking_lot::Mutex;

use super::core::Core;
use super::turns::Bell;
use super::{Error, Supervisor};
use crate::backoff::Backoff;
use crate::host::{self, Place};
use crate::store::{ArchivedTranscript, OwedTranscript};
use crate::task::{Task, TaskId};

/// Back-off after a host did not answer.
const PAUSES: Backoff =
    Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(300) };

/// Page size of the query for owed transcripts.
const AT_ONCE: usize = 64;

/// Size of the cache; the oldest entries are evicted.
const MOST_CACHED_BYTES: usize = 16 << 20;

/// Cache of transcripts of live tasks, the newest last.
#[derive(Default)]
struct Cache(VecDeque<CacheEntry>);

struct CacheEntry {
    task: TaskId,
    /// The host's version from before the read: an event during the read makes the entry stale.
    version: u64,
    /// Uptime.
    at: Duration,
    messages: String,
}

impl Cache {
    fn get(&self, task: &TaskId, version: u64, since: Duration) -> Option<String> {
        let is_good =
            |kept: &&CacheEntry| kept.task == *task && kept.version == version && kept.at >= since;
        self.0.iter().find(is_good).map(|kept| kept.messages.clone())
    }

    fn put(&mut self, new: CacheEntry) {
        self.0.retain(|kept| kept.task != new.task);
        self.0.push_back(new);
        let bytes =
            |cache: &VecDeque<CacheEntry>| cache.iter().map(|kept| kept.messages.len()).sum();
        while MOST_CACHED_BYTES < bytes(&self.0) {
            self.0.pop_front();
        }
    }
}

/// The worker that archives transcripts, and the cache for viewers.
///
/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Transcripts {
    core: Core,
    cache: Arc<Mutex<Cache>>,
    /// A transcript may be owed to be kept.
    bell: Bell,
}

impl Transcripts {
    pub(super) fn new(core: Core, bell: Bell) -> Transcripts {
        Transcripts { core, cache: Arc::default(), bell }
    }

    /// The host's own messages, as a JSON array. Of an ended task they come from the archive as soon as it
    /// has them; of a live one only when its host cannot be reached.
    pub(super) async fn read(&self, task: &Task) -> Result<String, Error> {
        let kept = self.core.store().transcripts().kept(&task.id)?;
        match kept {
            Some(kept) if !task.is_live() && kept.run == task.run => unpack(&task.id, kept).await,
            kept => match (self.ask(&task.origin.host, task.into()).await, kept) {
                (Ok(messages), _) => Ok(messages),
                (Err(_), Some(kept)) => unpack(&task.id, kept).await,
                (Err(error), None) => Err(error),
            },
        }
    }

    /// The same for viewers: of a live task perhaps from the cache (`supervisor.result_cache_seconds`), while
    /// its host has heard of nothing new.
    async fn show(&self, task: &Task) -> Result<String, Error> {
        let longest = self.core.settings().result_cache;
        let version = self
            .core
            .host(&task.origin.host)
            .ok()
            .and_then(|host| host.version(&Place::from(task)));
        let Some(version) = version.filter(|_| task.is_live() && !longest.is_zero()) else {
            return self.read(task).await;
        };
        let now = self.core.clock().uptime();
        let since = now.saturating_sub(longest);
        if let Some(messages) = self.cache.lock().get(&task.id, version, since) {
            return Ok(messages);
        }
        let messages = match self.ask(&task.origin.host, task.into()).await {
            Ok(messages) => messages,
            // Not through `read`, which would ask the host again: the first timeout may have taken as long
            // as a caller waits.
            Err(error) => match self.core.store().transcripts().kept(&task.id)? {
                Some(kept) => return unpack(&task.id, kept).await,
                None => return Err(error),
            },
        };
        let cached =
            CacheEntry { task: task.id.clone(), version, at: now, messages: messages.clone() };
        self.cache.lock().put(cached);
        Ok(messages)
    }

    async fn ask(&self, host: &str, place: Place) -> Result<String, Error> {
        Ok(self.core.host(host)?.transcript(place).await?)
    }

    /// The worker: archives what is owed. A host that does not answer is asked again; a deleted session has
    /// nothing left to archive.
    pub(super) async fn run(self) {
        let mut tries = 0;
        loop {
            let wait = match self.keep_owed().await {
                Ok(0) => {
                    tries = 0;
                    Duration::MAX
                }
                Ok(left) => {
                    let delay = PAUSES.pause(tries);
                    tracing::debug!(left, ?delay, "hosts did not give transcripts; retrying");
                    delay
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    let (attempt, delay) = (tries + 1, PAUSES.pause(tries));
                    tracing::warn!(attempt, ?delay, error, "transcripts not archived; retrying");
                    delay
                }
            };
            tokio::select! {
                () = self.bell.rung() => {}
                () = tokio::time::sleep(wait) => tries += 1,
                () = self.core.stopping().cancelled() => return,
            }
        }
    }

    /// Returns how many transcripts are left to be retried, because their hosts did not answer.
    async fn keep_owed(&self) -> Result<u64, Error> {
        let (mut after, mut left) = (0, 0);
        let mut silent: HashSet<String> = HashSet::new();
        loop {
            let owed = self.core.store().transcripts().owed(after, AT_ONCE)?;
            let Some(last) = owed.last() else { return Ok(left) };
            after = last.seq;
            let mut written = Vec::with_capacity(owed.len());
            for OwedTranscript { task, host, run, .. } in owed {
                // A host that did not answer for one task is not waited for again in this pass.
                let asked = match silent.contains(&host) {
                    true => None,
                    false => Some(self.ask(&host, self.core.place(&task)).await),
                };
                let body = match asked {
                    Some(Ok(messages)) => Some(pack(&task, messages).await?),
                    Some(Err(Error::Host(host::Error::NoSuchSession(_)))) => None,
                    Some(Err(_)) | None => {
                        silent.insert(host);
                        left += 1;
                        continue;
                    }
                };
                written.push(self.core.store().transcripts().keep(&task, run, body));
            }
            // Awaited together, so that the writes of a page can share a commit.
            for outcome in written {
                outcome.await?;
            }
        }
    }
}

impl Supervisor {
    /// The host's own messages, as a JSON array, as they are now.
    pub async fn transcript(&self, task: &Task) -> Result<String, Error> {
        self.0.transcripts.read(task).await
    }

    /// The same for viewers: of a live task perhaps from the cache.
    pub async fn shown_transcript(&self, task: &Task) -> Result<String, Error> {
        self.0.transcripts.show(task).await
    }
}

/// Compresses on a blocking thread: long ones take a while.
async fn pack(task: &TaskId, messages: String) -> Result<Vec<u8>, Error> {
    let packed = run_blocking(move || {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(messages.as_bytes())?;
        encoder.finish()
    });
    packed.await.map_err(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::error!(%task, error, "transcript not compressed; it is archived later");
        unreadable()
    })
}

async fn unpack(task: &TaskId, archived: ArchivedTranscript) -> Result<String, Error> {
    let unpacked = run_blocking(move || {
        let mut messages = String::new();
        DeflateDecoder::new(archived.body.as_slice()).read_to_string(&mut messages)?;
        Ok(messages)
    });
    unpacked.await.map_err(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::error!(%task, error, "archived transcript damaged; it cannot be shown");
        unreadable()
    })
}

fn unreadable() -> Error {
    Error::Store(crate::store::Error::Unreadable { column: "transcript" })
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_transcript_is_valid_for_its_version_and_time_and_the_oldest_is_evicted() {
        let mut cache = Cache::default();
        let id = |id: &str| TaskId::new(id);
        let second = Duration::from_secs;
        let mut put = |task: &str, version, at, messages: &str| {
            let messages = messages.to_owned();
            cache.put(CacheEntry { task: id(task), version, at: second(at), messages });
        };
        put("a", 1, 1, "old");
        put("a", 2, 2, "new");
        put("b", 3, 3, &"x".repeat(MOST_CACHED_BYTES - 3));
        assert_eq!(cache.get(&id("a"), 1, second(0)), None, "something was heard since");
        assert_eq!(cache.get(&id("a"), 2, second(2)).as_deref(), Some("new"));
        assert_eq!(cache.get(&id("a"), 2, second(3)), None, "it is too old");
        assert_eq!(cache.get(&id("b"), 2, second(0)), None);
        cache.put(CacheEntry { task: id("c"), version: 4, at: second(4), messages: "y".into() });
        assert_eq!(cache.get(&id("a"), 2, second(0)), None, "it made room");
        assert_eq!(cache.get(&id("c"), 4, second(0)).as_deref(), Some("y"));
        let messages = "z".repeat(MOST_CACHED_BYTES + 1);
        cache.put(CacheEntry { task: id("d"), version: 5, at: second(5), messages });
        assert!(cache.0.is_empty(), "larger than all that is kept");
    }

    #[tokio::test]
    async fn a_transcript_is_compressed_without_loss() {
        let messages = format!("[{}]", vec!["{\"info\":\"äöü\"}"; 1000].join(","));
        let task = TaskId::new("a");
        let body = pack(&task, messages.clone()).await.unwrap();
        assert!(body.len() * 20 < messages.len(), "{}", body.len());
        let archived = ArchivedTranscript { run: 0, body };
        assert_eq!(unpack(&task, archived).await.unwrap(), messages);
    }

    #[tokio::test]
    async fn a_damaged_transcript_is_reported_as_damaged() {
        let archived = ArchivedTranscript { run: 0, body: vec![0xff; 9] };
        let error = unpack(&TaskId::new("a"), archived).await.unwrap_err();
        assert_eq!(error.to_string(), "the task store holds something unreadable in `transcript`");
    }
}
