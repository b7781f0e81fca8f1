//! The guard: a process between the daemon and one command. It is the command's session leader and
//! *child subreaper*, so whatever the command leaves behind (double forks, `setsid`, `nohup`) becomes
//! the guard's child instead of init's, and `wait` says exactly when nothing is left.

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

/// Programs that end with the command, but a little later (the `tee` of `> >(tee log)`), have this
/// long to do so by themselves.
const GRACE: Duration = Duration::from_millis(200);
/// The lease is counted in ticks that the guard was awake for: after the whole machine was suspended
/// or overloaded, the daemon still has time to renew it.
const TICKS: u32 = 10;

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(1), longest: Duration::from_millis(20) };

/// Between two counts of the command's processes. A fork bomb makes a few thousand in that time.
const BETWEEN_COUNTS: Duration = Duration::from_millis(50);
/// Counting takes this share of a core at most.
const SHARE_OF_COUNTING: u32 = 50;

enum Event {
    Renewed,
    Kill,
    Exited,
    TooManyProcesses,
}

/// A command that was started, and how it ended, once that is known.
struct Watched {
    main: Pid,
    status: Option<Status>,
    events: Receiver<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    Some,
    /// Then there are no descendants at all: an orphan at any depth would have become a child.
    None,
}

/// Reads an order from standard input, carries it out and reports. Fails when standard input is
/// nothing the daemon made, or the daemon died before it had said everything. `finish` gets what the order
/// has for it when nothing of the command is left: here and not in the daemon, because a daemon that was
/// killed in the middle cannot do it, and the next one would not know what a person has changed since.
pub fn run(finish: fn(&str) -> Vec<String>) -> io::Result<()> {
    super::keep_descriptors_from_children();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(&socket)?;
    let report = match Watched::start(&order, &socket) {
        Ok(watched) => {
            let report = watched.watch(&order);
            Report { finished: finish(&order.afterwards), ..report }
        }
        Err(error) => Report::of(Cause::NotStarted(reason(&order, &error))),
    };
    (&socket).write_all(&report.encode())
}

impl Watched {
    fn start(order: &Order, socket: &UnixStream) -> io::Result<Watched> {
        // Already a session leader if it was started so; else its own session, away from terminals.
        let _ = setsid();
        become_subreaper()?;
        // Everything that can fail comes before the command: a guard must not give up beside one.
        let (to_events, events) = mpsc::channel();
        let (to_exits, to_counts) = (to_events.clone(), to_events.clone());
        let listening = socket.try_clone()?;
        let (to_waiter, started) = mpsc::channel();
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
        Ok(Watched { main, status: None, events })
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
            self.reap();
        }
    }

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

    /// Kills until there is nobody left, because forks race with looking. Says how many there were,
    /// and who would not die in time.
    fn kill_descendants(&mut self) -> (usize, Vec<i32>) {
        let started = Instant::now();
        let mut looks = 0;
        let mut killed = BTreeSet::new();
        loop {
            let own = getpid().as_raw_nonzero().get();
            let entries = table::read().unwrap_or_default();
            let alive = table::descendants(&entries, own).into_iter().filter(|entry| entry.alive);
            let alive: Vec<Entry> = alive.collect();
            self.kill_groups(&entries, own);
            alive.iter().for_each(Entry::kill);
            killed.extend(alive.iter().map(|entry| (entry.pid, entry.start)));
            if self.reap() == Children::None {
                return (killed.len(), Vec::new());
            }
            if started.elapsed() > KILL_LIMIT {
                let left: Vec<i32> = alive.iter().map(|entry| entry.pid).collect();
                // There are children, even if the process table could not be read.
                let unknown = left.is_empty().then_some(self.main.as_raw_nonzero().get());
                let killed = killed.len().saturating_sub(left.len());
                return (killed, left.into_iter().chain(unknown).collect());
            }
            thread::sleep(PAUSES.pause(looks));
            looks += 1;
        }
    }

    /// A group is killed in one step, so not even a fork bomb gets away. Only groups with a child of
    /// ours in them: until we reap that, its group's id cannot be given to anybody else.
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

    /// Takes note of every child that has ended.
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

/// The reader of the output is to see its end when the command's last process is gone, not the guard.
fn let_go_of_the_output() {
    if let Ok(null) = File::open("/dev/null") {
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
}

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

/// Leaves the child to be reaped by somebody else, who may also be faster.
fn wait_for(started: &Receiver<Pid>, events: &Sender<Event>) {
    let Ok(main) = started.recv() else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(main), options) {}
    let _ = events.send(Event::Exited);
}

/// Where no limit of the kernel holds (`RLIMIT_NPROC` does not bind root, and would count everything
/// else of a user), the guard looks itself. Not a control group: those need a delegated one, which
/// many machines do not have.
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
