//! `asyncagents agents`, through the built program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn agents(place: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_asyncagents"));
    command.current_dir(place).env_clear();
    command.args(["--home", "home", "--config", "config/config.toml", "agents"]).args(flags);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn agents_are_listed_with_their_source_and_problems_apart() {
    let place = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("config/config.toml", ""),
        ("config/agents/explore.md", "Mine."),
        (".claude/agents/review.md", "---\ntools: Read, Bash\ndescription: Reviews\n---\nDo it."),
        (".opencode/agent/team/broken.md", "---\nno end"),
    ] {
        let file = place.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let listed = agents(place.path(), &[]);
    let stdout = String::from_utf8(listed.stdout).unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = stdout.lines().map(words).collect();
    assert!(lines.contains(&"explore all <config>/agents/explore.md Mine.".to_owned()), "{stdout}");
    let review = "review read bash .claude/agents/review.md Reviews".to_owned();
    assert!(lines.contains(&review), "{stdout}");
    assert!(stdout.contains("built-in") && !stdout.contains("broken"), "{stdout}");
    let stderr = String::from_utf8(listed.stderr).unwrap();
    let expected =
        "team/broken.md` has front matter without an end; close it with a line of `---`\n";
    assert!(stderr.ends_with(expected), "{stderr}");

    let agents: Vec<Value> =
        serde_json::from_slice(&agents(place.path(), &["--json"]).stdout).unwrap();
    let names: Vec<&str> = agents.iter().filter_map(|agent| agent["name"].as_str()).collect();
    assert_eq!(names, ["build", "explore", "general", "librarian", "oracle", "review"]);
    assert!(!place.path().join("home").exists(), "no daemon is needed for it");
}
