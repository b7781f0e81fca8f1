//! What a config file may say: no unknown keys, values of the right type and within their range.
//! A refusal names the key and the way out.

use toml::{Table, Value};

use super::{Config, Error};

/// Keys in these tables are names of models, so any key is known.
const MODEL_LIMITS: &str = "limits.active_per_model";
const MODEL_PRICES: &str = "agent.prices";
const PRICE_KEYS: [&str; 4] = ["cache_write", "cached_input", "input", "output"];

/// And here they are names the user gave.
const SERVERS: &str = "opencode.servers";
const ALIASES: &str = "agent.aliases";
const PROVIDERS: &str = "providers";
const PROVIDER_KEYS: [&str; 4] = ["base_url", "key_command", "key_file", "kind"];
const PROVIDER_KIND: Rule = Rule::OneOf(&["openai", "openai-responses", "anthropic", "gemini"]);

/// The longest time a key takes: far enough for "never", near enough to be added to a clock.
const YEAR: f64 = 365.0 * 86_400.0;

/// What a value may be beyond its type. Every number has its range here.
const RULES: &[(&str, Rule)] = &[
    ("sandbox", Rule::OneOf(&["auto", "bwrap", "landlock", "off"])),
    ("supervisor.poll_interval_seconds", Rule::Between(0.05, 3600.0)),
    ("supervisor.max_depth", Rule::Between(1.0, 10.0)),
    ("supervisor.stall_seconds", Rule::Between(1.0, YEAR)),
    ("supervisor.stall_repeats", Rule::Between(2.0, 1_000_000.0)),
    ("supervisor.result_cache_seconds", Rule::Between(0.0, YEAR)),
    ("supervisor.settle_seconds", Rule::Between(0.0, 3600.0)),
    ("supervisor.answer_grace_seconds", Rule::Between(1.0, 3600.0)),
    ("supervisor.gone_seconds", Rule::Between(1.0, YEAR)),
    ("supervisor.last_message_characters", Rule::Between(1.0, 10_000.0)),
    ("limits.active", Rule::Between(0.0, 1_000_000.0)),
    ("limits.active_per_parent", Rule::Between(1.0, 1000.0)),
    ("limits.queued_per_parent", Rule::Between(0.0, 1_000_000.0)),
    (MODEL_LIMITS, Rule::Between(1.0, 1000.0)),
    (MODEL_PRICES, Rule::Between(0.0, 1e6)),
    ("fork.method", Rule::OneOf(&["context", "native"])),
    ("permissions.policy", Rule::OneOf(&["park", "allow", "deny"])),
    ("permissions.park_seconds", Rule::Between(0.0, YEAR)),
    ("notices.inline_characters", Rule::Between(0.0, 1_000_000.0)),
    ("history.max_tasks", Rule::Between(0.0, 1e12)),
    ("history.max_age_days", Rule::Between(0.0, 36_500.0)),
    ("history.unread_days", Rule::Between(0.0, 36_500.0)),
    ("storage.warn_free_bytes", Rule::Between(0.0, 1e15)),
    ("storage.max_bytes", Rule::Between(0.0, 1e15)),
    ("agent.max_steps", Rule::Between(1.0, 100_000.0)),
    ("agent.model_retries", Rule::Between(0.0, 100.0)),
    ("agent.compact_at_tokens", Rule::Between(1_000.0, 1e12)),
    ("agent.thinking", Rule::OneOf(&["default", "low", "medium", "high"])),
    ("agent.silence_seconds", Rule::Between(1.0, 3600.0)),
    ("agent.answer_bytes", Rule::Between(1_000.0, 1e9)),
    ("agent.parallel_calls", Rule::Between(1.0, 1_000.0)),
    ("agent.transcript_bytes", Rule::Between(100_000.0, 1e10)),
    ("agent.output_bytes", Rule::Between(0.0, 1e12)),
    ("agent.definition_files", Rule::Between(0.0, 10_000.0)),
    ("agent.definition_bytes", Rule::Between(0.0, 1e8)),
    ("agent.definition_folder_bytes", Rule::Between(0.0, 1e9)),
    ("agent.command_lease_seconds", Rule::Between(1.0, 3600.0)),
    ("agent.command_network", Rule::OneOf(&["on", "off"])),
    ("agent.command_caches", Rule::OneOf(&["readable", "writable"])),
    ("agent.command_readable", Rule::Paths),
    ("agent.command_writable", Rule::Paths),
    ("agent.command_processes", Rule::Between(0.0, 1e7)),
    ("agent.command_memory_bytes", Rule::Between(0.0, 1e15)),
    ("agent.command_file_bytes", Rule::Between(0.0, 1e15)),
    ("agent.scratch_bytes", Rule::Between(0.0, 1e15)),
    ("agent.scratch_days", Rule::Between(0.0, 36_500.0)),
    ("opencode.gone_seconds", Rule::Between(1.0, YEAR)),
    (SERVERS, Rule::Filled),
    (ALIASES, Rule::Filled),
    ("tools.aliases", Rule::OneOf(&["superagents", "background"])),
    ("task_tool.offered", Rule::OneOf(&["mcp", "everywhere", "nowhere"])),
    ("task_tool.timeout_seconds", Rule::Between(1.0, 600.0)),
    ("task_tool.on_timeout", Rule::OneOf(&["background", "cancel"])),
    ("task_tool.agent", Rule::Filled),
    ("task_tool.active_per_parent", Rule::Between(1.0, 1000.0)),
    ("mcp.longest_call_seconds", Rule::Between(0.0, 600.0)),
    ("task_tool.cache_ttl_seconds", Rule::Between(0.0, YEAR)),
    ("api.host", Rule::Filled),
    ("api.port", Rule::Between(0.0, 65_535.0)),
    ("api.readers", Rule::OneOf(&["user", "anyone"])),
    ("api.origins", Rule::Filled),
    ("api.heartbeat_seconds", Rule::Between(1.0, 3600.0)),
    ("api.result_characters", Rule::Between(1.0, 1_000_000.0)),
    ("api.snapshot_tasks", Rule::Between(0.0, 100_000.0)),
    ("api.max_streams", Rule::Between(0.0, 100_000.0)),
    ("log.level", Rule::Filled),
    ("log.keep_days", Rule::Between(1.0, 3650.0)),
    ("log.max_bytes", Rule::Between(100_000.0, 1e12)),
];

/// Compares what a file says with the defaults, which have every key and its type.
pub(super) fn check_table(table: &Table, file: &str) -> Result<(), Error> {
    check_section("", table, &known_keys(), file)
}

/// `name` and `place` say where the value came from, should it not fit.
pub(super) fn check_rule(key: &str, value: &Value, name: &str, place: &str) -> Result<(), Error> {
    match RULES.iter().find(|(ruled, _)| *ruled == key) {
        Some((_, rule)) if !rule.admits(value) => {
            Err(unfit(name, place, value, &rule.expectation()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The same for a variable that switches something: in doubt, `0` and `off` would mean on.
pub(super) fn check_switch(key: &str, value: &Value, name: &str, place: &str) -> Result<(), Error> {
    match default_of(key) {
        Some(default @ Value::Boolean(_)) => check_type(name, value, &default, place),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn default_of(key: &str) -> Option<Value> {
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    let known = known_keys();
    let section = known.get(section).and_then(Value::as_table);
    section.unwrap_or(&known).get(name).cloned()
}

pub(super) fn known_keys() -> Table {
    Table::try_from(Config::default()).expect("the defaults can be written as TOML")
}

impl Config {
    /// The keys whose values differ, as they stand in the file.
    pub fn changed_keys(&self, other: &Config) -> Vec<String> {
        let table = |config| Table::try_from(config).expect("a config can be written as TOML");
        let mut keys = Vec::new();
        collect_changes("", &table(self), &table(other), &mut keys);
        keys
    }
}

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

fn check_section(path: &str, found: &Table, known: &Table, file: &str) -> Result<(), Error> {
    for (name, value) in found {
        let key = join(path, name);
        let Some(default) = known.get(name) else {
            let hint = hint(path, name, known);
            return Err(Error::UnknownKey { key, file: file.to_owned(), hint });
        };
        check_type(&key, value, default, file)?;
        match (value, default) {
            (Value::Table(models), _) if key == MODEL_LIMITS => check_limits(models, file)?,
            (Value::Table(models), _) if key == MODEL_PRICES => check_prices(models, file)?,
            (Value::Table(servers), _) if key == SERVERS => check_texts(SERVERS, servers, file)?,
            (Value::Table(models), _) if key == ALIASES => check_texts(ALIASES, models, file)?,
            (Value::Table(sections), _) if key == PROVIDERS => check_providers(sections, file)?,
            (Value::Table(found), Value::Table(known)) => check_section(&key, found, known, file)?,
            _ => check_rule(&key, value, &key, file)?,
        }
    }
    Ok(())
}

fn check_limits(models: &Table, file: &str) -> Result<(), Error> {
    for (model, limit) in models {
        let key = join(MODEL_LIMITS, model);
        check_type(&key, limit, &Value::Integer(1), file)?;
        check_rule(MODEL_LIMITS, limit, &key, file)?;
    }
    Ok(())
}

fn check_texts(path: &str, texts: &Table, file: &str) -> Result<(), Error> {
    for (name, text) in texts {
        let key = join(path, name);
        check_type(&key, text, &Value::String(String::new()), file)?;
        check_rule(path, text, &key, file)?;
    }
    Ok(())
}

fn check_providers(sections: &Table, file: &str) -> Result<(), Error> {
    let text = || Value::String(String::new());
    let known: Table = PROVIDER_KEYS.iter().map(|key| ((*key).to_owned(), text())).collect();
    for (name, section) in sections {
        let key = join(PROVIDERS, name);
        let Some(section) = section.as_table() else {
            return Err(unfit(&key, file, section, "a section of its own"));
        };
        check_section(&key, section, &known, file)?;
        match section.get("kind") {
            Some(kind) if !PROVIDER_KIND.admits(kind) => {
                return Err(unfit(&join(&key, "kind"), file, kind, &PROVIDER_KIND.expectation()));
            }
            Some(_) | None => {}
        }
        if let (Some(_), Some(command)) = (section.get("key_file"), section.get("key_command")) {
            let only = "either this or `key_file`";
            return Err(unfit(&join(&key, "key_command"), file, command, only));
        }
    }
    Ok(())
}

fn check_prices(models: &Table, file: &str) -> Result<(), Error> {
    for (model, price) in models {
        let key = join(MODEL_PRICES, model);
        let fits = match price {
            Value::Array(pair) if pair.len() == 2 => {
                pair.iter().try_for_each(|part| check_price(&key, part, file))?;
                true
            }
            Value::Table(table) => {
                let number = |name: &&str| ((*name).to_owned(), Value::Float(0.0));
                check_section(&key, table, &PRICE_KEYS.iter().map(number).collect(), file)?;
                table
                    .iter()
                    .try_for_each(|(name, part)| check_price(&join(&key, name), part, file))?;
                table.contains_key("input") && table.contains_key("output")
            }
            _ => false,
        };
        if !fits {
            let expected = "the prices of input and output in brackets, \
                            or `{ input = …, output = …, cached_input = …, cache_write = … }`";
            return Err(unfit(&key, file, price, expected));
        }
    }
    Ok(())
}

fn check_price(key: &str, price: &Value, file: &str) -> Result<(), Error> {
    check_type(key, price, &Value::Float(0.0), file)?;
    check_rule(MODEL_PRICES, price, key, file)
}

fn check_type(key: &str, value: &Value, default: &Value, file: &str) -> Result<(), Error> {
    let expected = match default {
        _ if value.same_type(default) => return Ok(()),
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
fn hint(path: &str, name: &str, known: &Table) -> String {
    let distance = |candidate: &&String| strsim::damerau_levenshtein(candidate, name);
    let close = (name.chars().count() / 3).max(1);
    let near = known.keys().min_by_key(distance).filter(|near| distance(near) <= close);
    match near.map(|near| join(path, near)).or_else(|| find_elsewhere(name)) {
        Some(key) => format!("did you mean `{key}`?"),
        None => format!("the keys there are {}", quoted(known.keys(), ", ")),
    }
}

/// The one section that has this key, if only one has.
fn find_elsewhere(name: &str) -> Option<String> {
    let known = known_keys();
    let has = |section: &Value| section.as_table().is_some_and(|keys| keys.contains_key(name));
    let mut sections = known.iter().filter(|(_, section)| has(section));
    match (sections.next(), sections.next()) {
        (Some((section, _)), None) => Some(join(section, name)),
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

enum Rule {
    Between(f64, f64),
    /// Of a list: each of its members.
    OneOf(&'static [&'static str]),
    Filled,
    Paths,
}

impl Rule {
    fn admits(&self, value: &Value) -> bool {
        match self {
            Rule::Between(least, most) => {
                let whole = value.as_integer().map(|number| number as f64);
                whole.or(value.as_float()).is_some_and(|number| (*least..=*most).contains(&number))
            }
            Rule::OneOf(words) => match value {
                Value::Array(members) => members.iter().all(|member| is_among(words, member)),
                other => is_among(words, other),
            },
            Rule::Filled => match value {
                Value::Array(members) => members.iter().all(is_filled),
                other => is_filled(other),
            },
            Rule::Paths => value.as_array().is_some_and(|all| all.iter().all(is_path)),
        }
    }

    fn expectation(&self) -> String {
        match self {
            Rule::Between(least, most) => format!("a number from {least} to {most}"),
            Rule::OneOf(words) => quoted(*words, " or "),
            Rule::Filled => "a text that is not empty".to_owned(),
            Rule::Paths => "a list of paths that begin with `/` or `~/`".to_owned(),
        }
    }
}

fn is_path(value: &Value) -> bool {
    value.as_str().is_some_and(|path| path.starts_with('/') || path.starts_with("~/"))
}

fn is_filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

fn is_among(words: &[&str], value: &Value) -> bool {
    value.as_str().is_some_and(|text| words.contains(&text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::set;
    use super::super::tests::load;
    use super::*;

    #[test]
    fn every_number_has_a_range_and_every_rule_a_key() {
        let mut numbers = BTreeSet::new();
        let mut keys = BTreeSet::new();
        for (section, value) in known_keys() {
            keys.insert(section.clone());
            for (name, value) in value.as_table().into_iter().flatten() {
                let key = join(&section, name);
                if value.is_integer() || value.is_float() {
                    numbers.insert(key.clone());
                }
                keys.insert(key);
            }
        }
        let ruled: BTreeSet<String> = RULES.iter().map(|(key, _)| (*key).to_owned()).collect();
        assert_eq!(numbers.difference(&ruled).collect::<Vec<_>>(), [] as [&String; 0]);
        assert_eq!(ruled.difference(&keys).collect::<Vec<_>>(), [] as [&String; 0]);
    }

    #[test]
    fn every_word_a_rule_admits_can_be_read() {
        for (key, rule) in RULES {
            let Rule::OneOf(words) = rule else { continue };
            for word in *words {
                let word = Value::from(*word);
                let value = if *key == "tools.aliases" { Value::Array(vec![word]) } else { word };
                let mut table = Table::new();
                set(&mut table, key, value);
                table.try_into::<Config>().unwrap();
            }
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
            let told =
                format!("`agent.prices.a/b{key}` in config.toml is `{found}`; give {expected}");
            assert_eq!(load(price).unwrap_err().to_string(), told);
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
