//! From settings and what is on this machine to the rules of one command. Looks at the file system.

use std::fs;
use std::path::{Path, PathBuf};

use super::git::Protected;
use super::places::{
    BLANK, CACHES, HOMES, HOST_KEYS, NEEDED_IN_RUN, READ_CACHES, SECRETS, SYSTEM_SECRETS, TOOLS,
    around_programs,
};
use super::rules::{Rules, Show};
use super::{Caches, Cell, Settings};

/// The later ones win where two are about the same path.
pub(super) fn rules(
    settings: &Settings,
    cell: &Cell,
    workspace: &Path,
    shown: &[&Path],
    protected: &Protected,
) -> Rules {
    let mut rules = Rules::default();
    system(&mut rules, cell);
    if let Some(home) = settings.user.home.as_deref().and_then(canonical) {
        rules.add(&home, Show::Private(cell.home()));
        tools(&mut rules, settings, &home);
        for secret in SECRETS {
            hide(&mut rules, &home.join(secret));
        }
    }
    let home = settings.user.home.as_deref();
    for path in settings.readable.iter().chain(granted(cell, home, &cell.grants.readable).iter()) {
        grant(&mut rules, settings, path, Show::Readable);
    }
    for path in settings.writable.iter().chain(granted(cell, home, &cell.grants.writable).iter()) {
        grant(&mut rules, settings, path, Show::Writable);
    }
    for own in &settings.own {
        hide(&mut rules, own);
    }
    for path in shown {
        show(&mut rules, path, Show::Readable);
    }
    rules.add(workspace, Show::Writable(workspace.to_owned()));
    // In a workspace that is the home, `.claude` and its like are credentials first.
    let hidden = rules.clone();
    let is_shown = |path: &&PathBuf| !hidden.hide_in(workspace, path);
    for path in protected.writable.iter().filter(is_shown) {
        rules.add(path, Show::Writable(path.clone()));
    }
    for path in protected.read_only.iter().filter(is_shown) {
        rules.add(path, Show::Readable(path.clone()));
    }
    rules
}

/// What of an agent's wishes is granted, with `~` for the home.
fn granted(cell: &Cell, home: Option<&Path>, wishes: &[PathBuf]) -> Vec<PathBuf> {
    let expanded = wishes.iter().filter_map(|wish| match wish.strip_prefix("~") {
        Ok(below) => Some(home?.join(below)),
        Err(_) => Some(wish.clone()),
    });
    let secrets: Vec<PathBuf> =
        home.map(|home| SECRETS.map(|secret| home.join(secret)).to_vec()).unwrap_or_default();
    let is_secret = |path: &PathBuf| {
        let Some(path) = canonical(path) else { return true };
        let mut secrets = secrets.iter().filter_map(|secret| canonical(secret));
        secrets.any(|secret| path.starts_with(secret))
    };
    expanded.filter(|path| !(cell.grants.from_workspace && is_secret(path))).collect()
}

/// Nothing of ours, whoever asks for it.
fn grant(rules: &mut Rules, settings: &Settings, path: &Path, how: fn(PathBuf) -> Show) {
    let own = |path: &Path| settings.own.iter().any(|own| Some(path) == canonical(own).as_deref());
    if canonical(path).is_some_and(|path| !path.ancestors().any(own)) {
        show(rules, path, how);
    }
}

fn system(rules: &mut Rules, cell: &Cell) {
    rules.add("/tmp", Show::Private(cell.temporary()));
    for path in BLANK.iter().chain(&HOMES).filter_map(|path| canonical(Path::new(path))) {
        rules.add(path, Show::Blank);
    }
    for path in NEEDED_IN_RUN {
        show(rules, Path::new(path), Show::Readable);
    }
    let keys = fs::read_dir(HOST_KEYS).into_iter().flatten().flatten().map(|entry| entry.path());
    let keys = keys.filter(|path| path.to_string_lossy().ends_with("_key"));
    // What we cannot read ourselves needs no mount, and each takes its time.
    for path in SYSTEM_SECRETS.iter().map(PathBuf::from).chain(keys) {
        if fs::File::open(&path).is_ok() {
            hide(rules, &path);
        }
    }
}

fn tools(rules: &mut Rules, settings: &Settings, home: &Path) {
    for tool in TOOLS {
        show(rules, &home.join(tool), Show::Readable);
    }
    for tool in &settings.user.toolchains {
        show(rules, tool, Show::Readable);
    }
    for directory in &settings.user.path {
        if directory.starts_with(home) || HOMES.iter().any(|home| directory.starts_with(home)) {
            show(rules, &around_programs(home, directory, Path::exists), Show::Readable);
        }
    }
    match settings.caches {
        Caches::Readable => {
            CACHES[..READ_CACHES].iter().for_each(|c| show(rules, &home.join(c), Show::Readable));
        }
        Caches::Writable => {
            CACHES.iter().for_each(|cache| show(rules, &home.join(cache), Show::Writable));
        }
    }
}

/// At the name it has, also when that is a link to another place. What is not there cannot be shown.
fn show(rules: &mut Rules, path: &Path, how: fn(PathBuf) -> Show) {
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
    let show = if path.is_dir() { Show::HiddenDirectory } else { Show::HiddenFile };
    rules.add(path, show);
}

/// Most places of the lists are, for every command, and one call says so; resolving links takes ten.
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
        let found = rules(&settings, &Cell::off(), &home, &[], &protected(&home, false)).mounts();
        let shown = |path: &str| {
            let path = home.join(path);
            found.iter().find(|rule| rule.path == path).map(|rule| rule.show.clone())
        };
        let same = |path: &str| home.join(path);
        for (path, expected) in [
            ("", Some(Show::Writable(same("")))),
            (".claude", Some(Show::HiddenDirectory)),
            (".claude/commands", None),
            (".codex", Some(Show::HiddenDirectory)),
            (".opencode", Some(Show::Writable(same(".opencode")))),
            (".opencode/plugin", Some(Show::Readable(same(".opencode/plugin")))),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }
}
