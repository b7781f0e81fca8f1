//! Transport-independent request and response types for OpenCode's API: the same over HTTP and over the
//! plugin bridge. The two errors differ in what they prove: *refused* means that the request was not
//! received, *broken* that it may have been carried out.

use futures_util::stream::BoxStream;
use reqwest::Method;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot connect: {0}")]
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

/// The chunks of the event stream as they arrive.
pub(super) type Bytes = BoxStream<'static, Result<Vec<u8>, Error>>;
