//! Permission requests in tool answers (T15): what tasks wait for, and the commands a person answers with.
//! Agents must not answer, and their commands cannot (`http/agents.rs`); they are asked to show the user what
//! is requested. Requests are quoted as literals: a command can be made to look like a sentence of ours.

use crate::quote::{label, short_literal};
use crate::supervisor::{Error, PermissionRequest, Supervisor};
use crate::task::{ShortId, Task};
use crate::wire::PermissionView;

/// How many characters of a request are shown; `asyncagents approve` shows all of it.
const MOST_OF_REQUEST: usize = 2_000;

/// The requests of these tasks, by task; `None` when there are none.
pub(super) fn waiting_for_a_person(tasks: &[Task], asks: &[PermissionRequest]) -> Option<String> {
    let of = |task: &Task| -> Vec<String> {
        let own = asks.iter().filter(|asked| asked.task == task.id);
        own.map(|asked| short_literal(&asked.ask.what, MOST_OF_REQUEST)).collect()
    };
    let asking = tasks.iter().map(|task| (task, of(task))).filter(|(_, asked)| !asked.is_empty());
    let lines: Vec<String> = asking
        .map(|(task, asked)| {
            format!(
                "- {id} \"{description}\" asks for {asked}\n  {answers}",
                id = task.short_id,
                description = label(&task.order.description),
                asked = asked.join(" and "),
                answers = answers(&task.short_id),
            )
        })
        .collect();
    (!lines.is_empty()).then(|| format!("Waiting for a person:\n{}", lines.join("\n")))
}

/// Requests as clients see them, with the sentence that a person is asked.
pub fn views(
    supervisor: &Supervisor,
    asked: Vec<PermissionRequest>,
) -> Result<Vec<PermissionView>, Error> {
    let view = |PermissionRequest { ask, task, since }: PermissionRequest| {
        let task = supervisor.task(&task)?;
        let question = format!(
            "Task {} \"{}\" asks for {}. Is it allowed to?",
            task.short_id,
            label(&task.order.description),
            short_literal(&ask.what, MOST_OF_REQUEST)
        );
        Ok(PermissionView {
            id: ask.id,
            session_id: task.id.to_string(),
            short_id: task.short_id.to_string(),
            description: task.order.description,
            what: ask.what,
            since,
            question,
        })
    };
    asked.into_iter().map(view).collect()
}

/// The commands a person answers with.
pub(super) fn answers(id: &ShortId) -> String {
    format!("`asyncagents approve {id}` allows it, `asyncagents deny {id}` refuses it")
}

/// Why a wait returned before its time, and what to do about it: to call again at once would return at once.
pub(super) fn why_it_returned(tool: &str) -> String {
    format!(
        "Everything you wait for needs an answer first, so this returned early and would do so again. \
         The user decides: show what is asked and the command, and do not answer yourself. Then call \
         {tool} again."
    )
}
