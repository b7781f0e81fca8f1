//! `asyncagents_list`: the direct children of the caller, newest first, with counts by state. Descriptions and
//! names of agents are quoted as labels, one line each.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Refusal, counted, parse};
use crate::quote::label;
use crate::supervisor::{Caller, Listing, Supervisor};
use crate::task::time::say;
use crate::task::{Status, Task, Timestamp};

pub(super) const DESCRIPTION: &str = "\
List the background tasks of this conversation, newest first, with their state and how long they \
have been running.";

pub(super) fn properties() -> Value {
    json!({
        "status": {
            "type": "string", "enum": Status::ALL.map(Status::name),
            "description": "Only tasks in this state.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    status: Option<String>,
}

pub(super) fn call(
    supervisor: &Supervisor,
    caller: &Caller,
    arguments: Value,
) -> Result<String, Refusal> {
    let Arguments { status } = parse(arguments)?;
    // An empty string counts as left out.
    let status = status.filter(|word| !word.is_empty()).map(|word| {
        Status::parse(&word).ok_or_else(|| {
            let known = Status::ALL.map(Status::name).join(", ");
            Refusal::Arguments(format!("no state `{word}`; there are: {known}"))
        })
    });
    let listing = supervisor.list(&caller.session, status.transpose()?)?;
    Ok(render(&listing, supervisor.clock().now()))
}

/// The first line counts all tasks, whatever state was asked for: a caller that filters still learns that there
/// are others.
fn render(listing: &Listing, now: Timestamp) -> String {
    // The exact text of the specification, without a full stop.
    if listing.tasks.is_empty() && listing.counts.total() == 0 {
        return "No background tasks found".to_owned();
    }
    let counts: Vec<String> = Status::ALL
        .into_iter()
        .map(|status| format!("{} {}", listing.counts.of(status), status.name()))
        .collect();
    let mut lines = vec![format!("{}: {}", counted(listing.counts.total()), counts.join(", "))];
    if listing.tasks.is_empty() {
        lines.push("None of them is in the state you asked for.".to_owned());
    }
    lines.extend(listing.tasks.iter().map(|task| line(task, now)));
    match listing.total - listing.tasks.len() as u64 {
        0 => {}
        1 => lines.push("… and 1 older one".to_owned()),
        hidden => lines.push(format!("… and {hidden} older ones")),
    }
    lines.join("\n")
}

/// One task; `(forked)` and `(resumed)` stand after its id, as the specification has it.
pub(super) fn line(task: &Task, now: Timestamp) -> String {
    let forked = if task.origin.is_forked { " (forked)" } else { "" };
    let resumed = if task.run > 0 { " (resumed)" } else { "" };
    let status = match task.is_live() {
        true => format!("{}, {}", task.status().name(), task.progress.phase.name()),
        false => task.status().name().to_owned(),
    };
    let took = say(task.completed_at.unwrap_or(now).since(task.started_at));
    format!(
        "- {id}{forked}{resumed} [{status}] {agent}: \"{description}\" ({took})",
        id = task.short_id,
        agent = label(&task.order.agent),
        description = label(&task.order.description),
    )
}
