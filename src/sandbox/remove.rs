//! Recursive removal of what commands have made, whatever they did to it. A directory without write or
//! search permission is first given them back (we are its owner); symlinks are never followed, because
//! everything is reached by descriptors of open directories; and nesting thousands of levels deep needs
//! neither stack nor descriptors, because directories are moved up to the top before they are emptied.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How an entry is opened: anything but a symlink. With `O_PATH` on Linux, which needs no read
/// permission: a directory may be one that can be passed and not listed.
#[cfg(target_os = "linux")]
pub(super) const ENTRY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
pub(super) const ENTRY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// How a directory is opened to reach what is in it.
pub(super) const PASS: OFlags = ENTRY.union(OFlags::DIRECTORY);

/// How often to start over when another process adds or removes entries in between.
const TRIES: usize = 3;

/// Removes a file, or a directory of ours with all that is in it.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // The parent may be reached through symlinks of the user's own; only what is removed must not be one.
    let links = PASS.difference(OFlags::NOFOLLOW);
    let opened = rustix::fs::openat(CWD, parent.unwrap_or(Path::new(".")), links, Mode::empty())?;
    remove_entry(&opened, name)
}

/// The same for an entry of a directory.
pub(super) fn remove_entry(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match remove_once(directory, name) {
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) if tries < TRIES => {
                tries += 1;
            }
            done => return Ok(done?),
        }
    }
}

fn remove_once(directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let kind = match is_directory(directory, name)? {
        true => {
            empty(&enter(directory, name)?)?;
            AtFlags::REMOVEDIR
        }
        false => AtFlags::empty(),
    };
    insist(directory, || rustix::fs::unlinkat(directory, name, kind))
}

/// Empties a directory. Subdirectories are moved up to the top before they are looked into: however deep
/// they are nested, that takes three descriptors and no recursion.
fn empty(top: &OwnedFd) -> Result<(), Errno> {
    let mut moved = 0;
    let mut left = names(top)?;
    while let Some(name) = left.pop() {
        match is_directory(top, &name) {
            Ok(true) => {}
            Ok(false) => {
                rustix::fs::unlinkat(top, &name, AtFlags::empty())?;
                continue;
            }
            // `rename` replaces an empty directory, so `move_up` may have moved another one onto this
            // name; it was handled under its own entry in the list.
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        }
        let folder = enter(top, &name)?;
        for below in names(&folder)? {
            match is_directory(&folder, &below)? {
                true => left.push(move_up(&folder, &below, top, &mut moved)?),
                false => rustix::fs::unlinkat(&folder, &below, AtFlags::empty())?,
            }
        }
        rustix::fs::unlinkat(top, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Moves a directory to a free name at the top, and returns that name.
fn move_up(
    folder: &OwnedFd,
    name: &OsStr,
    top: &OwnedFd,
    moved: &mut u64,
) -> Result<OsString, Errno> {
    // Moving a directory changes its own `..` entry, for which it must be writable itself.
    open_up(&enter(folder, name)?)?;
    loop {
        *moved += 1;
        let free = OsString::from(format!(".removed-{moved}"));
        match rustix::fs::renameat(folder, name, top, &free) {
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            done => return done.map(|()| free),
        }
    }
}

/// The names in a directory that is to be emptied; makes it readable first.
fn names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    open_up(directory)?;
    let listed = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(rustix::fs::openat(directory, ".", listed, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Opens a subdirectory, without following a symlink.
pub(super) fn pass(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, PASS, Mode::empty())
}

/// The same, also where a command has taken away the search permission of `directory`.
pub(super) fn enter(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    insist(directory, || pass(directory, name))
}

pub(super) fn is_directory(directory: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    let look = || rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    Ok(FileType::from_raw_mode(insist(directory, look)?.st_mode).is_dir())
}

/// Attempts something in a directory; if permission is denied, gives the owner's permissions back and
/// attempts it once more.
pub(super) fn insist<T>(
    directory: &OwnedFd,
    attempt: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match attempt() {
        Err(Errno::ACCESS) => {
            open_up(directory)?;
            attempt()
        }
        done => done,
    }
}

/// Gives the owner of a directory all permissions on it (`u+rwx`).
fn open_up(directory: &OwnedFd) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode);
    if mode.contains(Mode::RWXU) {
        return Ok(());
    }
    set_mode(directory, mode | Mode::RWXU)
}

/// Through `/proc/self/fd`, which leads to the directory itself: `fchmod` does not accept `O_PATH`
/// descriptors, and a directory without read permission can only be opened with `O_PATH`.
#[cfg(target_os = "linux")]
fn set_mode(directory: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), mode)
}

#[cfg(not(target_os = "linux"))]
fn set_mode(directory: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::fchmod(directory, mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_are_removed_despite_closed_permissions_links_and_names_like_the_temporary_ones()
    {
        let place = tempfile::tempdir().unwrap();
        let (top, secret) = (place.path().join("top"), place.path().join("secret"));
        fs::create_dir_all(&secret).unwrap();
        fs::write(secret.join("file"), "mine").unwrap();
        for folder in ["a/b/c", ".removed-1/full", ".removed-2"] {
            fs::create_dir_all(top.join(folder)).unwrap();
            symlink(&secret, top.join(folder).join("link")).unwrap();
            fs::write(top.join(folder).join("file"), "").unwrap();
        }
        fs::write(top.join(".removed-3"), "").unwrap();
        for (folder, mode) in [("a/b/c", 0o000), ("a/b", 0o555), ("a", 0o111), (".", 0o444)] {
            set(&top.join(folder), mode);
        }
        remove_all(&top).unwrap();
        let left: Vec<OsString> =
            fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"]);
        assert_eq!(fs::read_to_string(secret.join("file")).unwrap(), "mine");
    }

    /// A rename puts a directory in the place of an empty one of that name.
    #[test]
    fn directories_are_removed_despite_empty_ones_with_the_temporary_names() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("top");
        // As many that trying again a few times does not help, in whichever order they are listed.
        for n in 1..=500 {
            fs::create_dir_all(top.join(format!("{n}/below"))).unwrap();
            fs::create_dir(top.join(format!(".removed-{n}"))).unwrap();
        }
        remove_all(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn directories_nested_deeper_than_the_descriptor_limit_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut directory = rustix::fs::open(&top, PASS, Mode::empty()).unwrap();
        for _ in 0..2_000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            directory = rustix::fs::openat(&directory, "d", PASS, Mode::empty()).unwrap();
        }
        remove_all(&top).unwrap();
        assert!(!top.exists());
    }
}
