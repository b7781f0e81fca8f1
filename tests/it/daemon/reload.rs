//! Reloading the configuration file while the daemon runs.

use std::fs;
use std::path::PathBuf;

use asyncagents::task::Phase;

use crate::support::process::{CommandOutcome, Shell, until};

fn configured(text: &str) -> (Shell, PathBuf) {
    let mut shell = Shell::with_host_process();
    let file = shell.path("config.toml");
    fs::write(&file, text).unwrap();
    shell.set("ASYNCAGENTS_CONFIG", &file);
    shell.say(["daemon", "start"]);
    (shell, file)
}

#[test]
fn a_changed_configuration_is_noted_by_every_verb_until_a_restart_applies_it() {
    let (shell, file) = configured("[supervisor]\nmax_depth = 1\n");
    let task = shell.launch_to_the_end("@say done").short_id;
    let verbs = [vec!["list", "--json"], vec!["wait", "-q", &task], vec!["hosts"], vec!["approve"]];
    let complaint = |verb: &Vec<&str>| -> String {
        let ended: CommandOutcome = shell.run(verb);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stderr
    };
    assert_eq!(verbs.each_ref().map(complaint), [""; 4]);
    fs::write(&file, "[supervisor]\nmax_depth = 3\n[history]\nmax_tasks = 50\n").unwrap();
    let changed = format!(
        "the configuration file `{}` was changed (`history.max_tasks`, `supervisor.max_depth`); \
         `asyncagents daemon restart` applies it, and live runs go on",
        file.display()
    );
    for verb in &verbs {
        assert_eq!(complaint(verb), format!("note: {changed}\n"), "{verb:?}");
    }
    assert_eq!(shell.health().unwrap().restart_needed, Some(changed.clone()));
    let status = shell.say(["daemon", "status"]);
    let lines: Vec<&str> = status.lines().collect();
    assert!(lines[0].ends_with(" 1 task"), "{status}");
    assert_eq!(lines.last(), Some(&format!("warning: {changed}").as_str()));
    let doctor = shell.run(["doctor"]).stdout;
    assert!(doctor.contains(&format!("\n! {changed}\n")), "{doctor}");

    let live = shell.launch_hanging("slow");
    let restarted = shell.say(["daemon", "restart"]);
    assert!(restarted.lines().next().unwrap().ends_with(" tasks"), "{restarted}");
    assert!(!restarted.contains("was changed"), "{restarted}");
    assert_eq!(verbs.each_ref().map(complaint), [""; 4]);
    shell.finish(&live, "found");
    assert_eq!(shell.run(["wait", "--quiet", &live.short_id]).code, 0, "it went on");
}

#[test]
fn a_change_of_the_configuration_that_is_reverted_needs_no_restart() {
    let (shell, file) = configured("");
    fs::write(&file, "[api]\nenabled = false\n").unwrap();
    assert!(shell.health().unwrap().restart_needed.is_some());
    fs::write(&file, "").unwrap();
    assert_eq!(shell.health().unwrap().restart_needed, None);
}

#[test]
fn changed_limits_and_log_level_apply_at_once() {
    let (shell, file) = configured("[limits]\nactive_per_parent = 1\n");
    shell.launch_hanging("first");
    let second = shell.launch("@hang").session_id;
    let phase = || shell.task(&second).progress.phase;
    assert_eq!(phase(), Phase::Queued);
    fs::write(&file, "[limits]\nactive_per_parent = 2\n[log]\nlevel = 'debug'\n").unwrap();
    assert_eq!(shell.health().unwrap().restart_needed, None);
    until("the second one starts", || phase() == Phase::Waiting);
    until("it is logged", || shell.log().contains("log level changed level=\"debug\""));
}

#[tokio::test]
async fn a_configuration_that_becomes_unusable_stops_nothing() {
    let (shell, file) = configured("");
    fs::write(&file, "[limits]\nactive_per_parnt = 2\n").unwrap();
    let client = shell.client();
    let health = client.health().await.unwrap();
    let expected = format!(
        "the configuration file `{0}` was changed and cannot be used: unknown key \
         `limits.active_per_parnt` in {0}; did you mean `limits.active_per_parent`?; the daemon goes \
         on with what it read before",
        file.display()
    );
    assert_eq!(health.restart_needed, Some(expected));
}
