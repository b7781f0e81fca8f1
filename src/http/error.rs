//! Errors as HTTP responses: the one place where an error becomes a status code. The match over the
//! supervisor's errors is exhaustive, so a new error does not compile before it has a status.
//!
//! What only an operator can act on is logged here with its chain of sources; the client gets the outermost
//! text, or "internal error".

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::supervisor;
use crate::task::launch;
use crate::threads;
use crate::tools;
use crate::wire::ErrorView;

pub(super) struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    pub(super) fn bad_request(text: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    pub(super) fn with_status(status: StatusCode, text: impl Into<String>) -> ApiError {
        ApiError { status, text: text.into() }
    }

    pub(super) fn too_many_streams() -> ApiError {
        ApiError::with_status(
            StatusCode::SERVICE_UNAVAILABLE,
            "the event stream has as many clients as it may have; close one, or raise \
             `api.max_streams`",
        )
    }

    pub(super) fn too_slow() -> ApiError {
        ApiError::with_status(StatusCode::SERVICE_UNAVAILABLE, "this took too long; try again")
    }

    /// For read-only routes, which pages and other programs may use: a host's error can contain addresses
    /// and paths of the user's servers, so its text is replaced.
    pub(super) fn of_reading(error: supervisor::Error) -> ApiError {
        let mut shown = ApiError::from(error);
        if shown.status == StatusCode::BAD_GATEWAY {
            shown.text = "the host of this task does not answer; try again later".to_owned();
        }
        shown
    }

    pub(super) fn unreadable_messages() -> ApiError {
        ApiError::with_status(StatusCode::BAD_GATEWAY, "the host's messages cannot be read")
    }

    pub(super) fn unwritable(error: serde_json::Error) -> ApiError {
        ApiError::internal(&error)
    }

    pub(super) fn thread_failed(error: threads::Error) -> ApiError {
        ApiError::internal(&error)
    }

    fn internal(error: &(dyn std::error::Error + 'static)) -> ApiError {
        tracing::error!(error, "request failed; the client was answered with status 500");
        ApiError::with_status(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let view = ErrorView { error: self.text, status: self.status.as_u16() };
        (self.status, Json(view)).into_response()
    }
}

impl From<supervisor::Error> for ApiError {
    fn from(error: supervisor::Error) -> ApiError {
        use supervisor::Error::*;
        let status = match &error {
            NoSuchTask(_)
            | NoSuchBatch(_)
            | NoSuchGroup(_)
            | NothingAsked(_)
            | AnsweredBefore(_)
            | NoSuchConversation { .. } => StatusCode::NOT_FOUND,
            Ambiguous { .. }
            | UnknownAgent { .. }
            | UnknownHost { .. }
            | BadServer(_)
            | Arguments(_) => StatusCode::BAD_REQUEST,
            AgentRefused(_) => StatusCode::FORBIDDEN,
            NoHost
            | ModelRefused(_)
            | Disabled
            | Refused(_)
            | TooDeep(_)
            | SessionGone(_)
            | StillStopping(_)
            | TakesNoMessages { .. }
            | CannotSteer { .. }
            | NothingToFork
            | CannotFork { .. }
            | ContextNotKept(_)
            | Contended => StatusCode::CONFLICT,
            NotYours(_) => StatusCode::FORBIDDEN,
            QueueFull(_) | TooManyMessages(_) => StatusCode::TOO_MANY_REQUESTS,
            Overfull(_) => StatusCode::INSUFFICIENT_STORAGE,
            // Clients take 503 for "the daemon went away", and repeat the call with the next one.
            Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Host(_) => StatusCode::BAD_GATEWAY,
            Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "request failed; the client was answered with status 500");
        }
        ApiError { status, text: error.to_string() }
    }
}

impl From<launch::Refused> for ApiError {
    fn from(error: launch::Refused) -> ApiError {
        ApiError::bad_request(error.to_string())
    }
}

impl From<tools::Error> for ApiError {
    fn from(error: tools::Error) -> ApiError {
        let status = match &error {
            tools::Error::NoSuchTool { .. } => StatusCode::NOT_FOUND,
            tools::Error::NoCaller => StatusCode::BAD_REQUEST,
            tools::Error::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError { status, text: error.to_string() }
    }
}

pub(super) async fn no_such_route() -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "no such route")
}

pub(super) async fn wrong_method() -> ApiError {
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
}
