//! The state of the server: sessions and their messages as JSON in the recorded form. Every change
//! is an event.

use std::collections::{BTreeMap, HashMap};

use asyncagents::clock::Clock;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use super::ids::Ids;
use super::{ModelInput, RecordedPost};

const VERSION: &str = "1.18.33";
/// Events of these types are sent a second time, as log records.
const DURABLE: [&str; 5] = [
    "session.created",
    "session.updated",
    "session.deleted",
    "message.updated",
    "message.part.updated",
];

pub(super) struct World {
    clock: Clock,
    ids: Ids,
    pub(super) hub: Hub,
    /// Oldest first.
    pub(super) sessions: Vec<Session>,
    /// The sessions that are not idle.
    pub(super) statuses: BTreeMap<String, (String, Value)>,
    pub(super) runs: HashMap<String, ActiveRun>,
    pub(super) asks: Vec<Ask>,
    /// Rules of the configuration; a session's own rules come after them.
    pub(super) rules: Vec<Value>,
    pub(super) agents: Vec<Value>,
    pub(super) context_limit: u64,
    pub(super) posts: Vec<RecordedPost>,
    pub(super) given: Vec<ModelInput>,
    pub(super) toasts: Vec<Value>,
}

pub(super) struct Session {
    pub(super) info: Value,
    /// In the order of creation, which may differ from that of their ids.
    pub(super) messages: Vec<Message>,
    pub(super) todos: Value,
    sequence: u64,
}

#[derive(Clone)]
pub(super) struct Message {
    pub(super) info: Value,
    pub(super) parts: Vec<Value>,
}

/// A run in a session.
pub(super) struct ActiveRun {
    pub(super) stop: CancellationToken,
    pub(super) told: UnboundedSender<Continuation>,
    /// Set while the run is finishing: a prompt that arrives now needs a new run.
    pub(super) ending: bool,
    pub(super) again: bool,
}

/// How a test continues a hanging answer.
pub(super) enum Continuation {
    Finish(String),
    Fail { status: u16, message: String },
}

/// An open permission request or question.
pub(super) struct Ask {
    pub(super) request: Value,
    pub(super) directory: String,
    pub(super) answer: oneshot::Sender<Reply>,
}

pub(super) enum Reply {
    Allowed,
    Answered(String),
    Rejected,
}

/// The session was deleted.
#[derive(Debug)]
pub(super) struct SessionGone;

impl World {
    pub(super) fn new(agents: Vec<Value>) -> World {
        World {
            clock: Clock::system(),
            ids: Ids::new(),
            hub: Hub::new(),
            sessions: Vec::new(),
            statuses: BTreeMap::new(),
            runs: HashMap::new(),
            asks: Vec::new(),
            rules: Vec::new(),
            agents,
            context_limit: 200_000,
            posts: Vec::new(),
            given: Vec::new(),
            toasts: Vec::new(),
        }
    }

    /// Like a kill: stored state is kept, state in memory is lost.
    pub(super) fn forget(&mut self) {
        self.statuses.clear();
        self.runs.clear();
        self.asks.clear();
        self.hub.break_off();
    }

    pub(super) fn now(&self) -> i64 {
        self.clock.micros() / 1000
    }

    pub(super) fn id(&mut self, kind: &str) -> String {
        let now = self.now();
        if kind == "ses" { self.ids.descending(kind, now) } else { self.ids.ascending(kind, now) }
    }

    pub(super) fn session(&self, id: &str) -> Result<&Session, SessionGone> {
        self.sessions.iter().find(|session| session.info["id"] == id).ok_or(SessionGone)
    }

    pub(super) fn session_mut(&mut self, id: &str) -> Result<&mut Session, SessionGone> {
        self.sessions.iter_mut().find(|session| session.info["id"] == id).ok_or(SessionGone)
    }

    pub(super) fn children(&self, parent: &str) -> Vec<Value> {
        let infos = self.sessions.iter().map(|session| &session.info);
        infos.filter(|info| info["parentID"] == parent).cloned().collect()
    }

    pub(super) fn create(&mut self, directory: &str, wish: &Map<String, Value>) -> Value {
        let (id, now) = (self.id("ses"), self.now());
        let title = if wish.contains_key("parentID") { "Child session" } else { "New session" };
        let mut info = json!({
            "id": id,
            "slug": "quiet-harbor",
            "projectID": "global",
            "directory": directory,
            "path": directory.trim_start_matches('/'),
            "cost": 0,
            "tokens": no_tokens(),
            "title": format!("{title} - {}", self.clock.now()),
            "version": VERSION,
            "time": {"created": now, "updated": now},
        });
        for name in ["parentID", "title", "agent", "model", "metadata", "permission"] {
            if let Some(value) = wish.get(name) {
                info[name] = value.clone();
            }
        }
        let todos = json!([]);
        self.sessions.push(Session {
            info: info.clone(),
            messages: Vec::new(),
            todos,
            sequence: 0,
        });
        self.emit(&id, "session.created", json!({"sessionID": id, "info": info}));
        info
    }

    /// Changes the fields of a session.
    pub(super) fn update(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), SessionGone> {
        let now = self.now();
        let session = self.session_mut(id)?;
        change(&mut session.info);
        session.info["time"]["updated"] = json!(now);
        let info = session.info.clone();
        self.emit(id, "session.updated", json!({"sessionID": id, "info": info}));
        Ok(())
    }

    /// Deletes it with all descendants, the deepest first. Their runs are not stopped.
    pub(super) fn delete(&mut self, id: &str) {
        for child in self.children(id) {
            self.delete(child["id"].as_str().unwrap_or_default());
        }
        let Ok(session) = self.session(id) else { return };
        let info = session.info.clone();
        self.emit(id, "session.deleted", json!({"sessionID": id, "info": info}));
        self.sessions.retain(|session| session.info["id"] != id);
    }

    /// Stores a message, or a new version of it.
    pub(super) fn put_message(&mut self, info: &Value) -> Result<(), SessionGone> {
        let id = info["sessionID"].as_str().unwrap_or_default().to_owned();
        let messages = &mut self.session_mut(&id)?.messages;
        match messages.iter_mut().find(|message| message.info["id"] == info["id"]) {
            Some(message) => message.info = info.clone(),
            None => messages.push(Message { info: info.clone(), parts: Vec::new() }),
        }
        self.emit(&id, "message.updated", json!({"sessionID": id, "info": info}));
        Ok(())
    }

    /// Stores a part, or a new version of it.
    pub(super) fn put_part(&mut self, part: &Value) -> Result<(), SessionGone> {
        let id = part["sessionID"].as_str().unwrap_or_default().to_owned();
        let message = self.message_mut(&id, part["messageID"].as_str().unwrap_or_default())?;
        match message.parts.iter_mut().find(|known| known["id"] == part["id"]) {
            Some(known) => *known = part.clone(),
            None => message.parts.push(part.clone()),
        }
        let time = self.now();
        self.emit(
            &id,
            "message.part.updated",
            json!({"sessionID": id, "part": part, "time": time}),
        );
        Ok(())
    }

    pub(super) fn message_mut(
        &mut self,
        session: &str,
        id: &str,
    ) -> Result<&mut Message, SessionGone> {
        let messages = &mut self.session_mut(session)?.messages;
        messages.iter_mut().find(|message| message.info["id"] == id).ok_or(SessionGone)
    }

    /// A part that is not stored yet.
    pub(super) fn part(&mut self, message: &Value, mut rest: Value) -> Value {
        let id = self.id("prt");
        rest["id"] = json!(id);
        rest["sessionID"] = message["sessionID"].clone();
        rest["messageID"] = message["id"].clone();
        rest
    }

    pub(super) fn set_status(&mut self, session: &str, status: &Value) {
        let directory = self.directory_of(session);
        if status["type"] == "idle" {
            self.statuses.remove(session);
        } else {
            self.statuses.insert(session.to_owned(), (directory, status.clone()));
        }
        self.emit(session, "session.status", json!({"sessionID": session, "status": status}));
        if status["type"] == "idle" {
            self.emit(session, "session.idle", json!({"sessionID": session}));
        }
    }

    pub(super) fn set_busy(&mut self, session: &str) {
        self.set_status(session, &json!({"type": "busy"}));
    }

    pub(super) fn set_idle(&mut self, session: &str) {
        self.set_status(session, &json!({"type": "idle"}));
    }

    pub(super) fn error(&mut self, session: &str, error: &Value) {
        self.emit(session, "session.error", json!({"sessionID": session, "error": error}));
    }

    /// Updates costs and diffs after a step has begun or ended.
    pub(super) fn sum_up(&mut self, id: &str) -> Result<(), SessionGone> {
        let answers = self.session(id)?.messages.iter().map(|message| &message.info);
        let answers: Vec<Value> =
            answers.filter(|info| info["role"] == "assistant").cloned().collect();
        let tokens = |name: &str| -> u64 {
            answers.iter().filter_map(|info| info["tokens"][name].as_u64()).sum()
        };
        let mut total = no_tokens();
        for name in ["input", "output", "reasoning"] {
            total[name] = json!(tokens(name));
        }
        let cost: f64 = answers.iter().filter_map(|info| info["cost"].as_f64()).sum();
        self.update(id, |info| {
            info["summary"] = json!({"additions": 0, "deletions": 0, "files": 0});
            info["cost"] = if cost == 0.0 { json!(0) } else { json!(cost) };
            info["tokens"] = total;
        })?;
        self.emit(id, "session.diff", json!({"sessionID": id, "diff": []}));
        Ok(())
    }

    pub(super) fn emit(&mut self, session: &str, kind: &str, properties: Value) {
        let directory = self.directory_of(session);
        self.emit_in(&directory, kind, properties.clone());
        let Ok(known) = self.session_mut(session) else { return };
        if DURABLE.contains(&kind) {
            let sequence = known.sequence;
            known.sequence += 1;
            let id = self.hub.happened.last().map(|event| event["payload"]["id"].clone());
            let record = json!({
                "id": id,
                "type": format!("{kind}.1"),
                "seq": sequence,
                "aggregateID": session,
                "data": properties,
            });
            let payload = json!({"type": "sync", "id": id, "syncEvent": record});
            let event = json!({"directory": directory, "project": "global", "payload": payload});
            self.hub.push(event);
        }
    }

    pub(super) fn emit_in(&mut self, directory: &str, kind: &str, properties: Value) {
        let id = self.id("evt");
        let payload = json!({"id": id, "type": kind, "properties": properties});
        self.hub.push(json!({"directory": directory, "project": "global", "payload": payload}));
    }

    pub(super) fn directory_of(&self, session: &str) -> String {
        match (self.session(session), self.statuses.get(session)) {
            (Ok(session), _) => session.info["directory"].as_str().unwrap_or_default().to_owned(),
            (Err(SessionGone), Some((directory, _))) => directory.clone(),
            (Err(SessionGone), None) => super::DIRECTORY.to_owned(),
        }
    }
}

impl Message {
    pub(super) fn json(&self) -> Value {
        json!({"info": self.info, "parts": self.parts})
    }

    /// The texts that the model is given: all but those marked as ignored.
    pub(super) fn texts(&self) -> Vec<String> {
        let meant = self.parts.iter().filter(|part| part["ignored"] != true);
        meant.filter_map(|part| part["text"].as_str()).map(str::to_owned).collect()
    }

    pub(super) fn is_user(&self) -> bool {
        self.info["role"] == "user"
    }
}

pub(super) fn no_tokens() -> Value {
    json!({"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}})
}
