//! Edits JSON configurations, with or without comments, in their syntax tree: our server is added or
//! removed, everything else is kept byte for byte. Pure.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;

use super::NAME;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("it is not valid JSON: {0}")]
    NoJson(String),
    #[error("its top level, or its `{0}`, is not a JSON object")]
    NotAnObject(&'static str),
    #[error("{}", super::OTHER_WAY)]
    OtherWay,
}

/// The entry of our server in the configuration of one client.
pub(super) struct Entry {
    /// The object that has the servers by name.
    pub(super) section: &'static str,
    pub(super) fields: Vec<(&'static str, Value)>,
    /// Only set when they are missing: the user may have chosen otherwise.
    pub(super) defaults: Vec<(&'static str, Value)>,
    /// A field that an entry for the other transport has: the client would not know which of them counts.
    pub(super) not_with: &'static str,
}

/// Other fields that the user has put into our entry are kept.
pub(super) fn add_server(text: &str, entry: &Entry) -> Result<String, Error> {
    let section = entry.section;
    let root = parse(text)?;
    let object = match text.trim().is_empty() {
        true => root.object_value_or_set(),
        false => root.object_value().ok_or(Error::NotAnObject(section))?,
    };
    let inside = |object: &CstObject, name: &'static str| match object.get(name) {
        None => Ok(object.object_value_or_set(name)),
        Some(property) => property.object_value().ok_or(Error::NotAnObject(section)),
    };
    let ours = inside(&inside(&object, section)?, NAME)?;
    if ours.get(entry.not_with).is_some() {
        return Err(Error::OtherWay);
    }
    for (name, value) in &entry.fields {
        match ours.get(name) {
            // Left as it is written: setting an equal value would change its formatting.
            Some(old)
                if old.value().and_then(|old| old.to_serde_value()).as_ref() == Some(value) => {}
            Some(old) => old.set_value(input(value.clone())),
            None => drop(ours.append(name, input(value.clone()))),
        }
    }
    for (name, value) in &entry.defaults {
        if ours.get(name).is_none() {
            ours.append(name, input(value.clone()));
        }
    }
    Ok(root.to_string())
}

/// `None`: there is no such server. A section that becomes empty is removed, too.
pub(super) fn remove_server(text: &str, section: &'static str) -> Result<Option<String>, Error> {
    let root = parse(text)?;
    let Some(property) = root.object_value().and_then(|object| object.get(section)) else {
        return Ok(None);
    };
    let servers = property.object_value().ok_or(Error::NotAnObject(section))?;
    let Some(ours) = servers.get(NAME) else { return Ok(None) };
    ours.remove();
    if servers.properties().is_empty() {
        property.remove();
    }
    Ok(Some(root.to_string()))
}

fn parse(text: &str) -> Result<CstRootNode, Error> {
    let parsed = CstRootNode::parse(text, &ParseOptions::default());
    parsed.map_err(|error| Error::NoJson(error.to_string()))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn put(text: &str, program: &str) -> Result<String, Error> {
        let fields = vec![("command", json!(program)), ("args", json!(["mcp"]))];
        let defaults = vec![("env", json!({"KEY": "$KEY"}))];
        add_server(text, &Entry { section: "mcpServers", fields, defaults, not_with: "url" })
    }

    /// Add, add again, add with another program, remove: nothing but the entry changes.
    fn check(before: &str, after: &str, out: &str) {
        assert_eq!(put(before, "/bin/asyncagents").unwrap(), after);
        assert_eq!(put(after, "/bin/asyncagents").unwrap(), after, "once is enough");
        let newer = put(after, "/new/asyncagents").unwrap();
        assert_eq!(newer, after.replace("/bin/", "/new/"), "the newest one instead");
        assert_eq!(remove_server(after, "mcpServers").unwrap().unwrap(), out);
        assert_eq!(remove_server(out, "mcpServers"), Ok(None), "once is enough");
    }

    #[test]
    fn everything_else_is_kept_byte_for_byte() {
        check(
            "",
            "{\n  \"mcpServers\": {\n    \"asyncagents\": {\n      \"command\": \
             \"/bin/asyncagents\",\n      \"args\": [\"mcp\"],\n      \"env\": {\n        \"KEY\": \
             \"$KEY\"\n      }\n    }\n  }\n}\n",
            "{}\n",
        );
        check(
            "{\n  // mine\n  \"theme\":   \"x\", /* why */\n  \"mcpServers\": {\n    \"other\": {}\n  }\n}\n",
            "{\n  // mine\n  \"theme\":   \"x\", /* why */\n  \"mcpServers\": {\n    \"other\": {},\n    \
             \"asyncagents\": {\n      \"command\": \"/bin/asyncagents\",\n      \"args\": \
             [\"mcp\"],\n      \"env\": {\n        \"KEY\": \"$KEY\"\n      }\n    }\n  }\n}\n",
            "{\n  // mine\n  \"theme\":   \"x\", /* why */\n  \"mcpServers\": {\n    \"other\": {}\n  }\n}\n",
        );
    }

    #[test]
    fn fields_that_the_user_added_to_our_entry_are_kept() {
        let mine = "{\"mcpServers\": {\"asyncagents\": {\"env\": {\"A\": \"b\"}}}}";
        let put = put(mine, "p").unwrap();
        let value: Value = serde_json::from_str(&put).unwrap();
        let entry = json!({"env": {"A": "b"}, "command": "p", "args": ["mcp"]});
        assert_eq!(value, json!({"mcpServers": {"asyncagents": entry}}));
        let out = remove_server(&put, "mcpServers").unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), json!({}));
    }

    #[test]
    fn an_entry_for_the_other_transport_is_refused() {
        let other = "{\"mcpServers\": {\"asyncagents\": {\"url\": \"http://localhost\"}}}";
        assert_eq!(put(other, "p"), Err(Error::OtherWay));
    }

    #[test]
    fn malformed_json_and_values_of_the_wrong_type_are_refused() {
        let not_an_object = Error::NotAnObject("mcpServers");
        assert_eq!(put("[]", "p"), Err(not_an_object.clone()));
        assert_eq!(put("{\"mcpServers\": 1}", "p"), Err(not_an_object.clone()));
        assert_eq!(remove_server("{\"mcpServers\": 1}", "mcpServers"), Err(not_an_object));
        assert!(matches!(put("{", "p"), Err(Error::NoJson(_))));
        assert!(matches!(remove_server("{", "mcpServers"), Err(Error::NoJson(_))));
        assert_eq!(remove_server("", "mcpServers"), Ok(None));
        assert_eq!(remove_server("{\"mcpServers\": {\"x\": {}}}", "mcpServers"), Ok(None));
    }
}
