//! Peer identification when a connection is accepted (X3): does it come from a command of an agent, or from elsewhere?
//! Agents must not use the daemon by way of their own commands. On the socket the kernel says which process connects
//! (`SO_PEERCRED`); on the port the process is looked for by its connection.

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

/// Reads the whole process table, on a thread that may block; skipped while no command runs, the usual case.
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
