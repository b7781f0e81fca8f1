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
    #[error("`mcp_servers.{NAME}` is not a section of plain lines; take it out and try again")]
    NoSection,
}

/// `.mcp.json` of a project, as Claude Code reads it.
pub(super) fn claude(text: &str, program: &str) -> Result<String, Error> {
    put_json(text, "mcpServers", &[("command", json!(program)), ("args", json!(["mcp"]))])
}

/// `opencode.json`.
pub(super) fn opencode(text: &str, program: &str) -> Result<String, Error> {
    put_json(text, "mcp", &[("type", json!("local")), ("command", json!([program, "mcp"]))])
}

/// What else a person has put into our entry stays there.
fn put_json(text: &str, section: &'static str, fields: &[(&str, Value)]) -> Result<String, Error> {
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| Error::NoJson(error.to_string()))?;
    let object = match text.trim().is_empty() {
        true => root.object_value_or_set(),
        false => root.object_value().ok_or(Error::NotAnObject(section))?,
    };
    let inside = |object: &CstObject, name: &'static str| match object.get(name) {
        None => Ok(object.object_value_or_set(name)),
        Some(property) => property.object_value().ok_or(Error::NotAnObject(section)),
    };
    let entry = inside(&inside(&object, section)?, NAME)?;
    for (name, value) in fields {
        match entry.get(name) {
            Some(old)
                if old.value().and_then(|old| old.to_serde_value()).as_ref() == Some(value) => {}
            Some(old) => old.set_value(input(value.clone())),
            None => drop(entry.append(name, input(value.clone()))),
        }
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
    let before = parse_toml(text)?;
    let program = toml::Value::String(program.to_owned());
    let ours = [format!("command = {program}\n"), "args = [\"mcp\"]\n".to_owned()];
    let header = format!("[mcp_servers.{NAME}]");
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    match lines.iter().position(|line| line.trim() == header) {
        None => {
            let gap = match text {
                "" => "",
                text if text.ends_with("\n\n") => "",
                text if text.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            lines.push(format!("{gap}{header}\n{}", ours.concat()));
        }
        Some(first) => {
            let rest = lines[first + 1..].iter();
            let end = rest.clone().position(|line| line.trim_start().starts_with('['));
            let end = end.map_or(lines.len(), |n| first + 1 + n);
            let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
            let mut section: Vec<String> = lines.drain(first..end).collect();
            section.retain(|line| !matches!(key(line).as_str(), "command" | "args"));
            if !section[0].ends_with('\n') {
                section[0].push('\n');
            }
            section.splice(1..1, ours);
            lines.splice(first..first, section);
        }
    }
    let after = lines.concat();
    // Whatever was written in another way than we can read line by line must not get lost.
    let reread = parse_toml(&after).map_err(|_| Error::NoSection)?;
    if without_ours(before) != without_ours(reread) {
        return Err(Error::NoSection);
    }
    Ok(after)
}

fn parse_toml(text: &str) -> Result<toml::Table, Error> {
    text.parse().map_err(|error: toml::de::Error| Error::NoToml(error.to_string()))
}

fn without_ours(mut table: toml::Table) -> toml::Table {
    let servers = table.entry("mcp_servers").or_insert(toml::Value::Table(toml::Table::new()));
    if let Some(servers) = servers.as_table_mut() {
        let ours = servers.entry(NAME).or_insert(toml::Value::Table(toml::Table::new()));
        if let Some(ours) = ours.as_table_mut() {
            ours.retain(|name, _| name != "command" && name != "args");
        }
    }
    table
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
        let kept =
            claude("{\"mcpServers\": {\"asyncagents\": {\"env\": {\"A\": \"b\"}}}}", "p").unwrap();
        assert!(
            kept.contains("\"env\": {\"A\": \"b\"}") && kept.contains("\"command\": \"p\""),
            "{kept}"
        );
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
        let kept =
            format!("{ours}env = {{ A = \"b\" }}\n\n  [mcp_servers.other]\n  command = \"x\"\n");
        check(codex, &kept, &kept);
        let inline = "mcp_servers = { asyncagents = { command = 'x' } }\n";
        assert_eq!(codex(inline, "p"), Err(Error::NoSection));
        assert!(matches!(codex("a = ", "p"), Err(Error::NoToml(_))));
    }
}
