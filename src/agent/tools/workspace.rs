//! The workspace and race-free file access in it. A path is resolved (all symlinks replaced), compared
//! with the workspace, and then opened one directory at a time with `O_NOFOLLOW`: whatever is swapped in
//! between (TOCTOU), only the place that was compared can be reached. Works the same on every Unix, so
//! without Linux's `openat2`.

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

/// As in the kernel (ELOOP).
const MOST_LINKS: usize = 40;
const LONGEST_PATH: usize = 4096;
const MOST_SUGGESTIONS: usize = 3;
/// How many names are compared with a mistyped one; keeps suggestions fast in huge directories.
const MOST_COMPARED: usize = 20_000;

const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// How a directory is opened on the way to something. With `O_PATH` on Linux, which works for directories
/// that may be passed but not listed.
#[cfg(target_os = "linux")]
const PASS: OFlags = SAFELY.union(OFlags::DIRECTORY).union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
const PASS: OFlags = SAFELY.union(OFlags::DIRECTORY);

/// The directory that an agent works in, canonical.
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

    /// Resolves a path as it is now; it may be outside of the workspace.
    pub(super) fn place(&self, path: &str) -> Result<ResolvedPath, Error> {
        if path.len() > LONGEST_PATH {
            let shown = clip(path, 80);
            return Err(Error::failed("open", &shown, "the path is too long"));
        }
        let resolved = resolve(&self.root, Path::new(path))
            .map_err(|error| Error::failed("open", path, error))?;
        Ok(ResolvedPath { shown: self.show(&resolved), path: resolved })
    }

    /// A path as it is shown to the model: relative to the workspace if it is inside.
    pub(super) fn show(&self, path: &Path) -> String {
        match path.strip_prefix(&self.root) {
            Ok(path) if path.as_os_str().is_empty() => ".".to_owned(),
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(_) => path.to_string_lossy().into_owned(),
        }
    }

    /// Makes an error about a place; a missing file comes with similar names.
    pub(super) fn trouble(
        &self,
        doing: &'static str,
        place: &ResolvedPath,
        error: io::Error,
    ) -> Error {
        let path = place.shown.clone();
        match error.kind() {
            ErrorKind::NotFound => Error::Missing { near: self.near(place), path },
            ErrorKind::IsADirectory => Error::IsDirectory { path },
            _ => Error::failed(doing, &path, error),
        }
    }

    /// Names similar to the first missing component of the path, from the directory where it is missing.
    fn near(&self, place: &ResolvedPath) -> Vec<String> {
        let Ok(below) = place.path.strip_prefix(&self.root) else { return Vec::new() };
        let mut path = self.root.clone();
        let Ok(mut directory) = open_directory(&path) else { return Vec::new() };
        // By descriptors here too: a suggestion must not reveal names outside the workspace.
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

/// An absolute path without symlinks, as it was when it was resolved. Opening it follows none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvedPath {
    pub(super) path: PathBuf,
    pub(super) shown: String,
}

impl ResolvedPath {
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

    /// Opens the parent directory.
    pub(super) fn target(&self) -> io::Result<Target> {
        let (parent, name) = self.split()?;
        Ok(Target { directory: open_directory(parent)?, name: name.to_owned() })
    }

    /// As [`ResolvedPath::target`], creating missing directories on the way.
    pub(super) fn make_target(&self) -> io::Result<Target> {
        let (parent, name) = self.split()?;
        let mut directory = open_directory(Path::new("/"))?;
        for name in parent.iter().skip(1) {
            directory = match enter(&directory, name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                        // EXIST: a parallel call was faster. `enter` refuses it if it is a symlink.
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

/// A name in an open directory: where a file is or will be created.
pub(super) struct Target {
    directory: OwnedFd,
    name: OsString,
}

impl Target {
    pub(super) fn open(&self, access: OFlags) -> io::Result<File> {
        open_file(&self.directory, &self.name, access)
    }

    /// Writes a file atomically (temporary file, `fsync`, rename), with the owner and permissions of the
    /// one it replaces.
    pub(super) fn put(&self, content: &[u8], replaced: Option<&Metadata>) -> io::Result<()> {
        let (name, mut file) = self.temporary(replaced)?;
        let put = (|| {
            file.write_all(content)?;
            if let Some(replaced) = replaced {
                // Only root may change the owner; for others this fails, and the file is theirs.
                let _ = fchown(&file, Some(replaced.uid()), Some(replaced.gid()));
                // Without set-user-id and the like: the kernel clears those on any write, too.
                file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))?;
            }
            file.sync_all()?;
            rustix::fs::renameat(&self.directory, &name, &self.directory, &self.name)
                .map_err(io::Error::from)
        })();
        // A failed write (disk full) must not leave its temporary file in the workspace.
        if put.is_err() {
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
        }
        put
    }

    /// Creates the temporary file. If it replaces another, it is private until the permissions are copied:
    /// nobody else may read the contents of a private file, not even for a moment.
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

/// Opens a file without following a symlink, and without blocking on a pipe or device; the caller checks
/// what it is.
pub(super) fn open_file(directory: impl AsFd, name: &OsStr, access: OFlags) -> io::Result<File> {
    let flags = access | SAFELY | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// The entries of a directory, at most `most`, in no particular order.
pub(super) fn names(directory: &OwnedFd, most: usize) -> io::Result<Vec<(OsString, Kind)>> {
    let mut names = Vec::new();
    // Opened again, because an `O_PATH` descriptor cannot be listed.
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
            // Some file systems leave `d_type` unset.
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

/// Opens a directory one component at a time. `path` must be absolute and resolved; a symlink that was
/// put in its way since is an error.
pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let start = rustix::fs::open("/", PASS, Mode::empty())?;
    path.iter().skip(1).try_fold(start, |directory, name| enter(&directory, name))
}

/// Replaces all symlinks in a path. Unlike `canonicalize` it works for files that do not exist (yet).
/// `base` must be absolute and resolved.
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
                // An error means that it is no symlink, or does not exist: both are kept as they are.
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

/// The components of a path, last first, as a stack.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}
