//! Model servers, whatever they speak: transport, bounds and time limits are here. It asks once, or with a key
//! that was replaced a second time: whether another failure is worth another try is for the caller to say. Everything a server sends is bounded here, before it is taken apart.

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

use self::failure::Teller;
use self::wire::{Decoder, Heard};
use super::provider::{Provider, Wire};
use super::{Effort, Error, Price, Request, Sink};
use crate::net;
use crate::sse::{Frames, TooLong};
use crate::threads;

pub use self::list::ModelList;

/// What servers are shown that ask for no key.
const NO_KEY: &str = "none";
const CONNECT: Duration = Duration::from_secs(10);
/// A pooled connection that died with the network must not cost the whole silence.
const PING: Duration = Duration::from_secs(20);
/// After a finish reason servers only send what the answer cost.
const AFTER_FINISH: Duration = Duration::from_secs(2);
/// Empty events and comments keep a connection alive, but not for ever: so many times the silence.
const PATIENCE: u32 = 10;
/// Of what a server says about its refusal.
const REFUSAL_BYTES: usize = 64 * 1024;
/// A byte of an answer takes at most six on the wire, as `\u0007`; and there is something around it.
const WIRE: usize = 6;
const AROUND: usize = 64 * 1024;
/// JSON from this size on is read on a thread of its own.
const LARGE: usize = 1 << 20;
const ANSWER_BYTES: usize = 8 << 20;

/// The connection to one provider.
pub struct Remote {
    client: reqwest::Client,
    provider: String,
    is_public: bool,
    wire: Wire,
    /// With the version of its API.
    base: Url,
    headers: HeaderMap,
    silence: Duration,
    answer_bytes: usize,
    effort: Option<Effort>,
    teller: Teller,
    /// Its key was not accepted.
    is_stale: AtomicBool,
    /// Where the key is read.
    source: Provider,
    /// The same with the key that was there after this one was not accepted.
    renewed: OnceLock<Arc<Remote>>,
}

impl Remote {
    /// A server that sends nothing for as long as `silence` is given up. This may read the key from
    /// where it is: call it on a thread that may block.
    pub fn new(provider: &Provider, silence: Duration) -> Result<Remote, Error> {
        let key = provider.read_key()?;
        let key = key.as_deref().unwrap_or(NO_KEY);
        let base = provider.url()?;
        let mut headers = HeaderMap::new();
        for (name, value) in provider.wire.headers(key) {
            let value = HeaderValue::from_str(&value);
            let mut value = value.map_err(|_| provider.unsendable_key())?;
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
            effort: None,
            teller: Teller::new(&base, &provider.url_setting(), key, silence),
            base,
            is_stale: AtomicBool::new(false),
            source: provider.clone(),
            renewed: OnceLock::new(),
        })
    }

    /// Whether the server has refused the key: it may have been replaced where it was read.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// What one of its models costs, where that is known.
    pub fn price(&self, model: &str) -> Option<Price> {
        Price::known(&self.provider, model).filter(|_| self.is_public)
    }

    /// Asks its models to think this much; without, they do as they do by themselves.
    pub fn thinking(self, effort: Option<Effort>) -> Remote {
        Remote { effort, ..self }
    }

    /// With another bound on text, thoughts and arguments of one answer.
    pub fn bounded(self, answer_bytes: usize) -> Remote {
        Remote { answer_bytes, ..self }
    }

    /// Streams an answer into `sink`. Nobody at its other end is no failure.
    pub async fn answer(&self, request: Request, sink: Sink) -> Result<(), Error> {
        tokio::select! {
            biased;
            () = sink.closed() => Ok(()),
            end = self.stream_or_renew(&request, &sink) => end,
        }
    }

    /// A key that is refused may have been replaced where it was read: then the request is made again, once.
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

    /// `None` when the key is the same as before, or cannot be read.
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
            // It does not stream; the answer is one event.
            let body = self.read(&mut response, most).await?;
            self.event(&mut decoder, body, sink).await?;
            return self.end(decoder, request, sink).await;
        }
        let mut frames = Frames::new(most);
        let too_long = |TooLong| Error::TooLong(self.answer_bytes);
        let mut alive = Instant::now();
        let mut finished_at = None;
        'stream: loop {
            loop {
                let next = match frames.next_event().map_err(too_long) {
                    Ok(Some(data)) => self.event(&mut decoder, data, sink).await,
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                match next {
                    Ok(Said::Something) => alive = Instant::now(),
                    Ok(Said::Nothing) => {}
                    Ok(Said::Done) => break 'stream,
                    // Whatever comes after a finish reason: it has ended the answer (T6).
                    Err(_) if decoder.has_finished() => break 'stream,
                    Err(error) => return Err(error),
                }
            }
            if alive.elapsed() > self.silence * PATIENCE {
                return Err(self.teller.silent());
            }
            let finished = decoder.has_finished();
            let until = match finished {
                true => *finished_at.get_or_insert(Instant::now()) + AFTER_FINISH.min(self.silence),
                false => Instant::now() + self.silence,
            };
            match timeout_at(until, response.chunk()).await {
                Ok(Ok(Some(bytes))) => frames.add(bytes),
                Ok(Ok(None)) | Ok(Err(_)) | Err(_) if finished => break,
                Ok(Ok(None)) => {
                    if let Some(data) = frames.last_event().map_err(too_long)? {
                        self.event(&mut decoder, data, sink).await?;
                    }
                    break;
                }
                Ok(Err(error)) => return Err(self.teller.tell(&error)),
                Err(_) => return Err(self.teller.silent()),
            }
        }
        self.end(decoder, request, sink).await
    }

    /// Who answers; what it seals only it can open.
    fn by(&self, request: &Request) -> String {
        format!("{}/{}", self.provider, request.model)
    }

    fn decoder(&self, request: &Request) -> Decoder {
        Decoder::new(self.wire, self.teller.clone(), &self.by(request), self.answer_bytes)
    }

    async fn send(&self, request: &Request) -> Result<Response, Error> {
        let by = self.by(request);
        let body = threads::in_place(|| {
            Bytes::from(self.wire.body(request, &by, self.effort).to_string())
        });
        let url = self.wire.url(&self.base, &request.model);
        let url = url.ok_or_else(|| unusable("it has no address"))?;
        self.succeed(self.client.post(url).headers(self.headers.clone()).body(body)).await
    }

    /// Sends a request; what is no success is told as an error.
    async fn succeed(&self, request: reqwest::RequestBuilder) -> Result<Response, Error> {
        let response = match timeout(self.silence, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.teller.tell(&error)),
            Err(_) => return Err(self.teller.silent()),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            return Err(self.teller.tell_redirect(status, to));
        }
        let retry_after = failure::retry_after(response.headers());
        let said = refusal(response, self.silence).await;
        let said = String::from_utf8_lossy(&said);
        if failure::is_about_the_key(status, &said) {
            self.is_stale.store(true, Ordering::Relaxed);
        }
        Err(self.teller.tell_status(status, &said, retry_after))
    }

    /// A whole body, within a bound.
    async fn read(&self, response: &mut Response, most: usize) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        loop {
            match timeout(self.silence, response.chunk()).await {
                Ok(Ok(Some(bytes))) if body.len() + bytes.len() > most => {
                    return Err(Error::TooLong(self.answer_bytes));
                }
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(error)) => return Err(self.teller.tell(&error)),
                Err(_) => return Err(self.teller.silent()),
            }
        }
    }

    async fn event(
        &self,
        decoder: &mut Decoder,
        data: Vec<u8>,
        sink: &Sink,
    ) -> Result<Said, Error> {
        let held = decoder.held();
        let heard = if data.len() < LARGE {
            decoder.event(&data)?
        } else {
            let empty = Decoder::new(self.wire, self.teller.clone(), "", self.answer_bytes);
            let mut apart = std::mem::replace(decoder, empty);
            let read = threads::apart(move || (apart.event(&data), apart)).await;
            let (heard, back) = read.map_err(|stuck| unusable(&stuck.to_string()))?;
            *decoder = back;
            heard?
        };
        let pieces = match heard {
            Heard::Done => return Ok(Said::Done),
            Heard::Pieces(pieces) => pieces,
        };
        let is_new = !pieces.is_empty() || decoder.held() > held;
        let said = if is_new { Said::Something } else { Said::Nothing };
        for piece in pieces {
            // Nobody listens any more: `answer` notices.
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

/// Whether an event brought something of the answer.
enum Said {
    Something,
    Nothing,
    Done,
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().starts_with("application/json"))
}

/// What a server says about its refusal, as far as it says it in time.
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

fn client(url: &Url) -> Result<reqwest::Client, Error> {
    let builder = if url.scheme() == "http" { net::plain() } else { net::public() };
    let builder = if net::is_loopback(url) { builder.no_proxy() } else { builder };
    let client = builder
        .user_agent(concat!("asyncagents/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .build();
    client.map_err(|error| Error::Unusable(failure::innermost(&error)))
}

fn unusable(text: &str) -> Error {
    Error::Unusable(text.to_owned())
}
