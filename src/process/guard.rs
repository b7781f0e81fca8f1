//! The guard: a supervisor process between the daemon and one command. It is the command's session
//! leader and *child subreaper*, so whatever the command leaves behind (double forks, `setsid`, `nohup`)
//! is reparented to the guard instead of init, and `wait` tells exactly when nothing is left. The main
//! thread waits for events; three others report renewals of the lease, the exit of the command and too
//! many processes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group, setsid, wait,
    waitid,
};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use super::protocol::{Cause, Order, Report, Status};
use super::table::{self, Entry};
use super::{HAS_SUBREAPERS, KILL_LIMIT, MARKER};
use crate::backoff::Backoff;

/// How long programs that end a little after the command (the `tee` of `> >(tee log)`) have to do so by
/// themselves before they are killed.
const GRACE: Duration = Duration::from_millis(200);
/// The lease is counted in this many ticks during which the guard was awake, not by the clock: after the
/// whole machine was suspended or overloaded, the daemon still has time to renew it.
const TICKS: u32 = 10;

/// Between two looks for processes to disappear. The first is short: the inner process of bubblewrap, which reports
/// the exit of the command, usually exits itself a moment after the outer one.
const PAUSES: Backoff =
    Backoff { first: Duration::from_micros(100), longest: Duration::from_millis(20) };

/// Between two counts of the command's processes. A fork bomb makes a few thousand in that time.
const BETWEEN_COUNTS: Duration = Duration::from_millis(50);
/// The pause after a count is at least this many times as long as the count took, so that counting
/// takes at most a fiftieth of a core.
const SHARE_OF_COUNTING: u32 = 50;

/// What the helper threads report to the main thread.
enum Event {
    /// The daemon renewed the lease.
    Renewed,
    /// The daemon closed the stream: it wants the command killed, or it is dead.
    Kill,
    /// The command's main process exited.
    Exited,
    TooManyProcesses,
}

/// A started command, and its exit status once that is known.
struct GuardedCommand {
    main: Pid,
    status: Option<Status>,
    events: Receiver<Event>,
}

/// Whether the guard has children.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    Some,
    /// Then there are no descendants at all: an orphan at any depth would have become a child.
    None,
}

/// Reads an order from standard input, carries it out and reports. Fails when standard input is not a
/// socket that the daemon made, or the daemon died before the order was complete.
///
/// `clean_up` is called with the order's `cleanup` when no process of the command is left. This happens
/// in the guard and not in the daemon: a daemon killed in the middle could not do it, and the next one
/// would not know what a person has changed since.
pub fn run(clean_up: fn(&str) -> Vec<String>) -> io::Result<()> {
    super::keep_descriptors_from_children();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(&socket)?;
    let report = match GuardedCommand::start(&order, &socket) {
        Ok(watched) => {
            let report = watched.watch(&order);
            Report { cleanup: clean_up(&order.cleanup), ..report }
        }
        Err(error) => Report::of(Cause::NotStarted(reason(&order, &error))),
    };
    (&socket).write_all(&report.encode())
}

impl GuardedCommand {
    fn start(order: &Order, socket: &UnixStream) -> io::Result<GuardedCommand> {
        // A session of its own, away from terminals. Fails if it is a session leader already: fine.
        let _ = setsid();
        become_subreaper()?;
        // Everything that can fail comes before the command: a guard that gave up after starting it
        // would leave it unwatched.
        let (to_events, events) = mpsc::channel();
        let (to_exits, to_counts) = (to_events.clone(), to_events.clone());
        let listening = socket.try_clone()?;
        let (to_waiter, started) = mpsc::channel();
        // None of the threads is joined: they block in the kernel, and end with this process, which exits
        // when the command is over.
        thread::Builder::new().spawn(move || listen(listening, &to_events))?;
        thread::Builder::new().spawn(move || wait_for(&started, &to_exits))?;
        if order.processes > 0 {
            let limit = order.processes;
            thread::Builder::new().spawn(move || count(limit, &to_counts))?;
        }
        let child = Command::new(&order.program)
            .args(&order.arguments)
            .env(MARKER, &order.marker)
            .stdin(Stdio::null())
            // `kill 0` in the command must not reach the guard.
            .process_group(0)
            .spawn()?;
        let_go_of_the_output();
        let main = Pid::from_child(&child);
        let _ = to_waiter.send(main);
        Ok(GuardedCommand { main, status: None, events })
    }

    fn watch(mut self, order: &Order) -> Report {
        let cause = self.wait_for_the_end(order);
        if HAS_SUBREAPERS && cause == Cause::Exited && self.all_end_by_themselves() {
            return Report { status: self.status, ..Report::of(cause) };
        }
        let (killed, left) = self.kill_descendants();
        let killed = if cause == Cause::Exited { killed } else { 0 };
        Report { status: self.status, killed, left, ..Report::of(cause) }
    }

    /// Returns when the command has exited or has to be killed, and why.
    fn wait_for_the_end(&mut self, order: &Order) -> Cause {
        let mut silent_ticks = 0;
        loop {
            match self.events.recv_timeout(order.lease / TICKS) {
                Ok(Event::Exited) => return Cause::Exited,
                Ok(Event::Kill) | Err(RecvTimeoutError::Disconnected) => return Cause::Killed,
                Ok(Event::TooManyProcesses) => return Cause::TooManyProcesses(order.processes),
                Ok(Event::Renewed) => silent_ticks = 0,
                Err(RecvTimeoutError::Timeout) => silent_ticks += 1,
            }
            if silent_ticks > TICKS {
                return Cause::LeaseExpired;
            }
            // Orphans of the command end up here, and as zombies they would fill the process table.
            self.reap();
        }
    }

    /// Whether everything the command left behind ends within [`GRACE`].
    fn all_end_by_themselves(&mut self) -> bool {
        let started = Instant::now();
        let mut looks = 0;
        while self.reap() == Children::Some {
            let rest = GRACE.saturating_sub(started.elapsed());
            if rest.is_zero()
                || matches!(self.events.recv_timeout(PAUSES.pause(looks)), Ok(Event::Kill))
            {
                return false;
            }
            looks += 1;
        }
        true
    }

    /// Kills in a loop until no child is left, because processes fork while the table is read. Returns
    /// how many were killed, and the ids of those that did not die in time.
    fn kill_descendants(&mut self) -> (usize, Vec<i32>) {
        let started = Instant::now();
        let mut looks = 0;
        let mut killed = BTreeSet::new();
        loop {
            let own = getpid().as_raw_nonzero().get();
            let entries = table::read().unwrap_or_default();
            let alive = table::descendants(&entries, own).into_iter().filter(|entry| entry.alive);
            let alive: Vec<Entry> = alive.collect();
            // Groups first: that stops a fork bomb in one step, where killing one by one would lose.
            self.kill_groups(&entries, own);
            alive.iter().for_each(Entry::kill);
            killed.extend(alive.iter().map(|entry| (entry.pid, entry.start)));
            if self.reap() == Children::None {
                return (killed.len(), Vec::new());
            }
            if started.elapsed() > KILL_LIMIT {
                let left: Vec<i32> = alive.iter().map(|entry| entry.pid).collect();
                // `wait` says that there are children even if the process table could not be read, so
                // the report must not be empty: the daemon would erase its record.
                let unknown = left.is_empty().then_some(self.main.as_raw_nonzero().get());
                let killed = killed.len().saturating_sub(left.len());
                return (killed, left.into_iter().chain(unknown).collect());
            }
            thread::sleep(PAUSES.pause(looks));
            looks += 1;
        }
    }

    /// Kills whole process groups, each in one step that no fork can race with. Only groups with a child
    /// of ours in them: until that child is reaped, its group id cannot be reused by a stranger.
    fn kill_groups(&self, entries: &[Entry], own: i32) {
        let children = entries.iter().filter(|entry| entry.parent == own);
        let mut groups: BTreeSet<i32> = children.map(|child| child.group).collect();
        if !HAS_SUBREAPERS {
            groups.insert(self.main.as_raw_nonzero().get());
        }
        groups.remove(&own);
        for group in groups.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Reaps all children that have exited and notes the status of the main process.
    fn reap(&mut self) -> Children {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    let code = status.exit_status().map(Status::Code);
                    self.status = code.or(status.terminating_signal().map(Status::Signal));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Children::Some,
                Err(_) => return Children::None,
            }
        }
    }
}

/// Closes the guard's copies of the output pipe, so that its reader sees the end of the stream when the
/// command's last process is gone, and not only when the guard is.
fn let_go_of_the_output() {
    if let Ok(null) = File::open("/dev/null") {
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
}

/// Turns what comes from the daemon into events: any byte renews the lease, the end of the stream kills.
fn listen(mut socket: UnixStream, events: &Sender<Event>) {
    let mut bytes = [0; 64];
    loop {
        let event = match socket.read(&mut bytes) {
            Ok(1..) => Event::Renewed,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Event::Kill,
        };
        let over = matches!(event, Event::Kill);
        if events.send(event).is_err() || over {
            return;
        }
    }
}

/// Reports the exit of the main process without reaping it: that is done by [`GuardedCommand::reap`],
/// which may also be faster (then `waitid` fails, and the event is right all the same).
fn wait_for(started: &Receiver<Pid>, events: &Sender<Event>) {
    let Ok(main) = started.recv() else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(main), options) {}
    let _ = events.send(Event::Exited);
}

/// The process limit where the kernel's own does not help: `RLIMIT_NPROC` does not bind root, and
/// outside a user namespace it would count everything else of the user. So the guard polls. Not a
/// cgroup: creating one needs a delegated parent, which many machines do not have.
fn count(limit: u64, events: &Sender<Event>) {
    let own = getpid().as_raw_nonzero().get();
    loop {
        let began = Instant::now();
        if table::threads_below(own, limit) > limit {
            let _ = events.send(Event::TooManyProcesses);
            return;
        }
        thread::sleep((began.elapsed() * SHARE_OF_COUNTING).max(BETWEEN_COUNTS));
    }
}

#[cfg(target_os = "linux")]
fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn become_subreaper() -> io::Result<()> {
    Ok(())
}

fn reason(order: &Order, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("no program `{}` in `PATH`; install it", order.program),
        _ => error.to_string(),
    }
}
