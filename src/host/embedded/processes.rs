//! The commands of embedded agents on disk: recorded before they start, and gone before a session
//! goes on (T20).

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use super::{Embedded, broken};
use crate::clock::Clock;
use crate::host::Error;
use crate::process::{Journal, Launcher, Record, Survivors};
use crate::store::{RecordedProcess, Store};
use crate::task::SessionId;

/// Writes down what one tool call starts.
struct CallJournal {
    store: Store,
    clock: Clock,
    session: SessionId,
    call: String,
}

impl Journal for CallJournal {
    fn record(&self, record: &Record) -> BoxFuture<'static, Result<(), String>> {
        let Record { marker, pid, start, boot } = record.clone();
        let written = self.store.processes().record(RecordedProcess {
            marker,
            session: self.session.clone(),
            call: self.call.clone(),
            guard_pid: pid,
            guard_start: start,
            boot_id: boot,
            created_at: self.clock.now(),
        });
        Box::pin(async move { written.await.map_err(|error| error.to_string()) })
    }

    fn erase(&self, record: &Record) {
        // Nobody waits for this; the next run of the session would find nothing to kill.
        drop(self.store.processes().forget(record.marker.clone()));
    }
}

impl Embedded {
    pub(super) fn launcher(&self, session: &SessionId, call: &str) -> Launcher {
        let journal = CallJournal {
            store: self.0.store.clone(),
            clock: self.0.clock.clone(),
            session: session.clone(),
            call: call.to_owned(),
        };
        let setup = &self.0.setup;
        let environment = Arc::clone(&setup.environment);
        Launcher::new(setup.guard.clone(), setup.command_lease, environment, Arc::new(journal))
    }

    /// What a session's earlier commands left, after a crash or because it would not die.
    pub(super) async fn clear_processes(
        &self,
        session: &SessionId,
    ) -> Result<Result<(), Survivors>, Error> {
        let recorded = self.0.store.processes().of(session).map_err(broken)?;
        Ok(self.kill_recorded(recorded).await)
    }

    /// Kills what was recorded by an earlier daemon for sessions that nobody goes on with.
    pub(super) fn clear_processes_in_background(&self, recorded: Vec<RecordedProcess>) {
        if recorded.is_empty() {
            return;
        }
        let host = self.clone();
        tokio::spawn(async move {
            // What is left is in the log, and on record for the next start.
            let _ = host.kill_recorded(recorded).await;
        });
    }

    async fn kill_recorded(&self, recorded: Vec<RecordedProcess>) -> Result<(), Survivors> {
        let swept = join_all(recorded.into_iter().map(|process| self.kill(process))).await;
        let left: Vec<i32> = swept.into_iter().filter_map(Result::err).flat_map(|s| s.0).collect();
        if left.is_empty() { Ok(()) } else { Err(Survivors(left)) }
    }

    async fn kill(&self, process: RecordedProcess) -> Result<(), Survivors> {
        let RecordedProcess { marker, session, call, guard_pid: pid, .. } = process;
        let (start, boot) = (process.guard_start, process.boot_id);
        let record = Record { marker: marker.clone(), pid, start, boot };
        let sweep = self.0.setup.sweep;
        let swept = tokio::task::spawn_blocking(move || sweep(&record)).await;
        let swept = swept.unwrap_or(Err(Survivors(vec![pid])));
        match &swept {
            Ok(()) => {
                tracing::info!(%session, call, "command of an interrupted run is gone");
                drop(self.0.store.processes().forget(marker));
            }
            Err(Survivors(pids)) => {
                tracing::error!(%session, call, ?pids, "command cannot be killed; session blocked");
            }
        }
        swept
    }
}
