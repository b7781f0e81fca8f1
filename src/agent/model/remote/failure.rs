//! Maps failures of a model server (status, headers, error body, network errors) to our errors, and says
//! which are worth a retry and when. Every text is redacted: servers echo headers and URLs, and with them
//! the key or password.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use jiff::fmt::rfc2822;
use percent_encoding::percent_decode_str;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{StatusCode, Url};
use serde_json::Value;

use crate::agent::model::Error;
use crate::net::innermost;
use crate::text::clip;

/// How much of a server's message is repeated; some answer with a whole HTML page.
const TEXT_CHARACTERS: usize = 500;
/// Secrets shorter than this are not redacted: they are placeholders such as `none`, which may be a word
/// of the message.
const SECRET_CHARACTERS: usize = 8;
const UNREADABLE: &str = "its answer is not readable";

/// Makes errors from failures, without the secrets it knows. Cloning it is cheap.
#[derive(Clone)]
pub(super) struct ErrorMapper(Arc<ErrorContext>);

/// What errors of one provider have in common.
struct ErrorContext {
    /// The server's address, without login and query.
    place: String,
    /// The setting that its address comes from.
    setting: String,
    /// The key and the login of the address, plain and as they are sent (base64).
    secrets: Vec<String>,
    silence: Duration,
}

/// The error types that providers send inside a stream, where there is no status, and the status each
/// would have had.
const WORDS: [(&str, u16); 13] = [
    ("overloaded_error", 529),
    ("timeout_error", 504),
    ("api_error", 500),
    ("server_error", 500),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("request_too_large", 413),
    ("not_found_error", 404),
    ("permission_error", 403),
    ("authentication_error", 401),
    ("invalid_request_error", 400),
    ("invalid_prompt", 400),
    ("context_length_exceeded", 400),
];

/// Whether a refusal is about the key, so that another key may help. Gemini answers a bad key with 400.
pub(super) fn is_about_the_key(status: StatusCode, said: &str) -> bool {
    match status.as_u16() {
        401 | 403 => true,
        400 => said.contains("API_KEY_INVALID") || said.contains("API key not valid"),
        _ => false,
    }
}

impl ErrorMapper {
    pub(super) fn new(url: &Url, setting: &str, key: &str, silence: Duration) -> ErrorMapper {
        let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
        let place = place.trim_end_matches('/').to_owned();
        let setting = setting.to_owned();
        ErrorMapper(Arc::new(ErrorContext { place, setting, secrets: secrets(url, key), silence }))
    }

    /// A request that got no response, or a response that broke off.
    pub(super) fn transport(&self, error: &reqwest::Error) -> Error {
        if error.is_body() || error.is_decode() {
            return Error::Truncated;
        }
        // The request itself cannot be built, and a retry would not change that.
        if error.is_builder() {
            return Error::Unusable(self.redact(&innermost(error)));
        }
        let cause = self.redact(&innermost(error));
        Error::Unreachable(format!("`{}`: {cause}", self.0.place))
    }

    /// A redirect. It is not followed, because the server it leads to would be sent the key.
    pub(super) fn redirect(&self, status: StatusCode, to: Option<&str>) -> Error {
        let to = to.and_then(|to| Url::parse(&self.0.place).ok()?.join(to).ok());
        let to = to.map_or("elsewhere".to_owned(), |to| {
            format!("to `{}{}`", to.origin().ascii_serialization(), to.path())
        });
        let message = format!(
            "it redirects {}; set `{}` to the address that answers itself",
            self.redact(&to),
            self.0.setting
        );
        Error::Refused { status: status.as_u16(), message }
    }

    /// A response that is not in the wire format.
    pub(super) fn unreadable() -> Error {
        busy(UNREADABLE.to_owned(), None)
    }

    /// A server that has sent nothing for too long.
    pub(super) fn silence(&self) -> Error {
        Error::Silent(self.0.silence)
    }

    /// A response with an error status.
    pub(super) fn status(
        &self,
        status: StatusCode,
        body: &str,
        retry_after: Option<Duration>,
    ) -> Error {
        let body = self.redact(body);
        let parsed = serde_json::from_str::<Value>(&body).ok();
        let retry_after = retry_after.or_else(|| parsed.as_ref().and_then(retry_in_body));
        // Redacted again: in the raw JSON a key may have been escaped and so missed before.
        let mut message = self.redact(&said(parsed.as_ref(), &body));
        if message.is_empty() {
            message = status.canonical_reason().unwrap_or("it gave no reason").to_owned();
        }
        match status.as_u16() {
            // Timeout, conflict, rate limit and server errors pass; everything else is final.
            408 | 409 | 429 | 500.. => busy(message, retry_after),
            status => Error::Refused { status, message },
        }
    }

    /// An error inside a stream. Its status is guessed from the number or word in the body; without any
    /// it counts as a server error, which is retried.
    pub(super) fn in_stream(&self, body: &Value, retry_after: Option<Duration>) -> Error {
        let fields = ["code", "status", "type"].iter().filter_map(|name| body.get(name));
        let status = fields.filter_map(|field| {
            let code = match field {
                Value::String(text) => {
                    let known = WORDS.iter().find(|(word, _)| word == text);
                    known.map(|(_, status)| *status).or_else(|| text.parse().ok())
                }
                _ => field.as_u64().and_then(|code| u16::try_from(code).ok()),
            };
            code.filter(|code| (400..600).contains(code))
        });
        let status = status.filter_map(|code| StatusCode::from_u16(code).ok()).next();
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.status(status, &body.to_string(), retry_after)
    }

    /// Replaces every known secret by `***`.
    fn redact(&self, text: &str) -> String {
        let strike = |text: String, secret: &String| text.replace(secret, "***");
        self.0.secrets.iter().fold(text.to_owned(), strike)
    }
}

/// Everything that must not appear in a text, plain and in base64: a server that echoes an
/// `Authorization: Basic` header shows the login encoded, which anybody can decode.
fn secrets(url: &Url, key: &str) -> Vec<String> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let password = url.password().map(decoded).unwrap_or_default();
    let login = format!("{}:{password}", decoded(url.username()));
    let mut secrets: Vec<String> = Vec::new();
    // With `https://KEY@host` the user name is the secret.
    let name = Some(decoded(url.username())).filter(|_| password.is_empty()).unwrap_or_default();
    for secret in [key, &password, &login, &name] {
        if secret.len() >= SECRET_CHARACTERS {
            secrets.push(STANDARD_NO_PAD.encode(secret));
            secrets.push(URL_SAFE_NO_PAD.encode(secret));
            secrets.push(secret.to_owned());
        }
    }
    // Longest first: if a secret contains another, replacing the shorter one first would leave the rest
    // of the longer one unrecognized.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

fn busy(message: String, retry_after: Option<Duration>) -> Error {
    Error::Busy { message, retry_after }
}

/// The message in an error body, wherever the server puts it; else the body itself. On one line.
fn said(parsed: Option<&Value>, body: &str) -> String {
    let places = ["/error/message", "/0/error/message", "/error", "/message", "/detail", ""];
    let message = parsed.and_then(|parsed| {
        places.iter().find_map(|place| parsed.pointer(place).and_then(Value::as_str))
    });
    let line = message.unwrap_or(body).split_whitespace().collect::<Vec<_>>().join(" ");
    clip(&line, TEXT_CHARACTERS)
}

/// Google puts the pause before a retry into the body, as `"retryDelay": "7.5s"`.
fn retry_in_body(body: &Value) -> Option<Duration> {
    let places = ["/error/details", "/0/error/details", "/details"];
    let details = places.iter().find_map(|place| body.pointer(place)?.as_array())?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

/// The pause from the headers: `retry-after-ms`, or `Retry-After` in seconds or as a date. A date is
/// compared with the response's own `Date`, because the two clocks may differ.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |name: &str| text(name).and_then(|text| text.parse::<f64>().ok());
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0);
    if let Some(seconds) = seconds.or_else(|| number(RETRY_AFTER.as_str())) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = |name: &str| text(name).and_then(|text| rfc2822::parse(text).ok());
    let span = date(RETRY_AFTER.as_str())?.duration_since(&date(DATE.as_str())?);
    Duration::try_from(span).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "sk-very-secret";

    fn errors() -> ErrorMapper {
        let url = Url::parse("https://user:password@models.example:8443/v1/?token=hidden").unwrap();
        ErrorMapper::new(&url, "OPENAI_BASE_URL", KEY, Duration::from_secs(7))
    }

    fn check_status(status: u16, body: &str, expected: Error) {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(errors().status(status, body, None), expected);
    }

    fn refused(status: u16, message: &str) -> Error {
        Error::Refused { status, message: message.to_owned() }
    }

    #[test]
    fn a_status_says_whether_another_try_is_worth_it() {
        let body = r#"{"error": {"message": "so it is", "type": "x"}}"#;
        for status in [400, 401, 403, 404, 405, 413, 422] {
            check_status(status, body, refused(status, "so it is"));
        }
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            check_status(status, body, busy("so it is".to_owned(), None));
        }
    }

    #[test]
    fn the_message_is_found_wherever_a_server_puts_it() {
        check_status(400, r#"{"error": "plain"}"#, refused(400, "plain"));
        check_status(400, r#"{"message": "on top"}"#, refused(400, "on top"));
        check_status(400, r#"{"detail": "fastapi"}"#, refused(400, "fastapi"));
        check_status(400, "<html>\n <b>no</b>\n</html>", refused(400, "<html> <b>no</b> </html>"));
        check_status(404, "", refused(404, "Not Found"));
        let long = refused(400, &format!("{}…", "ä".repeat(TEXT_CHARACTERS)));
        check_status(400, &"ä".repeat(TEXT_CHARACTERS + 1), long);
    }

    #[test]
    fn an_error_within_a_stream_is_classified_by_its_code() {
        let error_of = |body: Value| errors().in_stream(&body, None);
        let again = busy("m".to_owned(), None);
        assert_eq!(error_of(json!({"message": "m"})), again);
        assert_eq!(error_of(json!({"message": "m", "code": 502})), again);
        assert_eq!(error_of(json!({"message": "m", "code": "server_error"})), again);
        assert_eq!(error_of(json!({"message": "m", "code": 400})), refused(400, "m"));
        assert_eq!(error_of(json!({"message": "m", "code": "404"})), refused(404, "m"));
        assert_eq!(error_of(json!("m")), again);
        assert_eq!(error_of(json!({"message": "m", "type": "overloaded_error"})), again);
        assert_eq!(error_of(json!({"message": "m", "code": "rate_limit_exceeded"})), again);
        let wrong = json!({"message": "m", "type": "invalid_request_error", "code": null});
        assert_eq!(error_of(wrong), refused(400, "m"));
        assert_eq!(error_of(json!({"message": "m", "status": "UNAVAILABLE", "code": 503})), again);
    }

    #[test]
    fn secrets_are_redacted_from_the_messages_of_a_server() {
        let body = json!({"error": {"message": format!("wrong key: {KEY}.")}}).to_string();
        check_status(401, &body, refused(401, "wrong key: ***."));
        let long = format!("{}{KEY}", "x".repeat(TEXT_CHARACTERS - 5));
        let cut = format!("{}***", "x".repeat(TEXT_CHARACTERS - 5));
        check_status(401, &long, refused(401, &cut));
    }

    #[test]
    fn a_login_is_redacted_in_plain_and_in_base64() {
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let login = base64("user:password");
        check_status(401, &format!("got `Basic {login}`"), refused(401, "got `Basic ***==`"));
        check_status(401, "no user:password here", refused(401, "no *** here"));
        check_status(401, &base64(KEY), refused(401, "***="));
        check_status(401, "no password", refused(401, "no ***"));
    }

    #[test]
    fn the_address_in_an_error_has_no_password_and_no_query() {
        assert_eq!(errors().0.place, "https://models.example:8443/v1");
    }

    #[test]
    fn the_retry_delay_is_also_read_from_the_body() {
        let delay =
            json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"});
        let error = json!({"code": 429, "message": "slow down", "details": [{"a": 1}, delay]});
        let expected = busy("slow down".to_owned(), Some(Duration::from_millis(7_500)));
        for body in [json!({"error": error}), json!([{"error": error}]), error] {
            check_status(429, &body.to_string(), expected.clone());
        }
    }

    #[test]
    fn the_retry_delay_is_read_from_either_header() {
        let check = |headers: &[(&'static str, &str)], expected: Option<u64>| {
            let headers =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let expected = expected.map(Duration::from_millis);
            assert_eq!(retry_after(&headers.collect()), expected);
        };
        check(&[], None);
        check(&[("retry-after-ms", "1500")], Some(1_500));
        check(&[("retry-after", "2")], Some(2_000));
        check(&[("retry-after", "0.25")], Some(250));
        check(&[("retry-after", "9"), ("retry-after-ms", "20")], Some(20));
        check(&[("retry-after", "soon")], None);
        check(&[("retry-after", "-1")], None);
        let date = ("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT");
        check(&[date], None);
        check(&[date, ("date", "Wed, 21 Oct 2015 07:28:00 GMT")], Some(30_000));
        check(&[date, ("date", "Wed, 21 Oct 2015 07:29:00 GMT")], None);
    }
}
