//! The kernel's mount table (`/proc/self/mountinfo`): it shows which directory of which file system is
//! mounted at a path. From it we predict the line that bubblewrap's bind mount will have; the command's
//! shell compares, and finds out that way whether a path was exchanged before it was bound. Where no
//! line can tell (NFS, names that are not UTF-8), inodes are compared.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use super::repair;

/// File systems whose lines do not tell: NFS prints `/` as the directory, whichever is mounted.
const SILENT: [&str; 2] = ["nfs", "nfs4"];

/// The mounts of this process, as the kernel prints them (proc(5), `/proc/pid/mountinfo`).
pub(super) struct MountTable(String);

/// How the command's shell recognizes a path that bubblewrap has bound on itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountCheck {
    /// The line of its mount must contain this, after the two ids: device, directory within the file
    /// system, mount point.
    Line(String),
    /// Device and inode, where no line can tell: `8:27 /path`. The shell needs `stat` to compare them.
    Inode(String),
    /// There is nothing at the path any more, or a symlink on the way: the command is refused.
    Gone,
}

impl MountTable {
    /// If the table cannot be read it is empty, and inodes are compared.
    pub(super) fn read() -> MountTable {
        MountTable::parse(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Lossy: a mount elsewhere on the machine may have a name that is not UTF-8.
    fn parse(bytes: &[u8]) -> MountTable {
        MountTable(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The check for a path, as it will look once the path is bound on itself.
    pub(super) fn once_bound(&self, path: &Path) -> MountCheck {
        let Ok(opened) = repair::open_entry(path) else { return MountCheck::Gone };
        let line = mount_id(&opened).and_then(|id| self.line_once_bound(id, path));
        match (line, repair::identity(&opened)) {
            (Some(line), _) => MountCheck::Line(line),
            (None, Ok((device, inode))) => {
                MountCheck::Inode(format!("{device}:{inode} {}", path.display()))
            }
            (None, Err(_)) => MountCheck::Gone,
        }
    }

    /// The mount is found by its id and not as the longest mount point that is a prefix of the path: that
    /// one may itself be covered by another mount.
    fn line_once_bound(&self, id: u64, path: &Path) -> Option<String> {
        let id = id.to_string();
        let mut lines = self.0.lines().map(|line| line.split(' '));
        let mut fields = lines.find_map(|mut line| (line.next() == Some(&id)).then_some(line))?;
        let (device, root, point) = (fields.nth(1)?, fields.next()?, fields.next()?);
        // A varying number of optional fields ends with a hyphen (proc(5)).
        let kind = fields.skip_while(|field| *field != "-").nth(1)?;
        if SILENT.contains(&kind) || !root.starts_with('/') {
            return None;
        }
        let path = escaped(path)?;
        let below = path.strip_prefix(point.trim_end_matches('/'))?;
        // `/home/a` is no prefix of `/home/ab`.
        let is_below = below.is_empty() || below.starts_with('/');
        let place = match format!("{}{below}", root.trim_end_matches('/')) {
            root if root.is_empty() => "/".to_owned(),
            place => place,
        };
        is_below.then(|| format!(" {device} {place} {path} "))
    }
}

fn mount_id(opened: &OwnedFd) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).ok()?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Escapes a path as the kernel does in this table: space, tab, newline and backslash as octal.
fn escaped(path: &Path) -> Option<String> {
    let escape = |letter: char| match letter {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", u32::from(letter)),
        other => other.to_string(),
    };
    Some(path.to_str()?.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
40 22 0:30 /@home /home rw shared:1 - btrfs /dev/vdb rw\n\
41 22 0:40 / /home rw - tmpfs covers rw\n\
42 40 0:31 /data /home/a\\040b rw - btrfs /dev/vdc rw\n";

    fn check(table: &[u8], id: u64, path: &str, expected: Option<&str>) {
        let found = MountTable::parse(table).line_once_bound(id, Path::new(path));
        assert_eq!(found.as_deref(), expected, "{path}");
    }

    #[test]
    fn a_bind_mount_is_identified_by_its_device_and_its_path_in_the_file_system() {
        let check = |id, path, expected| check(TABLE.as_bytes(), id, path, expected);
        check(22, "/srv/.git", Some(" 254:0 /srv/.git /srv/.git "));
        check(40, "/home/ada/w", Some(" 0:30 /@home/ada/w /home/ada/w "));
        check(41, "/home/ada/w", Some(" 0:40 /ada/w /home/ada/w "));
        check(42, "/home/a b/.git", Some(r" 0:31 /data/.git /home/a\040b/.git "));
        check(42, "/home/a b", Some(r" 0:31 /data /home/a\040b "));
        check(42, "/home/a bc", None);
        check(7, "/srv", None);
    }

    #[test]
    fn a_mount_of_a_whole_file_system_is_identified_by_its_root() {
        check(TABLE.as_bytes(), 41, "/home", Some(" 0:40 / /home "));
    }

    #[test]
    fn a_mount_whose_root_the_kernel_does_not_print_is_not_identified_by_its_line() {
        let table = b"50 1 0:50 / /net rw shared:7 - nfs4 server:/e rw\n\
            51 1 0:51 / /old rw - nfs server:/e rw\n52 1 0:4 net:[4026] /ns rw - nsfs nsfs rw\n";
        check(table, 50, "/net/w/.git", None);
        check(table, 51, "/old/w/.git", None);
        check(table, 52, "/ns", None);
    }

    #[test]
    fn a_mount_elsewhere_whose_name_is_not_utf_8_changes_nothing() {
        let table =
            b"7 1 0:7 / /media/\xff rw - vfat /dev/sdb rw\n8 1 8:1 / / rw - ext4 /dev/sda rw\n";
        check(table, 8, "/w/.git", Some(" 8:1 /w/.git /w/.git "));
    }

    #[test]
    fn a_path_without_a_mount_line_is_identified_by_its_inode_and_one_with_a_link_in_it_not_at_all()
    {
        use std::os::unix::fs::MetadataExt;

        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let path = top.join("real/below");
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        let about = fs::metadata(&path).unwrap();
        let inode = format!("{}:{} {}", about.dev(), about.ino(), path.display());
        assert_eq!(MountTable::parse(b"").once_bound(&path), MountCheck::Inode(inode));
        let table = MountTable::read();
        assert!(matches!(table.once_bound(&path), MountCheck::Line(_)));
        for path in ["link", "link/below", "gone"] {
            assert_eq!(table.once_bound(&top.join(path)), MountCheck::Gone, "{path}");
        }
    }
}
