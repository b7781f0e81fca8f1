//! Hosts from the shell: OpenCode servers listed, added, moved and removed; what the doctor reports
//! about them; the plugin installed and uninstalled.

use asyncagents::task::Phase;
use asyncagents::wire::TaskView;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::OpenCode;
use crate::support::process::{Shell, until};

/// A fresh machine: nothing is configured.
fn shell() -> Shell {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_added_used_moved_and_removed_by_its_name() {
    let server = OpenCode::start().await;
    let shell = shell();
    let opencode = || shell.json(["hosts", "--json"])[1].clone();
    let listed = block_in_place(|| {
        let listed = shell.say(["hosts"]);
        assert!(listed.contains("no server; `asyncagents hosts add NAME URL`"), "{listed}");
        shell.say(["hosts", "add", "work", &server.url()]);
        opencode()
    });
    assert_eq!(listed["name"], "opencode");
    assert_eq!(listed["servers"][0]["name"], "work");
    assert_eq!(listed["servers"][0]["version"], "1.18.33");
    let task = block_in_place(|| {
        let run = ["--host", "opencode", "run", "--json", "--agent", "general", "@hang"];
        let task: TaskView = serde_json::from_value(shell.json(run)).unwrap();
        let refused = shell.run(["hosts", "remove", "work"]);
        assert!(refused.stderr.contains("1 task still run on `work`"), "{refused:?}");
        task
    });
    assert_eq!((task.host.as_str(), task.host_instance.as_str()), ("opencode", "work"));
    server.until_busy(&task.session_id).await;
    let phase = || shell.task(&task.session_id).progress.phase;
    block_in_place(|| until("it is seen at work", || phase() != Phase::Starting));
    server.restart_on_new_port().await;
    block_in_place(|| {
        // The new address is stored, so the next daemon knows it as well.
        shell.say(["hosts", "add", "work", &server.url()]);
        shell.kill_daemon();
        let waited = shell.run(["wait", "--timeout", "60", &task.session_id]);
        assert_eq!(waited.code, 0, "it was continued: {waited:?}");
        shell.say(["hosts", "remove", "work"]);
        assert_eq!(opencode()["servers"], serde_json::json!([]));
        let bad = shell.run(["hosts", "add", "a/b", "http://127.0.0.1:1"]);
        assert_eq!(bad.code, 1);
        let bad = shell.run(["hosts", "add", "x", "ftp://nowhere"]);
        assert!(bad.stderr.contains("is no address of a server"), "{bad:?}");
    });
}

#[test]
fn a_server_that_was_added_does_not_become_the_default_at_the_next_start() {
    let shell = shell();
    let default = || -> Vec<String> {
        let hosts = shell.json(["hosts", "--json"]);
        let defaults = hosts.as_array().unwrap().iter().filter(|host| host["isDefault"] == true);
        defaults.map(|host| host["name"].as_str().unwrap().to_owned()).collect()
    };
    shell.say(["hosts", "add", "work", "http://127.0.0.1:1"]);
    assert_eq!(default(), ["embedded"]);
    shell.say(["daemon", "restart"]);
    assert_eq!(default(), ["embedded"]);
    // A configured server becomes the default.
    let file = shell.path(".config/asyncagents/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "[opencode.servers]\nhome = 'http://127.0.0.1:1'\n").unwrap();
    shell.say(["daemon", "restart"]);
    assert_eq!(default(), ["opencode"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_says_what_is_wrong_with_a_server_and_the_way_out() {
    let server = OpenCode::start_with_password("secret").await;
    let shell = shell();
    block_in_place(|| {
        let well = shell.run(["doctor"]);
        assert_eq!(well.code, 0, "{well:?}");
        assert!(well.stdout.contains("✓ task store: sound"), "{}", well.stdout);
        assert!(well.stdout.contains("OpenCode plugin: not installed"), "{}", well.stdout);
        shell.say(["hosts", "add", "locked", &server.url()]);
        shell.say(["hosts", "add", "nobody", "http://127.0.0.1:9"]);
        let sick = shell.run(["doctor"]);
        assert_eq!(sick.code, 1, "{sick:?}");
        assert!(sick.stdout.contains("✗ OpenCode server `locked`"), "{}", sick.stdout);
        assert!(sick.stdout.contains("set OPENCODE_SERVER_PASSWORD"), "{}", sick.stdout);
        assert!(sick.stdout.contains("✗ OpenCode server `nobody`"), "{}", sick.stdout);
        let address = server.url().replace("http://", "http://opencode:secret@");
        shell.say(["hosts", "add", "locked", &address]);
        shell.say(["hosts", "remove", "nobody"]);
        let well = shell.run(["doctor"]);
        assert_eq!(well.code, 0, "{well:?}");
        let told = [well.stdout, shell.say(["hosts"]), shell.log()].concat();
        assert!(!told.contains("secret"), "a password is shown: {told}");
    });
}

#[test]
fn an_undo_log_of_an_earlier_version_is_read_and_loses_its_copy_of_the_clients_file() {
    let old_forms = [
        json!({"before": "sk-secret", "after": "sk-secret, ours"}),
        json!({"length": 9, "checksum": 9, "undo": "remove_file"}),
    ];
    for old in old_forms {
        let shell = shell();
        let project = shell.path("project");
        std::fs::create_dir(&project).unwrap();
        let opencode = |arguments: &str| {
            let arguments = ["opencode"].into_iter().chain(arguments.split(' '));
            let ended = shell.run_in(&project, arguments);
            assert_eq!(ended.code, 0, "{ended:?}");
        };
        opencode("install --global");
        opencode("install --project");
        let log = shell.path(".config/asyncagents/opencode/installed.json");
        let plugin = log.with_file_name("asyncagents.ts");
        let mut logged: Value =
            serde_json::from_str(&std::fs::read_to_string(&log).unwrap()).unwrap();
        let files = logged["files"].as_object_mut().unwrap();
        assert_eq!(files.len(), 2);
        files.values_mut().for_each(|change| *change = old.clone());
        std::fs::write(&log, logged.to_string()).unwrap();

        opencode("install --project");
        let now: Value = serde_json::from_str(&std::fs::read_to_string(&log).unwrap()).unwrap();
        let entry = json!({"length": 0, "checksum": 0, "added": "entry"});
        logged["files"].as_object_mut().unwrap().values_mut().for_each(|it| *it = entry.clone());
        assert_eq!(now, logged);

        opencode("uninstall --project");
        assert!(plugin.exists(), "the global configuration names it");
        opencode("uninstall --global");
        assert!(!plugin.exists() && !log.exists());
    }
}

#[test]
fn install_names_what_it_did_and_uninstall_undoes_exactly_that() {
    let shell = shell();
    let project = shell.path("project");
    std::fs::create_dir(&project).unwrap();
    let file = project.join("opencode.jsonc");
    let before = "{\n  // mine\n\t\"model\": \"a/b\",\r\n  \"plugin\": [ \"other\" ], }";
    std::fs::write(&file, before).unwrap();
    let install = ["opencode", "install", "--project"];
    let done = shell.run_in(&project, install);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stdout.contains("wrote ") && done.stdout.contains("added the plugin to "),
        "{done:?}"
    );
    let put = std::fs::read_to_string(&file).unwrap();
    assert!(
        put.contains("// mine\n\t\"model\": \"a/b\",\r\n") && put.contains("\"other\""),
        "{put}"
    );
    assert!(put.contains("/opencode/asyncagents.ts"), "{put}");
    let again = shell.run_in(&project, install);
    assert!(
        again.stdout.contains("replaced ") && again.stdout.contains("already lists the plugin")
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), put);
    let doctor = shell.say(["doctor"]);
    assert!(doctor.contains("✓ OpenCode plugin: /"), "{doctor}");

    let gone = shell.run_in(&project, ["opencode", "uninstall", "--project"]);
    assert_eq!(gone.code, 0, "{gone:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "byte for byte");
    assert!(shell.say(["doctor"]).contains("OpenCode plugin: not installed"));

    // Edits between two installations by different programs are kept.
    shell.run_in(&project, install);
    let put = std::fs::read_to_string(&file).unwrap();
    let edited = put.replace("a/b", "my/own").replace("\"program\": \"", "\"program\": \"/old");
    std::fs::write(&file, edited).unwrap();
    shell.run_in(&project, install);
    shell.run_in(&project, ["opencode", "uninstall", "--project"]);
    let left = std::fs::read_to_string(&file).unwrap();
    assert!(left.contains("my/own") && left.contains("\"other\""), "{left}");
    assert!(!left.contains("asyncagents"), "{left}");

    // A file that the installation created is removed again.
    std::fs::remove_file(&file).unwrap();
    shell.run_in(&project, install);
    assert!(project.join("opencode.json").exists());
    shell.run_in(&project, ["opencode", "uninstall", "--project"]);
    assert!(!project.join("opencode.json").exists());

    // A file that cannot be parsed is left alone.
    std::fs::write(&file, "{ \"plugin\": ").unwrap();
    let refused = shell.run_in(&project, install);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("was left as it is"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ \"plugin\": ");
}
