//! Peer identification: whether a connection to the daemon comes from a command of an agent (X3), which
//! must not approve its own requests. The process table tells: whatever a command starts, in whichever
//! namespace, stays a descendant of its guard, and guards are children of the daemon. A Unix socket
//! names its peer; for TCP the owner of the client's socket is looked up in `/proc`. When in doubt the
//! answer is [`Origin::Unknown`], and callers refuse.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::geteuid;

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
    let (Some(socket), Ok(entries)) = (socket(peer, local), table::read()) else {
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

/// An IPv4-mapped IPv6 address as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
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

/// A line of `/proc/net/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    inode: u64,
    user: u32,
}

/// The client's socket, from the kernel's tables of connections. `None` when it is closed. A client that
/// connects over IPv4 may have opened an IPv6 socket, which is in the other table.
fn socket(peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
    let (peer, local) = (canonical(peer), canonical(local));
    let look = |file: &str, peer: SocketAddr, local: SocketAddr| {
        find_socket(&fs::read_to_string(file).ok()?, &shown(peer), &shown(local))
    };
    let in_ipv4 = || look("/proc/net/tcp", peer, local).filter(|_| peer.is_ipv4());
    in_ipv4().or_else(|| look("/proc/net/tcp6", mapped(peer), mapped(local)))
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn find_socket(table: &str, peer: &str, local: &str) -> Option<Socket> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, from, to, _, _, _, _, user, _, inode, ..] = fields[..] else { return None };
        let inode = inode.parse().ok().filter(|inode| *inode > 0)?;
        (from == peer && to == local).then_some(Socket { inode, user: user.parse().ok()? })
    })
}

/// An address as the kernel prints it there: each 32 bits in the machine's byte order, in hexadecimal.
fn shown(address: SocketAddr) -> String {
    let words: Vec<u8> = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (words, _) = words.as_chunks::<4>();
    let ip: String =
        words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect();
    format!("{ip}:{:04X}", address.port())
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
    fn a_connection_is_found_in_the_kernels_table_by_both_of_its_ends() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:142D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1\n\
             1: 0100007F:142D 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 222 1\n\
             2: 0100007F:9C40 0100007F:142D 01 00000000:00000000 00:00000000 00000000  1000        0 333 1\n\
             3: 0100007F:9C41 0100007F:142D 06 00000000:00000000 00:00000000 00000000     0        0 0 1\n";
        let local = shown("127.0.0.1:5165".parse().unwrap());
        let check = |peer: &str, expected: Option<Socket>| {
            let peer = shown(peer.parse().unwrap());
            assert_eq!(find_socket(table, &peer, &local), expected, "{peer}");
        };
        check("127.0.0.1:40000", Some(Socket { inode: 333, user: 1000 }));
        check("127.0.0.1:40001", None);
        check("127.0.0.1:40002", None);
        assert_eq!(shown("[::1]:5165".parse().unwrap()), "00000000000000000000000001000000:142D");
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
