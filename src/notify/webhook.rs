//! The webhook: a POST of the JSON to one address, signed with HMAC-SHA256 over the time and the body, so
//! that a receiver can tell ours from others' and an old one from a new one. Redirects are not followed: the
//! body is for that address.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Url, redirect};
use ring::hmac;

use super::Error;
use crate::net;
use crate::task::Timestamp;
use crate::threads;

const LIMIT: Duration = Duration::from_secs(10);

/// Reads the secret; it may block, and its error never has the secret in it.
pub type Secret = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

pub struct Webhook {
    url: Url,
    secret: Secret,
    client: Client,
}

impl Webhook {
    /// `Err` says why there cannot be one at this address.
    pub fn new(url: &str, secret: Secret) -> Result<Webhook, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err("it has to begin with http:// or https://".to_owned());
        }
        let builder = if url.scheme() == "https" { net::public() } else { net::plain() };
        let client = builder.redirect(redirect::Policy::none()).timeout(LIMIT).build();
        Ok(Webhook { url, secret, client: client.map_err(|error| error.to_string())? })
    }

    pub(super) async fn post(&self, id: &str, body: &str, now: Timestamp) -> Result<(), Error> {
        let secret = Arc::clone(&self.secret);
        // Read for every attempt, so that a new one needs no restart.
        let secret = threads::run_blocking(move || secret()).await;
        let secret = secret.map_err(|error| Error::NoSecret(error.to_string()))?;
        let secret = secret.map_err(Error::NoSecret)?;
        let timestamp = (now.as_millis() / 1_000).to_string();
        // Ids of requests come from hosts: what could not stand in a header is left out.
        let key: String = id.chars().filter(char::is_ascii_graphic).collect();
        let request = self
            .client
            .post(self.url.clone())
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", key)
            .header("X-Asyncagents-Timestamp", &timestamp)
            .header("X-Asyncagents-Signature", signature(&secret, &timestamp, body))
            .body(body.to_owned());
        // Without the address, which may hold a token.
        let response = request.send().await;
        let response = response.map_err(|error| Error::Unreachable(error.without_url()))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(Error::Refused(status.as_u16())),
        }
    }
}

/// `sha256=` and the MAC of `timestamp.body` in hexadecimal.
fn signature(secret: &str, timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut context = hmac::Context::with_key(&key);
    for part in [timestamp, ".", body] {
        context.update(part.as_bytes());
    }
    let hex: String = context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_hmac_of_time_and_body() {
        // Computed with `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret`.
        let expected = "sha256=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(signature("secret", "1700000000", "{\"a\":1}"), expected);
    }

    #[test]
    fn only_http_and_https_addresses_are_accepted() {
        let check = |url: &str, expected: bool| {
            let secret: Secret = Arc::new(|| Ok("secret".to_owned()));
            assert_eq!(Webhook::new(url, secret).is_ok(), expected, "{url}");
        };
        check("http://127.0.0.1:1/hook", true);
        check("https://example.org/hook?x=1", true);
        check("file:///etc/passwd", false);
        check("example.org/hook", false);
        check("", false);
    }
}
