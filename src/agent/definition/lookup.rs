//! Looks up one agent by name, and explains why it cannot be used: it does not exist, or it is defined in
//! a workspace that is not trusted.

use std::path::{Path, PathBuf};

use super::{Bounds, Definition, built_in, folders, is_invisible, load};
use crate::trust::{Trust, TrustStatus, Workspace};

/// Why an agent cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentUnavailable {
    #[error("Agent \"{0}\" not found. Make sure it's registered.")]
    Unknown(String),
    #[error(
        "agent `{name}` is defined by a file of the workspace `{}`, which is not trusted, so it is not \
         used; `asyncagents agents` shows there what it would be allowed, and {way_out}",
        shown(workspace)
    )]
    Untrusted { name: String, workspace: PathBuf, way_out: String },
}

/// The agent of this name in a directory. Files cannot replace built-in agents, so for those no file is
/// read.
pub fn find(
    config_dir: &Path,
    trust: &Trust,
    bounds: Bounds,
    directory: &Path,
    name: &str,
) -> Result<Definition, AgentUnavailable> {
    if let Some(agent) = built_in(name) {
        return Ok(agent);
    }
    let workspace = trust.look(directory);
    let mut loaded = load(&folders(config_dir, &workspace), bounds);
    if let Some(agent) = loaded.agents.remove(name) {
        return Ok(agent);
    }
    // Only then is trust the reason; otherwise the user would be asked to trust for nothing.
    if !loaded.untrusted.contains_key(name) {
        return Err(AgentUnavailable::Unknown(name.to_owned()));
    }
    let way_out = way_out(&workspace);
    Err(AgentUnavailable::Untrusted { name: name.to_owned(), workspace: workspace.path, way_out })
}

/// What the user can do so that the agents of a workspace can be used.
pub fn way_out(workspace: &Workspace) -> String {
    match &workspace.status {
        TrustStatus::Unknown(error) => error.to_string(),
        TrustStatus::Trusted | TrustStatus::Declined | TrustStatus::Undecided => {
            format!("`asyncagents trust {}` allows it", quote(&workspace.path))
        }
    }
}

/// The path quoted for a shell: it is there to be copied, and a directory may be named `$(…)`. A path that
/// cannot be shown on one line becomes `.`, for a user who is in it.
fn quote(path: &Path) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%:,=".contains(c);
    match path.to_str() {
        Some(path) if path.chars().all(is_plain) => path.to_owned(),
        Some(path) if !path.contains(|c: char| c.is_control() || is_invisible(c)) => {
            format!("'{}'", path.replace('\'', r"'\''"))
        }
        Some(_) | None => ".".to_owned(),
    }
}

/// The path on one line, control and invisible characters escaped.
fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for c in path.display().to_string().chars() {
        match c.is_control() || is_invisible(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::trust::Decision;

    #[test]
    fn an_agent_of_an_untrusted_workspace_is_refused_with_the_way_out() {
        let place = tempfile::tempdir().unwrap();
        let (config, workspace) = (place.path().join("config"), place.path().join("a\u{7} b"));
        for (file, text) in [
            (config.join("agents/mine.md"), "Mine."),
            (workspace.join(".claude/agents/mine.md"), "Theirs."),
            (workspace.join(".claude/agents/guard.md"), "Guard."),
            (workspace.join(".claude/agents/explore.md"), "Not explore."),
        ] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let trust = Trust::in_home(place.path());
        let bounds = Bounds { files: 10, file_bytes: 100, folder_bytes: 1_000 };
        let prompt =
            |name: &str| find(&config, &trust, bounds, &workspace, name).map(|agent| agent.prompt);
        let unknown = Err(AgentUnavailable::Unknown("nobody".to_owned()));
        assert_eq!(prompt("mine").unwrap(), "Mine.");
        assert_eq!(prompt("nobody"), unknown);
        let root = place.path().canonicalize().unwrap();
        let expected = format!(
            "agent `guard` is defined by a file of the workspace `{}/a\\u{{7}} b`, which is not \
             trusted, so it is not used; `asyncagents agents` shows there what it would be allowed, \
             and `asyncagents trust .` allows it",
            root.display()
        );
        assert_eq!(prompt("guard").unwrap_err().to_string(), expected);
        fs::write(place.path().join("trust.json"), "{").unwrap();
        let error = prompt("guard").unwrap_err().to_string();
        assert!(error.contains("and cannot read the trust list `"), "{error}");
        fs::remove_file(place.path().join("trust.json")).unwrap();

        trust.decide(&workspace, Decision::Trusted).unwrap();
        assert_eq!(prompt("guard").unwrap(), "Guard.");
        assert_eq!(prompt("mine").unwrap(), "Theirs.");
        assert_eq!(prompt("nobody"), unknown);
        let explore = find(&config, &trust, bounds, &workspace, "explore");
        assert_eq!(explore, Ok(built_in("explore").unwrap()));
    }

    #[test]
    fn the_way_out_can_be_copied_into_a_shell() {
        let check = |path: &str, expected: &str| {
            let workspace = Workspace { path: path.into(), status: TrustStatus::Undecided };
            let expected = format!("`asyncagents trust {expected}` allows it");
            assert_eq!(way_out(&workspace), expected);
        };
        check("/home/x/repo-1.2_a", "/home/x/repo-1.2_a");
        check("/home/jürgen/repo", "/home/jürgen/repo");
        check("/tmp/a b", "'/tmp/a b'");
        check("/tmp/$(id)", "'/tmp/$(id)'");
        check("/tmp/it's; id", r"'/tmp/it'\''s; id'");
        check("/tmp/a\nb", ".");
        check("/tmp/\u{202e}b", ".");
    }
}
