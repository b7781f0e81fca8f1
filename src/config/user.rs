//! Where the user's programs are, from the environment: home, `PATH` and the homes of toolchains, which commands in the
//! sandbox must be able to read, or no compiler would be found there. Relative paths are ignored: they would depend on
//! the directory the daemon was started in.

use std::path::{Path, PathBuf};

use super::{Environment, Error};

/// Variables that name the home of a toolchain.
const TOOLCHAINS: [&str; 17] = [
    "CARGO_HOME",
    "RUSTUP_HOME",
    "NVM_DIR",
    "NVM_BIN",
    "FNM_DIR",
    "VOLTA_HOME",
    "BUN_INSTALL",
    "DENO_INSTALL",
    "PNPM_HOME",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "RBENV_ROOT",
    "ASDF_DATA_DIR",
    "JAVA_HOME",
    "GOROOT",
    "GOPATH",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub home: Option<PathBuf>,
    /// Homes of toolchains that are not where they usually are.
    pub toolchains: Vec<PathBuf>,
    /// The directories of `PATH`.
    pub path: Vec<PathBuf>,
}

impl User {
    pub(super) fn of(environment: &Environment) -> Result<User, Error> {
        // An empty or relative entry of `PATH` means the current directory, which is another one for the daemon.
        let absolute = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        let mut toolchains = Vec::new();
        for name in TOOLCHAINS {
            toolchains.extend(environment.get(name)?.and_then(absolute));
        }
        let path = environment.get("PATH")?.unwrap_or_default();
        Ok(User {
            home: environment.get("HOME")?.and_then(absolute),
            toolchains,
            path: path.split(':').filter_map(absolute).collect(),
        })
    }

    /// What the configuration calls `~/…`.
    pub fn expand(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), &self.home) {
            (Some(below), Some(home)) => home.join(below),
            (_, _) => Path::new(path).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_and_programs_are_found_in_the_environment() {
        let environment = Environment::of([
            ("HOME", "/home/ada"),
            ("PATH", "/home/ada/bin:relative:/usr/bin:"),
            ("CARGO_HOME", "/data/cargo"),
            ("GOPATH", "relative"),
        ]);
        let user = User::of(&environment).unwrap();
        let expected = User {
            home: Some("/home/ada".into()),
            toolchains: vec!["/data/cargo".into()],
            path: vec!["/home/ada/bin".into(), "/usr/bin".into()],
        };
        assert_eq!(user, expected);
        assert_eq!(user.expand("~/data"), Path::new("/home/ada/data"));
        assert_eq!(user.expand("/data"), Path::new("/data"));
    }
}
