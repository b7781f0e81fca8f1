//! Tools, as far as a conversation shows them. Nothing is executed: `bash` simulates `echo` and
//! `sleep`, `read` finds every file that is not called `missing`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::runs::{End, Run};
use super::script::Call;
use super::world::{Ask, Reply, SessionGone, World};

const KNOWN: [&str; 12] = [
    "bash",
    "read",
    "write",
    "edit",
    "grep",
    "glob",
    "list",
    "webfetch",
    "todowrite",
    "task",
    "question",
    "skill",
];

#[derive(PartialEq)]
pub(super) enum Outcome {
    GoesOn,
    /// The run ends without an error anywhere.
    Rejected,
}

impl Outcome {
    pub(super) fn is_rejected(&self) -> bool {
        *self == Outcome::Rejected
    }
}

pub(super) async fn call(
    run: &Run,
    answer: &Value,
    call: &Call,
    index: usize,
) -> Result<Outcome, End> {
    let parts = run.world().sessions.len();
    let id = format!("call_{parts}_{}_{index}", answer["id"].as_str().unwrap_or_default());
    let state = json!({"status": "pending", "input": {}, "raw": ""});
    let part = json!({"type": "tool", "tool": call.tool, "callID": id, "state": state});
    let mut part = run.put_part(answer, part)?;
    let rule = action(&run.world(), &run.session, call);
    if rule == "deny" || !KNOWN.contains(&call.tool.as_str()) {
        unavailable(run, &mut part, call)?;
        return Ok(Outcome::GoesOn);
    }
    if call.tool == "question" {
        return question(run, answer, part, call).await;
    }
    let start = run.world().now();
    if rule == "ask" {
        let asked = ask_permission(run, &part, call)?;
        set_state(run, &mut part, json!({"status": "running", "input": call.input}), start)?;
        let reply = run.wait(answer, asked).await?;
        if !matches!(reply, Ok(Reply::Allowed)) {
            let refused = "The user rejected permission to use this specific tool call.";
            fail(run, &mut part, call, refused)?;
            return Ok(Outcome::Rejected);
        }
    } else if call.tool == "bash" {
        set_state(run, &mut part, running(call, ""), start)?;
    }
    match call.tool.as_str() {
        "bash" => bash(run, answer, &mut part, call).await?,
        "todowrite" => write_todos(run, &mut part, call)?,
        "read" if call.input.to_string().contains("missing") => {
            set_state(run, &mut part, json!({"status": "running", "input": call.input}), start)?;
            fail(run, &mut part, call, "File not found")?;
        }
        _ => {
            set_state(run, &mut part, json!({"status": "running", "input": call.input}), start)?;
            complete(run, &mut part, call, "", json!({"truncated": false}))?;
        }
    }
    Ok(Outcome::GoesOn)
}

/// The last matching rule decides; the default is to allow.
fn action(world: &World, session: &str, call: &Call) -> String {
    let of_session = world.session(session).map(|session| session.info["permission"].clone());
    let of_session = of_session.unwrap_or_default();
    let mut rules = world.rules.iter().chain(of_session.as_array().into_iter().flatten());
    let fits = |rule: &&Value| {
        fits(&rule["permission"], &call.tool) && fits(&rule["pattern"], &subject(call))
    };
    let rule = rules.rfind(fits);
    rule.and_then(|rule| rule["action"].as_str()).unwrap_or("allow").to_owned()
}

fn fits(pattern: &Value, text: &str) -> bool {
    let pattern = pattern.as_str().unwrap_or("*");
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

/// The subject of a call that permission rules match.
fn subject(call: &Call) -> String {
    let named = ["command", "filePath", "path"].iter().find_map(|name| call.input[name].as_str());
    named.unwrap_or("*").to_owned()
}

fn ask_permission(
    run: &Run,
    part: &Value,
    call: &Call,
) -> Result<oneshot::Receiver<Reply>, SessionGone> {
    let subject = subject(call);
    let word = subject.split_whitespace().next().unwrap_or_default();
    let request = json!({
        "permission": call.tool,
        "patterns": [subject],
        "metadata": {"command": subject},
        "always": [format!("{word} *")],
    });
    Ok(ask(run, part, "per", "permission.asked", request))
}

fn ask(
    run: &Run,
    part: &Value,
    kind: &str,
    event: &str,
    mut request: Value,
) -> oneshot::Receiver<Reply> {
    let mut world = run.world();
    request["id"] = json!(world.id(kind));
    request["sessionID"] = json!(run.session);
    request["tool"] = json!({"messageID": part["messageID"], "callID": part["callID"]});
    let (answer, asked) = oneshot::channel();
    let directory = world.directory_of(&run.session);
    world.asks.push(Ask { request: request.clone(), directory, answer });
    world.emit(&run.session, event, request);
    asked
}

async fn question(run: &Run, answer: &Value, mut part: Value, call: &Call) -> Result<Outcome, End> {
    let start = run.world().now();
    let request = json!({"questions": call.input["questions"]});
    let asked = ask(run, &part, "que", "question.asked", request);
    set_state(run, &mut part, json!({"status": "running", "input": call.input}), start)?;
    match run.wait(answer, asked).await? {
        Ok(Reply::Answered(text)) => {
            complete(run, &mut part, call, &text, json!({"truncated": false}))?;
            Ok(Outcome::GoesOn)
        }
        Ok(Reply::Allowed | Reply::Rejected) | Err(_) => {
            fail(run, &mut part, call, "The user dismissed this question")?;
            Ok(Outcome::Rejected)
        }
    }
}

async fn bash(run: &Run, answer: &Value, part: &mut Value, call: &Call) -> Result<(), End> {
    let start = part["state"]["time"]["start"].as_i64().unwrap_or(0);
    set_state(run, part, running(call, ""), start)?;
    let mut output = String::new();
    for command in call.input["command"].as_str().unwrap_or_default().split(';') {
        let (word, rest) = command.trim().split_once(' ').unwrap_or((command.trim(), ""));
        match word {
            "echo" => output.push_str(&format!("{rest}\n")),
            "sleep" => {
                let time = Duration::from_secs_f64(rest.parse().unwrap_or(0.0));
                run.wait(answer, tokio::time::sleep(time)).await?;
            }
            _ => {}
        }
    }
    set_state(run, part, running(call, &output), start)?;
    let metadata = json!({"output": output, "exit": 0, "truncated": false});
    complete(run, part, call, &output, metadata)?;
    Ok(())
}

fn running(call: &Call, output: &str) -> Value {
    json!({"status": "running", "input": call.input, "metadata": {"output": output}})
}

fn write_todos(run: &Run, part: &mut Value, call: &Call) -> Result<(), SessionGone> {
    let wanted = call.input["todos"].as_array().cloned().unwrap_or_default();
    // Ids are dropped.
    let kept = |todo: &Value| {
        json!({
            "content": todo["content"],
            "status": todo["status"],
            "priority": todo.get("priority").unwrap_or(&json!("medium")),
        })
    };
    let todos: Value = wanted.iter().map(kept).collect();
    {
        let mut world = run.world();
        world.session_mut(&run.session)?.todos = todos.clone();
        let event = json!({"sessionID": run.session, "todos": todos});
        world.emit(&run.session, "todo.updated", event);
    }
    let start = run.world().now();
    set_state(run, part, json!({"status": "running", "input": call.input}), start)?;
    let text = format!("{todos:#}");
    complete(run, part, call, &text, json!({"todos": todos, "truncated": false}))
}

/// The model is told which tools exist, and continues.
fn unavailable(run: &Run, part: &mut Value, call: &Call) -> Result<(), SessionGone> {
    let error = format!("Model tried to call unavailable tool '{}'.", call.tool);
    let output = format!("The arguments provided to the tool are invalid: {error}");
    part["tool"] = json!("invalid");
    let input = json!({"tool": call.tool, "error": error});
    let invalid = Call { tool: "invalid".to_owned(), input };
    complete(run, part, &invalid, &output, json!({"truncated": false}))
}

fn complete(
    run: &Run,
    part: &mut Value,
    call: &Call,
    output: &str,
    metadata: Value,
) -> Result<(), SessionGone> {
    let start = part["state"]["time"]["start"].as_i64();
    let now = run.world().now();
    part["state"] = json!({
        "status": "completed",
        "input": call.input,
        "output": output,
        "title": subject(call),
        "metadata": metadata,
        "time": {"start": start.unwrap_or(now), "end": now},
    });
    run.world().put_part(part)
}

fn fail(run: &Run, part: &mut Value, call: &Call, error: &str) -> Result<(), SessionGone> {
    let start = part["state"]["time"]["start"].clone();
    let mut world = run.world();
    let time = json!({"start": start, "end": world.now()});
    part["state"] = json!({"status": "error", "input": call.input, "error": error, "time": time});
    world.put_part(part)
}

fn set_state(run: &Run, part: &mut Value, mut state: Value, start: i64) -> Result<(), SessionGone> {
    state["time"] = json!({"start": start});
    part["state"] = state;
    run.world().put_part(part)
}

/// An aborted shell counts as completed, every other tool as failed.
pub(super) fn abort_running(world: &mut World, answer: &Value) -> Result<(), SessionGone> {
    let session = answer["sessionID"].as_str().unwrap_or_default();
    let message = world.message_mut(session, answer["id"].as_str().unwrap_or_default())?;
    let open = |part: &&Value| part["state"]["status"] == "running";
    let parts: Vec<Value> = message.parts.iter().filter(open).cloned().collect();
    for mut part in parts {
        let (start, end) = (part["state"]["time"]["start"].clone(), world.now());
        let time = json!({"start": start, "end": end});
        let input = part["state"]["input"].clone();
        let executing = part["state"].get("metadata").is_some();
        part["state"] = if part["tool"] == "bash" && executing {
            let output =
                "(no output)\n\n<shell_metadata>\nUser aborted the command\n</shell_metadata>";
            json!({
                "status": "completed",
                "input": input,
                "output": output,
                "title": input["command"],
                "metadata": {"output": output, "exit": null, "truncated": false},
                "time": time,
            })
        } else {
            json!({
                "status": "error",
                "input": input,
                "error": "Tool execution aborted",
                "metadata": {"interrupted": true},
                "time": time,
            })
        };
        world.put_part(&part)?;
    }
    Ok(())
}
