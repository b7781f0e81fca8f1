//! Commands of agents at our doors (X3): they may look at their own task and do nothing else, whatever
//! token they have got hold of.

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::error::ApiError;

/// Who is at the other end of a connection, found out when it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Elsewhere,
    /// A command of an agent, by its guard.
    Agent(Option<i32>),
    /// Commands of agents run, and it may be one.
    Unknown,
}

/// Around all routes.
pub(super) async fn only_their_own_task(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let refused = match peer {
        None | Some(Peer::Elsewhere) => None,
        Some(Peer::Agent(guard)) => {
            let session = guard.and_then(|guard| api.supervisor.session_of_command(guard));
            let own = session.map(|session| format!("/v1/tasks/{session}"));
            match own {
                Some(own) if is_read_of(&own, &request) => None,
                Some(own) => Some(format!(
                    "commands of an agent may only read the agent's own task (`GET {own}`); what \
                     else is to be done is done by a person, from a shell of their own"
                )),
                None => Some("this connection is of a command of an agent that has ended".into()),
            }
        }
        Some(Peer::Unknown) => Some(
            "cannot tell whether this connection is of an agent's command, which may do nothing \
             here; keep the connection open until it is answered, and try again"
                .into(),
        ),
    };
    match refused {
        Some(why) => {
            tracing::warn!(method = %request.method(), path = request.uri().path(), "agent refused");
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
