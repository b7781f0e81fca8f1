//! Write-ahead journal of the commands of embedded agents (T20): each is recorded before it starts and its
//! record erased after it has ended. What a crash leaves on record is killed before its session continues,
//! so that no two commands of one session work side by side. A record that outlives its command is
//! harmless: there is nothing to kill.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use super::{Embedded, broken};
use crate::clock::Clock;
use crate::host::Error;
use crate::process::{Journal, Launcher, Record, Survivors};
use crate::store::{RecordedProcess, Store};
use crate::task::SessionId;

/// The journal of one tool call.
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
        // Not awaited: should the erasing be lost, the next run of the session finds nothing to kill.
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
            .tracked_by(&self.0.workers)
    }

    /// Kills what a session's earlier commands left, after a crash or because it could not be killed then.
    pub(super) async fn clear_processes(
        &self,
        session: &SessionId,
    ) -> Result<Result<(), Survivors>, Error> {
        let recorded = self.0.store.processes().of(session).map_err(broken)?;
        Ok(self.kill_recorded(recorded).await)
    }

    /// Kills what an earlier daemon recorded for sessions that are not resumed.
    pub(super) fn clear_processes_in_background(&self, recorded: Vec<RecordedProcess>) {
        if recorded.is_empty() {
            return;
        }
        let host = self.clone();
        self.spawn(async move {
            // Survivors are in the log, and stay on record for the next start.
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
        // A sweep that panicked has proved nothing, so the guard counts as alive.
        let swept = swept.unwrap_or(Err(Survivors(vec![pid])));
        match &swept {
            Ok(()) => {
                tracing::info!(
                    %session,
                    call,
                    "command of an interrupted run killed or gone; record erased"
                );
                drop(self.0.store.processes().forget(marker));
            }
            Err(Survivors(pids)) => {
                tracing::error!(%session, call, ?pids, "command cannot be killed; session blocked");
            }
        }
        swept
    }
}
