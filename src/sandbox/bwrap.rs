//! The command line of bubblewrap (`bwrap`), from the mount rules. Pure. Two things bubblewrap does not
//! do are done by the shell inside: resource limits (`ulimit`) and a check that no
//! protected path was exchanged between planning and mounting.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mount_table::MountCheck;
use super::rules::{MountKind, Rules};
use super::{Error, Level, Limits};

/// Whether commands share the host's network or have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    On,
    Off,
}

impl Network {
    pub fn name(self) -> &'static str {
        match self {
            Network::On => "on",
            Network::Off => "off",
        }
    }
}

/// Set for every command, also for root: run as root, bubblewrap would otherwise keep all capabilities,
/// and `mount -o remount,rw /` leads out of the sandbox. `--new-session` keeps commands from injecting
/// input into a terminal (`TIOCSTI`). `--die-with-parent` is left out on purpose: it would cut off
/// programs that end a moment after the shell; the guard kills those that do not.
pub(super) const NAMESPACES: [&str; 8] = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
    "--new-session",
];

/// The whole file system read-only; what must not be seen is mounted over after that. bubblewrap covers
/// what is writable in `/proc`, but checks only directories: the root of a user namespace still owns the
/// files in them and could set `kernel.core_pattern`, a program that the kernel runs outside of any
/// sandbox. Not every kernel has the last three, hence `-try`.
pub(super) const SYSTEM: [&str; 19] = [
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--ro-bind",
    "/proc/sys",
    "/proc/sys",
    "--ro-bind-try",
    "/proc/sysrq-trigger",
    "/proc/sysrq-trigger",
    "--ro-bind-try",
    "/proc/mtrr",
    "/proc/mtrr",
    "--ro-bind-try",
    "/proc/pressure",
    "/proc/pressure",
];

/// A time-of-check/time-of-use guard. bubblewrap binds paths by name after we have looked at them, and a
/// command of another session may have put a symlink there in between. So the shell compares the mount
/// table with what was planned before it runs the command: a mount point itself cannot be exchanged any
/// more. It uses shell built-ins, because one `stat` takes longer than all mounts of a workspace; `stat`
/// is only for what the table does not tell. The message has bubblewrap's prefix, so that it is reported
/// as a sandbox that could not be set up.
const CHECK: &str = "IFS= read -rd '' < /proc/self/mountinfo; while (($#)); do case $1 in \
    ' '*) [[ $REPLY == *\"$1\"* ]];; \
    *) [[ $(stat -c '%d:%i %n' -- \"${1#* }\" 2>/dev/null) == \"$1\" ]];; \
    esac || { echo 'bwrap: protected paths of the workspace were exchanged meanwhile; run it again' >&2; \
    exit 1; }; shift; done; unset REPLY; ";

pub(super) fn arguments(
    rules: &Rules,
    network: Network,
    directory: &Path,
    command: &str,
    bound: &[MountCheck],
) -> Result<Vec<String>, Error> {
    let mut all: Vec<String> = NAMESPACES.iter().chain(&SYSTEM).map(|&a| a.to_owned()).collect();
    if network == Network::Off {
        all.push("--unshare-net".to_owned());
    }
    let mounts = rules.mounts();
    for rule in &mounts {
        let path = text(&rule.path)?;
        let mut say = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
        match &rule.kind {
            MountKind::HiddenDirectory | MountKind::Blank => say(&["--tmpfs", path]),
            MountKind::HiddenFile => say(&["--ro-bind", "/dev/null", path]),
            MountKind::Private(source) | MountKind::Writable(source) => {
                say(&["--bind", text(source)?, path])
            }
            MountKind::Readable(source) => say(&["--ro-bind", text(source)?, path]),
        }
    }
    // Hidden directories become read-only last: mount points for what is shown inside one have to be
    // created in it first.
    for rule in mounts.iter().filter(|rule| rule.kind == MountKind::HiddenDirectory) {
        all.extend(["--remount-ro", text(&rule.path)?].map(str::to_owned));
    }
    let rest = ["--setenv", "TMPDIR", "/tmp", "--chdir", text(directory)?, "--", "bash", "-c"];
    all.extend(rest.map(str::to_owned));
    match bound {
        [] => all.push(command.to_owned()),
        // As separate arguments after the shell's own name: one argument holds at most 128 KiB
        // (MAX_ARG_STRLEN).
        _ => {
            all.extend([format!("{CHECK}{command}"), "bash".to_owned()]);
            all.extend(bound.iter().map(said));
        }
    }
    Ok(all)
}

/// The argument that [`CHECK`] compares: a line of the mount table begins with a space, an inode does not.
fn said(expected: &MountCheck) -> String {
    match expected {
        MountCheck::Line(line) => line.clone(),
        MountCheck::Inode(inode) => inode.clone(),
        // Matches nothing, so the command is refused: what is there now is not what was planned.
        MountCheck::Gone => "gone".to_owned(),
    }
}

/// Resource limits, set by the shell itself before the command, which costs no extra process. The number
/// of processes must be set inside: the kernel counts it per user namespace. It does not bind root,
/// whose processes the guard counts instead. Memory is limited as data (`-d`) and not as address space
/// (`-v`), of which Node and others reserve terabytes.
pub(super) fn prelude(limits: Limits, level: Level) -> String {
    let processes = if level == Level::BwrapUser { limits.processes } else { 0 };
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let set = [('u', processes), ('d', kib(limits.memory)), ('f', kib(limits.file))];
    let set = set.into_iter().filter(|(_, value)| *value > 0);
    // A hard limit that is already lower cannot be raised; the error is silenced and the lower one holds.
    set.map(|(name, value)| format!("ulimit -{name} {value} 2>/dev/null; ")).collect()
}

pub(super) fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::NotText(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_namespaces_of_its_own_and_no_capabilities() {
        let mut rules = Rules::default();
        rules.add("/w", MountKind::Writable("/w".into()));
        rules.add("/w/.git/config", MountKind::Readable("/w/.git/config".into()));
        rules.add("/tmp", MountKind::Private("/s/tmp".into()));
        rules.add("/run", MountKind::Blank);
        rules.add("/secret", MountKind::HiddenDirectory);
        rules.add("/secret/shown", MountKind::Readable("/secret/shown".into()));
        rules.add("/etc/shadow", MountKind::HiddenFile);
        let check = |network, net: &str| {
            let said = arguments(&rules, network, Path::new("/w"), "echo 'a b'", &[]);
            let said = said.unwrap().join(" ");
            let expected = format!(
                "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try \
                 --cap-drop ALL --new-session --ro-bind / / --dev /dev --proc /proc \
                 --ro-bind /proc/sys /proc/sys \
                 --ro-bind-try /proc/sysrq-trigger /proc/sysrq-trigger \
                 --ro-bind-try /proc/mtrr /proc/mtrr --ro-bind-try /proc/pressure /proc/pressure \
                 {net}--bind /w /w --bind /s/tmp /tmp --tmpfs /run --tmpfs /secret \
                 --ro-bind /secret/shown /secret/shown --ro-bind /dev/null /etc/shadow \
                 --ro-bind /w/.git/config /w/.git/config --remount-ro /secret --setenv TMPDIR /tmp \
                 --chdir /w -- bash -c echo 'a b'"
            );
            assert_eq!(said, expected);
        };
        check(Network::On, "");
        check(Network::Off, "--unshare-net ");
    }

    #[test]
    fn mounts_are_verified_before_the_command_starts() {
        use std::os::unix::fs::MetadataExt;
        use std::process::Command;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it's a b");
        std::fs::create_dir(&path).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        let device = std::fs::metadata(&path).unwrap().dev();
        let by_inode = |inode| MountCheck::Inode(format!("{device}:{inode} {}", path.display()));
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let proc = table.lines().find(|line| line.contains(" /proc ")).unwrap();
        let proc: Vec<&str> = proc.split(' ').skip(2).take(3).collect();
        let line = MountCheck::Line(format!(" {} ", proc.join(" ")));
        let other = MountCheck::Line(" 0:0 /it's /nowhere ".to_owned());
        let many = vec![line.clone(); 5_000];
        let check = |bound: &[MountCheck], runs: bool| {
            let command = "echo \"$0 ran with $# ${REPLY-}\"";
            let all = arguments(&Rules::default(), Network::On, Path::new("/w"), command, bound);
            let all = all.unwrap();
            let shell = all.iter().position(|word| word == "--").unwrap() + 1;
            let ran = Command::new(&all[shell]).args(&all[shell + 1..]).output().unwrap();
            let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8(said).unwrap());
            let expected = match runs {
                true => ["bash ran with 0 \n", ""],
                false => {
                    let why = "bwrap: protected paths of the workspace were exchanged meanwhile; run it \
                               again\n";
                    ["", why]
                }
            };
            assert_eq!(said, expected, "{} {:?}", bound.len(), bound.first());
        };
        check(&[], true);
        check(&[line.clone(), by_inode(inode)], true);
        check(&many, true);
        check(&[line.clone(), by_inode(inode + 1)], false);
        check(&[by_inode(inode), other], false);
        check(&[line, MountCheck::Gone], false);
    }

    #[test]
    fn limits_come_before_the_command_and_processes_are_not_limited_for_root() {
        let limits = Limits { processes: 10, memory: 2048, file: 1, scratch: 0 };
        let expected = "ulimit -d 2 2>/dev/null; ulimit -f 1 2>/dev/null; ";
        assert_eq!(prelude(limits, Level::BwrapRoot), expected);
        let all = format!("ulimit -u 10 2>/dev/null; {expected}");
        assert_eq!(prelude(limits, Level::BwrapUser), all);
        assert_eq!(prelude(Limits::default(), Level::BwrapUser), "");
    }
}
