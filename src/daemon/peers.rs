//! Finding out who connects, when a connection is accepted (X3).

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpStream, UnixListener};

use crate::http::Peer;
use crate::process::{self, Origin};

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Peer {
        match stream.io().peer_cred() {
            Ok(credentials) => peer(process::of_process(credentials.pid().unwrap_or_default())),
            Err(_) => Peer::Unknown,
        }
    }
}

/// Reads the whole process table while commands run, which takes a thread that may block.
pub(super) async fn over_tcp(stream: &TcpStream) -> Peer {
    if !process::commands_run() {
        return Peer::Elsewhere;
    }
    let (Ok(theirs), Ok(ours)) = (stream.peer_addr(), stream.local_addr()) else {
        return Peer::Unknown;
    };
    let looked = tokio::task::spawn_blocking(move || process::of_connection(theirs, ours)).await;
    peer(looked.unwrap_or(Origin::Unknown))
}

fn peer(origin: Origin) -> Peer {
    match origin {
        Origin::Elsewhere => Peer::Elsewhere,
        Origin::Agent(guard) => Peer::Agent(guard),
        Origin::Unknown => Peer::Unknown,
    }
}
