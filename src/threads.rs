//! Blocking work off the async runtime's two worker threads, with a time limit. A file system can hang
//! for ever (a network mount whose server is gone), and a thread that waits for it cannot be stopped:
//! the caller gets its error in time and the thread is abandoned. A semaphore bounds how many can hang.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// The default time limit for reading a few files.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Permits for [`within`]. An abandoned thread keeps its permit until it wakes up, so that a dead mount
/// can never use up tokio's whole blocking pool (512), which also compresses, parses and resolves names.
static ROOM: Semaphore = Semaphore::const_new(128);

/// Why work on a blocking thread brought no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the file system did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("internal error: it panicked")]
    Panicked,
}

/// Runs `work` on a blocking thread and waits for it for at most `limit`. After that the thread may
/// still be running: `work` must be harmless if it finishes late.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    // One deadline for both waits: a caller behind 128 hung threads waits no longer than any other.
    let deadline = tokio::time::Instant::now() + limit;
    let Ok(Ok(permit)) = tokio::time::timeout_at(deadline, ROOM.acquire()).await else {
        return Err(Error::TimedOut(limit));
    };
    let thread = tokio::task::spawn_blocking(move || {
        let done = work();
        // Released here and not by the caller, which may have given up long ago.
        drop(permit);
        done
    });
    match tokio::time::timeout_at(deadline, thread).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(Error::Panicked),
        Err(_) => Err(Error::TimedOut(limit)),
    }
}

/// Runs `work` on a blocking thread without a limit: for work on our own disk and in memory that would
/// hold up everybody else on one of the two worker threads.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Panicked)
}

/// Runs `work` on this thread while tokio moves the other tasks to another one: for work in memory that
/// borrows something too large to be copied for [`run_blocking`].
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // A single-threaded runtime (tests): `block_in_place` would panic, there is no other thread.
        Ok(_) | Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_hangs_is_abandoned_after_its_timeout_and_others_go_on() {
        let (release, held) = mpsc::channel::<()>();
        let limit = Duration::from_millis(50);
        let hung = within(limit, move || held.recv().is_ok()).await;
        assert_eq!(hung, Err(Error::TimedOut(limit)));
        assert_eq!(within(LIMIT, || 7).await, Ok(7));
        drop(release);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn blocking_work_in_place_does_not_block_the_only_worker() {
        let (done, heard) = mpsc::channel();
        let other = tokio::spawn(async move { done.send(7) });
        assert_eq!(in_place(|| heard.recv()), Ok(7));
        other.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_returned_as_an_error() {
        assert_eq!(within::<()>(LIMIT, || panic!("on purpose")).await, Err(Error::Panicked));
    }
}
