//! The architecture as a test: which module may import which, where tasks may be spawned, and other
//! rules that can be checked in the source text. The table is the specification of the picture in
//! ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lowest layer first. A module may import itself and the modules in its row; a new entry in a row
/// is an architecture decision.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("text", &[]),
    ("quote", &["text"]),
    ("backoff", &[]),
    ("sse", &[]),
    ("task", &["text"]),
    ("transcript", &["text"]),
    ("fork", &["text"]),
    ("net", &[]),
    ("threads", &[]),
    ("clock", &["task"]),
    ("notice", &["text", "quote", "task", "transcript"]),
    ("feed", &["task"]),
    ("metrics", &["task", "feed"]),
    ("store", &["task"]),
    ("private_file", &[]),
    ("auth", &["private_file"]),
    ("trust", &["private_file"]),
    ("process", &["backoff"]),
    ("notify", &["text", "quote", "task", "net", "threads", "process"]),
    ("sandbox", &[]),
    ("claim", &["task"]),
    (
        "agent",
        &["text", "backoff", "sse", "transcript", "net", "threads", "trust", "process", "sandbox"],
    ),
    (
        "host",
        &[
            "text",
            "backoff",
            "sse",
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
            "backoff",
            "task",
            "transcript",
            "fork",
            "clock",
            "notice",
            "feed",
            "metrics",
            "store",
            "threads",
            "notify",
            "claim",
            "host",
        ],
    ),
    ("wire", &["task", "fork"]),
    ("tools", &["text", "quote", "task", "transcript", "threads", "supervisor", "wire"]),
    ("http", &["task", "clock", "feed", "metrics", "threads", "supervisor", "wire", "tools"]),
    ("client", &["wire"]),
    ("config", &["sandbox", "agent", "supervisor", "tools"]),
    (
        "daemon",
        &[
            "backoff",
            "task",
            "clock",
            "feed",
            "metrics",
            "store",
            "private_file",
            "auth",
            "trust",
            "process",
            "notify",
            "sandbox",
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
    ("mcp", &["task", "clock", "metrics", "claim", "wire", "client", "config", "daemon"]),
    (
        "cli",
        &[
            "text",
            "quote",
            "backoff",
            "task",
            "transcript",
            "fork",
            "clock",
            "private_file",
            "auth",
            "trust",
            "process",
            "sandbox",
            "agent",
            "host",
            "wire",
            "client",
            "config",
            "daemon",
            "mcp",
        ],
    ),
];

/// Access to environment and clock, and the one module that may have it.
const ONLY_HERE: &[(&str, &str)] = &[
    ("env::var(", "config"),
    ("env::var_os(", "config"),
    ("env::vars(", "config"),
    ("env::vars_os(", "config"),
    ("SystemTime::now", "clock"),
    ("Timestamp::now", "clock"),
];

/// Modules that re-export items of lower ones, so that higher layers can name them without
/// importing their owner.
const HANDS_ON: &[(&str, &[&str])] = &[
    ("agent", &["transcript"]),
    ("host", &["agent"]),
    ("supervisor", &["host", "notice", "store"]),
    ("wire", &["task"]),
    ("daemon", &["http", "store"]),
];

struct Source {
    path: PathBuf,
    /// The top-level module: the first folder, or the file itself.
    module: String,
    text: String,
}

impl Source {
    /// Its module path, itself included: `fork/read.rs` is `["fork", "read"]`.
    fn modules(&self) -> Vec<String> {
        let inside = self.path.strip_prefix(src()).unwrap().with_extension("");
        let names = inside.iter().map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| name != "mod").collect()
    }

    /// The length of its module path, itself included.
    fn depth(&self) -> usize {
        self.modules().len()
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
fn the_table_lists_only_modules_below() {
    for (n, (module, below)) in MAY_KNOW.iter().enumerate() {
        for known in *below {
            let lower = MAY_KNOW[..n].iter().any(|(name, _)| name == known);
            assert!(lower, "`{module}` may know `{known}`, which is not below it");
        }
    }
}

/// The lines of the picture are `band │ module module · what for │`, the highest layer first.
#[test]
fn the_diagram_in_the_architecture_document_matches_the_table() {
    let text = fs::read_to_string(src().with_file_name("ARCHITECTURE.md")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('│')?.1.split_once('·'));
    let picture: Vec<Vec<&str>> =
        lines.map(|(names, _)| names.split_whitespace().collect()).collect();
    let mut drawn: Vec<&str> = picture.iter().flatten().copied().collect();
    let mut expected: Vec<&str> = MAY_KNOW.iter().map(|(module, _)| *module).collect();
    drawn.sort_unstable();
    expected.sort_unstable();
    assert_eq!(drawn, expected);
    for (n, line) in picture.iter().enumerate() {
        for module in line {
            for known in row(module) {
                let is_below = picture[n + 1..].iter().any(|below| below.contains(known));
                assert!(is_below, "`{module}` knows `{known}`, which is not drawn below it");
            }
        }
    }
}

#[test]
fn modules_import_only_what_their_row_permits() {
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
fn no_row_permits_an_import_that_nobody_needs() {
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
fn re_exports_of_lower_modules_are_in_the_table() {
    for (module, below) in MAY_KNOW {
        let sources = sources().into_iter().filter(|source| source.module == *module);
        let found: BTreeSet<String> =
            sources.flat_map(|source| paths_after("pub use crate::", &source)).collect();
        let row = HANDS_ON.iter().find(|(name, _)| name == module);
        let expected = row.map_or(&[] as &[&str], |(_, handed_on)| handed_on);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "`{module}`");
        assert!(expected.iter().all(|owner| below.contains(owner)), "`{module}`");
    }
}

#[test]
fn nobody_reaches_through_the_supervisor_to_the_store() {
    for source in sources().into_iter().filter(|source| source.module != "supervisor") {
        let asks = code(&source).find(|line| line.contains(".store()"));
        assert!(asks.is_none(), "{}: {asks:?}", source.path.display());
    }
}

/// Callers ask a host for a capability. The concrete kinds are named only where hosts are
/// constructed, and in the command that serves the scripted host.
#[test]
fn the_kinds_of_hosts_are_named_only_where_hosts_are_made() {
    for source in sources() {
        let makes = ["host", "daemon"].contains(&source.module.as_str());
        let serves = source.path.ends_with("cli/scripted_host.rs");
        for kind in ["embedded", "opencode", "scripted"] {
            let path = format!("host::{kind}");
            let names = code(&source).find(|line| line.contains(&path));
            assert!(makes || serves || names.is_none(), "{}: {names:?}", source.path.display());
        }
    }
}

/// Work is spawned on an owner that waits for it or aborts it: a `TaskTracker` or a `JoinSet`.
/// Calls that return a handle which can be dropped are allowed in these files only, for the reason
/// beside each; the comment at the call says more. `spawn_blocking` counts where its handle is dropped, as a
/// statement of its own that is not awaited; a handle with a name is awaited, if only up to a time limit. Tests
/// are exempt.
#[test]
fn all_spawned_work_has_an_owner_that_joins_or_aborts_it() {
    const SPAWNS: &[&str] = &["tokio::spawn(", "task::spawn(", "thread::spawn(", "thread::Builder"];
    const MAY_SPAWN: &[(&str, &str)] = &[
        ("agent/model/provider/key.rs", "threads that end with the pipes of a command"),
        ("cli/auth.rs", "a read of the terminal, which cannot be interrupted; the process exits"),
        ("client/connection.rs", "a connection, which ends when its sender is dropped"),
        ("daemon/mod.rs", "its workers, which it joins when it stops; a check, which reads only"),
        ("host/opencode/mod.rs", "naming a bridge, which is cancelled with it"),
        ("host/scripted/world.rs", "scripts of the host for tests, which end by themselves"),
        (
            "mcp/parent.rs",
            "a question to the client, which fails when the connection closes, and what follows",
        ),
        ("process/guard.rs", "threads of a process that exits with its command"),
        ("store/writer.rs", "the writer's thread, which closing the store joins"),
    ];
    let mut spawning = BTreeSet::new();
    for source in sources() {
        if source.modules().iter().any(|name| name == "tests") {
            continue;
        }
        let drops_handle = |line: &str| {
            line.starts_with("tokio::task::spawn_blocking(") && !line.contains(".await")
        };
        let spawns = |line: &str| SPAWNS.iter().any(|call| line.contains(call));
        let mut lines = code(&source).take_while(|line| *line != "mod tests {");
        if lines.any(|line| spawns(line) || drops_handle(line)) {
            let path = source.path.strip_prefix(src()).unwrap();
            spawning.insert(path.to_str().unwrap().to_owned());
        }
    }
    let expected = MAY_SPAWN.iter().map(|(path, _)| (*path).to_owned());
    assert_eq!(spawning, expected.collect());
}

/// Every call tells a host where its session is, so it needs no task.
#[test]
fn hosts_do_not_read_tasks_from_the_store() {
    for source in sources().into_iter().filter(|source| source.module == "host") {
        let reads = |line: &&str| line.contains("store.task") || line.contains("store.live");
        let read = code(&source).find(reads);
        assert!(read.is_none(), "{}: {read:?}", source.path.display());
    }
}

/// A file and a folder of the same name are one module, and files inside a module belong to it:
/// only siblings count.
#[test]
fn files_of_a_module_have_no_import_cycles() {
    let files: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = {
        let sources = sources();
        let all: BTreeSet<Vec<String>> = sources.iter().map(Source::modules).collect();
        let known = |source: &Source| known_files(source, &all);
        sources.iter().map(|source| (source.modules(), known(source))).collect()
    };
    for file in files.keys() {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Vec<String>> = files[file].iter().collect();
        while let Some(other) = next.pop() {
            assert_ne!(other, file, "an import cycle through {reached:?}");
            if reached.insert(other) {
                next.extend(&files[other]);
            }
        }
    }
}

#[test]
fn the_main_program_uses_only_the_cli_module() {
    let main = sources().into_iter().find(|source| source.module == "main").unwrap();
    assert_eq!(paths_after("asyncagents::", &main), BTreeSet::from(["cli".to_owned()]));
}

#[test]
fn imports_have_one_module_per_line_and_leave_a_module_only_through_crate() {
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
fn only_config_reads_the_environment_and_only_clock_the_time() {
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

/// Terms of one SQL engine, and the folders of the store that may use them: the façade and that
/// engine's own files. Tests may open the file themselves.
#[test]
fn only_the_sql_facade_and_the_engine_use_terms_of_the_engine() {
    const ENGINE: &[&str] = &["rusqlite", "PRAGMA", "pragma_", "sqlite_schema", ".driver()"];
    for source in sources() {
        let modules = source.modules();
        let may = [["store", "sql"], ["store", "sqlite"]].iter().any(|folder| {
            modules.len() >= folder.len() && modules.iter().zip(folder).all(|(one, two)| one == two)
        });
        if may || modules.last().is_some_and(|name| name == "tests") {
            continue;
        }
        for line in code(&source).take_while(|line| *line != "mod tests {") {
            let found = ENGINE.iter().find(|word| line.contains(**word));
            assert_eq!(found, None, "{}: {line}", source.path.display());
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

/// The files that this one imports, without its ancestors, its descendants and its tests.
fn known_files(source: &Source, all: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let own = source.modules();
    let lines = code(source).take_while(|line| *line != "mod tests {");
    let text = lines.collect::<Vec<_>>().join(" ");
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::").chain(text.match_indices("super::")) {
        let follows_another = text[..at].ends_with("::");
        if follows_another || text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let path = &text[at..];
        let ups = path.split("::").take_while(|name| *name == "super").count();
        let base = if ups == 0 { &[] as &[String] } else { &own[..own.len() - ups] };
        for names in named(&path["crate::".len() * ups.max(1)..]) {
            let mut file = base.to_vec();
            for name in names {
                file.push(name);
                if !all.contains(&file) {
                    file.pop();
                    break;
                }
            }
            found.insert(file);
        }
    }
    found.retain(|file| !own.starts_with(file) && !file.starts_with(&own));
    found
}

/// The paths in `a::b` or `a::{b, c::d}` at the start of this text.
fn named(text: &str) -> Vec<Vec<String>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let Some(tree) = text.strip_prefix('{') else {
        let name = text.split(|c| !is_name(c)).next().unwrap_or_default().to_owned();
        let deeper = match text[name.len()..].strip_prefix("::") {
            Some(rest) if rest.starts_with(|c| is_name(c) || c == '{') => named(rest),
            Some(_) | None => vec![Vec::new()],
        };
        return deeper.into_iter().map(|rest| [vec![name.clone()], rest].concat()).collect();
    };
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                paths.extend(named(tree[start..at].trim()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

#[test]
fn a_use_path_is_expanded_to_all_its_names() {
    let check = |text: &str, expected: &[&str]| {
        let paths: Vec<String> = named(text).iter().map(|names| names.join("::")).collect();
        assert_eq!(paths, expected, "{text}");
    };
    check("open::reader(path)?", &["open::reader"]);
    check(
        "rows::{self, RUN, deep::{one, two}}; use super::x;",
        &["rows::self", "rows::RUN", "rows::deep::one", "rows::deep::two"],
    );
    check("{Error, copy}; more", &["Error", "copy"]);
    check("Vec::<u8>::new()", &["Vec"]);
}

/// The lines that are not comments.
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
