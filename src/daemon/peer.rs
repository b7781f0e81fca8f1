//! Peer credentials for TCP (H8): which user is at the other end of a loopback connection. TCP has no `SO_PEERCRED`,
//! but `/proc/net/tcp` lists every socket with the uid that opened it; the peer's is the one with both addresses the
//! other way round. Where there is no such list (not Linux), the reader is unknown and needs the token.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;

use crate::http::Reader;

/// The kernel's socket tables. Both, because an IPv6 socket can be connected to a mapped IPv4 address.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Whether this system has the socket tables.
pub(super) fn can_be_told() -> bool {
    fs::File::open(TABLES[0]).is_ok()
}

/// Reads the tables on a thread that may block: they grow with the connections of the whole machine.
pub(super) async fn reader(stream: &TcpStream) -> Reader {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        return Reader::Unknown;
    };
    let looked = tokio::task::spawn_blocking(move || {
        let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
        tables.into_iter().find_map(|table| owner(&table, peer, local))
    });
    match looked.await {
        Ok(Some(user)) if user == rustix::process::geteuid().as_raw() => Reader::SameUser,
        Ok(Some(_)) => Reader::OtherUser,
        Ok(None) | Err(_) => Reader::Unknown,
    }
}

/// The uid of the socket that is connected from `peer` to `local`. A socket that its process has closed is listed with
/// uid 0 and without an inode; taken as root's, it would be a wrong answer, so it has no owner.
fn owner(table: &str, peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (from, to) = (spellings(peer), spellings(local));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (own, other) = (fields.get(1)?, fields.get(2)?);
        let is_it = from.iter().zip(&to).any(|(from, to)| from == own && to == other);
        let is_open = *fields.get(9)? != "0";
        (is_it && is_open).then(|| fields.get(7)?.parse().ok()).flatten()
    })
}

/// An address as the two tables spell it: 32-bit words in native byte order, in hex.
fn spellings(address: SocketAddr) -> [String; 2] {
    let port = address.port();
    let hex = |bytes: &[u8]| -> String {
        let words = bytes.chunks_exact(4).map(|word| {
            u32::from_ne_bytes(word.try_into().expect("a chunk of four bytes has four bytes"))
        });
        words.map(|word| format!("{word:08X}")).collect()
    };
    match address.ip() {
        IpAddr::V4(ip) => {
            let (older, newer) = (hex(&ip.octets()), hex(&ip.to_ipv6_mapped().octets()));
            [format!("{older}:{port:04X}"), format!("{newer}:{port:04X}")]
        }
        IpAddr::V6(ip) => {
            let newer = format!("{}:{port:04X}", hex(&ip.octets()));
            [newer.clone(), newer]
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn a_connection_belongs_to_the_user_of_the_socket_at_its_other_end() {
        let (ours, theirs) = ("0100007F:142D", "0100007F:9C40");
        let (peer, local) = (([127, 0, 0, 1], 40_000).into(), ([127, 0, 0, 1], 5165).into());
        let check = |lines: &[String], expected: Option<u32>| {
            assert_eq!(owner(&format!("{HEAD}{}", lines.concat()), peer, local), expected);
        };
        check(&[line(ours, theirs, 1, 7), line(theirs, ours, 1000, 8)], Some(1000));
        check(&[line(ours, theirs, 1, 7), line(theirs, "0100007F:142E", 1000, 8)], None);
        // Closed by its process.
        check(&[line(theirs, ours, 0, 0)], None);
        check(&["nonsense\n".to_owned()], None);
        check(&[], None);
        let mapped = |port: &str| format!("0000000000000000FFFF00000100007F:{port}");
        check(&[line(&mapped("9C40"), &mapped("142D"), 1000, 8)], Some(1000));
        let newer = |port: &str| format!("00000000000000000000000001000000:{port}");
        let table = format!("{HEAD}{}", line(&newer("9C40"), &newer("142D"), 5, 8));
        let [peer, local] = ["[::1]:40000", "[::1]:5165"].map(|text| text.parse().unwrap());
        assert_eq!(owner(&table, peer, local), Some(5));
    }
}
