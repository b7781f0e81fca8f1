//! `asyncagents doctor`: its checks, as lines for people and as JSON; and the progress of long operations,
//! which only a terminal shows.

use std::fs;

use asyncagents::wire::PROTOCOL;
use serde_json::{Value, json};

use super::rendering::fill;
use crate::support::front::CannedDaemon;
use crate::support::process::Shell;

/// The lines of the doctor about this, with their status signs.
fn findings_about(shell: &Shell, what: &str) -> Vec<String> {
    let lines = shell.run(["doctor"]).stdout;
    let is_about = |line: &&str| line.get(..).is_some_and(|line| line.contains(what));
    lines.lines().filter(is_about).map(str::to_owned).collect()
}

#[test]
fn the_doctor_checks_storage_port_hosts_clients_and_notifications_and_says_what_to_do() {
    let mut shell = Shell::new();
    let file = shell.path("config.toml");
    shell.set("ASYNCAGENTS_CONFIG", &file);
    fs::write(&file, "").unwrap();
    let home = shell.home().display().to_string();
    let [storage] = findings_about(&shell, " storage: ").try_into().unwrap();
    assert!(storage.starts_with(&format!("✓ storage: {home}, task store of ")), "{storage}");
    let [port] = findings_about(&shell, " port: ").try_into().unwrap();
    assert!(port.starts_with("✓ port: http://127.0.0.1:"), "{port}");
    let hosts = "✓ hosts: embedded, opencode, scripted (default)";
    assert_eq!(findings_about(&shell, " hosts: "), [hosts]);
    let none = "– MCP clients: none is registered (`asyncagents mcp install CLIENT --write`)";
    assert_eq!(findings_about(&shell, "MCP client"), [none]);
    let none = "– notifications: none (`[notify]` in the configuration file)";
    assert_eq!(findings_about(&shell, "notifications"), [none]);

    shell.say(["mcp", "install", "cursor", "--write"]);
    let cursor = shell.path(".cursor/mcp.json");
    let registered = format!("✓ MCP client cursor: registered in {}", cursor.display());
    assert_eq!(findings_about(&shell, "MCP client"), [registered]);
    fs::write(&cursor, "{").unwrap();
    let [broken] = findings_about(&shell, "MCP client").try_into().unwrap();
    assert!(broken.starts_with("! MCP client cursor: "), "{broken}");

    let webhook = "[notify]\ndesktop = true\ncommand = \"true\"\n\
                   webhook_url = \"https://example.org/t0ken\"\nwebhook_secret_file = \"secret\"\n";
    fs::write(&file, webhook).unwrap();
    fs::write(shell.path("secret"), "s3cret").unwrap();
    shell.set("PATH", "/nowhere");
    let expected = [
        "! notifications: `notify.desktop` is on, and there is no `notify-send` on the PATH; install it \
         (libnotify)",
        "✓ notifications: webhook at example.org, secret from a file",
        "✓ notifications: `notify.command`",
    ];
    assert_eq!(findings_about(&shell, " notifications: "), expected);
    fs::remove_file(shell.path("secret")).unwrap();
    let doctor = shell.run(["doctor"]);
    assert_eq!(doctor.code, 1);
    assert!(doctor.stdout.contains("\n✗ notifications: the webhook's secret "), "{doctor:?}");
    assert!(!doctor.stdout.contains("t0ken"), "{doctor:?}");
}

#[test]
fn the_doctor_counts_its_findings_and_reports_the_same_as_json() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let text = shell.run(["doctor"]).stdout;
    let json = shell.json(["doctor", "--json"]);
    let sign = |status: &Value| match status.as_str().unwrap() {
        "ok" => '✓',
        "absent" => '–',
        "warning" => '!',
        _ => '✗',
    };
    let findings = json["findings"].as_array().unwrap();
    let line = |finding: &Value| {
        format!("{} {}\n", sign(&finding["status"]), finding["text"].as_str().unwrap())
    };
    let lines: String = findings.iter().map(line).collect();
    let count = |status: &str| findings.iter().filter(|f| f["status"] == status).count();
    let last = format!(
        "\n✓ ok: {}, – absent: {}, ! warning: {}, ✗ wrong: 0\n",
        count("ok"),
        count("absent"),
        count("warning")
    );
    // The task store may grow between the two runs, so its size is left out.
    let without_size = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.contains(" storage: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(without_size(&text), without_size(&format!("{lines}{last}")));
    assert_eq!(json["sound"], json!(true));
}

#[test]
fn long_operations_show_progress_on_a_terminal_and_are_quiet_elsewhere() {
    let mut shell = Shell::new();
    // Progress is drawn only where `TERM` is set; the shell of the tests has none.
    shell.set("TERM", "xterm");
    shell.launch_to_the_end("@say done");
    let copy = shell.path("copy.db");
    let copied = shell.json(["backup", "--json", copy.to_str().unwrap()]);
    let bytes = fs::metadata(&copy).unwrap().len();
    assert_eq!(copied, json!({ "file": copy, "bytes": bytes }));
    let quiet = shell.run(["prune", "--keep", "5"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("Removed 0 tasks.\n", ""));
    let shown = shell.on_terminal(80, ["backup", "--force", copy.to_str().unwrap()]);
    assert!(shown.contains("copying the task store: 100%"), "{shown:?}");
    let shown = shell.on_terminal(80, ["prune", "--keep", "5"]);
    assert!(shown.contains("deleting old tasks"), "{shown:?}");
    shell.say(["daemon", "stop"]);
    let shown = shell.on_terminal(80, ["doctor", "--repair"]);
    assert!(shown.contains("rewriting the task store"), "{shown:?}");
    let repaired = shell.json(["doctor", "--repair", "--json"]);
    assert_eq!(repaired, json!({ "sound": true, "tasks": 0, "otherRows": 0, "lost": 0 }));
    fs::write(shell.database(), "garbage ".repeat(1000)).unwrap();
    let shown = shell.on_terminal(80, ["doctor", "--repair"]);
    assert!(shown.contains("rewriting the task store: 0 rows saved"), "{shown:?}");
}

#[test]
fn a_long_pruning_counts_on_a_terminal_what_is_deleted() {
    let mut shell = Shell::new();
    shell.set("TERM", "xterm");
    fill(&shell, 5_000);
    shell.say(["daemon", "start"]);
    let shown = shell.on_terminal(80, ["prune", "--keep", "0"]);
    assert!(shown.ends_with("Removed 5000 tasks.\n"), "{shown:?}");
    let counts = shown.split("deleting old tasks: ").skip(1);
    let counts: Vec<u64> = counts.filter_map(|text| text.split(' ').next()?.parse().ok()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert!(counts.iter().any(|count| (1..5_000).contains(count)), "{counts:?}");
}

#[test]
fn pruning_asks_for_no_figures_where_nobody_sees_them() {
    let shell = Shell::new();
    let health = json!({
        "status": "ok", "uptime": 9, "version": "0.1.0", "protocol": PROTOCOL, "taskCount": 1, "pid": 1,
    });
    let answers = vec![
        ("GET /v1/health", 200, health.to_string()),
        ("POST /v1/prune", 200, json!({ "removed": 1 }).to_string()),
    ];
    let daemon = CannedDaemon::listen(&shell.socket(), answers);
    assert_eq!(shell.say(["prune", "--keep", "0"]), "Removed 1 task.\n");
    assert_eq!(daemon.take_asked(), ["GET /v1/health?fresh=true", "POST /v1/prune"]);
}

#[test]
fn no_line_of_a_text_of_others_begins_like_one_of_the_doctors() {
    let shell = Shell::new();
    let file = shell.path(".codex/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "a = [\n✗ daemon: forged\n").unwrap();
    let is_ours = |line: &str| {
        line.is_empty() || ["✓ ", "– ", "! ", "✗ ", "  "].iter().any(|sign| line.starts_with(sign))
    };
    let check = |text: &str| {
        assert!(text.lines().all(is_ours), "{text}");
        assert!(text.contains("! MCP client codex: "), "{text}");
        assert!(text.contains("\n  ") && text.contains("✗ daemon: forged"), "{text}");
        assert!(!text.contains("\n✗ daemon"), "{text}");
    };
    check(&shell.run(["doctor"]).stdout);
    let narrow = shell.on_terminal(60, ["doctor"]);
    check(&narrow);
    let too_long = narrow.lines().find(|line| line.chars().count() > 60);
    assert_eq!(too_long, None);
}
