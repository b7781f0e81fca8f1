//! The `todo` tool: the agent's own list of steps, kept in memory. The host reads it as well: a run with
//! open entries is not finished.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Context, Output};

pub(super) const DESCRIPTION: &str = "\
Keep the list of what is to be done in a task of several steps. Pass the whole list every time; it \
replaces the old one. Have one thing `in_progress`, mark things `completed` as soon as they are, \
and `cancelled` when they turn out not to be needed. The work ends when nothing is open.";

pub(super) const REQUIRED: &[&str] = &["todos"];

pub(super) fn properties() -> Value {
    json!({
        "todos": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "content": { "type": "string", "description": "What is to be done." },
                    "status": {
                        "type": "string",
                        "enum": ["pending", "in_progress", "completed", "cancelled"],
                    },
                },
                "required": ["content", "status"],
                "additionalProperties": false,
            },
        },
    })
}

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Todo {
    pub content: String,
    pub status: TodoStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    Pending,
    InProgress,
    Completed,
    Cancelled,
}

/// The list; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Todos(Arc<Mutex<Vec<Todo>>>);

impl Todos {
    pub fn new(todos: Vec<Todo>) -> Todos {
        Todos(Arc::new(Mutex::new(todos)))
    }

    pub fn all(&self) -> Vec<Todo> {
        self.lock().clone()
    }

    // Whole, not entry by entry: a list that is patched drifts away from the one the model has in mind.
    pub fn replace(&self, todos: Vec<Todo>) {
        *self.lock() = todos;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Todo>> {
        self.0.lock()
    }
}

impl TodoStatus {
    pub fn is_open(self) -> bool {
        match self {
            TodoStatus::Pending | TodoStatus::InProgress => true,
            TodoStatus::Completed | TodoStatus::Cancelled => false,
        }
    }

    fn mark(self) -> &'static str {
        match self {
            TodoStatus::Pending => "[ ]",
            TodoStatus::InProgress => "[>]",
            TodoStatus::Completed => "[x]",
            TodoStatus::Cancelled => "[-]",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    todos: Vec<Todo>,
}

pub(super) fn run(arguments: Arguments, context: &Context) -> Output {
    let todos = arguments.todos;
    let mut lines: Vec<String> =
        todos.iter().map(|todo| format!("{} {}", todo.status.mark(), todo.content)).collect();
    // An empty result reads like a failure to some models.
    if lines.is_empty() {
        lines.push("(the list is empty)".to_owned());
    }
    let open = todos.iter().filter(|todo| todo.status.is_open()).count();
    let title = format!("{open} of {} to do", todos.len());
    context.todos.replace(todos);
    Output { text: lines.join("\n"), title }
}
