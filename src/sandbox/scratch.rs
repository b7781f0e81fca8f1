//! Scratch directories: a session's private `/tmp` and home, created for its first command and kept from
//! one command to the next. Their size is limited only by a warning to the model: there is no portable
//! quota for a directory, and only a command of the model's can clean up.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};

use super::{Error, SessionSandbox};

impl SessionSandbox {
    pub(super) fn home(&self) -> PathBuf {
        self.scratch.join("home")
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.scratch.join("tmp")
    }

    pub(super) fn make_scratch(&self) -> Result<(), Error> {
        for path in [self.home(), self.temporary()] {
            private_directory(&path).map_err(|error| Error::Scratch {
                path: path.display().to_string(),
                why: error.to_string(),
            })?;
        }
        // The time stamp tells how long ago the last command was, for the removal of unused directories.
        // If setting it fails, the directory only seems older than it is.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::utimensat(CWD, &self.scratch, &times, AtFlags::empty());
        Ok(())
    }

    /// The limit, if the session's scratch directories hold more than that. Looks at every file, which
    /// are few in most sessions, and stops as soon as the limit is exceeded.
    pub fn is_over(&self) -> Option<u64> {
        let limit = self.sandbox.0.settings.limits.scratch;
        (limit > 0 && holds_more_than(&self.scratch, limit)).then_some(limit)
    }
}

fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Counted in blocks on the disk: a sparse file can be longer than any disk. Symlinks are not followed.
fn holds_more_than(top: &Path, limit: u64) -> bool {
    let mut used: u64 = 0;
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            used = used.saturating_add(found.blocks().saturating_mul(512));
            if used > limit {
                return true;
            }
            if found.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn scratch_space_is_measured_in_allocated_blocks_and_not_behind_links() {
        let place = tempfile::tempdir().unwrap();
        let (scratch, other) = (place.path().join("scratch"), place.path().join("other"));
        fs::create_dir_all(scratch.join("tmp/deep")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("large"), vec![1; 1 << 20]).unwrap();
        symlink(&other, scratch.join("tmp/link")).unwrap();
        File::create(scratch.join("tmp/holes")).unwrap().set_len(1 << 30).unwrap();
        assert!(!holds_more_than(&scratch, 500_000));
        fs::write(scratch.join("tmp/deep/large"), vec![1; 1 << 20]).unwrap();
        assert!(holds_more_than(&scratch, 500_000));
        assert!(!holds_more_than(&scratch, 10 << 20));
        assert!(!holds_more_than(&place.path().join("gone"), 1));
    }
}
