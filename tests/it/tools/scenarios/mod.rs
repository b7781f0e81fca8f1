//! The scenarios of the seed documents S0, S1, S3 and S4 that name a tool, checked through the
//! tool's text. A test is named by its document and the scenario's words. Where our specification
//! overrides a seed, the specification is tested.

mod background;
mod blocking;
mod deferred;
mod fork;
mod habits;
mod list;
mod mail;
mod output;
mod parts;
mod resume;
mod task;
mod wait;

use std::time::Duration;

use asyncagents::supervisor::Caller;
use asyncagents::task::{MAILBOX, SessionId, Task};
use asyncagents::tools::{Alias, Blocking, OfferScope, Toolbox};
use asyncagents::wire::ToolAnswer;
use serde_json::{Value, json};

use crate::support::{World, caller};
use crate::tools::table::same;

/// S0 and S1 have the same scenarios of the same tools under two prefixes.
const S0_AND_S1: [&str; 2] = ["superagents", "asyncagents"];

/// Long enough for a wait to be observed, short enough for tests in which it times out.
const SHORT: Duration = Duration::from_millis(60);

/// A caller and its tools under one prefix.
struct Tools<'a> {
    world: &'a World,
    caller: Caller,
    prefix: &'static str,
    toolbox: Toolbox,
}

impl<'a> Tools<'a> {
    /// For a caller with a conversation.
    async fn of(world: &'a World, prefix: &'static str) -> Tools<'a> {
        Tools::by(world, caller(&world.parent().await), prefix)
    }

    /// For a client without a conversation.
    fn of_client(world: &'a World) -> Tools<'a> {
        let session = SessionId::new("a-client");
        let client = Caller { host: MAILBOX.into(), ..caller(&session) };
        Tools::by(world, client, "asyncagents")
    }

    fn by(world: &'a World, caller: Caller, prefix: &'static str) -> Tools<'a> {
        let blocking = Blocking { offered: OfferScope::Everywhere, ..Blocking::default() };
        let aliases = vec![Alias::Superagents, Alias::Background];
        Tools { world, caller, prefix, toolbox: Toolbox { aliases, blocking } }
    }

    async fn call(&self, word: &str, arguments: Value) -> ToolAnswer {
        let name = match word {
            "Task" => word.to_owned(),
            _ => format!("{}_{word}", self.prefix),
        };
        self.world.tool_of(&self.toolbox, &self.caller, &name, arguments).await
    }

    /// The answer, with ids and times normalised.
    async fn says(&self, word: &str, arguments: Value) -> String {
        let answer = self.call(word, arguments).await;
        assert!(!answer.is_error, "{}", answer.text);
        same(self.world, &self.caller, answer.text)
    }

    /// The normalised text of a refusal.
    async fn refuses(&self, word: &str, arguments: Value) -> String {
        let answer = self.call(word, arguments).await;
        assert!(answer.is_error, "{}", answer.text);
        same(self.world, &self.caller, answer.text)
    }

    /// Launches a task through the tool.
    async fn launch(&self, prompt: &str) -> Task {
        self.says("task", order(prompt)).await;
        self.newest()
    }

    /// Launches a task and waits for its end.
    async fn end_of(&self, prompt: &str) -> Task {
        self.world.ended(&self.launch(prompt).await).await
    }

    async fn output(&self, task: &Task) -> String {
        self.says("output", json!({ "task_id": task.short_id })).await
    }

    fn tasks(&self) -> Vec<Task> {
        self.world.supervisor.list(&self.caller.session, None).unwrap().tasks
    }

    fn newest(&self) -> Task {
        self.tasks().remove(0)
    }

    async fn finish(&self, task: &Task, text: &str) {
        self.world.finish(task, text).await;
        self.world.ended(task).await;
    }
}

fn order(prompt: &str) -> Value {
    json!({ "description": "find the login", "prompt": prompt, "agent": "explore" })
}

/// Launch arguments with additional properties.
fn order_with(prompt: &str, more: Value) -> Value {
    let mut order = order(prompt);
    for (name, value) in more.as_object().unwrap() {
        order[name] = value.clone();
    }
    order
}
