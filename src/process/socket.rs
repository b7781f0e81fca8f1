//! Who opened the other end of a TCP connection from this machine. TCP has no `SO_PEERCRED`, but the kernel knows
//! each socket's user and inode. It is asked for the one socket (`sock_diag(7)`), which takes microseconds. Where it
//! names none (the client has gone, or a container forbids netlink), the tables in `/proc` are read, which takes
//! milliseconds: the kernel walks all its buckets for them.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// The kernel's socket tables. Both, because an IPv6 socket can be connected to a mapped IPv4 address.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The client's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub inode: u64,
    pub user: u32,
}

impl Socket {
    /// Whether this system can tell.
    pub fn can_be_told() -> bool {
        diagnosis::is_there() || fs::File::open(TABLES[0]).is_ok()
    }

    /// The socket that is connected from `peer` to `local`. `None` when it is closed. May block: the tables grow with
    /// the connections of the whole machine, and the kernel may load a module to answer.
    pub fn find(peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
        Socket::ask(peer, local).or_else(|| Socket::look_up(peer, local))
    }

    /// `None` may also mean that the kernel does not say.
    fn ask(peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
        diagnosis::ask(canonical(peer), canonical(local)).ok().flatten()
    }

    fn look_up(peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
        let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
        tables.into_iter().find_map(|table| in_table(&table, peer, local))
    }

    /// `None` for a socket that its process has closed: it has no inode and is listed as root's, which would be a wrong
    /// answer.
    fn unless_closed(inode: u64, user: u32) -> Option<Socket> {
        (inode > 0).then_some(Socket { inode, user })
    }
}

/// An IPv4-mapped IPv6 address as IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // Whole, with its scope.
        IpAddr::V6(_) => address,
    }
}

fn in_table(table: &str, peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
    let (from, to) = (spellings(peer), spellings(local));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, own, other, _, _, _, _, user, _, inode, ..] = fields[..] else { return None };
        let is_it = from.iter().zip(&to).any(|(from, to)| from == own && to == other);
        is_it.then(|| Socket::unless_closed(inode.parse().ok()?, user.parse().ok()?)).flatten()
    })
}

/// An address as the two tables spell it: 32-bit words in native byte order, in hex.
fn spellings(address: SocketAddr) -> [String; 2] {
    let address = canonical(address);
    let spelled = |ip: &[u8]| {
        let (words, _) = ip.as_chunks::<4>();
        let ip: String =
            words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect();
        format!("{ip}:{:04X}", address.port())
    };
    match address.ip() {
        IpAddr::V4(ip) => [spelled(&ip.octets()), spelled(&ip.to_ipv6_mapped().octets())],
        IpAddr::V6(ip) => {
            let spelled = spelled(&ip.octets());
            [spelled.clone(), spelled]
        }
    }
}

/// `NETLINK_SOCK_DIAG`: one request for one socket, with one answer. The layouts are those of `linux/netlink.h` and
/// `linux/inet_diag.h`.
#[cfg(target_os = "linux")]
mod diagnosis {
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::OwnedFd;

    use rustix::io::Result;
    use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, sendto, socket_with,
    };

    use super::Socket;

    /// The type of the request and of its answer; a refusal has another.
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const IPPROTO_TCP: u8 = 6;
    /// A header, the four bytes of what is asked for, the set of states, and the socket's addresses.
    const REQUEST: usize = 16 + 4 + 4 + 48;
    /// A header, four bytes, the addresses, and five numbers, of which the last two are the user and the inode.
    const ANSWER: usize = 16 + 4 + 48 + 5 * 4;
    const PORTS: usize = 16 + 4;
    const USER: usize = ANSWER - 8;

    pub(super) fn is_there() -> bool {
        open().is_ok()
    }

    fn open() -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))
    }

    /// `None` when there is no such socket.
    pub(super) fn ask(peer: SocketAddr, local: SocketAddr) -> Result<Option<Socket>> {
        let socket = open()?;
        sendto(&socket, &request(peer, local), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        // The kernel answers before `sendto` returns.
        let mut answer = [0; 512];
        let (_, length, sender) = recvfrom(&socket, &mut answer, RecvFlags::empty())?;
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        // A privileged process could send here, too.
        let is_kernel = sender.is_some_and(|sender| sender.pid() == 0);
        Ok(is_kernel.then(|| parse(answer.get(..length)?, peer, local)).flatten())
    }

    fn request(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
        let mut request = Vec::with_capacity(REQUEST);
        request.extend((REQUEST as u32).to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        request.extend([0; 8]);
        let family = match peer.ip() {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        request.extend([family.as_raw() as u8, IPPROTO_TCP, 0, 0]);
        request.extend(u32::MAX.to_ne_bytes());
        // The client's own end comes first.
        request.extend(peer.port().to_be_bytes());
        request.extend(local.port().to_be_bytes());
        for address in [peer.ip(), local.ip()] {
            match address {
                IpAddr::V4(ip) => {
                    request.extend(ip.octets());
                    request.extend([0; 12]);
                }
                IpAddr::V6(ip) => request.extend(ip.octets()),
            }
        }
        // Not bound to an interface (those that are, the tables list), and all ones for "no cookie".
        request.extend([0; 4]);
        request.extend([u8::MAX; 8]);
        request
    }

    fn parse(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<Socket> {
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        if kind != SOCK_DIAG_BY_FAMILY {
            return None;
        }
        // When there is no such connection, the kernel looks for a socket that listens on the client's port.
        let ports = [peer.port().to_be_bytes(), local.port().to_be_bytes()].concat();
        if answer.get(PORTS..PORTS + 4)? != ports {
            return None;
        }
        let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
        Socket::unless_closed(number(USER + 4)?.into(), number(USER)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod diagnosis {
    use std::io::{Error, ErrorKind};
    use std::net::SocketAddr;

    use super::Socket;

    pub(super) fn is_there() -> bool {
        false
    }

    pub(super) fn ask(_: SocketAddr, _: SocketAddr) -> Result<Option<Socket>, Error> {
        Err(ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                        uid  timeout inode\n";

    fn line(own: &str, other: &str, uid: u32, inode: u32) -> String {
        format!(
            "   1: {own} {other} 01 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1\n"
        )
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_connection_belongs_to_the_socket_at_its_other_end() {
        let (ours, theirs) = ("0100007F:142D", "0100007F:9C40");
        let (peer, local) = (([127, 0, 0, 1], 40_000).into(), ([127, 0, 0, 1], 5165).into());
        let check = |lines: &[String], expected: Option<Socket>| {
            assert_eq!(in_table(&format!("{HEAD}{}", lines.concat()), peer, local), expected);
        };
        let found = Some(Socket { inode: 8, user: 1000 });
        check(&[line(ours, theirs, 1, 7), line(theirs, ours, 1000, 8)], found);
        check(&[line(ours, theirs, 1, 7), line(theirs, "0100007F:142E", 1000, 8)], None);
        // Closed by its process.
        check(&[line(theirs, ours, 0, 0)], None);
        check(&["nonsense\n".to_owned()], None);
        check(&[], None);
        let mapped = |port: &str| format!("0000000000000000FFFF00000100007F:{port}");
        check(&[line(&mapped("9C40"), &mapped("142D"), 1000, 8)], found);
        let newer = |port: &str| format!("00000000000000000000000001000000:{port}");
        let table = format!("{HEAD}{}", line(&newer("9C40"), &newer("142D"), 1000, 8));
        let [peer, local] = ["[::1]:40000", "[::1]:5165"].map(|text| text.parse().unwrap());
        assert_eq!(in_table(&table, peer, local), found);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_says_of_a_socket_what_its_tables_list() {
        // The last is an IPv6 socket at both ends, connected over IPv4.
        for (listens, connects) in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::", "127.0.0.1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            let listener = match TcpListener::bind((listens, 0)) {
                Ok(listener) => listener,
                // A machine without IPv6.
                Err(_) if listens.contains(':') => continue,
                Err(error) => panic!("{error}"),
            };
            let client = TcpStream::connect((connects, listener.local_addr().unwrap().port()));
            let client = client.unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            let asked = Socket::ask(peer, local);
            assert_eq!(asked, Socket::look_up(peer, local), "{listens}");
            assert_eq!(asked.map(|socket| socket.user), Some(rustix::process::getuid().as_raw()));
            drop(client);
            // Not at once where another thread is just starting a program: that holds a copy until its `exec`.
            let dropped = Instant::now();
            while let Some(socket) = Socket::find(peer, local) {
                assert!(dropped.elapsed() < Duration::from_secs(10), "{listens}: {socket:?}");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_socket_that_listens_on_the_port_of_a_client_is_not_taken_for_it() {
        let [listener, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [peer, local] = [&listener, &other].map(|socket| socket.local_addr().unwrap());
        assert_eq!(Socket::find(peer, local), None);
    }
}
