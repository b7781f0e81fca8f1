//! Mount rules: what a command sees of the file system. The deepest rule that covers a path decides, so
//! they are mounted from the root down, and rules that change nothing are dropped, because every mount
//! costs time. bubblewrap's command line and Landlock's allow list are both made from these.

use std::path::{Path, PathBuf};

/// What a command sees at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountKind {
    /// An empty, read-only directory.
    HiddenDirectory,
    /// A file that cannot be opened (`/dev/null`, on a mount without devices).
    HiddenFile,
    /// An empty, writable directory for this command alone.
    Blank,
    /// This other directory, which belongs to the session, writable.
    Private(PathBuf),
    /// What is at this path, which may be another than the rule's own (behind a symlink), read-only.
    Readable(PathBuf),
    /// The same, writable.
    Writable(PathBuf),
}

/// One path and what is seen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) path: PathBuf,
    pub(super) kind: MountKind,
}

/// A set of rules, at most one for each path: adding another replaces the earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn add(&mut self, path: impl Into<PathBuf>, kind: MountKind) {
        let path = path.into();
        self.0.retain(|rule| rule.path != path);
        self.0.push(Rule { path, kind });
    }

    /// Whether a path is hidden by a rule strictly inside this directory.
    pub(super) fn hide_in(&self, directory: &Path, path: &Path) -> bool {
        self.0.iter().any(|rule| {
            let is_hidden = matches!(rule.kind, MountKind::HiddenDirectory | MountKind::HiddenFile);
            is_hidden
                && path.starts_with(&rule.path)
                && rule.path.starts_with(directory)
                && rule.path != directory
        })
    }

    /// The mounts from the root down, without those that change nothing. The root itself is read-only
    /// without a rule.
    pub(super) fn mounts(&self) -> Vec<Rule> {
        let mut all = self.0.clone();
        all.sort_by_key(|rule| rule.path.components().count());
        let mut mounts: Vec<Rule> = Vec::new();
        // Shallow to deep, so the last mount that contains a rule's path is the one directly around it.
        for rule in all {
            let around = mounts.iter().rev().find(|above| rule.path.starts_with(&above.path));
            if rule.matters_in(around) {
                mounts.push(rule);
            }
        }
        mounts
    }
}

impl Rule {
    /// Whether the rule changes anything inside the mount `around` it. Hiding matters only where the real
    /// file system is seen; making readable only where it is not seen yet.
    fn matters_in(&self, around: Option<&Rule>) -> bool {
        let is_real = matches!(
            around.map(|rule| &rule.kind),
            None | Some(MountKind::Readable(_) | MountKind::Writable(_))
        );
        let is_read_only =
            matches!(around.map(|rule| &rule.kind), None | Some(MountKind::Readable(_)));
        match &self.kind {
            MountKind::HiddenDirectory | MountKind::HiddenFile => is_real,
            MountKind::Readable(source) => !(is_read_only && same_file(source, &self.path)),
            MountKind::Blank | MountKind::Private(_) | MountKind::Writable(_) => true,
        }
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(path: &str) -> (&str, MountKind) {
        (path, MountKind::Readable(path.into()))
    }

    fn writable(path: &str) -> (&str, MountKind) {
        (path, MountKind::Writable(path.into()))
    }

    fn check(added: &[(&str, MountKind)], expected: &[(&str, MountKind)]) {
        let mut rules = Rules::default();
        for (path, kind) in added {
            rules.add(*path, kind.clone());
        }
        let rule =
            |(path, kind): &(&str, MountKind)| Rule { path: path.into(), kind: kind.clone() };
        assert_eq!(rules.mounts(), expected.iter().map(rule).collect::<Vec<_>>());
    }

    #[test]
    fn the_deepest_rule_decides_and_is_mounted_last() {
        let hidden = ("/home/ada/.ssh", MountKind::HiddenDirectory);
        let home = ("/home/ada", MountKind::Private("/scratch".into()));
        let work = writable("/home/ada/work");
        let config = readable("/home/ada/work/.git/config");
        check(
            &[config.clone(), hidden, work.clone(), home.clone()],
            &[home, work.clone(), config.clone()],
        );
        // A workspace that is the home itself.
        let hidden = ("/home/ada/.ssh", MountKind::HiddenDirectory);
        let home = writable("/home/ada");
        check(&[hidden.clone(), home.clone()], &[home, hidden]);
        check(&[("/etc/shadow", MountKind::HiddenFile)], &[("/etc/shadow", MountKind::HiddenFile)]);
    }

    #[test]
    fn the_later_rule_for_a_path_wins_and_redundant_rules_are_left_out() {
        check(&[("/a", MountKind::HiddenDirectory), writable("/a")], &[writable("/a")]);
        check(
            &[writable("/a"), ("/a", MountKind::HiddenDirectory)],
            &[("/a", MountKind::HiddenDirectory)],
        );
        check(&[readable("/opt/tool")], &[]);
        check(
            &[("/opt/link", MountKind::Readable("/data/tool".into()))],
            &[("/opt/link", MountKind::Readable("/data/tool".into()))],
        );
        check(
            &[("/a", MountKind::Blank), readable("/a/b")],
            &[("/a", MountKind::Blank), readable("/a/b")],
        );
        check(
            &[("/a", MountKind::Blank), ("/a/b", MountKind::HiddenFile)],
            &[("/a", MountKind::Blank)],
        );
    }
}
