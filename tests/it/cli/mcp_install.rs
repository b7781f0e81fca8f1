//! `mcp install` and `mcp uninstall`: what they print, what they write, and that the rest of a client's
//! configuration file is kept byte for byte.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::canary::{self, CANARY};
use crate::support::process::{CommandOutcome, Shell};
use crate::support::web::Site;

const CLIENTS: [(&str, &str); 7] = [
    ("claude", "project/.mcp.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("qwen", ".qwen/settings.json"),
    ("opencode", ".config/opencode/opencode.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", "project/.vscode/mcp.json"),
];

/// A user in a project, with this program on the `PATH`.
fn shell() -> Shell {
    let mut shell = Shell::new();
    fs::create_dir(shell.path("project")).unwrap();
    fs::create_dir(shell.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_asyncagents"), shell.path("bin/asyncagents")).unwrap();
    shell.set("PATH", shell.path("bin"));
    shell
}

fn mcp(shell: &Shell, arguments: &str) -> CommandOutcome {
    let arguments = ["mcp"].into_iter().chain(arguments.split(' '));
    shell.run_in(&shell.path("project"), arguments)
}

#[test]
fn install_prints_the_entry_its_file_and_what_the_client_still_asks_for() {
    let shell = shell();
    let mut told = String::new();
    for (client, file) in CLIENTS {
        let ended = mcp(&shell, &format!("install {client}"));
        assert_eq!(ended.code, 0, "{ended:?}");
        told += &format!("## {client}\n{}{}\n", ended.stderr, ended.stdout);
        assert!(!shell.path(file).exists(), "nothing is written unless asked for");
    }
    let root = shell.path("");
    insta::assert_snapshot!(told.replace(root.to_str().unwrap(), "~/"));
}

#[test]
fn install_writes_the_entry_once_and_uninstall_leaves_nothing() {
    let shell = shell();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        let shown = path.display();
        let printed = mcp(&shell, &format!("install {client}")).stdout;
        let installed = mcp(&shell, &format!("install {client} --write"));
        assert_eq!(installed.stdout, format!("added the server to {shown}\n"), "{installed:?}");
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(written, printed, "what was printed before");
        let again = mcp(&shell, &format!("install {client} --write"));
        assert_eq!(again.stdout, format!("{shown} already has the server\n"));
        let asked = mcp(&shell, &format!("uninstall {client}"));
        assert_eq!(asked.stdout, format!("{shown} has the server (--write removes it)\n"));
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            written,
            "nothing is written unless asked for"
        );
        let gone = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(gone.stdout, format!("removed {shown}\n"), "{gone:?}");
        let again = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(again.stdout, format!("{shown} does not exist\n"));
    }
    shell.say(["opencode", "install"]);
    shell.say(["opencode", "uninstall"]);
    let folders = ["mcp", "opencode"].map(|name| shell.path(".config/asyncagents").join(name));
    assert_eq!(folders.each_ref().map(|folder| folder.exists()), [false; 2]);
    // Nothing is installed any more, so these are not ours.
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    shell.say(["opencode", "uninstall"]);
    assert_eq!(folders.map(|folder| folder.exists()), [true; 2]);
}

#[test]
fn uninstall_restores_the_file_or_keeps_what_was_changed_since() {
    let shell = shell();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        let (before, mark, edited) = match client {
            "codex" => ("# mine\nmodel = 'x' # why\n[a]\n  b=1", "# mine", "# edited"),
            _ => ("{ // mine\n\t\"theme\":   \"x\",\r\n }", "// mine", "// edited"),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, before).unwrap();
        mcp(&shell, &format!("install {client} --write"));
        let put = fs::read_to_string(&path).unwrap();
        assert!(put.contains(mark) && put.contains("asyncagents"), "{put}");
        let gone = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(gone.stdout, format!("{} is as it was before\n", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), before, "byte for byte");

        mcp(&shell, &format!("install {client} --write"));
        let put = fs::read_to_string(&path).unwrap();
        fs::write(&path, put.replace(mark, edited)).unwrap();
        let gone = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(gone.stdout, format!("removed the server from {}\n", path.display()));
        let left = fs::read_to_string(&path).unwrap();
        assert!(left.contains(edited) && !left.contains("asyncagents"), "{left}");
        let again = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(again.stdout, format!("{} does not have the server\n", path.display()));
    }
}

#[test]
fn keys_in_a_clients_file_are_copied_to_no_file_of_ours() {
    let mut shell = shell();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        let before = match client {
            "codex" => format!("key = '{CANARY}' # {CANARY}\n[a.env]\nKEY = '{CANARY}'"),
            _ => format!("{{\"env\": {{\"KEY\": \"{CANARY}\"}} // {CANARY}\n}}"),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &before).unwrap();
        let root = shell.path("");
        let check = |shell: &Shell, arguments: &str, said: &str| {
            let ended = shell.run_in(&shell.path("project"), arguments.split(' '));
            assert!(ended.stdout.contains(said), "{arguments}: {ended:?}");
            assert_eq!(canary::leaks(&root), std::slice::from_ref(&path), "{arguments}");
        };
        check(&shell, &format!("mcp install {client} --write"), "added the server to");
        // The program is no longer on the PATH, so the entry is written again with its full path.
        shell.set("PATH", "/nowhere");
        check(&shell, &format!("mcp install {client} --write"), "added the server to");
        shell.set("PATH", shell.path("bin"));
        check(&shell, &format!("mcp uninstall {client} --write"), "is as it was before");
        assert_eq!(fs::read_to_string(&path).unwrap(), before, "byte for byte");
        if client == "opencode" {
            check(&shell, "opencode install", "added the plugin to");
            check(&shell, "opencode uninstall", "is as it was before");
            assert_eq!(fs::read_to_string(&path).unwrap(), before, "byte for byte");
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_program_that_is_not_on_the_path_is_named_by_its_path_with_a_warning() {
    let mut shell = shell();
    shell.set("PATH", "/nowhere");
    let ended = mcp(&shell, "install claude");
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_asyncagents")).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let server = serde_json::json!({"command": program, "args": ["mcp"]});
    assert_eq!(printed, serde_json::json!({"mcpServers": {"asyncagents": server}}));
    assert!(ended.stderr.contains("do not share that file"), "{ended:?}");
}

#[test]
fn a_configuration_file_that_cannot_be_parsed_is_left_unchanged() {
    let shell = shell();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "[1").unwrap();
        for verb in ["install", "uninstall"] {
            let refused = mcp(&shell, &format!("{verb} {client} --write"));
            let left_alone =
                format!("error: `{}` was left as it is: it is not valid ", path.display());
            assert!(refused.stderr.starts_with(&left_alone), "{refused:?}");
            assert_eq!(refused.code, 1);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1");
    }
}

#[test]
fn install_over_http_writes_the_address_and_the_token_and_warns_of_it() {
    let shell = shell();
    let mut told = String::new();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        let printed = mcp(&shell, &format!("install --http {client}"));
        assert_eq!(printed.code, 0, "{printed:?}");
        told += &format!("## {client}\n{}{}\n", printed.stderr, printed.stdout);
        assert!(!path.exists(), "nothing is written unless asked for");
        let installed = mcp(&shell, &format!("install --http {client} --write"));
        assert_eq!(installed.stdout, format!("added the server to {}\n", path.display()));
        assert!(installed.stderr.contains("the daemon's TOKEN"), "{installed:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), printed.stdout);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else reads the token");
        let again = mcp(&shell, &format!("install --http {client} --write"));
        assert_eq!(again.stdout, format!("{} already has the server\n", path.display()));
        let other = mcp(&shell, &format!("install {client} --write"));
        assert!(other.stderr.contains("over another transport"), "{other:?}");
        let gone = mcp(&shell, &format!("uninstall --http {client} --write"));
        assert_eq!(gone.stdout, format!("removed {}\n", path.display()), "{gone:?}");
    }
    let token = fs::read_to_string(shell.home().join("token")).unwrap();
    let address = Site::of(&shell).server.url;
    let told = told.replace(token.trim(), "TOKEN").replace(&address, "http://127.0.0.1:5165");
    let root = shell.path("");
    insta::assert_snapshot!(told.replace(root.to_str().unwrap(), "/home/me/"));
}

#[test]
fn install_over_http_takes_a_directory_and_uninstall_restores_the_file() {
    let shell = shell();
    for (client, file) in CLIENTS {
        let path = shell.path(file);
        let before = match client {
            "codex" => "# mine\nmodel = 'x'\n[a]\n  b=1",
            _ => "{ // mine\n\t\"theme\":   \"x\",\r\n }",
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, before).unwrap();
        let installed = mcp(&shell, &format!("install --http {client} --directory ../a&b --write"));
        assert_eq!(installed.code, 0, "{installed:?}");
        assert!(!installed.stderr.contains("--directory DIR"), "{installed:?}");
        let put = fs::read_to_string(&path).unwrap();
        assert!(put.contains("/mcp?directory=/") && put.contains("/a%26b\""), "{put}");
        let gone = mcp(&shell, &format!("uninstall {client} --write"));
        assert_eq!(gone.stdout, format!("{} is as it was before\n", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), before, "byte for byte");
    }
    let refused = mcp(&shell, "install claude --directory .");
    assert_eq!(refused.code, 2, "{refused:?}");
}
