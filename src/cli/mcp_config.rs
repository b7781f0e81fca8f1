//! The configurations of clients of MCP as text: our server put in, everything else kept byte for
//! byte. Pure.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Value, json};

/// What our server is called there.
const NAME: &str = "asyncagents";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("it is no JSON: {0}")]
    NoJson(String),
    #[error("it is no TOML: {0}")]
    NoToml(String),
    #[error("it, or what is under `{0}` in it, is no object in braces")]
    NotAnObject(&'static str),
    #[error("`mcp_servers.{NAME}` is not a section of its own; take it out and try again")]
    NoSection,
}

/// `.mcp.json` of a project, as Claude Code reads it.
pub(super) fn claude(text: &str, program: &str) -> Result<String, Error> {
    put_json(text, "mcpServers", json!({ "command": program, "args": ["mcp"] }))
}

/// `opencode.json`.
pub(super) fn opencode(text: &str, program: &str) -> Result<String, Error> {
    let command = [program, "mcp"];
    put_json(text, "mcp", json!({ "type": "local", "command": command, "enabled": true }))
}

fn put_json(text: &str, section: &'static str, entry: Value) -> Result<String, Error> {
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| Error::NoJson(error.to_string()))?;
    let object = match text.trim().is_empty() {
        true => root.object_value_or_set(),
        false => root.object_value().ok_or(Error::NotAnObject(section))?,
    };
    let servers: CstObject = match object.get(section) {
        None => object.object_value_or_set(section),
        Some(property) => property.object_value().ok_or(Error::NotAnObject(section))?,
    };
    let old = servers.get(NAME);
    if old.as_ref().and_then(|old| old.value()?.to_serde_value()).as_ref() != Some(&entry) {
        old.into_iter().for_each(|old| old.remove());
        servers.append(NAME, input(entry));
    }
    Ok(root.to_string())
}

fn input(value: Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text),
        Value::Array(values) => CstInputValue::Array(values.into_iter().map(input).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, input(value)));
            CstInputValue::Object(fields.collect())
        }
    }
}

/// `config.toml` of Codex.
pub(super) fn codex(text: &str, program: &str) -> Result<String, Error> {
    let parse = |text: &str| -> Result<toml::Table, Error> {
        text.parse().map_err(|error: toml::de::Error| Error::NoToml(error.to_string()))
    };
    let table = parse(text)?;
    let program = toml::Value::String(program.to_owned());
    let section = format!("[mcp_servers.{NAME}]\ncommand = {program}\nargs = [\"mcp\"]\n");
    let there = table.get("mcp_servers").and_then(|servers| servers.get(NAME)).is_some();
    let after = match (there, old_section(text)) {
        (false, _) => {
            let gap = match text {
                "" => "",
                text if text.ends_with("\n\n") => "",
                text if text.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            format!("{text}{gap}{section}")
        }
        (true, Some(old)) => format!("{}{section}{}", &text[..old.start], &text[old.end..]),
        (true, None) => return Err(Error::NoSection),
    };
    parse(&after)?;
    Ok(after)
}

/// Where our section begins and ends; the empty lines after it are not of it.
fn old_section(text: &str) -> Option<std::ops::Range<usize>> {
    let header = format!("[mcp_servers.{NAME}]");
    let mut at = 0;
    let lines: Vec<(usize, &str)> = text
        .split_inclusive('\n')
        .map(|line| {
            at += line.len();
            (at - line.len(), line)
        })
        .collect();
    let first = lines.iter().position(|(_, line)| line.trim() == header)?;
    let of_another = |line: &str| line.starts_with('[');
    let mut end = lines[first + 1..]
        .iter()
        .position(|(_, line)| of_another(line))
        .map_or(lines.len(), |n| first + 1 + n);
    while end > first + 1 && lines[end - 1].1.trim().is_empty() {
        end -= 1;
    }
    let until = lines.get(end).map_or(text.len(), |(at, _)| *at);
    Some(lines[first].0..until)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Put = fn(&str, &str) -> Result<String, Error>;

    /// Put in, put in again, put in with another program: nothing but the entry changes.
    fn check(put: Put, before: &str, after: &str) {
        assert_eq!(put(before, "/bin/asyncagents").unwrap(), after);
        assert_eq!(put(after, "/bin/asyncagents").unwrap(), after, "once is enough");
        let newer = put(after, "/new/asyncagents").unwrap();
        assert_eq!(newer, after.replace("/bin/", "/new/"), "the newest one instead");
    }

    #[test]
    fn claude_code_and_opencode_keep_what_they_had() {
        check(
            claude,
            "",
            "{\n  \"mcpServers\": {\n    \"asyncagents\": {\n      \"command\": \
             \"/bin/asyncagents\",\n      \"args\": [\"mcp\"]\n    }\n  }\n}\n",
        );
        let put = claude("{ \"mcpServers\": { \"x\": {} } }", "/bin/asyncagents").unwrap();
        assert!(put.contains("\"x\": {}"), "{put}");
        let mine = "{\n  // mine\n  \"theme\":   \"x\"\n}\n";
        let put = opencode(mine, "/bin/asyncagents").unwrap();
        assert!(put.starts_with("{\n  // mine\n  \"theme\":   \"x\",\n  \"mcp\": {"), "{put}");
        assert!(put.contains("\"type\": \"local\""), "{put}");
        assert_eq!(claude("[]", "p"), Err(Error::NotAnObject("mcpServers")));
        assert_eq!(opencode("{\"mcp\": 1}", "p"), Err(Error::NotAnObject("mcp")));
        assert!(matches!(claude("{", "p"), Err(Error::NoJson(_))));
    }

    #[test]
    fn codex_keeps_what_it_had() {
        let ours = "[mcp_servers.asyncagents]\ncommand = \"/bin/asyncagents\"\nargs = [\"mcp\"]\n";
        check(codex, "", ours);
        let mine = "# mine\nmodel = 'x'  # why";
        check(codex, mine, &format!("{mine}\n\n{ours}"));
        let around = format!("[a]\nb = 1\n\n{ours}\n\n[c]\nd = 2\n");
        check(codex, &around, &around);
        let inline = "mcp_servers = { asyncagents = { command = 'x' } }\n";
        assert_eq!(codex(inline, "p"), Err(Error::NoSection));
        assert!(matches!(codex("a = ", "p"), Err(Error::NoToml(_))));
    }
}
