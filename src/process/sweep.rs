//! The sweep: killing what is left of a command whose guard is dead, stopped, or of an earlier daemon.
//! While the guard exists, its descendants and its session are killed; and always every process with the
//! marker in its environment. A process that outlived its guard and emptied its environment is missed.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::table::{self, Entry};
use super::{HAS_SUBREAPERS, KILL_LIMIT, MARKER};

const PAUSE: Duration = Duration::from_millis(5);
/// How long a guard whose daemon is gone has to end by itself. It kills its command and then cleans up
/// in the workspace, which nothing else can do: the order is gone with the daemon.
const GUARD_GRACE: Duration = Duration::from_secs(10);

/// A guard as the journal has it, written before the guard starts anything. Process id, start time and
/// boot id together identify one process for ever; joined they are the marker, which is thereby unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub marker: String,
    pub pid: i32,
    /// In clock ticks since the boot.
    pub start: u64,
    /// The boot id: after a reboot nothing of the command is left, and its process id is a stranger's.
    pub boot: String,
}

/// Processes that SIGKILL did not end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} could not be killed within {} s; end {} by hand", shown(.0), KILL_LIMIT.as_secs(), it(.0))]
pub struct Survivors(pub Vec<i32>);

impl Record {
    /// The record of a process that is running now.
    pub(super) fn of(pid: i32) -> io::Result<Record> {
        let gone = || io::Error::other("it ended at once");
        let (start, boot) = match HAS_SUBREAPERS {
            true => (table::find(pid).ok_or_else(gone)?.start, table::boot_id()?),
            false => (0, String::new()),
        };
        Ok(Record { marker: format!("{pid}-{start}-{boot}"), pid, start, boot })
    }

    fn is_of(&self, entry: &Entry) -> bool {
        (self.pid, self.start) == (entry.pid, entry.start)
    }
}

/// Kills the guard and everything its command started, and returns when all are gone. Blocks.
pub fn sweep(record: &Record) -> Result<(), Survivors> {
    if !HAS_SUBREAPERS || table::boot_id().is_ok_and(|boot| boot != record.boot) {
        return Ok(());
    }
    let started = Instant::now();
    let mut killing = started;
    // In a loop, because processes fork while the table is read.
    loop {
        let left = match table::read() {
            Ok(entries) => {
                let guard = entries.iter().find(|entry| record.is_of(entry));
                let remains = remains(record, guard, &entries);
                // The guard last: while it is there, the command's processes are its descendants and
                // can be told from strangers.
                let guard = guard.filter(|guard| guard.alive && remains.is_empty());
                if started.elapsed() < GUARD_GRACE && guard.is_some_and(|guard| !guard.is_stopped())
                {
                    killing = Instant::now();
                    thread::sleep(PAUSE);
                    continue;
                }
                kill(remains.iter().chain(guard))
            }
            // The table cannot be read (too many open files, for one), so nothing is known to be gone.
            Err(_) => vec![record.pid],
        };
        if left.is_empty() {
            return Ok(());
        }
        if killing.elapsed() > KILL_LIMIT {
            return Err(Survivors(left));
        }
        thread::sleep(PAUSE);
    }
}

/// Kills them and returns their ids: they count as left until the next look no longer finds them.
fn kill<'a>(all: impl Iterator<Item = &'a Entry>) -> Vec<i32> {
    all.inspect(|entry| entry.kill()).map(|entry| entry.pid).collect()
}

/// What is still running of a command, without its guard.
fn remains(record: &Record, guard: Option<&Entry>, entries: &[Entry]) -> Vec<Entry> {
    let below = guard.map(|guard| table::descendants(entries, guard.pid)).unwrap_or_default();
    let variable = format!("{MARKER}={}", record.marker);
    let belongs = |entry: &&Entry| {
        !record.is_of(entry)
            && (below.contains(entry)
                || guard.is_some_and(|guard| entry.session == guard.pid)
                // The marker contains the guard's start time, so no older process can carry it; that
                // saves reading the environment of almost every process on the machine.
                || entry.start >= record.start && entry.has_in_environment(&variable))
    };
    entries.iter().filter(|entry| entry.alive).filter(belongs).copied().collect()
}

fn shown(pids: &[i32]) -> String {
    let all: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}", all.join(", "))
}

fn it(pids: &[i32]) -> &'static str {
    if pids.len() == 1 { "it" } else { "them" }
}
