//! Client of OpenCode's HTTP API (v1), one function per route, over any transport. It maps status codes to
//! the host's errors: 404 of a session is final, other 4xx are refusals, 5xx and lost connections are
//! transient.
//!
//! Quirks it hides, observed on real servers: unknown routes answer 200 with a web page, a starting server
//! accepts connections and never answers what came through them, and `prompt_async` accepts what it cannot
//! run.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::call::{self, Bytes, Call, Reply};
use super::generation;
use super::transport::Transport;
use super::types::{
    Agent, Create, Health, Paths, Permission, Problem, PromptBody, Question, RecentMessage,
    Session, ShowToast, Statuses, Todo,
};
use crate::host::{Answer, Error};
use crate::task::{MessageId, SessionId};
use crate::text::head;
use crate::transcript::Message;

/// How many of the newest messages are fetched to find one that is not a compaction summary.
const LAST_WORDS: usize = 8;

/// How many of the newest sessions a search covers; the one we look for was opened a moment ago.
const NEWEST_SESSIONS: usize = 500;

/// Why a health check failed.
pub(super) enum HealthError {
    /// Nothing listens there, or something other than OpenCode.
    Down(String),
    /// Something listens and does not answer: it may be starting, or overloaded.
    Silent(String),
    /// It is OpenCode, of a version that we do not speak with.
    Foreign(String),
}

#[derive(Clone)]
pub(super) struct Client {
    transport: Transport,
}

impl Client {
    pub(super) fn new(transport: Transport) -> Client {
        Client { transport }
    }

    pub(super) fn is_local(&self) -> bool {
        self.transport.is_local()
    }

    /// On a fresh connection: a server accepts connections up to a second before it is ready, and what is
    /// sent in that window is never answered (G1).
    pub(super) async fn health(&self, patience: Duration) -> Result<Health, HealthError> {
        match self.transport.send_fresh("/global/health", patience).await {
            Ok(reply) if reply.status == 404 && self.is_next_generation(patience).await => {
                Err(HealthError::Foreign(generation::next_generation()))
            }
            Ok(reply) => {
                let health: Health =
                    read(reply).map_err(|error| HealthError::Down(error.to_string()))?;
                match generation::objection(&health.version) {
                    Some(why) => Err(HealthError::Foreign(why)),
                    None => Ok(health),
                }
            }
            Err(error @ call::Error::Refused(_)) => Err(HealthError::Down(error.to_string())),
            Err(error @ call::Error::Broken(_)) => Err(HealthError::Silent(error.to_string())),
        }
    }

    /// OpenCode 2 has its health below `/api`, and tells it only with its password.
    async fn is_next_generation(&self, patience: Duration) -> bool {
        let reply = self.transport.send_fresh("/api/health", patience).await;
        reply.is_ok_and(|reply| reply.is_json && matches!(reply.status, 200 | 401 | 403))
    }

    /// Its state directory: the same for all processes that share their sessions. Like `health`, the
    /// request may get lost in a process that is starting.
    pub(super) async fn state_directory(&self, patience: Duration) -> Result<String, Error> {
        let reply = self.transport.send_fresh("/path", patience).await.map_err(lost)?;
        Ok(read::<Paths>(reply)?.state)
    }

    /// Drops pooled connections: the server may have been restarted.
    pub(super) fn renew(&self) {
        self.transport.renew();
    }

    // `/global/event` and not `/event`: the latter covers one directory, and is closed whenever that
    // directory's instance is disposed.
    pub(super) async fn events(&self) -> Result<Bytes, call::Error> {
        self.transport.stream("/global/event").await
    }

    pub(super) async fn create(&self, directory: &str, create: &Create) -> Result<Session, Error> {
        self.post(&format!("/session?{}", place(directory)), create).await
    }

    pub(super) async fn fork(&self, of: &SessionId) -> Result<Session, Error> {
        let path = format!("/session/{of}/fork");
        self.post(&path, &json!({})).await.map_err(|error| about(of, error))
    }

    /// Gives a fork the title, the rules and the nonce of a session of ours; it starts with the title and
    /// metadata of its source, and without rules (G8).
    pub(super) async fn relabel(&self, id: &SessionId, create: &Create) -> Result<(), Error> {
        let Create { title, metadata, permission, .. } = create;
        let body = json!({ "title": title, "metadata": metadata, "permission": permission });
        let reply = self.call(Method::PATCH, &format!("/session/{id}"), Some(bytes(&body))).await;
        reply.and_then(sound).map(|_| ()).map_err(|error| about(id, error))
    }

    pub(super) async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        self.get(&format!("/session/{id}")).await.map_err(|error| about(id, error))
    }

    pub(super) async fn children(&self, parent: &SessionId) -> Result<Vec<Session>, Error> {
        let path = format!("/session/{parent}/children");
        self.get(&path).await.map_err(|error| about(parent, error))
    }

    /// The newest sessions of a directory with this title.
    pub(super) async fn search(&self, place: &str, title: &str) -> Result<Vec<Session>, Error> {
        let (place, title) = (self::place(place), encoded(title));
        self.get(&format!("/session?{place}&search={title}&limit={NEWEST_SESSIONS}")).await
    }

    /// The messages as unparsed JSON, for callers that only pass them on.
    pub(super) async fn transcript(&self, id: &SessionId) -> Result<String, Error> {
        let reply = self.call(Method::GET, &format!("/session/{id}/message"), None).await;
        let body = reply.and_then(sound).map_err(|error| about(id, error))?.body;
        String::from_utf8(body).map_err(|_| Error::Refused("it sent what is no text".into()))
    }

    pub(super) async fn messages(&self, id: &SessionId) -> Result<Vec<Message>, Error> {
        let path = format!("/session/{id}/message");
        self.get(&path).await.map_err(|error| about(id, error))
    }

    /// The newest messages, newest last.
    pub(super) async fn last_words(&self, id: &SessionId) -> Result<Vec<RecentMessage>, Error> {
        let path = format!("/session/{id}/message?limit={LAST_WORDS}");
        self.get(&path).await.map_err(|error| about(id, error))
    }

    pub(super) async fn has(&self, id: &SessionId, message: &MessageId) -> Result<bool, Error> {
        match self.get::<Value>(&format!("/session/{id}/message/{message}")).await {
            Ok(_) => Ok(true),
            // The message or the whole session: only the session's absence is an error.
            Err(Error::NoSuchSession(_)) => self.session(id).await.map(|_| false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn todos(&self, id: &SessionId) -> Result<Vec<Todo>, Error> {
        self.get(&format!("/session/{id}/todo")).await.map_err(|error| about(id, error))
    }

    /// Lists only sessions that are not idle (G3), and for 20–140 ms after a prompt was accepted not even
    /// those: absence does not mean that a run is over.
    pub(super) async fn statuses(&self, directory: &str) -> Result<Statuses, Error> {
        self.get(&format!("/session/status?{}", place(directory))).await
    }

    /// Through `prompt_async`: the synchronous route waits for the answer, and a large one never ends (G16).
    pub(super) async fn say(&self, id: &SessionId, body: &PromptBody) -> Result<(), Error> {
        self.send(&format!("/session/{id}/prompt_async"), body).await.map_err(|e| about(id, e))
    }

    /// Succeeds also for sessions that are idle or unknown (G10), so it may be repeated.
    pub(super) async fn abort(&self, id: &SessionId) -> Result<(), Error> {
        self.send(&format!("/session/{id}/abort"), &json!({})).await.map_err(|e| about(id, e))
    }

    pub(super) async fn delete(&self, id: &SessionId) -> Result<(), Error> {
        let reply = self.call(Method::DELETE, &format!("/session/{id}"), None).await;
        reply.and_then(sound).map(|_| ()).map_err(|error| about(id, error))
    }

    pub(super) async fn agents(&self, directory: &str) -> Result<Vec<Agent>, Error> {
        self.get(&format!("/agent?{}", place(directory))).await
    }

    pub(super) async fn permissions(&self, directory: &str) -> Result<Vec<Permission>, Error> {
        self.get(&format!("/permission?{}", place(directory))).await
    }

    pub(super) async fn questions(&self, directory: &str) -> Result<Vec<Question>, Error> {
        self.get(&format!("/question?{}", place(directory))).await
    }

    pub(super) async fn permit(
        &self,
        directory: &str,
        ask: &str,
        answer: Answer,
    ) -> Result<(), Error> {
        // `once` and not `always`, which would allow later calls, too.
        let reply = match answer {
            Answer::Allow => "once",
            Answer::Deny => "reject",
        };
        let path = format!("/permission/{}/reply?{}", encoded(ask), place(directory));
        self.send(&path, &json!({ "reply": reply })).await
    }

    /// Answers with one label per question, or rejects the request when there are none.
    pub(super) async fn reply(
        &self,
        directory: &str,
        ask: &str,
        labels: Option<Vec<String>>,
    ) -> Result<(), Error> {
        let (ask, place) = (encoded(ask), place(directory));
        match labels {
            Some(labels) => {
                let answers: Vec<[String; 1]> = labels.into_iter().map(|label| [label]).collect();
                let body = json!({ "answers": answers });
                self.send(&format!("/question/{ask}/reply?{place}"), &body).await
            }
            None => self.send(&format!("/question/{ask}/reject?{place}"), &json!({})).await,
        }
    }

    pub(super) async fn toast(&self, directory: &str, toast: &ShowToast) -> Result<(), Error> {
        self.send(&format!("/tui/show-toast?{}", place(directory)), toast).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        read(self.call(Method::GET, path, None).await?)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        read(self.call(Method::POST, path, Some(bytes(body))).await?)
    }

    /// For routes whose response body is of no use.
    async fn send(&self, path: &str, body: &impl Serialize) -> Result<(), Error> {
        self.call(Method::POST, path, Some(bytes(body))).await.and_then(sound).map(|_| ())
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Reply, Error> {
        let call = Call { method, path: path.to_owned(), body };
        self.transport.send(call).await.map_err(lost)
    }
}

fn bytes(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("what we send is JSON")
}

fn place(directory: &str) -> String {
    format!("directory={}", encoded(directory))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn lost(error: call::Error) -> Error {
    Error::Unreachable(error.to_string())
}

fn read<T: DeserializeOwned>(reply: Reply) -> Result<T, Error> {
    let reply = sound(reply)?;
    // Unknown routes are answered 200 with the web UI's page (G17), so only the content type tells.
    if !reply.is_json {
        return Err(Error::Refused("no OpenCode server answers there, or one too old".into()));
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| Error::Refused(format!("its answer cannot be read: {error}")))
}

fn sound(reply: Reply) -> Result<Reply, Error> {
    let problem = || {
        let text = || head(&String::from_utf8_lossy(&reply.body), 300).to_owned();
        match serde_json::from_slice::<Problem>(&reply.body) {
            Ok(Problem { name, data }) => {
                data.get("message").and_then(Value::as_str).map_or(name, str::to_owned)
            }
            Err(_) => text(),
        }
    };
    match reply.status {
        200..300 => Ok(reply),
        401 | 403 => Err(Error::Refused(
            "the server wants a password: set OPENCODE_SERVER_PASSWORD for the daemon, or put it \
             into the address (http://opencode:PASSWORD@host:port)"
                .into(),
        )),
        // The caller fills in the id (`about`). Only OpenCode's own `NotFoundError` proves that a session
        // is gone: a 404 of a proxy in between must not end a task.
        404 if is_not_found(&reply.body) => Err(Error::NoSuchSession(SessionId::new(""))),
        404 if reply.is_json => Err(Error::Refused(problem())),
        404 => Err(Error::Unreachable("something else answers there".into())),
        400..500 => Err(Error::Refused(problem())),
        status => Err(Error::Unreachable(format!("it answers {status}: {}", problem()))),
    }
}

fn is_not_found(body: &[u8]) -> bool {
    serde_json::from_slice::<Problem>(body).is_ok_and(|problem| problem.name == "NotFoundError")
}

fn about(id: &SessionId, error: Error) -> Error {
    match error {
        Error::NoSuchSession(_) => Error::NoSuchSession(id.clone()),
        other => other,
    }
}
