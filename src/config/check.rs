//! Validation of a config file against the declared keys: no unknown keys, values of the right type and within their
//! range. An error names the key, what was found and what would fit, and for an unknown key the nearest known one.
//!
//! Done on the TOML table before it is deserialised: serde's own errors know neither ranges nor the full path of a key.

use toml::{Table, Value};

use super::section::{Key, Rule};
use super::{Config, Error};

const PRICE: Rule = Rule::Between(0.0, 1e6);

/// Validates a whole file.
pub(super) fn check_table(table: &Table, file: &str) -> Result<(), Error> {
    check_section("", table, &Config::keys(), file)
}

/// Parses a variable by the type of its key. What does not parse stays text, and is refused by the rule of the key,
/// so that the error shows what was given.
pub(super) fn read_variable(key: &Key, variable: &str, text: &str) -> Result<Value, Error> {
    // The default is of the key's type; keys without a default are texts.
    let default = (key.default)();
    let value = match default {
        Value::Boolean(_) => text.parse().map(Value::Boolean).ok(),
        Value::Integer(_) => text.parse().map(Value::Integer).ok(),
        _ => None,
    };
    let value = value.unwrap_or_else(|| Value::from(text));
    let place = "the environment";
    // A boolean has no rule that would refuse `0`, `no` or `off`, so its type is checked here.
    if default.is_bool() {
        check_type(variable, &value, &default, place)?;
    }
    check_rule(&(key.rule)(), &value, variable, place)?;
    Ok(value)
}

impl Config {
    /// The keys whose values differ, by their full names in the file. By way of TOML, so that every key there is takes
    /// part without being listed.
    pub fn changed_keys(&self, other: &Config) -> Vec<String> {
        let table = |config| Table::try_from(config).expect("a config can be written as TOML");
        let mut keys = Vec::new();
        collect_changes("", &table(self), &table(other), &mut keys);
        keys
    }
}

/// A recursive diff of two tables, of keys that are in either.
fn collect_changes(path: &str, one: &Table, other: &Table, keys: &mut Vec<String>) {
    let added = other.keys().filter(|name| !one.contains_key(*name));
    for name in one.keys().chain(added) {
        let key = join(path, name);
        match (one.get(name), other.get(name)) {
            (Some(Value::Table(one)), Some(Value::Table(other))) => {
                collect_changes(&key, one, other, keys);
            }
            (one, other) if one != other => keys.push(key),
            (_, _) => {}
        }
    }
}

fn check_section(path: &str, found: &Table, keys: &[Key], file: &str) -> Result<(), Error> {
    for (name, value) in found {
        let path_of_key = join(path, name);
        let Some(key) = keys.iter().find(|key| key.name == name) else {
            let hint = hint(path, name, keys);
            return Err(Error::UnknownKey { key: path_of_key, file: file.to_owned(), hint });
        };
        let rule = (key.rule)();
        check_value(&path_of_key, value, &(key.default)(), &rule, file)?;
        // The one rule about two keys; it needs the section around the value.
        match rule {
            Rule::NotWith(other) if found.contains_key(other) => {
                let only = format!("either this or `{other}`");
                return Err(unfit(&path_of_key, file, value, &only));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_value(
    key: &str,
    value: &Value,
    like: &Value,
    rule: &Rule,
    file: &str,
) -> Result<(), Error> {
    check_type(key, value, like, file)?;
    match (rule, value) {
        (Rule::Keys(keys), Value::Table(found)) => check_section(key, found, keys, file),
        (Rule::Each(like, rule), Value::Table(found)) => found
            .iter()
            .try_for_each(|(name, value)| check_value(&join(key, name), value, like, rule, file)),
        (Rule::Prices, Value::Table(models)) => {
            models.iter().try_for_each(|(model, price)| check_price(&join(key, model), price, file))
        }
        (rule, value) => check_rule(rule, value, key, file),
    }
}

/// `name` and `place` say where the value came from, should it not fit.
fn check_rule(rule: &Rule, value: &Value, name: &str, place: &str) -> Result<(), Error> {
    let (fits, expected) = match rule {
        Rule::Between(least, most) => {
            // NaN is in no range, so it is refused here, too.
            let whole = value.as_integer().map(|number| number as f64);
            let number = whole.or(value.as_float());
            let fits = number.is_some_and(|number| (*least..=*most).contains(&number));
            (fits, format!("a number from {least} to {most}"))
        }
        Rule::OneOf(words) => {
            let is_word = |text: &str| words.contains(&text);
            (all_texts(value, is_word), quoted(*words, " or "))
        }
        Rule::Filled => {
            let is_filled = |text: &str| !text.trim().is_empty();
            (all_texts(value, is_filled), "a text that is not empty".to_owned())
        }
        Rule::Paths => {
            let is_path = |text: &str| text.starts_with('/') || text.starts_with("~/");
            let expected = "a list of paths that begin with `/` or `~/`";
            (all_texts(value, is_path), expected.to_owned())
        }
        Rule::Any | Rule::NotWith(_) | Rule::Keys(_) | Rule::Each(..) | Rule::Prices => {
            return Ok(());
        }
    };
    if fits { Ok(()) } else { Err(unfit(name, place, value, &expected)) }
}

/// Whether it is a text that fits, or a list of such.
fn all_texts(value: &Value, fits: impl Fn(&str) -> bool) -> bool {
    let members = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    members.iter().all(|member| member.as_str().is_some_and(&fits))
}

fn check_price(key: &str, price: &Value, file: &str) -> Result<(), Error> {
    let fits = match price {
        Value::Array(pair) if pair.len() == 2 => {
            let number = Value::Float(0.0);
            pair.iter().try_for_each(|part| check_value(key, part, &number, &PRICE, file))?;
            true
        }
        Value::Table(table) => {
            let names = ["cache_write", "cached_input", "input", "output"];
            check_section(key, table, &names.map(|name| Key::number(name, || PRICE)), file)?;
            table.contains_key("input") && table.contains_key("output")
        }
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let expected = "the prices of input and output in brackets, \
                    or `{ input = …, output = …, cached_input = …, cache_write = … }`";
    Err(unfit(key, file, price, expected))
}

fn check_type(key: &str, value: &Value, default: &Value, file: &str) -> Result<(), Error> {
    let expected = match default {
        _ if value.same_type(default) => return Ok(()),
        // `2` for `2.0`; the other way round would lose something.
        Value::Float(_) if value.is_integer() => return Ok(()),
        Value::String(_) => "a text in quotes",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "`true` or `false`",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list in brackets",
        Value::Table(_) => "a section of its own",
    };
    Err(unfit(key, file, value, expected))
}

fn unfit(name: &str, place: &str, value: &Value, expected: &str) -> Error {
    Error::Unfit {
        name: name.to_owned(),
        place: place.to_owned(),
        found: value.to_string(),
        expected: expected.to_owned(),
    }
}

/// The way out of an unknown key: a near one, the section it belongs in, or all there are.
fn hint(path: &str, name: &str, keys: &[Key]) -> String {
    let mut known: Vec<&str> = keys.iter().map(|key| key.name).collect();
    known.sort_unstable();
    // Within a third of its length, transpositions counting as one: further away a suggestion is noise.
    let distance = |candidate: &&str| strsim::damerau_levenshtein(candidate, name);
    let close = (name.chars().count() / 3).max(1);
    let near = known.iter().copied().min_by_key(distance).filter(|near| distance(near) <= close);
    match near.map(|near| join(path, near)).or_else(|| find_elsewhere(name)) {
        Some(key) => format!("did you mean `{key}`?"),
        None => format!("the keys there are {}", quoted(known, ", ")),
    }
}

/// The one section that has this key, if only one has.
fn find_elsewhere(name: &str) -> Option<String> {
    let all = Config::keys();
    let has = |keys: &[Key]| keys.iter().any(|key| key.name == name);
    let mut sections =
        all.iter().filter(|section| matches!((section.rule)(), Rule::Keys(keys) if has(&keys)));
    match (sections.next(), sections.next()) {
        (Some(section), None) => Some(join(section.name, name)),
        (None | Some(_), _) => None,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn quoted(words: impl IntoIterator<Item = impl AsRef<str>>, separator: &str) -> String {
    let words = words.into_iter().map(|word| format!("`{}`", word.as_ref()));
    words.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::super::set;
    use super::super::tests::load;
    use super::*;

    /// All keys of all sections, by their whole names.
    fn all_keys() -> Vec<(String, Key)> {
        let mut all = Vec::new();
        let mut next: Vec<(String, Vec<Key>)> = vec![(String::new(), Config::keys())];
        while let Some((path, keys)) = next.pop() {
            for key in keys {
                let name = join(&path, key.name);
                match (key.rule)() {
                    Rule::Keys(keys) => next.push((name, keys)),
                    _ => all.push((name, key)),
                }
            }
        }
        all
    }

    #[test]
    fn every_numeric_key_has_a_range_and_no_other_key_has_one() {
        for (name, key) in all_keys() {
            let default = (key.default)();
            let is_number = default.is_integer() || default.is_float();
            assert_eq!(is_number, matches!((key.rule)(), Rule::Between(..)), "{name}");
        }
    }

    #[test]
    fn every_value_that_a_key_enumerates_can_be_parsed() {
        let mut seen = Vec::new();
        for (name, key) in all_keys() {
            let Rule::OneOf(words) = (key.rule)() else { continue };
            for word in words {
                let word = Value::from(*word);
                let value =
                    if (key.default)().is_array() { Value::Array(vec![word]) } else { word };
                let mut table = Table::new();
                set(&mut table, &name, value);
                table.try_into::<Config>().unwrap();
            }
            seen.push(name);
        }
        seen.sort();
        let words = [
            "agent.command_caches",
            "agent.command_network",
            "agent.thinking",
            "api.readers",
            "fork.method",
            "permissions.policy",
            "sandbox",
            "task_tool.offered",
            "task_tool.on_timeout",
            "tools.aliases",
        ];
        assert_eq!(seen, words);
    }

    /// Only these modules may know the configuration (`tests/it/layers.rs`).
    #[test]
    fn every_key_is_read_by_something() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut text = String::new();
        let mut next: Vec<_> = ["daemon", "mcp", "cli"].map(|name| source.join(name)).into();
        while let Some(path) = next.pop() {
            if path.is_dir() {
                next.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                let file = std::fs::read_to_string(path).unwrap();
                text.extend(file.lines().map(|line| format!("{}\n", line.trim())));
            }
        }
        // `agent.environment` is for the variables that are resolved here.
        text += include_str!("mod.rs");
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let patterns: Vec<&str> = text
            .split("let config::")
            .skip(1)
            .filter_map(|after| after.split_once('{')?.1.split_once('}').map(|(inside, _)| inside))
            .collect();
        for (name, key) in all_keys() {
            let ends = |after: &str| !after.starts_with(is_name);
            let is_read = text.split(&format!(".{}", key.field)).skip(1).any(ends)
                || patterns
                    .iter()
                    .any(|names| names.split(|c| !is_name(c)).any(|n| n == key.field));
            assert!(is_read, "nothing reads `{name}`");
        }
    }

    #[test]
    fn a_price_is_two_numbers_or_a_table() {
        let load = |price: &str| load(&format!("[agent.prices]\n'a/b' = {price}"));
        for price in ["[1, 2.5]", "{ input = 1, output = 2 }"] {
            assert!(load(price).is_ok(), "{price}");
        }
        let full = load("{ input = 1, output = 2, cached_input = 0.1, cache_write = 1.25 }");
        let expected = super::super::Price::Table {
            input: 1.0,
            output: 2.0,
            cached_input: Some(0.1),
            cache_write: Some(1.25),
        };
        assert_eq!(full.unwrap().agent.prices["a/b"], expected);
        let wanted = "the prices of input and output in brackets, \
                      or `{ input = …, output = …, cached_input = …, cache_write = … }`";
        for (price, key, found, expected) in [
            ("3", "", "3", wanted),
            ("[1]", "", "[1]", wanted),
            ("{ input = 1 }", "", "{ input = 1 }", wanted),
            ("[1, -2]", "", "-2", "a number from 0 to 1000000"),
            ("{ input = 1, output = 'x' }", ".output", "\"x\"", "a number"),
        ] {
            let message =
                format!("`agent.prices.a/b{key}` in config.toml is `{found}`; give {expected}");
            assert_eq!(load(price).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_way_out() {
        let check = |text: &str, expected: &str| {
            assert_eq!(load(text).unwrap_err().to_string(), expected, "{text}");
        };
        check(
            "[limits]\nactive_per_parnt = 3",
            "unknown key `limits.active_per_parnt` in config.toml; \
             did you mean `limits.active_per_parent`?",
        );
        check("[limit]", "unknown key `limit` in config.toml; did you mean `limits`?");
        check("enabeld = true", "unknown key `enabeld` in config.toml; did you mean `enabled`?");
        check(
            "[log]\nmax_depth = 2",
            "unknown key `log.max_depth` in config.toml; did you mean `supervisor.max_depth`?",
        );
        check(
            "[providers.work]\nkeyfile = 'x'",
            "unknown key `providers.work.keyfile` in config.toml; \
             did you mean `providers.work.key_file`?",
        );
        check(
            "[providers.work]\nkey_file = 'x'\nkey_command = 'y'",
            "`providers.work.key_command` in config.toml is `\"y\"`; give either this or `key_file`",
        );
        check(
            "[notices]\nsound = true",
            "unknown key `notices.sound` in config.toml; \
             the keys there are `inline_characters`, `toasts`",
        );
    }

    #[test]
    fn keys_that_changed_are_named_as_in_the_file() {
        let check = |text: &str, expected: &[&str]| {
            let changed = load(text).unwrap();
            assert_eq!(Config::default().changed_keys(&changed), expected, "{text}");
            assert_eq!(changed.changed_keys(&Config::default()), expected, "{text}");
        };
        check("", &[]);
        check("host = ''", &[]);
        check(
            "model = 'a/b'\n[api]\nport = 9\nenabled = false",
            &["api.enabled", "api.port", "model"],
        );
        check("[opencode.servers]\nwork = 'http://127.0.0.1:1'", &["opencode.servers.work"]);
        check("[history]\nmax_age_days = 3", &["history.max_age_days"]);
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_with_the_way_out() {
        let check = |text: &str, expected: &str| {
            assert_eq!(load(text).unwrap_err().to_string(), expected, "{text}");
        };
        for (section, line, found, expected) in [
            ("limits", "active_per_parent", "0", "a number from 1 to 1000"),
            ("limits", "active_per_parent", "-1", "a number from 1 to 1000"),
            ("limits", "active_per_parent", r#""ten""#, "a whole number"),
            ("limits", "active_per_parent", "2.5", "a whole number"),
            ("limits", "active_per_model", "3", "a section of its own"),
            ("limits.active_per_model", "gpt", "0", "a number from 1 to 1000"),
            ("limits.active_per_model", "gpt", "true", "a whole number"),
            ("supervisor", "poll_interval_seconds", "0", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "-2.0", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "nan", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "inf", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", r#""2""#, "a number"),
            ("notices", "inline_characters", "1000001", "a number from 0 to 1000000"),
            ("supervisor", "last_message_characters", "10001", "a number from 1 to 10000"),
            ("api", "result_characters", "0", "a number from 1 to 1000000"),
            ("notices", "toasts", r#""no""#, "`true` or `false`"),
            ("permissions", "policy", r#""ask""#, "`park` or `allow` or `deny`"),
            ("tools", "aliases", r#""background""#, "a list in brackets"),
            ("tools", "aliases", r#"["bg"]"#, "`superagents` or `background`"),
            ("tools", "aliases", "[1]", "`superagents` or `background`"),
            ("log", "level", r#""""#, "a text that is not empty"),
            ("providers", "work", "3", "a section of its own"),
            ("providers.work", "base_url", "3", "a text in quotes"),
            (
                "providers.work",
                "kind",
                r#""azure""#,
                "`openai` or `openai-responses` or `anthropic` or `gemini`",
            ),
        ] {
            check(
                &format!("[{section}]\n{line} = {found}"),
                &format!("`{section}.{line}` in config.toml is `{found}`; give {expected}"),
            );
        }
    }
}
