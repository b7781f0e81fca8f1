//! `--json` of verbs that change files or settings: what became of each, and never a secret. That every verb takes it
//! is checked beside the verbs themselves.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::support::canary::CANARY;
use crate::support::process::{Shell, until};

/// The JSON of a command, whatever it says on standard error.
fn said(shell: &Shell, words: &str) -> Value {
    shell.json(words.split(' ').chain(["--json"]))
}

fn files(expected: &[(&str, &str)]) -> Value {
    let file = |(file, state): &(&str, &str)| json!({ "file": file, "state": state });
    json!({ "files": expected.iter().map(file).collect::<Vec<_>>() })
}

#[test]
fn verbs_that_change_files_name_them_and_what_became_of_them() {
    let shell = Shell::new();
    let path = |name: &str| shell.path(name).display().to_string();
    let check = |words: &str, expected: &[(&str, &str)]| {
        assert_eq!(said(&shell, words), files(expected), "{words}");
    };
    let config = path(".config/asyncagents/config.toml");
    check("config init", &[(&config, "written")]);

    let unit = path(".config/systemd/user/asyncagents.service");
    check("daemon install", &[(&unit, "written")]);
    check("daemon install", &[(&unit, "unchanged")]);
    check("daemon uninstall", &[(&unit, "removed")]);
    check("daemon uninstall", &[(&unit, "unchanged")]);

    let plugin = path(".config/asyncagents/opencode/asyncagents.ts");
    let opencode = path(".config/opencode/opencode.json");
    check("opencode install", &[(&plugin, "written"), (&opencode, "written")]);
    check("opencode install", &[(&plugin, "written"), (&opencode, "unchanged")]);
    check("opencode uninstall", &[(&opencode, "removed"), (&plugin, "removed")]);
    check("opencode uninstall", &[(&opencode, "unchanged")]);

    let client = path(".codex/config.toml");
    let entry = shell.say(["mcp", "install", "codex"]);
    let proposed = json!([{ "file": client, "state": "proposed", "entry": entry }]);
    assert_eq!(said(&shell, "mcp install codex"), json!({ "files": proposed }));
    check("mcp install codex --write", &[(&client, "written")]);
    check("mcp install codex --write", &[(&client, "unchanged")]);
    check("mcp uninstall codex", &[(&client, "proposed")]);
    check("mcp uninstall codex --write", &[(&client, "removed")]);
    check("mcp uninstall codex --write", &[(&client, "unchanged")]);
    assert_eq!(shell.health(), None, "none of this starts a daemon");
}

#[test]
fn what_was_changed_before_a_step_failed_is_printed_beside_the_error() {
    let shell = Shell::new();
    fs::create_dir_all(shell.path(".config")).unwrap();
    // Nothing is there to read, and nothing can be written.
    symlink("nowhere/else", shell.path(".config/opencode")).unwrap();
    let failed = shell.run(["opencode", "install", "--json"]);
    let plugin = shell.path(".config/asyncagents/opencode/asyncagents.ts");
    let printed: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(printed, files(&[(plugin.to_str().unwrap(), "written")]));
    assert!(failed.stderr.starts_with("error: cannot create "), "{failed:?}");
    assert_eq!(failed.code, 1);

    let client = shell.path(".codex/config.toml");
    fs::create_dir_all(&client).unwrap();
    let failed = shell.run(["mcp", "install", "codex", "--write", "--json"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (1, ""), "nothing was changed");
}

#[test]
fn neither_a_key_nor_the_token_is_in_the_json_of_who_stores_it() {
    let shell = Shell::new();
    let file = shell.home().join("auth.json");
    // That the key is in no output is checked of every command.
    let set = shell.run_with_input(["auth", "set", "openai", "--json"], CANARY.as_bytes());
    let stored: Value = serde_json::from_str(&set.stdout).unwrap();
    assert_eq!(stored, json!({ "provider": "openai", "stored": "key", "file": file }));
    let command = ["auth", "set", "openai", "--json", "--command", "cat key"];
    let stored = shell.json(command);
    assert_eq!(stored, json!({ "provider": "openai", "stored": "command", "file": file }));
    let removed = said(&shell, "auth remove openai");
    assert_eq!(removed, json!({ "provider": "openai", "removed": true, "file": file }));

    let client = shell.path(".cursor/mcp.json").display().to_string();
    let proposed = said(&shell, "mcp install --http cursor");
    let token = fs::read_to_string(shell.home().join("token")).unwrap();
    assert!(shell.say(["mcp", "install", "--http", "cursor"]).contains(token.trim()));
    assert_eq!(proposed, files(&[(&client, "proposed")]));
    assert_eq!(said(&shell, "mcp install --http cursor --write"), files(&[(&client, "written")]));
}

#[test]
fn a_decision_about_a_directory_is_printed_as_in_the_list() {
    let shell = Shell::new();
    let directory = fs::canonicalize(shell.path("")).unwrap().join("cloned");
    fs::create_dir(&directory).unwrap();
    let decided = |state: &str| json!({ "path": directory, "state": state });
    let check = |words: &str, expected: Value| assert_eq!(said(&shell, words), expected, "{words}");
    let here = directory.display();
    check(&format!("trust {here}"), decided("trusted"));
    check("trust --list", json!([decided("trusted")]));
    check(&format!("untrust {here}"), decided("declined"));
    check(&format!("trust {here}"), decided("trusted"));
    fs::remove_dir(&directory).unwrap();
    check(&format!("untrust {here}"), decided("missing"));
}

#[test]
fn the_servers_that_are_left_are_printed_after_one_was_added_or_removed() {
    let shell = Shell::new();
    let servers = |hosts: Value| -> Vec<String> {
        let hosts = hosts.as_array().unwrap().iter();
        let opencode = hosts.filter(|host| host["name"] == "opencode");
        let servers = opencode.flat_map(|host| host["servers"].as_array().cloned());
        servers.flatten().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    };
    let added = said(&shell, "hosts add work http://127.0.0.1:9");
    assert_eq!(servers(added), ["work"]);
    until("why it cannot be reached is said in short", || {
        let why = "http://127.0.0.1:9: cannot connect: Connection refused (os error 111)\n";
        shell.say(["hosts"]).contains(why)
    });
    assert_eq!(servers(said(&shell, "hosts remove work")), [""; 0]);
}
