//! The storage directory: private to the user (0700), held by one daemon through an advisory file lock, and where
//! things are in it.
//!
//! The lock goes with the process, so a crash leaves none behind; the pid in the lock file is for telling a clean stop
//! (empty) from a crash. The directory can be deleted or replaced while the daemon runs: the lock is then on a file
//! that nobody finds any more, and a second daemon could start. `LockIdentity` notices that by device and inode.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::OFlags;
use tokio::net::UnixListener;

use crate::private_file;
use crate::wire::ServerView;

/// The kernel's limit on the path of a socket, less its terminator.
const LONGEST_SOCKET_PATH: usize = 107;

/// Beginnings of the names of our files: a directory with nothing else may be closed to others.
const OURS: [&str; 9] = [
    "asyncagents.",
    "auth.",
    "clients",
    "config.toml",
    "server.json",
    "token",
    "trust.",
    "log",
    "output",
];

const SERVER: &str = "server.json";

/// A storage directory that this process holds alone, until it is dropped.
pub struct Home {
    path: PathBuf,
    /// Locked as long as it is open; it holds a process id from a start to a clean stop.
    lock: File,
    place: LockIdentity,
    left_in_a_hurry: bool,
}

/// The identity of our lock file, by path, device and inode: the directory may be deleted or replaced, and the lock
/// on a deleted file keeps nobody out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockIdentity {
    lock: PathBuf,
    device: u64,
    inode: u64,
}

impl LockIdentity {
    fn of(lock: PathBuf, file: &File) -> std::io::Result<LockIdentity> {
        let metadata = file.metadata()?;
        Ok(LockIdentity { lock, device: metadata.dev(), inode: metadata.ino() })
    }

    /// `false` only if it is certain: a file system that does not answer says nothing.
    pub(super) fn is_ours(&self) -> bool {
        match fs::metadata(&self.lock) {
            Ok(metadata) => (metadata.dev(), metadata.ino()) == (self.device, self.inode),
            Err(error) => ![ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a daemon is already running in `{0}`; `asyncagents daemon status` shows it")]
pub struct AlreadyRunning(String);

/// What a daemon has announced here; it may be gone.
pub(super) fn server(home: &Path) -> Option<ServerView> {
    serde_json::from_slice(&fs::read(home.join(SERVER)).ok()?).ok()
}

pub(super) fn socket(home: &Path) -> PathBuf {
    home.join("asyncagents.sock")
}

/// A marker file, there from a stop on purpose until the next start: a client that waits for a task would otherwise
/// start the daemon again that a person has just stopped.
fn stop_mark(home: &Path) -> PathBuf {
    home.join("asyncagents.stopped")
}

/// The last daemon here was stopped on purpose, and none was started since.
pub(super) fn was_stopped(home: &Path) -> bool {
    stop_mark(home).exists()
}

/// Writes the marker. Without it, clients that wait start the daemon again; nothing is lost.
pub(super) fn mark_stopped(home: &Path) {
    let mut options = OpenOptions::new();
    let marked = options.write(true).create(true).truncate(true).mode(0o600).open(stop_mark(home));
    if let Err(error) = marked {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "stop marker was not written; waiting clients may start a new daemon"
        );
    }
}

pub(super) fn database(home: &Path) -> PathBuf {
    home.join("asyncagents.db")
}

impl Home {
    /// Makes the directory ours alone. Fails with [`AlreadyRunning`] when another daemon has it.
    pub fn take(path: &Path) -> anyhow::Result<Home> {
        make_private(path)?;
        let file = path.join("asyncagents.lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // `O_NOFOLLOW`: the target of a planted link would be truncated and written to.
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let mut lock = options.open(&file).with_context(|| unwritable(path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(AlreadyRunning(path.display().to_string()).into());
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock `{}`", file.display()));
            }
        }
        let mut holder = String::new();
        lock.read_to_string(&mut holder).with_context(|| unwritable(path))?;
        let place = LockIdentity::of(file, &lock).with_context(|| unwritable(path))?;
        let home = Home { path: path.to_owned(), lock, place, left_in_a_hurry: !holder.is_empty() };
        home.sign(&std::process::id().to_string()).with_context(|| unwritable(path))?;
        let _ = fs::remove_file(stop_mark(path));
        Ok(home)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn database(&self) -> PathBuf {
        database(&self.path)
    }

    pub(super) fn place(&self) -> LockIdentity {
        self.place.clone()
    }

    /// The last daemon here did not stop cleanly.
    pub fn was_left_in_a_hurry(&self) -> bool {
        self.left_in_a_hurry
    }

    /// Binds the control socket. One that is there was left by a daemon that died, because we hold the lock, and
    /// would fail the bind with `EADDRINUSE`.
    pub fn bind(&self) -> anyhow::Result<UnixListener> {
        let path = socket(&self.path);
        if path.as_os_str().len() > LONGEST_SOCKET_PATH {
            anyhow::bail!(
                "the path `{}` is too long for a socket ({} bytes, at most {LONGEST_SOCKET_PATH}); \
                 set ASYNCAGENTS_HOME to a shorter one",
                path.display(),
                path.as_os_str().len()
            );
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| unwritable(&self.path));
            }
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path).with_context(|| unwritable(&self.path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Tells other programs where the status API is. Atomic (written beside and renamed): no reader sees half of it.
    pub(super) fn announce(&self, server: &ServerView) -> anyhow::Result<()> {
        let mut text = serde_json::to_string(server)?;
        text.push('\n');
        let new = self.path.join("server.json.new");
        private_file::replace(&self.path.join(SERVER), &new, &text, |_| Ok(()))
            .with_context(|| unwritable(&self.path))
    }

    /// There is no status API here, or none any more.
    pub(super) fn withdraw(&self) {
        if self.place.is_ours() {
            let _ = fs::remove_file(self.path.join(SERVER));
        }
    }

    /// A clean stop: removes the socket and empties the lock file. If another directory took the place of ours, its
    /// socket belongs to another daemon and stays.
    pub fn leave(self) {
        if self.place.is_ours() {
            let _ = fs::remove_file(socket(&self.path));
        }
        let _ = self.sign("");
    }

    /// Writes the holder's pid into the lock file, or nothing for a clean stop.
    fn sign(&self, holder: &str) -> std::io::Result<()> {
        self.lock.set_len(0)?;
        let mut lock = &self.lock;
        std::io::Seek::rewind(&mut lock)?;
        lock.write_all(holder.as_bytes())
    }
}

fn unwritable(path: &Path) -> String {
    format!(
        "cannot write in the storage directory `{}`; make it writable or set ASYNCAGENTS_HOME",
        path.display()
    )
}

/// 0700: transcripts and results are private to the user.
pub fn make_private(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| unwritable(path))?;
    let metadata = fs::metadata(path)?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    // Closing a directory that others use would break them.
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if !OURS.iter().any(|ours| name.starts_with(ours)) {
            anyhow::bail!(
                "the storage directory `{}` is open to others and holds other things (`{name}`); \
                 set ASYNCAGENTS_HOME to a directory of its own",
                path.display()
            );
        }
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).with_context(|| unwritable(path))
}
