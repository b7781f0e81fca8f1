//! Builds the mount rules of one command, from the settings and from what exists on this machine. Order
//! matters: of two rules for one path the later wins, so secrets come after tools, and our own files
//! after everything that a user or an agent file may grant. Blocking: it looks at the file system.

use std::fs;
use std::path::{Path, PathBuf};

use super::git::ProtectedPaths;
use super::places::{
    BLANK, CACHES, HOMES, HOST_KEYS, NEEDED_IN_RUN, READ_CACHES, SECRETS, SYSTEM_SECRETS, TOOLS,
    around_programs,
};
use super::rules::{MountKind, Rules};
use super::{Caches, SessionSandbox, Settings};

/// All rules of one command. `shown` are readable in any case, such as the session's saved output.
pub(super) fn rules(
    settings: &Settings,
    sandbox: &SessionSandbox,
    workspace: &Path,
    shown: &[&Path],
    protected: &ProtectedPaths,
) -> Rules {
    let mut rules = Rules::default();
    system(&mut rules, sandbox);
    if let Some(home) = settings.user.home.as_deref().and_then(canonical) {
        rules.add(&home, MountKind::Private(sandbox.home()));
        tools(&mut rules, settings, &home);
        for secret in SECRETS {
            hide(&mut rules, &home.join(secret));
        }
    }
    let home = settings.user.home.as_deref();
    for path in
        settings.readable.iter().chain(granted(sandbox, home, &sandbox.grants.readable).iter())
    {
        grant(&mut rules, settings, path, MountKind::Readable);
    }
    for path in
        settings.writable.iter().chain(granted(sandbox, home, &sandbox.grants.writable).iter())
    {
        grant(&mut rules, settings, path, MountKind::Writable);
    }
    // After all grants: none of them can open our storage directory.
    for own in &settings.own {
        hide(&mut rules, own);
    }
    for path in shown {
        show(&mut rules, path, MountKind::Readable);
    }
    rules.add(workspace, MountKind::Writable(workspace.to_owned()));
    // In a workspace that is the home directory, `.claude` and the like hold credentials: they stay
    // hidden, although the same names are only protected from writing in other workspaces.
    let hidden = rules.clone();
    let is_shown = |path: &&PathBuf| !hidden.hide_in(workspace, path);
    // Pins before the read-only mounts inside them.
    for path in protected.writable.iter().filter(is_shown) {
        rules.add(path, MountKind::Writable(path.clone()));
    }
    for path in protected.read_only.iter().filter(is_shown) {
        rules.add(path, MountKind::Readable(path.clone()));
    }
    rules
}

/// The paths of an agent file that are granted, with `~` expanded. A file that came with the workspace
/// gets no credentials: whoever wrote the repository would choose what its agents read.
fn granted(sandbox: &SessionSandbox, home: Option<&Path>, wishes: &[PathBuf]) -> Vec<PathBuf> {
    let expanded = wishes.iter().filter_map(|wish| match wish.strip_prefix("~") {
        Ok(below) => Some(home?.join(below)),
        Err(_) => Some(wish.clone()),
    });
    let secrets: Vec<PathBuf> =
        home.map(|home| SECRETS.map(|secret| home.join(secret)).to_vec()).unwrap_or_default();
    let is_secret = |path: &PathBuf| {
        // A path that cannot be resolved cannot be told apart from a secret; it could not be shown either.
        let Some(path) = canonical(path) else { return true };
        let mut secrets = secrets.iter().filter_map(|secret| canonical(secret));
        secrets.any(|secret| path.starts_with(secret))
    };
    expanded.filter(|path| !(sandbox.grants.from_workspace && is_secret(path))).collect()
}

/// Adds a granted path, unless it is one of our own directories or inside one.
fn grant(rules: &mut Rules, settings: &Settings, path: &Path, how: fn(PathBuf) -> MountKind) {
    let own = |path: &Path| settings.own.iter().any(|own| Some(path) == canonical(own).as_deref());
    if canonical(path).is_some_and(|path| !path.ancestors().any(own)) {
        show(rules, path, how);
    }
}

/// Rules for the system's own directories: private `/tmp`, empty `/run` and homes, hidden secrets.
fn system(rules: &mut Rules, sandbox: &SessionSandbox) {
    rules.add("/tmp", MountKind::Private(sandbox.temporary()));
    for path in BLANK.iter().chain(&HOMES).filter_map(|path| canonical(Path::new(path))) {
        rules.add(path, MountKind::Blank);
    }
    for path in NEEDED_IN_RUN {
        show(rules, Path::new(path), MountKind::Readable);
    }
    let keys = fs::read_dir(HOST_KEYS).into_iter().flatten().flatten().map(|entry| entry.path());
    let keys = keys.filter(|path| path.to_string_lossy().ends_with("_key"));
    // Commands have our rights, so what we cannot read needs no mount, and every mount costs time.
    for path in SYSTEM_SECRETS.iter().map(PathBuf::from).chain(keys) {
        if fs::File::open(&path).is_ok() {
            hide(rules, &path);
        }
    }
}

/// Rules for the programs and caches in the home directory.
fn tools(rules: &mut Rules, settings: &Settings, home: &Path) {
    for tool in TOOLS {
        show(rules, &home.join(tool), MountKind::Readable);
    }
    for tool in &settings.user.toolchains {
        show(rules, tool, MountKind::Readable);
    }
    for directory in &settings.user.path {
        if directory.starts_with(home) || HOMES.iter().any(|home| directory.starts_with(home)) {
            show(rules, &around_programs(home, directory, Path::exists), MountKind::Readable);
        }
    }
    match settings.caches {
        Caches::Readable => {
            CACHES[..READ_CACHES]
                .iter()
                .for_each(|c| show(rules, &home.join(c), MountKind::Readable));
        }
        Caches::Writable => {
            CACHES.iter().for_each(|cache| show(rules, &home.join(cache), MountKind::Writable));
        }
    }
}

/// Shows a path under the name it has, even if that is a symlink to another place: programs look for
/// `~/.nvm`, not for where it leads. What does not exist cannot be mounted.
fn show(rules: &mut Rules, path: &Path, how: fn(PathBuf) -> MountKind) {
    if is_missing(path) {
        return;
    }
    let (Some(source), Some(parent), Some(name)) =
        (canonical(path), path.parent().and_then(canonical), path.file_name())
    else {
        return;
    };
    rules.add(parent.join(name), how(source));
}

fn hide(rules: &mut Rules, path: &Path) {
    if is_missing(path) {
        return;
    }
    let Some(path) = canonical(path) else { return };
    let kind = if path.is_dir() { MountKind::HiddenDirectory } else { MountKind::HiddenFile };
    rules.add(path, kind);
}

/// A fast path: most entries of the lists do not exist, and one `lstat` says so, where resolving the
/// path takes ten system calls. This runs for every command.
fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err()
}

fn canonical(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Sandbox;
    use super::super::git::protected;
    use super::*;

    #[test]
    fn credentials_stay_hidden_in_a_workspace_that_is_the_home() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        for path in [".claude/commands", ".codex", ".opencode/plugin"] {
            fs::create_dir_all(home.join(path)).unwrap();
        }
        let mut settings = Sandbox::off().0.settings.clone();
        settings.user.home = Some(home.clone());
        let found =
            rules(&settings, &SessionSandbox::off(), &home, &[], &protected(&home, false)).mounts();
        let shown = |path: &str| {
            let path = home.join(path);
            found.iter().find(|rule| rule.path == path).map(|rule| rule.kind.clone())
        };
        let same = |path: &str| home.join(path);
        for (path, expected) in [
            ("", Some(MountKind::Writable(same("")))),
            (".claude", Some(MountKind::HiddenDirectory)),
            (".claude/commands", None),
            (".codex", Some(MountKind::HiddenDirectory)),
            (".opencode", Some(MountKind::Writable(same(".opencode")))),
            (".opencode/plugin", Some(MountKind::Readable(same(".opencode/plugin")))),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }
}
