//! The table of all tools: what callers see of each, and the function that carries out a call. A new tool is a
//! file with its texts and its call, a variant of [`Tool`] and a row here; the order is checked at compile time.

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::refusal::Refusal;
use super::waiter::Waiter;
use super::{
    Answer, Audience, NameSet, Toolbox, blocking, cancel, clear, list, output, send, task, wait,
};
use crate::supervisor::{Caller, Supervisor};

/// Also the index of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Task,
    Output,
    Wait,
    Cancel,
    Send,
    List,
    Clear,
    Blocking,
}

/// The worst that a call can do, from which the hints follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Stops,
    /// The agent may do anything that agents may: one that is launched, or told something else.
    Launches,
}

/// One tool.
pub(super) struct Row {
    tool: Tool,
    /// Its name without the prefix.
    pub(super) word: &'static str,
    pub(super) title: &'static str,
    pub(super) effect: Effect,
    /// A call may take minutes.
    pub(super) waits: bool,
    pub(super) required: &'static [&'static str],
    pub(super) description: fn(Audience) -> String,
    pub(super) properties: fn(Audience) -> Value,
    pub(super) call: for<'a> fn(Invocation<'a>) -> BoxFuture<'a, Result<Answer, Refusal>>,
}

/// One call, with all that a tool may need for it.
pub(super) struct Invocation<'a> {
    pub(super) supervisor: &'a Supervisor,
    pub(super) toolbox: &'a Toolbox,
    pub(super) caller: &'a Caller,
    pub(super) names: NameSet,
    pub(super) arguments: Value,
    pub(super) key: Option<String>,
    pub(super) waiter: &'a Waiter<'a>,
}

/// In the order of [`Tool`].
const TOOLS: [Row; 8] = [
    Row {
        tool: Tool::Task,
        word: "task",
        title: "Launch a background agent",
        effect: Effect::Launches,
        waits: false,
        required: task::REQUIRED,
        description: task::description,
        properties: task::properties,
        call: |Invocation { supervisor, caller, names, arguments, key, .. }| {
            Box::pin(async move {
                task::call(supervisor, caller, names, arguments, key).await.map(Answer::from)
            })
        },
    },
    Row {
        tool: Tool::Output,
        word: "output",
        title: "Show a background agent's result",
        effect: Effect::Reads,
        waits: true,
        required: output::REQUIRED,
        description: output::description,
        properties: |_| output::properties(),
        call: |Invocation { supervisor, caller, names, arguments, .. }| {
            Box::pin(output::call(supervisor, caller, names, arguments))
        },
    },
    Row {
        // `Reads`, although results that were shown are marked as seen: the effect is a hint by which clients decide
        // whether to ask for permission, and a mark needs none.
        tool: Tool::Wait,
        word: "wait",
        title: "Wait for background agents",
        effect: Effect::Reads,
        waits: true,
        required: &[],
        description: |_| wait::DESCRIPTION.to_owned(),
        properties: wait::properties,
        call: |Invocation { supervisor, caller, names, arguments, waiter, .. }| {
            Box::pin(wait::call(supervisor, caller, names, arguments, waiter))
        },
    },
    Row {
        tool: Tool::Cancel,
        word: "cancel",
        title: "Stop background agents",
        effect: Effect::Stops,
        waits: false,
        required: &[],
        description: |_| cancel::DESCRIPTION.to_owned(),
        properties: |_| cancel::properties(),
        call: |Invocation { supervisor, caller, arguments, key, .. }| {
            Box::pin(async move {
                cancel::call(supervisor, caller, arguments, key).await.map(Answer::from)
            })
        },
    },
    Row {
        tool: Tool::Send,
        word: "send",
        title: "Say something to a background agent",
        effect: Effect::Launches,
        waits: false,
        required: send::REQUIRED,
        description: |_| send::DESCRIPTION.to_owned(),
        properties: |_| send::properties(),
        call: |Invocation { supervisor, caller, names, arguments, key, .. }| {
            Box::pin(async move {
                send::call(supervisor, caller, names, arguments, key).await.map(Answer::from)
            })
        },
    },
    Row {
        tool: Tool::List,
        word: "list",
        title: "List background agents",
        effect: Effect::Reads,
        waits: false,
        required: &[],
        description: |_| list::DESCRIPTION.to_owned(),
        properties: |_| list::properties(),
        call: |Invocation { supervisor, caller, arguments, .. }| {
            Box::pin(async move { list::call(supervisor, caller, arguments).map(Answer::from) })
        },
    },
    Row {
        tool: Tool::Clear,
        word: "clear",
        title: "Stop background agents and clear the list",
        effect: Effect::Stops,
        waits: false,
        required: &[],
        description: |_| clear::DESCRIPTION.to_owned(),
        properties: |_| json!({}),
        call: |Invocation { supervisor, caller, arguments, key, .. }| {
            Box::pin(async move {
                clear::call(supervisor, caller, arguments, key).await.map(Answer::from)
            })
        },
    },
    Row {
        tool: Tool::Blocking,
        word: "Task",
        title: "Run an agent and wait for its answer",
        effect: Effect::Launches,
        waits: true,
        required: blocking::REQUIRED,
        description: |_| blocking::DESCRIPTION.to_owned(),
        properties: |_| blocking::properties(),
        call: |Invocation { supervisor, toolbox, caller, arguments, key, waiter, .. }| {
            let settings = &toolbox.blocking;
            Box::pin(blocking::call(supervisor, caller, settings, arguments, key, waiter))
        },
    },
];

impl Tool {
    pub(super) fn row(self) -> &'static Row {
        const { assert!(is_in_order()) };
        &TOOLS[self as usize]
    }
}

const fn is_in_order() -> bool {
    // At compile time, because `row` indexes by the variant's number; a `for` loop is not const yet.
    let mut n = 0;
    while n < TOOLS.len() {
        if TOOLS[n].tool as usize != n {
            return false;
        }
        n += 1;
    }
    true
}
