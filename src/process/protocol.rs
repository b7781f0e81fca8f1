//! The protocol between the daemon and a guard, over the socket that is the guard's standard input: one
//! length-prefixed order in JSON, then one byte for every renewal of the lease. The end of the stream
//! means "kill", so that a crashed daemon sends it as well. The guard answers with one report, a line of
//! JSON.

use std::io::{self, Read};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Renews the lease; any byte after the order does.
pub(super) const RENEWAL: u8 = b'.';

/// What the guard is to run, and the lease: how long it may go on without hearing from the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// Put into the command's environment under [`super::MARKER`].
    pub(super) marker: String,
    pub(super) lease: Duration,
    /// The command is killed when it has more processes and threads than this; 0 is no limit.
    pub(super) processes: u64,
    /// For the clean-up function when no process of the command is left; opaque to the guard.
    pub(super) cleanup: String,
}

/// How a command ended, and what became of everything it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub cause: Cause,
    /// The exit status of the command's main process.
    pub status: Option<Status>,
    /// How many processes were still running after the main process had exited, and were killed.
    pub killed: usize,
    /// The ids of processes that could not be killed in time.
    pub left: Vec<i32>,
    /// What the clean-up function reported.
    pub cleanup: Vec<String>,
}

/// Why a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The main process exited by itself.
    Exited,
    /// The daemon asked for it, or is gone.
    Killed,
    /// The daemon did not renew the lease.
    LeaseExpired,
    /// It had more processes and threads than this, its limit.
    TooManyProcesses(u64),
    /// The guard itself ended without a report. Never sent; the daemon fills it in.
    GuardLost,
    /// The command could not be started, and why.
    NotStarted(String),
}

/// How a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Code(i32),
    Signal(i32),
}

impl Order {
    pub(super) fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).expect("strings and numbers are JSON");
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [length.to_be_bytes().as_slice(), &body].concat()
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Order> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut body = Vec::new();
        from.take(u32::from_be_bytes(length).into()).read_to_end(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }
}

impl Report {
    pub(super) fn of(cause: Cause) -> Report {
        Report { cause, status: None, killed: 0, left: Vec::new(), cleanup: Vec::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("strings and numbers are JSON");
        line.push(b'\n');
        line
    }

    /// `None` until the whole line has arrived.
    pub(super) fn decode(bytes: &[u8]) -> Option<Report> {
        serde_json::from_slice(bytes.strip_suffix(b"\n")?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_up_to_its_end_and_a_truncated_one_is_an_error() {
        let order = Order {
            program: "bash".into(),
            arguments: vec!["-c".into(), "echo \"ä\"\n".into()],
            marker: "1-2-3".into(),
            lease: Duration::from_millis(1_500),
            processes: 64,
            cleanup: "[\"x\"]".into(),
        };
        let mut sent = order.encode();
        let whole = sent.len();
        sent.push(RENEWAL);
        let mut stream = sent.as_slice();
        assert_eq!(Order::read(&mut stream).unwrap(), order);
        assert_eq!(stream, [RENEWAL]);
        for length in [0, 3, 4, 20, whole - 1] {
            assert!(Order::read(&sent[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_report_is_decoded_only_when_it_is_complete() {
        for report in [
            Report::of(Cause::NotStarted("no bash".into())),
            Report {
                cause: Cause::Exited,
                status: Some(Status::Code(3)),
                killed: 2,
                left: vec![7, 8],
                cleanup: vec!["a b".into()],
            },
            Report { status: Some(Status::Signal(9)), ..Report::of(Cause::Killed) },
        ] {
            let bytes = report.encode();
            assert_eq!(Report::decode(&bytes), Some(report));
            assert_eq!(Report::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Report::decode(b""), None);
    }
}
