//! The dashboard's files, embedded in the binary (`build.rs`): the page at `/`, and scripts and styles under
//! `/assets`. Nothing is read from disk, and the pages load nothing from elsewhere.
//!
//! Names under `/assets` contain a hash of their contents, so browsers may keep those for ever; the page itself is
//! asked for again every time and answered with 304 while it is the same.

use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::error::{ApiError, no_such_route};

/// Paths and contents; empty when the dashboard was not built.
static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| FILES.iter().map(Asset::of).collect());

static PAGE: LazyLock<Asset> = LazyLock::new(|| {
    let built = FILES.iter().find(|(path, _)| *path == INDEX);
    Asset::of(built.unwrap_or(&(INDEX, NOT_BUILT.as_bytes())))
});

const INDEX: &str = "/index.html";

const NOT_BUILT: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>asyncagents</title>
<h1>This binary was built without the dashboard</h1>
<p>Install Node 20 or newer with npm, then <code>touch build.rs</code> and <code>cargo build --release</code>; a
warning there says what is missing. The API works without it: <a href=\"/v1/tasks\">tasks</a>,
<a href=\"/v1/stats\">totals</a>, <a href=\"/v1/openapi.json\">its description</a>.</p>
</html>
";

/// Only files of this origin, no inline script, no style or form from injected markup, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// One file, compressed once.
struct Asset {
    path: &'static str,
    kind: &'static str,
    etag: String,
    plain: &'static [u8],
    gzip: Vec<u8>,
}

impl Asset {
    fn of((path, contents): &(&'static str, &'static [u8])) -> Asset {
        let mut hasher = DefaultHasher::new();
        hasher.write(contents);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let gzip = encoder.write_all(contents).and_then(|()| encoder.finish());
        Asset {
            path,
            kind: kind(path),
            etag: format!("\"{:016x}\"", hasher.finish()),
            plain: contents,
            gzip: gzip.expect("memory takes it"),
        }
    }

    fn answer(&'static self, headers: &HeaderMap, cache: &'static str) -> Response {
        let mut response = if is_among(headers, IF_NONE_MATCH, &self.etag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else if is_among(headers, ACCEPT_ENCODING, "gzip") {
            ([(CONTENT_ENCODING, "gzip")], self.gzip.as_slice()).into_response()
        } else {
            self.plain.into_response()
        };
        let own = response.headers_mut();
        let fixed = [
            (CONTENT_TYPE, self.kind),
            (CACHE_CONTROL, cache),
            (VARY, "Accept-Encoding"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        for (name, value) in fixed {
            own.insert(name, HeaderValue::from_static(value));
        }
        own.insert(ETAG, HeaderValue::from_str(&self.etag).expect("it is made of hex digits"));
        response
    }
}

pub(super) async fn page(headers: HeaderMap) -> Response {
    PAGE.answer(&headers, "no-cache")
}

pub(super) async fn asset(
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wanted = ASSETS.iter().find(|asset| asset.path.strip_prefix("/assets/") == Some(&*name));
    match wanted {
        Some(asset) => Ok(asset.answer(&headers, "public, max-age=31536000, immutable")),
        None => Err(no_such_route().await),
    }
}

/// Whether a header with a list has this entry. Weights are not looked at: no browser sends `gzip;q=0`.
fn is_among(headers: &HeaderMap, name: HeaderName, wanted: &str) -> bool {
    let lists = headers.get_all(name);
    let mut entries =
        lists.iter().filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(','));
    entries.any(|entry| {
        let entry = entry.split(';').next().unwrap_or_default().trim();
        entry.strip_prefix("W/").unwrap_or(entry) == wanted
    })
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::body::to_bytes;
    use flate2::read::GzDecoder;

    use super::*;

    static SCRIPT: LazyLock<Asset> =
        LazyLock::new(|| Asset::of(&("/assets/index-1a2b.js", b"let a = 1; let b = 1;")));

    async fn ask(name: HeaderName, value: &'static str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        let (head, body) = SCRIPT.answer(&headers, "no-cache").into_parts();
        (head.status, head.headers, to_bytes(body, 1 << 20).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn a_file_is_compressed_for_clients_that_accept_it() {
        for accepted in ["gzip", "deflate, gzip;q=1.0, *;q=0.5", "br,gzip"] {
            let (status, headers, body) = ask(ACCEPT_ENCODING, accepted).await;
            assert_eq!(
                (status, &headers[CONTENT_ENCODING]),
                (StatusCode::OK, &"gzip".parse().unwrap())
            );
            let mut text = Vec::new();
            GzDecoder::new(body.as_slice()).read_to_end(&mut text).unwrap();
            assert_eq!(text, SCRIPT.plain);
        }
        for accepted in ["", "identity", "br", "xgzip"] {
            let (status, headers, body) = ask(ACCEPT_ENCODING, accepted).await;
            assert_eq!(
                (status, headers.get(CONTENT_ENCODING)),
                (StatusCode::OK, None),
                "{accepted}"
            );
            assert_eq!(body, SCRIPT.plain);
        }
    }

    #[tokio::test]
    async fn a_file_that_the_client_has_cached_is_not_sent_again() {
        let known = String::leak(format!("\"old\", W/{}", SCRIPT.etag));
        let (status, headers, body) = ask(IF_NONE_MATCH, known).await;
        assert_eq!((status, body), (StatusCode::NOT_MODIFIED, Vec::new()));
        assert_eq!(headers[ETAG], SCRIPT.etag.as_str());
        assert_eq!(ask(IF_NONE_MATCH, "\"old\"").await.0, StatusCode::OK);
    }
}
