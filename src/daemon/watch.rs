//! The watchdog of the storage directory: every few seconds it checks for what happens to it from outside. It
//! publishes warnings (disk space, damaged stores that were set aside), and stops the daemon when the directory was
//! deleted or replaced: its lock no longer excludes others, and another daemon may be at work under the same path.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::home::LockIdentity;
use super::space::Space;
use crate::config;
use crate::http::{SET_ASIDE, Warnings};
use crate::store::Store;
use crate::supervisor::Supervisor;

const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// What the watchdog looks at, and where it reports.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) supervisor: Supervisor,
    pub(super) store: Store,
    pub(super) home: PathBuf,
    pub(super) place: LockIdentity,
    pub(super) storage: config::Storage,
    pub(super) warnings: Warnings,
}

impl Watch {
    /// Runs until the daemon stops, or has to.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let watch = self.clone();
            // On a thread that may block: a file system that hangs holds up this look, and nothing else. A look
            // that panicked says nothing about the directory.
            let ours = tokio::task::spawn_blocking(move || watch.look()).await.unwrap_or(true);
            if !ours {
                let home = self.home.display();
                tracing::error!(%home, "storage directory deleted or replaced; the daemon stops");
                stop.cancel();
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// `false`: the directory is not ours any more.
    pub(super) fn look(&self) -> bool {
        if !self.place.is_ours() {
            return false;
        }
        let kept = |file: &PathBuf| {
            format!(
                "the task store was damaged; it was kept as `{}` and a new one was started; move \
                 or delete that file to clear this warning",
                file.display()
            )
        };
        let set_aside = self.store.integrity().set_aside();
        self.warnings.put(SET_ASIDE, set_aside.iter().map(kept).collect());
        let space = Space::look(&self.home, &self.storage);
        self.warnings.put("space", space.warnings);
        self.supervisor.set_overfull(space.overfull);
        true
    }
}
