//! The connection of a command to the daemon, with the one retry loop around all calls: when the
//! daemon goes away under a call, it is started again and the call is repeated. What a repeat must
//! not do twice carries an idempotency key.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::show;
use crate::backoff::Backoff;
use crate::client::{Client, Error};
use crate::config::Settings;
use crate::daemon::start;
use crate::quote;

/// So often in a row a call is made. A daemon that dies each time dies of the call.
const TRIES: u32 = 10;

/// A daemon that served a call for this long was well; its end counts as the first in a row.
const STEADY: Duration = Duration::from_millis(500);

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(500) };

/// How long an answer may take beyond the time a call waits, before the daemon counts as frozen.
const GRACE: Duration = Duration::from_secs(2);

/// What a daemon that was just started may not have found out yet is asked for this long.
const SETTLING: Duration = Duration::from_secs(5);

pub(super) struct Connection<'a> {
    settings: &'a Settings,
    client: Client,
    repeated: Cell<bool>,
}

/// For commands that only wait: they must not undo what a person did.
#[derive(Debug, thiserror::Error)]
#[error(
    "the daemon was stopped on purpose while this command waited; `asyncagents daemon start` starts \
     it again, and then its tasks go on"
)]
pub(super) struct Stopped;

#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenStopped {
    StartAgain,
    GiveUp,
}

/// Finds the daemon, or starts it, and says on standard error what is odd about it.
pub(super) async fn connect(settings: &Settings) -> anyhow::Result<Connection<'_>> {
    let start::Found { client, notes, warnings } = start::ensure(settings).await?;
    for warning in &warnings {
        show::note(&format!("warning: {}", quote::line(warning)));
    }
    for note in notes {
        show::note(&format!("note: {note}"));
    }
    Ok(Connection { settings, client, repeated: Cell::new(false) })
}

impl Connection<'_> {
    /// Makes a call that can be repeated.
    pub(super) async fn call<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        self.repeat(WhenStopped::StartAgain, call).await
    }

    /// Makes a call that waits. It ends with [`Stopped`] when the daemon is stopped on purpose.
    pub(super) async fn wait<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        self.repeat(WhenStopped::GiveUp, call).await
    }

    /// A call had to be repeated, so the first one may have done some of it.
    pub(super) fn was_repeated(&self) -> bool {
        self.repeated.get()
    }

    /// Says so with the answer of a verb that counts what it did.
    pub(super) fn note_repeat(&self) {
        if self.was_repeated() {
            show::note(
                "note: the daemon went away during the call and was asked again; what it did before \
                 is not in this answer",
            );
        }
    }

    /// Makes a call again for a while when the daemon says that there is no such thing (404): one
    /// that was started a moment ago has not looked at its hosts yet.
    pub(super) async fn call_settling<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            let error = match self.call(&call).await {
                Err(error) if has_status(&error, 404) && began.elapsed() < SETTLING => error,
                other => return other,
            };
            let health = self.call(async |client| client.health().await).await?;
            if Duration::from_secs(health.uptime) > SETTLING {
                return Err(error);
            }
            tokio::time::sleep(PAUSES.pause(tries)).await;
            tries += 1;
        }
    }

    /// The full ids of what the user typed.
    pub(super) async fn resolve(&self, ids: &[String]) -> anyhow::Result<Vec<String>> {
        let tasks = self.call(async |client| client.resolve(ids).await).await?.tasks;
        Ok(tasks.into_iter().map(|task| task.session_id).collect())
    }

    async fn repeat<T>(
        &self,
        stopped: WhenStopped,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        let mut tries = 0;
        loop {
            let began = Instant::now();
            let error = match call(&self.client).await {
                Err(error) if error.went_away() => error,
                other => return Ok(other?),
            };
            // Only of calls that wait: another one that takes so long may be what the daemon dies of.
            if stopped == WhenStopped::GiveUp && began.elapsed() > STEADY {
                tries = 0;
            }
            tries += 1;
            if tries == TRIES {
                return Err(error.into());
            }
            if stopped == WhenStopped::GiveUp && start::was_stopped(&self.settings.home) {
                return Err(Stopped.into());
            }
            self.repeated.set(true);
            start::ensure(self.settings).await?;
            tokio::time::sleep(PAUSES.pause(tries - 1)).await;
        }
    }
}

/// Keeps a time limit also when the daemon does not: one that is frozen (SIGSTOP) answers nothing.
/// `None` when the time is up.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let Some(limit) = limit else { return work.await.map(Some) };
    match tokio::time::timeout(limit.saturating_add(GRACE), work).await {
        Ok(done) => done.map(Some),
        Err(_) => {
            show::note(
                "the daemon does not answer; `asyncagents daemon status` tells whether it runs",
            );
            Ok(None)
        }
    }
}

/// Whether the daemon refused a call with this status.
pub(super) fn has_status(error: &anyhow::Error, status: u16) -> bool {
    match error.downcast_ref() {
        Some(Error::Refused(view)) => view.status == status,
        Some(
            Error::NotRunning(_)
            | Error::Broken(_)
            | Error::CutOff
            | Error::TimedOut
            | Error::Incompatible(_)
            | Error::Unreadable { .. },
        )
        | None => false,
    }
}
