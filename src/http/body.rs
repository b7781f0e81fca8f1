//! Extractors for bodies, queries and paths. They parse as axum's do, but their rejections are JSON like
//! every other error of this API; axum's are plain text.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, header};
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// The header of a body that is JSON already.
pub(super) const JSON: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, KIND)];
const KIND: &str = "application/json";

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, ApiError> {
        let is_json = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == KIND);
        let read: Result<Json<T>, JsonRejection> = match is_json {
            true => match Bytes::from_request(request, state).await {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(value) => return Ok(Body(value)),
                    // Parse again with axum, which tracks the path to the bad field for the error text.
                    // That is slower, so it is only done for requests that fail.
                    Err(_) => Json::from_bytes(&bytes),
                },
                Err(error) => Err(error.into()),
            },
            false => Json::from_request(request, state).await,
        };
        match read {
            Ok(Json(value)) => Ok(Body(value)),
            Err(error) => Err(ApiError::with_status(error.status(), error.body_text())),
        }
    }
}

/// The query string.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, ApiError> {
        let read: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        match read {
            Ok(Query(value)) => Ok(Params(value)),
            Err(error) => Err(ApiError::with_status(error.status(), error.body_text())),
        }
    }
}

/// The one variable segment of a path.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, ApiError> {
        let read: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        match read {
            Ok(Path(id)) => Ok(Id(id)),
            Err(error) => Err(ApiError::with_status(error.status(), error.body_text())),
        }
    }
}
