//! A parser for server-sent events: bytes in, in chunks of any size; the data of whole events out. The
//! size of an event is bounded, because a line that never ends must not fill the memory. Event names, ids
//! and `retry` are ignored.
//!
//! That bound is why no library does it: `sse-stream` 0.3 buffers a line and an event for as long as it gets
//! bytes, rejects a whole stream for one byte that is not UTF-8, and drops an event that only the end of the
//! stream completes.

use bytes::Bytes;

/// The state of the parser between two chunks.
pub struct SseParser {
    /// The most bytes of one event.
    most: usize,
    bytes: Bytes,
    /// The current line, as far as it has come.
    line: Vec<u8>,
    /// The data of the current event so far; lines are joined by a newline.
    data: Option<Vec<u8>>,
    /// The last line ended with a carriage return. A line feed right after it, perhaps in the next chunk,
    /// belongs to the same line end.
    after_return: bool,
}

/// An event is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl SseParser {
    pub fn new(most: usize) -> SseParser {
        let (line, data) = (Vec::new(), None);
        SseParser { most, bytes: Bytes::new(), line, data, after_return: false }
    }

    /// Adds a chunk. Only when [`SseParser::next_event`] has returned `None`: what is left would be lost.
    pub fn add(&mut self, bytes: Bytes) {
        self.bytes = bytes;
    }

    /// The data of the next complete event; `None` when more bytes are needed.
    pub fn next_event(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        while !self.bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && self.bytes[0] == b'\n' {
                let _ = self.bytes.split_to(1);
                continue;
            }
            match memchr::memchr2(b'\n', b'\r', &self.bytes) {
                None => {
                    let rest = std::mem::take(&mut self.bytes);
                    self.extend(&rest)?;
                }
                Some(end) => {
                    let line = self.bytes.split_to(end);
                    self.extend(&line)?;
                    self.after_return = self.bytes.split_to(1)[0] == b'\r';
                    if let Some(data) = self.end_line()? {
                        return Ok(Some(data));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The event at the end of the stream. The specification discards an event without an empty line
    /// after it; some servers leave that out after the last one, so it counts here.
    pub fn last_event(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        match self.end_line()? {
            Some(data) => Ok(Some(data)),
            None => Ok(self.data.take()),
        }
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let known = self.data.as_ref().map_or(0, Vec::len);
        // Checked before copying: a chunk may be larger than what is allowed.
        if known + self.line.len() + bytes.len() > self.most {
            return Err(TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends the current line. An empty line ends the event; lines other than `data` are skipped.
    fn end_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let mut line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(self.data.take());
        }
        let Some(rest) = line.strip_prefix(b"data:") else { return Ok(None) };
        let skip = line.len() - rest.strip_prefix(b" ").unwrap_or(rest).len();
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(&line[skip..]);
            }
            // The usual case, one line: reuse its buffer instead of copying what may be megabytes.
            None => {
                line.drain(..skip);
                self.data = Some(line);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All events of a text, cut into bits of this size.
    fn events(text: &str, size: usize, most: usize) -> Result<Vec<String>, TooLong> {
        let mut parser = SseParser::new(most);
        let mut events = Vec::new();
        let text_of = |data: Vec<u8>| String::from_utf8(data).unwrap();
        for bit in text.as_bytes().chunks(size) {
            parser.add(Bytes::copy_from_slice(bit));
            while let Some(data) = parser.next_event()? {
                events.push(text_of(data));
            }
        }
        events.extend(parser.last_event()?.map(text_of));
        Ok(events)
    }

    fn check(text: &str, expected: &[&str]) {
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(events(text, size, 100).unwrap(), expected, "{text:?} by {size}");
        }
    }

    #[test]
    fn events_come_out_whole_however_the_stream_is_cut() {
        check(
            "data: {\"a\":1}\n\n: comment\n\ndata:{\"b\":\"ü\"}\n\n",
            &["{\"a\":1}", "{\"b\":\"ü\"}"],
        );
        check("event: x\nid: 7\ndata: one\ndata: two\n\n", &["one\ntwo"]);
        check("data: no empty line", &["no empty line"]);
        check("data: one\n\n\n\ndata: two\n\n", &["one", "two"]);
        check("data:\n\n", &[""]);
        check("", &[]);
    }

    #[test]
    fn every_line_ending_of_the_standard_ends_a_line() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("data: a{end}{end}data: b{end}{end}: c{end}{end}");
            check(&text, &["a", "b"]);
        }
    }

    #[test]
    fn an_event_beyond_the_bound_is_an_error_and_one_at_it_is_not() {
        let line = |length: usize| format!("data: {}\n\n", "x".repeat(length));
        for size in [1, 7, 1000] {
            let whole = events(&line(44), size, 50);
            assert_eq!(whole.map(|all| all[0].len()), Ok(44), "by {size}");
            assert_eq!(events(&line(45), size, 50), Err(TooLong), "by {size}");
            let endless = "data: x\n".repeat(100);
            assert_eq!(events(&endless, size, 50), Err(TooLong), "by {size}");
        }
    }
}
