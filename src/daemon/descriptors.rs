//! The file descriptor budget: how many clients the status port may have, so that the control socket, the store, the
//! hosts and the commands of agents always have some left. Without it, enough open event streams would make every
//! launch fail with `EMFILE`.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Reserved for everything but clients of the port; under a very low limit it is half of it.
const RESERVED: usize = 256;
/// Requests beside the event streams.
const OTHER_CONNECTIONS: usize = 1024;

/// How many of each there can be at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Clients of the event stream, wherever they come from.
    pub(super) streams: usize,
    /// Connections to the port, those included.
    pub(super) connections: usize,
}

impl Room {
    /// As configured, within the hard limit of open files, to which the soft limit is raised.
    pub(super) fn make(wanted: usize) -> Room {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
        let most = getrlimit(Resource::Nofile).current;
        let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        let room = Room::within(most, wanted);
        if room.streams < wanted {
            tracing::warn!(
                open_files = most,
                streams = room.streams,
                wanted,
                "open file limit is low; fewer event streams than `api.max_streams` are served"
            );
        }
        room
    }

    fn within(most: usize, wanted: usize) -> Room {
        let left = most - RESERVED.min(most / 2);
        let connections = left.min(wanted.saturating_add(OTHER_CONNECTIONS));
        // A quarter is left for requests, however many streams there are: streams stay open, requests do not.
        Room { streams: wanted.min(connections / 4 * 3), connections }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(most: usize, wanted: usize, streams: usize, connections: usize) {
        assert_eq!(Room::within(most, wanted), Room { streams, connections }, "{most}, {wanted}");
    }

    #[test]
    fn clients_leave_descriptors_for_the_socket_whatever_the_limit() {
        check(1 << 20, 1000, 1000, 2024);
        check(usize::MAX, 100_000, 75_768, 101_024);
        check(1024, 1000, 576, 768);
        check(256, 1000, 96, 128);
        check(64, 10, 10, 32);
        check(64, 0, 0, 32);
    }
}
