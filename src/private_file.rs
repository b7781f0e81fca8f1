//! A small text file that only its owner may write, replaced atomically (write a new file, `fsync`,
//! rename) under an advisory lock. Symlinks are never followed, so that another local user cannot have
//! a different file read or overwritten in its place. A crash leaves the old contents or the new ones,
//! and at worst a `.new` file that the next writer removes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::TempPath;

/// A handle to the file; nothing is held open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFile {
    path: PathBuf,
    /// Permission bits that must not be set, or the file is refused.
    forbidden: u32,
    /// In bytes; a larger file was not written by us and is refused.
    largest: usize,
}

/// The exclusive right to replace the file, until it is dropped. A read-modify-write must read after
/// taking it; a plain read needs no lock, because the file is only ever replaced as a whole.
pub struct Lock<'a> {
    file: &'a PrivateFile,
    _held: File,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other users have permissions on it that they must not have.
    #[error("others have permissions on it")]
    Exposed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PrivateFile {
    /// For secrets: group and others have no permission at all.
    pub fn secret(path: PathBuf, largest: usize) -> PrivateFile {
        PrivateFile { path, forbidden: 0o077, largest }
    }

    /// For settings: group and others may read it, but not write.
    pub fn own(path: PathBuf, largest: usize) -> PrivateFile {
        PrivateFile { path, forbidden: 0o022, largest }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None`: there is no such file.
    pub fn read(&self) -> Result<Option<String>, Error> {
        // Opening a FIFO without a writer would block for ever.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // Asked of the open file, not of the path, which may name something else by now.
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file").into());
        }
        if metadata.permissions().mode() & self.forbidden != 0 {
            return Err(Error::Exposed);
        }
        let mut text = String::new();
        file.take(self.largest as u64 + 1).read_to_string(&mut text)?;
        if text.len() > self.largest {
            return Err(io::Error::other("it is too large").into());
        }
        Ok(Some(text))
    }

    /// Blocks until the lock is free. It is taken on a separate `.lock` file: the file itself is another
    /// inode after every change, so two writers could each lock a different one.
    pub fn lock(&self) -> io::Result<Lock<'_>> {
        let held = private().create(true).open(self.path.with_extension("lock"))?;
        held.lock()?;
        Ok(Lock { file: self, _held: held })
    }
}

impl Lock<'_> {
    /// Replaces the whole contents; readers see the old ones or the new ones.
    pub fn replace(&self, text: &str) -> io::Result<()> {
        let path = &self.file.path;
        replace(path, &path.with_extension("new"), text, File::sync_all)
    }
}

/// Replaces a file whole or not at all, by way of a new one beside it that its owner alone may open until
/// `finish` is done with it. Whether the text is on disk before the old one goes is for `finish` to say.
///
/// The new one has a name that is known: what a process that was killed has left there is removed by the
/// next one, and stays among the names that may be in a storage directory.
pub fn replace(
    path: &Path,
    new: &Path,
    text: &str,
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let _ = fs::remove_file(new);
    let mut file = private().create_new(true).open(new)?;
    // From here on it is removed should anything fail.
    let new = TempPath::try_from_path(new)?;
    file.write_all(text.as_bytes())?;
    finish(&file)?;
    Ok(new.persist(path)?)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Home {
        directory: tempfile::TempDir,
        file: PrivateFile,
    }

    impl Home {
        fn new() -> Home {
            let directory = tempfile::tempdir().unwrap();
            let file = PrivateFile::secret(directory.path().join("kept.json"), 100);
            Home { directory, file }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, text: &str) -> io::Result<()> {
            self.file.lock()?.replace(text)
        }

        fn read_error(&self) -> String {
            self.file.read().unwrap_err().to_string()
        }
    }

    #[test]
    fn a_private_file_is_written_for_its_owner_only_and_not_used_once_others_have_access() {
        let home = Home::new();
        assert_eq!(home.file.read().unwrap(), None);
        fs::write(home.path("kept.new"), "left in the middle").unwrap();
        home.write("one").unwrap();
        assert_eq!(home.file.read().unwrap().as_deref(), Some("one"));
        for name in ["kept.json", "kept.lock"] {
            let mode = fs::metadata(home.path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert!(!home.path("kept.new").exists());
        let own = PrivateFile::own(home.path("kept.json"), 100);
        for (mode, secret, others_write) in [
            (0o600, false, false),
            (0o640, true, false),
            (0o604, true, false),
            (0o620, true, true),
            (0o602, true, true),
        ] {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(home.path("kept.json"), permissions).unwrap();
            let exposed = |file: &PrivateFile| matches!(file.read(), Err(Error::Exposed));
            assert_eq!((exposed(&home.file), exposed(&own)), (secret, others_write), "{mode:o}");
        }
    }

    #[test]
    fn a_private_file_follows_no_link_and_reads_only_small_regular_files() {
        let home = Home::new();
        fs::write(home.path("other"), "of somebody else").unwrap();
        fs::set_permissions(home.path("other"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(home.path("other"), home.path("kept.json")).unwrap();
        let loops = io::Error::from(rustix::io::Errno::LOOP).to_string();
        assert_eq!(home.read_error(), loops);
        symlink(home.path("other"), home.path("kept.new")).unwrap();
        home.write("ours").unwrap();
        assert_eq!(home.file.read().unwrap().as_deref(), Some("ours"), "instead of the link");
        fs::remove_file(home.path("kept.lock")).unwrap();
        symlink(home.path("other"), home.path("kept.lock")).unwrap();
        assert_eq!(home.write("theirs").unwrap_err().to_string(), loops);
        assert_eq!(fs::read_to_string(home.path("other")).unwrap(), "of somebody else");
        fs::write(home.path("kept.json"), "x".repeat(101)).unwrap();
        assert_eq!(home.read_error(), "it is too large");
        fs::remove_file(home.path("kept.json")).unwrap();
        fs::create_dir(home.path("kept.json")).unwrap();
        assert_eq!(home.read_error(), "it is not a file");
    }

    #[test]
    fn a_change_that_fails_leaves_the_old_text_and_nothing_beside_it() {
        let home = Home::new();
        home.write("old").unwrap();
        let (file, new) = (home.path("kept.json"), home.path("kept.new"));
        let full = |_: &File| Err(io::Error::from(io::ErrorKind::StorageFull));
        let failed = replace(&file, &new, "half", full).unwrap_err();
        assert_eq!((failed.kind(), new.exists()), (io::ErrorKind::StorageFull, false));
        assert_eq!(home.file.read().unwrap().as_deref(), Some("old"));
        fs::create_dir(home.path("folder")).unwrap();
        replace(&home.path("folder"), &new, "text", |_| Ok(())).unwrap_err();
        assert!(!new.exists());
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let home = Home::new();
        let add = || {
            let lock = home.file.lock().unwrap();
            let text = home.file.read().unwrap().unwrap_or_default();
            lock.replace(&format!("{text}x")).unwrap();
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| add()));
            }
        });
        assert_eq!(home.file.read().unwrap(), Some("x".repeat(20)));
        let held = home.file.lock().unwrap();
        let lock = || File::open(home.path("kept.lock")).unwrap();
        assert!(lock().try_lock().is_err());
        drop(held);
        assert!(lock().try_lock().is_ok());
    }
}
