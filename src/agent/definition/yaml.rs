//! YAML front matter as an untyped tree, because its shapes differ between dialects. Maps keep the order
//! in which they are written: the last matching rule wins. Files that are not quite YAML, as many written
//! for Claude are, are repaired and read again; the size of the tree is bounded.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Error, UserMessageFormatter};

/// Keys that may follow a description of several lines, in any dialect; by these its end is recognized.
const KEYS: [&str; 19] = [
    "name",
    "tools",
    "disallowedTools",
    "permission",
    "permissions",
    "permissionMode",
    "model",
    "mode",
    "disable",
    "disabled",
    "temperature",
    "color",
    "skills",
    "hooks",
    "memory",
    "mcpServers",
    "network",
    "readable",
    "writable",
];

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Yaml {
    Nothing,
    Flag(bool),
    /// Also numbers: no key of ours takes one.
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    /// Parses front matter. The error is one line of text; its line numbers are those of the file, where
    /// `text` begins at line 2.
    pub(super) fn read(text: &str) -> Result<Yaml, String> {
        read_strictly(text).or_else(|error| {
            // If the repaired text is no YAML either, the error of the original is the helpful one.
            let quoted = quote_plain_values(text);
            read_strictly(&quoted).map_err(|_| explain(&error))
        })
    }

    /// The value of a key; one without a value counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&Yaml> {
        let Yaml::Map(entries) = self else { return None };
        let found = entries.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value).filter(|value| **value != Yaml::Nothing)
    }

    /// The text of a key; an empty one counts as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, super::Error> {
        let text = match self.get(key) {
            None => return Ok(None),
            Some(Yaml::Text(text)) => text.trim().to_owned(),
            Some(Yaml::Flag(flag)) => flag.to_string(),
            Some(other) => return Err(other.unfit(key, "a text")),
        };
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, super::Error> {
        match self.get(key) {
            None => Ok(false),
            Some(Yaml::Flag(flag)) => Ok(*flag),
            Some(other) => Err(other.unfit(key, "`true` or `false`")),
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Yaml::Text(text) => Some(text),
            Yaml::Nothing | Yaml::Flag(_) | Yaml::List(_) | Yaml::Map(_) => None,
        }
    }

    /// The error that the value of a key is not what is expected.
    pub(super) fn unfit_at(&self, key: &str, expected: &'static str) -> super::Error {
        self.get(key).unwrap_or(&Yaml::Nothing).unfit(key, expected)
    }

    pub(super) fn unfit(&self, key: &str, expected: &'static str) -> super::Error {
        super::Error::Unfit { key: key.to_owned(), found: self.to_string(), expected }
    }
}

/// For error texts: what the user would recognize in the file.
impl fmt::Display for Yaml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Yaml::Nothing => f.write_str("nothing"),
            Yaml::Flag(flag) => write!(f, "`{flag}`"),
            Yaml::Text(text) => write!(f, "`{text}`"),
            Yaml::List(_) => f.write_str("a list"),
            Yaml::Map(_) => f.write_str("a section"),
        }
    }
}

/// Parses strict YAML. The limits are far above any real front matter; without them a few lines with
/// aliases can stand for gigabytes ("billion laughs").
fn read_strictly(text: &str) -> Result<Yaml, Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 4_000, max_depth: 16 },
        // `yes`, `no`, `on` and `off` stay texts: `network: off` is one of our values.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}

fn explain(error: &Error) -> String {
    let options =
        serde_saphyr::render_options! { formatter: &UserMessageFormatter, line_offset: 1 };
    let message = error.without_snippet().render_with_options(options);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Quotes plain values that are not valid YAML. Files written for Claude often have
/// `description: Use it when: …`, over several lines that look like keys, or `tools: *`; what is meant is
/// the text as it stands.
fn quote_plain_values(text: &str) -> String {
    let mut quoted = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        match plain_value(line) {
            Some(("description", value)) => {
                let mut value = value.to_owned();
                // It goes on until a line with a known key: lines such as `Example: …` belong to it.
                while let Some(line) = lines.next_if(|line| !begins_with_key(line)) {
                    value = format!("{value}\n{line}");
                }
                quoted += &format!("description: {}\n", Value::from(value));
            }
            Some((key, value)) if is_no_yaml(value) => {
                quoted += &format!("{key}: {}\n", Value::from(value));
            }
            Some(_) | None => quoted += &format!("{line}\n"),
        }
    }
    quoted
}

/// A key and its plain value; `None` for a value in quotes or in another YAML style.
fn plain_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(": ")?;
    let value = value.trim();
    let is_plain = !value.starts_with(['"', '\'', '[', '{', '|', '>', '&', '!', '#']);
    let is_key = key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    (is_plain && is_key).then_some((key, value))
}

fn begins_with_key(line: &str) -> bool {
    let bare = |key: &str| KEYS.contains(&key.trim_end().trim_matches(['"', '\'']));
    line.split_once(':').is_some_and(|(key, _)| bare(key))
}

fn is_no_yaml(value: &str) -> bool {
    value.contains(": ") || value.ends_with(':') || value.starts_with(['*', '@', '%', '`'])
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Yaml, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Nothing)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Yaml, E> {
        Ok(Yaml::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Yaml, E> {
        Ok(Yaml::Text(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Yaml, E> {
        Ok(Yaml::Text(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Yaml, E> {
        Ok(Yaml::Text(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
        Ok(Yaml::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Yaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Yaml, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Yaml::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Yaml {
        Yaml::Text(text.to_owned())
    }

    #[test]
    fn values_keep_their_shape_and_maps_their_order() {
        let read = Yaml::read("z: {\"git *\": allow, \"*\": ask}\na: [x, 1]\nb: true\nc: no\nd:\n");
        let map = |entries: Vec<(&str, Yaml)>| {
            Yaml::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        };
        let expected = map(vec![
            ("z", map(vec![("git *", text("allow")), ("*", text("ask"))])),
            ("a", Yaml::List(vec![text("x"), text("1")])),
            ("b", Yaml::Flag(true)),
            ("c", text("no")),
            ("d", Yaml::Nothing),
        ]);
        assert_eq!(read, Ok(expected));
        assert_eq!(Yaml::read("# only a remark"), Ok(Yaml::Nothing));
    }

    #[test]
    fn a_plain_value_that_is_not_yaml_is_taken_as_the_text_it_is() {
        let check = |yaml: &str, key: &str, expected: &str| {
            assert_eq!(Yaml::read(yaml).unwrap().get(key), Some(&text(expected)), "{yaml}");
        };
        check("description: Use it when: it's late", "description", "Use it when: it's late");
        check("description: user: \"hi\"\nname: x", "name", "x");
        check("description: as follows:", "description", "as follows:");
        let long = "description: Use it.\n\n<example>\nuser: \"hi\"\n</example>\nname: x\ntools: *";
        check(long, "description", "Use it.\n\n<example>\nuser: \"hi\"\n</example>");
        check(long, "name", "x");
        check(long, "tools", "*");
        check("description: a: b\n\"permission\" : deny", "permission", "deny");
        check("description: it's: \\n \"so\"", "description", "it's: \\n \"so\"");
        check("tools: *", "tools", "*");
    }

    #[test]
    fn errors_are_one_line_with_their_position() {
        let check = |yaml: &str, expected: &str| {
            assert_eq!(Yaml::read(yaml), Err(expected.to_owned()), "{yaml}");
        };
        check("a: 1\ntools: [read\n", "unclosed bracket '[' at line 3, column 8");
        check("a: 1\na: 2\n", "duplicate mapping key: a not allowed here at line 3, column 1");
        check(
            "a:\n\tb: 1\n",
            "tabs disallowed within this context (block indentation) at line 3, column 2",
        );
        check(
            "a: b: c\nd: [\n",
            "mapping values are not allowed in this context at line 2, column 5",
        );
    }

    #[test]
    fn yaml_made_to_exhaust_the_reader_is_refused() {
        let mut bomb = "a0: &a0 [x]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(",");
            bomb += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        for yaml in [bomb, format!("a: {}", "[".repeat(200_000))] {
            assert!(Yaml::read(&yaml).is_err());
        }
    }
}
