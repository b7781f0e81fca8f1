//! Landlock, the fallback for systems without user namespaces: a process of this binary restricts itself
//! and then executes the command. Landlock is an allow list of paths; it cannot except a part of an
//! allowed directory, so a directory with something hidden inside is allowed entry by entry, and new
//! files beside the hidden ones cannot be opened.

#[cfg(target_os = "linux")]
mod kernel;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::Network;
use super::rules::{MountKind, Rule, Rules};

/// The subcommand that makes this binary confine itself.
pub const VERB: &str = "__confine";
/// In place of a policy: only print the ABI version.
const QUESTION: &str = "?";

/// The allowed devices. Not all of `/dev`: root could open disks there.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// The policy: what a command may open. Passed on the command line as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Confinement {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    network: bool,
    temporary: PathBuf,
}

impl Confinement {
    /// The same rules as for bubblewrap, as far as an allow list can say them.
    pub(super) fn of(rules: &Rules, network: Network, temporary: PathBuf) -> Confinement {
        let mounts = rules.mounts();
        let mut covered: Vec<&Path> = mounts.iter().map(|mount| mount.path.as_path()).collect();
        covered.push(Path::new("/dev"));
        let mut readable = Vec::new();
        // Some of these are symlinks on some systems. They are resolved here, because no symlink is
        // followed when the rules are applied.
        let fixed = DEVICES.iter().map(PathBuf::from).chain([temporary.clone()]);
        let mut writable: Vec<PathBuf> =
            fixed.filter_map(|path| path.canonicalize().ok()).collect();
        // The root is readable but for what has a rule, as it is with bubblewrap.
        open_around(Path::new("/"), &covered, &mut readable);
        for mount in &mounts {
            match &mount.kind {
                MountKind::Readable(source) => open_around(source, &covered, &mut readable),
                MountKind::Writable(source) => open_around(source, &hidden(&mounts), &mut writable),
                MountKind::HiddenDirectory
                | MountKind::HiddenFile
                | MountKind::Blank
                | MountKind::Private(_) => {}
            }
        }
        Confinement { readable, writable, network: network == Network::On, temporary }
    }

    pub(super) fn arguments(&self, command: &str) -> Vec<String> {
        let policy = serde_json::to_string(self).expect("paths that are text are JSON");
        [VERB, &policy, "bash", "-c", command].map(str::to_owned).to_vec()
    }
}

/// The paths that must stay closed when a directory around them is opened.
fn hidden(mounts: &[Rule]) -> Vec<&Path> {
    let is_hidden = |kind: &MountKind| {
        matches!(kind, MountKind::HiddenDirectory | MountKind::HiddenFile | MountKind::Blank)
    };
    let hidden = mounts.iter().filter(|mount| is_hidden(&mount.kind));
    hidden.map(|mount| mount.path.as_path()).collect()
}

/// Allows a path as a whole, or, if something inside has a rule of its own, entry by entry around that.
fn open_around(path: &Path, covered: &[&Path], opened: &mut Vec<PathBuf>) {
    let is_whole = !covered.iter().any(|other| other.starts_with(path) && *other != path);
    if is_whole {
        opened.push(path.to_owned());
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let below = entry.path();
        // Where a symlink leads is allowed under its own path, or not at all.
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link && !covered.contains(&below.as_path()) {
            open_around(&below, covered, opened);
        }
    }
}

/// The ABI version of Landlock on this system. Asked in a child process, because a restriction cannot be
/// taken back.
pub(super) fn version(program: &Path) -> Result<i32, String> {
    let mut command = Command::new(program);
    command.arg0("asyncagents").args([VERB, QUESTION]);
    let ran = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said = ran.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match said.ok().and_then(|said| said.parse().ok()) {
        Some(version @ 1..) => Ok(version),
        Some(_) => Err("this system has no Landlock".to_owned()),
        None => Err("Landlock cannot be tried out".to_owned()),
    }
}

/// Restricts this process and executes the command. Returns only the ABI version if that was the
/// question, or the reason why it failed: a command never runs unconfined.
pub fn confine(mut arguments: impl Iterator<Item = OsString>) -> Result<i32, String> {
    let policy = arguments.next().and_then(|policy| policy.into_string().ok()).unwrap_or_default();
    if policy == QUESTION {
        let nothing = Confinement {
            readable: Vec::new(),
            writable: Vec::new(),
            network: true,
            temporary: PathBuf::new(),
        };
        return kernel::restrict(&nothing);
    }
    let confinement: Confinement =
        serde_json::from_str(&policy).map_err(|_| "its policy cannot be read".to_owned())?;
    // Landlock restricts paths and scopes; it takes no capability away from root.
    kernel::drop_capabilities();
    if kernel::restrict(&confinement)? == 0 {
        return Err("this system has no Landlock".to_owned());
    }
    let program = arguments.next().ok_or("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).env("TMPDIR", &confinement.temporary);
    Err(command.exec().to_string())
}

/// Other systems have no Landlock.
#[cfg(not(target_os = "linux"))]
mod kernel {
    pub(super) fn drop_capabilities() {}

    pub(super) fn restrict(_: &super::Confinement) -> Result<i32, String> {
        Ok(0)
    }
}
