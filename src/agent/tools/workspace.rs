//! Where an agent works, and how its files are opened. A path is freed of its symlinks, compared with
//! the workspace, and then opened one directory after the other without following any link: whatever
//! is swapped in between, nothing but the place that was compared is reached. The same on every Unix.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::Error;
use crate::text::clip;

/// The kernel follows no more than this either.
const MOST_LINKS: usize = 40;
const LONGEST_PATH: usize = 4096;
const MOST_SUGGESTIONS: usize = 3;
/// Enough to find a mistyped name, little enough for any directory.
const MOST_COMPARED: usize = 20_000;

const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// On Linux a directory that may be passed but not listed can be opened so.
#[cfg(target_os = "linux")]
const PASS: OFlags = SAFELY.union(OFlags::DIRECTORY).union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
const PASS: OFlags = SAFELY.union(OFlags::DIRECTORY);

/// A directory an agent works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    pub fn open(root: &Path) -> io::Result<Workspace> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(Workspace { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What `path` stands for now, inside or not.
    pub(super) fn place(&self, path: &str) -> Result<Place, Error> {
        if path.len() > LONGEST_PATH {
            let shown = clip(path, 80);
            return Err(Error::failed("open", &shown, "the path is too long"));
        }
        let resolved = resolve(&self.root, Path::new(path))
            .map_err(|error| Error::failed("open", path, error))?;
        Ok(Place { shown: self.show(&resolved), path: resolved })
    }

    /// Relative to the workspace where it can be.
    pub(super) fn show(&self, path: &Path) -> String {
        match path.strip_prefix(&self.root) {
            Ok(path) if path.as_os_str().is_empty() => ".".to_owned(),
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(_) => path.to_string_lossy().into_owned(),
        }
    }

    /// An error about a place, with names that were perhaps meant.
    pub(super) fn trouble(&self, doing: &'static str, place: &Place, error: io::Error) -> Error {
        let path = place.shown.clone();
        match error.kind() {
            ErrorKind::NotFound => Error::Missing { near: self.near(place), path },
            ErrorKind::IsADirectory => Error::IsDirectory { path },
            _ => Error::failed(doing, &path, error),
        }
    }

    /// Names like the first one that is missing, from the directory where it is missing.
    fn near(&self, place: &Place) -> Vec<String> {
        let Ok(below) = place.path.strip_prefix(&self.root) else { return Vec::new() };
        let mut path = self.root.clone();
        let Ok(mut directory) = open_directory(&path) else { return Vec::new() };
        for name in below {
            match enter(&directory, name) {
                Ok(next) => (directory, path) = (next, path.join(name)),
                Err(_) => return self.alike(&directory, &path, name),
            }
        }
        Vec::new()
    }

    fn alike(&self, directory: &OwnedFd, path: &Path, name: &OsStr) -> Vec<String> {
        let Ok(names) = names(directory, MOST_COMPARED) else { return Vec::new() };
        let wanted = name.to_string_lossy().to_lowercase();
        let mut near: Vec<(f64, OsString)> = names
            .into_iter()
            .map(|(name, _)| {
                let other = name.to_string_lossy().to_lowercase();
                (strsim::normalized_damerau_levenshtein(&wanted, &other), name)
            })
            .filter(|(likeness, _)| *likeness >= 0.6)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        near.truncate(MOST_SUGGESTIONS);
        near.into_iter().map(|(_, name)| self.show(&path.join(name))).collect()
    }
}

/// An absolute path without links, as it was when it was looked at. Opening it follows none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) shown: String,
}

impl Place {
    pub(super) fn directory(&self) -> io::Result<OwnedFd> {
        open_directory(&self.path)
    }

    /// Opens what is there for reading, be it a file or a directory.
    pub(super) fn open(&self) -> io::Result<File> {
        match self.target() {
            Ok(target) => target.open(OFlags::RDONLY),
            Err(error) if error.kind() == ErrorKind::IsADirectory => Ok(self.directory()?.into()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn target(&self) -> io::Result<Target> {
        let (parent, name) = self.split()?;
        Ok(Target { directory: open_directory(parent)?, name: name.to_owned() })
    }

    /// As [`Place::target`], with the directories on the way made where they are missing.
    pub(super) fn make_target(&self) -> io::Result<Target> {
        let (parent, name) = self.split()?;
        let mut directory = open_directory(Path::new("/"))?;
        for name in parent.iter().skip(1) {
            directory = match enter(&directory, name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(rustix::io::Errno::EXIST) => enter(&directory, name)?,
                        Err(error) => return Err(error.into()),
                    }
                }
                entered => entered?,
            };
        }
        Ok(Target { directory, name: name.to_owned() })
    }

    fn split(&self) -> io::Result<(&Path, &OsStr)> {
        let parts = self.path.parent().zip(self.path.file_name());
        parts.ok_or_else(|| ErrorKind::IsADirectory.into())
    }
}

/// A name in an open directory: where a file is or will be.
pub(super) struct Target {
    directory: OwnedFd,
    name: OsString,
}

impl Target {
    pub(super) fn open(&self, access: OFlags) -> io::Result<File> {
        open_file(&self.directory, &self.name, access)
    }

    /// Puts a file here, whole or not at all, with the rights of the one it replaces.
    pub(super) fn put(&self, content: &[u8], replaced: Option<&Metadata>) -> io::Result<()> {
        let (name, mut file) = self.temporary(replaced)?;
        let put = (|| {
            file.write_all(content)?;
            if let Some(replaced) = replaced {
                // Only root may give files away; whoever may not keeps what they wrote.
                let _ = fchown(&file, Some(replaced.uid()), Some(replaced.gid()));
                // New content does not inherit set-user-id, as with any write.
                file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))?;
            }
            file.sync_all()?;
            rustix::fs::renameat(&self.directory, &name, &self.directory, &self.name)
                .map_err(io::Error::from)
        })();
        if put.is_err() {
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
        }
        put
    }

    /// Nobody else may read what replaces a private file, not even for a moment.
    fn temporary(&self, replaced: Option<&Metadata>) -> io::Result<(String, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mode = Mode::from_raw_mode(if replaced.is_some() { 0o600 } else { 0o666 });
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFELY;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".asyncagents-{}-{number}.tmp", std::process::id());
            match rustix::fs::openat(&self.directory, &name, flags, mode) {
                Ok(file) => return Ok((name, file.into())),
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What an entry of a directory is, links not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Link,
    /// A pipe, a socket, a device.
    Special,
}

pub(super) fn enter(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(directory, name, PASS, Mode::empty())?)
}

/// Pipes and devices are opened without waiting for their other end; the caller looks what it is.
pub(super) fn open_file(directory: impl AsFd, name: &OsStr, access: OFlags) -> io::Result<File> {
    let flags = access | SAFELY | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// The entries of a directory, at most so many, in no order.
pub(super) fn names(directory: &OwnedFd, most: usize) -> io::Result<Vec<(OsString, Kind)>> {
    let mut names = Vec::new();
    // Opened again: what was opened to pass through cannot be read.
    let flags = SAFELY | OFlags::DIRECTORY;
    for entry in Dir::new(rustix::fs::openat(directory, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == most {
            break;
        }
        let kind = match entry.file_type() {
            // Some file systems do not say.
            FileType::Unknown => {
                match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                }
            }
            known => known,
        };
        names.push((name.to_owned(), kind.into()));
    }
    Ok(names)
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Kind {
        match kind {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::Special,
        }
    }
}

/// `path` must be absolute and free of links; one that has been put in its way is an error.
pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let start = rustix::fs::open("/", PASS, Mode::empty())?;
    path.iter().skip(1).try_fold(start, |directory, name| enter(&directory, name))
}

/// Replaces links by what they point to, missing or not. `base` must be absolute and free of links.
pub(super) fn resolve(base: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut resolved = base.to_owned();
    let mut ahead: Vec<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => resolved = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                resolved.pop();
            }
            Some(Component::Normal(name)) => {
                resolved.push(name);
                if let Ok(target) = fs::read_link(&resolved) {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(rustix::io::Errno::LOOP.into());
                    }
                    resolved.pop();
                    ahead.extend(parts(&target));
                }
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    Ok(resolved)
}

/// Last first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}
