//! How a client's configuration names this program: `asyncagents` when the `PATH` leads to this very file, so that
//! the configuration can be shared between machines, and its absolute path otherwise.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::NAME;
use crate::config::Settings;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Program {
    OnThePath,
    At(String),
}

impl Program {
    pub(super) fn this(settings: &Settings) -> anyhow::Result<Program> {
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        Program::find(&this, settings.search_path.as_deref())
    }

    fn find(this: &Path, search_path: Option<&OsStr>) -> anyhow::Result<Program> {
        // Only absolute folders: a relative one leads somewhere else from the client's directory.
        let found = std::env::split_paths(search_path.unwrap_or_default())
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(NAME))
            .find(|file| is_program(file));
        if found.is_some_and(|found| resolved(&found) == resolved(this)) {
            return Ok(Program::OnThePath);
        }
        let path = this.to_str().with_context(|| {
            let shown = this.display();
            format!("the path `{shown}` is not UTF-8; move the program and try again")
        })?;
        Ok(Program::At(path.to_owned()))
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Program::OnThePath => NAME,
            Program::At(path) => path,
        }
    }

    pub(super) fn warning(&self) -> Option<&'static str> {
        match self {
            Program::OnThePath => None,
            Program::At(_) => Some(
                "`asyncagents` is not on the PATH, or is another program there, so the entry has \
                 this machine's absolute path: do not share that file. For an entry that works \
                 everywhere, run `cargo install --path .` and install again.",
            ),
        }
    }
}

fn is_program(file: &Path) -> bool {
    let metadata = std::fs::metadata(file);
    metadata.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn resolved(file: &Path) -> PathBuf {
    std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_program_is_named_without_a_directory_when_it_is_the_first_of_that_name_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (build, link, other, text) =
            (folder("build"), folder("link"), folder("other"), folder("text"));
        let this = build.join(NAME);
        for program in [&this, &other.join(NAME)] {
            fs::write(program, "").unwrap();
            fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        symlink(&this, link.join(NAME)).unwrap();
        fs::write(text.join(NAME), "no program").unwrap();
        let check = |folders: &[&Path], expected: Program| {
            let path = std::env::join_paths(folders).unwrap();
            assert_eq!(Program::find(&this, Some(&path)).unwrap(), expected, "{folders:?}");
        };
        let at = || Program::At(this.to_str().unwrap().to_owned());
        check(&[&build], Program::OnThePath);
        check(&[&link, &other], Program::OnThePath);
        check(&[&text, Path::new("/nowhere"), &link], Program::OnThePath);
        check(&[&other, &link], at());
        check(&[&text], at());
        check(&[], at());
        assert_eq!(Program::find(&this, None).unwrap(), at());
    }
}
