//! The architecture, as a test: who may know whom. The table is the diagram.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lowest layer first. A module knows itself and the modules in its row, nothing else; a new entry
/// in a row is an architecture decision.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("quote", &[]),
    ("task", &[]),
    ("transcript", &[]),
    ("fork", &[]),
    ("net", &[]),
    ("threads", &[]),
    ("clock", &["task"]),
    ("notice", &["quote", "task", "transcript"]),
    ("feed", &["task"]),
    ("metrics", &["task", "feed"]),
    ("store", &["task"]),
    ("auth", &[]),
    ("trust", &[]),
    ("process", &[]),
    ("sandbox", &[]),
    ("claim", &[]),
    ("agent", &["transcript", "net", "threads", "trust", "process", "sandbox"]),
    (
        "host",
        &[
            "task",
            "transcript",
            "net",
            "clock",
            "metrics",
            "store",
            "threads",
            "trust",
            "process",
            "sandbox",
            "agent",
        ],
    ),
    (
        "supervisor",
        &[
            "quote",
            "task",
            "transcript",
            "fork",
            "clock",
            "notice",
            "feed",
            "metrics",
            "store",
            "threads",
            "claim",
            "host",
        ],
    ),
    ("wire", &["task", "fork"]),
    ("tools", &["quote", "task", "transcript", "threads", "supervisor", "wire"]),
    ("http", &["task", "feed", "metrics", "threads", "supervisor", "wire", "tools"]),
    ("client", &["wire"]),
    ("config", &[]),
    (
        "daemon",
        &[
            "task",
            "clock",
            "feed",
            "store",
            "auth",
            "trust",
            "process",
            "sandbox",
            "claim",
            "agent",
            "host",
            "supervisor",
            "wire",
            "tools",
            "http",
            "client",
            "config",
        ],
    ),
    ("mcp", &["task", "clock", "claim", "wire", "client", "config", "daemon"]),
    (
        "cli",
        &[
            "quote", "task", "fork", "clock", "auth", "trust", "process", "sandbox", "agent",
            "host", "wire", "client", "config", "daemon", "mcp",
        ],
    ),
];

/// Reading the surroundings, and the one module that may.
const ONLY_HERE: &[(&str, &str)] = &[
    ("env::var(", "config"),
    ("env::var_os(", "config"),
    ("env::vars(", "config"),
    ("env::vars_os(", "config"),
    ("SystemTime::now", "clock"),
    ("Timestamp::now", "clock"),
];

struct Source {
    path: PathBuf,
    /// The part of the program it belongs to: the first folder, or the file itself.
    module: String,
    text: String,
}

impl Source {
    /// How many modules it is in, itself included.
    fn depth(&self) -> usize {
        let inside = self.path.strip_prefix(src()).unwrap().components().count();
        if self.path.ends_with("mod.rs") { inside - 1 } else { inside }
    }
}

#[test]
fn every_module_has_a_row_and_every_row_a_module() {
    let found: BTreeSet<String> = sources().into_iter().map(|source| source.module).collect();
    let rows = MAY_KNOW.iter().map(|(name, _)| (*name).to_owned());
    let expected: BTreeSet<String> = rows.chain(["lib".to_owned(), "main".to_owned()]).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_table_itself_never_climbs() {
    for (n, (module, below)) in MAY_KNOW.iter().enumerate() {
        for known in *below {
            let lower = MAY_KNOW[..n].iter().any(|(name, _)| name == known);
            assert!(lower, "`{module}` may know `{known}`, which is not below it");
        }
    }
}

#[test]
fn modules_know_only_what_lies_below_them() {
    for source in sources() {
        let below = row(&source.module);
        for known in known_modules(&source) {
            assert!(
                known == source.module || below.contains(&known.as_str()),
                "{} knows `{known}`; `{}` must not",
                source.path.display(),
                source.module
            );
        }
    }
}

#[test]
fn no_row_permits_what_nobody_needs() {
    for (module, below) in MAY_KNOW {
        let sources = sources().into_iter().filter(|source| source.module == *module);
        let used: BTreeSet<String> = sources.flat_map(|source| known_modules(&source)).collect();
        for known in *below {
            assert!(
                used.contains(*known),
                "`{module}` does not use `{known}`: take it off its row"
            );
        }
    }
}

#[test]
fn the_program_is_the_command_line_and_nothing_else() {
    let main = sources().into_iter().find(|source| source.module == "main").unwrap();
    assert_eq!(paths_after("asyncagents::", &main), BTreeSet::from(["cli".to_owned()]));
}

#[test]
fn imports_come_one_module_a_line_and_never_by_the_back_door() {
    for source in sources() {
        let mut depth = source.depth();
        for line in code(&source) {
            let place = || format!("{}: {line}", source.path.display());
            assert!(!line.contains("crate::{"), "one `use crate::module` per module: {}", place());
            if line == "mod tests {" {
                depth += 1;
            }
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let paths = line.split(|c| !is_path(c));
            let ups = paths.map(|path| path.matches("super::").count()).max().unwrap_or(0);
            assert!(ups < depth, "this leaves `{}`, say `crate::`: {}", source.module, place());
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for source in sources() {
        assert!(source.text.starts_with("//! "), "{}", source.path.display());
    }
}

#[test]
fn the_environment_is_read_in_config_and_the_time_in_clock() {
    for source in sources() {
        for line in code(&source) {
            for (call, module) in ONLY_HERE {
                assert!(
                    source.module == *module || !line.contains(call),
                    "`{call}` belongs into `{module}`: {}: {line}",
                    source.path.display()
                );
            }
        }
    }
}

fn row(module: &str) -> &'static [&'static str] {
    MAY_KNOW.iter().find(|(name, _)| *name == module).map_or(&[], |(_, below)| below)
}

fn known_modules(source: &Source) -> BTreeSet<String> {
    paths_after("crate::", source)
}

/// The names that follow a prefix anywhere in the code.
fn paths_after(prefix: &str, source: &Source) -> BTreeSet<String> {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    let names = |line: &str| -> Vec<String> {
        line.split(prefix).skip(1).map(|path| path.chars().take_while(is_name).collect()).collect()
    };
    code(source).flat_map(names).collect()
}

/// Lines without those that are only a comment.
fn code(source: &Source) -> impl Iterator<Item = &str> {
    source.text.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

fn sources() -> Vec<Source> {
    let sources: Vec<Source> = rust_files(&src())
        .into_iter()
        .map(|path| {
            let first = path.strip_prefix(src()).unwrap().iter().next().unwrap();
            let module = Path::new(first).file_stem().unwrap().to_str().unwrap().to_owned();
            Source { module, text: fs::read_to_string(&path).unwrap(), path }
        })
        .collect();
    assert!(sources.len() > MAY_KNOW.len(), "the sources were not found");
    sources
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}
