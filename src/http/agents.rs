//! Authorisation of the commands that agents run (X3): over HTTP they may read their own task and nothing
//! else, whatever token they have got hold of. Otherwise `bash` in an agent could approve its own requests,
//! launch agents beyond the depth limit, or read what other agents found.
//!
//! The peer is identified when the connection is accepted (`daemon/peers.rs`), by its process and not by
//! anything it sends. While commands run, a peer that cannot be identified is refused, too.

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::error::ApiError;

/// The process at the other end of a connection, identified when it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Not a command of an agent.
    Elsewhere,
    /// A command of an agent, by the pid of its guard; `None` when the guard is gone.
    Agent(Option<i32>),
    /// Commands of agents run, and it may be one.
    Unknown,
}

/// Middleware around all routes, on the socket and over TCP.
pub(super) async fn only_their_own_task(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let refused = match peer {
        None | Some(Peer::Elsewhere) => None,
        Some(Peer::Agent(guard)) => {
            // A guard that is no longer on record belongs to a command whose call has ended: there is no
            // task left that it could be shown.
            let session = guard.and_then(|guard| api.supervisor.session_of_command(guard));
            let own = session.map(|session| format!("/v1/tasks/{session}"));
            match own {
                Some(own) if is_read_of(&own, &request) => None,
                Some(own) => Some(format!(
                    "commands of an agent may only read the agent's own task (`GET {own}`); anything \
                     else has to be done by a person, from their own shell"
                )),
                None => {
                    Some("this connection belongs to a command of an agent that has ended".into())
                }
            }
        }
        Some(Peer::Unknown) => Some(
            "cannot tell whether this connection belongs to a command of an agent, which may do \
             nothing here; keep the connection open until it is answered, and try again"
                .into(),
        ),
    };
    match refused {
        Some(why) => {
            tracing::warn!(
                method = %request.method(),
                path = request.uri().path(),
                ?peer,
                "request of an agent's command refused; only its own task may be read"
            );
            ApiError::with_status(StatusCode::FORBIDDEN, why).into_response()
        }
        None => next.run(request).await,
    }
}

fn is_read_of(own: &str, request: &Request) -> bool {
    let below = request.uri().path().strip_prefix(own);
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    is_read && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}
