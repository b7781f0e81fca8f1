//! OpenAI-compatible model servers, through `genai`; its types do not leave this folder. It asks
//! once: whether a failure is worth another try is for the caller to say.

mod failure;
mod translate;

use std::time::Duration;

use futures_util::StreamExt;
use genai::adapter::AdapterKind;
use genai::chat::{CacheControl, ChatOptions, ChatStreamEvent, ReasoningEffort};
use genai::resolver::{AuthData, Endpoint};
use genai::{ModelIden, ServiceTarget};
use reqwest::Url;
use reqwest::header::HeaderValue;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use self::failure::Teller;
use super::{Error, Piece, Request, Sink};
use crate::net;

const PUBLIC: &str = "https://api.openai.com/v1";
/// What servers are shown that ask for no key.
const NO_KEY: &str = "none";
const CONNECT: Duration = Duration::from_secs(10);
/// A pooled connection that died with the network must not cost the whole silence.
const PING: Duration = Duration::from_secs(20);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Remote {
    client: genai::Client,
    endpoint: Endpoint,
    auth: AuthData,
    silence: Duration,
    teller: Teller,
}

/// Values of the environment. Not `Debug`: one is a secret.
#[derive(Clone, Default)]
pub struct Keys {
    /// `OPENAI_API_KEY`
    pub openai_key: Option<String>,
    /// `OPENAI_BASE_URL`, with its `/v1`
    pub openai_base_url: Option<String>,
}

impl Remote {
    /// A server that sends nothing for as long as `silence` is given up.
    pub fn new(keys: Keys, silence: Duration) -> Result<Remote, Error> {
        let key = given(&keys.openai_key);
        let url = match (given(&keys.openai_base_url), key) {
            (Some(url), _) => url,
            (None, Some(_)) => PUBLIC,
            (None, None) => {
                return Err(unusable(
                    "there is no key for `openai`; set `OPENAI_API_KEY`, \
                     or `OPENAI_BASE_URL` to a server that needs none",
                ));
            }
        };
        let url = parse(url)?;
        let key = key.unwrap_or(NO_KEY);
        if HeaderValue::from_str(key).is_err() {
            return Err(unusable(
                "`OPENAI_API_KEY` cannot be sent as it is; set it to the key alone",
            ));
        }
        Ok(Remote {
            client: client(&url)?,
            endpoint: Endpoint::from_owned(url.as_str()),
            auth: AuthData::from_single(key),
            silence,
            teller: Teller::new(&url, key, silence),
        })
    }

    /// Streams an answer into `sink`. Nobody at its other end is no failure.
    pub async fn answer(&self, request: Request, sink: Sink) -> Result<(), Error> {
        let answer = async {
            tokio::select! {
                biased;
                () = sink.closed() => Ok(()),
                end = self.stream(&request, &sink) => end,
            }
        };
        // `genai` logs what servers say in full, keys included, and warns of every empty chunk.
        answer.with_subscriber(NoSubscriber::new()).await
    }

    async fn stream(&self, request: &Request, sink: &Sink) -> Result<(), Error> {
        let target = ServiceTarget {
            endpoint: self.endpoint.clone(),
            auth: self.auth.clone(),
            model: ModelIden::new(AdapterKind::OpenAI, request.model.as_str()),
        };
        let (chat, options) = (translate::chat(request), options(self.silence));
        let response = self.client.exec_chat_stream(target, chat, Some(&options)).await;
        let mut stream = response.map_err(|error| self.teller.tell(error))?.stream;
        while let Some(event) = stream.next().await {
            let pieces = match event.map_err(|error| self.teller.tell(error))? {
                ChatStreamEvent::Chunk(chunk) => vec![Piece::Text(chunk.content)],
                ChatStreamEvent::ReasoningChunk(chunk) => vec![Piece::Thought(chunk.content)],
                ChatStreamEvent::End(end) => translate::ending(end, &request.messages)?,
                // Calls come whole with the end.
                ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::Start
                | ChatStreamEvent::Heartbeat => continue,
            };
            for piece in pieces {
                let last = matches!(piece, Piece::End(_));
                if sink.send(piece).await.is_err() || last {
                    return Ok(());
                }
            }
        }
        Err(Error::Truncated)
    }
}

fn client(url: &Url) -> Result<genai::Client, Error> {
    let builder = if url.scheme() == "http" { net::plain() } else { net::public() };
    let here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let builder = if here { builder.no_proxy() } else { builder };
    let http = builder
        .user_agent(concat!("asyncagents/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .build()
        .map_err(|error| Error::Unusable(failure::innermost(&error)))?;
    let client = genai::Client::builder().with_reqwest(http).build();
    client.map_err(|error| Error::Unusable(error.to_string()))
}

fn options(silence: Duration) -> ChatOptions {
    ChatOptions::default()
        .with_stream_header_timeout(silence)
        .with_stream_read_timeout(silence)
        .with_capture_usage(true)
        .with_capture_tool_calls(true)
        // Both say nothing to servers. Without the first a model called `x-max` is asked for as
        // `x` with an effort, without the second newer models do not cache what they have seen.
        .with_reasoning_effort(ReasoningEffort::Budget(0))
        .with_cache_control(CacheControl::Ephemeral5m)
}

/// `genai` replaces what follows the last slash, so there has to be one at the end.
fn parse(text: &str) -> Result<Url, Error> {
    // The value is not repeated: it may hold a password.
    let wrong = || {
        unusable("`OPENAI_BASE_URL` is no address; set it to one like `http://127.0.0.1:11434/v1`")
    };
    let mut url = Url::parse(text).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

/// An empty variable is one that was not set.
fn given(value: &Option<String>) -> Option<&str> {
    value.as_deref().map(str::trim).filter(|value| !value.is_empty())
}

fn unusable(text: &str) -> Error {
    Error::Unusable(text.to_owned())
}
