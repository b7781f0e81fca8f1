//! The limits of the status API: a bare axum server in its own process that sends bodies of a given
//! size, scans descriptions in memory, and broadcasts bytes.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use crate::processes::Process;
use crate::rows;

/// The argument that makes this program the bare server.
pub(crate) const ARGUMENT: &str = "--bare-server";

pub(crate) struct BareServer {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

#[derive(Clone)]
struct ServerState {
    /// Case-folded, as many as the largest history has.
    descriptions: Arc<Vec<String>>,
    events: broadcast::Sender<Bytes>,
}

impl BareServer {
    /// With this many descriptions in memory.
    pub(crate) fn start(descriptions: usize) -> anyhow::Result<BareServer> {
        let (process, stdout) = Process::of_ourselves(&format!("{ARGUMENT}={descriptions}"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(BareServer {
            process,
            port: line.trim().parse().context("the bare server said no port")?,
        })
    }
}

/// Serves until it is killed.
pub(crate) fn serve(descriptions: usize) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let descriptions = (0..descriptions).map(|n| rows::description(n).to_lowercase()).collect();
        let known = ServerState {
            descriptions: Arc::new(descriptions),
            events: broadcast::Sender::new(1024),
        };
        let router = Router::new()
            .route("/body/{size}", get(body))
            .route("/scan/{among}/{word}/{limit}/{each}", get(scan))
            .route("/stream", get(listen))
            .route("/burst/{events}/{size}", get(burst))
            .with_state(known);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        axum::serve(listener, router).await?;
        Ok(())
    })
}

fn answer(body: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, OPTIONS"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type"),
    ];
    (headers, body).into_response()
}

/// The buffer that bodies are sliced from.
fn stuff() -> &'static Bytes {
    static STUFF: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    STUFF.get_or_init(|| vec![b'x'; 4 << 20].into())
}

async fn body(Path(size): Path<usize>) -> Response {
    answer(stuff().slice(..size.min(stuff().len())))
}

/// The number of matches, and a copy of those on the page.
async fn scan(
    State(known): State<ServerState>,
    Path((among, word, limit, each)): Path<(usize, String, usize, usize)>,
) -> Response {
    let (mut total, mut page) = (0, Vec::new());
    for (n, description) in known.descriptions[..among].iter().enumerate() {
        if description.contains(&word) {
            if total < limit {
                let from = n * each % (stuff().len() - each);
                page.extend_from_slice(&stuff()[from..from + each]);
            }
            total += 1;
        }
    }
    page.extend_from_slice(total.to_string().as_bytes());
    answer(page.into())
}

async fn listen(State(known): State<ServerState>) -> Body {
    let events = known.events.subscribe();
    let first = Bytes::from_static(b"begun\n\n");
    let rest =
        stream::unfold(
            events,
            |mut events| async move { Some((events.recv().await.ok()?, events)) },
        );
    let all = stream::StreamExt::chain(stream::iter([first]), rest);
    Body::from_stream(stream::StreamExt::map(all, Ok::<_, Infallible>))
}

async fn burst(State(known): State<ServerState>, Path((events, size)): Path<(usize, usize)>) {
    let mut event = vec![b'x'; size];
    event[size - 2..].copy_from_slice(b"\n\n");
    let event = Bytes::from(event);
    for _ in 0..events {
        let _ = known.events.send(event.clone());
    }
}
