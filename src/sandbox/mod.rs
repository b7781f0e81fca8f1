//! The sandbox around commands of embedded agents (X2): a policy in, a command line out. bubblewrap where
//! it works, else Landlock, else nothing and a warning. What each level holds is data, in `holds.rs`.

mod after;
mod bwrap;
mod gather;
mod git;
mod hidden;
mod holds;
mod landlock;
mod mount_table;
mod places;
mod probe;
mod remove;
mod rules;
mod scratch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use bwrap::Network;
pub use git::is_protected;
pub use hidden::{Hidden, HiddenPlaces};
pub use holds::{HOLDS, Held, Property, Row, table};
pub use landlock::{VERB, confine};
pub use places::UserPlaces;
pub use remove::remove_all;

use after::Afterwards;
use git::Protected;
use landlock::Confinement;
use mount_table::{Expected, MountTable};
use rules::{Rules, Show};
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

/// What is in force. bubblewrap is two levels, because root is bound by less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    BwrapUser,
    BwrapRoot,
    Landlock,
    Off,
}

/// Whether commands may write into the download caches of package managers. What is written there is
/// used outside the sandbox later on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    Readable,
    Writable,
}

/// What one command may use; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub processes: u64,
    /// Of each process.
    pub memory: u64,
    /// Of each file.
    pub file: u64,
    /// Of all files in a session's private `/tmp` and home. Nothing stops a command there; the model is
    /// told.
    pub scratch: u64,
}

/// What holds for all commands of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    pub choice: Choice,
    /// This program: with Landlock it confines itself and becomes the command.
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

/// The level that was found by trying, and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub level: Level,
    pub because: Option<String>,
    /// The version of Landlock here; 0 when there is none.
    pub landlock: i32,
}

/// A handle; clones share what was found.
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    found: OnceLock<Result<Found, Error>>,
    /// Workspaces in which commands run, how many, and what all of them have mounted over. It is looked
    /// up when none runs: one that does could put a link in its place before the next is set up.
    busy: Mutex<HashMap<PathBuf, (usize, Arc<Protected>)>>,
}

/// A command's share of a busy workspace.
#[derive(Debug)]
struct Share {
    sandbox: Sandbox,
    workspace: PathBuf,
    protected: Arc<Protected>,
}

/// The sandbox as one session has it.
#[derive(Clone, Debug)]
pub struct Cell {
    pub sandbox: Sandbox,
    /// Keeps the session's private `/tmp` and home from one command to the next.
    pub scratch: PathBuf,
    /// Besides what the configuration says.
    pub grants: Grants,
    /// Agent definitions of the workspace count, so that its folders for them are made if they are
    /// missing: a folder that is not there cannot be mounted over.
    pub trusted: bool,
}

/// What an agent's own definition asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    pub network: Option<Network>,
    /// The definition came with the workspace: it opens no credentials, and no network that is off.
    pub from_workspace: bool,
}

/// A command line that runs a shell command at some level. To be kept until the command is gone.
#[derive(Debug)]
pub struct Plan {
    pub level: Level,
    pub program: String,
    pub arguments: Vec<String>,
    /// How many processes and threads the guard is to allow; 0 is any number.
    pub processes: u64,
    /// For [`put_right`], in the guard, when nothing of the command is left.
    pub afterwards: String,
    share: Option<Share>,
}

/// A protected path that a command has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tidied {
    pub path: String,
    /// Why it could not be put back as it was.
    pub left: Option<String>,
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

    /// One that confines nothing.
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

    /// What is in force, found by running a program in it. The first call takes as long as that.
    pub fn found(&self) -> Result<Found, Error> {
        let Inner { settings, found, .. } = &*self.0;
        found.get_or_init(|| probe::find(settings.choice, &settings.program)).clone()
    }

    fn share(&self, workspace: &Path, trusted: bool) -> Share {
        // Looked up without the lock: a file system that hangs must not hold up other workspaces.
        let known = self.busy().get(workspace).map(|(_, protected)| Arc::clone(protected));
        let found = known.unwrap_or_else(|| Arc::new(git::protected(workspace, trusted)));
        let mut busy = self.busy();
        let (commands, protected) = busy.entry(workspace.to_owned()).or_insert((0, found));
        *commands += 1;
        let (workspace, protected) = (workspace.to_owned(), Arc::clone(protected));
        Share { sandbox: self.clone(), workspace, protected }
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<PathBuf, (usize, Arc<Protected>)>> {
        self.0.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a person has to know, if anything.
    pub fn warnings(&self) -> Vec<String> {
        match self.found() {
            Ok(Found { level: Level::Off, because: Some(why), .. }) => vec![format!(
                "commands of agents run without a sandbox: {why}; install `bubblewrap`, or set \
                 `sandbox = \"off\"` if that is meant"
            )],
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("commands of agents are refused: {error}")],
        }
    }
}

impl Cell {
    /// One that confines nothing.
    pub fn off() -> Cell {
        Cell {
            sandbox: Sandbox::off(),
            scratch: PathBuf::new(),
            grants: Grants::default(),
            trusted: false,
        }
    }

    /// Reads directories, and makes those that the sandbox needs.
    pub fn plan(&self, workspace: &Path, shown: &[&Path], command: &str) -> Result<Plan, Error> {
        let level = self.sandbox.found()?.level;
        if level == Level::Off {
            return Ok(Plan::bare(command));
        }
        let settings = &self.sandbox.0.settings;
        self.make_scratch()?;
        let share = self.sandbox.share(workspace, self.trusted);
        let rules = gather::rules(settings, self, workspace, shown, &share.protected);
        let network = self.grants.network(settings.network);
        let command = format!("{}{command}", bwrap::prelude(settings.limits, level));
        let (program, arguments) = match level {
            Level::BwrapUser | Level::BwrapRoot => {
                let bound = once_bound(&rules, &share.protected);
                ("bwrap", bwrap::arguments(&rules, network, workspace, &command, &bound)?)
            }
            Level::Landlock | Level::Off => {
                let confinement = Confinement::of(&rules, network, self.temporary());
                (bwrap::text(&settings.program)?, confinement.arguments(&command))
            }
        };
        // A path that is no text cannot be said this way; then it is left to `tidy`.
        let afterwards = serde_json::to_string(&share.protected.after).unwrap_or_default();
        let program = program.to_owned();
        let processes = match level {
            // The kernel counts them, in the command's own user namespace.
            Level::BwrapUser | Level::Off => 0,
            Level::BwrapRoot | Level::Landlock => settings.limits.processes,
        };
        Ok(Plan { level, program, arguments, processes, afterwards, share: Some(share) })
    }
}

impl Grants {
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
            afterwards: String::new(),
            share: None,
        }
    }

    /// To be called when the command is gone and its guard, which does the same, did not say so.
    pub fn tidy(&self) -> Vec<Tidied> {
        self.share.iter().flat_map(|share| after::put_right(&share.protected.after)).collect()
    }
}

/// Puts right what a command did to protected paths that could not be mounted over: `.git/commondir`,
/// for one, would lead git to another configuration. Says which, for [`Tidied::read`].
pub fn put_right(afterwards: &str) -> Vec<String> {
    let all = serde_json::from_str::<Vec<Afterwards>>(afterwards).unwrap_or_default();
    after::put_right(&all).iter().filter_map(|one| serde_json::to_string(one).ok()).collect()
}

impl Tidied {
    pub fn read(said: &[String]) -> Vec<Tidied> {
        said.iter().filter_map(|one| serde_json::from_str(one).ok()).collect()
    }
}

impl Drop for Share {
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

/// Of what is mounted on itself in the workspace: by what the command's shell knows it again.
fn once_bound(rules: &Rules, protected: &Protected) -> Vec<Expected> {
    let mounts = rules.mounts().into_iter().filter(|rule| match &rule.show {
        Show::Writable(_) => protected.writable.contains(&rule.path),
        Show::Readable(_) => protected.read_only.contains(&rule.path),
        Show::HiddenDirectory | Show::HiddenFile | Show::Blank | Show::Private(_) => false,
    });
    let paths: Vec<PathBuf> = mounts.map(|rule| rule.path).collect();
    if paths.is_empty() {
        return Vec::new();
    }
    let table = MountTable::read();
    paths.iter().map(|path| table.once_bound(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_sandbox_that_fell_to_nothing_is_said_aloud_and_one_that_was_switched_off_is_not() {
        let check = |found: Result<Found, Error>, expected: &[&str]| {
            let settings = Sandbox::off().0.settings.clone();
            let sandbox = Sandbox::new(settings);
            sandbox.0.found.set(found).unwrap();
            assert_eq!(sandbox.warnings(), expected);
        };
        let found = |level, because: Option<&str>| {
            Ok(Found { level, because: because.map(str::to_owned), landlock: 0 })
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
    fn what_is_protected_does_not_change_while_commands_run_in_the_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().canonicalize().unwrap();
        let sandbox = Sandbox::off();
        let first = sandbox.share(&workspace, false);
        fs::create_dir_all(workspace.join(".claude/agents")).unwrap();
        let second = sandbox.share(&workspace, false);
        assert_eq!((&first.protected, first.protected.read_only.len()), (&second.protected, 0));
        drop(first);
        assert_eq!(sandbox.share(&workspace, false).protected, second.protected);
        drop(second);
        let next = sandbox.share(&workspace, false);
        assert_eq!(next.protected.read_only, [workspace.join(".claude/agents")]);
    }

    #[test]
    fn a_definition_of_a_workspace_opens_no_network_that_is_off() {
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
