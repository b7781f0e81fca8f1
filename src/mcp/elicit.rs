//! Elicitation: a client that can show forms to its user is asked the permission requests that a call waits for. The
//! answer goes to the daemon by the route of `asyncagents approve` and `deny`. A user who does not want to answer
//! leaves the request to others, and the call returns with what is asked, as it does for clients without forms.
//!
//! Protocol versions before 2026-07-28 are asked by a request of ours (`elicitation/create`); later ones only within
//! MCP tasks (`tasks.rs`). A request that was answered elsewhere meanwhile is withdrawn, and one that nobody answers
//! is given up after a while: no call waits for a client.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rmcp::model::{
    ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationSchema, ProtocolVersion, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext, RequestHandle};
use rmcp::{Peer, RoleServer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::wire::{AskingView, PermissionView};

/// How long a form stays open.
const LONGEST_QUESTION: Duration = Duration::from_secs(300);

/// The answers a form offers.
const ALLOW: &str = "allow";
const DENY: &str = "deny";

/// What is known of the user at the other end of a connection. A handle; cloning it is cheap.
#[derive(Clone, Default)]
pub(super) struct Elicitor {
    memory: Arc<Mutex<Memory>>,
    spawned: TaskTracker,
}

#[derive(Default)]
struct Memory {
    /// Requests that the user did not want to answer: no other call asks again.
    declined: HashSet<String>,
    /// Requests whose forms are open. Calls run concurrently, and each sees all of the parent's requests.
    shown: HashSet<String>,
}

/// How a user answered a form; `None` when that leaves the request to others.
pub(super) type Verdict = Option<bool>;

/// The forms that one call has opened; they are closed with it.
pub(super) struct Forms {
    elicitor: Elicitor,
    /// `None` for a client that answers no requests of a server.
    peer: Option<Peer<RoleServer>>,
    open: HashMap<String, DropGuard>,
    answers: mpsc::UnboundedSender<(String, Verdict)>,
    answered: mpsc::UnboundedReceiver<(String, Verdict)>,
}

/// Whether the client of this request can show a form.
pub(super) fn can_show(context: &RequestContext<RoleServer>) -> bool {
    let elicitation = context.client_capabilities().and_then(|client| client.elicitation);
    // A client that names no kind of elicitation means forms: the first version had nothing else.
    elicitation.is_some_and(|kinds| kinds.form.is_some() || kinds.url.is_none())
}

fn answers_requests(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version < ProtocolVersion::V_2026_07_28)
}

impl Elicitor {
    /// What a call of this client says about permission requests; `deferrable` calls ask within MCP tasks.
    pub(super) fn asking(
        &self,
        context: &RequestContext<RoleServer>,
        deferrable: bool,
    ) -> Option<AskingView> {
        let asks = can_show(context) && (deferrable || answers_requests(context));
        asks.then(|| AskingView { declined: self.memory().declined.iter().cloned().collect() })
    }

    pub(super) fn forms(&self, context: &RequestContext<RoleServer>) -> Forms {
        let peer = answers_requests(context).then(|| context.peer.clone());
        let (answers, answered) = mpsc::unbounded_channel();
        Forms { elicitor: self.clone(), peer, open: HashMap::new(), answers, answered }
    }

    pub(super) fn decline(&self, ask: &str) {
        self.memory().declined.insert(ask.to_owned());
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }
}

impl Forms {
    /// Whether the client's user sees them.
    pub(super) fn are_shown(&self) -> bool {
        self.peer.is_some()
    }

    /// Opens a form for each request that has none, and closes those of requests that are not open any more.
    pub(super) async fn show(&mut self, asks: &[PermissionView]) {
        let gone = |id: &&String| !asks.iter().any(|ask| ask.id == **id);
        let gone: Vec<String> = self.open.keys().filter(gone).cloned().collect();
        for id in gone {
            self.close(&id);
        }
        for ask in asks {
            // Check and claim under one lock: two calls that read the same request at the same time must
            // not both open a form for it.
            let is_new = {
                let mut memory = self.elicitor.memory();
                !memory.declined.contains(&ask.id) && memory.shown.insert(ask.id.clone())
            };
            if is_new {
                self.open(ask).await;
            }
        }
    }

    async fn open(&mut self, ask: &PermissionView) {
        let withdrawn = CancellationToken::new();
        self.open.insert(ask.id.clone(), withdrawn.clone().drop_guard());
        let (answers, id) = (self.answers.clone(), ask.id.clone());
        let Some(peer) = self.peer.clone() else {
            // The call is made anew without this request and returns with the question, instead of waiting
            // for a form that is never shown. So for clients of the later protocol whose call is not deferred.
            let _ = answers.send((id, None));
            return;
        };
        let request = ServerRequest::ElicitRequest(form(ask));
        // Sent within the call's future: over HTTP the library puts a request on the stream of the call it is
        // sent from, and a spawned one on a stream that the client may not have opened.
        let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
        // A client that cannot be reached does not answer: left to others, as all errors below.
        let Ok(handle) = sent else {
            let _ = answers.send((id, None));
            return;
        };
        // The answer is no part of it: a form has to be withdrawn also when the call is dropped.
        self.elicitor.spawned.spawn(async move {
            if let Some(verdict) = answer_to(handle, withdrawn).await {
                let _ = answers.send((id, verdict));
            }
        });
    }

    fn close(&mut self, id: &str) {
        self.open.remove(id);
        self.elicitor.memory().shown.remove(id);
    }

    /// The next answer of the user.
    pub(super) async fn answer(&mut self) -> (String, Verdict) {
        match self.answered.recv().await {
            Some((id, verdict)) => {
                self.close(&id);
                (id, verdict)
            }
            // We hold a sender.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Forms {
    fn drop(&mut self) {
        let open: Vec<String> = self.open.keys().cloned().collect();
        for id in open {
            self.close(&id);
        }
    }
}

/// Waits for the client's user. `None` when the form was withdrawn.
async fn answer_to(
    mut handle: RequestHandle<RoleServer>,
    withdrawn: CancellationToken,
) -> Option<Verdict> {
    let answered = tokio::select! {
        answered = &mut handle.rx => Some(answered),
        () = withdrawn.cancelled() => None,
        () = tokio::time::sleep(LONGEST_QUESTION) => {
            let _ = handle.cancel(Some("nobody has answered".to_owned())).await;
            return Some(None);
        }
    };
    match answered {
        Some(Ok(Ok(ClientResult::ElicitResult(result)))) => Some(verdict(&result)),
        Some(_) => Some(None),
        None => {
            let _ = handle.cancel(Some("answered elsewhere, or no longer asked".to_owned())).await;
            None
        }
    }
}

/// The form for a request. Its schema is flat and without titles, which all versions of the protocol know.
pub(super) fn form(ask: &PermissionView) -> ElicitRequest {
    let schema = json!({
        "type": "object",
        "properties": { "answer": {
            "type": "string", "title": "Answer", "enum": [ALLOW, DENY],
            "description": "Allow (this request only) or deny (ends the task)",
        } },
        "required": ["answer"],
    });
    let schema = match schema {
        Value::Object(schema) => ElicitationSchema::from_json_schema(schema).ok(),
        _ => None,
    };
    // Never taken: the schema above is constant, and a test reads it back. A form without fields would be
    // accepted without an answer, which allows nothing.
    let requested_schema = schema.unwrap_or_else(|| ElicitationSchema::new(Default::default()));
    let message = ask.question.clone();
    ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema,
    })
}

/// What an answered form says. One that is accepted without one of our answers says nothing.
pub(super) fn verdict(result: &ElicitResult) -> Verdict {
    let content = result.content.as_ref().filter(|_| result.action == ElicitationAction::Accept)?;
    match content.get("answer").and_then(Value::as_str) {
        Some(ALLOW) => Some(true),
        Some(DENY) => Some(false),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_offers_allow_and_deny_and_anything_else_is_no_answer() {
        let ask: PermissionView = serde_json::from_value(json!({
            "id": "per_1", "sessionID": "ses_1", "shortID": "ab12c3", "description": "x",
            "what": "bash ls", "since": "2026-01-01T00:00:00.000Z", "question": "May it?",
        }))
        .unwrap();
        let form = serde_json::to_value(form(&ask)).unwrap();
        assert_eq!(
            (&form["method"], &form["params"]["mode"]),
            (&json!("elicitation/create"), &json!("form"))
        );
        assert_eq!(form["params"]["message"], "May it?");
        let schema = &form["params"]["requestedSchema"];
        assert_eq!(schema["properties"]["answer"]["enum"], json!(["allow", "deny"]));
        let check = |result: Value, expected: Verdict| {
            let parsed: ElicitResult = serde_json::from_value(result.clone()).unwrap();
            assert_eq!(verdict(&parsed), expected, "{result}");
        };
        check(json!({"action": "accept", "content": {"answer": "allow"}}), Some(true));
        check(json!({"action": "accept", "content": {"answer": "deny"}}), Some(false));
        check(json!({"action": "accept", "content": {"answer": "perhaps"}}), None);
        check(json!({"action": "accept"}), None);
        check(json!({"action": "decline", "content": {"answer": "allow"}}), None);
        check(json!({"action": "cancel"}), None);
    }
}
