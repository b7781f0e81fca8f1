//! Liveness by lock files: a client holds an advisory lock on a file with its name for as long as it
//! lives. The kernel releases the lock however the process ends, so whether a client is still there
//! needs no heartbeat and no process id (which would be reused). Files of killed processes stay behind;
//! the daemon looks every few seconds and removes them.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The directory of lock files, in the storage directory.
const FOLDER: &str = "clients";

/// Between creating its file and locking it, a claim can be taken for a leftover: [`is_held`] then has it locked for a
/// moment, and removes it. The claim starts over, this often and after such a pause.
const TRIES: usize = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// A name, held by this process until this is dropped.
#[derive(Debug)]
pub struct Claim {
    file: PathBuf,
    _lock: File,
}

impl Claim {
    /// Claims a name, which must consist of letters, digits, `-` and `_`: it becomes a file name. Fails
    /// with `ResourceBusy` while another process, or this one, holds it.
    pub fn hold(home: &Path, name: &str) -> io::Result<Claim> {
        let folder = home.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let file = folder.join(name);
        for _ in 0..TRIES {
            let mut options = File::options();
            let lock = options.write(true).create(true).truncate(false).mode(0o600).open(&file)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(BETWEEN_TRIES);
                    continue;
                }
            }
            // [`is_held`] may have removed the file between `open` and the lock. Then the lock is on an
            // unlinked inode, and the next process would create and lock another file of this name.
            let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
            if fs::metadata(&file).map(inode).ok() == Some(inode(lock.metadata()?)) {
                return Ok(Claim { file, _lock: lock });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Whether a living process holds the name. Removes the file of one that was killed.
pub fn is_held(home: &Path, name: &str) -> bool {
    let file = home.join(FOLDER).join(name);
    // When in doubt the name counts as held, so nothing is taken away from a client that may be alive.
    let lock = match File::options().write(true).open(&file) {
        Ok(lock) => lock,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let is_free = lock.try_lock().is_ok();
    if is_free {
        let _ = fs::remove_file(&file);
    }
    !is_free
}

/// Removes the files that killed processes left behind, so that they do not pile up.
pub fn tidy(home: &Path) {
    let Ok(entries) = fs::read_dir(home.join(FOLDER)) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        is_held(home, &name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_name_is_claimed_by_one_process_until_it_drops_the_claim_or_dies() {
        let home = tempfile::tempdir().unwrap();
        assert!(!is_held(home.path(), "one"));
        let claim = Claim::hold(home.path(), "one").unwrap();
        assert!(is_held(home.path(), "one"));
        assert!(!is_held(home.path(), "two"));
        let busy = Claim::hold(home.path(), "one").unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        drop(claim);
        assert!(!is_held(home.path(), "one"));
        // What a killed process leaves: an unlocked file.
        fs::write(home.path().join(FOLDER).join("killed"), "").unwrap();
        assert!(!is_held(home.path(), "killed"));
        assert!(!home.path().join(FOLDER).join("killed").exists());
    }

    /// As the daemon looks for leftovers every few seconds.
    #[test]
    fn a_name_can_be_claimed_while_leftovers_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    tidy(home.path());
                    thread::sleep(BETWEEN_TRIES);
                }
            });
            let claims = (0..500).map(|n| Claim::hold(home.path(), &format!("client-{n}")));
            let claims: io::Result<Vec<Claim>> = claims.collect();
            stop.store(true, Ordering::Relaxed);
            let claims = claims.unwrap();
            let held = (0..500).filter(|n| is_held(home.path(), &format!("client-{n}"))).count();
            assert_eq!((held, claims.len()), (500, 500));
        });
    }

    #[test]
    fn claims_of_killed_processes_are_removed_and_held_ones_stay() {
        let home = tempfile::tempdir().unwrap();
        tidy(home.path());
        let _claim = Claim::hold(home.path(), "held").unwrap();
        fs::write(home.path().join(FOLDER).join("killed"), "").unwrap();
        tidy(home.path());
        let left = fs::read_dir(home.path().join(FOLDER)).unwrap();
        let names = left.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(names, ["held"]);
    }
}
