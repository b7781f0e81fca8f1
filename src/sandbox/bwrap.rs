//! bubblewrap's command line, from the rules. No IO.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mount_table::Expected;
use super::rules::{Rules, Show};
use super::{Error, Level, Limits};

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

/// Always: bubblewrap as root keeps all capabilities, and with them `mount -o remount,rw /` leads out.
/// `--new-session` keeps commands from typing into a terminal. `--die-with-parent` is left out on
/// purpose: it would cut off what ends a moment after the shell; the guard kills what does not.
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

/// Read-only: everything. What must not be seen is mounted over after that. bubblewrap covers what it
/// finds writable in `/proc`, but asks about the directories alone: to the files in them, the root of a
/// user namespace is still the owner, and could set `kernel.core_pattern`, a program that the kernel
/// runs outside. Not every kernel has the last three.
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

/// bubblewrap binds by name what was looked at before, and a command of another session may have put a
/// link there meanwhile. So the shell looks, before the command, whether the mount table has what was
/// planned: nobody can exchange a mount point. It does so by itself, because a program such as `stat`
/// takes longer than all mounts of a workspace; that is for what the table does not tell. Its message is
/// as if bubblewrap had said it.
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
    bound: &[Expected],
) -> Result<Vec<String>, Error> {
    let mut all: Vec<String> = NAMESPACES.iter().chain(&SYSTEM).map(|&a| a.to_owned()).collect();
    if network == Network::Off {
        all.push("--unshare-net".to_owned());
    }
    let mounts = rules.mounts();
    for rule in &mounts {
        let path = text(&rule.path)?;
        let mut say = |words: &[&str]| all.extend(words.iter().map(|&word| word.to_owned()));
        match &rule.show {
            Show::HiddenDirectory | Show::Blank => say(&["--tmpfs", path]),
            Show::HiddenFile => say(&["--ro-bind", "/dev/null", path]),
            Show::Private(source) | Show::Writable(source) => say(&["--bind", text(source)?, path]),
            Show::Readable(source) => say(&["--ro-bind", text(source)?, path]),
        }
    }
    // Last, because what is shown in a hidden directory needs a place in it to be mounted on.
    for rule in mounts.iter().filter(|rule| rule.show == Show::HiddenDirectory) {
        all.extend(["--remount-ro", text(&rule.path)?].map(str::to_owned));
    }
    let rest = ["--setenv", "TMPDIR", "/tmp", "--chdir", text(directory)?, "--", "bash", "-c"];
    all.extend(rest.map(str::to_owned));
    match bound {
        [] => all.push(command.to_owned()),
        // Each by itself after the shell's own name: one argument holds no more than 128 KiB.
        _ => {
            all.extend([format!("{CHECK}{command}"), "bash".to_owned()]);
            all.extend(bound.iter().map(said));
        }
    }
    Ok(all)
}

/// For [`CHECK`].
fn said(expected: &Expected) -> String {
    match expected {
        Expected::Line(line) => line.clone(),
        Expected::Inode(inode) => inode.clone(),
        // No inode: what is there now is not what was planned.
        Expected::Gone => "gone".to_owned(),
    }
}

/// Limits are set by the shell that runs the command, in its first line, which costs no other process.
/// The number of processes is counted in the new user namespace, so it must be set inside; it does not
/// bind root, whose processes the guard counts. Memory is counted as data: address space is reserved in terabytes by Node and others.
pub(super) fn prelude(limits: Limits, level: Level) -> String {
    let processes = if level == Level::BwrapUser { limits.processes } else { 0 };
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let set = [('u', processes), ('d', kib(limits.memory)), ('f', kib(limits.file))];
    let set = set.into_iter().filter(|(_, value)| *value > 0);
    // One that is lower already cannot be raised, which is fine.
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
        rules.add("/w", Show::Writable("/w".into()));
        rules.add("/w/.git/config", Show::Readable("/w/.git/config".into()));
        rules.add("/tmp", Show::Private("/s/tmp".into()));
        rules.add("/run", Show::Blank);
        rules.add("/secret", Show::HiddenDirectory);
        rules.add("/secret/shown", Show::Readable("/secret/shown".into()));
        rules.add("/etc/shadow", Show::HiddenFile);
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
    fn what_is_bound_by_its_name_is_compared_before_the_command() {
        use std::os::unix::fs::MetadataExt;
        use std::process::Command;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it's a b");
        std::fs::create_dir(&path).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        let device = std::fs::metadata(&path).unwrap().dev();
        let by_inode = |inode| Expected::Inode(format!("{device}:{inode} {}", path.display()));
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let proc = table.lines().find(|line| line.contains(" /proc ")).unwrap();
        let proc: Vec<&str> = proc.split(' ').skip(2).take(3).collect();
        let line = Expected::Line(format!(" {} ", proc.join(" ")));
        let other = Expected::Line(" 0:0 /it's /nowhere ".to_owned());
        let many = vec![line.clone(); 5_000];
        let check = |bound: &[Expected], runs: bool| {
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
        check(&[line, Expected::Gone], false);
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
