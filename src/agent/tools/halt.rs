//! When work in a thread is to end early: threads cannot be stopped from outside.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

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

/// A file whose reading ends with an error when it is time.
pub(super) struct InterruptibleFile<'a> {
    pub(super) file: File,
    pub(super) halt: &'a Halt,
}

impl Read for InterruptibleFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.halt.reached() {
            // Not `Interrupted`, which readers take for "try again".
            Some(_) => Err(ErrorKind::TimedOut.into()),
            None => self.file.read(buffer),
        }
    }
}
