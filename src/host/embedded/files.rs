//! Files of sessions: what their commands printed at length, and their private `/tmp` and home, in a folder
//! for each session. A folder goes when its session does, which is when its task is pruned.

use std::fs;

use super::{Embedded, Setup};
use crate::task::SessionId;
use crate::threads;

impl Embedded {
    /// Now, for what a crash left between the two, and whenever tasks were pruned.
    pub(super) fn sweep_files_in_background(&self) {
        let (host, mut pruned) = (self.clone(), self.0.store.pruned());
        tokio::spawn(async move {
            loop {
                let sweeper = host.clone();
                if let Err(stuck) = threads::apart(move || sweeper.sweep_files()).await {
                    tracing::error!(%stuck, "output files of pruned tasks were left");
                }
                tokio::select! {
                    changed = pruned.changed() => if changed.is_err() { return },
                    () = host.0.stop.cancelled() => return,
                }
            }
        });
    }

    fn sweep_files(&self) {
        // The sessions of a store that was set aside may come back when that is repaired.
        if !self.0.store.set_aside().is_empty() {
            return;
        }
        let Setup { overflow, scratch, .. } = &self.0.setup;
        // Before the first long output, and the first command, there are no such folders.
        let folders = [overflow, scratch].map(|path| fs::read_dir(path).into_iter().flatten());
        for folder in folders.into_iter().flatten().flatten() {
            let name = folder.file_name().into_string().unwrap_or_default();
            if !name.starts_with("ses_") {
                continue;
            }
            // One that cannot be looked up keeps its files.
            let gone = matches!(self.0.store.session(&SessionId::new(name)), Ok(None));
            if gone && let Err(error) = fs::remove_dir_all(folder.path()) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, folder = %folder.path().display(), "output files were left");
            }
        }
    }
}
