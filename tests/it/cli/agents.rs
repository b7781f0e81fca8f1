//! `asyncagents agents`, through the built program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::process::{CommandOutcome, Shell};

fn agents(place: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_asyncagents"));
    command.current_dir(place).env_clear();
    command.args(["--home", "home", "--config", "config/config.toml", "agents"]).args(flags);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn agents_are_listed_with_their_source_and_untrusted_ones_and_problems_separately() {
    let place = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("config/config.toml", ""),
        ("config/agents/mine.md", "Mine."),
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
    let heading = lines.iter().position(|line| line.starts_with("Untrusted, from files")).unwrap();
    let (trusted, untrusted) = lines.split_at(heading);
    assert!(trusted.contains(&"mine all <config>/agents/mine.md Mine.".to_owned()), "{stdout}");
    assert!(trusted.iter().any(|line| line.starts_with("explore read list glob grep built-in")));
    let review = "review read bash .claude/agents/review.md Reviews";
    assert_eq!(untrusted[1..], ["NAME TOOLS SOURCE DESCRIPTION", review], "{stdout}");
    let stderr = String::from_utf8(listed.stderr).unwrap();
    let problems: Vec<&str> = stderr.lines().map(|line| line.split_once("` ").unwrap().1).collect();
    let expected = [
        "would be named `explore`, and a built-in agent can neither be replaced nor switched off; \
         give it another name",
        "has front matter without an end; close it with a line of `---`",
    ];
    assert_eq!(problems, expected);

    let agents: Vec<Value> =
        serde_json::from_slice(&agents(place.path(), &["--json"]).stdout).unwrap();
    let found: Vec<(&str, bool)> = agents
        .iter()
        .map(|agent| (agent["name"].as_str().unwrap(), agent["trusted"].as_bool().unwrap()))
        .collect();
    let expected = ["build", "explore", "general", "librarian", "mine", "oracle", "review"];
    assert_eq!(found, expected.map(|name| (name, name != "review")));
    assert!(!place.path().join("home").exists(), "no daemon is needed for it");
}

#[test]
fn the_bounds_on_agent_files_come_from_the_configuration_for_listings_and_launches() {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    fs::create_dir(shell.path("agents")).unwrap();
    fs::write(shell.path("agents/long.md"), "x".repeat(101)).unwrap();
    fs::write(shell.path("agents/short.md"), "x".repeat(100)).unwrap();
    let config = shell.path("config.toml");
    fs::write(&config, "[agent]\ndefinition_bytes = 100\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &config);
    let why = "is larger than 100 bytes (`agent.definition_bytes`); shorten it";
    let problem = format!("`{}` {why}\n", shell.path("agents/long.md").display());
    let listed = shell.run(["agents", "--json"]);
    assert_eq!((listed.code, listed.stderr), (0, problem));
    let refused = shell.run(["run", "--agent", "long", "Where is the login?"]);
    let unknown = "error: Agent \"long\" not found. Make sure it's registered. Known agents: \
        build, explore, general, librarian, oracle, short\n";
    assert_eq!(
        refused,
        CommandOutcome { code: 1, stdout: String::new(), stderr: unknown.to_owned() }
    );
    assert_eq!(shell.run(["run", "--agent", "short", "Where is the login?"]).code, 0);
}
