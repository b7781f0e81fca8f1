//! Edits OpenCode's configuration in its syntax tree: our plugin is added or removed, everything else is kept byte
//! for byte, comments included. Pure.

use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstRootNode};
use jsonc_parser::{ParseOptions, json};

/// The file name of our plugin; an entry is recognised by it, wherever the file is.
pub(super) const FILE: &str = "asyncagents.ts";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("it is not valid JSON: {0}")]
    Malformed(String),
    #[error("its top level is not a JSON object")]
    NotAnObject,
    #[error("its `plugin` is not a list")]
    PluginIsNotAList,
}

/// The text with our plugin in it. An entry of an earlier installation is replaced in its place, so that the order
/// of plugins stays.
pub(super) fn with_plugin(text: &str, url: &str, program: &str) -> Result<String, Error> {
    let root = parse(text)?;
    let object = match text.trim().is_empty() {
        true => root.object_value_or_set(),
        false => root.object_value().ok_or(Error::NotAnObject)?,
    };
    let entry = json!([url, { "program": program }]);
    let list = match object.get("plugin") {
        None => {
            object.append("plugin", CstInputValue::Array(vec![entry]));
            return Ok(root.to_string());
        }
        Some(property) => property.array_value().ok_or(Error::PluginIsNotAList)?,
    };
    match ours(&list) {
        Some((_, old)) if is(&old, url, program) => {}
        Some((place, old)) => {
            old.remove();
            list.insert(place, entry);
        }
        None => drop(list.append(entry)),
    }
    Ok(root.to_string())
}

/// The text without our plugin. `None` when it is not in there.
pub(super) fn without_plugin(text: &str) -> Result<Option<String>, Error> {
    let root = parse(text)?;
    let Some(property) = root.object_value().and_then(|object| object.get("plugin")) else {
        return Ok(None);
    };
    let list = property.array_value().ok_or(Error::PluginIsNotAList)?;
    let Some((_, entry)) = ours(&list) else { return Ok(None) };
    entry.remove();
    if list.elements().is_empty() {
        property.remove();
    }
    Ok(Some(root.to_string()))
}

fn parse(text: &str) -> Result<CstRootNode, Error> {
    let parsed = CstRootNode::parse(text, &ParseOptions::default());
    parsed.map_err(|error| Error::Malformed(error.to_string()))
}

/// Our entry and its place.
fn ours(list: &CstArray) -> Option<(usize, CstNode)> {
    list.elements().into_iter().enumerate().find(|(_, element)| {
        let value = element.to_serde_value().unwrap_or_default();
        let address = value.as_str().or_else(|| value.get(0)?.as_str());
        address.is_some_and(|address| {
            address.starts_with("file://") && address.ends_with(&format!("/{FILE}"))
        })
    })
}

fn is(entry: &CstNode, url: &str, program: &str) -> bool {
    entry.to_serde_value() == Some(serde_json::json!([url, { "program": program }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "file:///data/opencode/asyncagents.ts";

    /// Put in, put in again, taken out: nothing but the entry changes.
    fn check(before: &str, after: &str) {
        let put = with_plugin(before, URL, "/bin/asyncagents").unwrap();
        assert_eq!(put, after);
        assert_eq!(with_plugin(&put, URL, "/bin/asyncagents").unwrap(), put, "once is enough");
        let newer = with_plugin(&put, URL, "/new/asyncagents").unwrap();
        assert_eq!(newer, put.replace("/bin/", "/new/"), "the newest one instead");
    }

    #[test]
    fn everything_else_is_kept_byte_for_byte() {
        check(
            "{\n  // mine\n  \"model\": \"a/b\", /* why */\n  \"theme\":   \"x\"\n}\n",
            "{\n  // mine\n  \"model\": \"a/b\", /* why */\n  \"theme\":   \"x\",\n  \"plugin\": [\n    \
             [\n      \"file:///data/opencode/asyncagents.ts\",\n      {\n        \"program\": \
             \"/bin/asyncagents\"\n      }\n    ]\n  ]\n}\n",
        );
    }

    #[test]
    fn other_plugins_stay_where_they_are() {
        let before = "{ \"plugin\": [\"other\", [\"file:///x.ts\", {}]], // two\n}";
        let put = with_plugin(before, URL, "/bin/asyncagents").unwrap();
        for kept in ["\"other\"", "[\"file:///x.ts\", {}]", "// two"] {
            assert!(put.contains(kept), "{put}");
        }
        let out = without_plugin(&put).unwrap().unwrap();
        assert!(!out.contains("asyncagents"), "{out}");
        for kept in ["\"other\"", "[\"file:///x.ts\", {}]", "// two"] {
            assert!(out.contains(kept), "{out}");
        }
    }

    #[test]
    fn a_plugin_list_that_becomes_empty_is_removed() {
        let put = with_plugin("{}", URL, "p").unwrap();
        assert_eq!(without_plugin(&put).unwrap().unwrap().replace(['\n', ' '], ""), "{}");
        assert_eq!(without_plugin("{ \"plugin\": [\"other\"] }"), Ok(None));
        assert_eq!(without_plugin("{}"), Ok(None));
    }

    #[test]
    fn an_empty_file_becomes_an_object() {
        assert!(with_plugin("", URL, "p").unwrap().contains(URL));
    }

    #[test]
    fn malformed_json_and_values_of_the_wrong_type_are_refused() {
        let refused = |text: &str| with_plugin(text, URL, "p").unwrap_err();
        assert!(matches!(refused("{ \"plugin\": "), Error::Malformed(_)));
        assert_eq!(refused("[1]"), Error::NotAnObject);
        assert_eq!(refused("{ \"plugin\": \"x\" }"), Error::PluginIsNotAList);
    }
}
