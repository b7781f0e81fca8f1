//! Who calls (T18): the conversation, where the client says which it is, else the connection. Two
//! conversations are never one parent, also when client and directory are the same.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rmcp::model::{ProtocolVersion, RequestMetaObject};
use rmcp::service::RequestContext;
use rmcp::{Peer, RoleServer};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::claim::Claim;
use crate::clock::Clock;
use crate::config::Settings;
use crate::task::id::fingerprint;
use crate::wire::CallerView;

/// How long a client that was asked for its roots when it connected has to answer before a call is made
/// without them. Counted from the question: a client that never answers holds up no later call.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);

/// Of a client's name, and of a conversation's.
const LONGEST_NAME: usize = 40;
const LONGEST_CONVERSATION: usize = 64;

/// What Codex sends along with every call.
const CODEX_TURN: &str = "x-codex-turn-metadata";

/// The other end of the connection, as far as it is the same for all calls.
pub(super) struct Connection {
    client: String,
    directory: String,
    development: bool,
    parent: Parent,
}

enum Parent {
    /// The same for the whole connection.
    Named(String),
    /// Nobody says which conversation it is. The name is held for as long as we live: then the next one
    /// in the same place is told what we were not.
    Connection { name: String, heir_of: String, _claim: Option<Claim> },
}

/// The first workspace of a client, once it has named it.
#[derive(Clone)]
pub(super) struct Root {
    asked_at: Instant,
    /// `None` inside: it has none.
    told: watch::Receiver<Option<Option<PathBuf>>>,
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
            (None, None) => {
                let stem = format!("{}-{:08x}-", stem(&client), fingerprint(&[&directory]));
                let name = format!("{stem}{}", clock.nonce());
                let claim = Claim::hold(&settings.home, &name).inspect_err(|error| {
                    tracing::warn!(%error, "name not held; the next client may be told its news");
                });
                Parent::Connection { name, heir_of: stem, _claim: claim.ok() }
            }
        };
        Connection { client, directory, development: settings.development, parent }
    }

    /// The caller of one call. Codex tells the conversation with each.
    pub(super) fn caller(&self, meta: &RequestMetaObject) -> CallerView {
        let turn = meta.get(CODEX_TURN).filter(|_| is_codex(&self.client));
        let (session_id, heir_of) = match (&self.parent, turn.and_then(codex_session)) {
            (Parent::Connection { .. }, Some(id)) => {
                (of_conversation(&self.client, &id), String::new())
            }
            (Parent::Named(name), _) => (name.clone(), String::new()),
            (Parent::Connection { name, heir_of, .. }, None) => (name.clone(), heir_of.clone()),
        };
        CallerView {
            session_id,
            heir_of,
            directory: self.directory.clone(),
            development: self.development,
            ..CallerView::default()
        }
    }

    pub(super) fn client(&self) -> &str {
        &self.client
    }
}

fn is_claude(client: &str) -> bool {
    plain(client, LONGEST_NAME).starts_with("claude")
}

fn is_codex(client: &str) -> bool {
    plain(client, LONGEST_NAME).starts_with("codex")
}

/// An object, or the same as text.
fn codex_session(turn: &Value) -> Option<String> {
    let parsed = turn.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let turn = parsed.as_ref().unwrap_or(turn);
    turn.get("session_id")?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// `mcp-claude-code-` and the conversation's own id, shortened if it is long.
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

fn plain(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().take(most).map(plain).collect()
}

/// Asks a client of the older protocols for its roots, in the background: the newer ones answer no
/// requests of a server, and some of the older ones never answer this one.
pub(super) fn ask_for_roots(peer: Peer<RoleServer>) -> Option<Root> {
    let info = peer.peer_info()?;
    let answers = info.protocol_version < ProtocolVersion::V_2026_07_28;
    info.capabilities.roots.as_ref().filter(|_| answers)?;
    let (tell, told) = watch::channel(None);
    tokio::spawn(async move {
        let _ = tell.send(Some(root_of(&peer).await));
    });
    Some(Root { asked_at: Instant::now(), told })
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
        let until = self.asked_at + LONGEST_ANSWER;
        let told = tokio::time::timeout_at(until, self.told.wait_for(Option::is_some)).await;
        told.ok()?.ok()?.clone().flatten()
    }

    fn so_far(&self) -> Option<PathBuf> {
        self.told.borrow().clone().flatten()
    }
}

/// Where a client works as far as it is known now, for what does not have to be right: clients list tools
/// before they have told their roots.
pub(super) fn directory_so_far(
    settings: &Settings,
    root: Option<&Root>,
    context: &RequestContext<RoleServer>,
) -> String {
    directory(settings, &name_of(context), root.and_then(Root::so_far))
}

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
    fn a_conversation_has_a_name_of_its_own() {
        let name = of_conversation("Claude Code", "0b1c-2d3e");
        assert_eq!(name, "mcp-claude-code-0b1c-2d3e");
        assert_ne!(of_conversation("Claude Code", "a/b"), of_conversation("Claude Code", "a.b"));
        let long = "x".repeat(1_000);
        assert!(of_conversation("codex", &long).len() < 100);
        assert_eq!(stem(""), "mcp-client");
    }

    #[test]
    fn codex_tells_the_conversation_with_every_call() {
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
