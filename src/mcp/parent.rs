//! Identity of the parent behind an MCP call (T18): the conversation, where the client says which it is, else
//! the connection. Two conversations are never one parent, even with the same client and directory: each would
//! be notified of the other's tasks.
//!
//! Claude Code names the conversation in the environment, Codex in the metadata of every call; other clients
//! do not. Their parents are named after client, directory and a nonce, and a later connection in the same
//! place inherits the unread notices of one that is gone (`claim.rs` tells whether it is). Over HTTP the session
//! is the connection. Without one, the address may name a parent; else the caller is anonymous.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rmcp::model::{ProtocolVersion, RequestMetaObject};
use rmcp::service::RequestContext;
use rmcp::{Peer, RoleServer};
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use super::http::Address;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::config::Settings;
use crate::task::id::fingerprint;
use crate::wire::CallerView;

/// How long a client has to answer the question for its roots before a call is made without them. Counted
/// from the question, which is asked on connecting: a client that never answers delays no later call.
const ROOTS_TIMEOUT: Duration = Duration::from_millis(500);

/// The same over HTTP, where nothing else names a directory, so that a launch without them is refused.
const ROOTS_TIMEOUT_OVER_HTTP: Duration = Duration::from_secs(3);

/// How many characters of a client's name, and of a conversation's, are in the name of a parent.
const LONGEST_NAME: usize = 40;
const LONGEST_CONVERSATION: usize = 64;

/// The metadata that Codex sends with every call; it contains the id of the conversation.
const CODEX_TURN: &str = "x-codex-turn-metadata";

/// The client at the other end of the connection: what is the same for all of its calls.
pub(super) struct Connection {
    client: String,
    directory: String,
    development: bool,
    parent: Parent,
}

enum Parent {
    /// Configured, or a conversation that is the same for the whole connection.
    Named(String),
    /// The client does not say which conversation it is. The claim on the name is held for as long as this
    /// process lives; after that, the next connection in the same place is given the unread notices.
    Connection { name: String, heir_of: String, _claim: Option<Claim> },
    /// Nothing tells this caller from others: they share a parent, and are shown nothing of each other.
    Anonymous { name: String },
}

/// The first workspace root of a client, asked for when it connected.
#[derive(Clone)]
pub(super) struct Root {
    asked_at: Instant,
    /// `None` until it has answered; `None` inside when it has no root.
    answer: watch::Receiver<Option<Option<PathBuf>>>,
}

impl Connection {
    pub(super) async fn new(
        settings: &Settings,
        clock: &Clock,
        root: Option<Root>,
        context: &RequestContext<RoleServer>,
    ) -> Connection {
        let client = name_of(context);
        let named = match root {
            Some(root) => root.wait().await,
            None => None,
        };
        let directory = directory(settings, &client, named);
        let conversation = settings.claude_session.as_ref().filter(|_| is_claude(&client));
        let parent = match (&settings.parent, conversation) {
            (Some(parent), _) => Parent::Named(parent.clone()),
            (None, Some(id)) => Parent::Named(of_conversation(&client, id)),
            (None, None) => Parent::connection(settings, &client, &directory, &clock.nonce()),
        };
        Connection { client, directory, development: settings.development, parent }
    }

    /// Of a caller over HTTP. The environment is the daemon's own and says nothing about it.
    pub(super) async fn over_http(
        settings: &Settings,
        context: &RequestContext<RoleServer>,
    ) -> Connection {
        let client = name_of(context);
        let Address { parent, directory, session } = Address::in_context(context);
        let directory = match directory {
            Some(directory) => directory,
            None => root_over_http(context).await.unwrap_or_default(),
        };
        let parent = match (session, parent) {
            (Some(id), _) => {
                Parent::connection(settings, &client, &directory, &plain(&id, LONGEST_CONVERSATION))
            }
            (None, Some(name)) => Parent::Named(name),
            // Not below `mcp-`, where a session would inherit its notices.
            (None, None) => Parent::Anonymous {
                name: format!(
                    "http-{}-{:08x}",
                    plain(&client, LONGEST_NAME),
                    fingerprint(&[&directory])
                ),
            },
        };
        Connection { client, directory, development: false, parent }
    }

    /// The caller of one call. A conversation that Codex names with the call goes before the connection, but
    /// not before a parent that the user has configured.
    pub(super) fn caller(&self, meta: &RequestMetaObject) -> CallerView {
        let turn = meta.get(CODEX_TURN).filter(|_| is_codex(&self.client));
        let conversation = turn.and_then(codex_session);
        let anonymous = matches!(self.parent, Parent::Anonymous { .. }) && conversation.is_none();
        let (session_id, heir_of) = match (&self.parent, conversation) {
            (Parent::Connection { .. } | Parent::Anonymous { .. }, Some(id)) => {
                (of_conversation(&self.client, &id), String::new())
            }
            (Parent::Named(name), _) | (Parent::Anonymous { name }, None) => {
                (name.clone(), String::new())
            }
            (Parent::Connection { name, heir_of, .. }, None) => (name.clone(), heir_of.clone()),
        };
        CallerView {
            session_id,
            heir_of,
            anonymous,
            directory: self.directory.clone(),
            development: self.development,
            ..CallerView::default()
        }
    }

    pub(super) fn client(&self) -> &str {
        &self.client
    }

    pub(super) fn directory(&self) -> &str {
        &self.directory
    }
}

impl Parent {
    /// Named after its client and place, and claimed for as long as it lives.
    fn connection(settings: &Settings, client: &str, directory: &str, id: &str) -> Parent {
        let stem = format!("{}-{:08x}-", stem(client), fingerprint(&[directory]));
        let name = format!("{stem}{id}");
        let claim = Claim::hold(&settings.home, &name).inspect_err(|error| {
            tracing::warn!(
                %error,
                parent = name,
                "parent name not claimed; another client may be given its notices"
            );
        });
        Parent::Connection { name, heir_of: stem, _claim: claim.ok() }
    }
}

fn is_claude(client: &str) -> bool {
    plain(client, LONGEST_NAME).starts_with("claude")
}

fn is_codex(client: &str) -> bool {
    plain(client, LONGEST_NAME).starts_with("codex")
}

/// The conversation in Codex's metadata, which is an object, or the same as JSON text.
fn codex_session(turn: &Value) -> Option<String> {
    let parsed = turn.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let turn = parsed.as_ref().unwrap_or(turn);
    turn.get("session_id")?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// `mcp-claude-code-` and the id of the conversation. An id that has to be shortened, or whose characters have
/// to be replaced, gets a hash of the whole id in front, so that two of them stay two.
fn of_conversation(client: &str, id: &str) -> String {
    let shown = plain(id, LONGEST_CONVERSATION);
    match shown == id {
        true => format!("{}-{shown}", stem(client)),
        false => format!("{}-{:08x}-{shown}", stem(client), fingerprint(&[id])),
    }
}

fn stem(client: &str) -> String {
    let client = plain(client, LONGEST_NAME);
    format!("mcp-{}", if client.is_empty() { "client" } else { &client })
}

/// Lower-case letters, digits and dashes: the name becomes a session id, and names a claim.
fn plain(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().take(most).map(plain).collect()
}

/// Asks a client for its roots, in the background. Only clients of the older protocol versions: from 2026-07-28
/// on, clients answer no requests of a server. Some of the older ones never answer this one.
pub(super) fn ask_for_roots(peer: Peer<RoleServer>) -> Option<Root> {
    has_roots(&peer).then_some(())?;
    let (sender, answer) = watch::channel(None);
    // Detached: the request fails when the connection closes, and the process exits after that.
    tokio::spawn(async move {
        let _ = sender.send(Some(root_of(&peer).await));
    });
    Some(Root { asked_at: Instant::now(), answer })
}

/// Identifies a client in the background, as soon as it has answered what it was asked: an answer that comes late, but
/// before the first call, counts. Not by a request that does not name the client.
pub(super) fn identify_soon(
    identity: Arc<OnceCell<Connection>>,
    settings: Arc<Settings>,
    clock: Clock,
    mut root: Option<Root>,
    context: RequestContext<RoleServer>,
) {
    if context.client_info().is_none() || identity.initialized() {
        return;
    }
    // Detached: there is nothing in it to wait for but the client, and the process ends with that.
    tokio::spawn(async move {
        if let Some(root) = &mut root {
            let _ = root.answer.wait_for(Option::is_some).await;
        }
        identity.get_or_init(|| Connection::new(&settings, &clock, root, &context)).await;
    });
}

/// Whether the client has roots and can be asked for them.
fn has_roots(peer: &Peer<RoleServer>) -> bool {
    let Some(info) = peer.peer_info() else { return false };
    let answers = info.protocol_version < ProtocolVersion::V_2026_07_28;
    answers && info.capabilities.roots.is_some()
}

/// Asked within a call, because the question then comes to the client on the stream of that call: not all of
/// them have another one open.
async fn root_over_http(context: &RequestContext<RoleServer>) -> Option<String> {
    has_roots(&context.peer).then_some(())?;
    let asked = tokio::time::timeout(ROOTS_TIMEOUT_OVER_HTTP, root_of(&context.peer)).await;
    Some(asked.ok()??.to_string_lossy().into_owned())
}

#[expect(deprecated, reason = "clients of today name their roots this way")]
async fn root_of(peer: &Peer<RoleServer>) -> Option<PathBuf> {
    let roots = peer.list_roots().await.ok()?.roots;
    let path = roots.iter().find_map(|root| root.uri.strip_prefix("file://"))?;
    let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
    Some(PathBuf::from(percent_decode_str(path).decode_utf8().ok()?.into_owned()))
}

impl Root {
    async fn wait(mut self) -> Option<PathBuf> {
        let until = self.asked_at + ROOTS_TIMEOUT;
        let answer = tokio::time::timeout_at(until, self.answer.wait_for(Option::is_some)).await;
        answer.ok()?.ok()?.clone().flatten()
    }

    fn so_far(&self) -> Option<PathBuf> {
        self.answer.borrow().clone().flatten()
    }
}

/// The directory as far as it is known now, without waiting: for the list of tools, which clients ask for
/// before they have answered the question for their roots, and in which a wrong directory costs only the names
/// of some agents.
pub(super) fn directory_so_far(
    settings: &Settings,
    root: Option<&Root>,
    context: &RequestContext<RoleServer>,
) -> String {
    directory(settings, &name_of(context), root.and_then(Root::so_far))
}

/// The directory of a client that names no roots, before it has said who it is: only Claude Code sets a project.
pub(super) fn directory_without_roots(settings: &Settings) -> String {
    directory(settings, "claude", None)
}

/// Where agents of this client work: its root, else the project that Claude Code names, else where it has
/// started us.
fn directory(settings: &Settings, client: &str, named: Option<PathBuf>) -> String {
    let project = settings.claude_project.clone().filter(|_| is_claude(client));
    let here = || std::env::current_dir().unwrap_or_default();
    named.or(project).unwrap_or_else(here).to_string_lossy().into_owned()
}

fn name_of(context: &RequestContext<RoleServer>) -> String {
    context.client_info().map(|client| client.name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_conversation_has_a_unique_parent_name() {
        let name = of_conversation("Claude Code", "0b1c-2d3e");
        assert_eq!(name, "mcp-claude-code-0b1c-2d3e");
        assert_ne!(of_conversation("Claude Code", "a/b"), of_conversation("Claude Code", "a.b"));
        let long = "x".repeat(1_000);
        assert!(of_conversation("codex", &long).len() < 100);
        assert_eq!(stem(""), "mcp-client");
    }

    #[test]
    fn the_conversation_of_codex_is_read_from_the_metadata_of_a_call() {
        let check = |turn: Value, expected: Option<&str>| {
            assert_eq!(codex_session(&turn).as_deref(), expected, "{turn}");
        };
        check(json!({"session_id": "one", "turn_id": "two"}), Some("one"));
        check(json!("{\"session_id\": \"one\"}"), Some("one"));
        check(json!({"session_id": ""}), None);
        check(json!({"turn_id": "two"}), None);
        check(json!("not json"), None);
    }
}
