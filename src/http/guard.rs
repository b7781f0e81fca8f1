//! Access control of the TCP port: processes of the same user and web pages of this machine may read (H8),
//! changes need the bearer token, and everything else is refused.
//!
//! Four checks, each against an attack: the `Host` header against DNS rebinding, the `Origin` header against
//! pages of other sites, the user of the peer process against other users of this machine, and the token,
//! compared in constant time, for changes. The Unix socket has none of them: its permissions do that work.
//!
//! The dashboard has a token of its own (`dash.rs`), which counts for its verbs alone, as the user of the
//! shell, and only in requests of the page that this port serves: the browser says of which origin a page is,
//! and the page cannot change that.
//!
//! [`MCP`] changes things whatever the method, so it always needs the token, and no page of another origin gets
//! through with it: browsers send an origin along where programs send none.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW,
    AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::dash::{self, PageTokens, same};
use super::error::ApiError;

/// A read takes milliseconds; one that takes this long is stuck, and the client gets 503.
const LONGEST_READ: Duration = Duration::from_secs(30);

const READS: &str = "GET, HEAD, OPTIONS";

/// The path of the MCP server.
pub const MCP: &str = "/mcp";

/// Who may do what over the TCP port, as configured.
#[derive(Clone)]
pub struct AccessPolicy {
    /// The bearer token that changes need.
    pub token: Arc<str>,
    /// The name or address that the port is bound to.
    pub host: Arc<str>,
    /// The port can be reached from other machines, so reading needs the token, too.
    pub open: bool,
    /// Any user of this machine may read (`api.readers = "anyone"`).
    pub anyone: bool,
    /// Origins whose pages may read, beside those of this machine; `*` is any (`api.origins`).
    pub origins: Arc<[String]>,
    /// The tokens of dashboards.
    pub pages: PageTokens,
}

/// Whose process a connection comes from; looked up once per connection (`daemon/peer.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    SameUser,
    OtherUser,
    /// The system does not say.
    Unknown,
}

/// What a request says about the token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Wrong,
    /// Of a dashboard.
    Page,
    Right,
}

/// Middleware around all routes of the TCP port.
pub(super) async fn guard(
    State(policy): State<Arc<AccessPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let token = policy.token_in(request.headers());
    let refused = if !policy.is_meant_by(request.uri(), request.headers()) {
        Some(ApiError::with_status(
            StatusCode::FORBIDDEN,
            "this server answers on this machine only; use `127.0.0.1` or `localhost`",
        ))
    } else if request.method() == Method::OPTIONS {
        return with_cors(StatusCode::NO_CONTENT.into_response());
    } else if request.uri().path() == MCP {
        policy.refusal_of_mcp(token, request.headers())
    } else {
        let reader = request.extensions().get().copied().unwrap_or(Reader::Unknown);
        let refused = match policy.is_of_the_page(token, &request) {
            true => policy.refusal_of_the_page(&request),
            false => policy.refusal(is_read, token),
        };
        refused.or_else(|| policy.refusal_to_read(token, reader, request.headers()))
    };
    if let Some(refused) = refused {
        let mut response = refused.into_response();
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(READS));
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Without CORS headers, as for changes: no page is meant to have the token, so none may read what
        // it is answered.
        if token == Token::Right {
            return response;
        }
        return with_cors(response);
    }
    if token == Token::Page && !is_read {
        return match dash::as_the_page(request).await {
            Ok(request) => next.run(request).await,
            Err(refused) => refused.into_response(),
        };
    }
    if !is_read {
        // Without CORS headers: a page of another site must not be able to read the answer to a change.
        return next.run(request).await;
    }
    // Until the head of the response: streams, of events and of MCP, are bodies and have no limit.
    let answer = tokio::time::timeout(LONGEST_READ, next.run(request)).await;
    let answer = answer.unwrap_or_else(|_| ApiError::too_slow().into_response());
    if token == Token::Right { answer } else { with_cors(answer) }
}

impl AccessPolicy {
    /// Whether it matters whose process a connection comes from. The kernel is asked only then: at worst it lists
    /// all its sockets for an answer.
    pub fn asks_who_reads(&self) -> bool {
        !self.anyone && !self.open
    }

    /// Without the token, a reader must be a process of the same user and no page of another site. The user
    /// is checked because any user of a machine can connect to its loopback ports, and transcripts contain
    /// what agents have read in files of mode 0600.
    fn refusal_to_read(
        &self,
        token: Token,
        reader: Reader,
        headers: &HeaderMap,
    ) -> Option<ApiError> {
        if token == Token::Right {
            return None;
        }
        let why = match reader {
            Reader::OtherUser if self.asks_who_reads() => "this server belongs to another user",
            Reader::Unknown if self.asks_who_reads() => {
                "the system does not say which user this connection belongs to"
            }
            Reader::SameUser | Reader::OtherUser | Reader::Unknown => {
                let mut origins = headers.get_all(ORIGIN).iter();
                let all_may = origins.all(|origin| self.lets_read(origin));
                return (!all_may).then(|| {
                    ApiError::with_status(
                        StatusCode::FORBIDDEN,
                        "pages of this origin may not read here; `api.origins` in the configuration \
                         file names those that may",
                    )
                });
            }
        };
        Some(ApiError::with_status(
            StatusCode::FORBIDDEN,
            format!(
                "{why}; send its bearer token, or let every user of this machine read with \
                 `api.readers = \"anyone\"` in its configuration file"
            ),
        ))
    }

    fn lets_read(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|known| known == "*") || self.knows(origin)
    }

    /// Whether an origin is one of this machine or named as such; a wildcard names none.
    fn knows(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let named = |known: &String| known != "*" && known.trim_end_matches('/') == origin;
        self.origins.iter().any(named) || is_of_this_machine(origin)
    }

    fn refusal_of_mcp(&self, token: Token, headers: &HeaderMap) -> Option<ApiError> {
        let all_known = headers.get_all(ORIGIN).iter().all(|origin| self.knows(origin));
        if !all_known {
            return Some(ApiError::with_status(
                StatusCode::FORBIDDEN,
                "pages of this origin may not use MCP here; `api.origins` in the configuration file \
                 names those that may, each by itself",
            ));
        }
        (token != Token::Right).then(|| {
            ApiError::with_status(
                StatusCode::UNAUTHORIZED,
                "MCP needs the bearer token: send `Authorization: Bearer …` with what is in the file \
                 `token` of the storage directory, or in the one that `api.token_file` names; \
                 `asyncagents mcp install --http CLIENT` does that for you",
            )
        })
    }

    /// Whether a request comes from the dashboard and changes something.
    fn is_of_the_page(&self, token: Token, request: &Request) -> bool {
        let is_exchange = request.uri().path() == dash::EXCHANGE && token != Token::Right;
        request.method() == Method::POST && (is_exchange || token == Token::Page)
    }

    /// A page of another origin can send such a request as well, if only blindly, so the origin has to be the one
    /// that the request goes to. What is no browser sends no origin, and has the token of the file.
    fn refusal_of_the_page(&self, request: &Request) -> Option<ApiError> {
        let (method, path) = (request.method(), request.uri().path());
        // Any process that may connect could take the code from a command line and use it before the browser does.
        let why = if !self.asks_who_reads() {
            "the dashboard cannot change anything while other machines or users may read here \
             (`api.host`, `api.readers`); use the command line"
        } else if !is_same_origin(request.headers()) {
            "only the dashboard that this port serves may do this; open it with `asyncagents dash`"
        } else if path != dash::EXCHANGE && !dash::is_verb_of_the_page(method, path) {
            "the dashboard may not do this; use the command line"
        } else {
            return None;
        };
        Some(ApiError::with_status(StatusCode::FORBIDDEN, why))
    }

    /// Why a request needs the token and does not have it.
    fn refusal(&self, is_read: bool, token: Token) -> Option<ApiError> {
        let needed = !is_read || self.open;
        match token {
            Token::Right => None,
            _ if !needed => None,
            // 405 and not 401: without a token this port has no other methods than those of reading.
            Token::None if !is_read => Some(ApiError::with_status(
                StatusCode::METHOD_NOT_ALLOWED,
                "this port is read-only without the bearer token; send the token, or use the \
                 daemon's socket",
            )),
            Token::None | Token::Wrong | Token::Page => Some(ApiError::with_status(
                StatusCode::UNAUTHORIZED,
                "the bearer token is missing or wrong; it is in the file `token` of the storage \
                 directory",
            )),
        }
    }

    fn token_in(&self, headers: &HeaderMap) -> Token {
        let Some(given) = headers.get(AUTHORIZATION) else { return Token::None };
        match given.as_bytes().split_at_checked(7) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                if same(given, self.token.as_bytes()) {
                    Token::Right
                } else if self.pages.is_known(given) {
                    Token::Page
                } else {
                    Token::Wrong
                }
            }
            Some(_) | None => Token::Wrong,
        }
    }

    /// Against DNS rebinding: a site that lets its own name resolve to 127.0.0.1 still sends that name as
    /// `Host`. A request in absolute form (`GET http://name/path`) has a name in its target as well, which
    /// takes precedence over the header (RFC 9112), so both have to be ours.
    fn is_meant_by(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        // Exactly one header: with two, a proxy and we could each look at another one.
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let header = host.to_str().is_ok_and(|host| self.is_known_as(host));
        header && uri.authority().is_none_or(|authority| self.is_known_as(authority.as_str()))
    }

    fn is_known_as(&self, host: &str) -> bool {
        let Some(name) = name(host) else { return false };
        is_loopback(name) || (self.open && (name == &*self.host || name.parse::<IpAddr>().is_ok()))
    }
}

/// Whether an origin is a web server of this machine. A page that was opened from a file has the origin
/// `null` and is not: the file may have been downloaded from anywhere.
fn is_of_this_machine(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.and_then(name).is_some_and(is_loopback)
}

fn is_loopback(name: &str) -> bool {
    name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
}

/// A host without its port. `None` when it is neither a name nor an address, with or without a port.
fn name(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// Whether the request was sent by a page of the origin it goes to. Such a page sends exactly one origin, with the
/// host and port that are in `Host`, which has been checked before; `Sec-Fetch-Site` is not known to all browsers.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else { return false };
    let origin = origin.as_bytes().strip_prefix(b"http://");
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let site = headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin");
    site && origin.is_some() && origin == host
}

/// The CORS headers of the specification. The wildcard gives nothing away: a page whose origin may not read
/// has been refused before.
fn with_cors(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, OPTIONS"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("Content-Type"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::task::Timestamp;

    fn policy(open: bool) -> AccessPolicy {
        let origins = ["https://status.example/".to_owned()].into();
        let pages = PageTokens::new(Clock::manual(Timestamp::from_millis(0)));
        let (token, host) = ("secret".into(), "box".into());
        AccessPolicy { token, host, open, anyone: false, origins, pages }
    }

    #[test]
    fn a_host_header_that_is_not_loopback_is_refused() {
        let check = |host: &str, open: bool, expected: bool| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
            let path = Uri::from_static("/v1/health");
            assert_eq!(policy(open).is_meant_by(&path, &headers), expected, "{host}");
        };
        for host in ["localhost", "LOCALHOST:5165", "127.0.0.1", "127.0.0.1:80", "127.9.9.9"] {
            check(host, false, true);
        }
        for host in ["[::1]", "[::1]:5165"] {
            check(host, false, true);
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:5165"] {
            check(host, false, false);
        }
        for host in ["localhost:5165@evil.example", "[::1", "[::1]x", "10.0.0.1", "box"] {
            check(host, false, false);
        }
        check("box:5165", true, true);
        check("10.0.0.1:5165", true, true);
        check("evil.example", true, false);
        let path = Uri::from_static("/v1/health");
        assert!(!policy(false).is_meant_by(&path, &HeaderMap::new()));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("localhost"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!policy(false).is_meant_by(&path, &two));
    }

    #[test]
    fn an_address_with_a_host_that_is_not_loopback_is_refused_whatever_the_header_says() {
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost"))]);
        let check = |uri: &'static str, expected: bool| {
            assert_eq!(
                policy(false).is_meant_by(&Uri::from_static(uri), &headers),
                expected,
                "{uri}"
            );
        };
        check("http://localhost:5165/v1/health", true);
        check("http://127.0.0.1/v1/health", true);
        check("http://evil.example/v1/health", false);
        check("http://localhost@evil.example/v1/health", false);
        check("http://user@localhost/v1/health", false);
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let check = |value: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(policy(false).token_in(&headers) == Token::Right, expected, "{value}");
        };
        check("Bearer secret", true);
        check("bearer secret", true);
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "Basic secret", "secret", ""] {
            check(wrong, false);
        }
    }

    #[test]
    fn only_a_page_of_the_same_origin_is_the_dashboard() {
        let check = |lines: &[(&'static str, &'static str)], expected: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(is_same_origin(&headers), expected, "{lines:?}");
        };
        let (host, own) = (("host", "127.0.0.1:5165"), ("origin", "http://127.0.0.1:5165"));
        check(&[host, own], true);
        check(&[host, own, ("sec-fetch-site", "same-origin")], true);
        check(&[host, own, ("sec-fetch-site", "same-site")], false);
        check(&[host, own, own], false);
        check(&[host], false);
        check(&[own], false);
        for other in ["http://127.0.0.1:3000", "http://localhost:5165", "https://127.0.0.1:5165"] {
            check(&[host, ("origin", other)], false);
        }
        for other in ["null", "", "127.0.0.1:5165", "http://127.0.0.1:5165/", "http://evil.example"]
        {
            check(&[host, ("origin", other)], false);
        }
    }

    #[test]
    fn the_dashboard_changes_nothing_where_others_may_read() {
        let status = |policy: AccessPolicy, path: &str| {
            let request = Request::post(path)
                .header(HOST, "127.0.0.1:5165")
                .header(ORIGIN, "http://127.0.0.1:5165")
                .body(axum::body::Body::empty())
                .unwrap();
            let refused = policy.refusal_of_the_page(&request);
            refused.map(|refused| refused.into_response().status().as_u16())
        };
        for path in [dash::EXCHANGE, "/v1/cancel"] {
            assert_eq!(status(policy(false), path), None);
            assert_eq!(status(policy(true), path), Some(403));
            assert_eq!(status(AccessPolicy { anyone: true, ..policy(false) }, path), Some(403));
        }
        assert_eq!(status(policy(false), "/v1/daemon/stop"), Some(403));
    }

    #[test]
    fn pages_of_this_machine_and_of_named_origins_may_read() {
        let check = |origin: &str, expected: bool| {
            let origin = HeaderValue::from_str(origin).unwrap();
            assert_eq!(policy(false).lets_read(&origin), expected, "{origin:?}");
        };
        for origin in ["http://localhost", "http://LOCALHOST:3000", "https://127.0.0.1:8443"] {
            check(origin, true);
        }
        for origin in ["http://[::1]:5165", "https://status.example"] {
            check(origin, true);
        }
        for origin in ["null", "", "http://evil.example", "http://localhost.evil.example"] {
            check(origin, false);
        }
        for origin in ["https://localhost@evil.example", "file://", "http://status.example"] {
            check(origin, false);
        }
        let any = AccessPolicy { origins: ["*".to_owned()].into(), ..policy(false) };
        assert!(any.lets_read(&HeaderValue::from_static("null")));
    }

    #[test]
    fn mcp_needs_the_token_and_no_page_of_another_origin_even_with_it() {
        let any = AccessPolicy { origins: ["*".to_owned()].into(), ..policy(false) };
        let check = |policy: &AccessPolicy, origin: &str, token: Token, expected: Option<u16>| {
            let mut headers = HeaderMap::new();
            if !origin.is_empty() {
                headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            let refused = policy.refusal_of_mcp(token, &headers);
            let status = refused.map(|refused| refused.into_response().status().as_u16());
            assert_eq!(status, expected, "{origin}");
        };
        for origin in ["", "http://localhost:6274", "https://status.example"] {
            check(&policy(false), origin, Token::Right, None);
            check(&policy(false), origin, Token::None, Some(401));
            check(&policy(false), origin, Token::Wrong, Some(401));
        }
        for token in [Token::Right, Token::Wrong, Token::None] {
            check(&policy(false), "http://evil.example", token, Some(403));
            check(&any, "http://evil.example", token, Some(403));
            check(&any, "null", token, Some(403));
        }
    }

    #[test]
    fn processes_of_the_same_user_may_read_and_others_with_the_token_or_by_configuration() {
        let anyone = AccessPolicy { anyone: true, ..policy(false) };
        let may = |policy: &AccessPolicy, token: Token, reader: Reader| {
            policy.refusal_to_read(token, reader, &HeaderMap::new()).is_none()
        };
        for (reader, without) in
            [(Reader::SameUser, true), (Reader::OtherUser, false), (Reader::Unknown, false)]
        {
            assert_eq!(may(&policy(false), Token::None, reader), without, "{reader:?}");
            assert_eq!(may(&policy(false), Token::Wrong, reader), without, "{reader:?}");
            assert!(may(&policy(false), Token::Right, reader), "{reader:?}");
            assert!(may(&anyone, Token::None, reader), "{reader:?}");
        }
    }

    #[test]
    fn a_listener_that_other_machines_can_reach_requires_the_token_for_reading_too() {
        let status = |open, is_read, token| {
            policy(open).refusal(is_read, token).map(|refused| refused.into_response().status())
        };
        use StatusCode as Code;
        assert_eq!(status(false, true, Token::None), None);
        assert_eq!(status(false, true, Token::Wrong), None);
        assert_eq!(status(false, false, Token::None), Some(Code::METHOD_NOT_ALLOWED));
        assert_eq!(status(false, false, Token::Wrong), Some(Code::UNAUTHORIZED));
        assert_eq!(status(false, false, Token::Right), None);
        assert_eq!(status(true, true, Token::None), Some(Code::UNAUTHORIZED));
        assert_eq!(status(true, true, Token::Right), None);
    }
}
