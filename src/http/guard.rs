//! Who may do what over TCP: processes of the same user and pages of this machine may read (H8), only who
//! has the token may change anything, and sites that reach us under another name may do neither.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW,
    AUTHORIZATION, HOST, ORIGIN,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;

/// A read takes milliseconds; one that takes this long is stuck.
const LONGEST_READ: Duration = Duration::from_secs(30);

const READS: &str = "GET, HEAD, OPTIONS";

/// The listener that a request came through.
#[derive(Clone)]
pub struct Door {
    /// What lets a request change something.
    pub token: Arc<str>,
    /// The name or address it listens on.
    pub host: Arc<str>,
    /// It can be reached from other machines, so that reading needs the token, too.
    pub open: bool,
    /// Any user of this machine may read.
    pub anyone: bool,
    /// Pages of these may read besides those of this machine; `*` is any.
    pub origins: Arc<[String]>,
}

/// Whose process a connection comes from. Every request carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    SameUser,
    OtherUser,
    /// The system does not say.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Wrong,
    Right,
}

pub(super) async fn guard(State(door): State<Door>, request: Request, next: Next) -> Response {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let token = door.token_in(request.headers());
    let refused = if !door.is_meant_by(request.uri(), request.headers()) {
        Some(ApiError::with_status(
            StatusCode::FORBIDDEN,
            "this server answers on this machine only; use `127.0.0.1` or `localhost`",
        ))
    } else if request.method() == Method::OPTIONS {
        return with_cors(StatusCode::NO_CONTENT.into_response());
    } else {
        let reader = request.extensions().get().copied().unwrap_or(Reader::Unknown);
        let refused = door.refusal(is_read, token);
        refused.or_else(|| door.refusal_to_read(token, reader, request.headers()))
    };
    if let Some(refused) = refused {
        let mut response = refused.into_response();
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(READS));
        }
        return with_cors(response);
    }
    if !is_read {
        // Never with a wildcard origin: a page of another site must not see what it changed.
        return next.run(request).await;
    }
    let answer = tokio::time::timeout(LONGEST_READ, next.run(request)).await;
    let answer = answer.unwrap_or_else(|_| ApiError::too_slow().into_response());
    if token == Token::Right { answer } else { with_cors(answer) }
}

impl Door {
    /// Whether it matters whose process a connection comes from.
    pub fn asks_who_reads(&self) -> bool {
        !self.anyone && !self.open
    }

    /// Who has no token must be of the same user, and no page of another site.
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
        let Ok(origin) = origin.to_str() else { return false };
        let named = |known: &String| known == "*" || known.trim_end_matches('/') == origin;
        self.origins.iter().any(named) || is_of_this_machine(origin)
    }

    fn refusal(&self, is_read: bool, token: Token) -> Option<ApiError> {
        let needed = !is_read || self.open;
        match token {
            Token::Right => None,
            _ if !needed => None,
            Token::None if !is_read => Some(ApiError::with_status(
                StatusCode::METHOD_NOT_ALLOWED,
                "here one can only read; what changes something goes over the socket, or needs \
                 the token",
            )),
            Token::None | Token::Wrong => Some(ApiError::with_status(
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
                match same(given, self.token.as_bytes()) {
                    true => Token::Right,
                    false => Token::Wrong,
                }
            }
            Some(_) | None => Token::Wrong,
        }
    }

    /// A site whose name was made to lead here still calls us by its own name. A request to a proxy
    /// (`GET http://name/path`) has it in the address as well, and there it counts for more than in
    /// the header.
    fn is_meant_by(&self, uri: &Uri, headers: &HeaderMap) -> bool {
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

/// A page that was loaded from this machine. One from a file has no origin (`null`) and is none of them:
/// a file may come from anywhere.
fn is_of_this_machine(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.and_then(name).is_some_and(is_loopback)
}

fn is_loopback(name: &str) -> bool {
    name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
}

/// Without the port. `None` when it is neither a name nor an address with a port.
fn name(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// Takes as long for a near miss as for a far one.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}

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

    fn door(open: bool) -> Door {
        let origins = ["https://status.example/".to_owned()].into();
        Door { token: "secret".into(), host: "box".into(), open, anyone: false, origins }
    }

    #[test]
    fn a_host_header_that_is_not_loopback_is_refused() {
        let check = |host: &str, open: bool, expected: bool| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
            let path = Uri::from_static("/v1/health");
            assert_eq!(door(open).is_meant_by(&path, &headers), expected, "{host}");
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
        assert!(!door(false).is_meant_by(&path, &HeaderMap::new()));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("localhost"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!door(false).is_meant_by(&path, &two));
    }

    #[test]
    fn an_address_with_a_host_that_is_not_loopback_is_refused_whatever_the_header_says() {
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost"))]);
        let check = |uri: &'static str, expected: bool| {
            assert_eq!(
                door(false).is_meant_by(&Uri::from_static(uri), &headers),
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
    fn only_the_whole_token_is_right() {
        let check = |value: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(door(false).token_in(&headers) == Token::Right, expected, "{value}");
        };
        check("Bearer secret", true);
        check("bearer secret", true);
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "Basic secret", "secret", ""] {
            check(wrong, false);
        }
    }

    #[test]
    fn pages_of_this_machine_and_of_named_origins_may_read() {
        let check = |origin: &str, expected: bool| {
            let origin = HeaderValue::from_str(origin).unwrap();
            assert_eq!(door(false).lets_read(&origin), expected, "{origin:?}");
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
        let any = Door { origins: ["*".to_owned()].into(), ..door(false) };
        assert!(any.lets_read(&HeaderValue::from_static("null")));
    }

    #[test]
    fn processes_of_the_same_user_may_read_and_others_with_the_token_or_by_configuration() {
        let anyone = Door { anyone: true, ..door(false) };
        let may = |door: &Door, token: Token, reader: Reader| {
            door.refusal_to_read(token, reader, &HeaderMap::new()).is_none()
        };
        for (reader, without) in
            [(Reader::SameUser, true), (Reader::OtherUser, false), (Reader::Unknown, false)]
        {
            assert_eq!(may(&door(false), Token::None, reader), without, "{reader:?}");
            assert_eq!(may(&door(false), Token::Wrong, reader), without, "{reader:?}");
            assert!(may(&door(false), Token::Right, reader), "{reader:?}");
            assert!(may(&anyone, Token::None, reader), "{reader:?}");
        }
    }

    #[test]
    fn a_door_to_other_machines_asks_readers_for_the_token_as_well() {
        let status = |open, is_read, token| {
            door(open).refusal(is_read, token).map(|refused| refused.into_response().status())
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
