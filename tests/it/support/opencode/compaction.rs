//! Compaction of a conversation that exceeds the context: a summary, and a hidden message to
//! continue.

use serde_json::{Value, json};

use super::runs::{End, Run, blank, finish_step};
use super::world::{Message, SessionGone, World, no_tokens};

const GO_ON: &str = "Continue if you have next steps, or stop and ask for clarification if you are \
    unsure how to proceed.";
const TOO_LARGE: &str = "The previous request exceeded the provider's size limit due to large media \
    attachments. The conversation was compacted and media files were removed from context.\n\n";
const SUMMARY: &str = "SUMMARY: of the conversation so far";

/// Compacts when the answer used more tokens than the context has.
pub(super) fn after_usage(run: &Run, prompt: &Message) -> Result<(), SessionGone> {
    compact(&mut run.world(), prompt, false)
}

/// Compacts when the model server refused the conversation as too long: an error event, but the run
/// continues.
pub(super) fn after_overflow(run: &Run, prompt: &Message, mut answer: Value) -> Result<(), End> {
    let mut world = run.world();
    let message = "This model's maximum context length is 1000 tokens.";
    let body = json!({"error": {"message": message, "code": "context_length_exceeded"}});
    let details = json!({"message": message, "responseBody": body.to_string()});
    world.error(&run.session, &json!({"name": "ContextOverflowError", "data": details}));
    // The refused answer ends with neither an error nor a finish reason.
    answer["time"]["completed"] = json!(world.now());
    world.put_message(&answer)?;
    Ok(compact(&mut world, prompt, true)?)
}

fn compact(world: &mut World, prompt: &Message, overflow: bool) -> Result<(), SessionGone> {
    let session = prompt.info["sessionID"].as_str().unwrap_or_default();
    let request = add_prompt(world, &prompt.info)?;
    let part = json!({"type": "compaction", "auto": true, "overflow": overflow});
    let part = world.part(&request, part);
    world.put_part(&part)?;
    world.set_busy(session);
    let mut answer = blank(world, &request, &json!("compaction"));
    answer["summary"] = json!(true);
    world.put_message(&answer)?;
    world.set_busy(session);
    let start = world.part(&answer, json!({"type": "step-start"}));
    world.put_part(&start)?;
    let now = world.now();
    let text = json!({"type": "text", "text": "", "time": {"start": now}});
    let mut text = world.part(&answer, text);
    world.put_part(&text)?;
    let delta = json!({
        "sessionID": session,
        "messageID": answer["id"],
        "partID": text["id"],
        "field": "text",
        "delta": SUMMARY,
    });
    world.emit(session, "message.part.delta", delta);
    (text["text"], text["time"]["end"]) = (json!(SUMMARY), json!(now));
    world.put_part(&text)?;
    let mut tokens = no_tokens();
    (tokens["input"], tokens["output"], tokens["total"]) = (json!(568), json!(23), json!(591));
    finish_step(world, &mut answer, "stop", tokens)?;
    go_on(world, &prompt.info, overflow)?;
    world.emit(session, "session.compacted", json!({"sessionID": session}));
    Ok(())
}

fn go_on(world: &mut World, prompt: &Value, overflow: bool) -> Result<(), SessionGone> {
    let message = add_prompt(world, prompt)?;
    let now = world.now();
    let part = json!({
        "type": "text",
        "text": format!("{}{GO_ON}", if overflow { TOO_LARGE } else { "" }),
        "synthetic": true,
        "time": {"start": now, "end": now},
        "metadata": {"compaction_continue": true},
    });
    let part = world.part(&message, part);
    world.put_part(&part)
}

/// A user message that OpenCode generates itself.
fn add_prompt(world: &mut World, prompt: &Value) -> Result<Value, SessionGone> {
    let message = json!({
        "id": world.id("msg"),
        "sessionID": prompt["sessionID"],
        "role": "user",
        "time": {"created": world.now()},
        "agent": prompt["agent"],
        "model": prompt["model"],
    });
    world.put_message(&message)?;
    Ok(message)
}
