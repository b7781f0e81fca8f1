//! Authorisation of the dashboard: a one-time code, given out over the socket, which the page exchanges for a
//! token of its own. Both are kept in memory: a restart revokes them.
//!
//! The page gets a code and not the token of the file, because the code travels through a command line (that of
//! the browser), where other processes can see it: it is valid once and for a minute. The token is bound to pages of
//! this origin, to the verbs of the page (`guard.rs`), and to what the page sends with them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::error::ApiError;
use super::{Api, LARGEST_BODY};
use crate::clock::Clock;
use crate::task::{Door, SHELL};
use crate::wire::{DashCodeView, DashTokenRequest, DashTokenView};

/// Where a page exchanges its code: the one change over TCP that needs no token.
pub(super) const EXCHANGE: &str = "/v1/dash/token";

const CODE_LIFE: Duration = Duration::from_secs(60);
const TOKEN_LIFE: Duration = Duration::from_secs(12 * 3600);
/// How many of each are kept, the newest ones.
const MOST: usize = 32;

/// The codes and tokens that were given out. Cloning it is cheap.
#[derive(Clone)]
pub struct PageTokens {
    clock: Clock,
    given: Arc<Mutex<IssuedSecrets>>,
}

#[derive(Default)]
struct IssuedSecrets {
    codes: VecDeque<Secret>,
    tokens: VecDeque<Secret>,
}

struct Secret {
    text: String,
    /// On the clock's uptime, which does not jump.
    expires: Duration,
}

impl PageTokens {
    pub fn new(clock: Clock) -> PageTokens {
        PageTokens { clock, given: Arc::default() }
    }

    fn new_code(&self) -> String {
        let code = self.clock.nonce();
        let expires = self.clock.uptime() + CODE_LIFE;
        add(&mut self.given.lock().codes, Secret { text: code.clone(), expires });
        code
    }

    /// Uses up a code and returns the token it is exchanged for; `None` when there is no such code.
    fn exchange(&self, code: &str) -> Option<String> {
        let now = self.clock.uptime();
        let mut given = self.given.lock();
        let at = find(&given.codes, code.as_bytes(), now)?;
        given.codes.remove(at);
        let token = self.clock.nonce();
        add(&mut given.tokens, Secret { text: token.clone(), expires: now + TOKEN_LIFE });
        Some(token)
    }

    pub(super) fn is_known(&self, token: &[u8]) -> bool {
        find(&self.given.lock().tokens, token, self.clock.uptime()).is_some()
    }
}

fn add(secrets: &mut VecDeque<Secret>, new: Secret) {
    secrets.push_back(new);
    while secrets.len() > MOST {
        secrets.pop_front();
    }
}

fn find(secrets: &VecDeque<Secret>, text: &[u8], now: Duration) -> Option<usize> {
    let is_it = |secret: &Secret| now < secret.expires && same(text, secret.text.as_bytes());
    secrets.iter().position(is_it)
}

/// Compares in constant time, so that a token cannot be guessed byte by byte from how long a refusal takes.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}

/// What a page may do with its token: the verbs it has buttons for.
pub(super) fn is_verb_of_the_page(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    method == Method::POST
        && matches!(
            parts[..],
            ["v1", "tasks" | "cancel"]
                | ["v1", "permissions", _]
                | ["v1", "tasks", _, "send" | "resume" | "retry"]
        )
}

/// Credentials, notices and conversations of others, and all tasks at once: the page has no buttons for these.
const NOT_OF_THE_PAGE: [&str; 4] = ["handOver", "heirOf", "forkSession", "all"];

/// A request with the token of a page, as the page's user: it cannot speak for another caller, nor answer by
/// another door.
pub(super) async fn as_the_page(request: Request) -> Result<Request, ApiError> {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST_BODY).await.map_err(|error| {
        ApiError::with_status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body cannot be read, or has more than {LARGEST_BODY} bytes: {error}"),
        )
    })?;
    // What is passed on is written anew: the handlers see what was checked here, and nothing else.
    let fields: Map<String, Value> = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("the body is no JSON object: {error}")))?;
    let fields = limited(parts.uri.path(), fields)?;
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Request::from_parts(parts, Value::Object(fields).to_string().into()))
}

fn limited(path: &str, mut fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let caller = fields.remove("caller").unwrap_or_default();
    let is_given = |name: &&str| fields.contains_key(*name) || caller.get(name).is_some();
    if let Some(name) = NOT_OF_THE_PAGE.into_iter().find(is_given) {
        return Err(ApiError::with_status(
            StatusCode::FORBIDDEN,
            format!("the dashboard may not send `{name}`; use the command line"),
        ));
    }
    if path.starts_with("/v1/permissions/") {
        fields.insert("door".into(), json!(Door::Dashboard));
        fields.insert("by".into(), json!(SHELL));
    } else {
        let directory = caller.get("directory").cloned().unwrap_or_else(|| json!(""));
        fields.insert("caller".into(), json!({ "sessionID": SHELL, "directory": directory }));
    }
    Ok(fields)
}

pub(super) async fn code(State(api): State<Api>) -> Json<DashCodeView> {
    Json(DashCodeView { code: api.pages.new_code(), expires_in: CODE_LIFE.as_secs() })
}

pub(super) async fn token(
    State(api): State<Api>,
    Body(request): Body<DashTokenRequest>,
) -> Result<Json<DashTokenView>, ApiError> {
    match api.pages.exchange(&request.code) {
        Some(token) => Ok(Json(DashTokenView { token, expires_in: TOKEN_LIFE.as_secs() })),
        None => Err(ApiError::with_status(
            StatusCode::FORBIDDEN,
            "this code was used before or is older than a minute; run `asyncagents dash` for a new one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Timestamp;

    fn pages() -> (Clock, PageTokens) {
        let clock = Clock::manual(Timestamp::from_millis(0));
        (clock.clone(), PageTokens::new(clock))
    }

    #[test]
    fn a_code_is_exchanged_once_and_within_a_minute() {
        let (clock, pages) = pages();
        let [used, late] = [pages.new_code(), pages.new_code()];
        assert_eq!(pages.exchange(&used[1..]), None, "part of a code is none");
        let token = pages.exchange(&used).unwrap();
        assert_eq!(pages.exchange(&used), None, "it was used");
        clock.advance(CODE_LIFE);
        assert_eq!(pages.exchange(&late), None, "it is too old");
        let known = [&*token, &token[1..], &used, &late, ""];
        let known = known.map(|token| pages.is_known(token.as_bytes()));
        assert_eq!(known, [true, false, false, false, false]);
    }

    #[test]
    fn a_token_expires_and_the_oldest_give_way_to_new_ones() {
        let (clock, pages) = pages();
        let token = || pages.exchange(&pages.new_code()).unwrap();
        let first = token();
        clock.advance(TOKEN_LIFE - Duration::from_millis(1));
        assert!(pages.is_known(first.as_bytes()));
        clock.advance(Duration::from_millis(1));
        assert!(!pages.is_known(first.as_bytes()));
        let tokens: Vec<String> = (0..=MOST).map(|_| token()).collect();
        let known: Vec<bool> =
            tokens.iter().map(|token| pages.is_known(token.as_bytes())).collect();
        assert_eq!((known[0], known[1..].iter().all(|known| *known)), (false, true));
    }

    #[test]
    fn a_page_may_do_what_it_has_buttons_for_and_nothing_else() {
        let may = |method: Method, path: &str| is_verb_of_the_page(&method, path);
        for path in ["/v1/tasks", "/v1/cancel", "/v1/permissions/per_1", "/v1/tasks/ses_1/send"] {
            assert!(may(Method::POST, path), "{path}");
            assert!(!may(Method::DELETE, path), "{path}");
        }
        for path in ["/v1/tasks/ses_1/resume", "/v1/tasks/ses_1/retry"] {
            assert!(may(Method::POST, path), "{path}");
        }
        for path in ["/v1/daemon/stop", "/v1/prune", "/v1/clear", "/v1/dash/code", "/mcp", "/"] {
            assert!(!may(Method::POST, path), "{path}");
        }
        for path in ["/v1/tasks/", "/v1/tasks/ses_1", "//v1/tasks", "/v1/tasks/ses_1/send/x"] {
            assert!(!may(Method::POST, path), "{path}");
        }
    }
}
