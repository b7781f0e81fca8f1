//! What a call needs to know of its caller before it is carried out (T18): which conversation it is, for tools
//! that mean all of its tasks, and where it works, for those that launch. Only MCP over HTTP leaves either open.

use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::table::Tool;
use crate::supervisor::Caller;
use crate::task::MAILBOX;

/// Why this caller cannot make this call. `None`: it can.
pub(super) fn refusal(
    tool: Tool,
    caller: &Caller,
    arguments: &Map<String, Value>,
) -> Option<Refusal> {
    // An empty list names nothing, and a wait for nothing in particular is one for all.
    let has = |name: &str| match arguments.get(name) {
        None | Some(Value::Null) => false,
        Some(Value::Array(names)) => !names.is_empty(),
        Some(_) => true,
    };
    // A batch is found by the parent, which others of the same client and directory share.
    let is_shared = match tool {
        Tool::List | Tool::Clear => true,
        Tool::Cancel => !has("task_id"),
        Tool::Wait => !has("task_ids") || has("batch"),
        Tool::Task | Tool::Output | Tool::Send | Tool::Blocking => false,
    };
    if caller.anonymous && is_shared {
        let text = "this client does not say which conversation it is, so there is no list of its \
                    tasks; name tasks by their ids, or add `?parent=NAME` to the address of the MCP \
                    server, with a name of its own for each conversation";
        return Some(Refusal::Arguments(text.to_owned()));
    }
    // A resume goes on where its task works, so it needs no directory. To guess one for a launch would let
    // an agent write in a place that the caller did not name.
    let launches = matches!(tool, Tool::Task | Tool::Blocking) && !has("resume");
    if launches && caller.host == MAILBOX && caller.directory.is_empty() {
        let text = "this client does not say in which directory agents are to work, so nothing was \
                    launched; add `?directory=/absolute/path` to the address of the MCP server, or \
                    let the client name its roots";
        return Some(Refusal::Arguments(text.to_owned()));
    }
    None
}
