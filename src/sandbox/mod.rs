//! The sandbox around commands of embedded agents (X2): a policy in, a command line out. bubblewrap where
//! it works, else Landlock, else nothing and a warning. What each level guarantees is a table, in
//! `guarantees.rs`. The sandbox starts no process itself; what it cannot prevent by mounts it repairs
//! after the command, in the command's guard (`repair.rs`).

mod bwrap;
mod gather;
mod git;
mod guarantees;
mod hidden;
mod landlock;
mod mount_table;
mod places;
mod probe;
mod remove;
mod repair;
mod rules;
mod scratch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use bwrap::Network;
pub use git::is_protected;
pub use guarantees::{GUARANTEES, Guarantee, Property, Row, table};
pub use hidden::{HiddenKind, HiddenPlaces};
pub use landlock::{VERB, confine};
pub use places::UserPlaces;
pub use remove::remove_all;

use git::ProtectedPaths;
use landlock::Confinement;
use mount_table::{MountCheck, MountTable};
use parking_lot::{Mutex, MutexGuard};
use repair::Repair;
use rules::{MountKind, Rules};
use serde::{Deserialize, Serialize};

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The best that works.
    Auto,
    Bwrap,
    Landlock,
    Off,
}

/// What is in force. bubblewrap counts as two levels, because some limits do not bind root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    BwrapUser,
    BwrapRoot,
    Landlock,
    Off,
}

/// Whether commands may write to the download caches of package managers. A poisoned cache would be used
/// outside the sandbox later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    Readable,
    Writable,
}

/// Resource limits of one command; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub processes: u64,
    /// Bytes of data of each process.
    pub memory: u64,
    /// Bytes of each file.
    pub file: u64,
    /// Bytes of all files in a session's private `/tmp` and home. Not enforced: the model is told to
    /// clean up.
    pub scratch: u64,
}

/// The policy for all commands of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    pub choice: Choice,
    /// This binary: with Landlock it restricts itself and executes the command.
    pub program: PathBuf,
    pub network: Network,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    pub caches: Caches,
    pub limits: Limits,
    pub user: UserPlaces,
    /// Our own directories: storage and configuration.
    pub own: Vec<PathBuf>,
}

/// The level that was detected, and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detection {
    pub level: Level,
    pub because: Option<String>,
    /// The ABI version of Landlock on this system; 0 when there is none, or bubblewrap is used.
    pub landlock: i32,
}

/// A handle; clones share the detected level and the table of busy workspaces.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    found: OnceLock<Result<Detection, Error>>,
    /// Workspaces in which commands run: how many, and the protected paths that all of them use. These
    /// are looked up only when no command runs: a running one could put a symlink in the place of a path
    /// before the next one is set up.
    busy: Mutex<HashMap<PathBuf, (usize, Arc<ProtectedPaths>)>>,
}

/// A command's reference to a busy workspace; dropping the last one lets the paths be looked up again.
#[derive(Debug)]
struct BusyWorkspaceGuard {
    sandbox: Sandbox,
    workspace: PathBuf,
    protected: Arc<ProtectedPaths>,
}

/// The sandbox of one session.
#[derive(Clone, Debug)]
pub struct SessionSandbox {
    pub sandbox: Sandbox,
    /// The directory of the session's private `/tmp` and home, kept from one command to the next.
    pub scratch: PathBuf,
    /// In addition to what the configuration allows.
    pub grants: Grants,
    /// The workspace is trusted, so agent definitions in it count. Missing directories for them are
    /// created, because one that does not exist cannot be mounted over.
    pub trusted: bool,
}

/// What an agent's definition asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    pub network: Option<Network>,
    /// The definition came with the workspace: it can neither open credentials nor switch on a network
    /// that the configuration has off.
    pub from_workspace: bool,
}

/// A command line that runs a shell command at some level. Must be kept until the command is gone: it
/// keeps the workspace marked as busy.
#[derive(Debug)]
pub struct Plan {
    pub level: Level,
    pub program: String,
    pub arguments: Vec<String>,
    /// How many processes and threads the guard allows; 0 is any number.
    pub processes: u64,
    /// For [`repair()`], in the guard, when no process of the command is left.
    pub repairs: String,
    busy: Option<BusyWorkspaceGuard>,
}

/// A protected path that a command has changed, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairOutcome {
    pub path: String,
    /// Why it could not be put back as it was; `None` if it was.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "`sandbox = \"{choice}\"` in the configuration, but that does not work here: {why}; set it to \
         \"auto\", or to \"off\" to run commands without a sandbox"
    )]
    Unavailable { choice: &'static str, why: String },
    #[error("the sandbox cannot be set up at `{path}`: {why}; make the directory usable")]
    Scratch { path: String, why: String },
    #[error("the path `{0}` is not UTF-8 text, which the sandbox needs; rename it")]
    NotText(String),
}

impl Sandbox {
    pub fn new(settings: Settings) -> Sandbox {
        Sandbox(Arc::new(Inner { settings, found: OnceLock::new(), busy: Mutex::default() }))
    }

    /// A sandbox that confines nothing.
    pub fn off() -> Sandbox {
        Sandbox::new(Settings {
            choice: Choice::Off,
            program: PathBuf::new(),
            network: Network::On,
            readable: Vec::new(),
            writable: Vec::new(),
            caches: Caches::Readable,
            limits: Limits::default(),
            user: UserPlaces::default(),
            own: Vec::new(),
        })
    }

    /// The level in force. The first call detects it by running a program, and blocks meanwhile.
    pub fn detected(&self) -> Result<Detection, Error> {
        let Inner { settings, found, .. } = &*self.0;
        found.get_or_init(|| probe::find(settings.choice, &settings.program)).clone()
    }

    /// Marks the workspace as busy for one more command.
    fn mark_busy(&self, workspace: &Path, trusted: bool) -> BusyWorkspaceGuard {
        // The file system is read without the lock: one that hangs must not hold up other workspaces.
        // If two commands start at once, `or_insert` below keeps the paths of the first.
        let known = self.busy().get(workspace).map(|(_, protected)| Arc::clone(protected));
        let found = known.unwrap_or_else(|| Arc::new(git::protected(workspace, trusted)));
        let mut busy = self.busy();
        let (commands, protected) = busy.entry(workspace.to_owned()).or_insert((0, found));
        *commands += 1;
        let (workspace, protected) = (workspace.to_owned(), Arc::clone(protected));
        BusyWorkspaceGuard { sandbox: self.clone(), workspace, protected }
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<PathBuf, (usize, Arc<ProtectedPaths>)>> {
        self.0.busy.lock()
    }

    /// What the user has to know about the sandbox, if anything.
    pub fn warnings(&self) -> Vec<String> {
        match self.detected() {
            Ok(Detection { level: Level::Off, because: Some(why), .. }) => vec![format!(
                "commands of agents run without a sandbox: {why}; install `bubblewrap`, or set \
                 `sandbox = \"off\"` if that is meant"
            )],
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("commands of agents are refused: {error}")],
        }
    }
}

impl SessionSandbox {
    /// One that confines nothing.
    pub fn off() -> SessionSandbox {
        SessionSandbox {
            sandbox: Sandbox::off(),
            scratch: PathBuf::new(),
            grants: Grants::default(),
            trusted: false,
        }
    }

    /// Plans one shell command. `shown` are readable in addition. Blocking: it reads directories and
    /// creates those that the sandbox needs.
    pub fn plan(&self, workspace: &Path, shown: &[&Path], command: &str) -> Result<Plan, Error> {
        let level = self.sandbox.detected()?.level;
        if level == Level::Off {
            return Ok(Plan::bare(command));
        }
        let settings = &self.sandbox.0.settings;
        self.make_scratch()?;
        // Before the rules: from here on the workspace counts as busy, and all commands in it use the same
        // protected paths.
        let busy = self.sandbox.mark_busy(workspace, self.trusted);
        let rules = gather::rules(settings, self, workspace, shown, &busy.protected);
        let network = self.grants.network(settings.network);
        let command = format!("{}{command}", bwrap::prelude(settings.limits, level));
        let (program, arguments) = match level {
            Level::BwrapUser | Level::BwrapRoot => {
                let bound = once_bound(&rules, &busy.protected);
                ("bwrap", bwrap::arguments(&rules, network, workspace, &command, &bound)?)
            }
            Level::Landlock | Level::Off => {
                let confinement = Confinement::of(&rules, network, self.temporary());
                (bwrap::text(&settings.program)?, confinement.arguments(&command))
            }
        };
        // Fails only for paths that are not UTF-8; then the daemon does it, in `Plan::repair`.
        let repairs = serde_json::to_string(&busy.protected.after).unwrap_or_default();
        let program = program.to_owned();
        let processes = match level {
            // The kernel enforces it, per user namespace (`ulimit -u` in the prelude).
            Level::BwrapUser | Level::Off => 0,
            Level::BwrapRoot | Level::Landlock => settings.limits.processes,
        };
        Ok(Plan { level, program, arguments, processes, repairs, busy: Some(busy) })
    }
}

impl Grants {
    /// The network an agent gets; a definition from the workspace can only switch it off.
    fn network(&self, configured: Network) -> Network {
        match (self.network, configured) {
            (Some(Network::On), Network::Off) if self.from_workspace => Network::Off,
            (Some(asked), _) => asked,
            (None, configured) => configured,
        }
    }
}

impl Plan {
    /// Without any sandbox.
    pub fn bare(command: &str) -> Plan {
        Plan {
            level: Level::Off,
            program: "bash".to_owned(),
            arguments: vec!["-c".to_owned(), command.to_owned()],
            processes: 0,
            repairs: String::new(),
            busy: None,
        }
    }

    /// Repairs protected paths from the daemon. Only for when the command is gone and its guard, which
    /// does the same, did not report.
    pub fn repair(&self) -> Vec<RepairOutcome> {
        self.busy.iter().flat_map(|busy| repair::apply(&busy.protected.after)).collect()
    }
}

/// Undoes what a command did to protected paths that could not be mounted over: a new `.git/commondir`,
/// for one, would lead git to another configuration. `repairs` is [`Plan::repairs`]; returns one line of
/// JSON per changed path, for [`RepairOutcome::read`].
pub fn repair(repairs: &str) -> Vec<String> {
    let all = serde_json::from_str::<Vec<Repair>>(repairs).unwrap_or_default();
    repair::apply(&all).iter().filter_map(|one| serde_json::to_string(one).ok()).collect()
}

impl RepairOutcome {
    /// What [`repair()`] returned, as it came back in the guard's report.
    pub fn read(said: &[String]) -> Vec<RepairOutcome> {
        said.iter().filter_map(|one| serde_json::from_str(one).ok()).collect()
    }
}

impl Drop for BusyWorkspaceGuard {
    fn drop(&mut self) {
        let mut busy = self.sandbox.busy();
        if let Some((commands, _)) = busy.get_mut(&self.workspace) {
            *commands -= 1;
            if *commands == 0 {
                busy.remove(&self.workspace);
            }
        }
    }
}

/// The checks for all protected paths that bubblewrap binds on themselves.
fn once_bound(rules: &Rules, protected: &ProtectedPaths) -> Vec<MountCheck> {
    let mounts = rules.mounts().into_iter().filter(|rule| match &rule.kind {
        MountKind::Writable(_) => protected.writable.contains(&rule.path),
        MountKind::Readable(_) => protected.read_only.contains(&rule.path),
        MountKind::HiddenDirectory
        | MountKind::HiddenFile
        | MountKind::Blank
        | MountKind::Private(_) => false,
    });
    let paths: Vec<PathBuf> = mounts.map(|rule| rule.path).collect();
    if paths.is_empty() {
        return Vec::new();
    }
    // Read once for all paths; every line that is compared comes from the same table.
    let table = MountTable::read();
    paths.iter().map(|path| table.once_bound(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_sandbox_is_warned_about_and_one_that_was_switched_off_is_not() {
        let check = |found: Result<Detection, Error>, expected: &[&str]| {
            let settings = Sandbox::off().0.settings.clone();
            let sandbox = Sandbox::new(settings);
            sandbox.0.found.set(found).unwrap();
            assert_eq!(sandbox.warnings(), expected);
        };
        let found = |level, because: Option<&str>| {
            Ok(Detection { level, because: because.map(str::to_owned), landlock: 0 })
        };
        check(found(Level::Off, None), &[]);
        check(found(Level::BwrapUser, None), &[]);
        check(found(Level::Landlock, Some("there is no `bwrap` in `PATH`")), &[]);
        check(
            found(
                Level::Off,
                Some("there is no `bwrap` in `PATH`, and this system has no Landlock"),
            ),
            &["commands of agents run without a sandbox: there is no `bwrap` in `PATH`, and this \
               system has no Landlock; install `bubblewrap`, or set `sandbox = \"off\"` if that is \
               meant"],
        );
        let why = "it is broken".to_owned();
        check(
            Err(Error::Unavailable { choice: "bwrap", why }),
            &[
                "commands of agents are refused: `sandbox = \"bwrap\"` in the configuration, but that \
               does not work here: it is broken; set it to \"auto\", or to \"off\" to run commands \
               without a sandbox",
            ],
        );
    }

    #[test]
    fn the_protected_paths_do_not_change_while_commands_run_in_the_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().canonicalize().unwrap();
        let sandbox = Sandbox::off();
        let first = sandbox.mark_busy(&workspace, false);
        fs::create_dir_all(workspace.join(".claude/agents")).unwrap();
        let second = sandbox.mark_busy(&workspace, false);
        assert_eq!((&first.protected, first.protected.read_only.len()), (&second.protected, 0));
        drop(first);
        assert_eq!(sandbox.mark_busy(&workspace, false).protected, second.protected);
        drop(second);
        let next = sandbox.mark_busy(&workspace, false);
        assert_eq!(next.protected.read_only, [workspace.join(".claude/agents")]);
    }

    #[test]
    fn an_agent_definition_of_a_workspace_cannot_switch_the_network_on() {
        use Network::{Off, On};
        for (asked, from_workspace, configured, expected) in [
            (None, false, On, On),
            (None, true, Off, Off),
            (Some(Off), true, On, Off),
            (Some(On), true, Off, Off),
            (Some(On), false, Off, On),
        ] {
            let grants = Grants { network: asked, from_workspace, ..Grants::default() };
            assert_eq!(grants.network(configured), expected, "{grants:?}");
        }
    }
}
