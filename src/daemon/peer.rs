//! Peer credentials for TCP (H8): which user is at the other end of a loopback connection. Where that cannot be told
//! (not Linux, or neither netlink nor
//! `/proc/net` is there), the reader is unknown and needs the token.

use tokio::net::TcpStream;

use crate::http::Reader;
use crate::process::Socket;

pub(super) async fn reader(stream: &TcpStream) -> Reader {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        return Reader::Unknown;
    };
    let found = tokio::task::spawn_blocking(move || Socket::find(peer, local)).await;
    match found.ok().flatten() {
        Some(socket) if socket.user == rustix::process::geteuid().as_raw() => Reader::SameUser,
        Some(_) => Reader::OtherUser,
        None => Reader::Unknown,
    }
}
