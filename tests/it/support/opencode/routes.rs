//! The routes, and the middleware of every request: it counts, checks the password, and injects the
//! faults of the test.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::hub::server_event;
use super::world::{Reply, SessionGone};
use super::{DIRECTORY, Fault, RecordedPost, Server, prompt};

type Answer = Result<Response<Body>, EarlyResponse>;
type QueryParameters = Query<HashMap<String, String>>;

pub(super) fn router(server: Arc<Server>, over: CancellationToken) -> Router {
    let gate = middleware::from_fn_with_state((server.clone(), over), gate);
    Router::new()
        .route("/global/health", get(health))
        .route("/global/event", get(events))
        .route("/path", get(path))
        .route("/agent", get(agents))
        .route("/session", get(list).post(create))
        .route("/session/status", get(status))
        .route("/session/{id}", get(show).patch(update).delete(delete))
        .route("/session/{id}/children", get(children))
        .route("/session/{id}/todo", get(todos))
        .route("/session/{id}/message", get(messages))
        .route("/session/{id}/message/{message}", get(message))
        .route("/session/{id}/prompt_async", post(prompt_async))
        .route("/session/{id}/abort", post(abort))
        .route("/session/{id}/fork", post(fork))
        .route("/permission", get(permissions))
        .route("/permission/{id}/reply", post(reply_permission))
        .route("/question", get(questions))
        .route("/question/{id}/reply", post(reply_question))
        .route("/question/{id}/reject", post(reject_question))
        .route("/tui/show-toast", post(toast))
        .fallback(page)
        .layer(gate)
        .with_state(server)
}

/// A response that ends a handler early.
struct EarlyResponse(Box<Response<Body>>);

impl IntoResponse for EarlyResponse {
    fn into_response(self) -> Response<Body> {
        *self.0
    }
}

impl From<Response<Body>> for EarlyResponse {
    fn from(response: Response<Body>) -> EarlyResponse {
        EarlyResponse(Box::new(response))
    }
}

async fn gate(
    State((server, over)): State<(Arc<Server>, CancellationToken)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let route = format!("{} {}", request.method(), route(request.uri().path()));
    *server.calls.lock().unwrap().entry(route.clone()).or_default() += 1;
    let passed = pass(&server, &route, request, next);
    over.run_until_cancelled(passed).await.unwrap_or_else(|| cut())
}

async fn pass(server: &Server, route: &str, request: Request, next: Next) -> Response<Body> {
    let knobs = server.knobs();
    // Even a timer of zero takes a millisecond.
    if !knobs.delay.is_zero() {
        tokio::time::sleep(knobs.delay).await;
    }
    if knobs.black_hole {
        std::future::pending::<()>().await;
    }
    if let Some(status) = knobs.refusing {
        return refused(status);
    }
    if knobs.password.is_some_and(|password| !is_authorised(request.headers(), &password)) {
        let wanted = [("www-authenticate", "Basic realm=\"Secure Area\"")];
        return (StatusCode::UNAUTHORIZED, wanted).into_response();
    }
    let fault = fault(server, route);
    match fault {
        Some(Fault::Status(status)) => return refused(status),
        Some(Fault::Cut) => cut(),
        Some(Fault::AnswerLost | Fault::AnswerHangs) | None => {}
    }
    let response = next.run(request).await;
    match fault {
        Some(Fault::AnswerLost) => cut(),
        Some(Fault::AnswerHangs) => std::future::pending().await,
        Some(Fault::Status(_) | Fault::Cut) | None => response,
    }
}

/// Replaces ids by `{id}`.
fn route(path: &str) -> String {
    let is_id = |word: &str| ["ses_", "msg_", "per_", "que_"].iter().any(|p| word.starts_with(p));
    let words = path.split('/').map(|word| if is_id(word) { "{id}" } else { word });
    words.collect::<Vec<_>>().join("/")
}

fn fault(server: &Server, route: &str) -> Option<Fault> {
    let mut faults = server.faults.lock().unwrap();
    let (_, fault, times) = faults.iter_mut().find(|(on, _, left)| on == route && *left > 0)?;
    *times -= 1;
    Some(*fault)
}

/// Unwinding ends the connection's task, and so the connection, without a response.
fn cut() -> ! {
    std::panic::resume_unwind(Box::new("the connection is cut"))
}

fn is_authorised(headers: &HeaderMap, password: &str) -> bool {
    let wanted = format!("Basic {}", base64(format!("opencode:{password}").as_bytes()));
    headers.get("authorization").is_some_and(|given| *given == wanted)
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut bits = [0_u8; 3];
        bits[..three.len()].copy_from_slice(three);
        let number = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

fn refused(status: u16) -> Response<Body> {
    (StatusCode::from_u16(status).unwrap(), Json(unexpected())).into_response()
}

fn unexpected() -> Value {
    let message = "Unexpected server error. Check server logs for details.";
    json!({"name": "UnknownError", "data": {"message": message, "ref": "err_8b1f4ffc"}})
}

fn not_found(what: &str) -> Response<Body> {
    let body = json!({"name": "NotFoundError", "data": {"message": what}});
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

fn no_session(id: &str) -> Response<Body> {
    not_found(&format!("Session not found: {id}"))
}

/// An id of another kind is refused without a lookup.
fn known(server: &Server, id: &str) -> Result<(), EarlyResponse> {
    if !id.starts_with("ses") {
        return Err(refused(500).into());
    }
    server.world().session(id).map(drop).map_err(|SessionGone| no_session(id).into())
}

fn parse(body: &[u8]) -> Result<Value, EarlyResponse> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice(body).map_err(|_| refused(500).into())
}

fn directory(wanted: &QueryParameters, headers: &HeaderMap) -> Option<String> {
    let header = headers.get("x-opencode-directory").and_then(|value| value.to_str().ok());
    wanted.get("directory").cloned().or(header.map(str::to_owned))
}

fn json_of(value: &impl serde::Serialize) -> Answer {
    Ok(Json(value).into_response())
}

/// Paths outside the API serve the web page.
async fn page() -> Response<Body> {
    let header = [("content-type", "text/html")];
    (header, "<!doctype html>\n<html lang=\"en\"><title>OpenCode</title></html>").into_response()
}

async fn health() -> Answer {
    json_of(&json!({"healthy": true, "version": "1.18.33"}))
}

async fn events(State(server): State<Arc<Server>>) -> Response<Body> {
    let mut world = server.world();
    let connected = server_event(&world.id("evt"), "server.connected");
    let beating = server.clone();
    let heartbeat = move || {
        let mut world = beating.world();
        let event = server_event(&world.id("evt"), "server.heartbeat");
        (!world.hub.is_muted()).then_some(event)
    };
    let knobs = server.knobs();
    world.hub.listen(&connected, heartbeat, knobs.heartbeat, knobs.deaf)
}

async fn path(wanted: QueryParameters, headers: HeaderMap) -> Answer {
    let directory = directory(&wanted, &headers).unwrap_or(DIRECTORY.to_owned());
    json_of(&json!({
        "home": "/home/somebody",
        "state": "/home/somebody/.local/state/opencode",
        "config": "/home/somebody/.config/opencode",
        "worktree": "/",
        "directory": directory,
    }))
}

async fn agents(State(server): State<Arc<Server>>) -> Answer {
    json_of(&server.world().agents)
}

async fn create(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let wish = parse(&body)?;
    let empty = Map::new();
    let directory = directory(&wanted, &headers).unwrap_or(DIRECTORY.to_owned());
    json_of(&server.world().create(&directory, wish.as_object().unwrap_or(&empty)))
}

/// Most recently changed first.
async fn list(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
) -> Answer {
    let directory = directory(&wanted, &headers);
    let search = wanted.get("search").map(|text| text.to_lowercase()).unwrap_or_default();
    let limit = wanted.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
    let is_wanted = |info: &Value| {
        let title = info["title"].as_str().unwrap_or_default().to_lowercase();
        let is_root = info.get("parentID").is_none();
        directory.as_ref().is_none_or(|directory| info["directory"] == directory.as_str())
            && title.contains(&search)
            && (is_root || wanted.get("roots").is_none_or(|roots| roots != "true"))
    };
    let world = server.world();
    let infos = world.sessions.iter().map(|session| session.info.clone());
    let mut found: Vec<Value> = infos.filter(is_wanted).collect();
    found.sort_by_key(|info| std::cmp::Reverse(info["time"]["updated"].as_i64()));
    found.truncate(limit);
    json_of(&found)
}

async fn status(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
) -> Answer {
    let directory = directory(&wanted, &headers).unwrap_or(DIRECTORY.to_owned());
    let world = server.world();
    let here = world.statuses.iter().filter(|(_, (place, _))| *place == directory);
    let statuses: Map<String, Value> =
        here.map(|(id, (_, status))| (id.clone(), status.clone())).collect();
    json_of(&statuses)
}

async fn show(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    known(&server, &id)?;
    let world = server.world();
    json_of(&world.session(&id).map(|session| session.info.clone()).unwrap_or_default())
}

async fn update(State(server): State<Arc<Server>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let wish = parse(&body)?;
    known(&server, &id)?;
    let mut world = server.world();
    let change = |info: &mut Value| {
        for name in ["title", "metadata", "permission"] {
            if let Some(value) = wish.get(name) {
                info[name] = value.clone();
            }
        }
    };
    world.update(&id, change).map_err(|SessionGone| no_session(&id))?;
    json_of(&world.session(&id).map(|session| session.info.clone()).unwrap_or_default())
}

async fn delete(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    known(&server, &id)?;
    server.world().delete(&id);
    json_of(&true)
}

async fn children(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    known(&server, &id)?;
    json_of(&server.world().children(&id))
}

async fn todos(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    known(&server, &id)?;
    json_of(&server.world().session(&id).map(|session| session.todos.clone()).unwrap_or_default())
}

/// The newest `limit` messages, oldest first.
async fn messages(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    wanted: QueryParameters,
) -> Answer {
    known(&server, &id)?;
    let world = server.world();
    let messages = world.session(&id).map(|session| session.messages.as_slice());
    let mut messages = messages.unwrap_or_default();
    if let Some(before) = wanted.get("before") {
        let end = messages.iter().position(|message| cursor(&message.info) == *before);
        messages = &messages[..end.unwrap_or(messages.len())];
    }
    let limit = wanted.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let page = &messages[messages.len().saturating_sub(limit)..];
    let mut response =
        Json(page.iter().map(|message| message.json()).collect::<Vec<_>>()).into_response();
    if page.len() < messages.len() {
        let next = page.first().map(|message| cursor(&message.info)).unwrap_or_default();
        response.headers_mut().insert("x-next-cursor", next.parse().unwrap());
    }
    Ok(response)
}

fn cursor(info: &Value) -> String {
    let cursor = json!({"id": info["id"], "time": info["time"]["created"]});
    base64(cursor.to_string().as_bytes()).trim_end_matches('=').to_owned()
}

async fn message(
    State(server): State<Arc<Server>>,
    Path((id, message)): Path<(String, String)>,
) -> Answer {
    known(&server, &id)?;
    let mut world = server.world();
    let found = world.message_mut(&id, &message);
    let found = found.map_err(|SessionGone| not_found(&format!("Message not found: {message}")))?;
    json_of(&found.json())
}

async fn prompt_async(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Answer {
    let prompt = parse(&body)?;
    if prompt.get("parts").is_none() {
        let data = json!({"message": "Missing key\n  at [\"parts\"]", "kind": "Payload"});
        let body = Json(json!({"name": "BadRequest", "data": data}));
        return Err((StatusCode::BAD_REQUEST, body).into_response().into());
    }
    known(&server, &id)?;
    let path = format!("/session/{id}/prompt_async");
    server.world().posts.push(RecordedPost { path, body: prompt.clone() });
    server.spawn(prompt::accept(server.clone(), id, prompt));
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Always returns true, whatever the session is and does.
async fn abort(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    let mut world = server.world();
    world.posts.push(RecordedPost { path: format!("/session/{id}/abort"), body: json!({}) });
    if let Some(running) = world.runs.get(&id) {
        running.stop.cancel();
    }
    json_of(&true)
}

async fn fork(State(server): State<Arc<Server>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let wish = parse(&body)?;
    known(&server, &id)?;
    let mut world = server.world();
    world.posts.push(RecordedPost { path: format!("/session/{id}/fork"), body: wish.clone() });
    let fork = prompt::fork(&mut world, &id, wish["messageID"].as_str());
    json_of(&fork.map_err(|SessionGone| no_session(&id))?)
}

async fn permissions(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
) -> Answer {
    asks(&server, "per", directory(&wanted, &headers))
}

async fn questions(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
) -> Answer {
    asks(&server, "que", directory(&wanted, &headers))
}

fn asks(server: &Server, kind: &str, directory: Option<String>) -> Answer {
    let directory = directory.unwrap_or(DIRECTORY.to_owned());
    let world = server.world();
    let here = world.asks.iter().filter(|ask| ask.directory == directory);
    let requests = here.map(|ask| &ask.request);
    let is_wanted =
        |request: &&Value| request["id"].as_str().is_some_and(|id| id.starts_with(kind));
    json_of(&requests.filter(is_wanted).collect::<Vec<_>>())
}

async fn reply_permission(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Answer {
    let wish = parse(&body)?;
    let word = wish["reply"].as_str().unwrap_or_default().to_owned();
    let reply = if word == "reject" { Reply::Rejected } else { Reply::Allowed };
    let request = answer(&server, &id, "Permission", reply, |world, session| {
        let replied = json!({"sessionID": session, "requestID": id, "reply": word});
        world.emit(session, "permission.replied", replied);
    })?;
    if word == "always" {
        let patterns = request["always"].as_array().cloned().unwrap_or_default();
        let allow = |pattern| json!({"permission": request["permission"], "pattern": pattern, "action": "allow"});
        server.world().rules.extend(patterns.into_iter().map(allow));
    }
    json_of(&true)
}

async fn reply_question(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Answer {
    let wish = parse(&body)?;
    let answers = wish["answers"].clone();
    let text = format!("User has answered your questions: {answers}.");
    answer(&server, &id, "Question", Reply::Answered(text), |world, session| {
        let replied = json!({"sessionID": session, "requestID": id, "answers": answers});
        world.emit(session, "question.replied", replied);
    })?;
    json_of(&true)
}

async fn reject_question(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Answer {
    answer(&server, &id, "Question", Reply::Rejected, |world, session| {
        let rejected = json!({"sessionID": session, "requestID": id});
        world.emit(session, "question.rejected", rejected);
    })?;
    json_of(&true)
}

fn answer(
    server: &Server,
    id: &str,
    kind: &str,
    reply: Reply,
    tell: impl FnOnce(&mut super::World, &str),
) -> Result<Value, EarlyResponse> {
    let mut world = server.world();
    let Some(index) = world.asks.iter().position(|ask| ask.request["id"] == id) else {
        let message = format!("{kind} request not found: {id}");
        let tag = format!("{kind}NotFoundError");
        let body = json!({"_tag": tag, "requestID": id, "message": message});
        return Err((StatusCode::NOT_FOUND, Json(body)).into_response().into());
    };
    let ask = world.asks.remove(index);
    tell(&mut world, ask.request["sessionID"].as_str().unwrap_or_default());
    // The receiver is gone when the run was aborted.
    let _ = ask.answer.send(reply);
    Ok(ask.request)
}

async fn toast(
    State(server): State<Arc<Server>>,
    wanted: QueryParameters,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let toast = parse(&body)?;
    let directory = directory(&wanted, &headers).unwrap_or(DIRECTORY.to_owned());
    let mut world = server.world();
    world.toasts.push(toast.clone());
    world.emit_in(&directory, "tui.toast.show", toast);
    json_of(&true)
}
