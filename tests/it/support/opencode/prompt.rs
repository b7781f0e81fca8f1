//! Prompts, from the POST to the run; and forks, which copy messages.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Server;
use super::runs;
use super::world::{ActiveRun, Message, SessionGone, World};

/// Executes a prompt after its 204 was sent.
pub(super) async fn accept(server: Arc<Server>, session: String, body: Value) {
    let (stored_after, busy_after) = server.knobs().gaps;
    tokio::time::sleep(stored_after).await;
    if !agent_is_known(&server, &session, &body) {
        return;
    }
    // The session may have been deleted in between.
    if store(&mut server.world(), &session, &body).is_err() || body["noReply"] == true {
        return;
    }
    tokio::time::sleep(busy_after).await;
    start(&server, &session);
}

/// An unknown agent: nothing is stored, and the session becomes neither busy nor idle.
fn agent_is_known(server: &Server, session: &str, body: &Value) -> bool {
    let mut world = server.world();
    let Some(name) = body["agent"].as_str() else { return true };
    if world.agents.iter().any(|agent| agent["name"] == name) {
        return true;
    }
    let shown = world.agents.iter().filter(|agent| agent["hidden"] != true);
    let names: Vec<_> = shown.filter_map(|agent| agent["name"].as_str()).collect();
    let message = format!("Agent not found: \"{name}\". Available agents: {}", names.join(", "));
    let trace = "UnknownError: UnknownError\n    at <anonymous> (chunk.js:1142:2068)";
    for message in [message.as_str(), trace] {
        world.error(session, &json!({"name": "UnknownError", "data": {"message": message}}));
    }
    false
}

fn store(world: &mut World, session: &str, body: &Value) -> Result<(), SessionGone> {
    let known = &world.session(session)?.info;
    // The session keeps its model, but not its agent.
    let agent = body["agent"].as_str().unwrap_or("build").to_owned();
    let sticky = |name: &str| known["model"][name].as_str().map(str::to_owned);
    let wish = |name: &str| body["model"][name].as_str().map(str::to_owned);
    let provider = wish("providerID").or(sticky("providerID")).unwrap_or("scripted".into());
    let model = wish("modelID").or(sticky("id")).unwrap_or("first".into());
    let full = json!({"id": model, "providerID": provider, "variant": "default"});
    if known["agent"] != agent.as_str() || known["model"] != full {
        world.update(session, |info| {
            info["agent"] = json!(agent);
            info["model"] = full;
        })?;
    }
    let id = body["messageID"].as_str().map_or_else(|| world.id("msg"), str::to_owned);
    let mut message = json!({
        "id": id,
        "sessionID": session,
        "role": "user",
        "time": {"created": world.now()},
        "agent": agent,
        "model": {"providerID": provider, "modelID": model},
    });
    for name in ["tools", "system"] {
        if let Some(value) = body.get(name) {
            message[name] = value.clone();
        }
    }
    world.put_message(&message)?;
    for part in body["parts"].as_array().into_iter().flatten() {
        let mut stored = world.part(&message, part.clone());
        if let Some(id) = part.get("id") {
            stored["id"] = id.clone();
        }
        world.put_part(&stored)?;
    }
    world.update(session, |_| {})?;
    if let Some(tools) = body["tools"].as_object() {
        let rules: Vec<Value> = tools.iter().map(|(tool, allowed)| rule(tool, allowed)).collect();
        world.update(session, |info| info["permission"] = json!(rules))?;
    }
    Ok(())
}

fn rule(tool: &str, allowed: &Value) -> Value {
    let action = if *allowed == json!(true) { "allow" } else { "deny" };
    json!({"permission": tool, "pattern": "*", "action": action})
}

/// A session has one run at a time, which picks up later prompts by itself.
pub(super) fn start(server: &Arc<Server>, session: &str) {
    let (told, hears) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    {
        let mut world = server.world();
        if let Some(running) = world.runs.get_mut(session) {
            running.again |= running.ending;
            return;
        }
        let running = ActiveRun { stop: stop.clone(), told, ending: false, again: false };
        world.runs.insert(session.to_owned(), running);
    }
    server.spawn(runs::run(server.clone(), session.to_owned(), stop, hears));
}

/// A new session without a parent, with copies of the messages before `until`.
pub(super) fn fork(
    world: &mut World,
    session: &str,
    until: Option<&str>,
) -> Result<Value, SessionGone> {
    let from = world.session(session)?;
    let title = from.info["title"].as_str().unwrap_or_default();
    let number = title.rsplit_once(" (fork #").and_then(|(name, rest)| {
        Some((name.to_owned(), rest.strip_suffix(')')?.parse::<u32>().ok()?))
    });
    let (name, number) = number.unwrap_or((title.to_owned(), 0));
    let mut wish = json!({"title": format!("{name} (fork #{})", number + 1)});
    if let Some(metadata) = from.info.get("metadata") {
        wish["metadata"] = metadata.clone();
    }
    let directory = from.info["directory"].as_str().unwrap_or_default().to_owned();
    let taken = from.messages.iter().take_while(|message| message.info["id"].as_str() != until);
    let copied: Vec<Message> = taken.cloned().collect();
    let fork = world.create(&directory, wish.as_object().unwrap());
    let mut renamed: Vec<(Value, Value)> = Vec::new();
    for Message { mut info, parts } in copied {
        let id = json!(world.id("msg"));
        renamed.push((info["id"].clone(), id.clone()));
        if let Some(parent) = info.get_mut("parentID") {
            let known = renamed.iter().find(|(old, _)| old == parent);
            *parent = known.map_or(Value::Null, |(_, new)| new.clone());
        }
        (info["id"], info["sessionID"]) = (id, fork["id"].clone());
        world.put_message(&info)?;
        for part in parts {
            let part = world.part(&info, part);
            world.put_part(&part)?;
        }
    }
    Ok(fork)
}
