//! A request to an OpenCode process and its answer, whichever way they travel.

use futures_util::stream::BoxStream;
use reqwest::Method;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("nobody listens: {0}")]
    Refused(String),
    #[error("{0}")]
    Broken(String),
}

pub(super) struct Call {
    pub(super) method: Method,
    /// With its query.
    pub(super) path: String,
    pub(super) body: Option<Vec<u8>>,
}

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) is_json: bool,
    pub(super) body: Vec<u8>,
}

/// Bytes of the event stream as they come.
pub(super) type Bytes = BoxStream<'static, Result<Vec<u8>, Error>>;
