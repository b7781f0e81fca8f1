//! A directory walk that cannot be led outside: it descends by open descriptors and never through a
//! symlink, so that nothing swapped in meanwhile is followed. Skipped are files that `.gitignore`,
//! `.ignore` and `.git/info/exclude` name (with or without a repository), `.git`, credentials and our own
//! files; dot files are not. What could not be read is counted and reported.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::OFlags;

use super::halt::{Halt, Reason};
use super::text::lossy;
use super::workspace::{Kind, ResolvedPath, Workspace, enter, names, open_directory, open_file};
use super::{Context, Error};
use crate::sandbox::HiddenPlaces;

/// Each level holds a descriptor open; a deeper tree is a mistake, or meant to exhaust them.
const DEEPEST: usize = 100;
/// The ignore files; in one directory a later one overrides an earlier one.
const IGNORE_FILES: [&[&str]; 3] = [&[".git", "info", "exclude"], &[".gitignore"], &[".ignore"]];
const LONGEST_IGNORE_FILE: u64 = 1 << 20;

/// What a visitor gets: the open directory and the name in it, so that it can open the file safely.
pub(super) struct Entry<'a> {
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a OsStr,
    pub(super) path: &'a Path,
    pub(super) kind: Kind,
}

/// What a walk could not see.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    pub(super) unreadable: usize,
    pub(super) too_deep: usize,
    pub(super) out_of_time: bool,
}

/// Visits everything below a directory, sorted by name, parents first, until the visitor breaks, time is
/// up or the call is cancelled.
pub(super) fn walk(
    start: &ResolvedPath,
    context: &Context,
    halt: &Halt,
    visit: &mut dyn FnMut(&Entry) -> ControlFlow<()>,
) -> Result<Gaps, Error> {
    let workspace = &context.workspace;
    let hidden = context.hidden().below(&start.path);
    let directory = start.directory().map_err(|error| workspace.trouble("open", start, error))?;
    let ignores = Ignores::above(start, workspace);
    let mut walk = Walk { halt, ignores, hidden, gaps: Gaps::default(), visit };
    // A break is the visitor's own choice, or time is up, which `gaps` says.
    let _ = walk.descend(&directory, &start.path, 0);
    match halt.reached() {
        Some(Reason::Cancelled) => Err(Error::Cancelled),
        Some(Reason::OutOfTime) | None => Ok(walk.gaps),
    }
}

impl Gaps {
    /// Tells the model what is missing from a result.
    pub(super) fn add_to(&self, text: &mut String) {
        if self.out_of_time {
            text.push_str("\n… stopped, it took too long; narrow it with `path`");
        }
        if self.unreadable > 0 {
            let noun = if self.unreadable == 1 { "entry" } else { "entries" };
            text.push_str(&format!("\n… {} {noun} could not be read", self.unreadable));
        }
        if self.too_deep > 0 {
            let left_out = format!("\n… directories more than {DEEPEST} levels deep were left out");
            text.push_str(&left_out);
        }
    }
}

struct Walk<'a> {
    halt: &'a Halt,
    ignores: Ignores,
    hidden: HiddenPlaces,
    gaps: Gaps,
    visit: &'a mut dyn FnMut(&Entry) -> ControlFlow<()>,
}

impl Walk<'_> {
    fn descend(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> ControlFlow<()> {
        let Ok(mut entries) = names(directory, usize::MAX) else {
            self.gaps.unreadable += 1;
            return ControlFlow::Continue(());
        };
        // Sorted, so that the same search has the same result wherever it stops.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        self.ignores.push(directory, path);
        for (name, kind) in entries {
            if self.halt.reached().is_some() {
                self.gaps.out_of_time = true;
                return ControlFlow::Break(());
            }
            self.visit_one(directory, path, (name, kind), depth)?;
        }
        self.ignores.pop();
        ControlFlow::Continue(())
    }

    fn visit_one(
        &mut self,
        directory: &OwnedFd,
        path: &Path,
        (name, kind): (OsString, Kind),
        depth: usize,
    ) -> ControlFlow<()> {
        let path = path.join(&name);
        // Skipped before it is opened: nothing of a hidden or ignored directory is read.
        if self.ignores.cover(&path, kind) || self.hidden.kind_of(&path).is_some() {
            return ControlFlow::Continue(());
        }
        (self.visit)(&Entry { directory, name: &name, path: &path, kind })?;
        if kind != Kind::Directory {
            return ControlFlow::Continue(());
        }
        if depth == DEEPEST {
            self.gaps.too_deep += 1;
            return ControlFlow::Continue(());
        }
        match enter(directory, &name) {
            Ok(below) => self.descend(&below, &path, depth + 1),
            Err(_) => {
                self.gaps.unreadable += 1;
                ControlFlow::Continue(())
            }
        }
    }
}

/// A stack of ignore rules, one level per directory, the deepest last.
pub(super) struct Ignores {
    levels: Vec<Gitignore>,
}

impl Ignores {
    /// The rules of the directories above `start`, from the top of its repository, or else of the
    /// workspace.
    pub(super) fn above(start: &ResolvedPath, workspace: &Workspace) -> Ignores {
        let root = workspace.root();
        let base = if start.path.starts_with(root) { root } else { &start.path };
        let top = base.ancestors().find(|path| path.join(".git").exists()).unwrap_or(base);
        let mut above: Vec<&Path> =
            start.path.ancestors().skip(1).take_while(|path| path.starts_with(top)).collect();
        above.reverse();
        let mut ignores = Ignores { levels: Vec::new() };
        for path in above {
            if let Ok(directory) = open_directory(path) {
                ignores.push(&directory, path);
            }
        }
        ignores
    }

    pub(super) fn push(&mut self, directory: &OwnedFd, path: &Path) {
        let mut builder = GitignoreBuilder::new(path);
        for file in IGNORE_FILES {
            for line in small_file(directory, file).unwrap_or_default().lines() {
                // Invalid lines are ignored, as git does.
                let _ = builder.add_line(None, line);
            }
        }
        self.levels.push(builder.build().unwrap_or_else(|_| Gitignore::empty()));
    }

    fn pop(&mut self) {
        self.levels.pop();
    }

    /// Whether a path is ignored. The deepest level with a matching rule decides.
    pub(super) fn cover(&self, path: &Path, kind: Kind) -> bool {
        if path.file_name() == Some(OsStr::new(".git")) {
            return true;
        }
        let said = self.levels.iter().rev().find_map(|level| {
            match level.matched(path, kind == Kind::Directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            }
        });
        said.unwrap_or(false)
    }
}

/// A small file in an open directory, read without following symlinks.
fn small_file(directory: &OwnedFd, path: &[&str]) -> Option<String> {
    let (name, parents) = path.split_last()?;
    // `.git` may be a symlink as well; `enter` refuses those.
    let mut entered: Option<OwnedFd> = None;
    for parent in parents {
        entered = Some(enter(entered.as_ref().unwrap_or(directory), OsStr::new(parent)).ok()?);
    }
    let directory = entered.as_ref().unwrap_or(directory);
    let file = open_file(directory, OsStr::new(name), OFlags::RDONLY).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_IGNORE_FILE).read_to_end(&mut bytes).ok()?;
    Some(lossy(&bytes))
}

/// A path relative to `start`, for matching globs.
pub(super) fn below(path: &Path, start: &ResolvedPath) -> PathBuf {
    path.strip_prefix(&start.path).unwrap_or(path).to_owned()
}
