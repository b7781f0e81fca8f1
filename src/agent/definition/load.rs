//! Loads agent files from the configuration directory and the workspace. A file that is no valid agent is
//! reported and replaces nothing. A workspace may come from anywhere (a cloned repository), so its agents
//! count only once the user has trusted it, and reading is bounded in files and bytes in any case.
//! Blocking; nothing is cached.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::parse::{AgentFile, parse};
use super::walk::{is_markdown, walk};
use super::{BUILT_IN, Definition, Error, Source, builtin};
use crate::trust::Workspace;

/// How much is read at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of one folder and everything below it.
    pub files: usize,
    /// Of one file.
    pub file_bytes: usize,
    /// Of all files of one folder.
    pub folder_bytes: usize,
}

/// A directory that may have agent files; it need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    /// Its name in listings.
    pub origin: &'static str,
    /// Whether its files may define agents that can be used.
    pub trusted: bool,
}

/// All agents that are defined somewhere, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSet {
    pub agents: BTreeMap<String, Definition>,
    /// What files in untrusted directories would define. Never used, only shown.
    pub untrusted: BTreeMap<String, Definition>,
    pub problems: Vec<Problem>,
}

/// A file or directory that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// Continues a sentence that begins with the file's name: "is not UTF-8 text; …".
    pub why: String,
}

/// The directories that are searched, in ascending precedence.
pub fn folders(config_dir: &Path, workspace: &Workspace) -> Vec<Folder> {
    let own = Folder { path: config_dir.join("agents"), origin: "<config>/agents", trusted: true };
    let of_workspace = |origin| Folder {
        path: workspace.path.join(origin),
        origin,
        trusted: workspace.is_trusted(),
    };
    let usual = [".claude/agents", ".opencode/agent", ".opencode/agents"];
    [own].into_iter().chain(usual.map(of_workspace)).collect()
}

/// Loads all agents. Those of later directories replace those of earlier ones; none can replace a
/// built-in one.
pub fn load(folders: &[Folder], bounds: Bounds) -> AgentSet {
    let agents = builtin().into_iter().map(|agent| (agent.name.clone(), agent)).collect();
    let mut loaded = AgentSet { agents, untrusted: BTreeMap::new(), problems: Vec::new() };
    for folder in folders {
        loaded.add(folder, bounds);
    }
    loaded
}

impl AgentSet {
    fn add(&mut self, folder: &Folder, bounds: Bounds) {
        let found = walk(&folder.path, bounds.files);
        let mut room = bounds.folder_bytes;
        for file in found.files {
            // Untrusted definitions are parsed as well, so that the user sees what they would be allowed
            // before trusting them.
            let agents = if folder.trusted { &mut self.agents } else { &mut self.untrusted };
            match read_agent(&folder.path, &file, bounds, &mut room) {
                Ok(AgentFile::Agent(agent)) => {
                    agents.insert(agent.name.clone(), agent);
                }
                Ok(AgentFile::Disabled { name }) => {
                    agents.remove(&name);
                }
                Err(error) => self.report(&file, &error),
            }
        }
        for (path, error) in found.problems {
            self.report(&path, &error);
        }
    }

    fn report(&mut self, file: &Path, error: &Error) {
        self.problems.push(Problem { file: file.to_owned(), why: error.to_string() });
    }
}

/// Reads one file and takes its size off the `room` that is left for the directory.
fn read_agent(
    folder: &Path,
    file: &Path,
    bounds: Bounds,
    room: &mut usize,
) -> Result<AgentFile, Error> {
    let name = name(folder, file)?;
    let text = read_text(file, bounds.file_bytes)?;
    *room = room.checked_sub(text.len()).ok_or(Error::NoRoom(bounds.folder_bytes))?;
    let parsed = parse(&text, &name, Source::File(file.to_owned()))?;
    let (AgentFile::Agent(Definition { name, .. }) | AgentFile::Disabled { name }) = &parsed;
    // A repository with an agent `explore` (or `Explore`) that may run commands must not pass for the
    // built-in one that only reads.
    let lowered = name.to_lowercase();
    match BUILT_IN.iter().any(|(built_in, _)| *built_in == lowered) {
        true => Err(Error::BuiltInName(name.clone())),
        false => Ok(parsed),
    }
}

/// The agent's name by its path: `folder/name` for `folder/name.md`.
fn name(folder: &Path, file: &Path) -> Result<String, Error> {
    let path = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    let words = path.iter().map(|word| word.to_str());
    let words: Option<Vec<&str>> = words.collect();
    let bad = || Error::BadName(path.to_string_lossy().into_owned());
    Ok(words.ok_or_else(bad)?.join("/"))
}

/// Reads a Markdown file of at most this many bytes.
fn read_text(file: &Path, most_bytes: usize) -> Result<String, Error> {
    // A symlink in a workspace may lead to a secret, whose text would become a prompt and be sent to a
    // model. So what it leads to must be Markdown as well.
    let target = fs::canonicalize(file).map_err(Error::Unreadable)?;
    if !is_markdown(&target) {
        return Err(Error::NotMarkdown);
    }
    // Without blocking: opening a FIFO would wait for a writer for ever. Whether it is a file is asked of
    // the descriptor, not of the path, which may lead elsewhere by now.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&target);
    let file = match file {
        Ok(file) => file,
        // A socket cannot be opened at all.
        Err(_) if fs::symlink_metadata(&target).is_ok_and(|target| !target.is_file()) => {
            return Err(Error::NotMarkdown);
        }
        Err(error) => return Err(Error::Unreadable(error)),
    };
    if !file.metadata().map_err(Error::Unreadable)?.is_file() {
        return Err(Error::NotMarkdown);
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, to tell a file that is too large from one that just fits.
    let read = file.take(most_bytes as u64 + 1).read_to_end(&mut bytes);
    read.map_err(Error::Unreadable)?;
    if bytes.len() > most_bytes {
        return Err(Error::TooLarge(most_bytes));
    }
    String::from_utf8(bytes).map_err(|_| Error::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::TrustStatus;

    type Pairs = Vec<(String, String)>;

    const BOUNDS: Bounds = Bounds { files: 100, file_bytes: 4 * 1024, folder_bytes: 64 * 1024 };

    /// A configuration directory and a workspace in one.
    struct AgentFolder(tempfile::TempDir);

    impl AgentFolder {
        fn new() -> AgentFolder {
            AgentFolder(tempfile::tempdir().unwrap())
        }

        fn write(&self, file: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let file = self.0.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        }

        /// As if it were trusted.
        fn load(&self) -> AgentSet {
            self.load_as(TrustStatus::Trusted)
        }

        fn load_as(&self, status: TrustStatus) -> AgentSet {
            let workspace = Workspace { path: self.0.path().to_owned(), status };
            load(&folders(&self.0.path().join("config"), &workspace), BOUNDS)
        }

        /// Names and prompts that are not built in, and problems, by file name.
        fn found(&self) -> (Pairs, Pairs) {
            let loaded = self.load();
            let is_new = |agent: &Definition| agent.source != Source::BuiltIn;
            let agents = loaded.agents.into_values().filter(is_new);
            let agents = agents.map(|agent| (agent.name, agent.prompt)).collect();
            let name = |file: &Path| file.file_name().unwrap().to_string_lossy().into_owned();
            let problems = loaded.problems.into_iter();
            let problems = problems.map(|problem| (name(&problem.file), problem.why)).collect();
            (agents, problems)
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Pairs {
        pairs.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
    }

    #[test]
    fn without_any_folder_there_are_the_built_in_agents() {
        let loaded = AgentFolder::new().load();
        let names: Vec<&String> = loaded.agents.keys().collect();
        assert_eq!(names, ["build", "explore", "general", "librarian", "oracle"]);
        assert_eq!(loaded.problems, []);
    }

    #[test]
    fn later_folders_win_over_earlier_ones() {
        let order = ["config/agents", ".claude/agents", ".opencode/agent", ".opencode/agents"];
        let place = AgentFolder::new();
        for folder in order {
            let file = place.write(&format!("{folder}/x.md"), format!("From {folder}."));
            let agent = &place.load().agents["x"];
            assert_eq!(agent.prompt, format!("From {folder}."));
            assert_eq!(agent.source, Source::File(file));
        }
        let workspace = Workspace { path: PathBuf::new(), status: TrustStatus::Undecided };
        let folders = folders(Path::new("config"), &workspace);
        let found: Vec<(PathBuf, bool)> =
            folders.iter().map(|folder| (folder.path.clone(), folder.trusted)).collect();
        assert_eq!(found, order.map(|path| (path.into(), path == "config/agents")));
    }

    #[test]
    fn no_file_takes_the_name_of_a_built_in_agent_or_switches_one_off() {
        let place = AgentFolder::new();
        let mut expected = Vec::new();
        for (folder, file, text, name) in [
            ("config/agents", "explore.md", "Mine.", "explore"),
            ("config/agents", "general.md", "---\ndisable: true\n---\n", "general"),
            (".claude/agents", "EXPLORE.md", "Theirs.", "EXPLORE"),
            (".claude/agents", "other.md", "---\nname: Oracle\n---\nTheirs.", "Oracle"),
            (".opencode/agent", "build.md", "---\ndisable: true\n---\n", "build"),
            (
                ".opencode/agents",
                "x.md",
                "---\nname: librarian\ndisabled: true\n---\n",
                "librarian",
            ),
        ] {
            place.write(&format!("{folder}/{file}"), text);
            let why = format!(
                "would be named `{name}`, and a built-in agent can neither be replaced nor \
                 switched off; give it another name"
            );
            expected.push((file.to_owned(), why));
        }
        place.write(".claude/agents/team/explore.md", "Another name.");
        let agents = pairs(&[("team/explore", "Another name.")]);
        assert_eq!(place.found(), (agents, expected));
        let loaded = place.load();
        for built_in in builtin() {
            assert_eq!(loaded.agents.get(&built_in.name), Some(&built_in));
        }
    }

    #[test]
    fn files_of_an_untrusted_workspace_define_replace_and_switch_off_nothing() {
        let place = AgentFolder::new();
        place.write("config/agents/mine.md", "Mine.");
        place.write("config/agents/kept.md", "Kept.");
        let own = place.load();
        place.write(".claude/agents/mine.md", "Theirs.");
        place.write(".claude/agents/kept.md", "---\ndisable: true\n---\n");
        let file = place.write(".opencode/agent/new.md", "New.");
        place.write(".opencode/agent/broken.md", "---\nbroken");
        for status in [TrustStatus::Undecided, TrustStatus::Declined] {
            let loaded = place.load_as(status);
            assert_eq!(loaded.agents, own.agents);
            let untrusted: Pairs =
                loaded.untrusted.values().map(|a| (a.name.clone(), a.prompt.clone())).collect();
            assert_eq!(untrusted, pairs(&[("mine", "Theirs."), ("new", "New.")]));
            assert_eq!(loaded.untrusted["new"].source, Source::File(file.clone()));
            assert_eq!(loaded.problems.len(), 1);
        }
        let trusted = place.load();
        assert_eq!(trusted.untrusted, BTreeMap::new());
        let (agents, _) = place.found();
        assert_eq!(agents, pairs(&[("mine", "Theirs."), ("new", "New.")]));
    }

    #[test]
    fn subfolders_are_part_of_the_name_unless_the_file_has_one() {
        let place = AgentFolder::new();
        place.write(".opencode/agent/team/sub/review.md", "a");
        place.write(".opencode/agent/team/named.md", "---\nname: other\n---\nb");
        place.write(".opencode/agent/.hidden/x.md", "c");
        place.write(".opencode/agent/.x.md", "c");
        place.write(".opencode/agent/x.txt", "c");
        let expected = pairs(&[("other", "b"), ("team/sub/review", "a")]);
        assert_eq!(place.found(), (expected, vec![]));
    }

    #[test]
    fn a_disabled_agent_is_left_out_also_if_it_was_there_before() {
        let place = AgentFolder::new();
        place.write(".claude/agents/x.md", "a");
        place.write(".opencode/agent/x.md", "---\ndisable: true\n---\n");
        assert_eq!(place.found(), (vec![], vec![]));
    }

    #[test]
    fn a_broken_file_is_reported_and_hides_nothing() {
        let place = AgentFolder::new();
        place.write(".claude/agents/x.md", "first");
        place.write(".opencode/agent/x.md", "---\nbroken");
        place.write(".opencode/agent/y.md", "good");
        place.write(".opencode/agent/explore.md", b"\xff\xfe");
        place.write(".opencode/agent/large.md", "x".repeat(BOUNDS.file_bytes + 1));
        place.write(".opencode/agent/largest.md", "x".repeat(BOUNDS.file_bytes));
        place.write(".opencode/agents", "a file");
        let (agents, problems) = place.found();
        let names: Vec<&str> = agents.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["largest", "x", "y"]);
        assert_eq!(agents[1].1, "first");
        let expected = [
            ("explore.md", "is not UTF-8 text; save it as such"),
            ("large.md", "is larger than 4096 bytes (`agent.definition_bytes`); shorten it"),
            ("x.md", "has front matter without an end; close it with a line of `---`"),
            ("agents", "is not a folder; put the files of agents into one"),
        ];
        assert_eq!(problems, pairs(&expected));
        assert_eq!(place.load().agents["explore"].source, Source::BuiltIn);
    }

    #[cfg(unix)]
    #[test]
    fn symbolic_links_are_followed_to_markdown_files_only() {
        use std::os::unix::fs::symlink;
        let place = AgentFolder::new();
        let secret = place.write("home/secret", "a key");
        let shared = place.write("home/shared.md", "good");
        place.write(".claude/agents/x.md", "x");
        let folder = place.0.path().join(".claude/agents");
        symlink(secret, folder.join("secret.md")).unwrap();
        symlink(shared, folder.join("shared.md")).unwrap();
        symlink(&folder, folder.join("circle")).unwrap();
        std::os::unix::net::UnixListener::bind(folder.join("socket.md")).unwrap();
        let pipe = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe.md"), pipe.0, pipe.1, 0).unwrap();
        fs::create_dir(place.0.path().join("home/folder.md")).unwrap();
        symlink(place.0.path().join("home/folder.md"), folder.join("folder.md")).unwrap();
        let why = "leads to something that is not a Markdown file; put the file itself here";
        let names = ["folder.md", "pipe.md", "secret.md", "socket.md"];
        let problems = pairs(&names.map(|name| (name, why)));
        assert_eq!(place.found(), (pairs(&[("shared", "good"), ("x", "x")]), problems));
    }

    #[test]
    fn the_total_size_of_the_files_in_a_folder_is_bounded() {
        let place = AgentFolder::new();
        let count = BOUNDS.folder_bytes / BOUNDS.file_bytes;
        for n in 0..=count {
            place.write(&format!(".claude/agents/{n:02}.md"), "x".repeat(BOUNDS.file_bytes));
        }
        place.write(".opencode/agent/x.md", "x");
        let (agents, problems) = place.found();
        assert_eq!(agents.len(), count + 1);
        let why = "is not read: with the files before it in this folder it is more than 65536 bytes \
            (`agent.definition_folder_bytes`); delete some";
        assert_eq!(problems, pairs(&[("16.md", why)]));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_name_that_is_not_utf_8_is_reported() {
        use std::os::unix::ffi::OsStrExt;
        let place = AgentFolder::new();
        let file = place.write(".claude/agents/x.md", "x");
        let odd = std::ffi::OsStr::from_bytes(b"\xff.md");
        fs::rename(&file, file.with_file_name(odd)).unwrap();
        let (agents, problems) = place.found();
        assert_eq!((agents.len(), problems.len()), (0, 1));
        assert!(problems[0].1.starts_with("would be named `"), "{problems:?}");
    }
}
