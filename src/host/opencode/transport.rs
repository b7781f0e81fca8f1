//! Transports to an OpenCode process: HTTP to a port, or the plugin bridge. HTTP has two clients: a pooled
//! one for calls, and one without a pool for health checks and the event stream, because a connection
//! opened while the server was starting is never answered (G1). The pool is dropped after every broken
//! stream for the same reason.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, Url};

use super::bridge::Bridge;
use super::call::{Bytes, Call, Error, Reply};
use crate::net;

/// A server that starts hundreds of runs answers only after 20 seconds; that must not count as down.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A closed port is refused at once; what takes longer is a network that drops packets.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);

/// The same calls travel either way.
#[derive(Clone)]
pub(super) enum Transport {
    /// To a server that listens on a port.
    Http(Http),
    /// Through our plugin in a process that does not.
    Bridge(Arc<Bridge>),
}

impl Transport {
    /// Whether the process at the other end sees the files of this machine. A port on loopback may
    /// lead elsewhere through a tunnel; the server can then be given by another name.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Transport::Http(http) => net::is_loopback(&http.base),
            Transport::Bridge(_) => true,
        }
    }

    pub(super) async fn send(&self, call: Call) -> Result<Reply, Error> {
        match self {
            Transport::Http(http) => http.send(call).await,
            Transport::Bridge(bridge) => bridge.send(call, CALL_TIMEOUT).await,
        }
    }

    pub(super) fn renew(&self) {
        match self {
            Transport::Http(http) => http.renew(),
            Transport::Bridge(_) => {}
        }
    }

    /// On a connection of its own, with its own timeout.
    pub(super) async fn send_fresh(&self, path: &str, patience: Duration) -> Result<Reply, Error> {
        match self {
            Transport::Http(http) => http.send_fresh(path, patience).await,
            Transport::Bridge(bridge) => {
                let call = Call { method: Method::GET, path: path.to_owned(), body: None };
                bridge.send(call, patience).await
            }
        }
    }

    pub(super) async fn stream(&self, path: &str) -> Result<Bytes, Error> {
        match self {
            Transport::Http(http) => http.stream(path).await,
            Transport::Bridge(bridge) => bridge.stream(path),
        }
    }
}

#[derive(Clone)]
pub(super) struct Http {
    /// Pooled; replaced when the server may have been restarted.
    http: Arc<Mutex<reqwest::Client>>,
    /// Without a pool: every request gets a new connection.
    fresh: reqwest::Client,
    base: Url,
    login: Option<(String, String)>,
}

impl Http {
    /// A name and password in the address count for more than `login`.
    pub(super) fn new(address: &Url, login: Option<(String, String)>) -> Result<Http, Error> {
        let mut base = address.clone();
        let own = address
            .password()
            .map(|password| (decoded(address.username()), decoded(password)))
            .filter(|(name, _)| !name.is_empty());
        // Cannot fail for a URL with a host. The login travels in a header instead.
        let _ = base.set_username("");
        let _ = base.set_password(None);
        let broken = |error: reqwest::Error| Error::Broken(net::innermost(&error));
        Ok(Http {
            http: Arc::new(Mutex::new(builder(&base).build().map_err(broken)?)),
            fresh: builder(&base).pool_max_idle_per_host(0).build().map_err(broken)?,
            base,
            login: own.or(login),
        })
    }

    /// Drops all pooled connections: they may lead to a process that has ended, or was starting.
    fn renew(&self) {
        // One that was built can be built again.
        if let Ok(client) = builder(&self.base).build() {
            *self.http.lock() = client;
        }
    }

    async fn send(&self, call: Call) -> Result<Reply, Error> {
        let client = self.http.lock().clone();
        let request = self.request(&client, call.method, &call.path)?.timeout(CALL_TIMEOUT);
        let request = match call.body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body),
            None => request,
        };
        reply(request.send().await).await
    }

    async fn send_fresh(&self, path: &str, patience: Duration) -> Result<Reply, Error> {
        let request = self.request(&self.fresh, Method::GET, path)?.timeout(patience);
        reply(request.send().await).await
    }

    async fn stream(&self, path: &str) -> Result<Bytes, Error> {
        // Without a timeout: the stream is endless, and its reader watches the heartbeat.
        let request = self.request(&self.fresh, Method::GET, path)?;
        let request = request.header(ACCEPT, "text/event-stream");
        let response = request.send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(Error::Broken(format!("the event stream answers {}", response.status())));
        }
        let bytes = response.bytes_stream();
        Ok(bytes.map(|bytes| bytes.map(|b| b.to_vec()).map_err(failed)).boxed())
    }

    fn request(
        &self,
        client: &reqwest::Client,
        method: Method,
        path: &str,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let base = self.base.as_str().trim_end_matches('/');
        let url = Url::parse(&format!("{base}{path}"));
        let url = url.map_err(|error| Error::Broken(error.to_string()))?;
        let request = client.request(method, url);
        Ok(match &self.login {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        })
    }
}

fn builder(address: &Url) -> reqwest::ClientBuilder {
    let builder = if address.scheme() == "https" { net::public() } else { net::plain() };
    let here = matches!(address.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    // Traffic on this machine must not go through a configured proxy.
    let builder = if here { builder.no_proxy() } else { builder };
    builder.connect_timeout(LONGEST_CONNECT)
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

async fn reply(sent: Result<reqwest::Response, reqwest::Error>) -> Result<Reply, Error> {
    let response = sent.map_err(failed)?;
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_some_and(|kind| kind.starts_with("application/json"));
    let status = response.status().as_u16();
    let body = response.bytes().await.map_err(failed)?.to_vec();
    Ok(Reply { status, is_json, body })
}

fn failed(error: reqwest::Error) -> Error {
    // The address may hold a password, and errors are logged.
    let error = error.without_url();
    match error.is_connect() {
        true => Error::Refused(net::innermost(&error)),
        false => Error::Broken(net::innermost(&error)),
    }
}
