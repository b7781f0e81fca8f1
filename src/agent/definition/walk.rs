//! Finds the agent files below a directory, bounded in entries and depth: a workspace may come from
//! anywhere, and its directories are read whenever one of its agents is looked up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;

/// Of one folder and everything below it.
const MOST_ENTRIES: usize = 10_000;
const DEEPEST: usize = 8;
/// How many skipped directories are reported by name; the others are only counted.
const MOST_NAMED: usize = 10;

/// The files, sorted by path, and what was left out.
pub(super) struct AgentFiles {
    pub(super) files: Vec<PathBuf>,
    pub(super) problems: Vec<(PathBuf, Error)>,
}

/// All Markdown files below a directory. Symlinks to directories are not followed: they may lead anywhere,
/// and in circles.
pub(super) fn walk(root: &Path, most_files: usize) -> AgentFiles {
    walk_within(root, MOST_ENTRIES, most_files)
}

fn walk_within(root: &Path, most_entries: usize, most_files: usize) -> AgentFiles {
    let mut found = AgentFiles { files: Vec::new(), problems: Vec::new() };
    let mut folders = vec![(root.to_owned(), 0)];
    let mut room = most_entries;
    while let Some((folder, depth)) = folders.pop() {
        if depth > DEEPEST {
            found.problems.push((folder, Error::TooDeep(DEEPEST)));
            continue;
        }
        match entries(&folder, &mut room) {
            Ok(Some(Entries { files, folders: below })) => {
                found.files.extend(files);
                folders.extend(below.into_iter().map(|folder| (folder, depth + 1)));
            }
            // Which entries come first is up to the file system, so none of them counts: agents must not
            // come and go with the order of a directory listing.
            Ok(None) => {
                let problem = (root.to_owned(), Error::TooManyEntries(most_entries));
                return AgentFiles { files: Vec::new(), problems: vec![problem] };
            }
            Err(error) => found.problems.push((folder, error)),
        }
    }
    found.order(root, most_files);
    found
}

impl AgentFiles {
    fn order(&mut self, root: &Path, most_files: usize) {
        self.files.sort();
        self.problems.sort_by(|one, other| one.0.cmp(&other.0));
        let unnamed = self.problems.len().saturating_sub(MOST_NAMED);
        if unnamed > 0 {
            self.problems.truncate(MOST_NAMED);
            self.problems.push((root.to_owned(), Error::MoreFolders(unnamed)));
        }
        let found = self.files.len();
        if found > most_files {
            self.files.truncate(most_files);
            self.problems.push((root.to_owned(), Error::TooManyFiles { found, read: most_files }));
        }
    }
}

#[derive(Default)]
struct Entries {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

/// The entries of a directory, without dot files. Takes their number off the `room` that is left; `None`
/// if there is not enough.
fn entries(folder: &Path, room: &mut usize) -> Result<Option<Entries>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Some(Entries::default()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::NotAFolder);
        }
        Err(error) => return Err(Error::Unreadable(error)),
    };
    let mut found = Entries::default();
    for entry in entries {
        let entry = entry.map_err(Error::Unreadable)?;
        let Some(rest) = room.checked_sub(1) else { return Ok(None) };
        *room = rest;
        let (path, kind) = (entry.path(), entry.file_type());
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_ok_and(|kind| kind.is_dir()) {
            found.folders.push(path);
        } else if is_markdown(&path) {
            found.files.push(path);
        }
    }
    Ok(Some(found))
}

pub(super) fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_FILES: usize = 200;

    fn check(files: &[String], expected: &[&str], problems: &[(&str, &str)]) {
        check_within(MOST_ENTRIES, files, expected, problems);
    }

    /// Names of the files found, and the problems, both below the folder.
    fn check_within(
        most_entries: usize,
        files: &[String],
        expected: &[&str],
        problems: &[(&str, &str)],
    ) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("agents");
        for file in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        let found = walk_within(&root, most_entries, MOST_FILES);
        let below = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
        let names: Vec<String> = found.files.iter().map(|file| below(file)).collect();
        let named = found.problems.iter().map(|(path, error)| (below(path), error.to_string()));
        let named: Vec<(String, String)> = named.collect();
        let problems: Vec<(String, String)> =
            problems.iter().map(|(path, why)| ((*path).to_owned(), (*why).to_owned())).collect();
        assert_eq!((names, named), (expected.iter().map(ToString::to_string).collect(), problems));
    }

    fn numbered(count: usize, name: &str) -> Vec<String> {
        (0..count).map(|n| name.replace('#', &format!("{n:05}"))).collect()
    }

    #[test]
    fn files_are_found_in_order_and_hidden_ones_are_not() {
        let files = ["b.md", "a.MD", "c.txt", ".d.md", ".e/f.md", "g/h.md"].map(str::to_owned);
        check(&files, &["a.MD", "b.md", "g/h.md"], &[]);
        check(&[], &[], &[]);
    }

    #[test]
    fn the_number_of_agent_files_is_bounded_and_the_rest_is_reported() {
        let most = numbered(200, "#.md");
        let expected: Vec<&str> = most.iter().map(String::as_str).collect();
        check(&most, &expected, &[]);
        let why = "holds 201 agent files, and only the first 200 (`agent.definition_files`) are read; \
            move or delete others";
        check(&numbered(201, "#.md"), &expected, &[("", why)]);
    }

    #[test]
    fn a_folder_with_too_many_entries_defines_nothing() {
        let why = "holds more than 5 files and folders, so nothing in it is read; delete some";
        let files = ["1.md", "2.md", "3/4.txt", ".5"].map(str::to_owned);
        check_within(5, &files, &["1.md", "2.md"], &[]);
        let files = ["1.md", "2.md", "3/4.txt", ".5", "3/6.txt"].map(str::to_owned);
        check_within(5, &files, &[], &[("", why)]);
    }

    #[test]
    fn folders_are_read_up_to_a_maximum_depth() {
        let why = "is nested more than 8 folders deep, so nothing in it is read; move it up";
        let files = ["1/2/3/4/5/6/7/8/a.md", "1/2/3/4/5/6/7/8/9/b.md"].map(str::to_owned);
        check(&files, &["1/2/3/4/5/6/7/8/a.md"], &[("1/2/3/4/5/6/7/8/9", why)]);
        let files = numbered(12, "1/2/3/4/5/6/7/8/#/b.md");
        let named = numbered(10, "1/2/3/4/5/6/7/8/#");
        let mut problems: Vec<(&str, &str)> =
            named.iter().map(|path| (path.as_str(), why)).collect();
        problems.push(("", "has 2 more folders that are not read"));
        check(&files, &[], &problems);
    }
}
