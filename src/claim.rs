//! Liveness by locks: a client holds a lock on one byte of a file, which follows from its name, for as long as it lives.
//! The kernel releases the lock however the process ends, so whether a client is still there needs no heartbeat and no
//! process id (which would be reused), and nothing is left to be removed.
//!
//! Locks of open file descriptions (`F_OFD_SETLK`), because those of processes would not tell two claims of one process
//! apart, and would be gone as soon as it closes the file anywhere.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::task::id::fingerprint;

/// In the storage directory. It stays empty.
const FILE: &str = "clients.lock";

/// A name, held until this is dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    byte: i64,
}

impl Claim {
    /// Claims a name. Fails with `ResourceBusy` while another process, or this one, holds it.
    pub fn hold(home: &Path, name: &str) -> io::Result<Claim> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = home.join(FILE);
        let opened = options.open(&file).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(home)?;
                options.open(&file)
            }
            _ => Err(error),
        })?;
        let claim = Claim { file: opened, byte: byte_of(name) };
        match system::lock(&claim.file, claim.byte)? {
            true => Ok(claim),
            false => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

/// Unlocked before the file is closed: a process that this one is just starting has it open, too, until it executes its
/// program.
impl Drop for Claim {
    fn drop(&mut self) {
        let _ = system::unlock(&self.file, self.byte);
    }
}

/// Whether a living process holds the name.
pub fn is_held(home: &Path, name: &str) -> bool {
    // When in doubt the name counts as held, so nothing is taken away from a client that may be alive.
    let file = match File::options().read(true).write(true).open(home.join(FILE)) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    system::is_locked(&file, byte_of(name)).unwrap_or(true)
}

/// Two names share a byte once in four billion pairs; [`Claim::hold`] then refuses the second client.
fn byte_of(name: &str) -> i64 {
    fingerprint(&[name]).into()
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io;

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, c_int, c_short, flock};

    /// `false` while another open file has it.
    pub(super) fn lock(file: &File, byte: i64) -> io::Result<bool> {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&of_type(F_WRLCK, byte))) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unlock(file: &File, byte: i64) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&of_type(F_UNLCK, byte)))?;
        Ok(())
    }

    pub(super) fn is_locked(file: &File, byte: i64) -> io::Result<bool> {
        let mut lock = of_type(F_WRLCK, byte);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(lock.l_type != F_UNLCK as c_short)
    }

    fn of_type(l_type: c_int, byte: i64) -> flock {
        let (l_type, l_whence) = (l_type as c_short, SEEK_SET as c_short);
        flock { l_type, l_whence, l_start: byte, l_len: 1, l_pid: 0 }
    }
}

/// Without such locks no client can be known to be gone, so none inherits from another.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;
    use std::io;

    pub(super) fn lock(_: &File, _: i64) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn unlock(_: &File, _: i64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn is_locked(_: &File, _: i64) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_is_claimed_by_one_holder_until_it_drops_the_claim() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("not there yet");
        assert!(!is_held(&home, "one"));
        let claim = Claim::hold(&home, "one").unwrap();
        let other = Claim::hold(&home, "two").unwrap();
        assert!(is_held(&home, "one"));
        assert!(!is_held(&home, "three"));
        let busy = Claim::hold(&home, "one").unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        // To look does not take it away, and neither does the end of another claim.
        drop(other);
        assert!(is_held(&home, "one"));
        drop(claim);
        assert!(!is_held(&home, "one"));
    }

    #[test]
    fn a_child_does_not_keep_the_claim_of_its_parent() {
        let home = tempfile::tempdir().unwrap();
        let claim = Claim::hold(home.path(), "one").unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(claim);
        assert!(!is_held(home.path(), "one"));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_refused() {
        let home = tempfile::tempdir().unwrap();
        symlink("/dev/null", home.path().join(FILE)).unwrap();
        assert!(Claim::hold(home.path(), "one").is_err());
    }
}
