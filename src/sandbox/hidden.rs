//! What of a file system agents do not see unasked, wherever their workspace is: our own files and the
//! credentials of the user. For the tools that work on files; commands have mounts.

use std::path::{Path, PathBuf};

use super::places::{SECRETS, SYSTEM_SECRETS};
use super::{Sandbox, Settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// Token, tasks, conversations, keys: closed, whoever permits it.
    Own,
    /// A person may permit it.
    Credentials,
}

/// The places that are hidden in a workspace, free of links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenPlaces(Vec<(PathBuf, Hidden)>);

impl Sandbox {
    /// A place that the workspace is in was chosen by whoever launched the agent there.
    pub fn hidden_from(&self, workspace: &Path) -> HiddenPlaces {
        let Settings { own, user, .. } = &self.0.settings;
        let home = user.home.iter();
        let secrets = home.flat_map(|home| SECRETS.iter().map(|secret| home.join(secret)));
        let secrets = secrets.chain(SYSTEM_SECRETS.iter().map(PathBuf::from));
        let all = own.iter().cloned().map(|path| (path, Hidden::Own));
        let all = all.chain(secrets.map(|path| (path, Hidden::Credentials)));
        let real = all.filter_map(|(path, why)| Some((path.canonicalize().ok()?, why)));
        HiddenPlaces(real.filter(|(path, _)| !workspace.starts_with(path)).collect())
    }
}

impl HiddenPlaces {
    /// `path` is free of links.
    pub fn is_hidden(&self, path: &Path) -> Option<Hidden> {
        let mut places = self.0.iter();
        places.find(|(place, _)| path.starts_with(place)).map(|(_, why)| *why)
    }

    /// Those that whoever goes through a directory comes across.
    pub fn below(mut self, directory: &Path) -> HiddenPlaces {
        self.0.retain(|(place, _)| place.starts_with(directory) && place != directory);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn our_own_files_and_credentials_are_hidden_unless_the_workspace_is_in_them() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        for path in [".ssh", ".store", "work"] {
            fs::create_dir(home.join(path)).unwrap();
        }
        let mut settings = Sandbox::off().0.settings.clone();
        settings.user.home = Some(home.clone());
        settings.own = vec![home.join(".store"), home.join("missing")];
        let sandbox = Sandbox::new(settings);
        let check = |workspace: &str, path: &str, expected: Option<Hidden>| {
            let places = sandbox.hidden_from(&home.join(workspace));
            assert_eq!(places.is_hidden(&home.join(path)), expected, "{workspace} {path}");
        };
        check("", ".store/token", Some(Hidden::Own));
        check("", ".ssh", Some(Hidden::Credentials));
        check("", ".ssh/id", Some(Hidden::Credentials));
        check("", ".sshd", None);
        check("work", ".store/token", Some(Hidden::Own));
        check(".ssh", ".ssh/config", None);
        let below = |path: &str| sandbox.hidden_from(&home).below(&home.join(path)).0.len();
        assert_eq!((below(""), below("work"), below(".ssh")), (2, 0, 0));
    }
}
