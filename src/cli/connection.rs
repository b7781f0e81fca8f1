//! The connection of a command to the daemon, with the one retry loop around all calls: when the daemon goes away
//! under a call, it is started again and the call is repeated, with exponential back-off.
//!
//! A repeat must not do a thing twice, and answers as the first call would have: what a command changes carries an
//! idempotency key, unless it only sets something (a paused queue, the address of a server). Commands that only wait
//! give up when a person has stopped the daemon: starting it again would undo that.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::show;
use crate::backoff::Backoff;
use crate::client::{Client, Error};
use crate::config::Settings;
use crate::daemon::start;
use crate::quote;
use crate::wire::{ErrorView, PermissionView, PermissionsView, TaskView};

/// How often in a row a call is made. A daemon that dies each time probably dies of the call.
const TRIES: u32 = 10;

/// A daemon that served a waiting call for this long was well; its end counts as the first failure again.
const STEADY: Duration = Duration::from_millis(500);

/// Back-off between repeats.
const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(500) };

/// How long an answer may take beyond the time a call waits, before the daemon counts as frozen.
const GRACE: Duration = Duration::from_secs(2);

/// How long a daemon that was just started may take to look at its hosts; until then a 404 or an
/// empty list may be premature.
const SETTLING: Duration = Duration::from_secs(5);

/// How many tasks are looked through for ids like one that is unknown, and how many of them are named.
const NEWEST: &str = "200";
const MOST_NEAR: usize = 3;

pub(super) struct Connection<'a> {
    settings: &'a Settings,
    client: Client,
    repeated: Cell<bool>,
}

/// Why a command that only waits gives up: a person has stopped the daemon, and it must not undo that.
#[derive(Debug, thiserror::Error)]
#[error(
    "the daemon was stopped on purpose while this command waited; `asyncagents daemon start` starts \
     it again, and then its tasks go on"
)]
pub(super) struct DaemonStopped;

/// What a call does when the daemon was stopped on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenStopped {
    StartAgain,
    GiveUp,
}

/// Finds the daemon, or starts it, and prints its warnings and notes on standard error.
pub(super) async fn connect(settings: &Settings) -> anyhow::Result<Connection<'_>> {
    let start::ReadyDaemon { client, notes, warnings } = start::ensure(settings).await?;
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

    /// Makes a call that waits. It ends with [`DaemonStopped`] when the daemon is stopped on purpose.
    pub(super) async fn wait<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        self.repeat(WhenStopped::GiveUp, call).await
    }

    /// Whether a call had to be repeated, so that the first attempt may have done some of it.
    pub(super) fn was_repeated(&self) -> bool {
        self.repeated.get()
    }

    /// Makes a call, and repeats it for a while on 404 if the daemon has just been started: it knows of
    /// permission requests only once it has looked at its hosts.
    pub(super) async fn call_settling<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        self.settle(call, |answer| matches!(answer, Err(error) if has_status(error, 404))).await
    }

    /// The open permission requests. That there are none may be premature when the daemon was replaced meanwhile.
    pub(super) async fn permissions(&self) -> anyhow::Result<Vec<PermissionView>> {
        let is_none = |answer: &anyhow::Result<PermissionsView>| {
            self.was_repeated() && matches!(answer, Ok(view) if view.permissions.is_empty())
        };
        Ok(self.settle(Client::permissions, is_none).await?.permissions)
    }

    async fn settle<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
        may_be_premature: impl Fn(&anyhow::Result<T>) -> bool,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            let answer = self.call(&call).await;
            if !may_be_premature(&answer) || began.elapsed() >= SETTLING {
                return answer;
            }
            // A daemon that has been up for longer has seen its hosts: then this is the answer.
            let health = self.call(async |client| client.health().await).await?;
            if Duration::from_secs(health.uptime) > SETTLING {
                return answer;
            }
            tokio::time::sleep(PAUSES.pause(tries)).await;
            tries += 1;
        }
    }

    /// The full ids of what the user typed.
    pub(super) async fn resolve(&self, ids: &[String]) -> anyhow::Result<Vec<String>> {
        match self.call(async |client| client.resolve(ids).await).await {
            Ok(view) => Ok(view.tasks.into_iter().map(|task| task.session_id).collect()),
            Err(error) if has_status(&error, 404) => Err(self.with_near_ids(ids, error).await),
            Err(error) => Err(error),
        }
    }

    /// Adds to the error about an unknown id the ids that look like it, of the newest tasks.
    async fn with_near_ids(&self, ids: &[String], error: anyhow::Error) -> anyhow::Error {
        let query = [("limit", NEWEST.to_owned())];
        let Ok(page) = self.call(async |client| client.tasks(&query).await).await else {
            return error;
        };
        // Which of them is unknown stands in the error.
        let text = error.to_string();
        let is_meant = |id: &&String| text.contains(&format!("`{}`", id.trim()));
        let unknown = ids.iter().find(is_meant).map(|id| id.trim());
        let near: Vec<String> = page
            .tasks
            .iter()
            .filter(|task| unknown.is_some_and(|unknown| is_near(unknown, task)))
            .take(MOST_NEAR)
            .map(|task| format!("{} {}", task.short_id, quote::literal(&task.description)))
            .collect();
        match near.is_empty() {
            true => error,
            false => {
                let error = format!("{text}; did you mean {}?", near.join(" or "));
                Error::Refused(ErrorView { error, status: 404 }).into()
            }
        }
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
            // Only for calls that wait. Another call that has taken this long when the daemon dies may be what
            // it dies of, and has to count.
            if stopped == WhenStopped::GiveUp && began.elapsed() > STEADY {
                tries = 0;
            }
            tries += 1;
            if tries == TRIES {
                return Err(error.into());
            }
            // `daemon stop` leaves its mark before it says goodbye, so it is there when the connection breaks.
            // Without this check a command that only waits would start the daemon again that a person has just stopped.
            if stopped == WhenStopped::GiveUp && start::was_stopped(&self.settings.home) {
                return Err(DaemonStopped.into());
            }
            // The pause comes after the daemon answers again: a call that kills it must not be repeated at once.
            self.repeated.set(true);
            start::ensure(self.settings).await?;
            tokio::time::sleep(PAUSES.pause(tries - 1)).await;
        }
    }
}

/// Whether one of the task's ids begins with what was typed, or differs from it by at most two typing errors: a letter
/// wrong, missing or too many, or two swapped.
fn is_near(typed: &str, task: &TaskView) -> bool {
    const MOST_ERRORS: usize = 2;
    // Of two short texts everything is near.
    typed.len() >= 4
        && [&task.short_id, &task.session_id]
            .into_iter()
            .any(|id| id.starts_with(typed) || strsim::osa_distance(typed, id) <= MOST_ERRORS)
}

/// Enforces a time limit on this side as well: a daemon that is frozen (SIGSTOP) accepts connections and answers
/// nothing. `None` when the time is up.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let Some(limit) = limit else { return work.await.map(Some) };
    match tokio::time::timeout(limit.saturating_add(GRACE), work).await {
        Ok(done) => done.map(Some),
        Err(_) => {
            show::note(
                "the daemon does not answer; `asyncagents daemon status` shows whether it is running",
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
