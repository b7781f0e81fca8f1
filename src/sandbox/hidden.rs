//! The deny list of the file tools: our own files and the user's credentials, which agents do not see
//! unasked even if they lie inside the workspace. Commands have mounts for the same purpose.

use std::path::{Path, PathBuf};

use super::places::{SECRETS, SYSTEM_SECRETS};
use super::{Sandbox, Settings};

/// Why a path is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenKind {
    /// It belongs to asyncagents (token, tasks, conversations, keys): no permission opens it.
    Own,
    /// It holds credentials of the user, who may permit access.
    Credentials,
}

/// The canonical paths that are hidden from agents of one workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenPlaces(Vec<(PathBuf, HiddenKind)>);

impl Sandbox {
    /// What is hidden from agents of this workspace. A place that contains the workspace is not: the
    /// user chose to launch an agent there.
    pub fn hidden_from(&self, workspace: &Path) -> HiddenPlaces {
        let Settings { own, user, .. } = &self.0.settings;
        let home = user.home.iter();
        let secrets = home.flat_map(|home| SECRETS.iter().map(|secret| home.join(secret)));
        let secrets = secrets.chain(SYSTEM_SECRETS.iter().map(PathBuf::from));
        let all = own.iter().cloned().map(|path| (path, HiddenKind::Own));
        let all = all.chain(secrets.map(|path| (path, HiddenKind::Credentials)));
        let real = all.filter_map(|(path, why)| Some((path.canonicalize().ok()?, why)));
        HiddenPlaces(real.filter(|(path, _)| !workspace.starts_with(path)).collect())
    }
}

impl HiddenPlaces {
    /// Whether a canonical path is hidden or inside a hidden place, and why.
    pub fn kind_of(&self, path: &Path) -> Option<HiddenKind> {
        let mut places = self.0.iter();
        places.find(|(place, _)| path.starts_with(place)).map(|(_, why)| *why)
    }

    /// Only the places strictly below a directory: those that a walk through it can meet.
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
        let check = |workspace: &str, path: &str, expected: Option<HiddenKind>| {
            let places = sandbox.hidden_from(&home.join(workspace));
            assert_eq!(places.kind_of(&home.join(path)), expected, "{workspace} {path}");
        };
        check("", ".store/token", Some(HiddenKind::Own));
        check("", ".ssh", Some(HiddenKind::Credentials));
        check("", ".ssh/id", Some(HiddenKind::Credentials));
        check("", ".sshd", None);
        check("work", ".store/token", Some(HiddenKind::Own));
        check(".ssh", ".ssh/config", None);
        let below = |path: &str| sandbox.hidden_from(&home).below(&home.join(path)).0.len();
        assert_eq!((below(""), below("work"), below(".ssh")), (2, 0, 0));
    }
}
