//! The kernel's process table (`/proc`), as far as it is needed to find and kill what a command started.
//! A process is identified by its id and its start time: ids are reused, on small machines within
//! minutes. Reading the table is never atomic; callers loop until it no longer changes.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// One process, as `/proc/<pid>/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// In clock ticks since the machine was booted.
    pub(super) start: u64,
    /// `false` for zombies: they run no code and only wait to be reaped.
    pub(super) alive: bool,
}

/// All processes. Not a snapshot: what forks or exits while it is read can be missing, so callers read
/// again until nothing changes.
pub(super) fn read() -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in fs::read_dir("/proc")? {
        let name = file?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            entries.extend(look(pid)?);
        }
    }
    Ok(entries)
}

pub(super) fn find(pid: i32) -> Option<Entry> {
    look(pid).ok().flatten()
}

/// `None` only for a process that does not exist; one whose file cannot be read is an error, because
/// taking it for gone would leave it running.
fn look(pid: i32) -> io::Result<Option<Entry>> {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse(&String::from_utf8_lossy(&stat))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // ESRCH: it exited between `open` and `read`.
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The boot id, which tells process ids and start times of this boot from those of an earlier one.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Everything below this process, at any depth.
pub(super) fn descendants(entries: &[Entry], of: i32) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        let children = entries.iter().filter(|entry| entry.parent == parent);
        // A table read while ids are reused can show a cycle of parents.
        let new = |entry: &&Entry| entry.pid != of && !found.iter().any(|f| f.pid == entry.pid);
        let children: Vec<Entry> = children.filter(new).copied().collect();
        parents.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
    found
}

/// How many threads the processes below this one have, at any depth, counted up to a little above
/// `enough`. It follows `children` files instead of reading the whole table, so it is cheap to poll.
pub(super) fn threads_below(pid: i32, enough: u64) -> u64 {
    // A kernel built without `CONFIG_PROC_CHILDREN` has no such lists: there whole processes are counted, from the
    // table of all, so that the limit holds there, too.
    if !Path::new("/proc/thread-self/children").exists() {
        return processes_below(pid);
    }
    let mut count = 0;
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        if count > enough {
            break;
        }
        // The kernel lists children by the thread that forked them, so every thread has to be asked.
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            count += u64::from(parent != pid);
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            parents.extend(children.split_whitespace().flat_map(str::parse::<i32>));
        }
    }
    count
}

fn processes_below(pid: i32) -> u64 {
    descendants(&read().unwrap_or_default(), pid).len() as u64
}

impl Entry {
    pub(super) fn is_same(&self, other: &Entry) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }

    /// Whether it is stopped by a signal or a debugger, and so does nothing until it is continued.
    pub(super) fn is_stopped(&self) -> bool {
        let stat = fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    }

    /// Whether the process was started with this `NAME=value` in its environment. `false` for processes
    /// of other users, whose environment cannot be read.
    pub(super) fn has_in_environment(&self, variable: &str) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    }

    /// Whether it was started with a variable of this name, whatever its value.
    pub(super) fn has_variable(&self, name: &str) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let name = format!("{name}=");
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(name.as_bytes()))
    }

    /// Whether one of its descriptors is this (`socket:[inode]`), as far as they may be read.
    pub(super) fn holds(&self, link: &str) -> bool {
        has_descriptor(format!("/proc/{}", self.pid).as_ref(), link)
    }

    /// The same of all its threads, each of which can have descriptors of its own.
    pub(super) fn holds_in_a_thread(&self, link: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        threads.into_iter().flatten().flatten().any(|thread| has_descriptor(&thread.path(), link))
    }

    /// Sends SIGKILL to this very process: the pidfd is opened first and compared then, so that the
    /// signal cannot reach another process that got the same id in between.
    #[cfg(target_os = "linux")]
    pub(super) fn kill(&self) {
        use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        if !find(self.pid).is_some_and(|now| now.is_same(self)) {
            return;
        }
        let _ = match pidfd {
            Ok(pidfd) => pidfd_send_signal(&pidfd, Signal::KILL),
            // Linux before 5.3 has no pidfds; the comparison above leaves a race of microseconds.
            Err(Errno::NOSYS) => kill_process(pid, Signal::KILL),
            Err(gone) => Err(gone),
        };
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn kill(&self) {
        let _ = Pid::from_raw(self.pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    }
}

fn has_descriptor(process: &Path, link: &str) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let is_it = |path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == link);
    files.into_iter().any(|file| is_it(file.path()))
}

/// Parses `/proc/<pid>/stat` (proc(5)). The second field is the program's name in parentheses, which may
/// itself contain spaces and parentheses, so fields are counted from the last `)`.
fn parse(stat: &str) -> Option<Entry> {
    let (pid, _) = stat.split_once(' ')?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<i32>().ok();
    // A process whose main thread has exited looks like a zombie while its other threads go on.
    let threads = number(17)?;
    Some(Entry {
        pid: pid.parse().ok()?,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start: fields.get(19)?.parse().ok()?,
        alive: !matches!(*fields.first()?, "Z" | "X") || threads > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER_SESSION: &str = "0 -1 4194304 90 0 0 0 1 2 0 0 20 0";

    #[test]
    fn a_line_of_the_process_table_is_parsed_whatever_the_program_is_called() {
        let entry =
            |alive| Some(Entry { pid: 7, parent: 1, group: 6, session: 5, start: 123, alive });
        for (name, state, threads, expected) in [
            ("sleep", "S", 1, entry(true)),
            ("a) Z 9 (b", "R", 1, entry(true)),
            ("sh", "Z", 1, entry(false)),
            ("sh", "X", 1, entry(false)),
            ("its main thread has ended", "Z", 2, entry(true)),
        ] {
            let line = format!("7 ({name}) {state} 1 6 5 {AFTER_SESSION} {threads} 0 123 4096 9\n");
            assert_eq!(parse(&line), expected, "{line}");
        }
        for broken in ["", "7", "7 (sh) S", "x (sh) S 1 6 5", "7 (sh) S 1 6 5 0 0"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_a_cycle_ends_the_search() {
        let entry =
            |(pid, parent)| Entry { pid, parent, group: 0, session: 0, start: 0, alive: true };
        let check = |of: i32, pairs: &[(i32, i32)], expected: &[i32]| {
            let entries: Vec<Entry> = pairs.iter().copied().map(entry).collect();
            let mut found: Vec<i32> = descendants(&entries, of).iter().map(|e| e.pid).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{pairs:?}");
        };
        check(2, &[(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 2)], &[3, 4, 7]);
        check(2, &[(2, 1), (3, 1)], &[]);
        check(2, &[(2, 4), (3, 2), (4, 3)], &[3, 4]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn our_own_process_is_in_the_table_with_its_parent() {
        let own = std::process::id().cast_signed();
        let entry = read().unwrap().into_iter().find(|entry| entry.pid == own).unwrap();
        let parent = std::os::unix::process::parent_id().cast_signed();
        assert_eq!((entry.parent, entry.alive), (parent, true));
        assert_eq!(find(own), Some(entry));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_process_has_started_is_counted_with_and_without_the_kernels_lists() {
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.args(["-c", "sleep 60 & (sleep 60; true) & wait"]).spawn().unwrap();
        let pid = shell.id().cast_signed();
        let began = std::time::Instant::now();
        while processes_below(pid) < 3 && began.elapsed() < std::time::Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let counts = (threads_below(pid, 100), processes_below(pid));
        let enough = threads_below(pid, 0);
        descendants(&read().unwrap(), pid).iter().for_each(Entry::kill);
        shell.wait().unwrap();
        assert_eq!((counts, enough > 0), ((3, 3), true));
    }
}
