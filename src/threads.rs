//! Work that may block, on threads of its own and with a time limit. A file system can hang for ever
//! (a network mount whose server is gone), and a thread that waits for it cannot be stopped: the
//! caller gets its answer in time, and the thread is given up.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// How long a look at files may take where nothing else is said.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Threads that hang hold their permit, so that a dead mount can never use up all threads of the
/// runtime (512), which also compress, parse and resolve names.
static ROOM: Semaphore = Semaphore::const_new(128);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    #[error("the file system did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("internal error: it panicked")]
    Panicked,
}

/// Runs this on a thread that may block, for at most so long.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stuck> {
    let deadline = tokio::time::Instant::now() + limit;
    let Ok(Ok(permit)) = tokio::time::timeout_at(deadline, ROOM.acquire()).await else {
        return Err(Stuck::Silent(limit));
    };
    let thread = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    match tokio::time::timeout_at(deadline, thread).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(Stuck::Panicked),
        Err(_) => Err(Stuck::Silent(limit)),
    }
}

/// Runs this on a thread of the same kind, however long it takes: for work on our own disk and in
/// memory that is too long for the two threads that serve everybody.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stuck> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Stuck::Panicked)
}

/// Runs this here, and has another thread serve everybody meanwhile: for work in memory that borrows
/// what is too large to be copied for a thread of its own.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // Tests: there is no other thread.
        Ok(_) | Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_hangs_is_given_up_in_time_and_others_go_on() {
        let (release, held) = mpsc::channel::<()>();
        let limit = Duration::from_millis(50);
        let hung = within(limit, move || held.recv().is_ok()).await;
        assert_eq!(hung, Err(Stuck::Silent(limit)));
        assert_eq!(within(LIMIT, || 7).await, Ok(7));
        drop(release);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_in_place_does_not_keep_the_only_worker_from_others() {
        let (done, heard) = mpsc::channel();
        let other = tokio::spawn(async move { done.send(7) });
        assert_eq!(in_place(|| heard.recv()), Ok(7));
        other.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        assert_eq!(within::<()>(LIMIT, || panic!("on purpose")).await, Err(Stuck::Panicked));
    }
}
