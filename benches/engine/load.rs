//! The load generators: raw connections, so that clients add little to the measured times.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many clients send requests at the same time.
const AT_ONCE: usize = 16;

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; 256 << 10] })
    }

    /// Returns the size of the body, once it has arrived completely.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<usize> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        let mut read = 0;
        let (head, size) = loop {
            let some = self.stream.read(&mut self.buffer[read..]).await?;
            ensure!(some > 0, "the connection was closed");
            read += some;
            if let Some(end) = memmem::find(&self.buffer[..read], b"\r\n\r\n") {
                break (end + 4, size(&self.buffer[..end])?);
            }
        };
        let mut left = (head + size).saturating_sub(read);
        while left > 0 {
            let some = self.stream.read(&mut self.buffer).await?;
            ensure!(some > 0, "the connection was closed");
            left = left.saturating_sub(some);
        }
        Ok(size)
    }
}

fn size(head: &[u8]) -> anyhow::Result<usize> {
    let head = std::str::from_utf8(head)?.to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "refused: {head}");
    let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    Ok(line.context("no length")?.parse()?)
}

/// Requests per second of several clients in a closed loop.
pub(crate) async fn rate(port: u16, window: Duration, path: &str) -> anyhow::Result<f64> {
    let began = Instant::now();
    let asking = (0..AT_ONCE).map(async |_| {
        let mut connection = Connection::open(port).await?;
        let mut asked = 0;
        while began.elapsed() < window {
            connection.get(path).await?;
            asked += 1;
        }
        anyhow::Ok(asked)
    });
    let asked: usize = try_join_all(asking).await?.into_iter().sum();
    Ok(asked as f64 / began.elapsed().as_secs_f64())
}

/// A client of an event stream.
pub(crate) struct Listener {
    stream: TcpStream,
    last: u8,
}

impl Listener {
    /// Connects and reads the first event.
    pub(crate) async fn open(port: u16, path: &str) -> anyhow::Result<Listener> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut listener = Listener { stream, last: 0 };
        listener.hear(1).await?;
        Ok(listener)
    }

    /// Waits for this many more events, and returns their size in bytes.
    pub(crate) async fn hear(&mut self, events: usize) -> anyhow::Result<usize> {
        let mut buffer = vec![0; 64 << 10];
        let (mut heard, mut bytes) = (0, 0);
        while heard < events {
            let some = self.stream.read(&mut buffer).await?;
            ensure!(some > 0, "the stream has ended");
            let text = &buffer[..some];
            heard += usize::from(self.last == b'\n' && text[0] == b'\n');
            heard += memmem::find_iter(text, b"\n\n").count();
            self.last = text[some - 1];
            bytes += some;
        }
        Ok(bytes)
    }
}

pub(crate) async fn listeners(
    port: u16,
    path: &str,
    clients: usize,
) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::with_capacity(clients);
    // In groups: a listener's accept backlog is short.
    while listeners.len() < clients {
        let some = (clients - listeners.len()).min(50);
        listeners.extend(try_join_all((0..some).map(|_| Listener::open(port, path))).await?);
    }
    Ok(listeners)
}

/// Returns the bytes that all of them received.
pub(crate) async fn all_hear(listeners: &mut [Listener], events: usize) -> anyhow::Result<usize> {
    let heard = try_join_all(listeners.iter_mut().map(|listener| listener.hear(events))).await?;
    Ok(heard.into_iter().sum())
}
