//! Tool definitions as clients register them: names, descriptions, JSON schemas and MCP hints.
//!
//! Clients pass the schemas on to model providers, and some providers refuse the whole request for a keyword
//! that they do not know; so over MCP schemas have the common [`KEYWORDS`] only.

use serde_json::{Map, Value, json};

use super::table::{Effect, Tool};
use super::{Audience, NameSet, OfferedTool, Toolbox, properties};
use crate::quote::label;
use crate::supervisor::AgentOffer;
use crate::wire::{HintsView, PROTOCOL, ToolView, ToolsView};

const INSTRUCTIONS: &str = "\
Background agents. Launch independent pieces of work with asyncagents_task, several at once, and go \
on with your own work: each agent works in a session of its own. When you have nothing left to do \
but to wait, call asyncagents_wait: one call sleeps until your agents have ended, so never ask for \
their status again and again. A wait that is cut short loses nothing; call it again with the same \
arguments. Any answer may begin with what ended meanwhile, and its result. Results are \
fetched again with asyncagents_output; a completed task can be asked a follow-up with asyncagents_task \
and `resume`, one that still works can be told something with asyncagents_send. Before your final answer, stop what you no longer need with \
asyncagents_cancel(all=true).";

/// The same where the blocking `Task` is offered.
const ABOUT_BLOCKING: &str = " `Task` is for a short question whose answer you need at once: it \
waits, and what takes longer goes on in the background.";

/// How many agents a description names: it is part of every request to the client's model.
const MOST_AGENTS: usize = 40;

/// The JSON Schema keywords that all model providers know.
const KEYWORDS: [&str; 8] =
    ["type", "description", "enum", "minimum", "maximum", "items", "properties", "required"];

/// The definitions of all tools, for a client that could launch these agents.
pub fn list(toolbox: &Toolbox, audience: Audience, agents: &[AgentOffer]) -> ToolsView {
    // Only if the agent of `Task` is known to be read-only: when agents could not be listed, it counts as one
    // that may write.
    let blocking_agent = agents.iter().find(|agent| agent.name == toolbox.blocking.agent);
    let reads = blocking_agent.is_some_and(|agent| agent.reads_only);
    let view = |offered: OfferedTool| {
        let mut view = view(offered, audience, reads);
        match (audience, offered.tool) {
            (Audience::Mcp, Tool::Task) => view.description.push_str(&named_agents(agents)),
            (Audience::Mcp, Tool::Blocking) => {
                view.description.push_str(&done_by(&toolbox.blocking.agent, reads));
            }
            (Audience::Mcp | Audience::Conversation, _) => {}
        }
        view
    };
    ToolsView {
        protocol: PROTOCOL,
        tools: toolbox.tools(audience).map(view).collect(),
        instructions: match audience {
            Audience::Conversation => String::new(),
            Audience::Mcp => instructions(toolbox),
        },
    }
}

/// The instructions of the MCP server: how the tools are meant to be used together.
pub fn instructions(toolbox: &Toolbox) -> String {
    match toolbox.offers_blocking(Audience::Mcp) {
        false => INSTRUCTIONS.to_owned(),
        true => format!("{INSTRUCTIONS}{ABOUT_BLOCKING}"),
    }
}

fn view(offered: OfferedTool, audience: Audience, blocking_agent_reads: bool) -> ToolView {
    let OfferedTool { tool, alias } = offered;
    let row = tool.row();
    ToolView {
        name: offered.name(),
        title: row.title.to_owned(),
        description: NameSet(alias).say(&(row.description)(audience)),
        input_schema: schema(offered, audience),
        waits: row.waits,
        hints: Some(hints(tool, blocking_agent_reads)),
    }
}

/// The MCP hints, which have to be true of every call of the tool. Claude Code and Codex run several calls of
/// one message in parallel if the tool is read-only, and one after the other if not. So a `Task` whose agent
/// only reads is announced as read-only, and one whose agent may write is not: clients also go by the hint when
/// they ask for permission.
fn hints(tool: Tool, blocking_agent_reads: bool) -> HintsView {
    let reading =
        HintsView { read_only: true, destructive: false, idempotent: true, open_world: false };
    let stopping =
        HintsView { read_only: false, destructive: true, idempotent: true, open_world: false };
    // Agents may have a shell, so a launch can do anything.
    let launching =
        HintsView { read_only: false, destructive: true, idempotent: false, open_world: true };
    match tool.row().effect {
        Effect::Reads => reading,
        Effect::Stops => stopping,
        Effect::Launches if tool == Tool::Blocking && blocking_agent_reads => {
            HintsView { idempotent: false, ..reading }
        }
        Effect::Launches => launching,
    }
}

/// The list of agents at the end of a description, so that the model need not guess their names.
fn named_agents(agents: &[AgentOffer]) -> String {
    if agents.is_empty() {
        return String::new();
    }
    let named = |agent: &AgentOffer| match agent.reads_only {
        true => format!("{} (only reads)", label(&agent.name)),
        false => label(&agent.name),
    };
    let mut names: Vec<String> = agents.iter().take(MOST_AGENTS).map(named).collect();
    if agents.len() > MOST_AGENTS {
        names.push(format!("and {} more", agents.len() - MOST_AGENTS));
    }
    format!("\n\nAgents: {}.", names.join(", "))
}

/// Which agent does what `Task` is asked, and whether several calls run in parallel.
fn done_by(agent: &str, reads: bool) -> String {
    let agent = label(agent);
    match reads {
        true => format!(
            " It is done by the agent {agent}, which only reads, so several calls can run at the same \
             time."
        ),
        false => format!(
            " It is done by the agent {agent}, which may change things, so several calls may run one \
             after the other; asyncagents_task runs agents at the same time."
        ),
    }
}

fn schema(offered: OfferedTool, audience: Audience) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": properties(offered, audience),
        "required": offered.tool.row().required,
        "additionalProperties": false,
    });
    match (audience, offered.tool) {
        (Audience::Mcp, _) => plain(schema),
        (Audience::Conversation, Tool::Blocking) => {
            schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
            schema
        }
        (Audience::Conversation, _) => schema,
    }
}

/// A schema with the [`KEYWORDS`] alone. Defaults, whose keyword is not among them, are put into words in the
/// description.
fn plain(schema: Value) -> Value {
    let Value::Object(schema) = schema else { return schema };
    let said = said(&schema);
    let mut plain = Map::new();
    for (keyword, value) in schema {
        let value = match keyword.as_str() {
            // The keys below `properties` are names of arguments, not keywords: one that is called `default`
            // has to stay.
            "properties" => match value {
                Value::Object(all) => {
                    all.into_iter().map(|(name, property)| (name, self::plain(property))).collect()
                }
                other => other,
            },
            "items" => self::plain(value),
            "required" if value.as_array().is_some_and(Vec::is_empty) => continue,
            known if KEYWORDS.contains(&known) => value,
            _ => continue,
        };
        plain.insert(keyword, value);
    }
    if let Some(Value::String(description)) = plain.get_mut("description") {
        description.push_str(&said);
    }
    Value::Object(plain)
}

fn said(schema: &Map<String, Value>) -> String {
    let usual = schema.get("default").filter(|usual| **usual != json!(false));
    let said = usual.map(|usual| match usual.as_f64() {
        Some(number) => format!(" Default: {number}."),
        None => format!(" Default: {}.", usual.as_str().unwrap_or_default()),
    });
    said.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::Alias;
    use super::*;

    fn agent(name: &str, reads_only: bool) -> AgentOffer {
        AgentOffer { name: name.into(), model: None, reads_only }
    }

    /// All keywords of a schema, but not the names of arguments.
    fn keywords(schema: &Value, found: &mut Vec<String>) {
        let Some(schema) = schema.as_object() else { return };
        for (keyword, value) in schema {
            found.push(keyword.clone());
            match keyword.as_str() {
                "properties" => {
                    value.as_object().unwrap().values().for_each(|value| keywords(value, found));
                }
                "items" => keywords(value, found),
                _ => {}
            }
        }
    }

    #[test]
    fn mcp_clients_get_schemas_with_keywords_that_every_provider_accepts() {
        let aliases = vec![Alias::Superagents, Alias::Background];
        let toolbox = Toolbox { aliases, ..Toolbox::default() };
        for tool in list(&toolbox, Audience::Mcp, &[]).tools {
            let mut found = Vec::new();
            keywords(&tool.input_schema, &mut found);
            found.retain(|keyword| !KEYWORDS.contains(&keyword.as_str()));
            assert_eq!(found, [""; 0], "{}", tool.name);
        }
        let default = plain(json!({
            "type": "object", "$schema": "x", "additionalProperties": false, "required": [],
            "properties": {
                "default": { "type": "string", "maxLength": 5, "description": "A." },
                "n": { "type": "number", "default": 60.0, "minimum": 1, "description": "B." },
                "mode": { "type": "string", "enum": ["all"], "default": "all", "description": "C." },
                "all": { "type": "boolean", "default": false, "description": "D." },
                "ids": { "type": "array", "maxItems": 2, "items": { "type": "string", "format": "x" } },
            },
        }));
        let expected = json!({
            "type": "object",
            "properties": {
                "default": { "type": "string", "description": "A." },
                "n": { "type": "number", "minimum": 1, "description": "B. Default: 60." },
                "mode": { "type": "string", "enum": ["all"], "description": "C. Default: all." },
                "all": { "type": "boolean", "description": "D." },
                "ids": { "type": "array", "items": { "type": "string" } },
            },
        });
        assert_eq!(default, expected);
    }

    #[test]
    fn the_description_names_the_available_agents_up_to_a_limit() {
        let few = [agent("build", false), agent("explore", true), agent("a\n*b*", false)];
        assert_eq!(named_agents(&few), "\n\nAgents: build, explore (only reads), a \\*b\\*.");
        assert_eq!(named_agents(&[]), "");
        let many: Vec<AgentOffer> = (0..60).map(|n| agent(&format!("a{n}"), false)).collect();
        let named = named_agents(&many);
        assert!(named.ends_with(", a39, and 20 more.") && !named.contains("a40"), "{named}");
    }

    #[test]
    fn task_is_read_only_exactly_if_its_agent_is() {
        let agents = [agent("explore", true), agent("general", false)];
        let hints = |agent: &str| {
            let mut toolbox = Toolbox::default();
            toolbox.blocking.agent = agent.into();
            let tools = list(&toolbox, Audience::Mcp, &agents).tools.into_iter();
            tools.map(|tool| (tool.name, tool.hints.unwrap())).collect::<Vec<_>>()
        };
        let read_only = |agent: &str| -> Vec<String> {
            let hints = hints(agent).into_iter();
            hints.filter(|(_, hints)| hints.read_only).map(|(name, _)| name).collect()
        };
        let always = ["asyncagents_output", "asyncagents_wait", "asyncagents_list"];
        assert_eq!(read_only("general"), always);
        assert_eq!(read_only("nobody"), always);
        assert_eq!(read_only("explore"), [always.as_slice(), &["Task"]].concat());
        for (name, hints) in hints("general") {
            let launches =
                ["asyncagents_task", "asyncagents_send", "Task"].contains(&name.as_str());
            assert_eq!(hints.open_world, launches, "{name}");
            assert_eq!(hints.destructive, !hints.read_only, "{name}");
        }
    }
}
