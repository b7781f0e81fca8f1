//! The watchman: looks every few seconds at what happens to the storage directory from outside, warns of
//! it, and has the daemon leave when the directory is no longer there.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::home::Place;
use super::space::Space;
use crate::config;
use crate::http::{SET_ASIDE, Warnings};
use crate::store::Store;
use crate::supervisor::Supervisor;

const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// What is looked at.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) supervisor: Supervisor,
    pub(super) store: Store,
    pub(super) home: PathBuf,
    pub(super) place: Place,
    pub(super) storage: config::Storage,
    pub(super) warnings: Warnings,
}

impl Watch {
    /// Until the daemon stops, or has to.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let watch = self.clone();
            // A file system that hangs holds up this, and nothing else.
            let ours = tokio::task::spawn_blocking(move || watch.look()).await.unwrap_or(true);
            if !ours {
                tracing::error!("storage directory was deleted or replaced; leaving");
                stop.cancel();
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(BETWEEN_LOOKS) => {}
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
                "the task store was damaged; it was kept as `{}` and a new one was begun; move or \
                 remove that file, and this is not said any more",
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
