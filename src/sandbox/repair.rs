//! Repairs after a command, for protected paths that cannot be mounted over: those that did not exist
//! before (what the command created there is removed) and symlinks (put back as they were). This runs
//! outside the sandbox with the user's full rights, so it must not follow a symlink that the command
//! made: directories are opened one name at a time with `O_NOFOLLOW`, and must have the inode they had
//! when the command was planned. Otherwise a command could have us delete a file elsewhere.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::RepairOutcome;
use super::remove::{ENTRY, PASS, enter, insist, is_directory, pass, remove_entry};

/// Device and inode: which directory it is, whatever its name.
pub(super) type Identity = (rustix::fs::Dev, u64);

/// A directory that commands can neither rename nor replace (the workspace, or a git directory outside
/// of it), as it was when the command was planned. All paths are opened relative to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Anchor {
    path: PathBuf,
    identity: Identity,
}

/// One thing to check, and if necessary to undo, after a command. Serialized into the guard's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Repair {
    /// The path did not exist and must not exist afterwards.
    Remove { anchor: Anchor, below: PathBuf },
    /// The path was a symlink in this very directory and must be the same one afterwards.
    Relink { anchor: Anchor, below: PathBuf, parent: Identity, target: PathBuf },
}

impl Anchor {
    /// `path` must be absolute and canonical.
    pub(super) fn at(path: &Path) -> io::Result<Anchor> {
        Ok(Anchor { path: path.to_owned(), identity: identity(&open(path)?)? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Updates the time stamps of a file. Git rewrites a worktree's `gitdir` when it is a day old, and
    /// fails if it cannot, as in a sandbox where the file is mounted read-only.
    pub(super) fn refresh(&self, path: &Path) {
        let Ok(below) = path.strip_prefix(&self.path) else { return };
        let Ok((directory, name)) = self.parent(below) else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::utimensat(&directory, name, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// A repair that removes `path` afterwards.
    pub(super) fn without(&self, path: &Path) -> Option<Repair> {
        let below = path.strip_prefix(&self.path).ok()?.to_owned();
        Some(Repair::Remove { anchor: self.clone(), below })
    }

    /// A repair that restores the symlink at `path`; `None` if it is not one now.
    pub(super) fn with_link(&self, path: &Path) -> Option<Repair> {
        let below = path.strip_prefix(&self.path).ok()?;
        let (directory, name) = self.parent(below).ok()?;
        let target = read_link(&directory, name)?;
        let parent = identity(&directory).ok()?;
        let (anchor, below) = (self.clone(), below.to_owned());
        Some(Repair::Relink { anchor, below, parent, target })
    }

    /// Opens the directory that `below` is in, and returns its name there.
    pub(super) fn parent<'a>(&self, below: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        parent_of(self.open()?, below, pass)
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let directory = open(&self.path)?;
        match identity(&directory)? == self.identity {
            true => Ok(directory),
            false => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// Carries out all repairs and returns those that changed something or failed. Most share one anchor,
/// which is kept open between them: opening it is most of the work, and this runs after every command.
pub(super) fn apply(all: &[Repair]) -> Vec<RepairOutcome> {
    let mut opened: Option<(&Anchor, OwnedFd)> = None;
    let mut changed = Vec::new();
    for one in all {
        let (Repair::Remove { anchor, below } | Repair::Relink { anchor, below, .. }) = one;
        if opened.as_ref().is_none_or(|(known, _)| *known != anchor) {
            opened = anchor.open().ok().map(|directory| (anchor, directory));
        }
        // The anchor is gone or another directory took its place: nothing below it is ours to repair.
        let Some((_, directory)) = &opened else { continue };
        let (found, failure) = match one.apply(directory) {
            Ok(Some(found)) => (found, None),
            Ok(None) => continue,
            // Nothing is there, or it is not the directory that was planned with: not ours to touch.
            Err(error) if is_absence(&error) => continue,
            Err(error) => (below.clone(), Some(error.to_string())),
        };
        changed
            .push(RepairOutcome { path: anchor.path.join(found).display().to_string(), failure });
    }
    changed
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

impl Repair {
    /// The path below the anchor that was removed or relinked; `None` if it was as it should be.
    fn apply(&self, opened: &OwnedFd) -> io::Result<Option<PathBuf>> {
        match self {
            Repair::Remove { below, .. } => remove(opened, below),
            Repair::Relink { below, parent, target, .. } => {
                let (directory, name) = parent_of(opened.try_clone()?, below, enter)?;
                // Another directory under that name was made by the command: what is in it is the
                // command's own, and not where the link was.
                if identity(&directory)? != *parent
                    || read_link(&directory, name).as_ref() == Some(target)
                {
                    return Ok(None);
                }
                match remove_entry(&directory, name) {
                    Err(error) if !is_absence(&error) => return Err(error),
                    Ok(()) | Err(_) => {}
                }
                insist(&directory, || rustix::fs::symlinkat(target, &directory, name))?;
                Ok(Some(below.clone()))
            }
        }
    }
}

/// Opens what is at a path, following no symlink anywhere in it. The descriptor is good for `fstat` and
/// the like, not for reading (`O_PATH`).
pub(super) fn open_entry(path: &Path) -> io::Result<OwnedFd> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
    let opened = rustix::fs::openat(&open(parent)?, name, ENTRY, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(ErrorKind::NotFound.into()),
        _ => Ok(opened),
    }
}

/// Opens the directory that contains `below`, one component at a time.
fn parent_of(
    anchor: OwnedFd,
    below: &Path,
    step: fn(&OwnedFd, &OsStr) -> Result<OwnedFd, Errno>,
) -> io::Result<(OwnedFd, &OsStr)> {
    let (parent, name) = below.parent().zip(below.file_name()).ok_or(ErrorKind::InvalidInput)?;
    Ok((parent.iter().try_fold(anchor, |directory, name| step(&directory, name))?, name))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let mut directory = rustix::fs::open("/", PASS, Mode::empty())?;
    for name in path.iter().skip(1) {
        directory = rustix::fs::openat(&directory, name, PASS, Mode::empty())?;
    }
    Ok(directory)
}

pub(super) fn identity(directory: &OwnedFd) -> io::Result<Identity> {
    let found = rustix::fs::fstat(directory)?;
    Ok((found.st_dev, found.st_ino))
}

fn read_link(directory: &OwnedFd, name: &OsStr) -> Option<PathBuf> {
    let target = rustix::fs::readlinkat(directory, name, Vec::new()).ok()?;
    Some(OsStr::from_bytes(target.to_bytes()).into())
}

/// Removes what is at `below`, or the first symlink or file on the way to it, and returns which. A link
/// is removed itself and never followed: it may lead to a directory of the user's.
fn remove(anchor: &OwnedFd, below: &Path) -> io::Result<Option<PathBuf>> {
    let mut entered: Option<OwnedFd> = None;
    let mut passed = PathBuf::new();
    let mut names = below.iter().peekable();
    while let Some(name) = names.next() {
        passed.push(name);
        let directory = entered.as_ref().unwrap_or(anchor);
        // The last name, a file or a symlink ends the walk: that is what gets removed.
        match is_directory(directory, name)? && names.peek().is_some() {
            true => entered = Some(enter(directory, name)?),
            false => return remove_entry(directory, name).map(|()| Some(passed)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put_back(path: &Path) -> RepairOutcome {
        RepairOutcome { path: path.display().to_string(), failure: None }
    }

    #[test]
    fn files_that_a_command_created_are_removed_and_the_targets_of_its_links_are_not() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let (root, secret) = (top.join("workspace"), top.join("secret"));
        fs::create_dir_all(secret.join("agents")).unwrap();
        fs::write(secret.join("agents/mine.md"), "mine").unwrap();
        let check = |make: &dyn Fn(&Path), removed: Option<&str>| {
            fs::create_dir_all(&root).unwrap();
            let path = root.join(".claude/agents");
            let after = Anchor::at(&root).unwrap().without(&path).unwrap();
            make(&root);
            let removed: Vec<RepairOutcome> =
                removed.iter().map(|path| put_back(&root.join(path))).collect();
            assert_eq!(apply(&[after]), removed);
            assert!(!path.exists());
            assert_eq!(fs::read_to_string(secret.join("agents/mine.md")).unwrap(), "mine");
            fs::remove_dir_all(&root).unwrap();
        };
        check(&|_| {}, None);
        check(&|root| fs::create_dir_all(root.join(".claude")).unwrap(), None);
        let made = Some(".claude/agents");
        check(&|root| fs::create_dir_all(root.join(".claude/agents/deep")).unwrap(), made);
        check(&|root| symlink(&secret, root.join(".claude")).unwrap(), Some(".claude"));
        let link = |root: &Path| {
            fs::create_dir(root.join(".claude")).unwrap();
            symlink(secret.join("agents"), root.join(".claude/agents")).unwrap();
        };
        check(&link, made);
        let file = |root: &Path| {
            fs::create_dir(root.join(".claude")).unwrap();
            fs::write(root.join(".claude/agents"), "x").unwrap();
        };
        check(&file, made);
    }

    #[test]
    fn a_link_that_was_replaced_is_put_back() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let path = top.join(".claude");
        symlink("elsewhere", &path).unwrap();
        let after = [Anchor::at(&top).unwrap().with_link(&path).unwrap()];
        assert_eq!(apply(&after), [] as [RepairOutcome; 0]);
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("agents")).unwrap();
        assert_eq!(apply(&after), [put_back(&path)]);
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
    }

    #[test]
    fn nothing_is_repaired_in_a_directory_that_the_command_swapped_in() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let (root, secret) = (top.join("workspace"), top.join("secret"));
        fs::create_dir_all(&secret).unwrap();
        fs::write(secret.join("config"), "mine").unwrap();
        let check = |swap: &dyn Fn(&Path)| {
            let fake = root.join(".git/modules/fake");
            fs::create_dir_all(&fake).unwrap();
            symlink("made-up", fake.join("config")).unwrap();
            let anchor = Anchor::at(&root).unwrap();
            let relink = anchor.with_link(&fake.join("config")).unwrap();
            let remove = anchor.without(&fake.join("config/x")).unwrap();
            swap(&fake);
            assert_eq!(apply(&[relink]), [] as [RepairOutcome; 0]);
            // Not through the link, at most the link itself.
            apply(&[remove]);
            assert_eq!(fs::read_to_string(secret.join("config")).unwrap(), "mine");
            fs::remove_dir_all(&root).unwrap();
        };
        check(&|fake| {
            fs::rename(fake, root.join("moved")).unwrap();
            symlink(&secret, fake).unwrap();
        });
        check(&|fake| {
            fs::rename(fake, root.join("moved")).unwrap();
            fs::create_dir(fake).unwrap();
        });
        check(&|_| {
            fs::rename(root.join(".git"), root.join("moved")).unwrap();
            fs::create_dir_all(top.join("other/modules")).unwrap();
            symlink(&secret, top.join("other/modules/fake")).unwrap();
            symlink(top.join("other"), root.join(".git")).unwrap();
        });
        // The workspace itself was replaced.
        check(&|_| {
            fs::rename(&root, top.join("moved")).unwrap();
            fs::create_dir_all(&root).unwrap();
        });
    }
}
