//! The sweep finds and kills the processes of a command whose guard is gone or stuck, and no
//! others.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use asyncagents::process::{Record, Survivors, sweep};

/// The state letter of a process, `None` when there is none.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// A zombie that was not reaped yet counts as dead.
fn is_dead(pid: i32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

fn start_time(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap()
}

/// A process without a guard; killed when dropped.
struct UnguardedProcess(std::process::Child);

impl UnguardedProcess {
    fn new(marker: &str) -> UnguardedProcess {
        let mut command = std::process::Command::new("sleep");
        UnguardedProcess(command.arg("1000").env("ASYNCAGENTS_GUARD", marker).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for UnguardedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_of_an_earlier_daemon_are_found_by_their_marker_and_no_others_are_killed() {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    let (stray, other) = (UnguardedProcess::new("a-1"), UnguardedProcess::new("a-12"));
    let start = start_time(stray.pid());
    let record =
        |pid, start, boot: &str| Record { marker: "a-1".into(), pid, start, boot: boot.into() };
    // A record of another boot, or of a process id that has been reused.
    assert_eq!(sweep(&record(stray.pid(), start, "another boot")), Ok(()));
    assert_eq!(sweep(&record(stray.pid(), start + 1, &boot)), Ok(()));
    assert!(!is_dead(stray.pid()));

    let other_start = start_time(other.pid());
    assert_eq!(sweep(&record(other.pid(), other_start + 1, &boot)), Ok(()));
    assert_eq!(sweep(&record(1, start, &boot)), Ok(()));
    assert_eq!((is_dead(stray.pid()), is_dead(other.pid())), (true, false));
}

#[test]
fn a_guard_that_is_still_alive_is_killed_after_its_session_and_descendants() {
    // A duration that identifies our process: no other one sleeps for it.
    let sleep = format!("sleep 1000.{}", std::process::id());
    let script = format!("{sleep} & ({sleep}; :) & (setsid {sleep}; :) & kill -STOP $$; wait");
    let guard = std::process::Command::new("setsid").args(["bash", "-c", &script]).spawn();
    let mut guard = UnguardedProcess(guard.unwrap());
    let pid = guard.pid();
    let started = Instant::now();
    while state(pid) != Some('T') || running(&sleep).len() < 3 {
        assert!(started.elapsed() < Duration::from_secs(30), "all have started");
        std::thread::sleep(Duration::from_millis(5));
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    let record = Record { marker: "none".into(), pid, start: start_time(pid), boot };
    assert_eq!(sweep(&record), Ok(()));
    assert!(is_dead(pid));
    assert_eq!(running(&sleep), BTreeSet::new());
    guard.0.wait().unwrap();
}

#[test]
fn a_guard_that_still_finishes_its_command_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let finished = directory.path().join("finished");
    // A guard without a child, which would be killed at once.
    let script = "read -t 2; echo yes > \"$0\"";
    let mut guard = std::process::Command::new("setsid");
    let guard = guard.args(["bash", "-c", script]).arg(&finished);
    let mut guard = UnguardedProcess(guard.stdin(std::process::Stdio::piped()).spawn().unwrap());
    let pid = guard.pid();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
    let record = Record { marker: "none".into(), pid, start: start_time(pid), boot };
    assert_eq!(sweep(&record), Ok(()));
    assert_eq!(fs::read_to_string(&finished).unwrap(), "yes\n");
    assert_eq!(guard.0.wait().unwrap().code(), Some(0));
}

/// Processes with exactly this command line.
fn running(command: &str) -> BTreeSet<i32> {
    let wanted = command.replace(' ', "\0") + "\0";
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.unwrap().file_name().to_str()?.parse().ok()?;
        (fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()? == wanted).then_some(pid)
    });
    pids.collect()
}

#[test]
fn processes_that_cannot_be_killed_are_named() {
    let one = "process 7 could not be killed within 5 s; end it by hand";
    assert_eq!(Survivors(vec![7]).to_string(), one);
    let two = "processes 7, 8 could not be killed within 5 s; end them by hand";
    assert_eq!(Survivors(vec![7, 8]).to_string(), two);
}
