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

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::task::id::fingerprint;

/// In the storage directory. It stays empty.
pub const FILE: &str = "clients.lock";

/// A name, held until this is dropped.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

impl Claim {
    /// Claims a name. Fails with `ResourceBusy` while another process, or this one, holds it.
    pub fn hold(home: &Path, name: &str) -> io::Result<Claim> {
        DirBuilder::new().recursive(true).mode(0o700).create(home)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.custom_flags(libc::O_NOFOLLOW).open(home.join(FILE))?;
        match fcntl(&lock, FcntlArg::F_OFD_SETLK(&byte_of(name))) {
            Ok(_) => Ok(Claim { _lock: lock }),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(io::ErrorKind::ResourceBusy.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a living process holds the name.
pub fn is_held(home: &Path, name: &str) -> bool {
    // When in doubt the name counts as held, so nothing is taken away from a client that may be alive.
    let file = match File::options().read(true).write(true).open(home.join(FILE)) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let mut lock = byte_of(name);
    match fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)) {
        Ok(_) => lock.l_type != libc::F_UNLCK as libc::c_short,
        Err(_) => true,
    }
}

/// A write lock on the byte of a name. Two of four thousand million names that share one are not worth a list: the
/// second client is told so by [`Claim::hold`].
fn byte_of(name: &str) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: fingerprint(&[name]).into(),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_is_claimed_by_one_holder_until_it_drops_the_claim() {
        let home = tempfile::tempdir().unwrap();
        assert!(!is_held(home.path(), "one"));
        let claim = Claim::hold(home.path(), "one").unwrap();
        let other = Claim::hold(home.path(), "two").unwrap();
        assert!(is_held(home.path(), "one"));
        assert!(!is_held(home.path(), "three"));
        let busy = Claim::hold(home.path(), "one").unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        // To look does not take it away, and neither does the end of another claim.
        drop(other);
        assert!(is_held(home.path(), "one"));
        drop(claim);
        assert!(!is_held(home.path(), "one"));
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
