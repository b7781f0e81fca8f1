//! The status listener: a read-only HTTP port, on loopback by default, announced in `server.json`, with a bearer token
//! for readers that are not the same user.
//!
//! Anybody on the machine can connect, so everything is bounded: connections (a semaphore), size and time of the
//! request head, and the time a client may take nothing (a write timeout), or slow readers would hold descriptors
//! for ever.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;

use super::LONGEST_FAREWELL;
use super::descriptors::Room;
use super::home::Home;
use super::line_ends::{self, CheckedLines};
use super::{peer, peers};
use crate::clock::Clock;
use crate::config;
use crate::http::{AccessPolicy, PageTokens, Reader};
use crate::private_file;
use crate::wire::ServerView;

/// How many ports are tried from the configured one on, before the kernel chooses any that is free.
const PORTS: u16 = 10;

/// Limits on the head of a request, in size and in time.
const LARGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 100;
const LONGEST_HEAD: Duration = Duration::from_secs(15);
/// The write timeout: a client that takes nothing for this long is disconnected.
const LONGEST_STALL: Duration = Duration::from_secs(10);

/// The self-probe after binding. A preflight request, which needs no token, wherever the port listens.
const QUESTION: &[u8] =
    b"OPTIONS /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

const SHORTEST_TOKEN: usize = 16;

pub(super) struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    pub(super) policy: AccessPolicy,
    most: usize,
}

impl Listener {
    pub(super) async fn bind(
        config: &config::Api,
        room: Room,
        home: &Home,
        clock: &Clock,
        pages: PageTokens,
    ) -> anyhow::Result<Listener> {
        let wanted = tokio::net::lookup_host((config.host.as_str(), config.port)).await;
        let wanted = wanted.ok().and_then(|mut found| found.next()).with_context(|| {
            format!("`api.host` is `{}`, which is no address of this machine", config.host)
        })?;
        let open = !wanted.ip().is_loopback();
        ensure!(
            !open || !config.token_file.is_empty(),
            "`api.host` is `{}`, which other machines can reach; set `api.token_file` to a file \
             with a token, which they then have to send, or listen on `127.0.0.1`",
            config.host
        );
        let token = match config.token_file.as_str() {
            "" => own_token(&home.path().join("token"), clock)?,
            file => read_token(Path::new(file))?,
        };
        let tcp = bind(wanted).await.with_context(|| {
            format!(
                "cannot listen on `{wanted}`; set `api.host` and `api.port` (ASYNCAGENTS_API_HOST, \
                 ASYNCAGENTS_API_PORT), or switch it off (ASYNCAGENTS_API_ENABLED=false)"
            )
        })?;
        let address = tcp.local_addr()?;
        let policy = AccessPolicy {
            token: token.into(),
            host: config.host.as_str().into(),
            open,
            anyone: config.readers == config::Readers::Anyone,
            origins: config.origins.iter().cloned().collect(),
            pages,
        };
        Ok(Listener { tcp, address, policy, most: room.connections })
    }

    pub(super) fn server(&self, clock: &Clock) -> ServerView {
        ServerView {
            port: self.address.port(),
            pid: std::process::id(),
            started_at: clock.now(),
            url: format!("http://{}", self.address),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Accepts until told to stop, then lets answers that are under way be finished.
    pub(super) async fn serve(self, router: Router, stopping: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.most));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            // The permit before the accept: beyond the limit, clients wait in the kernel's backlog and take no
            // descriptor.
            let accept = async {
                let place = places.clone().acquire_owned().await;
                (self.tcp.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                accepted = accept => accepted,
                () = stopping.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (router, stopping) = (router.clone(), stopping.clone());
                    let asks_who = self.policy.asks_who_reads();
                    connections.spawn(async move {
                        let reader = match asks_who {
                            true => peer::reader(&stream).await,
                            false => Reader::Unknown,
                        };
                        converse(stream, reader, router, stopping).await;
                        drop(place);
                    });
                }
                // Usually EMFILE. It passes, and without the pause this would be a busy loop.
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "status connection was not accepted; retrying"
                    );
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.tcp);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LONGEST_FAREWELL, all).await;
    }
}

async fn bind(wanted: SocketAddr) -> std::io::Result<TcpListener> {
    let first = wanted.port();
    let last = if first == 0 { 0 } else { first.saturating_add(PORTS - 1) };
    for port in (first..=last).chain([0]) {
        match TcpListener::bind(SocketAddr::new(wanted.ip(), port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Serves one connection, until it is closed or the daemon stops. Its errors are the client's, and not logged.
async fn converse(stream: TcpStream, reader: Reader, router: Router, stopping: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let peer = peers::over_tcp(&stream).await;
    let (read, write) = stream.into_split();
    let checked = CheckedLines::new(read);
    let io = TokioIo::new(tokio::io::join(checked, giving_up(write, LONGEST_STALL)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    http.max_buf_size(LARGEST_HEAD).max_headers(MOST_HEADERS);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(reader);
        request.extensions_mut().insert(ConnectInfo(peer));
        let last = line_ends::is_last(request.headers());
        let response = routes.call(request);
        async move {
            let mut response = response.await?;
            if last {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http.serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stopping.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A write timeout: a client that stops reading would otherwise hold its connection, and what is buffered for it, for
/// ever. One that is merely slow is not cut off.
fn giving_up<S: AsyncWrite>(stream: S, longest: Duration) -> Pin<Box<TimeoutWriter<S>>> {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(longest));
    Box::pin(stream)
}

/// Probes the port as a client will that finds it in `server.json`: another program may answer at that address.
pub(super) async fn until_it_answers(server: &ServerView) -> anyhow::Result<()> {
    let address = server.url.trim_start_matches("http://");
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(QUESTION).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(LONGEST_HEAD, ask).await.context("it does not answer")?;
    let answer = answer.with_context(|| format!("`{address}` does not answer"))?;
    ensure!(answer.starts_with("HTTP/1.1 204"), "`{address}` does not answer as it should");
    Ok(())
}

/// The bearer token of the storage directory, generated when there is none. Replaced atomically: half of one would be
/// refused, and keep every later daemon from starting.
fn own_token(path: &Path, clock: &Clock) -> anyhow::Result<String> {
    // A power cut can leave an empty file all the same; it counts as none.
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
        return read_token(path);
    }
    let token = format!("{}{}", clock.nonce(), clock.nonce());
    private_file::replace(path, &path.with_extension("new"), &format!("{token}\n"), File::sync_all)
        .context("cannot write the token file")?;
    Ok(token)
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read `{shown}`"))?;
    ensure!(
        metadata.permissions().mode() & 0o077 == 0,
        "the token file `{shown}` can be read by others; `chmod 600 {shown}` closes it"
    );
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{shown}`"))?;
    let token = text.trim();
    ensure!(
        token.len() >= SHORTEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token file `{shown}` must hold one word of at least {SHORTEST_TOKEN} letters or digits"
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_times_out_and_a_slow_one_does_not() {
        let (ours, mut theirs) = duplex(10);
        let mut ours = giving_up(ours, Duration::from_secs(20));
        let slowly = tokio::spawn(async move {
            let mut taken = [0; 10];
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(15)).await;
                theirs.read_exact(&mut taken).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[b'x'; 60]).await.unwrap();
        let _not_reading = slowly.await.unwrap();
        let failed = ours.write_all(&[b'x'; 60]).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut);
    }
}
