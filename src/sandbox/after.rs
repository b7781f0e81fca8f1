//! What is put right after a command, for what cannot be mounted over: protected paths that were not
//! there, and links. This happens outside the sandbox, so it follows no link that the command has made:
//! directories are opened one name after the other, and have to be those that were planned with.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Tidied;
use super::remove::{ENTRY, PASS, enter, insist, is_directory, pass, remove_entry};

/// Device and inode: which directory it is, whatever its name.
pub(super) type Identity = (rustix::fs::Dev, u64);

/// A directory that commands can neither rename nor replace, the workspace or a git directory outside of
/// it, as it was when a command was planned. Everything is reached from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Anchor {
    path: PathBuf,
    identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Afterwards {
    /// Was not there, and is not to be there.
    Remove { anchor: Anchor, below: PathBuf },
    /// Was a link in this very directory, and is to be the same one.
    Relink { anchor: Anchor, below: PathBuf, parent: Identity, target: PathBuf },
}

impl Anchor {
    /// `path` must be absolute and free of links.
    pub(super) fn at(path: &Path) -> io::Result<Anchor> {
        Ok(Anchor { path: path.to_owned(), identity: identity(&open(path)?)? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a file a new time. Git writes `gitdir` of a worktree anew when that is a day old, and gives
    /// up where it cannot.
    pub(super) fn refresh(&self, path: &Path) {
        let Ok(below) = path.strip_prefix(&self.path) else { return };
        let Ok((directory, name)) = self.parent(below) else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::utimensat(&directory, name, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// That `path` is not to be there afterwards.
    pub(super) fn without(&self, path: &Path) -> Option<Afterwards> {
        let below = path.strip_prefix(&self.path).ok()?.to_owned();
        Some(Afterwards::Remove { anchor: self.clone(), below })
    }

    /// That `path` is to be the link that it is now, if it is one.
    pub(super) fn with_link(&self, path: &Path) -> Option<Afterwards> {
        let below = path.strip_prefix(&self.path).ok()?;
        let (directory, name) = self.parent(below).ok()?;
        let target = read_link(&directory, name)?;
        let parent = identity(&directory).ok()?;
        let (anchor, below) = (self.clone(), below.to_owned());
        Some(Afterwards::Relink { anchor, below, parent, target })
    }

    /// The directory that `below` is in, and its name there.
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

/// What had to be put right. Most of them share one anchor, which is opened once: for every command that
/// is most of the work.
pub(super) fn put_right(all: &[Afterwards]) -> Vec<Tidied> {
    let mut opened: Option<(&Anchor, OwnedFd)> = None;
    let mut changed = Vec::new();
    for one in all {
        let (Afterwards::Remove { anchor, below } | Afterwards::Relink { anchor, below, .. }) = one;
        if opened.as_ref().is_none_or(|(known, _)| *known != anchor) {
            opened = anchor.open().ok().map(|directory| (anchor, directory));
        }
        let Some((_, directory)) = &opened else { continue };
        let (found, left) = match one.put_right(directory) {
            Ok(Some(found)) => (found, None),
            Ok(None) => continue,
            // Nothing is there, or not the directory that was planned with.
            Err(error) if is_absence(&error) => continue,
            Err(error) => (below.clone(), Some(error.to_string())),
        };
        changed.push(Tidied { path: anchor.path.join(found).display().to_string(), left });
    }
    changed
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

impl Afterwards {
    /// What there was, below the anchor.
    fn put_right(&self, opened: &OwnedFd) -> io::Result<Option<PathBuf>> {
        match self {
            Afterwards::Remove { below, .. } => remove(opened, below),
            Afterwards::Relink { below, parent, target, .. } => {
                let (directory, name) = parent_of(opened.try_clone()?, below, enter)?;
                // Another directory of that name is the command's, and so is what is in it.
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

/// What is at a path without any link in it, without opening it for reading.
pub(super) fn open_entry(path: &Path) -> io::Result<OwnedFd> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
    let opened = rustix::fs::openat(&open(parent)?, name, ENTRY, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(ErrorKind::NotFound.into()),
        _ => Ok(opened),
    }
}

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

/// Removes what is at `below`, or the link on the way to it, and says which: a name that leads elsewhere
/// must not have us delete something there.
fn remove(anchor: &OwnedFd, below: &Path) -> io::Result<Option<PathBuf>> {
    let mut entered: Option<OwnedFd> = None;
    let mut passed = PathBuf::new();
    let mut names = below.iter().peekable();
    while let Some(name) = names.next() {
        passed.push(name);
        let directory = entered.as_ref().unwrap_or(anchor);
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

    fn put_back(path: &Path) -> Tidied {
        Tidied { path: path.display().to_string(), left: None }
    }

    #[test]
    fn what_a_command_made_is_removed_and_nothing_that_its_links_lead_to() {
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
            let removed: Vec<Tidied> =
                removed.iter().map(|path| put_back(&root.join(path))).collect();
            assert_eq!(put_right(&[after]), removed);
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
        assert_eq!(put_right(&after), [] as [Tidied; 0]);
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("agents")).unwrap();
        assert_eq!(put_right(&after), [put_back(&path)]);
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
    }

    #[test]
    fn nothing_is_put_right_in_a_directory_that_the_command_has_put_there() {
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
            assert_eq!(put_right(&[relink]), [] as [Tidied; 0]);
            // Not through the link, at most the link itself.
            put_right(&[remove]);
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
