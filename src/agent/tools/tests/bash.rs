//! `bash`: what it says, and that nothing it started outlives its time.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::Desk;
use crate::agent::tools::Error;

/// Waits until `look` finds something.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pid(desk: &Desk, file: &str) -> Option<i32> {
    let text = fs::read_to_string(desk.path(file)).ok()?;
    text.ends_with('\n').then(|| text.trim().parse().unwrap())
}

/// The state letter of a process that is there.
#[cfg(target_os = "linux")]
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Dead, even if nobody has taken note of it.
#[cfg(target_os = "linux")]
fn is_dead(pid: i32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// A shell and a child, neither of which listens to SIGTERM.
const STUBBORN: &str = "trap '' TERM
(trap '' TERM; echo $BASHPID > child; exec sleep 1000) &
echo $$ > shell
echo started
wait";

#[tokio::test]
async fn a_command_is_answered_with_what_it_prints_and_its_exit_code() {
    let desk = Desk::with(&[("a.txt", "content\n")]);
    let root = desk.path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    for (command, expected) in [
        ("cat a.txt", "content\n(exit code 0)"),
        ("printf x", "x\n(exit code 0)"),
        ("true", "(no output)\n(exit code 0)"),
        ("echo 1; echo 2 >&2; echo 3; exit 3", "1\n2\n3\n(exit code 3)"),
        ("cat", "(no output)\n(exit code 0)"),
        ("kill -9 $$", "(no output)\n(killed by signal 9)"),
        ("printf 'a\\0b\\377'", "a\u{fffd}b\u{fffd}\n(exit code 0)"),
        ("exec >&- 2>&-; exit 4", "(no output)\n(exit code 4)"),
        ("pwd", &format!("{root}\n(exit code 0)")),
    ] {
        desk.check("bash", json!({ "command": command }), expected).await;
    }
    let output = desk.run("bash", json!({ "command": "# why\ntrue" })).await.unwrap();
    assert_eq!(output.title, "# why");
    assert!(!desk.context.overflow.exists());

    fs::remove_dir_all(desk.path("")).unwrap();
    let gone = "error: cannot run `bash`: it or the workspace does not exist";
    desk.check("bash", json!({ "command": "true" }), gone).await;
}

#[tokio::test]
async fn a_flood_is_cut_in_the_middle_and_kept_whole() {
    let desk = Desk::new();
    for (command, length) in [
        ("echo begin; yes | head -c 50000000; echo end", 50_000_010_u64),
        ("echo begin; yes | head -c 31000; echo end", 31_010),
        ("echo begin; yes | head -c 200000; echo end", 200_010),
    ] {
        let text = desk.call("bash", json!({ "command": command })).await;
        assert!(text.starts_with("begin\ny\ny\n"), "{}", &text[..100]);
        assert!(text.ends_with("y\ny\nend\n(exit code 0)"), "{}", &text[text.len() - 100..]);
        assert!((30_000..30_500).contains(&text.chars().count()));
        assert!(text.contains(&format!("of {length} bytes you see the beginning and the end")));
        let (_, file) = text.split_once("all is in `").unwrap();
        let (file, _) = file.split_once('`').unwrap();
        assert_eq!(fs::metadata(file).unwrap().len(), length);
        let text = desk.call("read", json!({ "path": file, "limit": 2 })).await;
        assert_eq!(text, "     1\tbegin\n     2\ty\n(there is more; go on with `offset: 3`)\n");
        let found = desk.call("grep", json!({ "path": file, "pattern": "end" })).await;
        assert!(found.ends_with(": end"), "{found}");
    }
    let just = desk.call("bash", json!({ "command": "yes ä | head -n 15000" })).await;
    assert_eq!(just, "ä\n".repeat(15_000) + "(exit code 0)");
}

#[tokio::test]
async fn a_flood_that_cannot_be_kept_is_shown_all_the_same() {
    let desk = Desk::new();
    fs::write(&desk.context.overflow, "in the way").unwrap();
    let text = desk.call("bash", json!({ "command": "yes | head -c 500000; echo end" })).await;
    assert!(text.contains("the rest could not be kept: "));
    assert!(text.ends_with("end\n(exit code 0)"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_that_does_not_listen_is_killed_at_its_time_out_with_its_children() {
    let desk = Desk::new();
    // A busy machine may not even have started them within the first.
    for timeout in [0.5, 5.0, 30.0] {
        let text = desk.call("bash", json!({ "command": STUBBORN, "timeout": timeout })).await;
        let (Some(shell), Some(child)) = (pid(&desk, "shell"), pid(&desk, "child")) else {
            continue;
        };
        let expected = format!(
            "started\n(killed after {timeout} s, its time-out; pass a longer `timeout`, at most \
             600, or run it in the background with its output in a file)"
        );
        assert_eq!(text, expected);
        assert_eq!(state(shell), None, "the shell is reaped");
        until("the child is dead", || is_dead(child).then_some(())).await;
        return;
    }
    panic!("the command never started");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_cancelled_command_is_killed_with_its_children() {
    let desk = Desk::new();
    let cancel = async {
        let shell = until("the shell starts", || pid(&desk, "shell")).await;
        let child = until("its child starts", || pid(&desk, "child")).await;
        desk.context.cancel.cancel();
        (shell, child)
    };
    let run = desk.run("bash", json!({ "command": STUBBORN }));
    let (result, (shell, child)) = tokio::join!(run, cancel);
    assert_eq!(result, Err(Error::Cancelled));
    assert_eq!(state(shell), None, "the shell is reaped");
    until("the child is dead", || is_dead(child).then_some(())).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_nobody_waits_for_any_more_is_killed_with_its_children() {
    let desk = Desk::new();
    let started = async {
        let shell = until("the shell starts", || pid(&desk, "shell")).await;
        (shell, until("its child starts", || pid(&desk, "child")).await)
    };
    let (shell, child) = tokio::select! {
        started = started => started,
        result = desk.run("bash", json!({ "command": STUBBORN })) => panic!("{result:?}"),
    };
    until("the shell is dead", || is_dead(shell).then_some(())).await;
    until("the child is dead", || is_dead(child).then_some(())).await;
}

#[tokio::test]
async fn a_child_in_the_background_does_not_hold_the_answer_up() {
    let child = "bash -c 'echo $$ > child; exec sleep 1000'";
    for start in ["", "setsid", "setsid --fork nohup"] {
        let desk = Desk::new();
        let wait = "until [ -s child ]; do sleep 0.01; done; echo up";
        let command = format!("{start} {child} &\n{wait}");
        let text = desk.call("bash", json!({ "command": command })).await;
        let child = pid(&desk, "child").unwrap();
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        assert_eq!(
            text,
            "up\n(exit code 0)\n(something it started goes on in the background; what that prints \
             is lost)"
        );
    }
}
