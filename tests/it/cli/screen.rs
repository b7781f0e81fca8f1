//! Commands on a real terminal (tmux): what is redrawn in place, and what stays on the screen. A
//! pseudoterminal alone shows the bytes, not what escape sequences make of them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::process::{Shell, until};
use crate::support::screen::Screen;

/// Runs the program and prints its exit code as the last line. `cat` keeps the screen open afterwards:
/// tmux closes a session with its command.
fn in_sh(arguments: &str) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_asyncagents");
    // Ctrl-C goes to the whole foreground process group; the shell around the program must survive it
    // to print the exit code.
    let script = format!("trap : INT; {program} {arguments}; echo \"exit $?\"; exec cat");
    ["sh", "-c", &script].map(str::to_owned).to_vec()
}

fn start<'a>(shell: &'a Shell, name: &str, arguments: &str) -> Screen<'a> {
    Screen::start(shell, &shell.path(""), name, (100, 30), &in_sh(arguments))
}

#[test]
fn wait_redraws_the_progress_of_tasks_in_place_and_survives_a_killed_daemon() {
    let shell = Shell::with_host_process();
    let (one, two) = (shell.launch_hanging("first"), shell.launch_hanging("second"));
    let screen = start(&shell, "wait", &format!("wait {} {}", one.short_id, two.short_id));
    // Lines of progress have the name without quotes, lines of an end have it in quotes.
    let line = |id: &str, name: &str| format!("{id}  {name} @hang ");
    screen.until_shows(&line(&one.short_id, "first"));
    screen.until_shows(&line(&two.short_id, "second"));
    screen.until_shows(", 0 tool calls");
    shell.kill_daemon();
    until("it is started again", || shell.health().is_some());
    shell.finish(&two, "b");
    let ended = format!("{} \"second @hang\" completed", two.short_id);
    screen.until_shows(&ended);
    // The progress line of the ended task is erased, the line of its end stays, and the progress of
    // the other one is drawn below it.
    until("only the first is drawn", || {
        let shown = screen.shown();
        !shown.contains(&line(&two.short_id, "second"))
            && shown.matches(&line(&one.short_id, "first")).count() == 1
    });
    assert!(
        screen.shown_in_colour().contains("\u{1b}[32mcompleted"),
        "{}",
        screen.shown_in_colour()
    );
    shell.finish(&one, "a");
    screen.until_shows("exit 0");
    let shown = screen.shown();
    let expected = format!("{ended}\n{} \"first @hang\" completed\nexit 0", one.short_id);
    assert_eq!(shown.trim_end(), expected);
}

#[test]
fn wait_says_at_once_when_one_of_several_tasks_needs_an_answer() {
    let shell = Shell::with_host_process();
    let hanging = shell.launch_hanging("first");
    let asking = shell.launch("second\n@ask bash rm -rf x\n@say done");
    let screen = start(&shell, "asks", &format!("wait {} {}", hanging.short_id, asking.short_id));
    screen.until_shows("asks for: \"bash rm -rf x\"");
    screen.until_shows(&format!("asyncagents approve {}", asking.short_id));
    screen.until_shows("running, blocked");
    shell.say(["approve", &asking.short_id]);
    screen.until_shows(&format!(
        "{} \"second @ask bash rm -rf x @say done\" completed",
        asking.short_id
    ));
    assert_eq!(screen.shown().matches("asks for:").count(), 1, "{}", screen.shown());
    shell.finish(&hanging, "a");
    screen.until_shows("exit 0");
}

#[test]
fn run_with_follow_shows_the_conversation_on_a_terminal_across_a_killed_daemon() {
    let shell = Shell::with_host_process();
    let arguments = "run --follow --description look '@tool read {\"path\":\"a\"}\n@hang'";
    let screen = start(&shell, "follow", arguments);
    screen.until_shows("> read path=\"a\"");
    let task = shell.tasks().remove(0);
    shell.kill_daemon();
    until("it is started again", || shell.health().is_some());
    shell.finish(&task, "## Found\n\nIt is in **a**.");
    screen.until_shows("exit 0");
    let shown = screen.shown();
    assert_eq!(shown.matches("> read path=\"a\"").count(), 1, "{shown}");
    assert!(shown.contains("agent    │ Found\n         │\n         │ It is in a.\n"), "{shown}");
    assert!(shown.contains(&format!("{} \"look\" completed\n", task.short_id)), "{shown}");
}

#[test]
fn a_watched_list_is_redrawn_in_place() {
    let shell = Shell::with_host_process();
    let task = shell.launch_hanging("first");
    let screen = start(&shell, "watch", "ps --watch");
    screen.until_shows("running, waiting");
    shell.finish(&task, "a");
    screen.until_shows("completed");
    let shown = screen.shown();
    assert_eq!(shown.trim_end().lines().count(), 2, "{shown}");
    screen.press("C-c");
    screen.until_shows("exit 130");
}

#[test]
fn the_picker_answers_what_was_shown_although_the_daemon_was_killed_meanwhile() {
    let shell = Shell::with_host_process();
    let launch = |what: &str| shell.launch(&format!("@ask bash {what}\n@say done"));
    let (first, second) = (launch("ls"), launch("rm x"));
    until("both ask", || {
        let asked = shell.say(["approve"]);
        asked.contains(&first.short_id) && asked.contains(&second.short_id)
    });
    let screen = start(&shell, "pick", "approve");
    screen.until_shows("`q` to leave:");
    let shown = screen.shown();
    let number = |what: &str| {
        let asked = shown.lines().find(|line| line.contains(&format!("asks: \"bash {what}\"")));
        asked.unwrap().split("  ").next().unwrap().to_owned()
    };
    let two = number("rm x");
    shell.kill_daemon();
    screen.press(&two);
    screen.press("Enter");
    screen.until_shows(&format!("allowed {}: \"bash rm x\"", second.short_id));
    until("it goes on", || shell.task(&second.session_id).status.name() == "completed");
    // The list is shown again with what is left, and a number that is not in it answers nothing.
    until("only the other one is asked about", || {
        let shown = screen.shown();
        let last = shown.rsplit("allowed ").next().unwrap();
        last.contains("1  ") && last.contains(&first.short_id) && last.contains("`q` to leave:")
    });
    screen.press("9");
    screen.press("Enter");
    screen.until_shows("there is no such choice; the numbers go from 1 to 1.");
    assert_eq!(shell.task(&first.session_id).status.name(), "running");
    screen.press("q");
    screen.press("Enter");
    screen.until_shows("exit 0");
    assert_eq!(shell.task(&first.session_id).status.name(), "running");

    let screen = start(&shell, "refuse", "deny");
    screen.until_shows("Deny which?");
    screen.press("1");
    screen.press("Enter");
    screen.until_shows(&format!("denied {}: \"bash ls\"", first.short_id));
    screen.until_shows("No permission requests are waiting.\nexit 0");
    until("it is over", || shell.task(&first.session_id).status.name() == "error");
}

/// The entries of a directory.
fn entries(place: &std::path::Path) -> Vec<String> {
    let files = fs::read_dir(place).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// A shell with a temporary directory of its own, so that everything left in it is the demo's.
fn with_own_tmp() -> Shell {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell.unset("ASYNCAGENTS_API_PORT");
    for name in ["tmp", "empty"] {
        fs::create_dir(shell.path(name)).unwrap();
    }
    shell.set("TMPDIR", shell.path("tmp"));
    shell
}

#[test]
fn the_demo_on_a_terminal_loses_nothing_and_leaves_nothing_behind() {
    let shell = with_own_tmp();
    let screen = Screen::start(&shell, &shell.path("empty"), "demo", (100, 60), &in_sh("demo"));
    screen.until_shows("exit 0");
    let shown = screen.shown();
    for text in [
        "Three background agents look around in ",
        "✓ Agent \"find where it starts\" finished in ",
        "│ • src/main.rs:",
        "kill -9 ",
        "Nothing was lost: daemon ",
        "3 of 3 tasks completed, each reported once.",
        "Where to look next:",
        "  asyncagents dash ",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("http://"), "an address that leads nowhere any more: {shown}");
    assert_eq!(shown.matches("Task Progress: 3/3").count(), 2, "{shown}");
    assert_eq!(entries(&shell.path("tmp")), [""; 0]);
    assert!(!shell.home().exists(), "the user's own storage directory was not touched");
}

/// The command lines that contain this path: processes of the demo.
fn processes_of(place: &std::path::Path) -> Vec<String> {
    let place = place.to_str().unwrap();
    let lines = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.unwrap().path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    });
    lines.filter(|line| line.contains(place)).collect()
}

#[test]
fn a_demo_whose_output_nobody_reads_leaves_nothing_behind_whatever_the_configuration() {
    let shell = with_own_tmp();
    fs::create_dir_all(shell.path(".config/asyncagents")).unwrap();
    fs::write(shell.path(".config/asyncagents/config.toml"), "no such key = 1").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = shell.command(["demo"]);
    command.current_dir(shell.path("empty")).stdin(Stdio::null()).stdout(writer);
    let ended = command.output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), stderr.as_str()), (Some(0), ""));
    assert_eq!(entries(&shell.path("tmp")), [""; 0]);
    until("its daemon has exited", || processes_of(&shell.path("tmp")).is_empty());
    assert!(!shell.home().exists(), "the user's own storage directory was not touched");
}

/// A directory with enough to search that it takes a while.
fn large(shell: &Shell) -> PathBuf {
    let place = shell.path("large");
    fs::create_dir(&place).unwrap();
    for n in 0..3_000 {
        fs::write(
            place.join(format!("{n}.txt")),
            "main error install test config todo\n".repeat(200),
        )
        .unwrap();
    }
    place
}

#[test]
fn a_demo_shows_the_address_of_its_dashboard_and_leaves_nothing_behind_when_it_is_killed() {
    let shell = with_own_tmp();
    let place = large(&shell);
    // Its process id is the first line.
    let program = env!("CARGO_BIN_EXE_asyncagents");
    let script = format!("echo $$; exec {program} demo");
    let words = ["sh", "-c", &script].map(str::to_owned);
    let screen = Screen::start(&shell, &place, "killed", (100, 30), &words);
    // One capture for all: the lines are erased and drawn again with every frame.
    let (mut shown, mut address) = (String::new(), String::new());
    until("the address is shown", || {
        shown = screen.shown();
        let rest = shown.split_once("in a browser, while this runs: http://");
        let found = rest.and_then(|(_, rest)| rest.split_once('/'));
        address = found.map_or_else(String::new, |(address, _)| address.to_owned());
        found.is_some()
    });
    assert!(get(&address).starts_with("HTTP/1.1 200 OK\r\n"), "{address}");
    let demo: i32 = shown.lines().next().unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(demo).unwrap(), Signal::KILL).unwrap();
    until("its daemon has exited", || processes_of(&shell.path("tmp")).is_empty());
    assert_eq!(entries(&shell.path("tmp")), [""; 0]);
}

/// What a browser gets at this address.
fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_demo_that_is_interrupted_stops_its_tasks_and_its_daemon_and_says_so() {
    let shell = with_own_tmp();
    let place = large(&shell);
    let mut command = shell.command(["demo"]);
    let running = crate::support::process::RunningCommand::new(command.current_dir(&place));
    until("its daemon is there", || {
        let homes = entries(&shell.path("tmp"));
        homes.iter().any(|home| shell.path("tmp").join(home).join("home/asyncagents.sock").exists())
    });
    running.signal(Signal::INT);
    let ended = running.wait();
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.stderr.contains("interrupted: "), "{ended:?}");
    assert!(
        ended.stderr.ends_with(" stopped, the demo's daemon stopped, its files removed\n"),
        "{ended:?}"
    );
    assert_eq!(entries(&shell.path("tmp")), [""; 0]);
}
