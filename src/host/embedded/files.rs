//! Garbage collection of the files that sessions leave on disk: long command output, and the private `/tmp`
//! and home of the sandbox, in a folder for each session. A folder is removed after its session, which is
//! deleted when its task is pruned; the private folders already some days after the session's last command.
//!
//! The folder's name is the session's id, so the sweep needs no records of its own: it compares the disk
//! with the store, and what a crash leaves is found by the next sweep.

use std::fs::{self, DirEntry};
use std::time::{Duration, UNIX_EPOCH};

use super::{Embedded, Setup, TaskPresence};
use crate::sandbox;
use crate::task::{SessionId, Timestamp};
use crate::threads;

const DAY: Duration = Duration::from_secs(86_400);

/// How the names of private places begin that are about to be removed.
const ASIDE: &str = "stale-";

impl Embedded {
    /// Sweeps at the start (a crash may have come between pruning and removing), after every pruning, and
    /// once a day.
    pub(super) fn sweep_files_in_background(&self) {
        let (host, mut pruned) = (self.clone(), self.0.store.history().pruned());
        self.spawn(async move {
            loop {
                let sweeper = host.clone();
                if let Err(stuck) = threads::run_blocking(move || sweeper.sweep_files()).await {
                    tracing::error!(
                        %stuck,
                        "session file sweep failed; files of pruned tasks stay until the next one"
                    );
                }
                tokio::select! {
                    changed = pruned.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(DAY) => {}
                    () = host.0.stop.cancelled() => return,
                }
            }
        });
    }

    fn sweep_files(&self) {
        // A damaged store was replaced by an empty one. Its sessions may come back when it is repaired, so
        // "not in the store" proves nothing now.
        if !self.0.store.integrity().set_aside().is_empty() {
            return;
        }
        let Setup { overflow, scratch, .. } = &self.0.setup;
        // Neither directory exists before the first long output and the first command: no error.
        let outputs = fs::read_dir(overflow).into_iter().flatten().flatten();
        // Between two folders it gives way to a stop of the daemon, which waits for it. The next start sweeps.
        let goes_on = |_: &DirEntry| !self.0.stop.is_cancelled();
        for folder in outputs.take_while(goes_on).filter(|folder| self.is_gone(folder)) {
            remove(&folder);
        }
        let private = || fs::read_dir(scratch).into_iter().flatten().flatten();
        for folder in private().take_while(goes_on).filter(|folder| self.is_stale(folder)) {
            self.set_aside(&folder);
        }
        let is_garbage = |folder: &DirEntry| self.is_gone(folder) || is_aside(folder);
        for folder in private().take_while(goes_on).filter(is_garbage) {
            remove(&folder);
        }
    }

    /// Whether its session is deleted. One that cannot be looked up keeps its files.
    fn is_gone(&self, folder: &DirEntry) -> bool {
        session(folder).is_some_and(|id| matches!(self.0.store.sessions().get(&id), Ok(None)))
    }

    /// Whether it is old and its task over. A live task keeps its folder, also while it waits for a slot or
    /// for credentials.
    fn is_stale(&self, folder: &DirEntry) -> bool {
        let is_over = |id| {
            let task = (self.0.setup.task_lookup)(&id);
            matches!(task, Ok(TaskPresence::Ended | TaskPresence::Absent))
        };
        self.is_old(folder) && session(folder).is_some_and(is_over)
    }

    /// Renames it, which is atomic, because removing takes a while: a session that is resumed meanwhile has
    /// its folder or a new one, never half of it. What a crash leaves is removed by the next sweep.
    fn set_aside(&self, folder: &DirEntry) {
        let Some(id) = session(folder) else { return };
        let aside = folder.path().with_file_name(format!("{ASIDE}{id}"));
        // The lock is held so that no run starts between the check and the rename.
        let runs = self.runs();
        if runs.contains_key(&id) || !self.is_old(folder) {
            return;
        }
        if let Err(error) = fs::rename(folder.path(), aside) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                session = %id,
                "stale private folder not renamed; it stays until the next sweep"
            );
        }
    }

    /// By its modification time, which every command renews.
    fn is_old(&self, folder: &DirEntry) -> bool {
        let Some(age) = self.0.setup.scratch_age else { return false };
        let modified = folder.metadata().and_then(|found| found.modified()).ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        since.is_some_and(|since| Timestamp::EPOCH.plus(since) < self.0.clock.now().minus(age))
    }
}

fn session(folder: &DirEntry) -> Option<SessionId> {
    let name = folder.file_name().into_string().ok()?;
    name.starts_with("ses_").then(|| SessionId::new(name))
}

fn is_aside(folder: &DirEntry) -> bool {
    folder.file_name().to_str().is_some_and(|name| name.starts_with(ASIDE))
}

fn remove(folder: &DirEntry) {
    // Its commands may have made directories read-only, as Go does with its module cache; a plain
    // `remove_dir_all` fails on those.
    if let Err(error) = sandbox::remove_all(&folder.path()) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            folder = %folder.path().display(),
            "session folder not removed; it stays until the next sweep"
        );
    }
}
