//! Refuses requests whose head has a line that ends with a bare LF. RFC 9112 allows a server to take one for the end
//! of the line, and hyper does; a proxy in front of the port may not, and the two would then disagree about where a
//! request ends (request smuggling).
//!
//! A filter on what is read from the connection: it follows heads and lengths of bodies, and replaces a bare LF, and the
//! end of a line with a length that it does not understand, by a NUL, which hyper answers with 400. Chunked bodies are
//! not followed: a request with one is the last of its connection ([`is_last`]).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use tokio::io::{AsyncRead, ReadBuf};

/// How much of a line is kept: the longest name that counts, and a length.
const LONGEST_KEPT: usize = 64;

pub(super) struct CheckedLines<R> {
    inner: R,
    at: Position,
}

/// Where in the stream of requests the next byte is.
enum Position {
    Head(Head),
    /// This many bytes of a body are to come.
    Body(u64),
    /// Behind a chunked body, or in what is refused anyway.
    Unchecked,
}

/// What a line of a head was.
enum Line {
    OfHead,
    /// It ends the head, and this comes next.
    Last(Position),
    Refused,
}

#[derive(Default)]
struct Head {
    /// The beginning of the current line, and whether there was more of it.
    line: Vec<u8>,
    is_cut: bool,
    ends_with_cr: bool,
    /// There was a line that is not empty: empty ones before a request line are skipped.
    has_begun: bool,
    body: u64,
    is_chunked: bool,
}

impl<R> CheckedLines<R> {
    pub(super) fn new(inner: R) -> CheckedLines<R> {
        CheckedLines { inner, at: Position::Head(Head::default()) }
    }

    fn check(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match &mut self.at {
                Position::Unchecked => return,
                Position::Body(left) => {
                    let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= skipped as u64;
                    bytes = &mut bytes[skipped..];
                    if *left == 0 {
                        self.at = Position::Head(Head::default());
                    }
                }
                Position::Head(head) => {
                    let end = memchr::memchr(b'\n', bytes);
                    let (line, rest) = bytes.split_at_mut(end.map_or(bytes.len(), |end| end + 1));
                    bytes = rest;
                    let Some(text) = line.strip_suffix(b"\n") else {
                        head.take(line);
                        continue;
                    };
                    head.take(text);
                    match head.end_line() {
                        Line::Refused => {
                            line[line.len() - 1] = 0;
                            self.at = Position::Unchecked;
                        }
                        Line::OfHead => {}
                        Line::Last(next) => self.at = next,
                    }
                }
            }
        }
    }
}

impl Head {
    fn take(&mut self, text: &[u8]) {
        let Some(last) = text.last() else { return };
        self.ends_with_cr = *last == b'\r';
        let room = LONGEST_KEPT - self.line.len();
        self.is_cut |= text.len() > room;
        self.line.extend_from_slice(&text[..text.len().min(room)]);
    }

    fn end_line(&mut self) -> Line {
        let (line, is_cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.is_cut));
        if !std::mem::take(&mut self.ends_with_cr) {
            return Line::Refused;
        }
        if line == b"\r" {
            return match (self.has_begun, self.is_chunked, self.body) {
                (false, ..) => Line::OfHead,
                (true, true, _) => Line::Last(Position::Unchecked),
                (true, false, 0) => Line::Last(Position::Head(Head::default())),
                (true, false, body) => Line::Last(Position::Body(body)),
            };
        }
        self.has_begun = true;
        let line = String::from_utf8_lossy(&line);
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str()) {
                // What this filter and hyper could read in different ways: a value that is cut here, a list, a sign.
                let digits = value.trim_matches([' ', '\t', '\r']);
                match digits.parse() {
                    Ok(length) if !is_cut && !digits.starts_with('+') => self.body = length,
                    _ => return Line::Refused,
                }
            }
            self.is_chunked |= name.eq_ignore_ascii_case(TRANSFER_ENCODING.as_str());
        }
        Line::OfHead
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for CheckedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.check(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

/// Whether what comes after this request is not checked, so that its connection has to be closed.
pub(super) fn is_last(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a stream that arrives in pieces of this size.
    fn checked(stream: &str, piece: usize) -> String {
        let mut bytes = stream.as_bytes().to_vec();
        let mut lines = CheckedLines::new(());
        bytes.chunks_mut(piece).for_each(|piece| lines.check(piece));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_bare_line_feed_in_a_head_is_made_invalid_and_one_in_a_body_is_not() {
        let body = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\na\nb\n\n";
        let second = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let sound = [
            second.to_owned(),
            format!("\r\n{second}{second}"),
            format!("{body}{second}"),
            // What is behind a chunked body is refused by closing the connection.
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\na\n\r\n0\r\n\r\n".to_owned(),
            // A line that is longer than what is kept of it.
            format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n{second}", "x".repeat(100)),
        ];
        for piece in [1, 2, 3, 7, 1000] {
            for stream in &sound {
                assert_eq!(checked(stream, piece), *stream, "in pieces of {piece}");
            }
            let check = |before: &str, bare: &str, after: &str| {
                let expected = format!("{before}{}{after}", bare.replacen('\n', "\0", 1));
                assert_eq!(checked(&format!("{before}{bare}{after}"), piece), expected);
            };
            check("", "GET / HTTP/1.1\n", "Host: x\r\n\r\n");
            check("GET / HTTP/1.1\r\n", "Host: x\n", "\r\n");
            check("GET / HTTP/1.1\r\nHost: x\r\n", "\n", "");
            check("", "\n", second);
            check(body, "GET / HTTP/1.1\n", "\r\n");
            check(second, "GET / HTTP/1.1\n", "\r\n");
            // Lengths that hyper reads in another way than the filter would, or not at all.
            for length in [" ".repeat(60) + "1", "0".repeat(60) + "1", "2, 2".into(), "+2".into()] {
                let length = format!("content-length:{length}\r\n");
                check("POST / HTTP/1.1\r\n", &length, "\r\n\n\n");
            }
            check("POST / HTTP/1.1\r\ncontent-length: 2 \r\n\r\n\n\n", "GET\n", "");
        }
    }
}
