//! Workspace trust: which directories may define agents by the files in them (X1). One JSON file in
//! the storage directory, read at every use, so that a decision needs no daemon and no restart.
//!
//! Trust belongs to a canonical path and to that directory alone: one below it is another workspace. It
//! is not tied to the contents, which every `git pull` changes, nor to an inode, which file systems
//! reuse. It is tied to the owner of the directory: under a path such as `/tmp/x`, another user could
//! otherwise put their own directory where a trusted one was deleted. A list that cannot be read, or
//! that others may write, means that nothing is trusted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private_file::{self, PrivateFile};

/// Room for thousands of entries. A larger file was not written by us and is not read.
const LARGEST_LIST: usize = 1024 * 1024;

/// A handle to the trust list; nothing is cached, and cloning it is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    file: PrivateFile,
}

/// What the user answered when asked about a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Trusted,
    /// Not trusted, and the question is not asked again.
    Declined,
}

/// A directory, and whether the agents its files define may be used.
#[derive(Debug)]
pub struct Workspace {
    /// The canonical path, or the path as given if it cannot be resolved.
    pub path: PathBuf,
    pub status: TrustStatus,
}

/// What the list says about a workspace now.
#[derive(Debug)]
pub enum TrustStatus {
    Trusted,
    Declined,
    Undecided,
    /// The list cannot be read; treated as not trusted.
    Unknown(Error),
}

/// A line of the list, for `asyncagents trust --list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListEntry {
    pub path: String,
    pub state: State,
}

/// What a recorded decision is worth now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Trusted,
    Declined,
    /// The directory no longer exists.
    Missing,
    /// The directory has another owner now, so the decision does not hold.
    Replaced,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no directory `{path}`: {error}; give one that exists")]
    NoDirectory { path: String, error: io::Error },
    #[error("the path `{0}` is not UTF-8 text and cannot be kept in a list; rename the directory")]
    NotText(String),
    #[error(
        "cannot read the trust list `{file}`, so no workspace is trusted: {why}; repair or delete \
         it, then trust workspaces again"
    )]
    Unreadable { file: String, why: String },
    #[error(
        "the trust list `{file}` can be written by others, so no workspace is trusted; look through \
         it, then `chmod 600 {file}`"
    )]
    Writable { file: String },
    #[error("cannot write the trust list `{file}`: {error}; make its directory writable")]
    Unwritable { file: String, error: io::Error },
    #[error("the trust list `{file}` is full; `asyncagents untrust` directories that are gone")]
    Full { file: String },
}

/// The format of the file. Unknown keys are an error: a later version may use one to narrow a decision,
/// and ignoring it would widen the trust.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    workspaces: BTreeMap<String, Entry>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    decision: Decision,
    /// The user id that owned the directory at the time of the decision.
    owner: u32,
}

impl Trust {
    pub fn in_home(home: &Path) -> Trust {
        Trust { file: PrivateFile::own(home.join("trust.json"), LARGEST_LIST) }
    }

    /// Looks a workspace up. Never fails: whatever goes wrong is a [`TrustStatus`] that is not trusted.
    pub fn look(&self, directory: &Path) -> Workspace {
        let Ok(place) = DirectoryIdentity::of(directory) else {
            // Entries are keyed by canonical path, and this has none.
            return Workspace { path: directory.to_owned(), status: TrustStatus::Undecided };
        };
        let status = match self.read() {
            Ok(list) => place.status(&list),
            Err(error) => TrustStatus::Unknown(error),
        };
        Workspace { path: place.path.into(), status }
    }

    /// Records a decision and returns the canonical path that it is stored under.
    pub fn decide(&self, directory: &Path, decision: Decision) -> Result<String, Error> {
        let DirectoryIdentity { path, owner } = DirectoryIdentity::of(directory)?;
        self.change(|list| {
            list.workspaces.insert(path.clone(), Entry { decision, owner });
        })?;
        Ok(path)
    }

    /// Removes an entry, by the path as it is listed: the directory itself may be gone. `false` when
    /// there was no such entry.
    pub fn forget(&self, path: &str) -> Result<bool, Error> {
        let mut was_there = false;
        self.change(|list| was_there = list.workspaces.remove(path).is_some())?;
        Ok(was_there)
    }

    pub fn list(&self) -> Result<Vec<ListEntry>, Error> {
        let list = self.read()?;
        let listed = |(path, entry): (String, Entry)| {
            let state = match (fs::metadata(&path), entry.decision) {
                (Ok(now), _) if now.uid() != entry.owner => State::Replaced,
                (Ok(now), Decision::Trusted) if now.is_dir() => State::Trusted,
                (Ok(now), Decision::Declined) if now.is_dir() => State::Declined,
                (Ok(_) | Err(_), Decision::Trusted | Decision::Declined) => State::Missing,
            };
            ListEntry { path, state }
        };
        Ok(list.workspaces.into_iter().map(listed).collect())
    }

    fn change(&self, change: impl FnOnce(&mut List)) -> Result<(), Error> {
        let unwritable = |error| Error::Unwritable { file: self.name(), error };
        // Read under the lock: two `asyncagents trust` at once must not drop each other's entry.
        let lock = self.file.lock().map_err(unwritable)?;
        let mut list = self.read()?;
        change(&mut list);
        let mut text = serde_json::to_string_pretty(&list).expect("a list of paths is JSON");
        text.push('\n');
        // Checked before writing: a larger list could never be read again.
        if text.len() > LARGEST_LIST {
            return Err(Error::Full { file: self.name() });
        }
        lock.replace(&text).map_err(unwritable)
    }

    fn read(&self) -> Result<List, Error> {
        let unreadable = |why: String| Error::Unreadable { file: self.name(), why };
        let text = match self.file.read() {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(List::default()),
            Err(private_file::Error::Exposed) => return Err(Error::Writable { file: self.name() }),
            Err(private_file::Error::Io(error)) => return Err(unreadable(error.to_string())),
        };
        // Unlike with keys, the parser's message may quote the file: paths are no secret here.
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))
    }

    fn name(&self) -> String {
        self.file.path().display().to_string()
    }
}

impl Workspace {
    pub fn is_trusted(&self) -> bool {
        match self.status {
            TrustStatus::Trusted => true,
            TrustStatus::Declined | TrustStatus::Undecided | TrustStatus::Unknown(_) => false,
        }
    }
}

/// A directory by what identifies it in the list.
struct DirectoryIdentity {
    path: String,
    owner: u32,
}

impl DirectoryIdentity {
    fn of(directory: &Path) -> Result<DirectoryIdentity, Error> {
        let no_directory =
            |error| Error::NoDirectory { path: directory.display().to_string(), error };
        let path = fs::canonicalize(directory).map_err(no_directory)?;
        let metadata = fs::metadata(&path).map_err(no_directory)?;
        if !metadata.is_dir() {
            return Err(no_directory(io::ErrorKind::NotADirectory.into()));
        }
        let not_text = |path: PathBuf| Error::NotText(path.display().to_string());
        let path = path.into_os_string().into_string().map_err(|path| not_text(path.into()))?;
        Ok(DirectoryIdentity { path, owner: metadata.uid() })
    }

    fn status(&self, list: &List) -> TrustStatus {
        match list.workspaces.get(&self.path) {
            // Another user's directory under a path that was once trusted: ask again.
            Some(entry) if entry.owner != self.owner => TrustStatus::Undecided,
            Some(Entry { decision: Decision::Trusted, .. }) => TrustStatus::Trusted,
            Some(Entry { decision: Decision::Declined, .. }) => TrustStatus::Declined,
            None => TrustStatus::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A storage directory and workspaces beside it.
    struct World {
        root: tempfile::TempDir,
        trust: Trust,
    }

    impl World {
        fn new() -> World {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("home")).unwrap();
            fs::create_dir_all(root.path().join("a/below")).unwrap();
            let trust = Trust::in_home(&root.path().join("home"));
            World { root, trust }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(name)
        }

        fn look(&self, name: &str) -> String {
            format!("{:?}", self.trust.look(&self.path(name)).status)
        }

        fn write(&self, text: &str) {
            fs::write(self.trust.file.path(), text).unwrap();
            fs::set_permissions(self.trust.file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        }

        fn decide(&self, name: &str, decision: Decision) -> String {
            self.trust.decide(&self.path(name), decision).unwrap()
        }

        fn listed(&self) -> Vec<(String, State)> {
            let root = self.root.path().canonicalize().unwrap();
            let inside = |path: &str| {
                let inside = Path::new(path).strip_prefix(&root).unwrap();
                inside.to_str().unwrap().to_owned()
            };
            let listed = self.trust.list().unwrap().into_iter();
            listed.map(|entry| (inside(&entry.path), entry.state)).collect()
        }
    }

    #[test]
    fn a_workspace_is_untrusted_until_it_is_trusted_and_trust_is_taken_back() {
        let world = World::new();
        assert_eq!(world.look("a"), "Undecided");
        world.decide("a", Decision::Trusted);
        assert_eq!(world.look("a"), "Trusted");
        world.decide("a", Decision::Declined);
        assert_eq!(world.look("a"), "Declined");
        assert_eq!(world.listed(), [("a".to_owned(), State::Declined)]);
        let mode = fs::metadata(world.trust.file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn trust_is_for_one_directory_by_its_path_without_links() {
        let world = World::new();
        std::os::unix::fs::symlink(world.path("a"), world.path("link")).unwrap();
        let path = world.decide("link", Decision::Trusted);
        assert_eq!(Path::new(&path), world.path("a").canonicalize().unwrap());
        for (name, expected) in [
            ("a", "Trusted"),
            ("link", "Trusted"),
            ("a/below/..", "Trusted"),
            ("a/below", "Undecided"),
            (".", "Undecided"),
            ("nowhere", "Undecided"),
        ] {
            assert_eq!(world.look(name), expected, "{name}");
        }
        // The link is not what was trusted.
        fs::remove_file(world.path("link")).unwrap();
        std::os::unix::fs::symlink(world.path("a/below"), world.path("link")).unwrap();
        assert_eq!(world.look("link"), "Undecided");
    }

    #[test]
    fn a_directory_that_now_has_another_owner_is_not_trusted() {
        let world = World::new();
        world.decide("a", Decision::Trusted);
        world.decide("a/below", Decision::Trusted);
        fs::remove_dir(world.path("a/below")).unwrap();
        let gone = [("a".to_owned(), State::Trusted), ("a/below".to_owned(), State::Missing)];
        assert_eq!(world.listed(), gone);
        // Who owns a directory cannot be changed by everybody, so the list says another owner.
        let owner = fs::metadata(world.path("a")).unwrap().uid();
        let text = fs::read_to_string(world.trust.file.path()).unwrap();
        let other = format!("\"owner\": {}", owner + 1);
        world.write(&text.replace(&format!("\"owner\": {owner}"), &other));
        assert_eq!(world.look("a"), "Undecided");
        let replaced = [("a".to_owned(), State::Replaced), ("a/below".to_owned(), State::Missing)];
        assert_eq!(world.listed(), replaced);
    }

    #[test]
    fn a_path_is_taken_off_the_list_also_when_the_directory_is_gone() {
        let world = World::new();
        let path = world.decide("a/below", Decision::Trusted);
        fs::remove_dir(world.path("a/below")).unwrap();
        assert!(world.trust.forget(&path).unwrap());
        assert!(!world.trust.forget(&path).unwrap());
        assert_eq!(world.listed(), []);
    }

    #[test]
    fn a_path_that_is_no_directory_cannot_be_trusted() {
        let world = World::new();
        fs::write(world.path("file"), "").unwrap();
        for name in ["file", "nowhere"] {
            let error = world.trust.decide(&world.path(name), Decision::Trusted).unwrap_err();
            assert!(error.to_string().ends_with("; give one that exists"), "{error}");
        }
        assert!(!world.trust.file.path().exists());
    }

    #[test]
    fn a_list_that_cannot_be_read_trusts_nothing_and_is_not_overwritten() {
        let world = World::new();
        world.decide("a", Decision::Trusted);
        let good = fs::read_to_string(world.trust.file.path()).unwrap();
        let unknown_key = good.replace("\"owner\"", "\"only\": \"b\", \"owner\"");
        let large = format!("{good}{}", " ".repeat(LARGEST_LIST));
        for text in ["", "{", "[]", "{\"workspaces\": 1}", &unknown_key, &large] {
            world.write(text);
            let shown: String = text.chars().take(300).collect();
            assert!(world.look("a").starts_with("Unknown(Unreadable"), "{shown}");
            let error = world.trust.decide(&world.path("a"), Decision::Trusted).unwrap_err();
            let start =
                format!("cannot read the trust list `{}`", world.trust.file.path().display());
            assert!(error.to_string().starts_with(&start), "{error}");
            assert_eq!(fs::read_to_string(world.trust.file.path()).unwrap(), text);
        }
        world.write(&good);
        assert_eq!(world.look("a"), "Trusted");
    }

    #[test]
    fn a_list_that_others_can_write_or_that_is_no_regular_file_trusts_nothing() {
        let world = World::new();
        world.decide("a", Decision::Trusted);
        fs::set_permissions(world.trust.file.path(), fs::Permissions::from_mode(0o620)).unwrap();
        assert!(world.look("a").starts_with("Unknown(Writable"));
        fs::set_permissions(world.trust.file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(world.trust.file.path(), world.path("moved")).unwrap();
        std::os::unix::fs::symlink(world.path("moved"), world.trust.file.path()).unwrap();
        assert!(world.look("a").starts_with("Unknown(Unreadable"));
        fs::remove_file(world.trust.file.path()).unwrap();
        fs::create_dir(world.trust.file.path()).unwrap();
        assert!(world.look("a").starts_with("Unknown(Unreadable"));
    }

    #[test]
    fn concurrent_decisions_are_all_kept() {
        let world = World::new();
        let names: Vec<String> = (0..16).map(|n| format!("w{n:02}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                fs::create_dir(world.path(name)).unwrap();
                scope.spawn(|| world.decide(name, Decision::Trusted));
            }
        });
        let expected: Vec<_> = names.into_iter().map(|name| (name, State::Trusted)).collect();
        assert_eq!(world.listed(), expected);
    }
}
