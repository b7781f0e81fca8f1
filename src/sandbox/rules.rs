//! What a command sees of the file system, as a list of mounts. The deepest one that covers a path
//! decides, so the list is mounted from the root down.

use std::path::{Path, PathBuf};

/// What is to be seen at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// An empty directory that cannot be written.
    HiddenDirectory,
    /// A file that cannot be opened.
    HiddenFile,
    /// An empty directory for this command alone.
    Blank,
    /// Another directory, which can be written.
    Private(PathBuf),
    /// What is at this path, perhaps by another name.
    Readable(PathBuf),
    Writable(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) path: PathBuf,
    pub(super) show: Show,
}

/// In the order they were added: of two for the same path the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn add(&mut self, path: impl Into<PathBuf>, show: Show) {
        let path = path.into();
        self.0.retain(|rule| rule.path != path);
        self.0.push(Rule { path, show });
    }

    /// Whether a path is hidden by a rule inside this directory.
    pub(super) fn hide_in(&self, directory: &Path, path: &Path) -> bool {
        self.0.iter().any(|rule| {
            let is_hidden = matches!(rule.show, Show::HiddenDirectory | Show::HiddenFile);
            is_hidden
                && path.starts_with(&rule.path)
                && rule.path.starts_with(directory)
                && rule.path != directory
        })
    }

    /// From the root down, without those that change nothing. The root itself is readable.
    pub(super) fn mounts(&self) -> Vec<Rule> {
        let mut all = self.0.clone();
        all.sort_by_key(|rule| rule.path.components().count());
        let mut mounts: Vec<Rule> = Vec::new();
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
    fn matters_in(&self, around: Option<&Rule>) -> bool {
        let is_real = matches!(
            around.map(|rule| &rule.show),
            None | Some(Show::Readable(_) | Show::Writable(_))
        );
        let is_read_only = matches!(around.map(|rule| &rule.show), None | Some(Show::Readable(_)));
        match &self.show {
            Show::HiddenDirectory | Show::HiddenFile => is_real,
            Show::Readable(source) => !(is_read_only && same_file(source, &self.path)),
            Show::Blank | Show::Private(_) | Show::Writable(_) => true,
        }
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(path: &str) -> (&str, Show) {
        (path, Show::Readable(path.into()))
    }

    fn writable(path: &str) -> (&str, Show) {
        (path, Show::Writable(path.into()))
    }

    fn check(added: &[(&str, Show)], expected: &[(&str, Show)]) {
        let mut rules = Rules::default();
        for (path, show) in added {
            rules.add(*path, show.clone());
        }
        let rule = |(path, show): &(&str, Show)| Rule { path: path.into(), show: show.clone() };
        assert_eq!(rules.mounts(), expected.iter().map(rule).collect::<Vec<_>>());
    }

    #[test]
    fn the_deepest_rule_decides_and_is_mounted_last() {
        let hidden = ("/home/ada/.ssh", Show::HiddenDirectory);
        let home = ("/home/ada", Show::Private("/scratch".into()));
        let work = writable("/home/ada/work");
        let config = readable("/home/ada/work/.git/config");
        check(
            &[config.clone(), hidden, work.clone(), home.clone()],
            &[home, work.clone(), config.clone()],
        );
        // A workspace that is the home itself.
        let hidden = ("/home/ada/.ssh", Show::HiddenDirectory);
        let home = writable("/home/ada");
        check(&[hidden.clone(), home.clone()], &[home, hidden]);
        check(&[("/etc/shadow", Show::HiddenFile)], &[("/etc/shadow", Show::HiddenFile)]);
    }

    #[test]
    fn of_two_rules_for_a_path_the_later_one_counts_and_what_changes_nothing_is_left_out() {
        check(&[("/a", Show::HiddenDirectory), writable("/a")], &[writable("/a")]);
        check(&[writable("/a"), ("/a", Show::HiddenDirectory)], &[("/a", Show::HiddenDirectory)]);
        check(&[readable("/opt/tool")], &[]);
        check(
            &[("/opt/link", Show::Readable("/data/tool".into()))],
            &[("/opt/link", Show::Readable("/data/tool".into()))],
        );
        check(&[("/a", Show::Blank), readable("/a/b")], &[("/a", Show::Blank), readable("/a/b")]);
        check(&[("/a", Show::Blank), ("/a/b", Show::HiddenFile)], &[("/a", Show::Blank)]);
    }
}
