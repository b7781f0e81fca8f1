//! Peer identification: whether a connection to the daemon comes from a command of an agent (X3), which
//! must not approve its own requests. The process table tells: whatever a command starts, in whichever
//! namespace, stays a descendant of its guard, and guards are children of the daemon. A Unix socket
//! names its peer; for TCP the process that holds the client's socket is looked up in `/proc`. When in doubt the
//! answer is [`Origin::Unknown`], and callers refuse.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::geteuid;

use super::socket::{Socket, canonical};
use super::table::{self, Entry};
use super::{HAS_SUBREAPERS, MARKER};

/// Processes are reparented while their chain of parents is followed; then it is followed again, this
/// often.
const MOST_TRIES: usize = 5;
/// No real chain of parents is as long; a table read while it changes can show a cycle.
const MOST_ANCESTORS: usize = 10_000;

/// How many guards this process has. While there are none, no connection has to be looked up.
static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Counts one guard until it is dropped.
#[derive(Debug)]
pub(super) struct GuardCount(());

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not a command of ours.
    Elsewhere,
    /// A command, by the process id of its guard; `None` when its guard is gone.
    Agent(Option<i32>),
    /// Commands are running and it cannot be ruled out that this is one, perhaps because the process
    /// has ended.
    Unknown,
}

impl GuardCount {
    pub(super) fn one() -> GuardCount {
        GUARDS.fetch_add(1, Ordering::SeqCst);
        GuardCount(())
    }
}

impl Drop for GuardCount {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this process has guards at the moment. Always `false` on systems without `/proc`, where no
/// peer can be recognised.
pub fn commands_run() -> bool {
    HAS_SUBREAPERS && GUARDS.load(Ordering::SeqCst) > 0
}

/// The origin of a connection to a Unix socket, from its peer credentials (`SO_PEERCRED`).
pub fn of_process(pid: i32) -> Origin {
    // The kernel reports 0 for a process outside our PID namespace and those below it, and commands are
    // always inside.
    if !commands_run() || pid <= 0 {
        return Origin::Elsewhere;
    }
    let own = std::process::id().cast_signed();
    for _ in 0..MOST_TRIES {
        let Some(entry) = table::find(pid) else { return Origin::Unknown };
        match guard_above(entry, own, table::find) {
            Ancestor::Guard(guard) => return Origin::Agent(Some(guard)),
            Ancestor::Nobody if entry.has_variable(MARKER) => return Origin::Agent(None),
            Ancestor::Nobody => return Origin::Elsewhere,
            Ancestor::Changed => {}
        }
    }
    Origin::Unknown
}

/// The origin of a TCP connection whose other end has the address `peer`. While commands run, the answer
/// is `Elsewhere` only if a process that is no command is found to hold the socket: a command can hide
/// its own end from us, for one by sending the descriptor through another socket and closing it.
pub fn of_connection(peer: SocketAddr, local: SocketAddr) -> Origin {
    if !commands_run() || !is_of_this_machine(peer) {
        return Origin::Elsewhere;
    }
    let (Some(socket), Ok(entries)) = (Socket::find(peer, local), table::read()) else {
        return Origin::Unknown;
    };
    // Commands run as our user, and only root could have changed to another one.
    let user = geteuid();
    if !user.is_root() && user.as_raw() != socket.user {
        return Origin::Elsewhere;
    }
    let link = format!("socket:[{}]", socket.inode);
    let own = std::process::id().cast_signed();
    // Descendants first, and all of their threads: a thread can have a descriptor table of its own.
    let below = table::descendants(&entries, own);
    let alive = |entry: &&Entry| entry.alive;
    if let Some(entry) = below.iter().filter(alive).find(|entry| entry.holds_in_a_thread(&link)) {
        let find = |pid| entries.iter().find(|entry| entry.pid == pid).copied();
        return match guard_above(*entry, own, find) {
            Ancestor::Guard(guard) => Origin::Agent(Some(guard)),
            Ancestor::Nobody | Ancestor::Changed => Origin::Agent(None),
        };
    }
    let mut others = entries.iter().filter(alive).filter(|entry| !below.contains(entry));
    match others.find(|entry| entry.holds(&link)) {
        Some(entry) if entry.has_variable(MARKER) => Origin::Agent(None),
        Some(_) => Origin::Elsewhere,
        None => Origin::Unknown,
    }
}

/// Whether the address belongs to this machine. Not only loopback: a client may bind its end to any of
/// the machine's addresses.
fn is_of_this_machine(address: SocketAddr) -> bool {
    let mut address = canonical(address);
    if address.ip().is_loopback() {
        return true;
    }
    // Binding succeeds only for addresses of this machine; other errors leave it open, so it counts as ours.
    address.set_port(0);
    !UdpSocket::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

/// What following the chain of parents led to.
enum Ancestor {
    /// The child of `own` that is above the process, or is the process itself.
    Guard(i32),
    Nobody,
    /// A process on the way has exited and its children were reparented: the chain is out of date.
    Changed,
}

fn guard_above(entry: Entry, own: i32, find: impl Fn(i32) -> Option<Entry>) -> Ancestor {
    let mut entry = entry;
    for _ in 0..MOST_ANCESTORS {
        if entry.parent == own {
            return Ancestor::Guard(entry.pid);
        }
        if entry.parent <= 1 || entry.pid == own {
            return Ancestor::Nobody;
        }
        match find(entry.parent) {
            Some(parent) => entry = parent,
            None => return Ancestor::Changed,
        }
    }
    Ancestor::Changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_guard_among_its_ancestors() {
        let entry =
            |(pid, parent)| Entry { pid, parent, group: 0, session: 0, start: 0, alive: true };
        let check = |pairs: &[(i32, i32)], expected: Option<i32>| {
            let entries: Vec<Entry> = pairs.iter().copied().map(entry).collect();
            let find = |pid| entries.iter().find(|entry| entry.pid == pid).copied();
            let found = match guard_above(entries[0], 7, find) {
                Ancestor::Guard(guard) => Some(guard),
                Ancestor::Nobody => None,
                Ancestor::Changed => Some(-1),
            };
            assert_eq!(found, expected, "{pairs:?}");
        };
        check(&[(10, 9), (9, 8), (8, 7), (7, 1)], Some(8));
        check(&[(8, 7)], Some(8));
        check(&[(7, 1)], None);
        check(&[(10, 9), (9, 1)], None);
        check(&[(10, 9)], Some(-1));
        check(&[(10, 9), (9, 10)], Some(-1));
    }

    #[test]
    fn an_address_is_local_when_it_can_be_bound_however_it_is_written() {
        for (address, expected) in [
            ("127.0.0.1:5", true),
            ("127.1.2.3:5", true),
            ("[::1]:5", true),
            ("[::ffff:127.0.0.1]:5", true),
            // Of nobody, for documentation.
            ("203.0.113.7:5", false),
            ("[::ffff:203.0.113.7]:5", false),
        ] {
            assert_eq!(is_of_this_machine(address.parse().unwrap()), expected, "{address}");
        }
    }
}
