//! Embedded agents through the built program: no server, no key, no network.

use std::collections::BTreeSet;

use asyncagents::agent::definition::TOOLS;
use asyncagents::agent::tools;
use serde_json::Value;

use crate::support::process::Shell;

/// A fresh machine: nothing is configured.
fn embedded() -> Shell {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell
}

/// A small project, with a file that git ignores.
fn project(shell: &Shell) -> std::path::PathBuf {
    let root = shell.path("project");
    std::fs::create_dir_all(root.join("src")).unwrap();
    let login =
        "use crate::user;\n\npub fn login(name: &str) -> bool {\n    user::known(name)\n}\n";
    std::fs::write(root.join("src/login.rs"), login).unwrap();
    std::fs::write(root.join("src/user.rs"), "pub fn known(_: &str) -> bool { true }\n").unwrap();
    std::fs::write(root.join("README.md"), "# Sample\n\nInstall it. License: MIT.\n").unwrap();
    std::fs::write(root.join(".gitignore"), "secret\n").unwrap();
    std::fs::write(root.join("secret"), "login login login\n").unwrap();
    root
}

#[test]
fn agents_and_permission_rules_use_the_same_tool_names() {
    let specs: BTreeSet<&str> = tools::specs().iter().map(|spec| spec.name).collect();
    assert_eq!(specs, BTreeSet::from(TOOLS));
}

#[test]
fn the_demo_finds_real_things_in_a_repository_it_has_not_seen() {
    let shell = embedded();
    let root = project(&shell);
    let demo = shell.run_in(&root, ["demo"]);
    assert_eq!(demo.code, 0, "{demo:?}");
    assert_eq!(demo.stdout.matches("✓ **Agent \"").count(), 6, "{}", demo.stdout);
    assert_eq!(demo.stdout.matches("Task Progress: 3/3").count(), 2, "{}", demo.stdout);
    assert!(demo.stdout.contains("README.md:3: Install it. License: MIT."), "{}", demo.stdout);
    assert!(demo.stdout.contains("Where to look next:"), "{}", demo.stdout);
}

#[test]
fn the_default_agent_searches_the_workspace_and_reports_files_and_lines() {
    let shell = embedded();
    let root = project(&shell);
    let run = shell.run_in(&root, ["run", "--agent", "explore", "Where is the login?"]);
    let id = run.stdout.trim();
    assert_eq!(shell.run(["wait", id]).code, 0);
    let output = shell.run(["output", id, "--json"]);
    let task: Value = serde_json::from_str(&output.stdout).unwrap();
    let result = task["result"].as_str().unwrap();
    assert!(result.contains("- src/login.rs:3: pub fn login(name: &str) -> bool {"), "{result}");
    assert!(!result.contains("secret"), "what is ignored is not searched: {result}");
    assert!(result.contains("By the offline explorer"), "it says what it is: {result}");
    assert_eq!(task["host"], "embedded");
    assert_eq!(task["progress"]["toolCallsByName"]["grep"], 1, "{task}");
    assert!(task["progress"]["tokens"].as_u64().unwrap() > 0);
    // A follow-up continues in the same session.
    shell.run(["resume", id, "And where is known?"]);
    assert_eq!(shell.run(["wait", id]).code, 0);
    let again = shell.run(["output", id]);
    assert!(again.stdout.contains("src/user.rs:1"), "{}", again.stdout);
}

#[test]
fn an_agent_file_of_a_trusted_workspace_can_be_launched_and_an_unknown_one_is_refused() {
    let shell = embedded();
    let root = project(&shell);
    std::fs::create_dir_all(root.join(".claude/agents")).unwrap();
    let agent = "---\nname: guard\ndescription: looks\ntools: Read, Grep\n---\nYou look.\n";
    std::fs::write(root.join(".claude/agents/guard.md"), agent).unwrap();
    assert_eq!(shell.run_in(&root, ["trust"]).code, 0);
    let run = shell.run_in(&root, ["run", "--agent", "guard", "Where is the login?"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(shell.run(["wait", run.stdout.trim()]).code, 0);
    let nobody = shell.run_in(&root, ["run", "--agent", "nobody", "hello"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.stderr.contains("Agent \"nobody\" not found."), "{}", nobody.stderr);
    assert!(nobody.stderr.contains("guard"), "{}", nobody.stderr);
}

#[test]
fn an_interrupted_run_goes_on_with_the_next_daemon() {
    let shell = embedded();
    let root = project(&shell);
    for _ in 0..5 {
        let mut ids = Vec::new();
        for _ in 0..4 {
            let run = shell.run_in(&root, ["run", "--agent", "explore", "Where is the login?"]);
            ids.push(run.stdout.trim().to_owned());
        }
        shell.kill_daemon();
        for id in &ids {
            let waited = shell.run(["wait", "--timeout", "60", id]);
            assert_eq!(waited.code, 0, "{waited:?}");
            let output = shell.run(["output", id]);
            assert!(output.stdout.contains("src/login.rs:3"), "{}", output.stdout);
        }
    }
}

#[test]
fn a_model_that_cannot_be_used_is_refused_at_launch_with_the_way_out() {
    let shell = embedded();
    let root = project(&shell);
    let refused = |model: &str| {
        let run = shell.run_in(&root, ["run", "--model", model, "--agent", "explore", "hello"]);
        assert_ne!(run.code, 0, "{run:?}");
        run.stderr
    };
    let told = refused("openai/gpt");
    assert!(told.contains("the daemon has no key for `openai`: run `asyncagents auth"), "{told}");
    let told = refused("anthropic/claude");
    assert!(told.contains("the daemon has no key for `anthropic`: run `asyncagents"), "{told}");
    let told = refused("nobody/anything");
    assert!(told.contains("no model `nobody/anything`; there are `offline/explorer`"), "{told}");
    // An alias means the same as in an agent file; an unknown one is refused at launch.
    let told = refused("sonnet");
    assert!(told.contains("the daemon has no key for `anthropic`: run `asyncagents"), "{told}");
    let told = refused("sonnett");
    assert!(told.contains("no model `sonnett`; there are `offline/explorer`"), "{told}");
    assert_eq!(shell.json(["list", "--json"]), serde_json::json!([]));
}
