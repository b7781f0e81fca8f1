//! The HTTP client for model servers, for all wire formats: transport, streaming, time limits and size
//! limits. It sends a request once, or twice if the key was refused and has been replaced since; other
//! retries are the caller's decision. Everything a server sends is bounded before it is parsed. A stream
//! counts as hung when nothing of the answer comes for a while, even if comments keep it alive.

mod draft;
mod failure;
mod list;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Response, Url, redirect};
use tokio::time::{Instant, timeout, timeout_at};

use self::failure::ErrorMapper;
use self::wire::{Decoder, StreamEvent};
use super::provider::{Provider, Wire};
use super::{Effort, Error, Price, Request, Sink};
use crate::net;
use crate::sse::{SseParser, TooLong};
use crate::threads;

pub use self::list::ModelList;

/// The key for servers that need none.
const NO_KEY: &str = "none";
const CONNECT: Duration = Duration::from_secs(10);
/// How long to wait for the token usage after the finish reason; nothing else comes after that.
const AFTER_FINISH: Duration = Duration::from_secs(2);
/// Empty events and comments keep a stream alive, but only for this many times the `silence`.
const SILENCE_FACTOR: u32 = 10;
/// How much of an error response is read.
const REFUSAL_BYTES: usize = 64 * 1024;
/// A byte of an answer takes at most six on the wire (`\u0007`), plus the JSON around it.
const WIRE: usize = 6;
const AROUND: usize = 64 * 1024;
/// Events from this size on are parsed on a blocking thread.
const LARGE: usize = 1 << 20;
const ANSWER_BYTES: usize = 8 << 20;

/// The connection to one provider, with one key.
pub struct Remote {
    client: reqwest::Client,
    provider: String,
    is_public: bool,
    wire: Wire,
    /// Its base address, with the version of its API.
    base: Url,
    headers: HeaderMap,
    silence: Duration,
    answer_bytes: usize,
    effort: Effort,
    errors: ErrorMapper,
    /// The server refused the key.
    is_stale: AtomicBool,
    /// For reading the key again.
    source: Provider,
    /// The same connection with the new key, opened after this one's key was refused. Runs that still
    /// hold this connection use it.
    renewed: OnceLock<Arc<Remote>>,
}

impl Remote {
    /// Requests fail when the server sends nothing for as long as `silence`. Blocking: it may read the key
    /// from a file or a command.
    pub fn new(provider: &Provider, silence: Duration) -> Result<Remote, Error> {
        let key = provider.read_key()?;
        let key = key.as_deref().unwrap_or(NO_KEY);
        let base = provider.url()?;
        let mut headers = HeaderMap::new();
        for (name, value) in provider.wire.headers(key) {
            let value = HeaderValue::from_str(&value);
            let mut value = value.map_err(|_| provider.unsendable_key())?;
            // Keeps the key out of debug output of the HTTP library.
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Remote {
            client: client(&base)?,
            provider: provider.name.clone(),
            is_public: provider.is_public(),
            wire: provider.wire,
            headers,
            silence,
            answer_bytes: ANSWER_BYTES,
            effort: Effort::Default,
            errors: ErrorMapper::new(&base, &provider.url_setting(), key, silence),
            base,
            is_stale: AtomicBool::new(false),
            source: provider.clone(),
            renewed: OnceLock::new(),
        })
    }

    /// Whether the server has refused the key. It may have been replaced since, so the connection is worth
    /// opening again.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// The price of one of its models, if it is known.
    pub fn price(&self, model: &str) -> Option<Price> {
        Price::known(&self.provider, model).filter(|_| self.is_public)
    }

    /// With a reasoning effort.
    pub fn thinking(self, effort: Effort) -> Remote {
        Remote { effort, ..self }
    }

    /// With another limit on the text, thoughts and arguments of one answer, in bytes.
    pub fn bounded(self, answer_bytes: usize) -> Remote {
        Remote { answer_bytes, ..self }
    }

    /// Streams an answer into `sink`. If its receiver is dropped, the request is cancelled, which is no
    /// error.
    pub async fn answer(&self, request: Request, sink: Sink) -> Result<(), Error> {
        tokio::select! {
            biased;
            () = sink.closed() => Ok(()),
            end = self.stream_or_renew(&request, &sink) => end,
        }
    }

    /// Streams an answer. If the key is refused and has been replaced since it was read, sends the request
    /// once more with the new one.
    async fn stream_or_renew(&self, request: &Request, sink: &Sink) -> Result<(), Error> {
        if let Some(renewed) = self.renewed.get() {
            return renewed.stream(request, sink).await;
        }
        let refused = match self.stream(request, sink).await {
            Err(error @ Error::Refused { .. }) if self.is_stale() => error,
            other => return other,
        };
        match self.renew().await {
            Some(renewed) => renewed.stream(request, sink).await,
            None => Err(refused),
        }
    }

    /// The connection with the new key; `None` when the key is still the same or cannot be read.
    async fn renew(&self) -> Option<Arc<Remote>> {
        let (source, silence) = (self.source.clone(), self.silence);
        let made = threads::within(threads::LIMIT, move || Remote::new(&source, silence)).await;
        let made = made.ok()?.ok().filter(|made| made.headers != self.headers)?;
        let made = Arc::new(made.bounded(self.answer_bytes).thinking(self.effort));
        Some(Arc::clone(self.renewed.get_or_init(|| made)))
    }

    async fn stream(&self, request: &Request, sink: &Sink) -> Result<(), Error> {
        let mut response = self.send(request).await?;
        let most = self.answer_bytes.saturating_mul(WIRE).saturating_add(AROUND);
        let mut decoder = self.decoder(request);
        decoder.set_retry_after(failure::retry_after(response.headers()));
        if is_json(&response) {
            // The server ignores `stream`: the whole answer comes as one document.
            let body = self.read(&mut response, most).await?;
            self.event(&mut decoder, body, sink).await?;
            return self.end(decoder, request, sink).await;
        }
        let mut parser = SseParser::new(most);
        let too_long = |TooLong| Error::TooLong(self.answer_bytes);
        let mut alive = Instant::now();
        let mut finished_at = None;
        'stream: loop {
            loop {
                let next = match parser.next_event().map_err(too_long) {
                    Ok(Some(data)) => self.event(&mut decoder, data, sink).await,
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                match next {
                    Ok(Progress::Something) => alive = Instant::now(),
                    Ok(Progress::Nothing) => {}
                    Ok(Progress::Done) => break 'stream,
                    // After the finish reason the answer is complete, whatever is wrong with the rest (T6).
                    Err(_) if decoder.has_finished() => break 'stream,
                    Err(error) => return Err(error),
                }
            }
            if alive.elapsed() > self.silence * SILENCE_FACTOR {
                return Err(self.errors.silence());
            }
            let finished = decoder.has_finished();
            // One deadline for all that follows the finish reason, or a server that keeps sending
            // comments would hold up a finished answer.
            let until = match finished {
                true => *finished_at.get_or_insert(Instant::now()) + AFTER_FINISH.min(self.silence),
                false => Instant::now() + self.silence,
            };
            match timeout_at(until, response.chunk()).await {
                Ok(Ok(Some(bytes))) => parser.add(bytes),
                Ok(Ok(None)) | Ok(Err(_)) | Err(_) if finished => break,
                Ok(Ok(None)) => {
                    if let Some(data) = parser.last_event().map_err(too_long)? {
                        self.event(&mut decoder, data, sink).await?;
                    }
                    break;
                }
                Ok(Err(error)) => return Err(self.errors.transport(&error)),
                Err(_) => return Err(self.errors.silence()),
            }
        }
        self.end(decoder, request, sink).await
    }

    /// The `provider/model` that answers, for its seals: only it can use them again.
    fn by(&self, request: &Request) -> String {
        format!("{}/{}", self.provider, request.model)
    }

    fn decoder(&self, request: &Request) -> Decoder {
        Decoder::new(self.wire, self.errors.clone(), &self.by(request), self.answer_bytes)
    }

    async fn send(&self, request: &Request) -> Result<Response, Error> {
        let by = self.by(request);
        // Serializing a long conversation would hold up everybody else on this worker thread.
        let body = threads::in_place(|| {
            Bytes::from(self.wire.body(request, &by, self.effort).to_string())
        });
        let url = self.wire.url(&self.base, &request.model);
        let url = url.ok_or_else(|| unusable("it has no address"))?;
        self.succeed(self.client.post(url).headers(self.headers.clone()).body(body)).await
    }

    /// Sends a request; a response without success is an error.
    async fn succeed(&self, request: reqwest::RequestBuilder) -> Result<Response, Error> {
        let response = match timeout(self.silence, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.errors.transport(&error)),
            Err(_) => return Err(self.errors.silence()),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            return Err(self.errors.redirect(status, to));
        }
        let retry_after = failure::retry_after(response.headers());
        let said = refusal(response, self.silence).await;
        let said = String::from_utf8_lossy(&said);
        // Has the connection opened again with the key as it is then.
        if failure::is_about_the_key(status, &said) {
            self.is_stale.store(true, Ordering::Relaxed);
        }
        Err(self.errors.status(status, &said, retry_after))
    }

    /// Reads a whole body, of at most `most` bytes.
    async fn read(&self, response: &mut Response, most: usize) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        loop {
            match timeout(self.silence, response.chunk()).await {
                Ok(Ok(Some(bytes))) if body.len() + bytes.len() > most => {
                    return Err(Error::TooLong(self.answer_bytes));
                }
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(error)) => return Err(self.errors.transport(&error)),
                Err(_) => return Err(self.errors.silence()),
            }
        }
    }

    /// Decodes one event and sends its pieces.
    async fn event(
        &self,
        decoder: &mut Decoder,
        data: Vec<u8>,
        sink: &Sink,
    ) -> Result<Progress, Error> {
        let held = decoder.held();
        let heard = if data.len() < LARGE {
            decoder.event(&data)?
        } else {
            // The decoder is moved to the thread and back; an empty one takes its place meanwhile.
            let empty = Decoder::new(self.wire, self.errors.clone(), "", self.answer_bytes);
            let mut apart = std::mem::replace(decoder, empty);
            let read = threads::run_blocking(move || (apart.event(&data), apart)).await;
            let (heard, back) = read.map_err(|stuck| unusable(&stuck.to_string()))?;
            *decoder = back;
            heard?
        };
        let pieces = match heard {
            StreamEvent::Done => return Ok(Progress::Done),
            StreamEvent::Pieces(pieces) => pieces,
        };
        let is_new = !pieces.is_empty() || decoder.held() > held;
        let said = if is_new { Progress::Something } else { Progress::Nothing };
        for piece in pieces {
            // An error means that the receiver is gone; `answer` notices that and cancels.
            let _ = sink.send(piece).await;
        }
        Ok(said)
    }

    async fn end(&self, decoder: Decoder, request: &Request, sink: &Sink) -> Result<(), Error> {
        for piece in decoder.ending(&request.messages)? {
            let _ = sink.send(piece).await;
        }
        Ok(())
    }
}

/// Whether an event brought anything of the answer.
enum Progress {
    Something,
    Nothing,
    Done,
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().starts_with("application/json"))
}

/// The body of an error response, as far as it comes in time and fits.
async fn refusal(mut response: Response, patience: Duration) -> Vec<u8> {
    let deadline = Instant::now() + patience;
    let mut said = Vec::new();
    while said.len() < REFUSAL_BYTES
        && let Ok(Ok(Some(bytes))) = timeout_at(deadline, response.chunk()).await
    {
        said.extend_from_slice(&bytes[..bytes.len().min(REFUSAL_BYTES - said.len())]);
    }
    said
}

/// The HTTP client for an address: no redirects (they would be sent the key), and no proxy for this
/// machine. A pooled connection that died with the network is noticed by the time-outs of TCP that reqwest sets, in
/// less than a minute.
fn client(url: &Url) -> Result<reqwest::Client, Error> {
    let builder = if url.scheme() == "http" { net::plain() } else { net::public() };
    let builder = if net::is_loopback(url) { builder.no_proxy() } else { builder };
    let client = builder
        .user_agent(concat!("asyncagents/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT)
        .build();
    client.map_err(|error| Error::Unusable(net::innermost(&error)))
}

fn unusable(text: &str) -> Error {
    Error::Unusable(text.to_owned())
}
