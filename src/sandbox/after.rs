//! What is put right after a command, for what cannot be mounted over: protected paths that were not
//! there, and links. This happens outside the sandbox, so it follows no link that the command has made.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

const SAFELY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// Was not there, and is not to be there. `root` is free of links.
    Remove { root: PathBuf, path: PathBuf },
    /// Was a link, and is to be the same one.
    Relink { path: PathBuf, target: PathBuf },
}

impl Afterwards {
    /// What had to be put right, if anything.
    pub(super) fn put_right(&self) -> Option<PathBuf> {
        match self {
            Afterwards::Remove { root, path } => {
                let below = path.strip_prefix(root).ok()?;
                remove(root, below).ok().flatten().map(|found| root.join(found))
            }
            Afterwards::Relink { path, target } => {
                if fs::read_link(path).is_ok_and(|now| now == *target) {
                    return None;
                }
                let parent = path.parent()?;
                let _ = remove(&parent.canonicalize().ok()?, Path::new(path.file_name()?));
                std::os::unix::fs::symlink(target, path).ok()?;
                Some(path.clone())
            }
        }
    }
}

/// Removes what is at `below`, or the link on the way to it, and says which. Directory by directory, each
/// opened without following a link: a name that leads elsewhere must not have us delete something there.
fn remove(root: &Path, below: &Path) -> io::Result<Option<PathBuf>> {
    let mut directory: OwnedFd = rustix::fs::open(root, SAFELY, Mode::empty())?;
    let mut passed = PathBuf::new();
    let names: Vec<_> = below.iter().collect();
    for (n, name) in names.iter().enumerate() {
        passed.push(name);
        let Ok(found) = rustix::fs::statat(&directory, *name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(None);
        };
        let is_directory = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        if is_directory && n + 1 < names.len() {
            directory = rustix::fs::openat(&directory, *name, SAFELY, Mode::empty())?;
            continue;
        }
        match is_directory {
            // By its descriptor, the directory is the one that was opened, whatever its name is now.
            true => fs::remove_dir_all(format!(
                "/proc/self/fd/{}/{}",
                directory.as_raw_fd(),
                name.to_string_lossy()
            ))?,
            false => rustix::fs::unlinkat(&directory, *name, AtFlags::empty())?,
        }
        return Ok(Some(passed));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_command_made_is_removed_and_nothing_that_its_links_lead_to() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let (root, secret) = (top.join("workspace"), top.join("secret"));
        fs::create_dir_all(secret.join("agents")).unwrap();
        fs::write(secret.join("agents/mine.md"), "mine").unwrap();
        let check = |make: &dyn Fn(&Path), removed: Option<&str>| {
            fs::create_dir_all(&root).unwrap();
            make(&root);
            let path = root.join(".claude/agents");
            let after = Afterwards::Remove { root: root.clone(), path: path.clone() };
            assert_eq!(after.put_right(), removed.map(|path| root.join(path)));
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
        let after = Afterwards::Relink { path: path.clone(), target: "elsewhere".into() };
        symlink("elsewhere", &path).unwrap();
        assert_eq!(after.put_right(), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("agents")).unwrap();
        assert_eq!(after.put_right(), Some(path.clone()));
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
    }
}
