//! Reader of a server's event stream (SSE), event by event. `sse` has the parser, and the reason why no
//! library is used. OpenCode sends only `data:` lines, without ids, and replays nothing: after a gap the
//! state is read again.

use futures_util::StreamExt;

use super::call::{Bytes, Error};
use crate::sse::{SseParser, TooLong};

/// Bound on the memory of one event; nothing a healthy server sends comes near it.
const LONGEST_EVENT: usize = 256 << 20;

pub(super) struct Events {
    bytes: Bytes,
    parser: SseParser,
}

impl Events {
    pub(super) fn new(bytes: Bytes) -> Events {
        Events { bytes, parser: SseParser::new(LONGEST_EVENT) }
    }

    /// The data of the next event; `None` when the stream has ended. An event cut off by the end is dropped:
    /// the state is read again after reconnecting.
    pub(super) async fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            match self.parser.next_event() {
                Ok(Some(data)) => return Some(Ok(text(data))),
                Ok(None) => {}
                Err(TooLong) => {
                    return Some(Err(Error::Broken("an event without an end".into())));
                }
            }
            // Chunks end anywhere, also inside a character: only whole events are decoded.
            match self.bytes.next().await? {
                Ok(bytes) => self.parser.add(bytes.into()),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Lossy: an invalid byte costs a character and not the stream.
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
    async fn an_invalid_utf_8_byte_is_replaced_and_the_stream_goes_on() {
        let pieces = [Ok(b"data: a\xff\n\ndata: b\n\n".to_vec())];
        let mut events = Events::new(stream::iter(pieces).boxed());
        assert_eq!(events.next().await.unwrap().unwrap(), "a\u{fffd}");
        assert_eq!(events.next().await.unwrap().unwrap(), "b");
        assert!(events.next().await.is_none());
    }
}
