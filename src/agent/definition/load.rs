//! Agents from folders. A file that is no agent is reported and hides nothing: what it would have
//! replaced stays. Workspaces come from anywhere, so nothing here trusts what lies in them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::parse::{Parsed, parse};
use super::{Definition, Error, Source, builtin};

const LARGEST_FILE: usize = 256 * 1024;

/// A place where files of agents may be; it need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    /// What listings call it.
    pub origin: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub agents: BTreeMap<String, Definition>,
    pub problems: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// Goes on from the file's name: "is not UTF-8 text; …".
    pub why: String,
}

/// The usual folders, those that win last.
pub fn folders(config_dir: &Path, workspace: &Path) -> Vec<Folder> {
    let folder = |path: PathBuf, origin| Folder { path, origin };
    let mut folders = vec![folder(config_dir.join("agents"), "<config>/agents")];
    let usual = [".claude/agents", ".opencode/agent", ".opencode/agents"];
    folders.extend(usual.map(|origin| folder(workspace.join(origin), origin)));
    folders
}

/// Agents of later folders replace those of earlier ones, all of them the built-in ones.
pub fn load(folders: &[Folder]) -> Loaded {
    let agents = builtin().into_iter().map(|agent| (agent.name.clone(), agent)).collect();
    let mut loaded = Loaded { agents, problems: Vec::new() };
    for folder in folders {
        for file in loaded.find_files(&folder.path) {
            match read_agent(&folder.path, &file) {
                Ok(Parsed::Agent(agent)) => {
                    loaded.agents.insert(agent.name.clone(), agent);
                }
                Ok(Parsed::Disabled { name }) => {
                    loaded.agents.remove(&name);
                }
                Err(error) => loaded.report(&file, &error),
            }
        }
    }
    loaded
}

impl Loaded {
    /// All Markdown files below, in order. Folders that are links are not entered: they may lead
    /// anywhere, and in circles.
    fn find_files(&mut self, folder: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            match entries(&folder) {
                Ok(entries) => {
                    for (path, is_folder) in entries {
                        let found = if is_folder { &mut folders } else { &mut files };
                        found.push(path);
                    }
                }
                Err(error) => self.report(&folder, &error),
            }
        }
        files.sort();
        files
    }

    fn report(&mut self, file: &Path, error: &Error) {
        self.problems.push(Problem { file: file.to_owned(), why: error.to_string() });
    }
}

/// Markdown files and folders, the latter flagged; hidden ones are nobody's agents.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, bool)>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::NotAFolder);
        }
        Err(error) => return Err(Error::Unreadable(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::Unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_hidden && (is_folder || is_markdown(&entry.path())) {
            found.push((entry.path(), is_folder));
        }
    }
    Ok(found)
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

fn read_agent(folder: &Path, file: &Path) -> Result<Parsed, Error> {
    let name = name(folder, file)?;
    let text = read_text(file)?;
    parse(&text, &name, Source::File(file.to_owned()))
}

/// `folder/name` of `folder/name.md`.
fn name(folder: &Path, file: &Path) -> Result<String, Error> {
    let path = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    let words = path.iter().map(|word| word.to_str());
    let words: Option<Vec<&str>> = words.collect();
    let bad = || Error::BadName(path.to_string_lossy().into_owned());
    Ok(words.ok_or_else(bad)?.join("/"))
}

fn read_text(file: &Path) -> Result<String, Error> {
    // A link in a workspace may lead to a secret, whose text would then be sent to a model.
    let target = fs::canonicalize(file).map_err(Error::Unreadable)?;
    // Reading a pipe would wait for ever.
    if !is_markdown(&target) || !target.is_file() {
        return Err(Error::NotMarkdown);
    }
    let mut bytes = Vec::new();
    File::open(&target)
        .and_then(|file| file.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes))
        .map_err(Error::Unreadable)?;
    if bytes.len() > LARGEST_FILE {
        return Err(Error::TooLarge(LARGEST_FILE));
    }
    String::from_utf8(bytes).map_err(|_| Error::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = Vec<(String, String)>;

    /// A configuration directory and a workspace in one.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().unwrap())
        }

        fn write(&self, file: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let file = self.0.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        }

        fn load(&self) -> Loaded {
            load(&folders(&self.0.path().join("config"), self.0.path()))
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
        let loaded = Place::new().load();
        let names: Vec<&String> = loaded.agents.keys().collect();
        assert_eq!(names, ["build", "explore", "general", "librarian", "oracle"]);
        assert_eq!(loaded.problems, []);
    }

    #[test]
    fn later_folders_win_over_earlier_ones_and_all_over_the_built_in() {
        let order = ["config/agents", ".claude/agents", ".opencode/agent", ".opencode/agents"];
        let place = Place::new();
        for folder in order {
            let file = place.write(&format!("{folder}/explore.md"), format!("From {folder}."));
            let agent = &place.load().agents["explore"];
            assert_eq!(agent.prompt, format!("From {folder}."));
            assert_eq!(agent.source, Source::File(file));
        }
        let folders = folders(Path::new("config"), Path::new(""));
        let paths: Vec<PathBuf> = folders.iter().map(|folder| folder.path.clone()).collect();
        assert_eq!(paths, order.map(PathBuf::from));
    }

    #[test]
    fn subfolders_are_part_of_the_name_unless_the_file_has_one() {
        let place = Place::new();
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
        let place = Place::new();
        place.write(".claude/agents/x.md", "a");
        place.write(".opencode/agent/x.md", "---\ndisable: true\n---\n");
        place.write(".opencode/agent/oracle.md", "---\ndisable: true\n---\n");
        assert_eq!(place.found(), (vec![], vec![]));
        assert!(!place.load().agents.contains_key("oracle"));
    }

    #[test]
    fn a_broken_file_is_reported_and_hides_nothing() {
        let place = Place::new();
        place.write(".claude/agents/x.md", "first");
        place.write(".opencode/agent/x.md", "---\nbroken");
        place.write(".opencode/agent/y.md", "good");
        place.write(".opencode/agent/explore.md", b"\xff\xfe");
        place.write(".opencode/agent/large.md", "x".repeat(LARGEST_FILE + 1));
        place.write(".opencode/agent/largest.md", "x".repeat(LARGEST_FILE));
        place.write(".opencode/agents", "a file");
        let (agents, problems) = place.found();
        let names: Vec<&str> = agents.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["largest", "x", "y"]);
        assert_eq!(agents[1].1, "first");
        let expected = [
            ("explore.md", "is not UTF-8 text; save it as such"),
            ("large.md", "is larger than 256 KiB; shorten it"),
            ("x.md", "has front matter without an end; close it with a line of `---`"),
            ("agents", "is not a folder; put the files of agents into one"),
        ];
        assert_eq!(problems, pairs(&expected));
        assert_eq!(place.load().agents["explore"].source, Source::BuiltIn);
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_markdown_files_only() {
        use std::os::unix::fs::symlink;
        let place = Place::new();
        let secret = place.write("home/secret", "a key");
        let shared = place.write("home/shared.md", "good");
        place.write(".claude/agents/x.md", "x");
        let folder = place.0.path().join(".claude/agents");
        symlink(secret, folder.join("secret.md")).unwrap();
        symlink(shared, folder.join("shared.md")).unwrap();
        symlink(&folder, folder.join("circle")).unwrap();
        std::os::unix::net::UnixListener::bind(folder.join("socket.md")).unwrap();
        let why = "leads to something that is not a Markdown file; put the file itself here";
        let problems = pairs(&[("secret.md", why), ("socket.md", why)]);
        assert_eq!(place.found(), (pairs(&[("shared", "good"), ("x", "x")]), problems));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_name_that_is_not_text_is_reported() {
        use std::os::unix::ffi::OsStrExt;
        let place = Place::new();
        let file = place.write(".claude/agents/x.md", "x");
        let odd = std::ffi::OsStr::from_bytes(b"\xff.md");
        fs::rename(&file, file.with_file_name(odd)).unwrap();
        let (agents, problems) = place.found();
        assert_eq!((agents.len(), problems.len()), (0, 1));
        assert!(problems[0].1.starts_with("would be named `"), "{problems:?}");
    }
}
