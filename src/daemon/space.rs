//! Disk quota: how much the storage directory takes (`storage.max_bytes`), and how much its disk has left. Warnings
//! come before the limit; beyond it nothing is launched any more, while runs under way go on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config;
use crate::supervisor::StorageOverrun;

/// Warnings begin at nine tenths of the limit: the limit less a tenth.
const WARNING_DIVISOR: u64 = 10;

/// The result of one measurement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) warnings: Vec<String>,
    /// Nothing is to be launched.
    pub(super) overfull: Option<StorageOverrun>,
}

impl Space {
    pub(super) fn look(home: &Path, config: &config::Storage) -> Space {
        // The directory is only walked when there is a limit: it is done every few seconds.
        let used = config.max_bytes.map(|_| used(home)).unwrap_or(0);
        Space::of(home, config, free(home), used)
    }

    fn of(home: &Path, config: &config::Storage, free: Option<u64>, used: u64) -> Space {
        let mut space = Space::default();
        if let (Some(least), Some(free)) = (config.warn_free_bytes, free)
            && free < least
        {
            space.warnings.push(format!(
                "the disk of `{}` has only {} MiB left; free some space, or `asyncagents prune` old \
                 tasks: when it is full, nothing can be launched and runs wait",
                home.display(),
                free >> 20
            ));
        }
        let Some(most) = config.max_bytes else { return space };
        if used > most {
            let overfull = StorageOverrun { used, most };
            space.warnings.push(overfull.to_string());
            space.overfull = Some(overfull);
        } else if used > most - most / WARNING_DIVISOR {
            space.warnings.push(format!(
                "the storage directory holds {} MiB of the {} MiB that `storage.max_bytes` allows; \
                 `asyncagents prune` makes room",
                used >> 20,
                most >> 20
            ));
        }
        space
    }
}

/// Bytes that this user can still write there, without the reserve of root (`f_bavail`).
fn free(home: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(home).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The size of all files below, without following links. Files that vanish during the walk are skipped.
fn used(home: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => bytes += metadata.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_disk_or_a_directory_that_fills_up_is_warned_about_before_it_is_full() {
        let check = |least: u64, most: u64, free: u64, used: u64, expected: &[&str]| {
            let limit = |bytes: u64| Some(bytes * MIB).filter(|bytes| *bytes > 0);
            let config = config::Storage { warn_free_bytes: limit(least), max_bytes: limit(most) };
            let space = Space::of(Path::new("/home"), &config, Some(free * MIB), used * MIB);
            assert_eq!(space.warnings, expected);
            assert_eq!(space.overfull.is_some(), most > 0 && used > most);
        };
        let full = "the disk of `/home` has only 9 MiB left; free some space, or `asyncagents prune` \
                    old tasks: when it is full, nothing can be launched and runs wait";
        let nearly = "the storage directory holds 95 MiB of the 100 MiB that `storage.max_bytes` \
                      allows; `asyncagents prune` makes room";
        let over = "the storage directory holds 101 MiB, more than the 100 MiB that \
                    `storage.max_bytes` allows; `asyncagents prune` makes room, and what runs goes on";
        check(10, 0, 10, 1000, &[]);
        check(10, 0, 9, 1000, &[full]);
        check(0, 0, 0, 1000, &[]);
        check(10, 100, 10, 90, &[]);
        check(10, 100, 10, 95, &[nearly]);
        check(10, 100, 9, 101, &[full, over]);
    }

    #[test]
    fn the_used_space_counts_subfolders_and_follows_no_links() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::create_dir(path.join("output")).unwrap();
        fs::write(path.join("a"), "12345").unwrap();
        fs::write(path.join("output/b"), "123").unwrap();
        std::os::unix::fs::symlink("/", path.join("output/c")).unwrap();
        assert_eq!(used(path), 5 + 3 + 1);
        assert!(free(path).is_some_and(|free| free > 0));
    }
}
