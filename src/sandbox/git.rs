//! What of a workspace commands must not write: files that make git or an agent run something for the
//! person later (`.git/hooks`, `.git/config`, agent definitions), and where the real git directory is.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders of a workspace whose files define agents.
const DEFINITIONS: [&str; 3] = [".claude/agents", ".opencode/agent", ".opencode/agents"];

const SETTINGS: [&str; 2] = ["config", "config.worktree"];
const HOOKS: &str = "hooks";
/// Leads git to the configuration of another directory.
const COMMON: &str = "commondir";

/// Submodules and their submodules; more than this are not looked for.
const MOST_MODULES: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Protected {
    /// Mounted on themselves, so that they cannot be renamed away from under what is in them; a git
    /// directory outside the workspace is among them.
    pub(super) writable: Vec<PathBuf>,
    pub(super) read_only: Vec<PathBuf>,
    /// Not there, and not to be there after the command.
    pub(super) absent: Vec<PathBuf>,
}

/// Whether the tools that write files must leave this one alone. `path` is free of links.
pub fn is_protected(workspace: &Path, path: &Path) -> bool {
    let inside = path.strip_prefix(workspace).unwrap_or(path);
    let names: Vec<String> = inside
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().to_lowercase()),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        })
        .collect();
    let last = names.last().map_or("", String::as_str);
    let in_git = names.iter().position(|name| name == ".git").map(|at| &names[at + 1..]);
    let of_git = in_git.is_some_and(|rest| {
        rest.is_empty()
            || rest.iter().any(|name| name == HOOKS)
            || SETTINGS.contains(&last)
            || last == COMMON
    });
    let joined = format!("/{}/", names.join("/"));
    of_git || DEFINITIONS.iter().any(|folder| joined.contains(&format!("/{folder}/")))
}

/// Makes the folders of a trusted workspace that are missing, so that they can be mounted over.
pub(super) fn protected(workspace: &Path, trusted: bool) -> Protected {
    let mut found = Protected::default();
    for folder in DEFINITIONS {
        let folder = workspace.join(folder);
        if trusted && !folder.exists() {
            // What cannot be made cannot be made by the command either.
            let _ = fs::create_dir_all(&folder);
        }
        found.pin_parent(workspace, &folder);
        found.add(folder);
    }
    let git = workspace.join(".git");
    if git.is_dir() {
        found.git_directory(&git);
    } else if git.is_file() {
        found.read_only.push(git.clone());
        for directory in real_directories(workspace, &git) {
            found.git_directory(&directory);
        }
    }
    found
}

impl Protected {
    fn add(&mut self, path: PathBuf) {
        match path.canonicalize() {
            Ok(real) => self.read_only.push(real),
            Err(_) => self.absent.push(path),
        }
    }

    fn pin_parent(&mut self, workspace: &Path, path: &Path) {
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        if let Some(parent) = parent.filter(|parent| parent.starts_with(workspace)) {
            self.writable.push(parent);
        }
    }

    fn git_directory(&mut self, git: &Path) {
        let Ok(git) = git.canonicalize() else { return };
        // Both are made where they are missing: git does not mind, and then they can be mounted over.
        let _ = fs::create_dir(git.join(HOOKS));
        self.writable.push(git.clone());
        self.add(git.join(HOOKS));
        self.add(git.join(SETTINGS[0]));
        for path in [git.join(SETTINGS[1]), git.join(COMMON)] {
            self.add(path);
        }
        let mut left = MOST_MODULES;
        self.modules(&git.join("modules"), &mut left);
    }

    /// Git directories of submodules, which may be nested in folders and in each other.
    fn modules(&mut self, folder: &Path, left: &mut usize) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if *left == 0 || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            *left -= 1;
            let path = entry.path();
            match path.join("HEAD").exists() {
                true => self.git_directory(&path),
                false => self.modules(&path, left),
            }
        }
    }
}

/// What a `.git` file leads to: the worktree's own directory and the one it shares. Only when that
/// directory leads back here, so that a file that came with an archive opens nothing else.
fn real_directories(workspace: &Path, file: &Path) -> Vec<PathBuf> {
    let Some(own) = link(file, "gitdir:", workspace) else { return Vec::new() };
    let back = fs::read_to_string(own.join("gitdir")).ok();
    let is_worktree = back.is_some_and(|back| same(&own.join(back.trim()), file));
    let is_submodule = || {
        let config = fs::read_to_string(own.join(SETTINGS[0])).unwrap_or_default();
        let line = config.lines().find_map(|line| line.trim().strip_prefix("worktree"));
        let path = line.and_then(|line| line.trim().strip_prefix('='));
        path.is_some_and(|path| same(&own.join(path.trim()), workspace))
    };
    if is_worktree {
        // The shared directory holds the worktree's own.
        let common = link(&own.join(COMMON), "", &own);
        return common.filter(|common| own.starts_with(common)).into_iter().collect();
    }
    if is_submodule() { vec![own] } else { Vec::new() }
}

/// The path in a small file, relative to `base`.
fn link(file: &Path, prefix: &str, base: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(file).ok()?;
    base.join(text.trim().strip_prefix(prefix)?.trim()).canonicalize().ok()
}

fn same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_settings_and_agent_definitions_are_protected_at_any_depth() {
        let check = |path: &str, expected: bool| {
            assert_eq!(
                is_protected(Path::new("/w"), &Path::new("/w").join(path)),
                expected,
                "{path}"
            );
        };
        for path in [
            ".git",
            ".git/hooks/pre-commit",
            ".git/config",
            ".GIT/Config",
            ".git/config.worktree",
            ".git/commondir",
            ".git/modules/a/config",
            ".git/modules/a/hooks/post-checkout",
            "vendor/.git/hooks/x",
            ".claude/agents/x.md",
            "sub/.claude/agents/x.md",
            ".opencode/agent/x.md",
            ".opencode/agents/deep/x.md",
        ] {
            check(path, true);
        }
        for path in [
            "config",
            "hooks/pre-commit",
            ".gitignore",
            ".github/config",
            ".git/info/exclude",
            ".git/COMMIT_EDITMSG",
            ".claude/settings.json",
            "agents/x.md",
        ] {
            check(path, false);
        }
    }

    fn file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_directory_behind_a_git_file_counts_only_when_it_leads_back() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let (main, tree) = (top.join("main/.git"), top.join("tree"));
        file(&main.join("config"), "");
        file(&main.join("worktrees/tree/commondir"), "../..\n");
        let text = format!("{}\n", tree.join(".git").display());
        file(&main.join("worktrees/tree/gitdir"), &text);
        let text = format!("gitdir: {}\n", main.join("worktrees/tree").display());
        file(&tree.join(".git"), &text);
        let found = protected(&tree, false);
        assert_eq!(found.writable, vec![main.clone()]);
        assert_eq!(found.read_only, [tree.join(".git"), main.join("hooks"), main.join("config")]);

        let other = top.join("other");
        file(&other.join(".git"), &text);
        let found = protected(&other, false);
        assert_eq!((found.writable, found.read_only), (vec![], vec![other.join(".git")]));
    }
}
