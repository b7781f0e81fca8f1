//! The event stream of a server, event by event. `sse` takes it apart, and says why no library does.

use futures_util::StreamExt;

use super::call::{Bytes, Error};
use crate::sse::{SseParser, TooLong};

/// An event that is longer than this is none of a server in its right mind.
const LONGEST_EVENT: usize = 256 << 20;

pub(super) struct Events {
    bytes: Bytes,
    parser: SseParser,
}

impl Events {
    pub(super) fn new(bytes: Bytes) -> Events {
        Events { bytes, parser: SseParser::new(LONGEST_EVENT) }
    }

    /// The data of the next event; `None` when the stream has ended. An event that the end cuts off is
    /// none: what it told is looked up when the stream is taken up again.
    pub(super) async fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            match self.parser.next_event() {
                Ok(Some(data)) => return Some(Ok(text(data))),
                Ok(None) => {}
                Err(TooLong) => {
                    return Some(Err(Error::Broken("an event without an end".into())));
                }
            }
            match self.bytes.next().await? {
                Ok(bytes) => self.parser.add(bytes.into()),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// One byte that is wrong costs a character and not the stream.
fn text(data: Vec<u8>) -> String {
    String::from_utf8(data)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
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

    #[tokio::test]
    async fn a_byte_that_is_wrong_costs_a_character_and_not_the_stream() {
        let pieces = [Ok(b"data: a\xff\n\ndata: b\n\n".to_vec())];
        let mut events = Events::new(stream::iter(pieces).boxed());
        assert_eq!(events.next().await.unwrap().unwrap(), "a\u{fffd}");
        assert_eq!(events.next().await.unwrap().unwrap(), "b");
        assert!(events.next().await.is_none());
    }
}
