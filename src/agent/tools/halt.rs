//! Cooperative cancellation for work on blocking threads, which cannot be stopped from outside: the work
//! asks regularly whether it was cancelled or has run out of time.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// A cancellation token with a deadline.
#[derive(Clone, Debug)]
pub(super) struct Halt {
    cancel: CancellationToken,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Cancelled,
    OutOfTime,
}

impl Halt {
    pub(super) fn after(limit: Duration, cancel: CancellationToken) -> Halt {
        Halt { cancel, deadline: Instant::now() + limit }
    }

    /// Why the work has to stop, if it has to. Cancellation comes first.
    pub(super) fn reached(&self) -> Option<Reason> {
        if self.cancel.is_cancelled() {
            Some(Reason::Cancelled)
        } else if Instant::now() >= self.deadline {
            Some(Reason::OutOfTime)
        } else {
            None
        }
    }
}

/// A reader that fails when the work has to stop, for libraries that read to the end by themselves.
pub(super) struct InterruptibleFile<'a> {
    pub(super) file: File,
    pub(super) halt: &'a Halt,
}

impl Read for InterruptibleFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.halt.reached() {
            // Not `Interrupted`: readers take that for EINTR and try again.
            Some(_) => Err(ErrorKind::TimedOut.into()),
            None => self.file.read(buffer),
        }
    }
}
