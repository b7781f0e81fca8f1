//! Protected paths of a workspace: files through which a command could make git, an agent or an editor
//! run something outside the sandbox later (`.git/hooks`, `.git/config`, agent definitions, settings of
//! coding agents). Those that exist are mounted read-only, and the directories around them are pinned by
//! mounting them on themselves, because a mount point cannot be renamed but a directory around one can.
//! What does not exist yet cannot be mounted over and is repaired afterwards. A `.git` file may lead to
//! a git directory elsewhere (worktrees, submodules); it is believed only if that leads back.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::repair::{Anchor, Repair};

/// Directories of a workspace whose files define agents.
const DEFINITIONS: [&str; 3] = [".claude/agents", ".opencode/agent", ".opencode/agents"];

/// Files and directories that coding agents and editors execute, or read commands from, when they are
/// opened in the workspace.
const EXECUTED: [&str; 20] = [
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/commands",
    ".claude/skills",
    ".claude/hooks",
    ".mcp.json",
    "opencode.json",
    "opencode.jsonc",
    ".opencode/opencode.json",
    ".opencode/opencode.jsonc",
    ".opencode/plugin",
    ".opencode/plugins",
    ".opencode/tool",
    ".opencode/tools",
    ".opencode/command",
    ".opencode/commands",
    ".vscode/mcp.json",
    ".cursor/mcp.json",
    ".gemini",
    ".codex",
];

/// Git's configuration files, which can name programs to run (`core.fsmonitor`, `core.sshCommand`).
const SETTINGS: [&str; 2] = ["config", "config.worktree"];
const HOOKS: &str = "hooks";
/// Makes git use the configuration of another directory.
const COMMON: &str = "commondir";
/// In the git directory of a worktree: the path back to the worktree.
const BACK: &str = "gitdir";

/// Submodules (nested ones too) and worktrees; more than this are not looked for.
const MOST_MODULES: usize = 256;

/// The protected paths of one workspace. All are canonical and inside the workspace or a git directory
/// that leads back to it: a symlink that one command has put there must not decide what is mounted for
/// the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProtectedPaths {
    /// Pinned: mounted on themselves, so that they cannot be renamed away together with the read-only
    /// mounts inside. A git directory outside the workspace is among them.
    pub(super) writable: Vec<PathBuf>,
    pub(super) read_only: Vec<PathBuf>,
    /// What cannot be mounted over and is checked after the command.
    pub(super) after: Vec<Repair>,
}

/// Whether the file tools must not write this path, which must be canonical. Stricter than the mounts:
/// it holds at any depth (a nested repository, too) and ignores case, as some file systems do.
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
            || last == BACK
    });
    let joined = format!("/{}/", names.join("/"));
    let mut all = DEFINITIONS.iter().chain(&EXECUTED);
    of_git || all.any(|path| joined.contains(&format!("/{path}/")))
}

/// Finds the protected paths. In a trusted workspace, missing directories for agent definitions are
/// created, so that they can be mounted over: there a definition counts at once, also for an agent that
/// starts while the command still runs.
pub(super) fn protected(workspace: &Path, trusted: bool) -> ProtectedPaths {
    let mut found = ProtectedPaths::default();
    // If it cannot be opened, bubblewrap cannot bind it either, and the command fails anyway.
    let Ok(anchor) = Anchor::at(workspace) else { return found };
    for folder in DEFINITIONS.map(|folder| workspace.join(folder)) {
        let parent = folder.parent().unwrap_or(workspace);
        if trusted && !is_link(parent) && !is_link(&folder) {
            // If we cannot create it, neither can the command.
            let _ = fs::create_dir_all(&folder);
        }
    }
    // Each parent (`.claude`, `.opencode`, …) once: a symlink is restored afterwards, a real directory
    // is pinned, or a command could rename it away with the mounts inside and put another in its place.
    let mut parents: Vec<PathBuf> = Vec::new();
    for path in DEFINITIONS.iter().chain(&EXECUTED).map(|path| workspace.join(path)) {
        let parent = path.parent().unwrap_or(workspace);
        if parent != workspace && !parents.iter().any(|known| known == parent) {
            found.keep_link(&anchor, parent);
            let is_pinned = found.writable.iter().any(|path| path == parent);
            if !is_pinned && parent.is_dir() && !is_link(parent) {
                found.writable.push(parent.to_owned());
            }
            parents.push(parent.to_owned());
        }
        found.add(&anchor, workspace, path);
    }
    let git = workspace.join(".git");
    found.keep_link(&anchor, &git);
    match fs::symlink_metadata(&git) {
        // A worktree or a submodule: the file itself is protected, and what it leads to.
        Ok(kind) if kind.is_file() => {
            found.read_only.push(git.clone());
            for real in real_directories(workspace, &git) {
                if let Ok(anchor) = Anchor::at(&real) {
                    found.git_directory(&anchor, &real);
                }
            }
        }
        Ok(_) => match git.canonicalize() {
            // A link that leads outside is not followed: what it leads to is not writable anyway.
            Ok(real) if real.starts_with(workspace) => found.git_directory(&anchor, &real),
            Ok(_) | Err(_) => {}
        },
        Err(_) => {}
    }
    found
}

impl ProtectedPaths {
    /// Protects one path, by a mount if it exists, else by a repair. `root` is canonical, and the anchor
    /// or below it.
    fn add(&mut self, anchor: &Anchor, root: &Path, path: PathBuf) {
        // One `lstat` decides the usual case (nothing there): this is done for every command.
        match fs::symlink_metadata(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A symlinked parent is the user's own and is kept as it is; removing something behind
                // it would delete outside the workspace.
                if !path.parent().is_some_and(is_link) {
                    self.after.extend(anchor.without(&path));
                }
                return;
            }
            Err(_) => return self.keep_parent(anchor, root, &path),
        }
        self.keep_link(anchor, &path);
        let is_inside = |real: &PathBuf| real.starts_with(root);
        match path.canonicalize() {
            Ok(real) if is_inside(&real) => {
                self.pin_above(anchor, &real);
                self.read_only.push(real);
            }
            Ok(_) => {}
            // As above: the link itself is restored, and nothing behind it is touched.
            Err(_) if is_link(&path) || path.parent().is_some_and(is_link) => {}
            Err(_) => self.after.extend(anchor.without(&path)),
        }
    }

    /// For a path that cannot be examined because its parent is a file, or a directory closed to its
    /// owner. That parent is the user's own, so it is made read-only, and nothing in it is ever removed.
    fn keep_parent(&mut self, anchor: &Anchor, root: &Path, path: &Path) {
        let Some(parent) = path.parent().filter(|parent| !is_link(parent)) else { return };
        let real = parent.canonicalize().ok().filter(|real| real.starts_with(root));
        if let Some(real) = real.filter(|real| !self.read_only.contains(real)) {
            if real != anchor.path() {
                self.pin_above(anchor, &real);
            }
            self.read_only.push(real);
        }
    }

    /// If the path is a symlink, has it restored after the command.
    fn keep_link(&mut self, anchor: &Anchor, path: &Path) {
        let link = anchor.with_link(path).filter(|link| !self.after.contains(link));
        self.after.extend(link);
    }

    /// Protects a git directory and those of its submodules and worktrees. `git` is canonical.
    fn git_directory(&mut self, anchor: &Anchor, git: &Path) {
        self.one_git_directory(anchor, git, &mut { MOST_MODULES });
    }

    fn one_git_directory(&mut self, anchor: &Anchor, git: &Path, left: &mut usize) {
        // Created if missing, so that it can be mounted over; git does not mind an empty one.
        let _ = fs::create_dir(git.join(HOOKS));
        if !self.writable.iter().any(|path| path == git) {
            self.writable.push(git.to_owned());
        }
        for name in [HOOKS, SETTINGS[0], SETTINGS[1], COMMON] {
            self.add(anchor, git, git.join(name));
        }
        self.modules(anchor, &git.join("modules"), left);
        self.worktrees(anchor, git, left);
    }

    /// Protects the files through which git finds a worktree's configuration: a changed `commondir`
    /// would make git use, and execute, that of another repository.
    fn worktrees(&mut self, anchor: &Anchor, git: &Path, left: &mut usize) {
        for worktree in ProtectedPaths::folders(&git.join("worktrees"), left) {
            for name in [COMMON, BACK, SETTINGS[1]] {
                self.add(anchor, git, worktree.join(name));
            }
            anchor.refresh(&worktree.join(BACK));
        }
    }

    /// Pins all directories between the anchor and `path`: a mount point cannot be renamed, but a
    /// directory around one can, and another could be put in its place.
    fn pin_above(&mut self, anchor: &Anchor, path: &Path) {
        let between = path.ancestors().skip(1).take_while(|above| *above != anchor.path());
        let mut between: Vec<PathBuf> = between.map(Path::to_owned).collect();
        between.retain(|above| !self.writable.contains(above));
        self.writable.extend(between.into_iter().rev());
    }

    /// The subdirectories of a directory, symlinks aside, taken off the number that is `left`.
    fn folders(folder: &Path, left: &mut usize) -> Vec<PathBuf> {
        if is_link(folder) {
            return Vec::new();
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let found: Vec<PathBuf> = folders.map(|entry| entry.path()).take(*left).collect();
        *left -= found.len();
        found
    }

    /// Protects the git directories of submodules, which may be nested in directories and in each other.
    fn modules(&mut self, anchor: &Anchor, folder: &Path, left: &mut usize) {
        for path in ProtectedPaths::folders(folder, left) {
            match path.join("HEAD").exists() {
                true => self.one_git_directory(anchor, &path, left),
                false => self.modules(anchor, &path, left),
            }
        }
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|kind| kind.is_symlink())
}

/// The git directory that a `.git` file leads to: the shared one of a worktree, or the own one of a
/// submodule. Only if that leads back here: a `.git` file from an unpacked archive could otherwise make
/// any directory of the user's writable.
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
        // Git keeps a worktree's directory as `worktrees/NAME` in the shared one. Any other layout is
        // made up, to have a directory above it mounted writable.
        let shared = own.parent().filter(|parent| parent.ends_with("worktrees"));
        let shared = shared.and_then(Path::parent).map(Path::to_owned);
        let named = link(&own.join(COMMON), "", &own);
        return shared.filter(|shared| named.as_ref() == Some(shared)).into_iter().collect();
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
    use std::os::unix::fs::symlink;

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
            ".git/worktrees/a/gitdir",
            ".git/modules/a/config",
            ".git/modules/a/hooks/post-checkout",
            "vendor/.git/hooks/x",
            ".claude/agents/x.md",
            "sub/.claude/agents/x.md",
            ".opencode/agent/x.md",
            ".opencode/agents/deep/x.md",
            ".claude/settings.json",
            ".claude/settings.local.json",
            "sub/.claude/hooks/x.sh",
            ".claude/skills/a/SKILL.md",
            ".mcp.json",
            "sub/.mcp.json",
            "opencode.jsonc",
            ".opencode/plugin/x.ts",
            ".vscode/mcp.json",
            ".codex/config.toml",
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
            ".claude/CLAUDE.md",
            ".vscode/settings.json",
            "mcp.json",
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
    fn the_directory_a_git_file_points_to_counts_only_when_it_points_back() {
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
        let own = main.join("worktrees/tree");
        assert_eq!(found.writable, [main.clone(), main.join("worktrees"), own.clone()]);
        let kept =
            [main.join("hooks"), main.join("config"), own.join("commondir"), own.join("gitdir")];
        assert_eq!(found.read_only, [&[tree.join(".git")], &kept[..]].concat());
        let after = Anchor::at(&main).unwrap().without(&own.join("config.worktree"));
        assert!(found.after.contains(&after.unwrap()));

        // A directory that was made up to open one above it.
        let other = top.join("made-up");
        file(&other.join("x/gitdir"), &format!("{}\n", other.join(".git").display()));
        file(&other.join("x/commondir"), "../..\n");
        file(&other.join(".git"), "gitdir: x\n");
        let found = protected(&other, false);
        assert_eq!((found.writable, found.read_only), (vec![], vec![other.join(".git")]));

        let other = top.join("other");
        file(&other.join(".git"), &text);
        let found = protected(&other, false);
        assert_eq!((found.writable, found.read_only), (vec![], vec![other.join(".git")]));
    }

    #[test]
    fn a_link_that_a_command_made_gives_the_next_one_no_access_outside() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let (secret, workspace) = (top.join("secret"), top.join("workspace"));
        file(&secret.join("agents/HEAD"), "");
        file(&secret.join("config"), "");
        let inside = |found: &ProtectedPaths| {
            let all = found.writable.iter().chain(&found.read_only);
            assert!(all.into_iter().all(|path| path.starts_with(&workspace)), "{found:?}");
        };
        for name in [".git", ".claude", ".opencode", ".git/hooks", ".git/config", ".git/modules"] {
            for trusted in [false, true] {
                let link = workspace.join(name);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                symlink(&secret, &link).unwrap();
                let found = protected(&workspace, trusted);
                inside(&found);
                let anchor = Anchor::at(&workspace).unwrap();
                let kept = anchor.with_link(&link).unwrap();
                assert_eq!(found.after.contains(&kept), name != ".git/modules", "{name}");
                let removed = anchor.without(&link.join("agent")).unwrap();
                assert!(!found.after.contains(&removed), "{name}");
                fs::remove_dir_all(&workspace).unwrap();
            }
        }
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 2, "nothing was made there");
    }

    #[test]
    fn folders_around_submodules_cannot_be_renamed_away() {
        let directory = tempfile::tempdir().unwrap();
        let git = directory.path().canonicalize().unwrap().join(".git");
        file(&git.join("modules/group/sub/HEAD"), "");
        file(&git.join("modules/group/sub/config"), "");
        let found = protected(git.parent().unwrap(), false);
        let below = |names: &[&str]| names.iter().map(|name| git.join(name)).collect::<Vec<_>>();
        let pinned = ["modules/group/sub", "modules", "modules/group"];
        assert_eq!(found.writable, [std::slice::from_ref(&git), &below(&pinned)[..]].concat());
        let kept = ["hooks", "modules/group/sub/hooks", "modules/group/sub/config"];
        assert_eq!(found.read_only, below(&kept));
    }

    #[test]
    fn configuration_that_other_tools_execute_is_read_only_or_removed_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        file(&top.join(".mcp.json"), "");
        file(&top.join(".claude/settings.json"), "");
        file(&top.join(".codex/config.toml"), "");
        let found = protected(&top, false);
        assert_eq!(found.writable, [top.join(".claude")]);
        let kept = [".claude/settings.json", ".mcp.json", ".codex"].map(|path| top.join(path));
        assert_eq!(found.read_only, kept);
        let anchor = Anchor::at(&top).unwrap();
        for missing in [".claude/agents", ".claude/hooks", "opencode.json", ".vscode/mcp.json"] {
            let removed = anchor.without(&top.join(missing)).unwrap();
            assert!(found.after.contains(&removed), "{missing}");
        }
    }

    #[test]
    fn a_persons_own_file_where_a_folder_is_expected_is_read_only_and_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let files = [".claude", ".opencode", ".vscode", ".cursor"].map(|name| top.join(name));
        for path in &files {
            file(path, "mine");
        }
        for trusted in [false, true] {
            let found = protected(&top, trusted);
            let anchor = Anchor::at(&top).unwrap();
            let missing = [".mcp.json", "opencode.json", "opencode.jsonc", ".gemini", ".codex"];
            let after = missing.map(|name| anchor.without(&top.join(name)).unwrap()).to_vec();
            let read_only = files.to_vec();
            assert_eq!(found, ProtectedPaths { writable: Vec::new(), read_only, after });
        }
    }
}
