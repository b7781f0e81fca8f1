//! The event stream, line by line.

use futures_util::StreamExt;

use super::call::{Bytes, Error};

/// A line that is longer than this is no event of a server in its right mind.
const LONGEST_LINE: usize = 256 << 20;

pub(super) struct Events {
    bytes: Bytes,
    buffer: Vec<u8>,
    /// Where the next line begins, and how far it is known to have no end.
    start: usize,
    searched: usize,
}

impl Events {
    pub(super) fn new(bytes: Bytes) -> Events {
        Events { bytes, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// The data of the next event; `None` when the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            while let Some(line) = self.line() {
                if let Some(data) = line.strip_prefix("data:") {
                    return Some(Ok(data.trim_start().to_owned()));
                }
            }
            if self.buffer.len() > LONGEST_LINE {
                return Some(Err(Error::Broken("an event without an end".into())));
            }
            self.buffer.drain(..std::mem::take(&mut self.start));
            self.searched = self.buffer.len();
            match self.bytes.next().await? {
                Ok(bytes) => self.buffer.extend_from_slice(&bytes),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n')?;
        let end = self.searched + end;
        let line = String::from_utf8_lossy(&self.buffer[self.start..end]).trim_end().to_owned();
        self.start = end + 1;
        self.searched = self.start;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt};

    use super::*;

    #[tokio::test]
    async fn events_come_out_whole_however_the_stream_is_cut() {
        let text = "data: {\"a\":1}\n\n: comment\n\ndata:{\"b\":\"ü\"}\n\ndata: cut off";
        for size in [1, 2, 3, 7, 100] {
            let pieces: Vec<_> = text.as_bytes().chunks(size).map(|c| Ok(c.to_vec())).collect();
            let mut events = Events::new(stream::iter(pieces).boxed());
            let mut seen = Vec::new();
            while let Some(event) = events.next().await {
                seen.push(event.unwrap());
            }
            assert_eq!(seen, ["{\"a\":1}", "{\"b\":\"ü\"}"], "{size}");
        }
    }
}
